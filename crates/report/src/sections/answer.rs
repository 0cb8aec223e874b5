//! The answer: the recommended cutoff, its cost, its savings and its uncertainty.

use super::{Place, cutoffs};
use crate::data::{Report, RunReport};
use crate::document::{Answer, Cell, Element, Fact, Section, plain};
use layerscope_cutoff::recommend::Verdict;

pub(super) fn section(report: &Report) -> Section {
    let mut blocks = vec![];
    for (index, run) in report.runs.iter().enumerate() {
        let place = Place { index, several: report.runs.len() > 1, run };
        if place.several {
            blocks.push(Element::Heading(run.name.clone()));
        }
        blocks.push(Element::Answer(answer(run, report)));
        blocks.push(Element::Table(cutoffs::categories(&place)));
        blocks.push(Element::Paragraph(plain(run.recommendation.caveat())));
        let mut frontier = Element::Figure(Box::new(cutoffs::divergence(&place, report)));
        place.name(&mut frontier);
        blocks.push(frontier);
        blocks.push(Element::Folded {
            title: "Why",
            items: run.recommendation.reasons.iter().map(|reason| plain(reason.clone())).collect(),
        });
    }
    Section { id: "answer".into(), title: "The answer".into(), blocks }
}

fn answer(run: &RunReport, report: &Report) -> Answer {
    let recommendation = &run.recommendation;
    let cuts = recommendation.verdict == Verdict::Cut;
    let headline = match cuts {
        true => format!("Cut at {} of {} layers", recommendation.l_cut, recommendation.layers),
        false => format!("Keep full depth: all {} layers", recommendation.layers),
    };
    let mut facts = vec![Fact {
        name: "Divergence",
        cell: Cell::figure(recommendation.kl),
        unit: "nats per token",
        note: format!(
            "mean KL(full ‖ cut); 95 % upper bound {}, tolerance {}",
            Cell::figure(recommendation.kl_upper95).shown(),
            report.tolerance
        ),
    }];
    if cuts {
        facts.push(Fact {
            name: "One layer below",
            cell: Cell::figure(recommendation.kl_below),
            unit: "nats per token",
            note: format!("at cutoff {}: how sharp the edge is", recommendation.l_cut - 1),
        });
    }
    facts.push(Fact {
        name: "Same top token",
        cell: Cell::percent(recommendation.top1),
        unit: "% of steps",
        note: "against the full model, same continuation".into(),
    });
    if recommendation.answers > 0 {
        let [lower, upper] = recommendation.answers_kept_ci95;
        facts.push(Fact {
            name: "Answers kept",
            cell: Cell::percent(recommendation.answers_kept),
            unit: "% of answers",
            note: format!(
                "of {} that the full model gives; 95 % interval {:.0} to {:.0} %",
                recommendation.answers,
                lower * 100.0,
                upper * 100.0
            ),
        });
    }
    if recommendation.text_unchanged.is_finite() {
        facts.push(Fact {
            name: "Texts unchanged",
            cell: Cell::percent(recommendation.text_unchanged),
            unit: "% of prompts",
            note: "token by token, over the recorded steps".into(),
        });
    }
    if cuts {
        facts.extend([
            Fact {
                name: "KV saved",
                cell: Cell::percent(recommendation.kv_saved),
                unit: "% of bytes",
                note: "at this run’s prompt lengths".into(),
            },
            Fact {
                name: "TTFT saved",
                cell: Cell::percent(recommendation.predicted_ttft_saved),
                unit: "%",
                note: "predicted from FLOPs".into(),
            },
            Fact {
                name: "TPOT saved",
                cell: Cell::percent(recommendation.predicted_tpot_saved),
                unit: "%",
                note: "predicted from bytes read".into(),
            },
        ]);
    }
    facts.push(Fact {
        name: "Based on",
        cell: Cell::count(recommendation.prompts),
        unit: if recommendation.prompts == 1 { "prompt" } else { "prompts" },
        note: match recommendation.categories.len() {
            1 => "of one category".into(),
            categories => format!("of {categories} categories"),
        },
    });
    Answer { run: run.manifest.model.name.clone(), headline, policy: recommendation.policy_name(), facts }
}
