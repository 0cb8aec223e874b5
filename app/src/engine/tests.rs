//! The engine with the embedded model. `wake` runs on the engine's thread after each event, so a test that waits there
//! holds the engine at that event: no test depends on which thread is faster.
#![allow(clippy::unwrap_used)]

use super::message::{LiveToken, Pattern, TextTokens, Training, Under};
use super::{Command, Engine, Event, LocalEngine};
use crate::data::TileKey;
use layerscope_cutoff::patching::PatchEvent;
use layerscope_diagnostics::patching::{PatchDirection, PatchSite};
use layerscope_diagnostics::prompts::{PromptFile, parse_prompts, read_prompts};
use layerscope_diagnostics::run::Run;
use layerscope_engine::{
    Device, DeviceChoice, Model, ModelSource, PatternHeads, PromptText, Sampling, WeightsPrecision,
};
use layerscope_recording::patching::PatchRequest;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Only a deadlock takes longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// A prompt with a long continuation.
pub(super) const ENDLESS: &str = "Tell me a long story";

pub(super) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny").join(name)
}

fn source() -> ModelSource {
    ModelSource::path(fixture("layerscope-tiny.gguf"))
}

pub(super) fn load() -> Command {
    Command::LoadModel { source: source(), precision: WeightsPrecision::Native, device: DeviceChoice::Cpu }
}

pub(super) fn generate(prompt: &str, policies: &[&str], max_new_tokens: usize) -> Command {
    let prompt = PromptText::Plain(prompt.to_owned());
    let side = |policy: &&str| Under { prompt: prompt.clone(), policy: policy.to_string(), adapter: None };
    Command::Generate {
        sides: policies.iter().map(side).collect(),
        max_new_tokens,
        sampling: Sampling::Greedy,
    }
}

fn prompts(count: usize) -> PromptFile {
    let mut prompts = read_prompts(&fixture("demo.jsonl")).unwrap();
    prompts.prompts.truncate(count);
    prompts
}

pub(super) fn record(count: usize, folder: &Path) -> Command {
    Command::Record { prompts: prompts(count), max_new_tokens: 6, folder: folder.to_owned(), adapter: None }
}

fn here(wake: impl Fn() + Send + 'static) -> Engine {
    Engine::Here(LocalEngine::start(wake))
}

