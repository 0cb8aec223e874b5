#![allow(clippy::unwrap_used)]

use super::*;
use crate::Shape;
use layerscope_kernels::AttentionShape;
use proptest::prelude::*;
use std::collections::BTreeSet;

const LAYERS: usize = 8;

#[test]
fn rows_that_wait_between_stages_are_counted() {
    let waiting = |name: &str| Policy::parse(name, 4).unwrap().rows_waiting(301);
    assert_eq!(
        [waiting("full"), waiting("speed:2"), waiting("speed:2+bos"), waiting("streaming:64")],
        [0, 0, 1, 0]
    );
    // All 300 arrive before half of them are chosen.
    assert_eq!(waiting("lazyllm:1=50%+2=25%"), 300 + 151);
}

#[test]
fn names_parse_back() {
    for name in [
        "full",
        "speed:3",
        "speed:3+bos",
        "speed:3+bos+5+17",
        "speed:3+100-120",
        "selfonly:3",
        "selfonly:7+bos+9",
        "pop:3",
        "swiftkv:1",
        "sliminfer",
        "sliminfer:3=100",
        "sliminfer:2=8k+5=12.5%+max+read=0.5+swap=0.5+sync",
        "sliminfer:scaled+mean",
        "minference",
        "minference:vertical=2k+slash=100",
        "flexprefill:gamma=0.9+tau=0.2",
        "streaming:1000",
        "lazyllm",
        "lazyllm:2=8k+5=12.5%",
        "streaming:2k+sinks=0",
        "snapkv:25%",
        "snapkv:1k+window=16",
        "pyramidkv:12.5%",
        "h2o:50%",
        "tova:100",
        "expected:75%",
    ] {
        let policy = Policy::parse(name, LAYERS).unwrap();
        assert_eq!(policy.to_string(), name);
        assert_eq!(serde_json::to_value(&policy).unwrap(), name);
    }
    for (name, shown) in [
        ("speed:3+0", "speed:3+bos"),
        ("speed:3+17+5+bos+5", "speed:3+bos+5+17"),
        ("speed:3+0-2", "speed:3+bos+1-2"),
        ("speed:3+5-9+8-12+13", "speed:3+5-13"),
        ("speed:8+bos", "full"),
        ("selfonly:8+3", "full"),
        ("pop:8", "full"),
        ("swiftkv:8", "full"),
        ("streaming:sinks=4+2048", "streaming:2k"),
        ("sliminfer:sync+3=8192+mean+swap=0.75", "sliminfer:3=8k+mean+sync"),
    ] {
        assert_eq!(Policy::parse(name, LAYERS).unwrap().to_string(), shown);
    }
    assert_eq!(Policy::speed(8, true, LAYERS).unwrap(), Policy::full(LAYERS));
    assert_ne!(Policy::speed(3, true, LAYERS).unwrap(), Policy::speed(3, false, LAYERS).unwrap());
}

#[test]
fn wrong_names_are_told_what_there_is() {
    for (wrong, told) in [
        ("speed:0", "between 1 and 8"),
        ("speed:9+bos", "between 1 and 8"),
        ("speed:", "speed:CUTOFF[+ANCHORS]"),
        ("snapkv", "snapkv:KEEP[+window=N]"),
        ("snapkv:50%+25%", "snapkv:KEEP[+window=N]"),
        ("snapkv:50%+window=0", "snapkv:KEEP[+window=N]"),
        ("snapkv:50%+window=8+window=8", "snapkv:KEEP[+window=N]"),
        ("h2o:50%+window=8", "h2o:KEEP"),
        ("expected:0%", "expected:KEEP"),
        ("speed", "speed:CUTOFF[+ANCHORS]"),
        ("speed:-1", "speed:CUTOFF[+ANCHORS]"),
        ("speed:3+eos", "speed:CUTOFF[+ANCHORS]"),
        ("speed:3+", "speed:CUTOFF[+ANCHORS]"),
        ("speed:3+9-5", "speed:CUTOFF[+ANCHORS]"),
        ("speed:3+18446744073709551615", "speed:CUTOFF[+ANCHORS]"),
        ("speed:99999999999999999999", "speed:CUTOFF[+ANCHORS]"),
        ("pop:3+bos", "give it as pop:CUTOFF"),
        ("full:3", "give it as full"),
        ("sped:3", "nearest first: speed:CUTOFF"),
        ("self-only:3", "nearest first: selfonly:CUTOFF"),
        ("swift:3", "nearest first: swiftkv:CUTOFF"),
        ("", "swiftkv:CUTOFF"),
        ("sliminfer:8=10", "a schedule names layers below 8 in ascending order"),
        ("sliminfer:3=10+3=5", "a schedule names layers below 8"),
        ("sliminfer:3=0", "as in sliminfer:2=2k+5=25%"),
        ("sliminfer:3=101%", "a schedule names layers"),
        ("sliminfer:3", "a schedule names layers"),
        ("sliminfer:swap=2", "give it as sliminfer[:LAYER=KEPT"),
        ("minference:2k", "give it as minference[:vertical=N]"),
        ("minference:vertical=0", "give it as minference[:vertical=N]"),
        ("flexprefill:gamma=2", "give it as flexprefill[:gamma=SHARE]"),
        ("sliminfer:read=0", "give it as sliminfer[:LAYER=KEPT"),
        (
            "sliminfer:llama-3.1-8b",
            "is for a model of 32 layers, and this one has 8; sliminfer:scaled scales",
        ),
        ("sliminfer:scaled+3=10", "a schedule names layers below 8"),
        ("sliminfer:", "a schedule names layers"),
        ("lazyllm:3", "a schedule names layers below 8 in ascending order"),
        ("lazyllm:5=10+3=5", "as in lazyllm:2=2k+5=25%"),
        ("lazyllm:3=10+sync", "a schedule names layers"),
        ("lazyllm:", "a schedule names layers"),
        ("lazy:3=10", "nearest first: lazyllm[:LAYER=KEPT+…]"),
        ("streaming", "give it as streaming:WINDOW[+sinks=N]"),
        ("streaming:0", "give it as streaming:WINDOW"),
        ("streaming:sinks=4", "give it as streaming:WINDOW"),
        ("streaming:10+sinks=-1", "give it as streaming:WINDOW"),
        ("streaming:10+20", "give it as streaming:WINDOW"),
        ("streaming:10+sinks=1+sinks=2", "give it as streaming:WINDOW"),
        ("streamingllm:10", "nearest first: streaming:WINDOW"),
    ] {
        let error = Policy::parse(wrong, LAYERS).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{wrong}");
        assert!(error.to_string().contains(told), "{wrong}: {error}");
    }
}

