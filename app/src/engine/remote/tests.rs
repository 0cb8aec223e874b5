//! Messages as bytes, and an engine at the other end of two pipes of this process.
#![allow(clippy::unwrap_used)]

use super::question::{Answer, MapPart, PromptOf, Question};
use super::wire::{self, NotGreeted, ToEngine, ToWindow};
use super::{Link, MOST_FRAME, Machine, PROTOCOL, Pipes, serve};
use crate::data::{Found, MapKey, StepFigure, TileKey, TokenFigure, Want};
use crate::engine::message::{
    Candidate, LiveAttention, LiveToken, LoadedModel, Pattern, RecordingStage, TextTokens, Training, Under,
};
use crate::engine::tests::{ENDLESS, PATIENCE, load, next, perform, record, rest};
use crate::engine::{Command, Engine, Event};
use crate::viewer::SeenModels;
use layerscope_cutoff::diffusion::DiffusionEvent;
use layerscope_cutoff::patching::PatchEvent;
use layerscope_diagnostics::patching::{
    PatchDirection, PatchFigures, PatchMap, PatchMetric, PatchSite, PatchToken, PatchedPrompt,
};
use layerscope_diagnostics::prompts::{Prompt, PromptFile};
use layerscope_diagnostics::reads::{Read as Position, RowReads};
use layerscope_diagnostics::record::{Divergence, SpanMasses, SpanRecord, SpanRow};
use layerscope_diagnostics::run::Run;
use layerscope_engine::{
    AdapterTraining, DeviceChoice, Error, HeldOutFigures, Interrupt, Message, ModelSource, PatternHeads,
    PatternTile, PromptText, Result, Sampling, WeightsPrecision,
};
use layerscope_figures::{Pyramid, PyramidPart};
use layerscope_recording::patching::PatchRequest;
use proptest::collection::vec;
use proptest::option::of as maybe;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufReader, PipeWriter, Write, pipe};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z ]{1,9}", "\\PC{0,9}"]
}

fn path() -> impl Strategy<Value = PathBuf> {
    text().prop_map(PathBuf::from)
}

fn count() -> impl Strategy<Value = usize> {
    prop_oneof![0..300_usize, any::<usize>()]
}

/// Any bits: NaN and infinities, too.
fn number() -> impl Strategy<Value = f64> {
    any::<u64>().prop_map(f64::from_bits)
}

fn single() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits)
}

fn source() -> impl Strategy<Value = ModelSource> {
    (text(), path(), maybe(text()), maybe(path())).prop_map(|(name, path, architecture, adapter)| {
        ModelSource::named(name, path).of_architecture(architecture.as_deref()).with_adapter(adapter)
    })
}

fn prompt_text() -> impl Strategy<Value = PromptText> {
    let message = (text(), text()).prop_map(|(role, content)| Message { role, content });
    prop_oneof![text().prop_map(PromptText::Plain), vec(message, 0..3).prop_map(PromptText::Messages)]
}

fn prompt_file() -> impl Strategy<Value = PromptFile> {
    let prompt = (text(), text(), prompt_text(), maybe(text()), maybe(text()), maybe(text()));
    let prompt = prompt.prop_map(|(id, category, content, answer, expected, span)| Prompt {
        id,
        category,
        content,
        answer,
        expected,
        span,
    });
    (text(), text(), vec(prompt, 0..3)).prop_map(|(name, sha256, prompts)| PromptFile {
        name,
        sha256,
        prompts,
    })
}

fn heads() -> impl Strategy<Value = PatternHeads> {
    prop_oneof![count().prop_map(PatternHeads::One), Just(PatternHeads::Mean), Just(PatternHeads::Max)]
}

fn tile_key() -> impl Strategy<Value = TileKey> {
    (count(), heads(), any::<[u8; 2]>(), [count(), count()])
        .prop_map(|(layer, heads, level, place)| TileKey { layer, heads, level, place })
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let random = (number(), maybe(number()), maybe(count()), maybe(number()), any::<u64>());
    let random = random.prop_map(|(temperature, top_p, top_k, min_p, seed)| Sampling::Random {
        temperature,
        top_p,
        top_k,
        min_p,
        seed,
    });
    prop_oneof![Just(Sampling::Greedy), random]
}

