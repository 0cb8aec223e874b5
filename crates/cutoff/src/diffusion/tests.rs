//! Against sessions whose policy leaves the span behind at the layer.

#![allow(clippy::unwrap_used)]

use super::*;
use layerscope_diagnostics::reference_distributions::map_logits;
use layerscope_engine::{
    Arrived, Depth, Device, GenerationSettings, ModelSource, PolicyRules, Reach, Sampling, WeightsPrecision,
    generate,
};
use proptest::prelude::*;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::LazyLock;

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/layerscope-tiny.gguf");
    Model::load(&ModelSource::path(path), WeightsPrecision::F32, &Device::Cpu, &mut |_, _| Ok(())).unwrap()
});

/// A span that stops at the entrance of a layer.
struct Removed {
    layer: usize,
    span: Range<usize>,
}

impl PolicyRules for Removed {
    fn reach(&self) -> &dyn Reach {
        self
    }
}

impl Reach for Removed {
    fn pruning_points(&self) -> Vec<Depth> {
        vec![Depth::entering(self.layer)]
    }

    fn keep_mask(&self, arrived: &Arrived<'_>) -> Option<Vec<bool>> {
        Some(arrived.positions.iter().map(|position| !self.span.contains(position)).collect())
    }

    fn rows_at(&self, depth: Depth, prefill_len: usize) -> usize {
        if depth < Depth::entering(self.layer) { prefill_len } else { prefill_len - self.span.len() }
    }
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} removed from layer {} on", self.span, self.layer)
    }
}

fn policy(layer: usize, span: &Range<usize>) -> Policy {
    let layers = MODEL.config().layers;
    if layer == layers {
        Policy::full(layers)
    } else {
        Policy::new(Removed { layer, span: span.clone() }, layers)
    }
}

/// Logits of a session that is fed the continuation, step by step.
fn fed(policy: Policy, prompt: &[u32], continuation: &[u32]) -> Vec<Vec<f32>> {
    let mut session = Session::new(&MODEL.decoder, policy, prompt.len(), continuation.len()).unwrap();
    let mut hooks = Hooks::none();
    let mut logits = vec![session.prefill(prompt, &mut hooks, &Interrupt::new(false), &mut |_| {}).unwrap()];
    for &token in &continuation[..continuation.len() - 1] {
        logits.push(session.step(token, &mut hooks).unwrap());
    }
    logits.iter().map(|logits| logits.to_vec().unwrap()).collect()
}

fn assert_logits_equal_the_policys(
    prompt: &[u32],
    continuation: &[u32],
    span: Range<usize>,
    layers: &[usize],
) {
    let question = Question { prompt, continuation, span, layers, answer: None };
    let interrupt = Interrupt::new(false);
    let mut experiment = Experiment::prepared(&MODEL, &question, layers, &interrupt, &mut |_| {}).unwrap();
    for &layer in layers.iter().rev() {
        let mut without = vec![];
        let x = experiment.rerun(layer, &mut without, &interrupt).unwrap();
        let mut expected = vec![];
        let removed = policy(layer, &question.span);
        let mut session = Session::new(&MODEL.decoder, removed, prompt.len(), continuation.len()).unwrap();
        session.prefill(prompt, &mut Hooks::none(), &interrupt, &mut |_| {}).unwrap();
        session.truncate(prompt.len() - 1).unwrap();
        let rows: Vec<u32> = prompt[prompt.len() - 1..]
            .iter()
            .chain(&continuation[..continuation.len() - 1])
            .copied()
            .collect();
        let together = session.teacher_forced(&rows, &mut Hooks::none(), &mut expected).unwrap();
        let together = map_logits(&MODEL.decoder, &together, |_, logits| logits.to_vec()).unwrap();
        for (without, expected) in without.iter().zip(&expected[layer..]) {
            let masses = without.rows.mass.iter().flatten().zip(expected.rows.mass.iter().flatten());
            assert!(masses.into_iter().all(|(a, b)| (a - b).abs() < 1e-4), "masses from layer {layer} on");
        }
        assert_eq!(without.len(), MODEL.config().layers - layer);
        let masses = experiment.masses(layer, &without);
        let sum = masses.bos_after + masses.rest_after + masses.decode_after;
        assert!(
            (sum - 1.0).abs() < 1e-4 && masses.span_full >= 0.0 && masses.rest_full > -1e-6,
            "{masses:?}"
        );
        let found = map_logits(&MODEL.decoder, &x, |_, logits| logits.to_vec()).unwrap();
        let one_by_one = fed(policy(layer, &question.span), prompt, continuation);
        let most = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        for step in 0..found.len() {
            let off = most(&found[step], &together[step]);
            // Rows one by one are rounded otherwise: the policy's own logits then differ by up to 1.1e-4 (a saved case).
            let rounding = most(&together[step], &one_by_one[step]);
            assert!(
                off < 1e-4 && rounding < 2e-4,
                "p {}, {:?}, layer {layer}, step {step}: {off}, rounding {rounding}",
                prompt.len(),
                question.span
            );
        }
        assert_eq!(found.len(), one_by_one.len());
    }
}

