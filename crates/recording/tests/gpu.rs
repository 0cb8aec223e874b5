//! A recorded prompt on a GPU, with frontier and attention knockout, compared with the CPU; on the emulated GPU
//! unless a real one is tested.

// The emulation exists only on Linux.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use layerscope_cutoff::Answer;
use layerscope_cutoff::diffusion::{Question, diffusion};
use layerscope_diagnostics::probe::{self, Decoding};
use layerscope_diagnostics::prompts::Prompt;
use layerscope_diagnostics::reads::RowReads;
use layerscope_diagnostics::record::{Divergence, ProbedFigures, PromptRecord, SpanRow};
use layerscope_engine::{Device, Interrupt, Model, ModelSource, PromptText, WeightsPrecision};
use layerscope_recording::{Recorded, record_prompt};
use std::path::Path;

fn load(precision: WeightsPrecision, device: &Device) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/layerscope-tiny.gguf");
    Model::load(&ModelSource::path(path), precision, device, &mut |_, _| Ok(())).unwrap()
}

/// A recorded prompt with its probes' measurements.
fn recorded(
    precision: WeightsPrecision,
    device: &Device,
    answer: Option<&str>,
) -> (PromptRecord, ProbedFigures) {
    let model = load(precision, device);
    let prompt = Prompt {
        id: "one".into(),
        category: "any".into(),
        content: PromptText::Plain("Anna has a red box. Ben has a blue cup. Who has the box?".into()),
        answer: answer.map(str::to_owned),
        expected: None,
        span: None,
    };
    let interrupt = Interrupt::new(false);
    let record = record_prompt(&model, &prompt, Recorded::steps(6), &interrupt, &mut |_| {}).unwrap();
    let (tokens, decoding) = (&record.summary.prompt_tokens, Decoding::Given(&record.summary.generated));
    let run = probe::run(&model.decoder, tokens, &decoding, &interrupt, &mut |_| {}).unwrap();
    let figures = run.figures;
    (record, figures)
}

fn close<'a>(
    what: &str,
    actual: impl IntoIterator<Item = &'a f32>,
    expected: impl IntoIterator<Item = &'a f32>,
    bar: f64,
) {
    let doubles = |numbers: Vec<&f32>| numbers.into_iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let [actual, expected] = [actual.into_iter().collect(), expected.into_iter().collect()].map(doubles);
    close_doubles(what, &actual, &expected, bar);
}

fn close_doubles(what: &str, actual: &[f64], expected: &[f64], bar: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (index, (a, b)) in actual.iter().zip(expected).enumerate() {
        let same = (a - b).abs() <= bar * (1.0 + b.abs()) || (a.is_nan() && b.is_nan());
        assert!(same, "{what}, {index}: {a} instead of {b}");
    }
}

fn check(actual: &(PromptRecord, ProbedFigures), expected: &(PromptRecord, ProbedFigures), bar: f64) {
    let (a, b) = (&actual.1.attention, &expected.1.attention);
    close("bos mass", &a.bos_mass, &b.bos_mass, bar);
    close("prompt mass", &a.prompt_mass, &b.prompt_mass, bar);
    close("decode mass", &a.decode_mass, &b.decode_mass, bar);
    close("prompt entropy", &a.prompt_entropy, &b.prompt_entropy, bar);
    let (a, b) = (&actual.0.summary, &expected.0.summary);
    assert_eq!(a.generated, b.generated);
    for ((name, a), (_, b)) in a.layers.named().into_iter().zip(b.layers.named()) {
        if name.starts_with("curvature") {
            close_doubles(name, a, b, bar);
        }
    }
    let (received, wanted) = (&actual.0.received, &expected.0.received);
    close("mean received", &received.mean, &wanted.mean, bar);
    close("most received", &received.max, &wanted.max, bar);
    let strongest = |row: &RowReads| row.mean.first().map_or(0.0, |read| read.attention);
    let [reads, wanted] = [actual, expected]
        .map(|(record, _)| record.reads.as_ref().unwrap().iter().map(strongest).collect::<Vec<f32>>());
    close("strongest reads", &reads, &wanted, bar);
    let (lens, wanted) = (&actual.0.steps.lens, &expected.0.steps.lens);
    close("lens", &lens.kl, &wanted.kl, bar);
    assert_eq!(lens.top1.last(), wanted.top1.last());
    let figures = |divergence: &Divergence| [divergence.kl, divergence.top1, divergence.dnll];
    assert_eq!(a.frontier.len(), b.frontier.len());
    for (a, b) in a.frontier.iter().zip(&b.frontier) {
        assert_eq!((a.anchor, a.cutoff), (b.anchor, b.cutoff));
        let what = format!("frontier {} {}", a.anchor.name(), a.cutoff);
        close_doubles(&what, &figures(&a.divergence), &figures(&b.divergence), bar);
    }
    for (a, b) in a.knockout.iter().zip(&b.knockout) {
        let what = format!("knockout {}", a.layer);
        close_doubles(&what, &figures(&a.divergence), &figures(&b.divergence), bar);
    }
}

fn gpu() -> Device {
    Device::Cuda(layerscope_kernels::cuda::Device::for_tests())
}

#[test]
fn a_recorded_prompt_has_the_same_figures() {
    let actual = recorded(WeightsPrecision::F32, &gpu(), None);
    check(&actual, &recorded(WeightsPrecision::F32, &Device::Cpu, None), 1e-4);
}

#[test]
fn weights_as_the_file_has_them_stay_near() {
    let answer = Some(" Anna has the red box");
    let actual = recorded(WeightsPrecision::Native, &gpu(), answer);
    check(&actual, &recorded(WeightsPrecision::F32, &Device::Cpu, answer), 5e-2);
}

/// A span of a prompt, removed from a few layers on.
fn removed(precision: WeightsPrecision, device: &Device) -> Vec<SpanRow> {
    let model = load(precision, device);
    let text = "Anna has a red box. Ben has a blue cup. Who has the box?";
    let prompt = model.tokenizer.encode_prompt(&PromptText::Plain(text.into())).unwrap();
    let continuation = model.tokenizer.encode(" Anna has the red box").unwrap();
    let question = Question {
        prompt: &prompt,
        continuation: &continuation,
        span: 2..9,
        layers: &[0, 2, 5],
        answer: Some(Answer { text: "Anna", max_new_tokens: 8 }),
    };
    diffusion(&model, &question, &Interrupt::new(false), &mut |_| {}).unwrap()
}

#[test]
fn a_removed_span_costs_the_same() {
    for (precision, bar) in [(WeightsPrecision::F32, 1e-4), (WeightsPrecision::Native, 5e-2)] {
        let (actual, expected) = (removed(precision, &gpu()), removed(WeightsPrecision::F32, &Device::Cpu));
        let figures = |rows: &[SpanRow]| -> Vec<f64> {
            rows.iter().flat_map(|row| [row.divergence.kl, row.divergence.dnll, row.decode_mass]).collect()
        };
        close_doubles("removed span", &figures(&actual), &figures(&expected), bar);
        if precision == WeightsPrecision::F32 {
            let texts = |rows: &[SpanRow]| rows.iter().map(|row| row.found).collect::<Vec<_>>();
            assert_eq!(texts(&actual), texts(&expected));
        }
    }
}
