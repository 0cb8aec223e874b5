//! Sets of KV heads against whole reruns with masks, and the search against one that tries everything.

#![allow(clippy::unwrap_used)]

mod support;

use layerscope_cutoff::frontier::{CausalMap, frontier};
use layerscope_cutoff::search::{SearchOptions, Shown, Unit, search};
use layerscope_diagnostics::probe::{self, Decoding, ProbedRun};
use layerscope_diagnostics::reference_distributions::StepComparison;
use layerscope_diagnostics::run::SearchOrder;
use layerscope_engine::{Decoder, Ends, Interrupt, Policy};
use layerscope_kernels::reference;
use proptest::prelude::*;
use std::sync::Arc;
use support::{MODEL, family, whole_run_by_head};

static NOT: Interrupt = Interrupt::new(false);

fn recorded(decoder: &Arc<Decoder>, prompt: &[u32], answer: &[u32]) -> ProbedRun {
    probe::run(decoder, prompt, &Decoding::Given(answer), &NOT, &mut |_| {}).unwrap()
}

fn kl(full: &[Vec<f32>], other: &[Vec<f32>]) -> f64 {
    let kl = full.iter().zip(other).map(|(full, other)| reference::kl_divergence(full, other));
    kl.sum::<f64>() / full.len() as f64
}

/// A set with some units dropped.
fn set(decoder: &Decoder, dropped: &[Unit], ends: Ends, cutoff: usize) -> Shown {
    let config = decoder.config();
    let all = Shown::below(cutoff, ends, config.layers, config.kv_heads);
    dropped.iter().fold(all, |set, unit| set.without(*unit))
}

/// KL of a set from a whole rerun in which a mask hides what it does not show.
fn masked(
    decoder: &Arc<Decoder>,
    (prompt, answer): (&[u32], &[u32]),
    dropped: &[Unit],
    ends: Ends,
    cutoff: usize,
) -> f64 {
    let p = prompt.len();
    let sequence: Vec<u32> = prompt.iter().chain(&answer[..answer.len() - 1]).copied().collect();
    let is_dropped = |layer: usize, head: usize| {
        dropped.iter().any(|unit| unit.layer == layer && unit.kv_head.is_none_or(|of| of == head))
    };
    let hidden = |layer: usize, head: usize, query: usize, key: usize| {
        let shown = match layer >= cutoff {
            true => key == 0,
            false => !is_dropped(layer, head) || ends.contain(key, p - 1),
        };
        query + 1 >= p && key + 1 < p && !shown
    };
    let full = whole_run_by_head(decoder, &sequence, p, &|_, _, _, _| false);
    kl(&full, &whole_run_by_head(decoder, &sequence, p, &hidden))
}

/// KL of one set on a prompt.
fn priced(decoder: &Decoder, run: &ProbedRun, set: &Shown) -> f64 {
    let steps = layerscope_cutoff::search::price(decoder, run, std::slice::from_ref(set), &NOT).unwrap();
    StepComparison::mean(&steps[0]).kl
}

