//! Every policy against a plain reference: the whole sequence at once, with explicit masks, and keys and values of rows
//! that stop computed by hand.

#![allow(clippy::unwrap_used)]

mod kv;
mod lazyllm;
mod pattern;
mod prefix;
mod reference;
mod retention;
mod scored;
mod sliminfer;
mod sparse;
mod streaming;
mod together;
mod windows;

use layerscope_engine::{
    Arrived, Decoder, Depth, GenerationEvent, GenerationSettings, HookPoint, Hooks, Interrupt, POLICIES,
    Policy, PolicyRules, Reach, Sampling, Session, Site, generate,
};
use proptest::prelude::*;
#[cfg(target_os = "linux")]
use reference::on_gpu;
use reference::{Projected, Reference, TINY, logits, whole_run};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

/// What the reference says of a policy: its kind, its cutoff and its anchors.
fn expected(name: &str, sequence: &[u32], p: usize) -> Vec<Vec<f32>> {
    let (kind, rest) = name.split_once(':').unwrap_or((name, ""));
    let mut items = rest.split('+');
    let cutoff: usize = items.next().unwrap().parse().unwrap_or(usize::MAX);
    let anchors: Vec<usize> = items
        .flat_map(|item| match item.split_once('-') {
            Some((first, last)) => first.parse().unwrap()..=last.parse().unwrap(),
            None if item == "bos" => 0..=0,
            None => item.parse().unwrap()..=item.parse().unwrap(),
        })
        .collect();
    let exists = |position: usize| position + 1 >= p || anchors.contains(&position);
    let shallow = |layer: usize, query: usize, key: usize| layer >= cutoff && exists(query) && !exists(key);
    let alone = |layer: usize, query: usize, key: usize| {
        shallow(layer, query, key) || (layer >= cutoff && key + 1 >= p && key != query)
    };
    let (prefill, all) = (|row: usize| row + 1 < p, |_: usize| true);
    let projected = |shared_norm, row| Some(Projected { from: cutoff, shared_norm, row });
    let nothing = |_: usize, _: usize, _: usize| false;
    let reference = match kind {
        "full" => Reference { hidden: &nothing, projected: None, hidden_by_head: None },
        "speed" => Reference { hidden: &shallow, projected: None, hidden_by_head: None },
        "selfonly" => Reference { hidden: &alone, projected: None, hidden_by_head: None },
        "pop" => Reference { hidden: &nothing, projected: projected(false, &prefill), hidden_by_head: None },
        "swiftkv" => Reference { hidden: &nothing, projected: projected(true, &all), hidden_by_head: None },
        _ => panic!("{kind}"),
    };
    whole_run(sequence, p, reference)
}

/// The prompt through a session, then one step after another.
fn stepped(policy: &Policy, sequence: &[u32], p: usize, hooks: &mut Hooks<'_>) -> Vec<Vec<f32>> {
    stepped_on(&TINY.decoder, policy, sequence, p, hooks)
}

fn stepped_on(
    decoder: &Arc<Decoder>,
    policy: &Policy,
    sequence: &[u32],
    p: usize,
    hooks: &mut Hooks<'_>,
) -> Vec<Vec<f32>> {
    let (actual, session) = run(decoder, policy, sequence, p, hooks);
    let (config, decode) = (TINY.decoder.config(), sequence.len() + 1 - p);
    let capacity = policy.capacity_by_head(p, decode, config.kv_heads);
    for (layer, heads) in capacity.iter().enumerate() {
        for (head, tokens) in heads.iter().enumerate() {
            let stored = session.store().positions(layer, head).len();
            assert_eq!(stored, *tokens, "{policy}, p {p}: tokens kept in layer {layer}, KV head {head}");
        }
    }
    let bytes = 2 * config.head_dim * size_of::<f32>();
    let expected = capacity.iter().flatten().sum::<usize>() * bytes;
    assert_eq!(session.store().allocated_bytes(), expected, "{policy}, p {p}");
    actual
}

/// Logits of all steps, one after another.
fn steps_of(decoder: &Arc<Decoder>, policy: &Policy, sequence: &[u32], p: usize) -> Vec<Vec<f32>> {
    run(decoder, policy, sequence, p, &mut Hooks::none()).0
}

