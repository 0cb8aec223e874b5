//! The recommendation's reasons, in plain sentences.

use super::frontier_summary::{BOUND_PROMPTS, FrontierGroup, FrontierSummary};
use super::{CategoryOutcome, Evidence, Options, RankedLayer, Recommendation, Verdict};
use super::{answers, windows};
use crate::cost::Savings;
use layerscope_diagnostics::record::Anchor;
use layerscope_engine::readable_bytes;

/// Fewer prompts than this deserve a caution.
const FEW_PROMPTS: usize = 5;
/// Cutoffs this close agree.
const CLOSE: usize = 2;

pub(super) fn reasons(
    recommendation: &Recommendation,
    evidence: Evidence<'_>,
    frontier: &FrontierSummary,
    at_exact: &Savings,
    options: &Options,
) -> Vec<String> {
    let mut reasons = vec![tolerance(recommendation, frontier, at_exact, options)];
    reasons.extend(answers::reasons(recommendation, evidence, frontier, options));
    reasons.extend(adapted(recommendation, frontier, options));
    reasons.extend(edge(recommendation, frontier, options));
    reasons.extend(gap(recommendation));
    reasons.extend(categories(recommendation));
    reasons.extend(savings(recommendation));
    reasons.push(diagnostics(recommendation));
    reasons.extend(causes(recommendation));
    reasons.extend(other_anchor(recommendation, evidence));
    reasons.extend(windows::reasons(recommendation, evidence, frontier));
    reasons
}

fn tolerance(
    recommendation: &Recommendation,
    frontier: &FrontierSummary,
    at_exact: &Savings,
    options: &Options,
) -> String {
    let Recommendation { l_cut, layers, tolerance, kl, kl_upper95, top1, .. } = recommendation;
    if recommendation.verdict == Verdict::Cut {
        return format!(
            "At cutoff {l_cut} of {layers} the next-token distribution moves by {kl:.4} nats per token on average (95 % \
             upper bound {kl_upper95:.4}), within the tolerance of {tolerance}; {:.1} % of the most likely tokens stay \
             the same.",
            top1 * 100.0
        );
    }
    if recommendation.exact_l_cut < *layers {
        return format!(
            "Keep full depth: cutoff {} of {layers} would stay within the tolerance of {tolerance} but save only {:.1} % of \
             the KV bytes.",
            recommendation.exact_l_cut,
            at_exact.kv_saved * 100.0
        );
    }
    let last = layers - 1;
    let failing: Vec<&str> = frontier
        .groups
        .iter()
        .filter(|group| *layers > 1 && !group.passes(last, options))
        .map(|group| group.category.as_deref().unwrap_or("all prompts together"))
        .collect();
    if *layers == 1 {
        return format!("Keep full depth: a model of {layers} layer has nothing to cut.");
    }
    let kl = frontier.overall().at(last).kl;
    if kl.is_finite() && frontier.groups.iter().all(|group| group.within(last, *tolerance)) {
        let short = frontier.categories().iter().find(|group| !group.passes(last, options));
        let (group, whose) = match short.filter(|_| frontier.keeps_enough(last, options)) {
            Some(group) => (group, format!(" of {}", group.category.as_deref().unwrap_or_default())),
            None => (frontier.overall(), String::new()),
        };
        let judged = group.kept.judged(options.criterion, last);
        return format!(
            "Keep full depth: even at {last} of {layers} only {} of {} {}{whose} are kept, less than the {:.0} % asked for.",
            judged.kept,
            judged.of,
            answers::what(options.criterion),
            options.kept * 100.0
        );
    }
    if !kl.is_finite() {
        return format!(
            "Keep full depth: already at {last} of {layers} the divergence of at least one prompt is missing, \
             which rules out that cutoff and all below it."
        );
    }
    format!(
        "Keep full depth: no cutoff stays within the tolerance of {tolerance} nats; even at {last} of {layers} the mean is \
         {:.4} (95 % upper bound {:.4}) and these do not: {}.",
        kl,
        frontier.overall().upper95_at(last),
        failing.join(", ")
    )
}

/// Larger cutoffs than the adapter's own that do not pass.
fn adapted(recommendation: &Recommendation, frontier: &FrontierSummary, options: &Options) -> Option<String> {
    let own = frontier.adapted_to.filter(|own| recommendation.exact_l_cut <= *own)?;
    let failing = (own..recommendation.layers).filter(|cutoff| !frontier.passes(*cutoff, options));
    let failing: Vec<String> = failing.map(|cutoff| cutoff.to_string()).collect();
    (!failing.is_empty()).then(|| {
        format!(
            "The adapter was made for cutoff {own}. With it, larger ones do not pass ({}); leave it away there.",
            failing.join(", ")
        )
    })
}

