//! Policies that are retention: a set of (layer, KV head) that keeps the prompt, and, as one of a user's own, the top positions of
//! each KV head by score.

use super::reference::{Reference, TINY, whole_run};
use super::{assert_within, sequence, stepped, stepped_on};
use layerscope_engine::{
    Device, Ends, Eviction, HeadSet, Hooks, LayerKv, Policy, PolicyRules, Result, Retention, Session,
    StoredHead, Turn, advance_together,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

/// KV heads that keep the whole prompt; the others keep its first and last tokens, and above a cutoff position 0 is all there is.
#[derive(Debug, Clone, Default)]
struct Kept {
    heads: Vec<(usize, usize)>,
    ends: Ends,
    cutoff: Option<usize>,
}

impl Kept {
    fn policy(&self) -> Policy {
        let set = HeadSet::of(self.heads.iter().copied(), TINY.decoder.config().kv_heads);
        let Ends { first, last } = self.ends;
        let cutoff = self.cutoff.map_or(String::new(), |cutoff| format!("speed:{cutoff}+bos+"));
        let name = format!("{cutoff}keep:{set}+sinks={first}+window={last}");
        let policy = Policy::parse_for(&name, TINY.decoder.config()).unwrap();
        assert_eq!(Policy::parse_for(&policy.to_string(), TINY.decoder.config()).unwrap(), policy);
        policy
    }

    /// The mask that says the same.
    fn expected(&self, sequence: &[u32], p: usize) -> Vec<Vec<f32>> {
        let hidden = |layer: usize, head: usize, query: usize, key: usize| {
            let is_cut = self.cutoff.is_some_and(|cutoff| layer >= cutoff);
            let kept = match is_cut {
                true => key == 0,
                false => self.heads.contains(&(layer, head)) || self.ends.contain(key, p - 1),
            };
            query + 1 >= p && key + 1 < p && !kept
        };
        by_head(sequence, p, &hidden)
    }
}

pub(crate) fn by_head(
    sequence: &[u32],
    p: usize,
    hidden: &dyn Fn(usize, usize, usize, usize) -> bool,
) -> Vec<Vec<f32>> {
    let nothing = |_: usize, _: usize, _: usize| false;
    let config = TINY.decoder.config();
    let group = config.heads / config.kv_heads;
    let by_query_head =
        |layer: usize, head: usize, query: usize, key: usize| hidden(layer, head / group, query, key);
    let hidden_by_head: Option<&dyn Fn(usize, usize, usize, usize) -> bool> = Some(&by_query_head);
    whole_run(sequence, p, Reference { hidden: &nothing, projected: None, hidden_by_head })
}

/// What a (layer, KV head) kept.
type KeptPositions = ((usize, usize), BTreeSet<usize>);

/// Every KV head keeps the positions with the largest score: q·k, summed over its query heads and the last rows observed.
struct TopPositions {
    count: usize,
    observed: usize,
    kept: Arc<Mutex<Vec<KeptPositions>>>,
}

impl PolicyRules for TopPositions {
    fn retention(&self) -> &dyn Retention {
        self
    }
}

impl Retention for TopPositions {
    fn eviction(&self) -> Eviction {
        Eviction::BeforeDecode
    }

    fn kept(&self, layer: LayerKv) -> usize {
        layer.stored.min(self.count)
    }

    fn observed_rows(&self) -> usize {
        self.observed
    }

    fn keep_mask(&self, stored: &StoredHead<'_>) -> Result<Vec<bool>> {
        let (keys, queries) = (stored.keys(), stored.queries()?);
        let dim = keys.len() / stored.positions.len();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let scores: Vec<f32> =
            keys.chunks(dim).map(|key| queries.chunks(dim).map(|query| dot(query, key)).sum()).collect();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let top: BTreeSet<usize> = order.into_iter().take(self.count).collect();
        let positions = top.iter().map(|&slot| stored.positions[slot]).collect();
        self.kept.lock().unwrap().push(((stored.layer, stored.kv_head), positions));
        Ok((0..scores.len()).map(|slot| top.contains(&slot)).collect())
    }
}

impl fmt::Display for TopPositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "top:{}+{}", self.count, self.observed)
    }
}

