//! The frontier and attention knockout against naive whole reruns, on the embedded model.

#![allow(clippy::unwrap_used)]

mod support;

use layerscope_cutoff::cost::bytes_per_layer_token;
use layerscope_cutoff::frontier::{CausalMap, frontier, part_of_frontier};
use layerscope_diagnostics::probe::{self, Decoding};
use layerscope_diagnostics::record::{Anchor, Divergence};
use layerscope_engine::{Decoder, Hooks, Interrupt, Policy, Session};
use layerscope_kernels::reference;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::{MODEL, family, load, tiny, whole_run};

fn divergence(full: &[Vec<f32>], other: &[Vec<f32>], continuation: &[u32]) -> Divergence {
    let n = continuation.len() as f64;
    let mut sum = Divergence { kl: 0.0, top1: 0.0, dnll: 0.0 };
    for ((full, other), &token) in full.iter().zip(other).zip(continuation) {
        let (p, q) = (reference::log_softmax(full), reference::log_softmax(other));
        let top = |row: &[f64]| (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        sum.kl += reference::kl_divergence(full, other) / n;
        sum.top1 += f64::from(u8::from(top(&p) == top(&q))) / n;
        sum.dnll += (p[token as usize] - q[token as usize]) / n;
    }
    sum
}

/// Share of steps whose two best tokens are so close that rounding may swap them.
fn near_ties(rows: &[Vec<f32>]) -> f64 {
    let close = |row: &Vec<f32>| {
        let mut row = row.clone();
        row.sort_by(|a, b| b.total_cmp(a));
        row[0] - row[1] < 1e-3
    };
    rows.iter().filter(|row| close(row)).count() as f64 / rows.len() as f64
}

fn assert_close(
    actual: Divergence,
    (full, other): (&[Vec<f32>], &[Vec<f32>]),
    continuation: &[u32],
    what: &str,
) {
    let expected = divergence(full, other, continuation);
    let ties = near_ties(full) + near_ties(other);
    assert!((actual.kl - expected.kl).abs() < 1e-4, "{what}: KL {} {}", actual.kl, expected.kl);
    assert!((actual.dnll - expected.dnll).abs() < 1e-4, "{what}: dNLL {} {}", actual.dnll, expected.dnll);
    assert!(
        (actual.top1 - expected.top1).abs() < 1e-9 + ties,
        "{what}: top-1 {} {}",
        actual.top1,
        expected.top1
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn every_cutoff_and_knockout_equals_a_whole_rerun(
        prompt in proptest::collection::vec(3u32..900, 1..70),
        answer in proptest::collection::vec(3u32..900, 1..9),
        chosen in any::<[prop::sample::Index; 3]>(),
    ) {
        let model = &*MODEL;
        let (p, layers) = (prompt.len(), model.config().layers);
        let interrupt = Interrupt::new(false);
        let run = probe::run(
            &model.decoder, &prompt, &Decoding::Given(&answer), &interrupt, &mut |_| {},
        ).unwrap();
        let actual = frontier(&model.decoder, &run, CausalMap::Heads, &interrupt, &mut |_| {}).unwrap();
        prop_assert_eq!(actual.rows.len(), 2 * layers);
        prop_assert_eq!(actual.knockout.len(), layers);

        let sequence: Vec<u32> = prompt.iter().chain(&answer[..answer.len() - 1]).copied().collect();
        let full = whole_run(&model.decoder, &sequence, p, &|_, _, _| false);
        // A few of each: a whole rerun of every one takes minutes.
        for index in &chosen {
            let row = index.get(&actual.rows);
            let first_hidden = row.anchor.tokens();
            let other = whole_run(&model.decoder, &sequence, p, &|layer, query, key| {
                layer >= row.cutoff && query + 1 >= p && (first_hidden..p - 1).contains(&key)
            });
            let what = format!("p {p}, anchor {:?}, cutoff {}", row.anchor, row.cutoff);
            assert_close(row.divergence, (&full, &other), &answer, &what);

            let row = index.get(&actual.knockout);
            let other = whole_run(&model.decoder, &sequence, p, &|layer, query, key| {
                layer == row.layer && query + 1 >= p && (1..p - 1).contains(&key)
            });
            let what = format!("p {p}, knockout {}", row.layer);
            assert_close(row.divergence, (&full, &other), &answer, &what);
        }
    }
}

/// Windows, soft caps, norms after, parallel blocks, experts, layers without RoPE: the identities hold for all of them.
#[test]
fn every_cutoff_of_every_family_equals_a_whole_rerun_and_a_session() {
    let token = |i: u32| 1 + i * 29 % 61;
    let (prompt, answer): (Vec<u32>, Vec<u32>) =
        ((0..130).map(token).collect(), (130..136).map(token).collect());
    let (p, interrupt) = (prompt.len(), Interrupt::new(false));
    let sequence: Vec<u32> = prompt.iter().chain(&answer[..answer.len() - 1]).copied().collect();
    for name in
        ["gemma2", "gemma3", "gpt_neox", "gpt2", "olmo2", "olmoe", "qwen3_moe", "granite", "smollm3", "phi3"]
    {
        let decoder = family(name);
        let layers = decoder.config().layers;
        let run = probe::run(&decoder, &prompt, &Decoding::Given(&answer), &interrupt, &mut |_| {}).unwrap();
        let actual = frontier(&decoder, &run, CausalMap::Heads, &interrupt, &mut |_| {}).unwrap();
        for anchor in Anchor::ALL {
            let part = part_of_frontier(&decoder, &run, anchor, 1..layers, &interrupt).unwrap();
            let whole: Vec<_> = actual.rows.iter().filter(|row| row.anchor == anchor).collect();
            assert_eq!((part.rows.len(), part.most_likely.len()), (layers, layers));
            for (part, whole) in part.rows.iter().zip(whole) {
                assert_eq!((part.anchor, part.cutoff), (anchor, whole.cutoff), "{name}");
                // An expert's only row is multiplied otherwise than several.
                let off = (part.divergence.kl - whole.divergence.kl).abs();
                assert!(off < 1e-6, "{name}, {anchor:?}, cutoff {}: {off}", part.cutoff);
            }
        }
        let full = fed(&decoder, Policy::full(layers), &prompt, &answer);
        for row in &actual.rows {
            let policy = Policy::speed(row.cutoff, row.anchor == Anchor::Bos, layers).unwrap();
            let what = format!("{name}, {policy}");
            let fed = fed(&decoder, policy, &prompt, &answer);
            assert_close(row.divergence, (&full, &fed), &answer, &what);
        }
        let whole = |hidden: &dyn Fn(usize, usize, usize) -> bool| whole_run(&decoder, &sequence, p, hidden);
        let full = whole(&|_, _, _| false);
        for cutoff in [1, layers - 1] {
            let row =
                actual.rows.iter().find(|row| (row.anchor, row.cutoff) == (Anchor::Bos, cutoff)).unwrap();
            let other =
                whole(&|layer, query, key| layer >= cutoff && query + 1 >= p && (1..p - 1).contains(&key));
            assert_close(row.divergence, (&full, &other), &answer, &format!("{name}, cutoff {cutoff}"));
            let row = &actual.knockout[cutoff];
            let other =
                whole(&|layer, query, key| layer == cutoff && query + 1 >= p && (1..p - 1).contains(&key));
            assert_close(row.divergence, (&full, &other), &answer, &format!("{name}, knockout {cutoff}"));
        }
    }
}

/// Logits of a session that is fed the answer, step by step.
fn fed(decoder: &Arc<Decoder>, policy: Policy, prompt: &[u32], answer: &[u32]) -> Vec<Vec<f32>> {
    let mut session = Session::new(decoder, policy, prompt.len(), answer.len()).unwrap();
    let mut hooks = Hooks::none();
    let mut logits = vec![session.prefill(prompt, &mut hooks, &Interrupt::new(false), &mut |_| {}).unwrap()];
    for &token in &answer[..answer.len() - 1] {
        logits.push(session.step(token, &mut hooks).unwrap());
    }
    logits.iter().map(|logits| logits.to_vec().unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn every_cutoff_equals_a_session_that_leaves_the_prompt_out(
        prompt in proptest::collection::vec(3u32..900, 1..600),
        answer in proptest::collection::vec(3u32..900, 1..7),
        chosen in any::<[prop::sample::Index; 4]>(),
    ) {
        let model = &*MODEL;
        let (p, layers) = (prompt.len(), model.config().layers);
        let interrupt = Interrupt::new(false);
        let run = probe::run(
            &model.decoder, &prompt, &Decoding::Given(&answer), &interrupt, &mut |_| {},
        ).unwrap();
        let actual = frontier(&model.decoder, &run, CausalMap::Heads, &interrupt, &mut |_| {}).unwrap();
        let full = fed(&model.decoder, Policy::full(layers), &prompt, &answer);
        for index in &chosen {
            let row = index.get(&actual.rows);
            let policy = Policy::speed(row.cutoff, row.anchor == Anchor::Bos, layers).unwrap();
            let what = format!("p {p}, {policy}");
            assert_close(row.divergence, (&full, &fed(&model.decoder, policy, &prompt, &answer)), &answer, &what);
        }
    }

    #[test]
    fn every_policy_allocates_what_the_cost_model_says(
        p in 1usize..900,
        n in 1usize..50,
        cutoff in 1usize..=8,
        anchors in proptest::collection::btree_set(0usize..1000, 0..5),
        kind in prop::sample::select(vec!["speed", "selfonly"]),
    ) {
        let decoder = &MODEL.decoder;
        let config = decoder.config();
        let full = (p - 1 + n) * config.layers;
        let bytes = bytes_per_layer_token(config.kv_heads, config.head_dim, size_of::<f32>());
        let list: String = anchors.iter().map(|anchor| format!("+{anchor}")).collect();
        let within = anchors.range(..p - 1).count();
        for (name, layer_tokens) in [
            (format!("{kind}:{cutoff}{list}"), (p - 1 - within) * cutoff + (within + n) * config.layers),
            (format!("pop:{cutoff}"), full),
            (format!("swiftkv:{cutoff}"), full),
            ("full".into(), full),
        ] {
            let policy = Policy::parse(&name, config.layers).unwrap();
            prop_assert_eq!(policy.capacity(p, n).iter().sum::<usize>(), layer_tokens, "{}", name);
            let work = policy.layer_tokens(p, n);
            prop_assert_eq!(work.block + work.projected, layer_tokens, "{}", name);
            let session = Session::new(decoder, policy, p, n).unwrap();
            prop_assert_eq!(session.store().allocated_bytes() as u64, layer_tokens as u64 * bytes, "{}", name);
        }
    }
}

/// The tiny model with the attention output of layers ≥ `from` zeroed: nothing above reads the prompt.
fn void_above(from: usize, folder: &Path) -> PathBuf {
    let mut bytes = std::fs::read(tiny()).unwrap();
    let content =
        candle_core::quantized::gguf_file::Content::read(&mut std::io::Cursor::new(&bytes)).unwrap();
    for layer in from..MODEL.config().layers {
        let info = &content.tensor_infos[&format!("blk.{layer}.attn_output.weight")];
        let start = (content.tensor_data_offset + info.offset) as usize;
        let len = info.shape.elem_count() / info.ggml_dtype.block_size() * info.ggml_dtype.type_size();
        bytes[start..start + len].fill(0);
    }
    let path = folder.join(format!("void-{from}.gguf"));
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn where_nothing_reads_above_a_layer_the_cut_there_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for from in [1, 3, MODEL.config().layers - 1] {
        let model = load(&void_above(from, folder.path()));
        let prompt: Vec<u32> = (0..50).map(|i| 3 + i * 17 % 800).collect();
        let interrupt = Interrupt::new(false);
        let continuation = Decoding::Greedy { tokens: 7, excluded: &[] };
        let run = probe::run(&model.decoder, &prompt, &continuation, &interrupt, &mut |_| {}).unwrap();
        let actual = frontier(&model.decoder, &run, CausalMap::Heads, &interrupt, &mut |_| {}).unwrap();
        for row in actual.rows.iter().filter(|row| row.cutoff >= from) {
            assert!(row.divergence.kl < 1e-6, "cutoff {}: {}", row.cutoff, row.divergence.kl);
            assert_eq!(row.divergence.top1, 1.0);
        }
        for row in actual.knockout.iter().filter(|row| row.layer >= from) {
            assert!(row.divergence.kl < 1e-6, "knockout {}: {}", row.layer, row.divergence.kl);
        }
        let cut = actual.rows.iter().find(|row| row.anchor == Anchor::Bos && row.cutoff == 1).unwrap();
        assert!(from == 1 || cut.divergence.kl > 1e-6, "a cut below costs something");
    }
}
