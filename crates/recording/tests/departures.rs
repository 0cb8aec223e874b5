//! What the frontier says about texts, against texts that were generated under every cutoff and anchor.

#![allow(clippy::unwrap_used)]

use layerscope_cutoff::recommend::FrontierPoint;
use layerscope_diagnostics::needle::is_right;
use layerscope_diagnostics::probe::continue_greedily;
use layerscope_diagnostics::prompts::{Prompt, parse_prompts};
use layerscope_diagnostics::record::{FrontierRow, PromptSummary};
use layerscope_engine::{
    Device, GenerationSettings, Hooks, Interrupt, Model, ModelSource, Sampling, Session, WeightsPrecision,
    generate,
};
use layerscope_recording::{Recorded, record_prompt};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path)
}

fn load(model: &Path, precision: WeightsPrecision, device: &Device) -> Model {
    Model::load(&ModelSource::path(model), precision, device, &mut |_, _| Ok(())).unwrap()
}

fn prompts(text: &str) -> Vec<Prompt> {
    parse_prompts("prompts.jsonl", text.as_bytes()).unwrap()
}

/// The prompts of the embedded model's demo.
fn bundled() -> Vec<Prompt> {
    prompts(&std::fs::read_to_string(fixture("tiny/demo.jsonl")).unwrap())
}

/// The same prompts, each of which expects a part of what the model writes; every fifth expects what it does not.
fn expecting(model: &Model, mut prompts: Vec<Prompt>, new_tokens: usize) -> Vec<Prompt> {
    for (index, prompt) in prompts.iter_mut().enumerate() {
        let tokens = model.tokenizer.encode_prompt(&prompt.content).unwrap();
        let text = text_under(model, &tokens, None, new_tokens);
        let words: Vec<&str> = text.split_whitespace().collect();
        let expected = match index % 5 {
            4 => "no such words",
            part => words.get(part.min(words.len().saturating_sub(1))).copied().unwrap_or("no text"),
        };
        prompt.expected = Some(expected.to_owned());
    }
    prompts
}

/// The text as a user would see it, of at most `max_new_tokens`.
fn text_under(model: &Model, tokens: &[u32], point: Option<FrontierPoint>, max_new_tokens: usize) -> String {
    let layers = model.config().layers;
    let point = point
        .unwrap_or(FrontierPoint { cutoff: layers, anchor: layerscope_diagnostics::record::Anchor::None });
    let settings = GenerationSettings {
        max_new_tokens,
        choice: Sampling::Greedy.into(),
        stop_tokens: model.tokenizer.eos_ids(),
        statistics: false,
        rounded: false,
    };
    let policy = point.policy(layers).unwrap();
    let interrupt = Interrupt::new(false);
    let mut go_on = |_: layerscope_engine::GenerationEvent<'_>| ControlFlow::Continue(());
    let generation = generate(&model.decoder, tokens, policy, &settings, &interrupt, &mut go_on).unwrap();
    model.tokenizer.decode_skipping_special(&generation.tokens).unwrap()
}

/// The step at which the generated text departs from the recorded one.
fn departs(model: &Model, prompt: &PromptSummary, point: FrontierPoint) -> Option<usize> {
    let policy = point.policy(model.config().layers).unwrap();
    let mut session = Session::new(&model.decoder, policy, prompt.p, prompt.steps).unwrap();
    let interrupt = Interrupt::new(false);
    let logits = session.prefill(&prompt.prompt_tokens, &mut Hooks::none(), &interrupt, &mut |_| {}).unwrap();
    let eos = model.tokenizer.eos_ids();
    let text =
        continue_greedily(&mut session, logits, prompt.steps, eos, &interrupt, &mut |_, _| {}).unwrap();
    text.iter().zip(&prompt.generated).position(|(a, b)| a != b)
}