/// The same, and the session after them.
fn run(
    decoder: &Arc<Decoder>,
    policy: &Policy,
    sequence: &[u32],
    p: usize,
    hooks: &mut Hooks<'_>,
) -> (Vec<Vec<f32>>, Session) {
    let mut session = Session::new(decoder, policy.clone(), p, sequence.len() + 1 - p).unwrap();
    let mut actual =
        vec![session.prefill(&sequence[..p], hooks, &Interrupt::new(false), &mut |_| {}).unwrap()];
    for &token in &sequence[p..] {
        actual.push(session.step(token, hooks).unwrap());
    }
    (actual.iter().map(|logits| logits.to_vec().unwrap()).collect(), session)
}

/// Hooks that have the pattern of every layer materialised.
fn pattern_hooks(layers: usize) -> Hooks<'static> {
    let mut hooks = Hooks::none();
    for layer in 0..layers {
        hooks.add(HookPoint { layer, site: Site::Pattern }, |_, _| Ok(None));
    }
    hooks
}

fn assert_same(actual: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    assert_within(1e-3, actual, expected, what);
}

fn assert_within(tolerance: f32, actual: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (step, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let off = actual.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < tolerance, "{what}, step {step}: off by {off}");
    }
}

fn sequence(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + (i * 37 + i * i * (seed + 5) + seed * 101) % 900).collect()
}