/// Waits for the next event.
pub(super) fn next(engine: &Engine) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = engine.try_event() {
            return event;
        }
        assert!(start.elapsed() < PATIENCE, "the engine says nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The events of the next command that ends, without its [`Event::Idle`].
pub(super) fn rest(engine: &Engine) -> Vec<Event> {
    std::iter::repeat_with(|| next(engine)).take_while(|event| *event != Event::Idle).collect()
}

pub(super) fn perform(engine: &Engine, command: Command) -> Vec<Event> {
    engine.send(command).unwrap();
    assert!(engine.is_busy());
    let events = rest(engine);
    assert!(!engine.is_busy());
    events
}

fn loaded() -> Engine {
    let engine = here(|| {});
    perform(&engine, load());
    engine
}

/// An engine that waits after each event for a permit; dropping the sender releases it for good.
fn held() -> (Engine, Sender<()>) {
    let (go_on, gate) = channel();
    let engine = here(move || {
        let _ = gate.recv();
    });
    (engine, go_on)
}

/// Runs a held engine until a given event and returns the event; the engine is then held again.
fn hold_at(engine: &Engine, go_on: &Sender<()>, wanted: impl Fn(&Event) -> bool) -> Event {
    loop {
        let event = next(engine);
        if wanted(&event) {
            return event;
        }
        go_on.send(()).unwrap();
    }
}

fn loaded_and_held() -> (Engine, Sender<()>) {
    let (engine, go_on) = held();
    engine.send(load()).unwrap();
    hold_at(&engine, &go_on, |event| *event == Event::Idle);
    go_on.send(()).unwrap();
    (engine, go_on)
}

fn drops_in_time(engine: Engine) {
    let (done, dropped) = channel();
    std::thread::spawn(move || {
        drop(engine);
        let _ = done.send(());
    });
    dropped.recv_timeout(PATIENCE).unwrap();
}

fn tokens(events: &[Event], side: usize) -> Vec<&LiveToken> {
    let mut tokens = vec![];
    for event in events {
        if let Event::Token(token) = event
            && token.side == side
        {
            tokens.push(&**token);
        }
    }
    tokens
}

fn side(event: &Event) -> Option<usize> {
    match event {
        Event::GenerationStarted { side, .. }
        | Event::Prefilled { side, .. }
        | Event::GenerationEnded { side, .. } => Some(*side),
        Event::Token(token) => Some(token.side),
        _ => None,
    }
}

#[test]
fn loads_a_model() {
    let engine = here(|| {});
    let events = perform(&engine, load());
    let (last, before) = events.split_last().unwrap();
    assert_eq!(before.last(), Some(&Event::Loading { done: 8, all: 8 }));
    let Event::Loaded(model) = last else { panic!("{last:?}") };
    assert_eq!((model.layers, model.heads, model.context, model.precision.as_str()), (8, 4, 1024, "native"));
    assert_eq!(model.sha256.len(), 64);
}

#[test]
fn says_what_cannot_be_done_and_goes_on() {
    let engine = here(|| {});
    let failure = |command| match perform(&engine, command).as_slice() {
        [Event::Failed(sentence)] => sentence.clone(),
        other => panic!("{other:?}"),
    };
    let nowhere = ModelSource::path("no/such/model.gguf");
    let (precision, device) = (WeightsPrecision::Native, DeviceChoice::Cpu);
    assert!(
        failure(Command::LoadModel { source: nowhere.clone(), precision, device })
            .contains("no/such/model.gguf")
    );
    assert!(failure(generate("Hello", &["full"], 4)).contains("no model is loaded"));
    perform(&engine, load());
    assert!(failure(generate("Hello", &["full", "speed:99"], 4)).contains("between 1 and 8"));
    assert!(failure(generate("Hello", &["full"], 4000)).contains("context"));
    let pattern = |prompt_tokens: &[u32], layers: &[usize]| Command::ReadPattern {
        prompt_tokens: prompt_tokens.to_vec(),
        continuation: vec![1],
        layers: layers.to_vec(),
    };
    assert!(failure(pattern(&[1, 2], &[8])).contains("between 0 and 7"));
    assert!(failure(pattern(&[1, 70_000], &[0])).contains("no token 70000"));
    assert!(failure(pattern(&[], &[0])).contains("needs a prompt"));
    // The loaded model stays.
    assert!(failure(Command::LoadModel { source: nowhere, precision, device }).contains("no/such"));
    assert!(!tokens(&perform(&engine, generate("Hello", &["full"], 4)), 0).is_empty());
}

#[test]
fn generates_side_by_side() {
    let engine = loaded();
    let prompt = &prompts(1).prompts[0].text();
    let events = perform(&engine, generate(prompt, &["full", "speed:8", "speed:4"], 12));

    let sides: Vec<usize> = events.iter().map(|event| side(event).unwrap()).collect();
    assert!(sides.is_sorted() && sides.last() == Some(&2), "{sides:?}");
    let (full, same, shallow) = (tokens(&events, 0), tokens(&events, 1), tokens(&events, 2));
    let ids = |tokens: &[&LiveToken]| tokens.iter().map(|token| token.id).collect::<Vec<_>>();
    assert_eq!(full.len(), 12);
    assert_eq!(ids(&full), ids(&same));

    let model = Model::load(&source(), WeightsPrecision::Native, &Device::Cpu, &mut |_, _| Ok(())).unwrap();
    let mut bytes = vec![];
    for (index, tokens) in [full, same, shallow].into_iter().enumerate() {
        let own: Vec<&Event> = events.iter().filter(|event| side(event) == Some(index)).collect();
        let Event::GenerationStarted { policy, prompt_tokens, kv_bytes, .. } = own[0] else { panic!() };
        assert_eq!(policy, ["full", "full", "speed:4"][index]);
        let prefilled = Event::Prefilled { side: index, done: *prompt_tokens, all: *prompt_tokens };
        assert_eq!(own[1], &prefilled);
        let Event::GenerationEnded { ttft_s, tpot_s, kv_bytes: ended, text_rest, cancelled, .. } =
            own[own.len() - 1]
        else {
            panic!()
        };
        assert!(!cancelled && ttft_s.unwrap() > 0.0 && tpot_s.unwrap() > 0.0);
        assert_eq!(kv_bytes, ended);
        bytes.push(*kv_bytes);

        let text: String =
            tokens.iter().map(|token| token.text.as_str()).chain([text_rest.as_str()]).collect();
        assert_eq!(text, model.tokenizer.decode_skipping_special(&ids(&tokens)).unwrap());
        for (step, token) in tokens.into_iter().enumerate() {
            check_token(token, step);
        }
    }
    assert!(bytes[0] == bytes[1] && bytes[2] < bytes[0], "{bytes:?}");
}

#[test]
fn random_tokens_come_from_a_seed() {
    let engine = loaded();
    let texts = |seed: u64| -> [Vec<u32>; 2] {
        let mut command = generate(ENDLESS, &["full", "full"], 12);
        let Command::Generate { sampling, .. } = &mut command else { unreachable!() };
        *sampling = Sampling::Random { temperature: 1.5, top_p: None, top_k: None, min_p: None, seed };
        let events = perform(&engine, command);
        [0, 1].map(|side| tokens(&events, side).into_iter().map(|token| token.id).collect())
    };
    let [first, second] = texts(1);
    assert_eq!(first, second);
    assert!((2..6).any(|seed| texts(seed)[0] != first));
}

fn check_token(token: &LiveToken, step: usize) {
    assert_eq!((token.step, token.top.len(), token.top[0].id), (step, 20, token.id));
    assert!(token.top.is_sorted_by(|a, b| a.probability >= b.probability));
    assert!(token.top.iter().map(|candidate| candidate.probability).sum::<f64>() < 1.0 + 1e-6);
    assert_eq!(token.attention.len(), if step == 0 { 0 } else { 8 });
    for layer in &token.attention {
        let all = layer.bos_mass + layer.prompt_mass + layer.decode_mass;
        assert!((all - 1.0).abs() < 1e-4, "{layer:?}");
        let defined = layer.prompt_mass > 1e-3;
        assert!(!defined || (0.0..=1.0).contains(&layer.prompt_entropy), "{layer:?}");
        assert!(layer.prompt_mass > 0.0 || layer.prompt_entropy.is_nan(), "{layer:?}");
    }
}

#[test]
fn a_cancel_ends_a_generation_and_what_waits() {
    let (engine, go_on) = loaded_and_held();
    engine.send(generate(ENDLESS, &["full", "speed:4"], 1000)).unwrap();
    engine.send(generate("dropped", &["full"], 5)).unwrap();
    hold_at(&engine, &go_on, |event| matches!(event, Event::Token(token) if token.step == 4));
    engine.send(Command::Cancel).unwrap();
    engine.send(generate("done", &["full"], 5)).unwrap();
    drop(go_on);
    match rest(&engine).as_slice() {
        [Event::GenerationEnded { side: 0, ttft_s: Some(_), tpot_s: Some(_), cancelled: true, .. }] => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(rest(&engine), []);
    let done = rest(&engine);
    assert!(matches!(done.last(), Some(Event::GenerationEnded { cancelled: false, .. })), "{done:?}");
    assert!(!engine.is_busy());
}

#[test]
fn a_cancel_ends_a_prefill() {
    let (engine, go_on) = loaded_and_held();
    engine.send(generate(&"Yorbert plays the harp. ".repeat(100), &["full"], 5)).unwrap();
    hold_at(&engine, &go_on, |event| matches!(event, Event::Prefilled { done, all, .. } if done < all));
    engine.send(Command::Cancel).unwrap();
    drop(go_on);
    match rest(&engine).as_slice() {
        [Event::GenerationEnded { ttft_s: None, tpot_s: None, cancelled: true, .. }] => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cancel_of_nothing_does_nothing() {
    let engine = loaded();
    engine.send(Command::Cancel).unwrap();
    engine.send(Command::Cancel).unwrap();
    assert!(!engine.is_busy());
    assert_eq!(tokens(&perform(&engine, generate(ENDLESS, &["full"], 5)), 0).len(), 5);
}

#[test]
fn a_cancelled_recording_keeps_what_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let (engine, go_on) = loaded_and_held();
    engine.send(record(2, &out)).unwrap();
    hold_at(&engine, &go_on, |event| matches!(event, Event::PromptFinished { .. }));
    engine.send(Command::Cancel).unwrap();
    drop(go_on);
    assert_eq!(rest(&engine), [Event::RecordingEnded { folder: out.clone(), cancelled: true }]);
    assert_eq!(Run::open(&out).unwrap().prompt_ids(), ["knowledge-1"]);

    let resumed = perform(&engine, record(2, &out));
    assert_eq!(resumed[0], Event::RecordingStarted { done: 1, all: 2 });
    assert_eq!(resumed.last(), Some(&Event::RecordingEnded { folder: out.clone(), cancelled: false }));
    let shares: Vec<f32> = resumed
        .iter()
        .filter_map(|event| if let Event::PromptProgress { share, .. } = event { Some(*share) } else { None })
        .collect();
    assert!(shares.is_sorted() && shares[0] > 0.0 && shares.last() == Some(&1.0), "{shares:?}");
    assert_eq!(Run::open(&out).unwrap().prompt_ids(), ["knowledge-1", "knowledge-2"]);
}

#[test]
fn patterns_are_what_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let engine = loaded();
    perform(&engine, record(2, &out));
    let run = Run::open(&out).unwrap();
    for id in ["knowledge-1", "knowledge-2"] {
        let prompt = run.prompt(id).unwrap();
        let received = run.tokens(id).unwrap().mean;
        let read = |layers: &[usize]| {
            let (prompt_tokens, continuation) = (prompt.prompt_tokens.clone(), prompt.generated.clone());
            perform(&engine, Command::ReadPattern { prompt_tokens, continuation, layers: layers.to_vec() })
        };
        let all = read(&[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(all[0], Event::ReadingPattern { done: prompt.p, all: prompt.p });
        let patterns: Vec<&Pattern> = all[1..].iter().map(pattern).collect();
        assert_eq!(patterns.len(), 8);
        for (layer, pattern) in patterns.iter().enumerate() {
            assert_eq!((pattern.layer, pattern.heads), (layer, 4));
            assert_eq!((pattern.steps, pattern.positions), (prompt.steps, prompt.p));
            assert_eq!(pattern.values.len(), 4 * prompt.steps * prompt.p);
            for position in 0..prompt.p {
                let column = pattern.values.iter().skip(position).step_by(prompt.p);
                let mean = column.sum::<f32>() / (4 * prompt.steps) as f32;
                assert!(
                    (mean - received[[layer, position]]).abs() < 1e-4,
                    "layer {layer}, position {position}"
                );
            }
        }
        // Again from the stored KV: no prefill.
        let again = read(&[5]);
        assert_eq!(again.len(), 1);
        let largest = pattern(&again[0]).values.iter().zip(&patterns[5].values).map(|(a, b)| (a - b).abs());
        assert!(largest.fold(0.0, f32::max) < 1e-5);
    }
}

#[test]
fn tiles_are_what_patterns_are_and_a_text_runs_once() {
    let engine = loaded();
    let prompt: Vec<u32> = (1..=40).collect();
    let continuation: Vec<u32> = (50..=56).collect();
    let read = Command::ReadPattern {
        prompt_tokens: prompt.clone(),
        continuation: continuation.clone(),
        layers: vec![3],
    };
    let whole = perform(&engine, read);
    let whole = pattern(whole.last().unwrap());
    let text = Arc::new(TextTokens { prompt, continuation });
    let key = |heads| TileKey { layer: 3, heads, level: [0, 0], place: [0, 0] };
    let compute = |policy: &str, tiles: Vec<TileKey>| {
        perform(&engine, Command::PatternTiles { text: text.clone(), policy: policy.into(), tiles })
    };
    let first = compute("full", vec![key(PatternHeads::One(0)), key(PatternHeads::One(2))]);
    let runs = |events: &[Event]| events.iter().any(|event| matches!(event, Event::ReadingPattern { .. }));
    assert!(runs(&first));
    let tiles: Vec<_> = first
        .iter()
        .filter_map(|event| {
            if let Event::PatternTile { key, tile } = event { Some((*key, tile.clone())) } else { None }
        })
        .collect();
    assert_eq!(tiles.iter().map(|(key, _)| key.heads).collect::<Vec<_>>(), [0, 2].map(PatternHeads::One));
    for ((_, tile), head) in tiles.iter().zip([0, 2]) {
        assert_eq!((tile.rows, tile.columns), (46, 46));
        for step in 0..7 {
            for position in 0..40 {
                let expected = whole.values[(head * 7 + step) * 40 + position];
                let actual = tile.at(39 + step, position);
                assert!((actual - expected).abs() < 1e-5, "head {head}, step {step}, position {position}");
            }
        }
    }
    // Again: the text has run. Under another policy it runs again, and the prompt's rows are not there.
    assert!(!runs(&compute("full", vec![key(PatternHeads::Mean)])));
    let under = compute("speed:2+bos", vec![key(PatternHeads::Max)]);
    assert!(runs(&under));
    let Some(Event::PatternTile { tile, .. }) = under.last() else { panic!("{under:?}") };
    assert!(tile.at(20, 20).is_nan() && tile.at(40, 20).is_nan() && tile.at(40, 0) > 0.0);
    let failure = |policy: &str, tiles| match compute(policy, tiles).last() {
        Some(Event::Failed(sentence)) => sentence.clone(),
        other => panic!("{other:?}"),
    };
    assert!(failure("speed:99", vec![key(PatternHeads::Mean)]).contains("between 1 and 8"));
    let deep = TileKey { layer: 8, ..key(PatternHeads::Mean) };
    assert!(failure("full", vec![deep]).contains("between 0 and 7"));
    assert!(failure("full", vec![key(PatternHeads::One(4))]).contains("head 4"));
}

fn pattern(event: &Event) -> &Pattern {
    match event {
        Event::Pattern(pattern) => pattern,
        other => panic!("{other:?}"),
    }
}

#[test]
fn dropping_ends_a_generation() {
    let (engine, go_on) = loaded_and_held();
    engine.send(generate(ENDLESS, &["full"; 50], 1000)).unwrap();
    engine.send(generate(ENDLESS, &["full"; 50], 1000)).unwrap();
    hold_at(&engine, &go_on, |event| matches!(event, Event::Token(_)));
    drop(go_on);
    drops_in_time(engine);
}

/// A generating engine with a full channel of four events that nobody receives.
fn choked() -> Engine {
    let told = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&told);
    let engine = Engine::Here(LocalEngine::with_room(4, None, move || {
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    perform(&engine, load());
    let before = told.load(Ordering::SeqCst);
    engine.send(generate(ENDLESS, &["full", "speed:4"], 1000)).unwrap();
    let start = Instant::now();
    while told.load(Ordering::SeqCst) < before + 4 {
        assert!(start.elapsed() < PATIENCE, "no events");
        std::thread::sleep(Duration::from_millis(1));
    }
    engine
}

#[test]
fn dropping_ends_an_engine_that_waits_for_room() {
    drops_in_time(choked());
}

#[test]
fn a_cancel_ends_an_engine_that_waits_for_room() {
    let engine = choked();
    engine.send(Command::Cancel).unwrap();
    let events = rest(&engine);
    assert!(tokens(&events, 0).len() <= 3, "{events:?}");
    assert!(
        matches!(events.last(), Some(Event::GenerationEnded { side: 0, cancelled: true, .. })),
        "{events:?}"
    );
    assert_eq!(tokens(&perform(&engine, generate(ENDLESS, &["full"], 5)), 0).len(), 5);
}

#[test]
fn a_full_queue_is_said() {
    let (engine, go_on) = loaded_and_held();
    let sent = std::iter::repeat_with(|| engine.send(generate("Hello", &["full"], 1)));
    // At most one runs and sixteen wait.
    let refused = sent.take(18).filter_map(Result::err).next().unwrap();
    assert!(refused.to_string().contains("waiting already"), "{refused}");
    engine.send(Command::Cancel).unwrap();
    drop(go_on);
    while engine.is_busy() {
        next(&engine);
    }
}

#[test]
fn a_panic_is_said_and_the_engine_goes_on() {
    let armed = Arc::new(AtomicBool::new(false));
    let trap = Arc::clone(&armed);
    let engine = here(move || assert!(!trap.swap(false, Ordering::SeqCst), "a trap"));
    perform(&engine, load());
    armed.store(true, Ordering::SeqCst);
    let events = perform(&engine, generate("Hello", &["full"], 5));
    assert!(
        matches!(events.last(), Some(Event::Failed(sentence)) if sentence.contains("a trap")),
        "{events:?}"
    );
    assert_eq!(tokens(&perform(&engine, generate(ENDLESS, &["full"], 5)), 0).len(), 5);
}

fn adapt(folder: &Path) -> Command {
    let prompts = read_prompts(&fixture("adapt.jsonl")).unwrap();
    let training = Training {
        policy: "speed:5+bos".into(),
        minutes: 0.01,
        rank: 4,
        learning_rate: 1e-3,
        max_new_tokens: 6,
    };
    Command::Adapt {
        prompts: PromptFile { prompts: prompts.prompts.into_iter().take(8).collect(), ..prompts },
        training,
        folder: folder.to_owned(),
    }
}

#[test]
fn trains_an_adapter_and_runs_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let (adapter, run) = (folder.path().join("taught"), folder.path().join("run"));
    let engine = loaded();
    let events = perform(&engine, adapt(&adapter));
    assert_eq!(events[0], Event::PromptsPrepared { done: 1, all: 8 });
    let started = events.iter().find_map(|event| match event {
        Event::TrainingStarted { policy, cutoff, trained, held_out, resumed } => {
            Some((policy.as_str(), *cutoff, *trained, *held_out, *resumed))
        }
        _ => None,
    });
    assert_eq!(started, Some(("speed:5+bos", Some(5), 7, 1, 0)));
    let measured = events.iter().filter_map(|event| match event {
        Event::HeldOut { step, figures, frontier } => Some((*step, figures.kl, frontier)),
        _ => None,
    });
    for (step, kl, frontier) in measured {
        let at = |cutoff: usize| frontier.iter().find(|(known, _)| *known == cutoff).unwrap().1;
        assert!((at(5) - kl).abs() < 1e-9);
        assert!(step > 0 || at(8) < 1e-6, "without an adapter full depth is the full model");
    }
    let Some(Event::TrainingEnded { folder: written, training, cancelled: false }) = events.last() else {
        panic!("{:?}", events.last())
    };
    assert_eq!((written.as_path(), training.prompts, training.full_depth.is_some()), (&*adapter, 7, true));

    let mut command = generate("The lake", &["speed:5+bos"; 2], 4);
    let Command::Generate { sides, .. } = &mut command else { unreachable!() };
    sides[1].adapter = Some(adapter.clone());
    let names: Vec<Option<String>> = perform(&engine, command)
        .into_iter()
        .filter_map(|event| match event {
            Event::GenerationStarted { adapter, .. } => Some(adapter),
            _ => None,
        })
        .collect();
    assert_eq!(names, [None, Some("taught".into())]);
    let Command::Record { prompts, max_new_tokens, folder, .. } = record(1, &run) else { unreachable!() };
    perform(&engine, Command::Record { prompts, max_new_tokens, folder, adapter: Some(adapter) });
    let recorded = Run::open(&run).unwrap().manifest().model.adapter.clone().unwrap();
    assert_eq!(recorded.training.unwrap().steps, training.steps);
}

#[test]
fn a_cancel_ends_a_training_and_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, go_on) = loaded_and_held();
    let Command::Adapt { prompts, training, folder } = adapt(folder.path()) else { unreachable!() };
    let training = Training { minutes: 60.0, ..training };
    engine.send(Command::Adapt { prompts, training, folder: folder.clone() }).unwrap();
    hold_at(&engine, &go_on, |event| matches!(event, Event::TrainingStep { step: 2, .. }));
    engine.send(Command::Cancel).unwrap();
    drop(go_on);
    let events = rest(&engine);
    let Some(Event::TrainingEnded { training, cancelled: true, .. }) = events.last() else {
        panic!("{events:?}")
    };
    assert!(training.steps >= 2 && folder.join("training.safetensors").is_file());
}

/// Records two prompts of as many tokens, longer with `more`.
fn recorded_pair(engine: &Engine, folder: &Path, more: usize) {
    let text = |name: &str| format!("{name} has a red box. {}", "The lake is blue. ".repeat(more));
    let lines = ["Anna", "Carl"]
        .map(|name| format!("{{\"id\": \"{name}\", \"prompt\": \"{}\"}}\n", text(name)))
        .concat();
    let prompts = PromptFile {
        name: "pair.jsonl".into(),
        sha256: "00".into(),
        prompts: parse_prompts("pair.jsonl", lines.as_bytes()).unwrap(),
    };
    let record = Command::Record { prompts, max_new_tokens: 2, folder: folder.to_owned(), adapter: None };
    let events = perform(engine, record);
    assert!(!events.iter().any(|event| matches!(event, Event::Failed(_))), "{events:?}");
}

fn patch(folder: &Path, site: PatchSite) -> Command {
    Command::Patch {
        folder: folder.to_owned(),
        prompts: ["Anna", "Carl"].map(str::to_owned),
        request: PatchRequest {
            site,
            direction: PatchDirection::Denoising,
            metric: None,
            answer: None,
            wrong: None,
            layers: None,
            positions: None,
        },
        adapter: None,
    }
}

#[test]
fn maps_of_patches_are_in_the_run_folder() {
    let folder = tempfile::tempdir().unwrap();
    let engine = loaded();
    recorded_pair(&engine, folder.path(), 1);
    let events = perform(&engine, patch(folder.path(), PatchSite::Head));
    let [.., Event::Patched { map, kept, .. }] = &events[..] else { panic!("{events:?}") };
    assert!(map.is_complete() && *kept);
    assert!(events.iter().any(|event| matches!(event, Event::Patching(PatchEvent::Rows { .. }))));
    assert_eq!(Run::open(folder.path()).unwrap().patches().unwrap(), [(**map).clone()]);
    let unknown = patch(Path::new("absent"), PatchSite::Head);
    assert!(
        matches!(&perform(&engine, unknown)[..], [Event::Failed(sentence)] if sentence.contains("absent"))
    );
}

#[test]
fn a_cancelled_map_keeps_what_is_computed() {
    let folder = tempfile::tempdir().unwrap();
    recorded_pair(&loaded(), folder.path(), 12);
    let (engine, go_on) = loaded_and_held();
    engine.send(patch(folder.path(), PatchSite::ResidPre)).unwrap();
    hold_at(
        &engine,
        &go_on,
        |event| matches!(event, Event::Patching(PatchEvent::Rows { done, all }) if 3 * done > *all),
    );
    engine.send(Command::Cancel).unwrap();
    drop(go_on);
    let events = rest(&engine);
    let [.., Event::Patched { map, kept: true, .. }] = &events[..] else { panic!("{events:?}") };
    assert!(map.done() > 0 && !map.is_complete());
    let kept = Run::open(folder.path()).unwrap().patches().unwrap();
    assert_eq!(kept[0].done(), map.done());
}