fn units(layers: usize, kv_heads: usize) -> impl Strategy<Value = Vec<Unit>> {
    let unit =
        (0..layers, proptest::option::of(0..kv_heads)).prop_map(|(layer, kv_head)| Unit { layer, kv_head });
    proptest::collection::vec(unit, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn any_set_equals_a_whole_rerun(
        prompt in proptest::collection::vec(3u32..900, 1..70),
        answer in proptest::collection::vec(3u32..900, 1..7),
        dropped in units(8, 2),
        first in 0usize..4,
        last in 0usize..30,
        cutoff in 1usize..=8,
    ) {
        let (decoder, ends) = (&MODEL.decoder, Ends { first, last });
        let run = recorded(decoder, &prompt, &answer);
        let dropped: Vec<Unit> = dropped.into_iter().filter(|unit| unit.layer < cutoff).collect();
        let set = set(decoder, &dropped, ends, cutoff);
        let cost = priced(decoder, &run, &set);
        let expected = masked(decoder, (&prompt, &answer), &dropped, ends, cutoff);
        prop_assert!((cost - expected).abs() < 1e-4, "{}: {cost} {expected}", set.policy_name());
        // What a user would run under that name, fed the same text.
        let policy = Policy::parse_for(&set.policy_name(), decoder.config()).unwrap();
        let fed = kl(&fed(decoder, Policy::full(8), &prompt, &answer), &fed(decoder, policy, &prompt, &answer));
        prop_assert!((cost - fed).abs() < 1e-4, "{}: {cost} {fed}", set.policy_name());
    }
}

/// Logits of a session that is fed the answer, step by step.
fn fed(decoder: &Arc<Decoder>, policy: Policy, prompt: &[u32], answer: &[u32]) -> Vec<Vec<f32>> {
    let mut session = layerscope_engine::Session::new(decoder, policy, prompt.len(), answer.len()).unwrap();
    let mut hooks = layerscope_engine::Hooks::none();
    let mut logits = vec![session.prefill(prompt, &mut hooks, &NOT, &mut |_| {}).unwrap()];
    for &token in &answer[..answer.len() - 1] {
        logits.push(session.step(token, &mut hooks).unwrap());
    }
    logits.iter().map(|logits| logits.to_vec().unwrap()).collect()
}

#[test]
fn sets_of_other_families_equal_whole_reruns() {
    let token = |i: u32| 1 + i * 29 % 61;
    let (prompt, answer): (Vec<u32>, Vec<u32>) =
        ((0..130).map(token).collect(), (130..136).map(token).collect());
    for name in ["gemma2", "gemma3", "gpt2", "olmoe", "qwen3_moe", "phi3"] {
        let decoder = family(name);
        let config = decoder.config();
        let run = recorded(&decoder, &prompt, &answer);
        for (ends, cutoff) in [(Ends { first: 1, last: 0 }, config.layers), (Ends { first: 2, last: 9 }, 1)] {
            let dropped: Vec<Unit> =
                (0..cutoff).map(|layer| Unit { layer, kv_head: Some(layer % config.kv_heads) }).collect();
            let set = set(&decoder, &dropped, ends, cutoff);
            let cost = priced(&decoder, &run, &set);
            let what = format!("{name}, {}", set.policy_name());
            let expected = masked(&decoder, (&prompt, &answer), &dropped, ends, cutoff);
            assert!((cost - expected).abs() < 1e-4, "{what}: {cost} {expected}");
            let policy = Policy::parse_for(&set.policy_name(), config).unwrap();
            let full = fed(&decoder, Policy::full(config.layers), &prompt, &answer);
            let fed = kl(&full, &fed(&decoder, policy, &prompt, &answer));
            assert!((cost - fed).abs() < 1e-4, "{what}: {cost} {fed}");
        }
    }
}

#[test]
fn the_causal_map_by_head_equals_sets_of_one_head() {
    let decoder = &MODEL.decoder;
    let prompt: Vec<u32> = (0..90).map(|i| 3 + i * 17 % 800).collect();
    let run = recorded(decoder, &prompt, &[5, 6, 7, 8]);
    let map = frontier(decoder, &run, CausalMap::Heads, &NOT, &mut |_| {}).unwrap().knockout;
    let ends = Ends { first: 1, last: 0 };
    for row in &map {
        assert_eq!(row.by_kv_head.len(), decoder.config().kv_heads);
        for (head, divergence) in row.by_kv_head.iter().enumerate() {
            let unit = Unit { layer: row.layer, kv_head: Some(head) };
            let cost = priced(decoder, &run, &set(decoder, &[unit], ends, 8));
            assert!((divergence.kl - cost).abs() < 1e-6, "{unit:?}: {} {cost}", divergence.kl);
        }
    }
    assert!(map.iter().flat_map(|row| &row.by_kv_head).any(|divergence| divergence.kl > 1e-3));
    let layers = frontier(decoder, &run, CausalMap::Layers, &NOT, &mut |_| {}).unwrap().knockout;
    assert!(layers.iter().all(|row| row.by_kv_head.is_empty()));
}

/// Attention of a unit's query heads on positions 1 … p−2, mean over prompts and steps.
fn prompt_mass(runs: &[&ProbedRun], unit: Unit) -> f64 {
    let of_run = |run: &&ProbedRun| {
        let mass = &run.figures.attention.prompt_mass;
        let (_, heads, steps) = mass.dim();
        let of_unit = |head: &usize| unit.kv_head.is_none_or(|kv_head| head / (heads / 2) == kv_head);
        let own: Vec<f64> = (0..heads)
            .filter(of_unit)
            .flat_map(|head| (0..steps).map(move |step| f64::from(mass[[unit.layer, head, step]])))
            .collect();
        own.iter().sum::<f64>() / own.len() as f64
    };
    runs.iter().map(of_run).sum()
}

#[test]
fn the_search_finds_what_trying_everything_finds() {
    let decoder = &MODEL.decoder;
    let prompts: Vec<Vec<u32>> =
        (0..3u32).map(|n| (0..60 + 9 * n).map(|i| 3 + (i * 17 + n * 31) % 800).collect()).collect();
    let runs: Vec<ProbedRun> =
        prompts.iter().map(|prompt| recorded(decoder, prompt, &[9, 8, 7, 6, 5])).collect();
    let runs: Vec<&ProbedRun> = runs.iter().collect();
    for (heads, cutoff) in [(true, None), (false, None), (true, Some(6))] {
        let ends = Ends { first: 1, last: 4 };
        let everything = SearchOptions {
            heads,
            order: SearchOrder::Joint,
            ends,
            cutoff,
            worst_kl: f64::INFINITY,
            at_once: usize::MAX,
        };
        let (start, all) = search(decoder, &runs, &everything, &NOT, &mut |_, _| {}).unwrap();
        let count = if heads { 2 } else { 1 } * cutoff.unwrap_or(8);
        assert_eq!(all.dropped.len(), count);
        assert_eq!(all.tried, count * (count + 1) / 2);
        let mut shown = start.clone();
        for dropped in &all.dropped {
            shown = shown.without(dropped.unit);
            let priced: f64 = runs.iter().map(|run| priced(decoder, run, &shown)).sum();
            let mean = priced / runs.len() as f64;
            assert!((mean - dropped.divergence.kl).abs() < 1e-6, "{}: {mean}", shown.policy_name());
        }
        // The first unit is the one that costs least alone, by brute force.
        let mean = |set: &Shown| -> f64 { runs.iter().map(|run| priced(decoder, run, set)).sum() };
        let units = (0..cutoff.unwrap_or(8)).flat_map(|layer| match heads {
            true => vec![Unit { layer, kv_head: Some(0) }, Unit { layer, kv_head: Some(1) }],
            false => vec![Unit { layer, kv_head: None }],
        });
        let least =
            units.min_by(|a, b| mean(&start.without(*a)).total_cmp(&mean(&start.without(*b)))).unwrap();
        assert_eq!(all.dropped[0].unit, least);
        // Plainer orders: what each costs alone, and where it looks. Their sets are priced jointly, too.
        for (order, tried) in [(SearchOrder::Knockout, 2 * count), (SearchOrder::Mass, count)] {
            let plain = SearchOptions { order, ..everything };
            let (_, found) = search(decoder, &runs, &plain, &NOT, &mut |_, _| {}).unwrap();
            assert_eq!((found.dropped.len(), found.tried), (count, tried));
            let alone: Vec<f64> = found
                .dropped
                .iter()
                .map(|dropped| match order {
                    SearchOrder::Mass => prompt_mass(&runs, dropped.unit),
                    _ => mean(&start.without(dropped.unit)),
                })
                .collect();
            assert!(alone.is_sorted_by(|a, b| *a <= b + 1e-9), "{order:?}: {alone:?}");
            let third =
                found.dropped[..3].iter().fold(start.clone(), |shown, dropped| shown.without(dropped.unit));
            let expected = mean(&third) / runs.len() as f64;
            assert!((found.dropped[2].divergence.kl - expected).abs() < 1e-6, "{order:?}");
        }
        // Trying few at once comes to nearly the same with far less work.
        let lazy = SearchOptions { at_once: 2, ..everything };
        let (_, lazy) = search(decoder, &runs, &lazy, &NOT, &mut |_, _| {}).unwrap();
        assert!(lazy.tried < all.tried);
        let half = count / 2;
        assert!(lazy.dropped[half].divergence.kl < 1.5 * all.dropped[half].divergence.kl + 1e-3);
    }
}
