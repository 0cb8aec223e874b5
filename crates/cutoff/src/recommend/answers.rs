//! What a cutoff does to answers and texts, in plain sentences.

use super::frontier_summary::FrontierSummary;
use super::kept::{Criterion, Kept};
use super::{Evidence, Options, Recommendation, Verdict};

/// What a criterion counts.
pub(super) fn what(criterion: Criterion) -> &'static str {
    match criterion {
        Criterion::Text => "texts",
        Criterion::Answers | Criterion::Kl => "answers",
    }
}

pub(super) fn reasons(
    recommendation: &Recommendation,
    evidence: Evidence<'_>,
    frontier: &FrontierSummary,
    options: &Options,
) -> Vec<String> {
    let kept = &frontier.overall().kept;
    let cut = recommendation.verdict == Verdict::Cut;
    let mut reasons = vec![];
    let answers = kept.answers_at(recommendation.l_cut);
    if answers.of == 0 {
        reasons.push(not_judged(evidence));
    } else if cut {
        reasons.push(answers_kept(answers, kept.answers_at(recommendation.l_cut - 1)));
        reasons.extend(categories(recommendation, options));
    }
    let texts = kept.texts_at(recommendation.l_cut);
    if cut && texts.of > 0 {
        reasons.push(match texts.kept == texts.of {
            true => format!("All {} texts stay the same, token by token.", texts.of),
            false => format!("{} of {} texts stay the same, token by token.", texts.kept, texts.of),
        });
    }
    reasons
}

fn answers_kept(at: Kept, below: Kept) -> String {
    let [lower, upper] = at.interval95();
    let below = match below.of {
        0 => String::new(),
        _ => format!("; one layer below, {}", below.kept),
    };
    format!(
        "Of {} answers that the full model gives, it keeps {}{below}. For other prompts, that puts the share kept between \
         {:.0} and {:.0} % (95 % interval).",
        at.of,
        at.kept,
        lower * 100.0,
        upper * 100.0
    )
}

/// The categories that lose the most of their answers.
fn categories(recommendation: &Recommendation, options: &Options) -> Option<String> {
    let losing = recommendation.categories.iter().filter(|category| category.answers_kept < options.kept);
    let losing: Vec<String> = losing
        .map(|category| {
            format!("{} ({:.0} % of {})", category.category, category.answers_kept * 100.0, category.answers)
        })
        .collect();
    (!losing.is_empty()).then(|| format!("Categories that keep fewer: {}.", losing.join(", ")))
}

fn not_judged(evidence: Evidence<'_>) -> String {
    let expected = evidence.prompts.iter().filter(|prompt| prompt.expected.is_some()).count();
    let why = match expected {
        0 => "No prompt of this run expects an answer".to_owned(),
        _ => format!("The full model gives none of the {expected} expected answers"),
    };
    format!(
        "{why}, so only distributions were judged, not answers. Prompts with \"expected\" let them be judged; `layerscope needle MODEL \
         --lengths 512,1k --write-prompts needles.jsonl` writes some to record."
    )
}
