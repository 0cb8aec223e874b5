//! Policies that keep what scores best: what is kept against kvpress and PyTorch (`fixtures/families/kept_by_scores.py`), and what follows
//! from it against a mask.

use super::reference::{TINY, crate_folder};
use super::retention::by_head;
use super::{assert_within, run, sequence, stepped};
use layerscope_engine::{
    Decoder, Device, Hooks, Interrupt, KvStore, Policy, Session, WeightsPrecision, folder_config,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Names with KEEP to be filled in.
const METHODS: [&str; 7] = [
    "snapkv:KEEP",
    "pyramidkv:KEEP",
    "h2o:KEEP",
    "tova:KEEP",
    "expected:KEEP",
    "kvzip:KEEP",
    "kvzip:KEEP+even",
];

/// What each KV head of each layer keeps of a prompt whose last token is at position `p` − 1.
fn kept(store: &KvStore, layers: usize, kv_heads: usize, p: usize) -> Vec<Vec<Vec<usize>>> {
    let of_head =
        |layer, head| store.positions(layer, head).into_iter().filter(|&position| position + 1 < p).collect();
    (0..layers).map(|layer| (0..kv_heads).map(|head| of_head(layer, head)).collect()).collect()
}

fn after_prefill(decoder: &Arc<Decoder>, policy: &Policy, prompt: &[u32]) -> Session {
    let mut session = Session::new(decoder, policy.clone(), prompt.len(), 1).unwrap();
    session.prefill(prompt, &mut Hooks::none(), &Interrupt::new(false), &mut |_| {}).unwrap();
    session
}

#[test]
fn what_is_kept_is_what_kvpress_and_pytorch_keep() {
    for family in ["llama31", "qwen2", "qwen3", "phi3"] {
        let folder = crate_folder().join("../../fixtures/families").join(family);
        let (_, config, files) = folder_config(&folder, None).unwrap();
        let weights = files.weights(&config).unwrap();
        let decoder =
            Decoder::load(config.clone(), &weights, WeightsPrecision::F32, &Device::Cpu, &mut |_, _| Ok(()));
        let decoder = Arc::new(decoder.unwrap());
        let expected =
            candle_core::safetensors::load(folder.join("kept.safetensors"), &candle_core::Device::Cpu)
                .unwrap();
        let mut prompt: Vec<u32> =
            expected["tokens"].to_vec1::<i64>().unwrap().into_iter().map(|token| token as u32).collect();
        prompt.push(1);
        for (method, name) in [
            ("snapkv", "snapkv:50%+window=8"),
            ("expected", "expected:50%"),
            ("h2o", "h2o:30"),
            ("tova", "tova:50%"),
            ("kvzip", "kvzip:50%+even"),
        ] {
            if family == "phi3" && ["expected", "kvzip"].contains(&method) {
                // There the queries to come, or the second reading, turn by LongRoPE's angles for long sequences.
                continue;
            }
            if method == "kvzip" {
                let policy = Policy::parse_for("kvzip:50%", &config).unwrap();
                let session = after_prefill(&decoder, &policy, &prompt);
                let kept = kept(session.store(), config.layers, config.kv_heads, prompt.len());
                for (layer, kept) in kept.iter().enumerate() {
                    let mask = expected[&format!("kvzip.shared.{layer}")].to_vec2::<i64>().unwrap();
                    for (head, (kept, mask)) in kept.iter().zip(&mask).enumerate() {
                        let mask = mask.iter().enumerate().filter(|(_, is_kept)| **is_kept == 1);
                        let expected: Vec<usize> = mask.map(|(position, _)| position).collect();
                        assert_eq!(*kept, expected, "{family}, {policy}, layer {layer}, KV head {head}");
                    }
                }
            }
            let policy = Policy::parse_for(name, &config).unwrap();
            let session = after_prefill(&decoder, &policy, &prompt);
            let kept = kept(session.store(), config.layers, config.kv_heads, prompt.len());
            for (layer, kept) in kept.iter().enumerate() {
                let expected = expected[&format!("{method}.{layer}")].to_vec2::<i64>().unwrap();
                for (head, (kept, expected)) in kept.iter().zip(&expected).enumerate() {
                    let expected: Vec<usize> = expected.iter().map(|&position| position as usize).collect();
                    assert_eq!(*kept, expected, "{family}, {name}, layer {layer}, KV head {head}");
                }
            }
        }
    }
}

#[test]
fn what_follows_equals_a_mask() {
    let config = TINY.decoder.config();
    for method in METHODS {
        for (p, keep) in [(1, "25%"), (2, "1"), (40, "25%"), (600, "50%"), (600, "40")] {
            let policy = Policy::parse_for(&method.replace("KEEP", keep), config).unwrap();
            let sequence = sequence(p + 3, 5);
            let session = after_prefill(&TINY.decoder, &policy, &sequence[..p]);
            let kept: Vec<Vec<BTreeSet<usize>>> = kept(session.store(), config.layers, config.kv_heads, p)
                .into_iter()
                .map(|heads| heads.into_iter().map(BTreeSet::from_iter).collect())
                .collect();
            let counts = policy.capacity_by_head(p, 1, config.kv_heads);
            for (layer, heads) in kept.iter().enumerate().filter(|_| *method != *"kvzip:KEEP") {
                let of_heads: Vec<usize> = heads.iter().map(|kept| kept.len() + 1).collect();
                assert_eq!(of_heads, counts[layer], "{policy}, layer {layer}");
            }
            let all: usize = kept.iter().flatten().map(|kept| kept.len() + 1).sum();
            assert_eq!(all, counts.iter().flatten().sum::<usize>(), "{policy}");
            let hidden = |layer: usize, head: usize, query: usize, key: usize| {
                query + 1 >= p && key + 1 < p && !kept[layer][head].contains(&key)
            };
            let (actual, session) = run(&TINY.decoder, &policy, &sequence, p, &mut Hooks::none());
            let counts = policy.capacity_by_head(p, sequence.len() + 1 - p, config.kv_heads);
            let bytes = counts.iter().flatten().sum::<usize>() * 2 * config.head_dim * size_of::<f32>();
            assert_eq!(session.store().allocated_bytes(), bytes, "{policy}, p {p}");
            assert_within(1e-3, &actual, &by_head(&sequence, p, &hidden), &format!("{policy}, p {p}"));
        }
    }
}

#[test]
fn a_pyramid_keeps_more_below_and_the_same_in_all() {
    let config = TINY.decoder.config();
    for (p, keep, tokens) in
        [(1_001, "320", 320), (1_001, "25%", 250), (101, "50%", 50), (2_001, "1900", 1_900)]
    {
        let policy = Policy::parse_for(&format!("pyramidkv:{keep}"), config).unwrap();
        let kept: Vec<usize> = policy.capacity(p, 1).into_iter().map(|kept| kept - 1).collect();
        assert!(kept.is_sorted_by(|below, above| below >= above), "{kept:?}");
        let all: usize = kept.iter().sum();
        assert!(all.abs_diff(tokens * config.layers) <= config.layers / 2, "{kept:?}");
        assert!(kept.iter().all(|&kept| (32..p).contains(&kept)), "{kept:?}");
    }
    // 288 beside the window: 2 · 288 − 288 / 20 in the lowest layer, a twentieth in the highest.
    let policy = Policy::parse_for("pyramidkv:320", config).unwrap();
    let kept = policy.capacity(1_001, 1);
    assert_eq!([kept[0], kept[config.layers - 1]], [32 + 562 + 1, 32 + 14 + 1]);
}

#[test]
fn with_everything_kept_it_is_the_full_model() {
    let config = TINY.decoder.config();
    let sequence = sequence(53, 6);
    let full = stepped(&Policy::full(config.layers), &sequence, 50, &mut Hooks::none());
    for method in METHODS {
        let policy = Policy::parse_for(&method.replace("KEEP", "100%"), config).unwrap();
        assert_within(1e-4, &stepped(&policy, &sequence, 50, &mut Hooks::none()), &full, method);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_gpu_the_same_is_kept() {
    let decoder = super::on_gpu();
    let config = decoder.config();
    let prompt = sequence(90, 9);
    for method in METHODS {
        let window = if method.ends_with("kv:KEEP") { "+window=8" } else { "" };
        let policy = Policy::parse_for(&(method.replace("KEEP", "50%") + window), config).unwrap();
        let of = |decoder| {
            let session = after_prefill(decoder, &policy, &prompt);
            kept(session.store(), config.layers, config.kv_heads, prompt.len())
        };
        let (on_gpu, on_cpu): (Vec<_>, Vec<_>) = (of(&decoder), of(&TINY.decoder));
        let pairs = on_gpu.iter().flatten().flatten().count();
        let same = on_gpu.iter().flatten().zip(on_cpu.iter().flatten());
        let same: usize =
            same.map(|(gpu, cpu)| gpu.iter().filter(|position| cpu.contains(position)).count()).sum();
        // Scores that are close may change places.
        assert!(same * 100 >= pairs * 99, "{policy}: {same} of {pairs}");
    }
}