fn device() -> impl Strategy<Value = DeviceChoice> {
    prop_oneof![Just(DeviceChoice::Auto), Just(DeviceChoice::Cpu), count().prop_map(DeviceChoice::Cuda)]
}

fn command() -> impl Strategy<Value = Command> {
    let precision = prop_oneof![Just(WeightsPrecision::Native), Just(WeightsPrecision::F32)];
    let training = (text(), number(), count(), number(), count());
    let training = training.prop_map(|(policy, minutes, rank, learning_rate, max_new_tokens)| Training {
        policy,
        minutes,
        rank,
        learning_rate,
        max_new_tokens,
    });
    let side = (prompt_text(), text(), maybe(path()));
    let side = side.prop_map(|(prompt, policy, adapter)| Under { prompt, policy, adapter });
    let tokens = (vec(any::<u32>(), 0..5), vec(any::<u32>(), 0..5));
    let tokens = tokens.prop_map(|(prompt, continuation)| Arc::new(TextTokens { prompt, continuation }));
    prop_oneof![
        (source(), precision, device()).prop_map(|(source, precision, device)| Command::LoadModel {
            source,
            precision,
            device
        }),
        (prompt_file(), count(), path(), maybe(path())).prop_map(
            |(prompts, max_new_tokens, folder, adapter)| Command::Record {
                prompts,
                max_new_tokens,
                folder,
                adapter
            }
        ),
        (prompt_file(), training, path()).prop_map(|(prompts, training, folder)| Command::Adapt {
            prompts,
            training,
            folder
        }),
        (vec(side, 0..3), count(), sampling()).prop_map(|(sides, max_new_tokens, sampling)| {
            Command::Generate { sides, max_new_tokens, sampling }
        }),
        (vec(any::<u32>(), 0..5), vec(any::<u32>(), 0..5), vec(count(), 0..4)).prop_map(
            |(prompt_tokens, continuation, layers)| Command::ReadPattern {
                prompt_tokens,
                continuation,
                layers
            }
        ),
        (tokens, text(), vec(tile_key(), 0..4)).prop_map(|(text, policy, tiles)| Command::PatternTiles {
            text,
            policy,
            tiles
        }),
        (path(), text(), count(), count()).prop_map(|(folder, prompt_id, start, end)| Command::RemoveSpan {
            folder,
            prompt_id,
            span: start..end
        }),
        (path(), [text(), text()], patch_request(), maybe(path())).prop_map(
            |(folder, prompts, request, adapter)| Command::Patch { folder, prompts, request, adapter }
        ),
        Just(Command::Cancel),
    ]
}

fn patch_request() -> impl Strategy<Value = PatchRequest> {
    let asked = (patch_site(), patch_direction(), maybe(patch_metric()));
    let numbers = || maybe(vec(count(), 0..4));
    (asked, [maybe(text()), maybe(text())], numbers(), numbers()).prop_map(
        |((site, direction, metric), [answer, wrong], layers, positions)| PatchRequest {
            site,
            direction,
            metric,
            answer,
            wrong,
            layers,
            positions,
        },
    )
}

fn patch_site() -> impl Strategy<Value = PatchSite> {
    prop::sample::select(PatchSite::ALL.to_vec())
}

fn patch_direction() -> impl Strategy<Value = PatchDirection> {
    prop::sample::select(PatchDirection::ALL.to_vec())
}

fn patch_metric() -> impl Strategy<Value = PatchMetric> {
    prop::sample::select(PatchMetric::ALL.to_vec())
}

fn patch_map() -> impl Strategy<Value = PatchMap> {
    let token = || (any::<u32>(), text()).prop_map(|(id, text)| PatchToken { id, text });
    let figures = || (number(), number()).prop_map(|(logit_diff, kl)| PatchFigures { logit_diff, kl });
    let prompt = || {
        (text(), vec(token(), 0..4), token(), figures()).prop_map(|(id, tokens, next, figures)| {
            PatchedPrompt { id, tokens: tokens.into(), next, figures }
        })
    };
    let numbers = || vec(count(), 0..4);
    let asked = (patch_site(), patch_direction(), patch_metric());
    let places = (numbers(), numbers(), numbers());
    (asked, [prompt(), prompt()], [token(), token()], places, vec(maybe(figures()), 0..9)).prop_map(
        |(asked, [clean, corrupted], [answer, wrong], places, cells)| {
            let (site, direction, metric) = asked;
            let (layers, columns, head_positions) = places;
            PatchMap {
                site,
                direction,
                metric,
                clean,
                corrupted,
                answer,
                wrong,
                layers,
                columns,
                head_positions,
                cells,
            }
        },
    )
}

