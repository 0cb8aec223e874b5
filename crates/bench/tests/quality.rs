//! Quality measured by running policies, compared with the exact frontier, on the embedded model in f32.

#![allow(clippy::unwrap_used)]

#[path = "../../cutoff/tests/support/mod.rs"]
mod support;

use layerscope_bench::{
    BenchPlan, BenchReport, BenchResults, FullContinuation, Machine, PromptTokens, QualityEvent, measure,
    measure_quality, quality_grid, to_parquet,
};
use layerscope_cutoff::frontier::{CausalMap, frontier};
use layerscope_diagnostics::probe::{self, Decoding};
use layerscope_diagnostics::record::{Anchor, Divergence};
use layerscope_diagnostics::reference_distributions::ReferenceDistributions;
use layerscope_engine::{Hooks, Interrupt, Policy, Session, argmax};
use layerscope_kernels::reference;
use std::sync::atomic::Ordering;
use support::MODEL;

fn prompt() -> Vec<u32> {
    (0..300).map(|i| 3 + i * 37 % 890).collect()
}

#[test]
fn speed_costs_what_the_exact_frontier_says() {
    let (model, prompt, interrupt) = (&*MODEL, prompt(), Interrupt::new(false));
    let excluded = model.tokenizer.eos_ids();
    let continuation = Decoding::Greedy { tokens: 12, excluded };
    let run = probe::run(&model.decoder, &prompt, &continuation, &interrupt, &mut |_| {}).unwrap();
    let full = FullContinuation::of(&model.decoder, &prompt, 12, excluded, &interrupt).unwrap();
    assert_eq!(full.tokens(), run.continuation);
    let layers = model.config().layers;
    let mut most: f64 = 0.0;
    for row in frontier(&model.decoder, &run, CausalMap::Heads, &interrupt, &mut |_| {}).unwrap().rows {
        let policy = Policy::speed(row.cutoff, row.anchor == Anchor::Bos, layers).unwrap();
        let Divergence { kl, top1, dnll } = full.divergence(&model.decoder, &policy, &interrupt).unwrap();
        let exact = row.divergence;
        assert!((kl - exact.kl).abs() < 1e-4, "{policy}: KL {kl} {}", exact.kl);
        assert!((dnll - exact.dnll).abs() < 1e-4, "{policy}: ΔNLL {dnll} {}", exact.dnll);
        assert!((top1 - exact.top1).abs() < 1e-9, "{policy}: top-1 {top1} {}", exact.top1);
        most = most.max(kl);
    }
    assert!(most > 0.1, "the prompt is read: {most}");
    let nothing = full.divergence(&model.decoder, &Policy::full(layers), &interrupt).unwrap();
    assert_eq!(nothing, Divergence { kl: 0.0, top1: 1.0, dnll: 0.0 });
}

/// `full` has divergence 0 because running it again gives the same logits, bit by bit.
#[test]
fn the_full_model_run_again_is_itself() {
    let (model, prompt, interrupt) = (&*MODEL, prompt(), Interrupt::new(false));
    let full = FullContinuation::of(&model.decoder, &prompt, 6, &[], &interrupt).unwrap();
    let run = || {
        let policy = Policy::full(model.config().layers);
        let mut session = Session::new(&model.decoder, policy, prompt.len(), 6).unwrap();
        let mut logits = session.prefill(&prompt, &mut Hooks::none(), &interrupt, &mut |_| {}).unwrap();
        let mut rows = vec![logits.to_vec().unwrap()];
        for &token in &full.tokens()[..5] {
            assert_eq!(argmax(&logits, &[]).unwrap(), token);
            logits = session.step(token, &mut Hooks::none()).unwrap();
            rows.push(logits.to_vec().unwrap());
        }
        rows
    };
    assert_eq!(run(), run());
}

