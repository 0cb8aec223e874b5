//! What sliding windows have to do with a cutoff, in plain sentences.
//!
//! A windowed layer never sees more than its window, under any policy: a cutoff takes from it what the window still showed of
//! the prompt, and an anchor that the window has passed is not seen there, as in the full model.

use super::frontier_summary::FrontierSummary;
use super::{Evidence, Recommendation, Verdict};
use layerscope_diagnostics::summary::ranges;

pub(super) fn reasons(
    recommendation: &Recommendation,
    evidence: Evidence<'_>,
    frontier: &FrontierSummary,
) -> Vec<String> {
    if evidence.model().windowed_layers.is_empty() {
        return vec![];
    }
    let mut reasons = vec![what_sees_what(evidence)];
    reasons.extend(steepest_edge(recommendation, evidence, frontier));
    reasons.extend(prompts_within(evidence));
    reasons
}

fn what_sees_what(evidence: Evidence<'_>) -> String {
    let window =
        evidence.model().window.map_or("a sliding window".to_owned(), |w| format!("a window of {w} tokens"));
    let windowed = &evidence.model().windowed_layers;
    let global: Vec<usize> = (0..evidence.layers()).filter(|layer| !windowed.contains(layer)).collect();
    let named = |layers: &[usize]| match layers {
        [one] => format!("Layer {one} sees"),
        several => format!("Layers {} see", ranges(several)),
    };
    let layers = match (global.len(), windowed.len()) {
        (0, _) => format!("Every layer sees {window} only"),
        (few, many) if few <= many => {
            format!("{} the whole prompt, the other {many} {window}", named(&global))
        }
        _ => format!("{} {window} only, the others the whole prompt", named(windowed)),
    };
    format!(
        "{layers}: there a cutoff takes what the window still showed, and an anchor that the window has passed is not seen."
    )
}

/// Where hiding the prompt from one layer fewer gains most.
fn steepest_edge(
    recommendation: &Recommendation,
    evidence: Evidence<'_>,
    frontier: &FrontierSummary,
) -> Option<String> {
    let kl = |cutoff: usize| if cutoff == evidence.layers() { 0.0 } else { frontier.overall().at(cutoff).kl };
    let gain = |layer: usize| kl(layer) - kl(layer + 1);
    let defined = (1..evidence.layers()).filter(|&layer| gain(layer).is_finite());
    let layer = defined.max_by(|&a, &b| gain(a).total_cmp(&gain(b)))?;
    let kind = match evidence.model().windowed_layers.contains(&layer) {
        true => "a windowed one",
        false => "one that sees the whole prompt",
    };
    let cut = match recommendation.l_cut {
        _ if recommendation.verdict == Verdict::KeepFullDepth => String::new(),
        cutoff if cutoff == layer + 1 => "; the cutoff lies right above it".to_owned(),
        cutoff if cutoff > layer + 1 => {
            let windowed =
                (layer + 1..cutoff).filter(|layer| evidence.model().windowed_layers.contains(layer)).count();
            let all = cutoff - layer - 1;
            format!(
                "; for the tolerance the cutoff keeps {all} layer{} more, {windowed} of them windowed",
                if all == 1 { "" } else { "s" }
            )
        }
        _ => "; the cutoff lies below it".to_owned(),
    };
    Some(format!(
        "The steepest edge of the frontier is layer {layer}, {kind}: without the prompt from there on it is {:.4} nats, with \
         that layer kept {:.4}{cut}.",
        kl(layer),
        kl(layer + 1)
    ))
}

/// Prompts that fit into the window with all that follows them; `None` where none does, or there is no window.
fn within(evidence: Evidence<'_>) -> Option<usize> {
    let window = evidence.model().window?;
    let lengths = evidence.workloads().into_iter().map(|one| one.prompt_tokens + one.decode_tokens);
    Some(lengths.filter(|&tokens| tokens <= window).count()).filter(|&within| within > 0)
}

/// The same, as a clause.
pub(super) fn caveat(evidence: Evidence<'_>) -> Option<String> {
    let all = evidence.prompts.len();
    within(evidence).map(|within| format!("{within} of {all} prompts fit into the sliding window"))
}

/// Whether the prompts are long enough for windows to matter.
fn prompts_within(evidence: Evidence<'_>) -> Option<String> {
    let all = evidence.prompts.len();
    within(evidence).map(|within| {
        format!(
            "Caution: {within} of {all} prompts fit into the window with all that follows them, so that the windowed layers \
             read them whole; on longer prompts they read less, and the cutoff may lie elsewhere."
        )
    })
}