fn kept(heads: &[(usize, usize)], first: usize, last: usize) -> Kept {
    Kept { heads: heads.to_vec(), ends: Ends { first, last }, cutoff: None }
}

fn layers() -> usize {
    TINY.decoder.config().layers
}

#[test]
fn a_set_of_heads_equals_a_mask() {
    for kept in [
        kept(&[], 0, 0),
        kept(&[(0, 0), (3, 1), (7, 0)], 1, 0),
        kept(&[(0, 1), (1, 0), (1, 1), (6, 1)], 4, 9),
        Kept { cutoff: Some(5), ..kept(&[(0, 0), (2, 1), (3, 0), (3, 1), (6, 1)], 1, 3) },
    ] {
        for p in [1, 2, 3, 40, 513, 700] {
            let sequence = sequence(p + 4, p as u32);
            let policy = kept.policy();
            let actual = stepped(&policy, &sequence, p, &mut Hooks::none());
            assert_within(1e-4, &actual, &kept.expected(&sequence, p), &format!("{policy}, p {p}"));
        }
    }
}

#[test]
fn what_is_not_kept_is_gone_before_the_next_layer_runs() {
    let p = 2_000;
    let sequence = sequence(p, 3);
    for kept in
        [kept(&[(0, 0), (5, 1)], 1, 8), Kept { cutoff: Some(6), ..kept(&[(2, 0), (2, 1), (3, 1)], 4, 0) }]
    {
        let policy = kept.policy();
        let mut session = Session::new(&TINY.decoder, policy.clone(), p, 2).unwrap();
        let config = TINY.decoder.config();
        let token_bytes = 2 * session.store().precision().bytes(config.head_dim);
        let by_head = policy.capacity_by_head(p, 2, config.kv_heads);
        let all: usize = by_head.iter().flatten().sum();
        let one_layer = config.kv_heads * (p - 1 + 2);
        session.begin_prefill(&sequence).unwrap();
        let mut passes = 0;
        loop {
            let mut turns = [Turn { session: &mut session, token: None }];
            let logits = advance_together(&mut turns).unwrap().remove(0);
            passes += 1;
            assert!(session.store().allocated_bytes() <= (all + one_layer) * token_bytes, "{policy}");
            if logits.is_some() {
                break;
            }
        }
        assert!((3..9).contains(&passes), "{passes} passes");
        assert_eq!(session.store().allocated_bytes(), all * token_bytes, "{policy}");
        let most: usize = policy.in_memory(p, 2, &Device::Cpu).iter().sum();
        let by_layer: usize = policy.capacity(p, 2).iter().sum();
        assert_eq!(most, by_layer + p - 1 + 2);
    }
}

#[test]
fn names_of_sets() {
    let name = |name: &str| Policy::parse_for(name, TINY.decoder.config()).map(|policy| policy.to_string());
    for (given, written) in [
        ("keep:0-3", "keep:0-3"),
        ("keep:3+1+2+0", "keep:0-3"),
        ("keep:none+bos", "keep:none+bos"),
        ("keep:2.0-1+3+7.1+bos+window=64", "keep:2-3+7.1+bos+window=64"),
        ("keep:2.1+sinks=4", "keep:2.1+sinks=4"),
        ("keep:5+sinks=1+window=0", "keep:5+bos"),
        ("speed:6+bos+keep:0-2+4.1+bos", "speed:6+bos+keep:0-2+4.1+bos"),
        ("speed:8+keep:0", "keep:0"),
    ] {
        assert_eq!(name(given).unwrap(), written);
    }
    for wrong in [
        "keep",
        "keep:",
        "keep:x",
        "keep:3-1",
        "keep:1.2.3",
        "keep:8",
        "keep:0.2",
        "keep:0+sinks",
        "pop:3+keep:1",
        "speed:9+keep:1",
    ] {
        assert_eq!(name(wrong).unwrap_err().exit_code(), 2, "{wrong}");
    }
}