#[test]
fn what_was_not_trained_for_its_cutoff_has_a_caveat() {
    for kind in &POLICIES {
        let Ok(policy) = kind.at(3, true, LAYERS) else {
            let name = kind.standard_name.unwrap();
            assert!(Policy::parse(name, LAYERS).unwrap().to_string().starts_with(kind.name));
            continue;
        };
        assert!(kind.by_cutoff() && policy.to_string().starts_with(kind.name));
        let projects = policy.rules().cross_layer_kv().is_some();
        assert_eq!(policy.caveat(), Some(if projects { UNTRAINED } else { ZERO_SHOT }), "{policy}");
        assert_eq!(kind.at(LAYERS, true, LAYERS).unwrap().caveat(), None);
        assert!(policies_help().contains(kind.syntax));
    }
}

#[test]
fn work_is_counted_by_hand() {
    // 9 prefill tokens and 5 decode tokens in 3 layers.
    let of = |name: &str| Policy::parse(name, 3).unwrap().layer_tokens(10, 5);
    assert_eq!(of("full"), LayerTokens { block: 42, projected: 0 });
    assert_eq!(of("speed:2"), LayerTokens { block: 33, projected: 0 });
    assert_eq!(of("selfonly:1+bos+3"), LayerTokens { block: 9 + 15 + 4, projected: 0 });
    for name in ["pop:1", "swiftkv:1"] {
        assert_eq!(of(name), LayerTokens { block: 9 + 15, projected: 18 }, "{name}");
    }
    assert_eq!(Policy::parse("speed:2", 3).unwrap().capacity(10, 5), [14, 14, 5]);
    assert_eq!(Policy::parse("pop:2", 3).unwrap().capacity(10, 5), [14, 14, 14]);
    assert_eq!(Policy::parse("speed:1+bos+8+9", 3).unwrap().capacity(10, 5), [14, 7, 7]);
    assert_eq!(Policy::full(3).capacity(1, 5), [5, 5, 5]);
}