/// Records prompts and generates under the rows that `chosen` picks.
fn check(model: &Model, prompts: &[Prompt], new_tokens: usize, chosen: impl Fn(usize, &FrontierRow) -> bool) {
    let mut departed = 0;
    let mut answers = [0; 2];
    for (index, prompt) in prompts.iter().enumerate() {
        let record =
            record_prompt(model, prompt, Recorded::steps(new_tokens), &Interrupt::new(false), &mut |_| {})
                .unwrap();
        let prompt = &record.summary;
        let expected = prompt.expected.as_deref().unwrap();
        let full = is_right(expected, &text_under(model, &prompt.prompt_tokens, None, new_tokens));
        for row in prompt.frontier.iter().filter(|row| chosen(index, row)) {
            let what = format!("{}, {:?} {}", prompt.id, row.anchor, row.cutoff);
            let point = FrontierPoint { cutoff: row.cutoff, anchor: row.anchor };
            let wanted = departs(model, prompt, point);
            assert_eq!((row.text.departs, row.text.unchanged), (wanted, Some(wanted.is_none())), "{what}");
            departed += usize::from(wanted.is_some());
            let is_full = row.cutoff == model.config().layers;
            let wanted = (full || is_full).then(|| {
                is_right(expected, &text_under(model, &prompt.prompt_tokens, Some(point), new_tokens))
            });
            assert_eq!(row.text.answered, wanted, "{what}: {expected}");
            if let Some(answered) = wanted.filter(|_| !is_full) {
                answers[usize::from(answered)] += 1;
            }
        }
    }
    assert!(departed > 0 && answers.iter().all(|count| *count > 0), "{departed} {answers:?}");
}

#[test]
fn texts_of_the_embedded_model_are_as_predicted() {
    let model = load(&fixture("tiny/layerscope-tiny.gguf"), WeightsPrecision::F32, &Device::Cpu);
    check(&model, &expecting(&model, bundled(), 16), 16, |_, _| true);
}

#[test]
fn texts_with_weights_as_stored_are_as_predicted() {
    let model = load(&fixture("tiny/layerscope-tiny.gguf"), WeightsPrecision::Native, &Device::Cpu);
    check(&model, &expecting(&model, bundled(), 16), 16, |_, _| true);
}

#[cfg(target_os = "linux")]
#[test]
fn texts_on_a_gpu_are_as_predicted() {
    let device = Device::Cuda(layerscope_kernels::cuda::Device::for_tests());
    let model = load(&fixture("tiny/layerscope-tiny.gguf"), WeightsPrecision::F32, &device);
    let short = prompts(r#"{"id": "short", "prompt": "Facts: The lake of Belelland is Mundanra.\nAnswer:"}"#);
    check(&model, &expecting(&model, short, 4), 4, |_, _| true);
}

/// A given answer is the model's own text, or it says nothing about that.
#[test]
fn given_answers_are_judged_by_the_text_that_the_model_writes() {
    let model = load(&fixture("tiny/layerscope-tiny.gguf"), WeightsPrecision::F32, &Device::Cpu);
    let [prompt] = &expecting(&model, bundled(), 16)[..1] else { unreachable!("asked for one") };
    let tokens = model.tokenizer.encode_prompt(&prompt.content).unwrap();
    let own = text_under(&model, &tokens, None, 16);
    let start: String = own.chars().take(own.chars().count() / 2).collect();
    for (answer, is_own) in [(start.as_str(), true), ("Certainly not this.", false)] {
        let given = Prompt { answer: Some(answer.to_owned()), expected: None, ..prompt.clone() };
        let record =
            record_prompt(&model, &given, Recorded::steps(16), &Interrupt::new(false), &mut |_| {}).unwrap();
        let summary = &record.summary;
        assert_eq!(summary.expected.as_deref(), Some(answer.trim()));
        let full = summary.frontier.iter().find(|row| row.cutoff == model.config().layers).unwrap();
        assert_eq!(full.text.answered, Some(is_own), "{answer}");
        if !is_own {
            assert!(summary.frontier.iter().all(|row| row.text.unchanged.is_none()));
        }
        for row in summary.frontier.iter().filter(|row| is_own && row.cutoff < model.config().layers) {
            let point = FrontierPoint { cutoff: row.cutoff, anchor: row.anchor };
            let wanted = is_right(answer.trim(), &text_under(&model, &tokens, Some(point), 16));
            assert_eq!(row.text.answered, Some(wanted), "{point:?}");
        }
    }
}

/// A real model, where there is one.
#[test]
fn texts_of_smollm2_are_as_predicted() {
    let Some(path) = std::env::var_os("LAYERSCOPE_SMOLLM2") else {
        assert!(std::env::var_os("LAYERSCOPE_REQUIRE_SMOLLM2").is_none(), "no SmolLM2");
        return;
    };
    let model = load(Path::new(&path), WeightsPrecision::Native, &Device::Cpu);
    let lines = [
        r#"{"id": "capital", "prompt": "The capital of France is"}"#,
        r#"{"id": "story", "prompt": "Boats go up and down the river all day, and the ferry crosses it at noon. At noon, the"}"#,
    ];
    let prompts = expecting(&model, prompts(&lines.join("\n")), 16);
    check(&model, &prompts, 16, |index, row| row.cutoff % 5 == index || row.cutoff > 26);
}