fn tokens(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|index| (3 + (index * 37 + index * index * seed) % 800) as u32).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn logits_equal_those_of_a_policy_that_leaves_the_span_behind(
        prompt in proptest::collection::vec(3u32..900, 2..200),
        continuation in proptest::collection::vec(3u32..900, 1..6),
        ends in any::<[prop::sample::Index; 2]>(),
        layers in proptest::collection::btree_set(0usize..8, 1..4),
    ) {
        let mut ends = ends.map(|end| end.index(prompt.len() - 1));
        ends.sort_unstable();
        let layers: Vec<usize> = layers.into_iter().collect();
        assert_logits_equal_the_policys(&prompt, &continuation, ends[0]..ends[1] + 1, &layers);
    }
}

/// 512 rows go through the layers at once.
#[test]
fn spans_may_touch_both_ends_and_borders_of_chunks() {
    for p in [2, 3, 511, 512, 513, 514, 600] {
        let (prompt, continuation) = (tokens(p, 11), tokens(3, 5));
        for span in [0..1, 0..p - 1, p - 2..p - 1, p / 2..p - 1, p / 3..p / 2 + 1] {
            if !span.is_empty() && span.end < p {
                assert_logits_equal_the_policys(&prompt, &continuation, span, &[0, 5]);
            }
        }
    }
}

#[test]
fn figures_are_those_of_the_logits_and_nothing_removed_costs_nothing() {
    let (prompt, continuation, layers) = (tokens(60, 7), tokens(6, 3), MODEL.config().layers);
    let all: Vec<usize> = (0..layers).collect();
    let question =
        Question { prompt: &prompt, continuation: &continuation, span: 10..25, layers: &all, answer: None };
    let mut events = vec![];
    let rows = diffusion(&MODEL, &question, &Interrupt::new(false), &mut |event| events.push(event)).unwrap();
    assert_eq!(rows.iter().map(|row| row.layer).collect::<Vec<_>>(), (0..=layers).collect::<Vec<_>>());
    assert_eq!(events.last(), Some(&DiffusionEvent::Layers { done: layers + 1, all: layers + 1 }));
    let full = fed(Policy::full(layers), &prompt, &continuation);
    for row in &rows {
        let other = fed(policy(row.layer, &question.span), &prompt, &continuation);
        let n = continuation.len() as f64;
        let kl: f64 =
            full.iter().zip(&other).map(|(p, q)| layerscope_kernels::reference::kl_divergence(p, q)).sum();
        assert!((row.divergence.kl - kl / n).abs() < 1e-5, "{row:?} {}", kl / n);
        assert_eq!(row.found, None);
        assert_eq!(row.decode_mass.is_nan(), row.layer == layers);
    }
    assert_eq!(rows[layers].divergence, Divergence { kl: 0.0, top1: 1.0, dnll: 0.0 });
    assert!(rows[0].divergence.kl > 1e-3, "a span costs something");
    // The whole prompt but for its last token: its mass is what the statistics call BoS and prompt.
    let whole = Question { span: 0..prompt.len() - 1, ..question };
    let rows = diffusion(&MODEL, &whole, &Interrupt::new(false), &mut |_| {}).unwrap();
    let probed = layerscope_diagnostics::probe::run(
        &MODEL.decoder,
        &prompt,
        &layerscope_diagnostics::probe::Decoding::Given(&continuation),
        &Interrupt::new(false),
        &mut |_| {},
    )
    .unwrap();
    for row in &rows[..layers] {
        let masses = [&probed.figures.attention.bos_mass, &probed.figures.attention.prompt_mass];
        let mean: f32 =
            masses.iter().map(|mass| mass.outer_iter().nth(row.layer).unwrap().mean().unwrap()).sum();
        assert!((row.decode_mass - f64::from(mean)).abs() < 1e-5, "{row:?} {mean}");
    }
}