#[test]
fn a_pruned_prompt_is_counted_by_hand() {
    // 300 prefill tokens are four blocks and 44 tokens. Of 200 tokens, 109 are the first block, the 44 and the last prompt token;
    // the others are one block. A second block goes on whatever the budget.
    let policy = Policy::parse("sliminfer:0=240+1=100", 3).unwrap();
    assert_eq!(policy.capacity(301, 5), [305, 192 + 44 + 5, 128 + 44 + 5]);
    assert_eq!(policy.most_held(301, 5, &Device::Cpu), policy.capacity(301, 5));
    let halves = 300 + 2 * (192 + 44) + 3 * (128 + 44) + 6 * 5;
    assert_eq!(policy.layer_tokens(301, 5).block, halves / 2);
    assert_eq!(Policy::parse("sliminfer:0=236", 2).unwrap().capacity(301, 5)[1], 128 + 44 + 5);
    assert_eq!(Policy::parse("sliminfer:0=237", 2).unwrap().capacity(301, 5)[1], 192 + 44 + 5);
    let pruning = |policy: &Policy| BlockPruning::named(&policy.to_string(), 3).unwrap();
    assert_eq!(pruning(&policy).taken_away(300, 3), 0);
    let plan = policy.plan(301, &|tokens| format!("{tokens} tokens")).unwrap();
    assert_eq!(
        plan,
        "of 301 prompt tokens go on: 237 after layer 0, 173 after layer 1; no KV leaves the device"
    );
    // Half of what went on besides the first block, rounded up: one of two blocks, then one of one.
    let halved = Policy::parse("sliminfer:0=240+1=100+read=0.5", 3).unwrap();
    assert_eq!(halved.capacity(301, 5), [305, 128 + 44 + 5, 128 + 44 + 5]);
    assert_eq!(halved.most_held(301, 5, &Device::Cpu), policy.capacity(301, 5));
    assert_eq!(halved.layer_tokens(301, 5), policy.layer_tokens(301, 5));
    assert_eq!(pruning(&halved).taken_away(300, 3), 192);
    let plan = halved.plan(301, &|tokens| format!("{tokens} tokens")).unwrap();
    assert!(
        plan.contains("237 after layer 0 (decode reads 173), 173 after layer 1; 192 tokens of KV leave"),
        "{plan}"
    );
}

/// Table of the paper: KV saved by the published schedules, of the formula with whole layers.
#[test]
fn published_schedules_save_what_their_paper_says() {
    const K: usize = 1_024;
    let llama = Shape::named("llama-3.1-8b").unwrap().config().clone();
    let mut qwen = ModelConfig { layers: 28, hidden: 3_584, heads: 28, kv_heads: 4, ..llama.clone() };
    (qwen.feed_forward, qwen.vocab) = (18_944, 152_064);
    let saved = |name: &str, config: &ModelConfig, p: usize| {
        let tokens: usize = Policy::parse_for(name, config).unwrap().capacity(p, 1).iter().sum();
        1.0 - tokens as f64 / (p * config.layers) as f64
    };
    for (p, percent) in [(8 * K, 20.3), (32 * K, 56.6)] {
        for name in ["sliminfer", "sliminfer:llama-3.1-8b"] {
            let saved = 100.0 * saved(name, &llama, p);
            assert!((saved - percent).abs() < 0.1, "{name}, {p}: {saved}");
        }
    }
    // By hand: (9 · 32K + 9 · 12K + 8 · 6K + 2 · 4K) / (28 · 32K).
    let by_hand = 1.0 - (9 * 32 + 9 * 12 + 8 * 6 + 2 * 4) as f64 / (28 * 32) as f64;
    assert!((saved("sliminfer", &qwen, 32 * K) - by_hand).abs() < 1e-3);
    let shown = |name: &str, config: &ModelConfig| Policy::parse_for(name, config).unwrap().to_string();
    assert_eq!(shown("sliminfer:max", &llama), "sliminfer:llama-3.1-8b+max");
    assert_eq!(shown("sliminfer", &qwen), "sliminfer:qwen2.5-7b");
    assert_eq!(shown("sliminfer:scaled", &llama), "sliminfer:scaled");
    // Another model of 32 layers has no published schedule.
    let other = ModelConfig { vocab: 32_000, ..llama };
    assert_eq!(shown("sliminfer", &other), "sliminfer:scaled");
    let plan = Policy::parse_for("sliminfer", &other).unwrap().plan(100, &|_| String::new()).unwrap();
    assert!(plan.contains("(the paper's schedule for Llama-3.1-8B, scaled to this model): "), "{plan}");
}

#[test]
fn dropped_tokens_are_counted_by_hand() {
    // Of 300 prefill tokens and the prompt's last, a tenth of 301; no stage has more than the one before.
    let policy = Policy::parse("lazyllm:0=100+1=10%+2=200", 4).unwrap();
    assert_eq!(policy.capacity(301, 5), [305, 105, 36, 36]);
    assert_eq!(policy.most_held(301, 5, &Device::Cpu), policy.capacity(301, 5));
    assert_eq!(policy.layer_tokens(301, 5).block, (300 + 2 * 100 + 5 * 31 + 8 * 5) / 2);
    assert_eq!(policy.capacity(1, 5), [5; 4]);
    let plan = policy.plan(301, &|tokens| tokens.to_string()).unwrap();
    assert!(
        plan.contains("of 301 prompt tokens go on: 101 after layer 0, 32 after layer 1, 32 after layer 2"),
        "{plan}"
    );
}