fn figures() -> impl Strategy<Value = HeldOutFigures> {
    (number(), number(), maybe(number())).prop_map(|(kl, top1, answers)| HeldOutFigures { kl, top1, answers })
}

fn span() -> impl Strategy<Value = SpanRecord> {
    let row = (count(), vec(number(), 9), maybe(any::<bool>()));
    let row = row.prop_map(|(layer, n, found)| SpanRow {
        layer,
        divergence: Divergence { kl: n[0], top1: n[1], dnll: n[2] },
        decode_mass: n[3],
        masses: SpanMasses {
            span_full: n[4],
            rest_full: n[5],
            bos_after: n[6],
            rest_after: n[7],
            decode_after: n[8],
        },
        found,
    });
    (text(), count(), count(), text(), vec(row, 0..3))
        .prop_map(|(prompt_id, first, end, text, layers)| SpanRecord { prompt_id, first, end, text, layers })
}

fn token() -> impl Strategy<Value = LiveToken> {
    let candidate = (any::<u32>(), text(), number());
    let candidate = candidate.prop_map(|(id, token, probability)| Candidate { id, token, probability });
    let attention = any::<[u32; 4]>().prop_map(|bits| {
        let [bos_mass, prompt_mass, decode_mass, prompt_entropy] = bits.map(f32::from_bits);
        LiveAttention { bos_mass, prompt_mass, decode_mass, prompt_entropy }
    });
    (count(), count(), any::<u32>(), (text(), text()), vec(candidate, 0..3), number(), vec(attention, 0..3))
        .prop_map(|(side, step, id, (token, text), top, elapsed_s, attention)| LiveToken {
            side,
            step,
            id,
            token,
            text,
            top,
            elapsed_s,
            attention,
        })
}

fn recording_event() -> impl Strategy<Value = Event> {
    let pair = || (count(), count());
    let stage = prop_oneof![
        pair().prop_map(|(done, all)| RecordingStage::Tokens { done, all }),
        pair().prop_map(|(done, all)| RecordingStage::LargestCutoffs { done, all }),
        pair().prop_map(|(done, all)| RecordingStage::Frontier { done, all }),
        pair().prop_map(|(done, all)| RecordingStage::Texts { done, all }),
    ];
    prop_oneof![
        pair().prop_map(|(done, all)| Event::RecordingStarted { done, all }),
        (text(), count()).prop_map(|(id, tokens)| Event::PromptStarted { id, tokens }),
        (single(), stage).prop_map(|(share, stage)| Event::PromptProgress { share, stage }),
        text().prop_map(|headline| Event::Recommended { headline }),
        text().prop_map(|id| Event::PromptFinished { id }),
        (text(), text()).prop_map(|(id, reason)| Event::PromptFailed { id, reason }),
        (path(), any::<bool>()).prop_map(|(folder, cancelled)| Event::RecordingEnded { folder, cancelled }),
    ]
}

fn training_event() -> impl Strategy<Value = Event> {
    let training = (vec(count(), 5), number(), figures(), figures(), maybe(figures()));
    let training = training.prop_map(|(n, seconds, before, after, full_depth)| AdapterTraining {
        steps: n[0],
        tokens: n[1],
        rows: n[2],
        seconds,
        prompts: n[3],
        held_out: n[4],
        before,
        after,
        full_depth,
    });
    prop_oneof![
        (count(), count()).prop_map(|(done, all)| Event::PromptsPrepared { done, all }),
        (text(), text()).prop_map(|(id, reason)| Event::PromptLeftOut { id, reason }),
        (text(), maybe(count()), vec(count(), 3)).prop_map(|(policy, cutoff, n)| Event::TrainingStarted {
            policy,
            cutoff,
            trained: n[0],
            held_out: n[1],
            resumed: n[2]
        }),
        (count(), number(), number()).prop_map(|(step, loss, done)| Event::TrainingStep { step, loss, done }),
        (count(), figures(), vec((count(), number()), 0..3))
            .prop_map(|(step, figures, frontier)| Event::HeldOut { step, figures, frontier }),
        (path(), training, any::<bool>()).prop_map(|(folder, training, cancelled)| Event::TrainingEnded {
            folder,
            training,
            cancelled
        }),
    ]
}

