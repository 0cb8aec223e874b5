//! Made-up maps of activation patches between the first two prompts of a synthetic run.

use layerscope_diagnostics::patching::{
    PatchDirection, PatchFigures, PatchMap, PatchMetric, PatchSite, PatchToken, PatchedPrompt,
};
use layerscope_diagnostics::run::{PatchesWriter, Run};
use std::path::Path;

/// Adds a map of the residual stream, which lacks its first column, and one of heads.
pub(crate) fn write(folder: &Path) {
    let run = Run::open(folder).expect("a run");
    let [stream, heads] = maps(&run);
    let mut writer = PatchesWriter::open(&run).expect("a writer");
    assert!(writer.put(stream).expect("a map") && writer.put(heads).expect("a map"));
}

fn maps(run: &Run) -> [PatchMap; 2] {
    let model = &run.manifest().model;
    let token = |text: &str, id| PatchToken { id, text: text.into() };
    let prompt = |id: &str, next: &str, figures| {
        let prompt = run.prompt(id).expect("a prompt");
        let tokens = prompt.prompt_tokens.into_iter().zip(prompt.prompt_token_text);
        PatchedPrompt {
            id: id.into(),
            tokens: tokens.map(|(id, text)| PatchToken { id, text }).collect(),
            next: token(next, 7),
            figures,
        }
    };
    let clean = prompt("prompt-1", " Mary", PatchFigures { logit_diff: 6.0, kl: 0.0 });
    let corrupted = prompt("prompt-2", " John", PatchFigures { logit_diff: -6.0, kl: 5.0 });
    let p = clean.tokens.len();
    let (name, last) = (p * 5 / 8, p - 1);
    // The answer is at its token below, and at the last one above; in between at neither alone.
    let of_stream = |layer: usize, position: usize| {
        let depth = layer as f64 / model.layers as f64;
        let below = 1.0 / (1.0 + (24.0 * (depth - 0.55)).exp());
        let above = 1.0 / (1.0 + (-24.0 * (depth - 0.72)).exp());
        match position {
            0 => None,
            at if at == name => Some(below),
            at if at == last => Some(above),
            at if at == name + 1 => Some(0.3 * (-60.0 * (depth - 0.6_f64).powi(2)).exp()),
            at if at % 5 == 0 => Some(-0.12 * depth),
            _ => Some(0.0),
        }
    };
    let of_head = |layer: usize, head: usize| match (layer * 7 + head * 5) % 23 {
        0 => Some(0.42),
        3 => Some(-0.25),
        _ => Some(0.01 * ((layer + head) % 4) as f64),
    };
    let figures =
        |effect: f64| PatchFigures { logit_diff: 12.0 * effect - 6.0, kl: 5.0 * (1.0 - effect).abs() };
    let map = |site, columns: usize, effect: &dyn Fn(usize, usize) -> Option<f64>| PatchMap {
        site,
        direction: PatchDirection::Denoising,
        metric: PatchMetric::LogitDiff,
        clean: clean.clone(),
        corrupted: corrupted.clone(),
        answer: token(" Mary", 7),
        wrong: token(" John", 8),
        layers: (0..model.layers).collect(),
        columns: (0..columns).collect(),
        head_positions: if site == PatchSite::Head { vec![last] } else { vec![] },
        cells: (0..model.layers * columns)
            .map(|cell| effect(cell / columns, cell % columns).map(figures))
            .collect(),
    };
    [map(PatchSite::ResidPre, p, &of_stream), map(PatchSite::Head, model.heads, &of_head)]
}
