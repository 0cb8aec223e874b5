//! A search of sets for a synthetic run.

use super::synthetic::Sizes;
use layerscope_diagnostics::record::Divergence;
use layerscope_diagnostics::run::{JudgedSet, Run, SearchOrder, SearchUnits, SetSearch, SetsWriter};
use layerscope_engine::HeadSet;
use std::path::Path;

/// Adds a search of sets to a run: KV heads are dropped from the last layer down, a head of each layer first.
pub(crate) fn write(folder: &Path, sizes: Sizes) {
    let run = Run::open(folder).expect("a run");
    let kv_heads = run.manifest().model.kv_heads;
    let ids = run.manifest().prompts.ids.clone();
    let layers = (0..sizes.layers).rev();
    let order: Vec<(usize, usize)> =
        (0..kv_heads).flat_map(|head| layers.clone().map(move |layer| (layer, head))).collect();
    let sets = (0..order.len()).map(|dropped| {
        let kept = HeadSet::of(order[dropped..].iter().copied(), kv_heads);
        let share = dropped as f64 / order.len() as f64;
        let kl = 0.9 * share * share;
        JudgedSet {
            policy: format!("keep:{kept}+bos+window=16"),
            kv_kept: 1.0 - 0.85 * share,
            kl_searched: 0.8 * kl,
            judged: Divergence { kl, top1: 1.0 - 0.4 * share, dnll: kl },
            kl_upper95: 1.3 * kl,
            texts_unchanged: 0,
            texts: 4,
            answers_kept: 4 - dropped * 4 / order.len(),
            answers: 4,
        }
    });
    let search = SetSearch {
        units: SearchUnits::Heads,
        order: SearchOrder::Joint,
        first: 1,
        last: 16,
        cutoff: sizes.layers,
        searched: ids[..1].to_vec(),
        judged: ids[1..].to_vec(),
        tried: 3 * order.len(),
        cheaper_than_before: 0,
        seconds: 1.0,
        sets: sets.collect(),
    };
    SetsWriter::open(&run).expect("a run folder").put(search).expect("sets");
}