fn edge(recommendation: &Recommendation, frontier: &FrontierSummary, options: &Options) -> Option<String> {
    let (below, kl_below) = (recommendation.l_cut.checked_sub(1)?, recommendation.kl_below);
    if recommendation.verdict == Verdict::KeepFullDepth || below == 0 {
        return None;
    }
    if !kl_below.is_finite() {
        return Some(format!(
            "One layer below, at {below}, the divergence of at least one prompt is missing, which rules out \
             that cutoff and all below it."
        ));
    }
    let upper = frontier.overall().upper95_at(below);
    let times = kl_below / recommendation.kl;
    let sharp =
        if times.is_finite() && times >= 1.0 { format!(", {times:.1} times as much") } else { String::new() };
    // Where all prompts together pass, categories are what stops the cutoff.
    let what = answers::what(options.criterion);
    let judged = frontier.overall().kept.judged(options.criterion, below);
    let failing: Vec<_> = frontier.groups.iter().filter(|group| !group.passes(below, options)).collect();
    let names = |groups: Vec<&FrontierGroup>| {
        groups.iter().filter_map(|group| group.category.as_deref()).collect::<Vec<_>>().join(", ")
    };
    let stops = if failing.is_empty() {
        format!(", but only {} of {} {what} are kept there", judged.kept, judged.of)
    } else if failing.iter().any(|group| group.category.is_none()) {
        String::new()
    } else {
        let (keep_too_few, exceed): (Vec<_>, Vec<_>) =
            failing.into_iter().partition(|group| group.within(below, options.tolerance));
        let mut stops = String::new();
        if !exceed.is_empty() {
            stops.push_str(&format!("; above the tolerance: {}", names(exceed)));
        }
        if !keep_too_few.is_empty() {
            stops.push_str(&format!("; too few {what} kept: {}", names(keep_too_few)));
        }
        stops
    };
    Some(format!(
        "One layer below, at {below}, it is {kl_below:.4} nats (95 % upper bound {upper:.4}){sharp}{stops}."
    ))
}

/// Lower cutoffs that pass by themselves but have a worse one above them.
fn gap(recommendation: &Recommendation) -> Option<String> {
    let below = recommendation.frontier.iter().take(recommendation.exact_l_cut - 1);
    let passing: Vec<String> = below.filter(|at| at.within).map(|at| at.cutoff.to_string()).collect();
    (!passing.is_empty()).then(|| {
        format!(
            "Lower cutoffs pass by themselves ({}), but not every one above them does, so they are not trusted.",
            passing.join(", ")
        )
    })
}

fn categories(recommendation: &Recommendation) -> Option<String> {
    if recommendation.categories.len() < 2 || recommendation.verdict == Verdict::KeepFullDepth {
        return None;
    }
    let by = |figure: &dyn Fn(&CategoryOutcome) -> f64| {
        let mut sorted: Vec<&CategoryOutcome> = recommendation.categories.iter().collect();
        sorted.sort_by(|a, b| figure(b).total_cmp(&figure(a)));
        sorted.into_iter().next()
    };
    let worst = by(&|category| category.kl)?;
    let first = by(&|category| {
        if category.kl_below.is_finite() { category.kl_below } else { f64::NEG_INFINITY }
    })?;
    let mut text = format!("Of the categories {} moves most ({:.4} nats)", worst.category, worst.kl);
    if first.kl_below.is_finite() {
        text.push_str(&format!(
            "; one layer below, {} suffers first ({:.4} nats)",
            first.category, first.kl_below
        ));
    }
    let binding = recommendation.categories.iter().max_by_key(|category| category.exact_l_cut)?;
    let easiest = recommendation.categories.iter().min_by_key(|category| category.exact_l_cut)?;
    if easiest.exact_l_cut < binding.exact_l_cut {
        text.push_str(&format!(
            "; alone, {} would allow a cutoff of {}, {} needs {}",
            easiest.category, easiest.exact_l_cut, binding.category, binding.exact_l_cut
        ));
    }
    text.push('.');
    Some(text)
}