#[test]
fn every_policy_at_every_length_equals_the_plain_reference() {
    for name in [
        "full",
        "speed:3",
        "speed:1+bos",
        // More anchors than a chunk has rows, across the chunks' borders.
        "speed:5+bos+2+300-900",
        "selfonly:4",
        "selfonly:2+bos+1+510-512",
        "pop:1",
        "pop:5",
        "swiftkv:3",
        "swiftkv:7",
    ] {
        let policy = Policy::parse(name, TINY.decoder.config().layers).unwrap();
        for p in [1, 2, 3, 511, 512, 513, 1025] {
            let sequence = sequence(p + 3, p as u32);
            let actual = stepped(&policy, &sequence, p, &mut Hooks::none());
            assert_same(&actual, &expected(name, &sequence, p), &format!("{name}, p {p}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn random_anchors_and_cutoffs_equal_the_plain_reference(
        kind in prop::sample::select(vec!["speed", "selfonly", "pop", "swiftkv"]),
        cutoff in 1usize..8,
        anchors in proptest::collection::vec(1usize..40, 0..4),
        bos in any::<bool>(),
        p in 1usize..40,
        steps in 0usize..4,
        seed in 0u32..1000,
    ) {
        let mut name = format!("{kind}:{cutoff}");
        if matches!(kind, "speed" | "selfonly") {
            name += if bos { "+bos" } else { "" };
            name.extend(anchors.iter().map(|anchor| format!("+{anchor}")));
        }
        let policy = Policy::parse(&name, TINY.decoder.config().layers).unwrap();
        let sequence = sequence(p + steps, seed);
        let actual = stepped(&policy, &sequence, p, &mut Hooks::none());
        assert_same(&actual, &expected(&name, &sequence, p), &format!("{name}, p {p}"));
    }
}

#[test]
fn at_all_layers_every_policy_generates_what_the_full_model_does() {
    let layers = TINY.decoder.config().layers;
    let settings = GenerationSettings {
        max_new_tokens: 12,
        choice: Sampling::Greedy.into(),
        stop_tokens: &[],
        statistics: false,
        rounded: false,
    };
    let tokens = |policy: Policy, prompt: &[u32]| {
        let interrupt = Interrupt::new(false);
        let mut go_on = |_: GenerationEvent<'_>| ControlFlow::Continue(());
        generate(&TINY.decoder, prompt, policy, &settings, &interrupt, &mut go_on).unwrap().tokens
    };
    for p in [1, 2, 30, 515] {
        let prompt = sequence(p, 7);
        let full = tokens(Policy::full(layers), &prompt);
        let mut differing = 0;
        for kind in POLICIES.iter().filter(|kind| kind.by_cutoff()) {
            for bos in [false, true] {
                assert_eq!(tokens(kind.at(layers, bos, layers).unwrap(), &prompt), full, "{}", kind.name);
            }
            differing += usize::from(tokens(kind.at(1, false, layers).unwrap(), &prompt) != full);
        }
        assert!(p < 30 || differing > 0, "a cutoff of 1 changes nothing");
    }
}

/// Single steps become a graph after the first.
#[cfg(target_os = "linux")]
#[test]
fn every_policy_on_a_gpu_equals_the_plain_reference() {
    let decoder = on_gpu();
    for name in ["full", "speed:3", "speed:1+bos", "speed:5+bos+2+30-50", "selfonly:4", "pop:5", "swiftkv:3"]
    {
        let policy = Policy::parse(name, TINY.decoder.config().layers).unwrap();
        for p in [1, 2, 3, 70] {
            let sequence = sequence(p + 4, p as u32);
            let actual = stepped_on(&decoder, &policy, &sequence, p, &mut Hooks::none());
            assert_same(&actual, &expected(name, &sequence, p), &format!("{name}, p {p}"));
        }
    }
}

/// Statistics of a step, by the graph and by the pass over all rows, on both devices.
#[cfg(target_os = "linux")]
#[test]
fn statistics_on_a_gpu_equal_those_on_the_cpu() {
    let on_gpu = on_gpu();
    let (p, steps) = (45, 5);
    let sequence = sequence(p + steps - 1, 11);
    for name in ["full", "speed:3+bos+4", "selfonly:3+bos", "streaming:9+sinks=2"] {
        let of = |decoder: &Arc<Decoder>| {
            let policy = Policy::parse(name, decoder.config().layers).unwrap();
            let mut session = Session::new(decoder, policy, p, steps).unwrap();
            session.prefill(&sequence[..p], &mut Hooks::none(), &Interrupt::new(false), &mut |_| {}).unwrap();
            let (mut stepped, mut together) = (vec![], vec![]);
            for &token in &sequence[p..] {
                session.step_with_statistics(token, &mut Hooks::none(), &mut stepped).unwrap();
            }
            session.truncate(p - 1).unwrap();
            session.teacher_forced(&sequence[p - 1..], &mut Hooks::none(), &mut together).unwrap();
            stepped.into_iter().chain(together).collect::<Vec<_>>()
        };
        let (actual, expected) = (of(&on_gpu), of(&TINY.decoder));
        assert_eq!(actual.len(), expected.len(), "{name}");
        for (actual, expected) in actual.iter().zip(&expected) {
            assert_eq!(actual.rows.mass.len(), expected.rows.mass.len(), "{name}");
            let masses = actual.rows.mass.iter().zip(&expected.rows.mass);
            let entropies = actual.rows.entropy.iter().zip(&expected.rows.entropy);
            for (actual, expected) in masses.chain(entropies).flat_map(|(a, b)| a.iter().zip(b)) {
                let same = (actual - expected).abs() < 1e-4 || (actual.is_nan() && expected.is_nan());
                assert!(same, "{name}: {actual} {expected}");
            }
            assert_eq!(actual.received.sum.len(), expected.received.sum.len(), "{name}");
            let sums = actual.received.sum.iter().zip(&expected.received.sum);
            for (actual, expected) in sums.chain(actual.received.max.iter().zip(&expected.received.max)) {
                assert!((actual - expected).abs() < 1e-4, "{name}: received {actual} {expected}");
            }
        }
    }
}

/// Teacher forcing, its statistics and the materialised pattern say the same as single steps.
#[test]
fn rows_at_once_equal_single_steps_under_every_policy() {
    let (layers, heads) = (TINY.decoder.config().layers, TINY.decoder.config().heads);
    let (p, steps) = (20, 5);
    let sequence = sequence(p + steps - 1, 3);
    for name in [
        "full",
        "speed:3+bos+4",
        "selfonly:3+bos+4",
        "selfonly:2",
        "pop:3",
        "swiftkv:3",
        "streaming:9+sinks=2",
    ] {
        let policy = Policy::parse(name, layers).unwrap();
        let single = stepped(&policy, &sequence, p, &mut Hooks::none());
        let mut hooks = pattern_hooks(layers);
        assert_same(&stepped(&policy, &sequence, p, &mut hooks), &single, &format!("{name}, pattern"));
        let mut session = Session::new(&TINY.decoder, policy, p, steps).unwrap();
        session.prefill(&sequence[..p], &mut Hooks::none(), &Interrupt::new(false), &mut |_| {}).unwrap();
        session.truncate(p - 1).unwrap();
        let mut statistics = vec![];
        let rows = &sequence[p - 1..];
        let x = session.teacher_forced(rows, &mut Hooks::none(), &mut statistics).unwrap();
        assert_same(&logits(&x), &single, name);
        assert_eq!(statistics.len(), layers, "{name}");
        for (layer, actual) in statistics.iter().enumerate() {
            assert_eq!(actual.rows.mass.len(), steps * heads, "{name}");
            let prompt_mass: f32 = actual.rows.mass.iter().map(|mass| mass[0] + mass[1]).sum();
            let received: f32 = actual.received.sum[..p - 1].iter().sum();
            assert!((prompt_mass - received).abs() < 1e-3, "{name}, layer {layer}: {prompt_mass} {received}");
            assert!(actual.rows.mass.iter().all(|mass| (mass.iter().sum::<f32>() - 1.0).abs() < 1e-4));
            if name == "selfonly:2" && layer >= 2 {
                assert!(actual.rows.mass.iter().all(|mass| mass[2] == 1.0), "a row reads itself alone");
            }
        }
    }
}

/// Blocks of the prompt chosen from data: what a method in the manner of SlimInfer asks of the interface. After the
/// attention of one layer the blocks with the largest score stay, q·k̄ of the last row's queries and a block's mean key.
struct ChosenBlocks {
    pruned_after: usize,
    block: usize,
    kept: usize,
    chosen: Arc<Mutex<Vec<bool>>>,
}

impl PolicyRules for ChosenBlocks {
    fn reach(&self) -> &dyn Reach {
        self
    }
}

impl Reach for ChosenBlocks {
    fn pruning_points(&self) -> Vec<Depth> {
        vec![Depth::after_attention(self.pruned_after)]
    }

    fn keep_mask(&self, arrived: &Arrived<'_>) -> Option<Vec<bool>> {
        if arrived.positions.last() != Some(&(arrived.prompt_len - 1)) {
            return None;
        }
        let shape = TINY.decoder.attention_shape(self.pruned_after);
        let queries = arrived.queries.unwrap();
        let last_row = queries.narrow(queries.rows() - 1, 1).unwrap().to_host().unwrap().get(0).unwrap();
        let query = last_row.sum(0).unwrap().to_vec1::<f32>().unwrap();
        let keys = arrived.store.keys_by_head(self.pruned_after).unwrap();
        let keys: Vec<&[f32]> = keys.chunks_exact(shape.head_dim).take(arrived.prompt_len).collect();
        assert_eq!(keys.len(), arrived.prompt_len);
        let prefill = arrived.prompt_len - 1;
        let blocks: Vec<std::ops::Range<usize>> =
            (0..prefill).step_by(self.block).map(|first| first..prefill.min(first + self.block)).collect();
        let score = |block: &std::ops::Range<usize>| -> f32 {
            let product = |key: &[f32]| key.iter().zip(&query).map(|(k, q)| k * q).sum::<f32>();
            keys[block.clone()].iter().map(|key| product(key)).sum::<f32>() / block.len() as f32
        };
        // The last block is short; whole ones are wanted, so that the number of rows is known beforehand.
        let mut ranked: Vec<_> = blocks.into_iter().filter(|block| block.len() == self.block).collect();
        ranked.sort_by(|a, b| score(b).total_cmp(&score(a)));
        let mut chosen = vec![false; arrived.prompt_len];
        ranked.into_iter().take(self.kept).for_each(|block| chosen[block].fill(true));
        *self.chosen.lock().unwrap() = chosen.clone();
        Some(chosen)
    }

    fn rows_at(&self, depth: Depth, prefill_len: usize) -> usize {
        let kept = self.kept.min(prefill_len / self.block) * self.block;
        if depth < Depth::after_attention(self.pruned_after) { prefill_len } else { kept }
    }
}

impl fmt::Display for ChosenBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks:{}", self.kept)
    }
}

#[test]
fn rows_can_be_chosen_from_data_after_an_attention() {
    let layers = TINY.decoder.config().layers;
    for (p, kept, pruned_after) in [(700, 3, 2), (40, 1, 0), (1100, 8, 4)] {
        let chosen = Arc::new(Mutex::new(vec![]));
        let rules = ChosenBlocks { pruned_after, block: 16, kept, chosen: Arc::clone(&chosen) };
        let policy = Policy::new(rules, layers);
        let sequence = sequence(p + 2, 9);
        let actual = stepped(&policy, &sequence, p, &mut Hooks::none());
        let chosen = chosen.lock().unwrap().clone();
        let rows = chosen.iter().filter(|chosen| **chosen).count();
        assert_eq!(rows, kept * 16);
        let exists = |position: usize| position + 1 >= p || chosen[position];
        let hidden =
            |layer: usize, query: usize, key: usize| layer > pruned_after && exists(query) && !exists(key);
        let expected =
            whole_run(&sequence, p, Reference { hidden: &hidden, projected: None, hidden_by_head: None });
        assert_same(&actual, &expected, &format!("{kept} blocks of {p}"));
        let halves = (p - 1) * (2 * pruned_after + 1) + rows * (2 * layers - 2 * pruned_after - 1);
        assert_eq!(policy.layer_tokens(p, 3).block, halves / 2 + 3 * layers);
    }
}