#[test]
fn answers_are_found_where_the_policys_text_has_them() {
    let text = "Anna has a red box. Ben has a blue cup. Who has the box?";
    let prompt = MODEL.tokenizer.encode_prompt(&layerscope_engine::PromptText::Plain(text.into())).unwrap();
    let (layers, span, interrupt) = (MODEL.config().layers, 3..prompt.len() / 2, Interrupt::new(false));
    let all: Vec<usize> = (0..layers).collect();
    let settings = GenerationSettings {
        max_new_tokens: 12,
        choice: Sampling::Greedy.into(),
        stop_tokens: MODEL.tokenizer.eos_ids(),
        statistics: false,
        rounded: false,
    };
    let texts: Vec<String> = (0..=layers)
        .map(|layer| {
            let done =
                generate(&MODEL.decoder, &prompt, policy(layer, &span), &settings, &interrupt, &mut |_| {
                    ControlFlow::Continue(())
                });
            MODEL.tokenizer.decode_skipping_special(&done.unwrap().tokens).unwrap()
        })
        .collect();
    let full: Vec<u32> = MODEL.tokenizer.encode(&texts[layers]).unwrap();
    let (mut found_some, mut missed_some) = (false, false);
    // Along the model's own text, and along another.
    for continuation in [full, tokens(4, 3)] {
        for text in &texts {
            let answer =
                text.get(text.len().saturating_sub(6)..).filter(|end| !end.is_empty()).unwrap_or("zebra");
            let question = Question {
                prompt: &prompt,
                continuation: &continuation,
                span: span.clone(),
                layers: &all,
                answer: Some(Answer { text: answer, max_new_tokens: settings.max_new_tokens }),
            };
            let rows = diffusion(&MODEL, &question, &interrupt, &mut |_| {}).unwrap();
            for (row, text) in rows.iter().zip(&texts) {
                assert_eq!(
                    row.found,
                    Some(text.contains(answer)),
                    "{answer:?} in {text:?}, layer {}",
                    row.layer
                );
                found_some |= row.found == Some(true);
                missed_some |= row.found == Some(false);
            }
        }
    }
    assert!(found_some && missed_some, "{texts:?}");
}

#[test]
fn what_is_not_there_is_refused() {
    let (prompt, continuation) = (tokens(20, 7), tokens(3, 3));
    let question =
        Question { prompt: &prompt, continuation: &continuation, span: 3..9, layers: &[1], answer: None };
    let refused = |question: &Question<'_>, part: &str| {
        let error = diffusion(&MODEL, question, &Interrupt::new(false), &mut |_| {}).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(&Question { span: 3..3, ..question.clone() }, "from 0 to 18");
    refused(&Question { span: 3..20, ..question.clone() }, "tokens 3–19");
    refused(&Question { layers: &[2, 8], ..question.clone() }, "no layer 8");
    refused(&Question { prompt: &prompt[..1], span: 0..1, ..question.clone() }, "one token");
    refused(&Question { continuation: &[], ..question.clone() }, "no continuation");
    refused(&Question { continuation: &[99_999], ..question.clone() }, "no token 99999");
    let stopped = diffusion(&MODEL, &question, &Interrupt::new(true), &mut |_| {});
    assert_eq!(stopped.unwrap_err().exit_code(), 130);
}
