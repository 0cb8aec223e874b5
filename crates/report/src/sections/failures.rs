//! The prompts that diverge most at the recommended cutoff.

use super::Place;
use crate::data::FailureCase;
use crate::document::{Element, Inline, Texts, four_digits, plain};

pub(super) fn blocks(place: &Place<'_>) -> Vec<Element> {
    let recommendation = &place.run.recommendation;
    if recommendation.l_cut == recommendation.layers {
        return vec![Element::Paragraph(plain("None: full depth is kept, so nothing diverges."))];
    }
    if place.run.failure_cases.is_empty() {
        return vec![Element::Paragraph(plain("None: no prompt has a defined divergence at this cutoff."))];
    }
    let mut blocks = vec![Element::Paragraph(plain(format!(
        "The prompts that diverge most at cutoff {}, worst first: the full model's greedy continuation, then the one \
         under the cutoff, generated anew from the prompt; the first token that differs is marked.",
        recommendation.l_cut
    )))];
    for case in &place.run.failure_cases {
        blocks.push(Element::Heading(format!("Prompt {}", case.prompt_id)));
        blocks.push(Element::Paragraph(summary(case)));
        let mut sides = vec![("full depth".to_owned(), case.full.clone())];
        sides.extend(case.cut.clone().map(|cut| (format!("cutoff {}", recommendation.l_cut), cut)));
        blocks.push(Element::Texts(Texts {
            prompt_id: case.prompt_id.clone(),
            prompt: case.prompt.clone(),
            sides,
            first_difference: case.first_difference,
        }));
    }
    blocks
}

fn summary(case: &FailureCase) -> Vec<Inline> {
    let mut words = vec![
        Inline::Plain("Category ".into()),
        Inline::Foreign(case.category.clone()),
        Inline::Plain(format!(
            ": KL {} nats, same top token at {:.1} % of the steps, ΔNLL {} nats. ",
            four_digits(case.at_cutoff.kl),
            case.at_cutoff.top1 * 100.0,
            four_digits(case.at_cutoff.dnll)
        )),
    ];
    words.extend(match (&case.cut, case.first_difference) {
        (None, _) if case.answer_given => {
            vec![Inline::Plain("Its continuation was given, so there is no text to compare.".into())]
        }
        (None, _) => vec![Inline::Plain(
            "Its text under the cutoff was not generated; name the model with --model to have it.".into(),
        )],
        (Some(_), None) => vec![Inline::Plain(
            "Both texts are the same: the distributions moved, but never the most likely token.".into(),
        )],
        (Some(cut), Some(step)) => {
            let token = |tokens: &[String]| match tokens.get(step) {
                Some(token) => Inline::Foreign(format!("“{}”", layerscope_figures::token_label(token))),
                None => Inline::Plain("the end".into()),
            };
            vec![
                Inline::Plain(format!("Outputs diverge at token {step}: ")),
                token(&case.full),
                Inline::Plain(" at full depth, ".into()),
                token(cut),
                Inline::Plain(" under the cutoff.".into()),
            ]
        }
    });
    if case.loops == Some(true) {
        words.push(Inline::Plain(" The text under the cutoff ends in a loop.".into()));
    }
    words
}