fn live_event() -> impl Strategy<Value = Event> {
    let model = (vec(text(), 4), maybe(path()), vec(count(), 3), any::<bool>());
    let model = model.prop_map(|(texts, path, n, has_chat_template)| LoadedModel {
        name: texts[0].clone(),
        sha256: texts[1].clone(),
        path,
        layers: n[0],
        heads: n[1],
        context: n[2],
        precision: texts[2].clone(),
        device: texts[3].clone(),
        has_chat_template,
    });
    let tile = (count(), count(), vec(single(), 0..5), vec(single(), 0..5));
    let tile = tile.prop_map(|(rows, columns, max, mean)| Arc::new(PatternTile { rows, columns, max, mean }));
    let pattern = (vec(count(), 4), vec(single(), 0..9)).prop_map(|(n, values)| Pattern {
        layer: n[0],
        heads: n[1],
        steps: n[2],
        positions: n[3],
        values,
    });
    let removing = prop_oneof![
        (count(), count()).prop_map(|(done, all)| DiffusionEvent::Tokens { done, all }),
        (count(), count()).prop_map(|(done, all)| DiffusionEvent::Layers { done, all }),
    ];
    let patching = prop_oneof![
        (count(), count()).prop_map(|(done, all)| PatchEvent::Tokens { done, all }),
        (count(), count()).prop_map(|(done, all)| PatchEvent::Rows { done, all }),
    ];
    prop_oneof![
        (count(), count()).prop_map(|(done, all)| Event::Loading { done, all }),
        model.prop_map(Event::Loaded),
        (text(), maybe(text()), vec(count(), 3), maybe(text())).prop_map(|(policy, adapter, n, caveat)| {
            Event::GenerationStarted {
                side: n[0],
                policy,
                adapter,
                prompt_tokens: n[1],
                kv_bytes: n[2] as u64,
                caveat,
            }
        }),
        vec(count(), 3).prop_map(|n| Event::Prefilled { side: n[0], done: n[1], all: n[2] }),
        token().prop_map(|token| Event::Token(Box::new(token))),
        (count(), maybe(number()), maybe(number()), count(), text(), any::<bool>()).prop_map(
            |(side, ttft_s, tpot_s, kv_bytes, text_rest, cancelled)| Event::GenerationEnded {
                side,
                ttft_s,
                tpot_s,
                kv_bytes: kv_bytes as u64,
                text_rest,
                cancelled
            }
        ),
        (count(), count()).prop_map(|(done, all)| Event::ReadingPattern { done, all }),
        pattern.prop_map(Event::Pattern),
        (tile_key(), tile).prop_map(|(key, tile)| Event::PatternTile { key, tile }),
        removing.prop_map(Event::RemovingSpan),
        (path(), span()).prop_map(|(folder, record)| Event::SpanRemoved { folder, record }),
        patching.prop_map(Event::Patching),
        (path(), patch_map(), any::<bool>()).prop_map(|(folder, map, kept)| Event::Patched {
            folder,
            map: Arc::new(map),
            kept
        }),
        text().prop_map(Event::Failed),
        Just(Event::Idle),
    ]
}

fn want() -> impl Strategy<Value = Want> {
    let step = prop::sample::select(StepFigure::ALL.to_vec());
    let token = prop::sample::select(TokenFigure::ALL.to_vec());
    let key = prop_oneof![
        token.clone().prop_map(MapKey::Tokens),
        step.clone().prop_map(MapKey::Steps),
        (text(), step).prop_map(|(policy, figure)| MapKey::Under(policy, figure)),
    ];
    let part = prop_oneof![
        (any::<u8>(), any::<u32>()).prop_map(|(level, index)| PyramidPart::Groups { level, index }),
        any::<bool>().prop_map(|without_first| PyramidPart::Sample { without_first }),
    ];
    prop_oneof![
        (key, part).prop_map(|(key, part)| Want::Part(key, part)),
        (token, vec(count(), 0..4)).prop_map(|(figure, layers)| Want::OverLayers(figure, layers)),
        count().prop_map(Want::Reads),
    ]
}