#[test]
fn with_every_head_kept_it_is_the_full_model_and_the_pattern_says_the_same() {
    let heads: Vec<_> = (0..layers()).flat_map(|layer| [(layer, 0), (layer, 1)]).collect();
    let sequence = sequence(63, 4);
    let full = stepped(&Policy::full(layers()), &sequence, 60, &mut Hooks::none());
    let all = kept(&heads, 0, 0).policy();
    assert_eq!(all.to_string(), "keep:0-7");
    assert_within(1e-4, &stepped(&all, &sequence, 60, &mut Hooks::none()), &full, "all heads");
    let some = kept(&heads[3..11], 1, 2).policy();
    let plain = stepped(&some, &sequence, 60, &mut Hooks::none());
    let mut hooks = super::pattern_hooks(layers());
    assert_within(1e-4, &stepped(&some, &sequence, 60, &mut hooks), &plain, "pattern");
}

#[test]
fn the_top_positions_of_each_head_equal_a_mask() {
    for (p, count, observed) in [(1, 3, 2), (2, 3, 1), (5, 3, 8), (90, 20, 4), (600, 64, 16), (600, 1, 1)] {
        check_top(p, count, observed, &stepped);
    }
}

type Stepped<'a> = dyn Fn(&Policy, &[u32], usize, &mut Hooks<'_>) -> Vec<Vec<f32>> + 'a;

fn check_top(p: usize, count: usize, observed: usize, run: &Stepped<'_>) {
    let kept = Arc::new(Mutex::new(vec![]));
    let policy = Policy::new(TopPositions { count, observed, kept: Arc::clone(&kept) }, layers());
    let sequence = sequence(p + 3, 8);
    let actual = run(&policy, &sequence, p, &mut Hooks::none());
    let kept = kept.lock().unwrap();
    assert!(p == 1 || kept.len() == layers() * TINY.decoder.config().kv_heads);
    let hidden = |layer: usize, head: usize, query: usize, key: usize| {
        let stays = |(of, positions): &KeptPositions| *of == (layer, head) && positions.contains(&key);
        query + 1 >= p && key + 1 < p && !kept.iter().any(stays)
    };
    assert_within(1e-3, &actual, &by_head(&sequence, p, &hidden), &format!("{policy}, p {p}"));
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_gpu_both_equal_a_mask() {
    let decoder = super::on_gpu();
    let heads = [(0, 0), (3, 1), (7, 0), (7, 1)];
    for p in [1, 2, 70] {
        let sequence = sequence(p + 5, p as u32);
        let kept = Kept { cutoff: Some(7), ..kept(&heads, 2, 5) };
        let actual = stepped_on(&decoder, &kept.policy(), &sequence, p, &mut Hooks::none());
        assert_within(1e-3, &actual, &kept.expected(&sequence, p), &format!("p {p}"));
        check_top(p, 9, 3, &|policy, sequence, p, hooks| stepped_on(&decoder, policy, sequence, p, hooks));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn random_sets_equal_a_mask(
        heads in proptest::collection::vec((0usize..8, 0usize..2), 0..16),
        first in 0usize..5,
        last in 0usize..60,
        cutoff in proptest::option::of(1usize..8),
        p in 1usize..50,
        steps in 0usize..4,
        seed in 0u32..1000,
    ) {
        let kept = Kept { heads, ends: Ends { first, last }, cutoff };
        let sequence = sequence(p + steps, seed);
        let policy = kept.policy();
        let actual = stepped(&policy, &sequence, p, &mut Hooks::none());
        // Both in f32, and over random sets some logits are far from 0.
        assert_within(5e-4, &actual, &kept.expected(&sequence, p), &format!("{policy}, p {p}"));
    }
}
