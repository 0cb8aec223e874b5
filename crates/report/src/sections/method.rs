//! Definitions of all figures, with formulas and sources.

use crate::data::Report;
use crate::document::{Cell, Element, Inline, Section, Table, column, plain};
use layerscope_cutoff::recommend::Criterion;

/// Figure, formula, meaning.
const DEFINITIONS: [[&str; 3]; 17] = [
    ["layers", "ℓ = 0 … L−1", "The prompt has p tokens, positions 0 … p−1; N tokens are generated."],
    [
        "decode boundary",
        "position p−1",
        "The last prompt token is the first that decodes: it goes through all layers and its query yields the first generated token.",
    ],
    ["position-0 mass", "a₀", "Attention on position 0, where softmax leaves what it needs nowhere else."],
    ["prompt mass", "Σ aⱼ, j = 1 … p−2", "Decode-to-prefill attention mass."],
    ["decode mass", "Σ aⱼ, j ≥ p−1", "Attention on decode tokens. The three masses sum to 1."],
    [
        "conditional prompt entropy",
        "−Σ qⱼ ln qⱼ / ln(p−2), qⱼ = aⱼ / prompt mass",
        "0 on one token, 1 evenly; undefined where the prompt mass is at most 1e-6 or p < 4.",
    ],
    [
        "selectivity",
        "prompt mass · (1 − prompt entropy)",
        "Attention that picks tokens out of the prompt; per head and step, then averaged.",
    ],
    [
        "curvature",
        "mean of arccos(vₖ · vₖ₊₁), vₖ = (xₖ₊₁ − xₖ)/‖·‖",
        "Turning angle of the residual stream x after a block along positions k, degrees.",
    ],
    ["straightening", "curvature(ℓ) − curvature(0)", "Negative is straighter than after the first block."],
    [
        "logit lens KL",
        "KL(final ‖ unembed(norm(x)))",
        "How far the next token is from settled after a block, nats.",
    ],
    [
        "divergence of a cutoff",
        "mean over steps of KL(full ‖ cut)",
        "Next-token distributions with the prompt in layers 0 … c−1 only, against the full model’s, the continuation held fixed, nats per token.",
    ],
    ["same top token", "share of steps with equal argmax", "Of the same distributions."],
    [
        "text unchanged",
        "the greedy choice of every step is the full model’s",
        "Before the first other choice, both texts are the same computation, so no text is generated to know it.",
    ],
    [
        "answer kept",
        "the greedy text contains the expected answer, as the full model’s does",
        "A text that departs after the answer keeps it; one that departs before is generated under the cut.",
    ],
    ["ΔNLL", "NLL under the cut − NLL under the full model", "Mean over the continuation’s tokens, nats."],
    ["knockout KL", "mean over steps of KL(full ‖ prompt hidden at layer ℓ)", "Attention knockout."],
    [
        "divergence of a removed span",
        "mean over steps of KL(full ‖ span removed from layer ℓ on)",
        "The span’s rows stop where they enter layer ℓ; from there up no other token, of the prompt or generated, reads them. It may vanish from the smallest ℓ on at and above which this stays within the tolerance.",
    ],
];

/// What is asked of answers, in a sentence.
fn answers(report: &Report) -> String {
    let Some(run) = report.runs.first() else { return String::new() };
    let share = run.recommendation.kept_wanted * 100.0;
    let judged = |what: &str| {
        format!(
            "Of {what}, at least {share} % must be kept, and in no category so few that this would happen in less than 2.5 % of \
             cases if {share} % were kept (exact binomial test)."
        )
    };
    match run.recommendation.criterion {
        Criterion::Answers => {
            format!(
                "{} A run without such answers is judged by KL alone.",
                judged("the answers that the full model gives")
            )
        }
        Criterion::Text => judged("the full model’s texts"),
        Criterion::Kl => "Answers are not asked for.".to_owned(),
    }
}