#[test]
fn distributions_of_steps_compare_as_in_f64() {
    let row =
        |shift: u32| -> Vec<f32> { (0..50).map(|i| ((i * 7 + shift * 13) % 23) as f32 * 0.3).collect() };
    let tensor = |row: Vec<f32>| layerscope_engine::Tensor::from_vec(row, &[50]).unwrap();
    let (full, other) = ([row(0), row(1)], [row(4), row(1)]);
    let distributions = ReferenceDistributions::of_steps(full.clone().map(tensor).into(), &[3, 49]).unwrap();
    for step in 0..2 {
        let compared = distributions.compare_step(step, &tensor(other[step].clone())).unwrap();
        assert!((compared.kl - reference::kl_divergence(&full[step], &other[step])).abs() < 1e-5);
        let [p, q] = [&full[step], &other[step]].map(|row| reference::log_softmax(row)[[3, 49][step]]);
        assert!((compared.dnll - (p - q)).abs() < 1e-5);
    }
    let beyond = ReferenceDistributions::of_steps(full.map(tensor).into(), &[3, 50]);
    assert!(beyond.is_err(), "a token beyond the vocabulary");
}

/// A small plan.
fn plan() -> BenchPlan {
    let names = ["full", "speed:5", "speed:5+bos", "selfonly:5", "pop:5", "swiftkv:5"];
    let policies = names.iter().map(|name| Policy::parse(name, MODEL.config().layers).unwrap()).collect();
    BenchPlan { policies, lengths: vec![200, 260], new_tokens: 8, repeats: 1, statistics: false }
}

fn measured(plan: &BenchPlan) -> BenchResults {
    let prompt = PromptTokens::Text { first: None, tokens: prompt() };
    measure(&MODEL.decoder, plan, &prompt, &Interrupt::new(false), &mut |_| {}).unwrap()
}

#[test]
fn every_policy_gets_its_quality_and_full_is_the_measure() {
    let (plan, interrupt) = (plan(), Interrupt::new(false));
    let prompts = quality_grid(&plan.lengths, 2).unwrap().prompts(&MODEL.tokenizer, &interrupt).unwrap();
    let mut found = measured(&plan);
    let (mut started, mut finished) = (0, 0);
    measure_quality(&MODEL, &plan, &prompts, &mut found, &interrupt, &mut |event| match event {
        QualityEvent::Started { .. } => started += 1,
        QualityEvent::Finished => finished += 1,
    })
    .unwrap();
    assert_eq!((started, finished), (2 * 2 * (plan.policies.len() + 1), started));
    for result in &found.results {
        let quality = result.quality.unwrap();
        assert_eq!(quality.prompts, 2);
        if result.policy == "full" {
            assert_eq!((quality.kl, quality.top1, quality.dnll), (0.0, 1.0, 0.0));
        } else {
            assert!(quality.kl > 1e-4, "{}: {quality:?}", result.policy);
        }
        assert!((0.0..=1.0).contains(&quality.top1) && (0.0..=1.0).contains(&quality.found));
    }
    let report = BenchReport {
        results: found.results,
        model: "tiny".into(),
        weights: MODEL.precision,
        weight_bytes: 1,
        layers: 8,
        machine: Machine::with(MODEL.decoder.device()),
        layerscope: "test".into(),
        interrupted: false,
        notes: vec![],
    };
    assert!(to_parquet(&report).unwrap().starts_with(b"PAR1"));
}

#[test]
fn an_interrupt_keeps_the_prompts_that_went_through_every_policy() {
    let (plan, interrupt) = (plan(), Interrupt::new(false));
    let prompts = quality_grid(&plan.lengths, 2).unwrap().prompts(&MODEL.tokenizer, &interrupt).unwrap();
    let mut found = measured(&plan);
    let mut finished = 0;
    measure_quality(&MODEL, &plan, &prompts, &mut found, &interrupt, &mut |event| {
        finished += usize::from(event == QualityEvent::Finished);
        // During the second prompt.
        if finished == plan.policies.len() + 3 {
            interrupt.store(true, Ordering::Relaxed);
        }
    })
    .unwrap();
    assert!(found.interrupted);
    for result in &found.results {
        assert_eq!(result.quality.map(|quality| quality.prompts), (result.length == 200).then_some(1));
    }
}