#[test]
fn a_window_is_counted_by_hand() {
    // Of 300 prefill tokens the last prompt token, at position 300, sees four and positions 201 … 299.
    let policy = Policy::parse("streaming:100", 2).unwrap();
    assert_eq!(policy.capacity(301, 5), [4 + 99 + 5; 2]);
    assert_eq!(policy.most_held(301, 5, &Device::Cpu), [305; 2]);
    assert_eq!(policy.most_held(5001, 5, &Device::Cpu), [4 + 99 + 512 + 5; 2]);
    assert_eq!(policy.in_memory(5001, 5, &Device::Cpu), [620; 3]);
    assert_eq!(policy.capacity(104, 5), [103 + 5; 2]);
    assert_eq!(policy.layer_tokens(301, 5), Policy::full(2).layer_tokens(301, 5));
    assert!(policy.caveat().unwrap().contains("positions"));
}

#[test]
fn the_default_schedule_is_the_paper_s_scaled() {
    let kept = |schedule: Schedule, p: usize| -> Vec<(usize, usize)> {
        schedule.prunings().iter().map(|pruning| (pruning.layer, pruning.keep.tokens(p))).collect()
    };
    let scaled = |layers: usize, p: usize| kept(Schedule::scaled_to(layers), p);
    let k = 1_024;
    // After 10, 20 and 30 layers: the layers 9, 19 and 29 are the last that run whole.
    assert_eq!(scaled(32, 128 * k), [(9, 8 * k), (19, 4 * k), (29, 2 * k)]);
    assert_eq!(scaled(32, 32 * k), scaled(32, 128 * k));
    assert_eq!(scaled(30, 8 * k), [(8, 2 * k), (17, k), (27, 512)]);
    assert_eq!(scaled(1, 100), [(0, 25)]);
    assert_eq!(kept(Schedule::halving(32), 1_000), [(9, 500), (19, 250), (29, 125)]);
}

proptest! {
    #[test]
    fn every_anchor_list_is_a_set_of_positions(
        cutoff in 1..LAYERS,
        items in proptest::collection::vec((0usize..300, 0usize..5), 0..12),
        kind in prop::sample::select(vec!["speed", "selfonly"]),
        prefill in 0usize..310,
    ) {
        let mut name = format!("{kind}:{cutoff}");
        let mut positions = BTreeSet::new();
        for &(first, more) in &items {
            name += &match (first, more) {
                (0, 0) => "+bos".to_owned(),
                (_, 0) => format!("+{first}"),
                _ => format!("+{first}-{}", first + more),
            };
            positions.extend(first..=first + more);
        }
        let policy = Policy::parse(&name, LAYERS).unwrap();
        let again = Policy::parse(&policy.to_string(), LAYERS).unwrap();
        prop_assert_eq!(&again, &policy);
        prop_assert_eq!(again.to_string(), policy.to_string());
        let anchors = Anchors::of(items.iter().map(|&(first, more)| first..first + more + 1).collect());
        let kept: BTreeSet<usize> = (0..400).filter(|&position| anchors.contains(position)).collect();
        prop_assert_eq!(&kept, &positions);
        let within = positions.range(..prefill).count();
        prop_assert_eq!(anchors.within(prefill), within);
        prop_assert_eq!(anchors.first_beyond(prefill), positions.range(prefill..).next().copied());
        let capacity = policy.capacity(prefill + 1, 3);
        prop_assert!(capacity[..cutoff].iter().all(|&tokens| tokens == prefill + 3));
        prop_assert!(capacity[cutoff..].iter().all(|&tokens| tokens == within + 3));
    }

    #[test]
    fn what_a_window_leaves_is_what_the_next_row_sees(
        sinks in 0usize..6, window in 1usize..40, own in prop::option::of(1usize..60), len in 0usize..100,
    ) {
        let seen = SinksAndWindow { sinks, window };
        let shape = AttentionShape {
            query_heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0, soft_cap: None, window: own, sinks: 0,
        };
        let narrowed = seen.narrowed(shape);
        let by_definition = |key: usize| key < sinks || key + window > len;
        for key in 0..len {
            match own {
                Some(own) if own <= window => prop_assert_eq!(narrowed.sees(len, key), key + own > len),
                _ => prop_assert_eq!(narrowed.sees(len, key), by_definition(key)),
            }
            prop_assert!(seen.unseen(len).contains(&key) != by_definition(key));
        }
        prop_assert_eq!(seen.left_of(len), (0..len).filter(|&key| by_definition(key)).count());
        prop_assert!(seen.left_of(len) <= seen.most_of(len, 1));
    }

    #[test]
    fn no_name_breaks_the_parser(
        name in "(speed|pop|full|swiftkv|selfonly|sliminfer|streaming|lazyllm|minference|flexprefill|x)?[:+0-9binosk=%.-]{0,12}"
    ) {
        if let Ok(policy) = Policy::parse(&name, LAYERS) {
            prop_assert_eq!(Policy::parse(&policy.to_string(), LAYERS).unwrap(), policy);
        }
    }
}