fn question() -> impl Strategy<Value = Question> {
    let of = || {
        let parts = (path(), any::<u64>(), text());
        parts.prop_map(|(folder, revision, id)| PromptOf { folder, revision, id })
    };
    prop_oneof![
        path().prop_map(|path| Question::Look { path }),
        Just(Question::Models),
        path().prop_map(|folder| Question::Run { folder }),
        of().prop_map(|of| Question::Maps { of }),
        (of(), want()).prop_map(|(of, want)| Question::Part { of, want }),
        path().prop_map(|path| Question::Prompts { path }),
        (vec(path(), 0..3), text()).prop_map(|(folders, name)| Question::Report {
            folders,
            options: Default::default(),
            name
        }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let found = prop_oneof![
        path().prop_map(Found::Run),
        Just(Found::Model),
        Just(Found::Adapter),
        Just(Found::Prompts),
        Just(Found::Other),
        Just(Found::Nothing),
    ];
    let read = || (any::<u32>(), single()).prop_map(|(position, attention)| Position { position, attention });
    let rows = (vec(read(), 0..3), vec(read(), 0..3), vec(count(), 0..3));
    let rows = rows.prop_map(|(mean, heads, ends)| RowReads { mean, heads, ends });
    prop_oneof![
        (found, maybe(source())).prop_map(|(found, model)| Answer::Found { found, model }),
        vec(text(), 0..3).prop_map(Answer::Models),
        (vec((text(), any::<u64>()), 0..3), maybe(source()))
            .prop_map(|(files, model)| Answer::Files { files, model }),
        vec(single(), 0..9).prop_map(|values| Answer::Part(MapPart::Values(values))),
        vec(rows, 0..3).prop_map(|rows| Answer::Part(MapPart::Reads(rows))),
        Just(Answer::Bytes),
    ]
}

/// Sends a message and receives it; the same bytes must follow from what came, and the same words.
fn crosses<T: Serialize + DeserializeOwned + std::fmt::Debug>(message: &T) {
    let frame = wire::frame(message).unwrap();
    let mut input = frame.as_slice();
    let come: T = wire::read(&mut input).unwrap().unwrap();
    assert!(input.is_empty());
    assert_eq!(format!("{come:?}"), format!("{message:?}"));
    assert_eq!(wire::frame(&come).unwrap(), frame);
    assert!(wire::read::<T>(&mut input).unwrap().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn commands_cross(command in command()) {
        crosses(&ToEngine::Command(command));
    }

    #[test]
    fn events_cross(event in prop_oneof![recording_event(), training_event(), live_event()]) {
        crosses(&ToWindow::Event(event));
    }

    #[test]
    fn questions_and_answers_cross(id in any::<u64>(), question in question(), answer in prop_oneof![
        answer().prop_map(Ok),
        text().prop_map(Err),
    ], bytes in vec(any::<u8>(), 0..99)) {
        crosses(&ToEngine::Question { id, question });
        crosses(&ToWindow::Answer { id, answer });
        crosses(&ToWindow::Piece { id, bytes });
        crosses(&ToEngine::Taken);
    }

    #[test]
    fn whatever_comes_is_a_message_or_an_error(bytes in vec(any::<u8>(), 0..200), at in any::<u16>(), event in live_event()) {
        let _ = wire::read::<ToEngine>(&mut bytes.as_slice());
        let _ = wire::read::<ToWindow>(&mut bytes.as_slice());
        let _ = wire::read_greeting(&mut bytes.as_slice());
        // As a frame of the right length.
        let framed = [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat();
        let _ = wire::read::<ToEngine>(&mut framed.as_slice());
        let _ = wire::read::<ToWindow>(&mut framed.as_slice());
        // A frame with one other byte, and cut off.
        let mut frame = wire::frame(&ToWindow::Event(event)).unwrap();
        let at = usize::from(at) % frame.len();
        prop_assert!(at == 0 || wire::read::<ToWindow>(&mut &frame[..at]).is_err());
        frame[at] ^= 0x55;
        let _ = wire::read::<ToWindow>(&mut frame.as_slice());
    }
}

#[test]
fn a_length_is_no_reason_to_take_memory() {
    let claims = |length: usize| {
        let frame = [&(length as u32).to_le_bytes()[..], &[0; 8]].concat();
        wire::read::<ToWindow>(&mut frame.as_slice()).unwrap_err().to_string()
    };
    assert!(claims(MOST_FRAME + 1).contains("more than"));
    assert!(!claims(MOST_FRAME).contains("more than"));
    let pattern = |values| Event::Pattern(Pattern { layer: 0, heads: 1, steps: 1, positions: 1, values });
    let refused = wire::frame(&ToWindow::Event(pattern(vec![0.0; MOST_FRAME / 4 + 1]))).unwrap_err();
    assert!(refused.to_string().contains("ask for less"), "{refused}");
}

#[test]
fn greetings_are_checked_first() {
    let greet = |bytes: &[u8]| wire::read_greeting(&mut BufReader::new(bytes));
    assert_eq!(greet(&wire::greeting(PROTOCOL, "1.2.3")).unwrap(), "1.2.3");
    let other = NotGreeted::Protocol { number: PROTOCOL + 1, version: "9.9".into() };
    assert_eq!(greet(&wire::greeting(PROTOCOL + 1, "9.9")), Err(other));
    assert_eq!(greet(b""), Err(NotGreeted::Silent));
    let shell = greet(b"\nWelcome to gpu-box!\x1b[0m\nLast login\n");
    assert!(
        matches!(&shell, Err(NotGreeted::Other(text)) if text.starts_with("Welcome to gpu-box!")),
        "{shell:?}"
    );
}

fn machine() -> Machine {
    Machine {
        resolve: |name| Err(Error::input(format!("{name} is nowhere"))),
        models: Vec::new,
        seen: SeenModels::default(),
    }
}

/// An engine at the other end of two pipes, and the thread that serves it.
fn connected() -> (Link, Engine, JoinHandle<Result<()>>) {
    let (from_window, to_engine) = pipe().unwrap();
    let (from_engine, to_window) = pipe().unwrap();
    let served = std::thread::spawn(move || serve(from_window, to_window, machine(), &Interrupt::new(false)));
    let pipes = Pipes { input: Box::new(from_engine), output: Box::new(to_engine), program: None };
    let (link, engine) = Link::connect("box", pipes, || {}).unwrap();
    (link, Engine::There(engine), served)
}

fn generate(max_new_tokens: usize) -> Command {
    crate::engine::tests::generate(ENDLESS, &["full"], max_new_tokens)
}

#[test]
fn an_engine_elsewhere_does_what_one_here_does() {
    let (link, engine, served) = connected();
    assert_eq!((link.version(), link.broken()), (env!("CARGO_PKG_VERSION").to_owned(), None));
    assert!(matches!(perform(&engine, load()).last(), Some(Event::Loaded(model)) if model.layers == 8));
    let here = crate::engine::LocalEngine::start(|| {});
    let start = Instant::now();
    for command in [load(), generate(9)] {
        here.send(command).unwrap();
    }
    let mut ids = vec![];
    while here.is_busy() {
        if let Some(Event::Token(token)) = here.try_event() {
            ids.push(token.id);
        }
        assert!(start.elapsed() < PATIENCE);
    }
    let tokens = perform(&engine, generate(9)).into_iter().filter_map(|event| match event {
        Event::Token(token) => Some(token.id),
        _ => None,
    });
    assert_eq!(tokens.collect::<Vec<_>>(), ids);
    // A cancel arrives while it works.
    engine.send(generate(1_000)).unwrap();
    while !matches!(next(&engine), Event::Token(_)) {}
    engine.send(Command::Cancel).unwrap();
    let rest = rest(&engine);
    assert!(matches!(rest.last(), Some(Event::GenerationEnded { cancelled: true, .. })), "{rest:?}");
    // Too many at once are refused here.
    let refused = (0..40).find_map(|_| engine.send(generate(1)).err()).unwrap();
    assert!(refused.to_string().contains("waiting already"), "{refused}");
    engine.send(Command::Cancel).unwrap();
    while engine.is_busy() {
        next(&engine);
    }
    assert!(link.traffic().received > 1_000 && link.traffic().sent > 100);
    drop((link, engine));
    served.join().unwrap().unwrap();
}

#[test]
fn a_name_is_resolved_by_the_engine() {
    let (_link, engine, _served) = connected();
    let source = ModelSource::embedded("no-such-model", b"");
    let command =
        Command::LoadModel { source, precision: WeightsPrecision::Native, device: DeviceChoice::Cpu };
    let events = perform(&engine, command);
    assert_eq!(events, [Event::Failed("no-such-model is nowhere".into())]);
}

#[test]
fn questions_are_answered_while_the_engine_works() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let (link, engine, _served) = connected();
    perform(&engine, load());
    perform(&engine, record(2, &run));
    engine.send(generate(1_000)).unwrap();
    while !matches!(next(&engine), Event::Token(_)) {}
    let opened = Run::open(&run).unwrap();
    let id = opened.prompt_ids()[1].clone();
    let of = PromptOf { folder: run.clone(), revision: opened.manifest().revision, id: id.clone() };
    let Answer::Maps(tops) = link.ask(Question::Maps { of: of.clone() }).unwrap().answer else { panic!() };
    let mut maps = crate::data::PromptMaps::from_tops(1, tops).unwrap();
    let whole = crate::data::PromptMaps::read(&run, 1, &id).unwrap();
    let figure = TokenFigure::ReceivedMax;
    let mut wants = maps.lacking_reads();
    wants.push(Want::OverLayers(figure, vec![1, 2]));
    let parts = maps.tokens(figure).lacking_columns(0..9_999).into_iter();
    wants.extend(parts.map(|part| Want::Part(MapKey::Tokens(figure), part)));
    for want in wants {
        let question = Question::Part { of: of.clone(), want: want.clone() };
        let Answer::Part(part) = link.ask(question).unwrap().answer else { panic!() };
        assert!(maps.put(want, part));
    }
    assert_eq!(maps.reads(), whole.reads());
    assert_eq!(maps.over_layers(figure, &[1, 2]), whole.over_layers(figure, &[1, 2]));
    let columns = |pyramid: &Pyramid| {
        (0..pyramid.columns()).map(|column| format!("{:?}", pyramid.column(column))).collect::<Vec<_>>()
    };
    assert_eq!(columns(maps.tokens(figure)), columns(whole.tokens(figure)));
    let nothing = Question::Part { of, want: Want::Reads(99) };
    assert!(link.ask(nothing).unwrap_err().to_string().contains("no such part"));
    let nowhere = link.ask(Question::Look { path: "/no/such/place".into() }).unwrap_err().to_string();
    assert!(nowhere.starts_with("there is no run folder, model or prompt file /no/such/place"), "{nowhere}");
    let missing = link.ask(Question::Run { folder: folder.path().to_owned() }).unwrap_err().to_string();
    assert!(missing.contains(&folder.path().display().to_string()), "{missing}");
    assert!(engine.is_busy());
}

#[test]
fn sizes_that_contradict_what_is_there_are_refused() {
    let tile = |rows, count: usize| {
        let values = vec![0.5; count];
        let tile = PatternTile { rows, columns: 2, max: values.clone(), mean: values };
        let key = TileKey { layer: 0, heads: PatternHeads::Mean, level: [0, 0], place: [0, 0] };
        Event::PatternTile { key, tile: Arc::new(tile) }
    };
    let pattern = |positions, count: usize| {
        let values = vec![0.5; count];
        Event::Pattern(Pattern { layer: 0, heads: 0, steps: 1, positions, values })
    };
    for (event, is_refused) in [
        (tile(3, 6), false),
        (tile(3, 5), true),
        (tile(usize::MAX, 6), true),
        (pattern(3, 0), false),
        (pattern(3, 1), true),
        (pattern(usize::MAX, 0), true),
    ] {
        let (_from_window, to_engine) = pipe().unwrap();
        let (from_engine, mut to_window) = pipe().unwrap();
        let frame = wire::frame(&ToWindow::Event(event)).unwrap();
        to_window.write_all(&[wire::greeting(PROTOCOL, "0"), frame].concat()).unwrap();
        drop(to_window);
        let pipes = Pipes { input: Box::new(from_engine), output: Box::new(to_engine), program: None };
        let (link, engine) = Link::connect("box", pipes, || {}).unwrap();
        let start = Instant::now();
        while link.broken().is_none() {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(engine.try_event().is_none(), is_refused);
        assert_eq!(link.broken().unwrap().contains("contradicts itself"), is_refused);
    }
}

/// A window of which the test writes the bytes.
fn raw() -> (PipeWriter, impl std::io::Read, JoinHandle<Result<()>>) {
    let (from_window, to_engine) = pipe().unwrap();
    let (from_engine, to_window) = pipe().unwrap();
    let served = std::thread::spawn(move || serve(from_window, to_window, machine(), &Interrupt::new(false)));
    (to_engine, from_engine, served)
}

#[test]
fn an_engine_says_what_is_wrong_with_a_window() {
    for (bytes, told) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "is no window"),
        (wire::greeting(PROTOCOL + 1, "9.9"), "the window is layerscope 9.9"),
        ([wire::greeting(PROTOCOL, "0"), vec![255; 40]].concat(), "cannot be read"),
        ([wire::greeting(PROTOCOL, "0"), vec![3, 0, 0, 0, 77, 77, 77]].concat(), "cannot be read"),
    ] {
        let (mut window, _engine, served) = raw();
        window.write_all(&bytes).unwrap();
        let error = served.join().unwrap().unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn a_window_says_what_is_wrong_with_an_engine() {
    for (bytes, told) in [
        (vec![], "the connection to box is closed"),
        (b"Welcome!\n".to_vec(), "box began with “Welcome!”"),
        (wire::greeting(PROTOCOL + 1, "9.9"), "box has layerscope 9.9 with protocol"),
    ] {
        let (from_window, to_engine) = pipe().unwrap();
        let (from_engine, mut to_window) = pipe().unwrap();
        to_window.write_all(&bytes).unwrap();
        drop(to_window);
        let pipes = Pipes { input: Box::new(from_engine), output: Box::new(to_engine), program: None };
        let Err(error) = Link::connect("box", pipes, || {}) else { panic!("connected to {bytes:?}") };
        assert!(error.to_string().contains(told), "{error}");
        drop(from_window);
    }
}

#[test]
fn nobody_waits_for_an_engine_that_is_gone() {
    let (from_window, to_engine) = pipe().unwrap();
    let (from_engine, mut to_window) = pipe().unwrap();
    to_window.write_all(&wire::greeting(PROTOCOL, "0")).unwrap();
    let pipes = Pipes { input: Box::new(from_engine), output: Box::new(to_engine), program: None };
    let (link, engine) = Link::connect("box", pipes, || {}).unwrap();
    let engine = Engine::There(engine);
    engine.send(generate(3)).unwrap();
    let event = wire::frame(&ToWindow::Event(Event::Failed("the last words".into()))).unwrap();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| link.ask(Question::Models));
        to_window.write_all(&event).unwrap();
        to_window.write_all(&[9, 9]).unwrap();
        drop(to_window);
        assert!(asks.join().unwrap().is_err());
    });
    // What came before is still told.
    assert_eq!(next(&engine), Event::Failed("the last words".into()));
    assert_eq!(engine.try_event(), None);
    assert!(!engine.is_busy());
    let broken = link.broken().unwrap();
    assert_eq!(broken, "the connection to box is closed");
    assert_eq!(engine.send(generate(3)).unwrap_err().to_string(), broken);
    assert_eq!(link.ask(Question::Models).unwrap_err().to_string(), broken);
    drop(from_window);
}

#[test]
fn a_recording_whose_window_goes_keeps_its_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let (link, engine, served) = connected();
    perform(&engine, load());
    engine.send(record(15, &run)).unwrap();
    let mut finished = vec![];
    while finished.len() < 2 {
        if let Event::PromptFinished { id } = next(&engine) {
            finished.push(id);
        }
    }
    drop((link, engine));
    served.join().unwrap().unwrap();
    let kept = Run::open(&run).unwrap().prompt_ids().to_vec();
    assert!(finished.iter().all(|id| kept.contains(id)) && kept.len() < 15, "{finished:?} {kept:?}");
    // Another window goes on with it.
    let (_link, engine, _served) = connected();
    perform(&engine, load());
    let events = perform(&engine, record(15, &run));
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, Event::Failed(sentence) if sentence.contains("another process"))),
        "{events:?}"
    );
}