pub(super) fn section(report: &Report) -> Section {
    let row = |[name, formula, meaning]: [&str; 3]| {
        [name, formula, meaning].map(|text| Cell::Text(text.into())).to_vec()
    };
    Section {
        id: "method".into(),
        title: "Method and definitions".into(),
        blocks: vec![
            Element::Paragraph(plain(
                "For the query of a generated token, a are its attention probabilities over the keys that it sees. Figures of a \
                 layer are means over heads and decode steps.",
            )),
            Element::Paragraph(vec![
                Inline::Strong("Sliding windows. ".into()),
                Inline::Plain(
                    "A layer with a window of w tokens sees the keys at t − w + 1 … t of a query at t, under every policy. Its masses \
                     are over these; its prompt entropy keeps the denominator ln(p−2), so that layers compare, and stays below 1. A \
                     cut or a knockout takes from it what the window still showed of the prompt. An anchor that the window has \
                     passed is not seen there, as in the full model; its keys and values are kept and counted all the same. What no \
                     decode query can see is striped in maps of tokens."
                        .into(),
                ),
            ]),
            Element::Table(Table {
                id: "definitions".into(),
                caption: "What every figure means".into(),
                columns: vec![column("figure", ""), column("formula", ""), column("meaning", "")],
                rows: DEFINITIONS.into_iter().map(row).collect(),
            }),
            Element::Paragraph(vec![
                Inline::Strong("Why every cutoff is exact. ".into()),
                Inline::Plain(
                    "A prompt token’s states below layer c do not depend on what happens above, so the keys and values that a cut \
                     at c leaves equal the full model’s; position 0 sees itself alone, so its own do at every layer. With the \
                     continuation held fixed, the generated tokens’ states where they enter layer c equal the full model’s too. \
                     One recorded run therefore yields every cutoff: each runs only layers c … L−1, over the generated tokens."
                        .into(),
                ),
            ]),
            Element::Paragraph(vec![
                Inline::Strong("How a cutoff is recommended. ".into()),
                Inline::Plain(format!(
                    "The smallest c such that at c and every larger cutoff the mean KL over prompts is at most {} nats, and so is \
                     its one-sided 95 % bound from 2,000 bootstrap resamples of the prompts (percentile method), overall and in \
                     each category of at least three prompts; smaller categories are judged by their mean. A cutoff that saves \
                     less than 5 % of the KV bytes is not recommended. {}",
                    report.tolerance,
                    answers(report)
                )),
            ]),
            Element::Paragraph(vec![
                Inline::Strong("The cost model. ".into()),
                Inline::Plain(
                    "With b bytes of one token’s K and V at one layer, a anchors and n decode tokens: KV(full) = (p + n)·L·b and \
                     KV(cut) = (p − a)·c·b + (a + n)·L·b; a layer with a window of w keys keeps the last w − 1 prompt tokens. FLOPs \
                     count two for each weight and row, of experts those that a token chooses, and 4·H·d_head for each key that a row \
                     attends to. TTFT is predicted to go with the FLOPs up to the first token, TPOT with the bytes of weights and KV \
                     that a step reads. Predictions are called so; measurements are not."
                        .into(),
                ),
            ]),
            Element::Paragraph(vec![
                Inline::Strong("Sources. ".into()),
                Inline::Plain("Trajectory straightening: Hénaff et al., 2021, and ".into()),
                Inline::Link {
                    text: "Hosseini & Fedorenko, 2023".into(),
                    url: "https://arxiv.org/abs/2311.04930",
                },
                Inline::Plain(". Attention on position 0: ".into()),
                Inline::Link { text: "Xiao et al., 2023".into(), url: "https://arxiv.org/abs/2309.17453" },
                Inline::Plain(". Spans: ".into()),
                Inline::Link { text: "Long et al., 2025".into(), url: "https://arxiv.org/abs/2508.06447" },
                Inline::Plain(
                    ". Logit lens: nostalgebraist, 2020. Bootstrap: Efron & Tibshirani, 1993, chapter 13. Colours: Okabe & Ito, \
                     2008; viridis: van der Walt & Smith, 2015."
                        .into(),
                ),
            ]),
        ],
    }
}