fn savings(recommendation: &Recommendation) -> Option<String> {
    if recommendation.verdict == Verdict::KeepFullDepth {
        return None;
    }
    Some(format!(
        "At this run's prompt lengths it saves {:.1} % of the KV bytes ({} instead of {} a prompt) and {:.1} % of \
         the prefill's FLOPs; predicted, not measured: {:.1} % of TTFT and {:.1} % of TPOT.",
        recommendation.kv_saved * 100.0,
        readable_bytes(recommendation.kv_bytes_cut),
        readable_bytes(recommendation.kv_bytes_full),
        recommendation.flops_saved * 100.0,
        recommendation.predicted_ttft_saved * 100.0,
        recommendation.predicted_tpot_saved * 100.0
    ))
}

fn diagnostics(recommendation: &Recommendation) -> String {
    let diagnostic = recommendation.diagnostics;
    let Some(suggested) = diagnostic.l_cut else {
        return "The diagnostics alone suggest no cutoff: neither reading nor straightening shows an end."
            .to_owned();
    };
    let part = |name: &str, cut: Option<usize>, does: &str| match cut {
        Some(cut) => format!("{name} {does} at {cut}"),
        None => format!("{name} shows no end"),
    };
    let verdict = if suggested.abs_diff(recommendation.l_cut) <= CLOSE {
        "they agree with the exact frontier".to_owned()
    } else {
        format!(
            "they disagree with the exact frontier by {} layers, and the frontier decides",
            suggested.abs_diff(recommendation.l_cut)
        )
    };
    format!(
        "The diagnostics alone suggest {suggested} ({}, {}); {verdict}.",
        part(
            &format!("reading by {}", diagnostic.reading_figure.replace('_', " ")),
            diagnostic.reading_l_cut,
            "ends"
        ),
        part("straightening", diagnostic.straightening_l_cut, "levels off")
    )
}

fn causes(recommendation: &Recommendation) -> Option<String> {
    let (causal, reading) = (&recommendation.causal_layers, &recommendation.reading_layers);
    if causal.is_empty() || reading.is_empty() {
        return None;
    }
    let list = |layers: &[RankedLayer]| {
        layers.iter().map(|ranked| ranked.layer.to_string()).collect::<Vec<_>>().join(", ")
    };
    let is_read = |ranked: &&RankedLayer| reading.iter().any(|other| other.layer == ranked.layer);
    let both: Vec<RankedLayer> = causal.iter().filter(is_read).copied().collect();
    let common = if both.is_empty() { "none is both".to_owned() } else { format!("both: {}", list(&both)) };
    Some(format!(
        "Hiding the prompt hurts most at layers {}; most attention goes to it at layers {} ({common}).",
        list(causal),
        list(reading)
    ))
}

fn other_anchor(recommendation: &Recommendation, evidence: Evidence<'_>) -> Option<String> {
    let other = recommendation.other_anchor.as_ref()?;
    let bos = evidence.model().bos.as_ref().map_or("position 0", |token| token.text.as_str());
    let (with_bos, without) = match recommendation.anchor {
        Anchor::Bos => (recommendation.exact_l_cut, other.exact_l_cut),
        Anchor::None => (other.exact_l_cut, recommendation.exact_l_cut),
    };
    Some(format!(
        "The anchor at position 0 ({bos:?}) allows a cutoff of {with_bos}; without it {without} would be needed."
    ))
}

/// What to beware of, a clause each.
pub(super) fn caveats(
    recommendation: &Recommendation,
    evidence: Evidence<'_>,
    frontier: &FrontierSummary,
) -> Vec<String> {
    let prompts = |count: usize| if count == 1 { "1 prompt".to_owned() } else { format!("{count} prompts") };
    let few = if recommendation.prompts < FEW_PROMPTS { "only " } else { "" };
    let mut caveats = vec![format!("based on {few}{}", prompts(recommendation.prompts))];
    if recommendation.answers == 0 {
        caveats.push("answers were not judged".to_owned());
    }
    let small = frontier.categories().iter().filter(|group| !group.judged_by_bound);
    let small: Vec<&str> = small.filter_map(|group| group.category.as_deref()).collect();
    if !small.is_empty() && recommendation.categories.len() > 1 {
        caveats.push(format!(
            "fewer than {BOUND_PROMPTS} prompts of {}: judged by their mean alone",
            small.join(", ")
        ));
    }
    let missing = evidence.not_recorded() + frontier.left_out;
    if missing > 0 {
        caveats.push(format!("{} failed or unfinished, and left out", prompts(missing)));
    }
    caveats.extend(windows::caveat(evidence));
    if recommendation.verdict == Verdict::Cut {
        caveats.push("TTFT and TPOT savings are predictions".to_owned());
    }
    caveats
}
