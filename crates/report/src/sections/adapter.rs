//! A run with an adapter: how it was trained, and what changed against a run of the same model without it.

use super::budgets;
use crate::data::{Report, RunReport};
use crate::document::{Cell, Element, Inline, Table, Texts, column, four_digits, plain};
use layerscope_cutoff::recommend::{FrontierGroup, FrontierSummary};
use layerscope_diagnostics::run::AdapterRecord;
use layerscope_engine::Policy;

/// Rows of a run's table of its model.
pub(super) fn rows(adapter: &AdapterRecord) -> Vec<(&'static str, Cell)> {
    let words = |text: &str| Cell::Text(text.to_owned());
    let mut rows = vec![
        ("adapter", Cell::Foreign(adapter.name.clone())),
        ("rows that the adapter acts on", Cell::Foreign(adapter.rows.clone())),
        (
            "policy that it was made for",
            adapter.policy.clone().map_or_else(|| words("not known"), Cell::Foreign),
        ),
    ];
    if let Some(training) = &adapter.training {
        rows.extend([
            ("training, steps", Cell::count(training.steps)),
            ("training, decode rows", Cell::count(training.tokens)),
            ("training, minutes", Cell::figure(training.seconds / 60.0)),
            ("prompts trained on", Cell::count(training.prompts)),
            ("prompts held out of training", Cell::count(training.held_out)),
            ("held-out KL under the policy, before, nats", Cell::figure(training.kl_before)),
            ("held-out KL under the policy, after, nats", Cell::figure(training.kl_after)),
            (
                "held-out KL at full depth, after, nats",
                training.kl_full_depth.map_or_else(|| words("not measured"), Cell::figure),
            ),
        ]);
    }
    rows
}

/// What an adapter changed, where the second run is the first one's model with it; nothing elsewhere.
pub(super) fn before_and_after(report: &Report, second: usize) -> Vec<Element> {
    let [before, after] = [&report.runs[0], &report.runs[second]];
    let (Some(adapter), None) = (&after.manifest.model.adapter, &before.manifest.model.adapter) else {
        return vec![];
    };
    if before.manifest.model.sha256 != after.manifest.model.sha256 {
        return vec![];
    }
    let of = |run: &'_ RunReport| run.frontiers.iter().position(|frontier| frontier.anchor == report.anchor);
    let (Some(first), Some(last)) = (of(before), of(after)) else { return vec![] };
    let frontiers = [&before.frontiers[first], &after.frontiers[last]];
    let layers = after.manifest.model.layers;
    let made_for = adapter.policy.as_ref().and_then(|policy| Policy::parse(policy, layers).ok());
    let cutoff = made_for.and_then(|policy| Some(policy.visibility()?.cutoff));
    let cutoff = cutoff.filter(|cutoff| *cutoff < layers).unwrap_or(after.recommendation.l_cut);
    let mut blocks = vec![
        Element::Heading("Before and after".into()),
        Element::Paragraph(sentence(adapter, frontiers, layers)),
        Element::Table(by_category(frontiers, cutoff, second)),
    ];
    if !before.budgets.is_empty() && !after.budgets.is_empty() {
        let ids = ["budgets", "budgets-data"].map(|id| format!("adapter-{second}-{id}"));
        let curves =
            [budgets::named(&before.budgets, ""), budgets::named(&after.budgets, ", with the adapter")];
        let figure = budgets::frontier(ids, "Budget frontier, before and after", &curves.concat(), report);
        blocks.push(Element::Figure(Box::new(figure)));
    }
    blocks.extend(texts(before, after));
    blocks
}

/// What training took, and what the adapter does to the model at full depth.
fn sentence(adapter: &AdapterRecord, [_, after]: [&FrontierSummary; 2], layers: usize) -> Vec<Inline> {
    let mut words =
        vec![Inline::Plain("The second run has the adapter ".into()), Inline::Foreign(adapter.name.clone())];
    if let Some(policy) = &adapter.policy {
        words.extend([Inline::Plain(", made for ".into()), Inline::Foreign(policy.clone())]);
    }
    if let Some(training) = &adapter.training {
        words.push(Inline::Plain(format!(
            ": {} steps on {} prompts, {} decode rows in {} minutes; on {} held-out prompts the KL divergence fell from {} to {} \
             nats",
            training.steps,
            training.prompts,
            training.tokens,
            four_digits(training.seconds / 60.0),
            training.held_out,
            four_digits(training.kl_before),
            four_digits(training.kl_after)
        )));
    }
    words.push(Inline::Plain(format!(
        ". At full depth, where it is not needed, the model with the adapter is {} nats from the one without.",
        four_digits(after.overall().at(layers).kl)
    )));
    words
}

fn by_category([before, after]: [&FrontierSummary; 2], cutoff: usize, second: usize) -> Table {
    let row = |name: Cell, groups: [Option<&FrontierGroup>; 2]| {
        let at = |figure: &dyn Fn(&FrontierGroup) -> f64| {
            groups.map(|group| group.map_or(f64::NAN, figure)).to_vec()
        };
        let percent = |shares: Vec<f64>| shares.into_iter().map(Cell::percent);
        let prompts = groups[1].map_or(0, |group| group.prompts);
        [name, Cell::count(prompts)]
            .into_iter()
            .chain(at(&|group| group.at(cutoff).kl).into_iter().map(Cell::figure))
            .chain(percent(at(&|group| group.at(cutoff).top1)))
            .chain(percent(at(&|group| group.kept.answers_at(cutoff).share())))
            .collect::<Vec<Cell>>()
    };
    let named = |of: &'_ FrontierGroup| of.category.clone().unwrap_or_default();
    let mut rows = vec![row(Cell::Text("all".into()), [Some(before.overall()), Some(after.overall())])];
    rows.extend(after.categories().iter().map(|group| {
        let same = before.categories().iter().find(|other| other.category == group.category);
        row(Cell::Foreign(named(group)), [same, Some(group)])
    }));
    Table {
        id: format!("adapter-{second}-categories"),
        caption: format!("Before and after at cutoff {cutoff}, by category"),
        columns: vec![
            column("category", ""),
            column("prompts", ""),
            column("KL before", "nats"),
            column("KL after", "nats"),
            column("same top token before", "%"),
            column("same top token after", "%"),
            column("answers kept before", "%"),
            column("answers kept after", "%"),
        ],
        rows,
    }
}

/// Texts of the prompts that both runs have generated under their cutoffs.
fn texts(before: &RunReport, after: &RunReport) -> Vec<Element> {
    let mut blocks = vec![];
    for case in &after.failure_cases {
        let same = before.failure_cases.iter().find(|other| other.prompt_id == case.prompt_id);
        let Some((earlier, cut)) = same.and_then(|same| same.cut.as_ref()).zip(case.cut.as_ref()) else {
            continue;
        };
        blocks.push(Element::Heading(format!("Prompt {}", case.prompt_id)));
        blocks.push(Element::Texts(Texts {
            prompt_id: case.prompt_id.clone(),
            prompt: case.prompt.clone(),
            sides: vec![
                ("full depth".to_owned(), case.full.clone()),
                (format!("cutoff {}, without the adapter", before.recommendation.l_cut), earlier.clone()),
                (format!("cutoff {}, with the adapter", after.recommendation.l_cut), cut.clone()),
            ],
            first_difference: None,
        }));
    }
    if !blocks.is_empty() {
        let words = "The prompts that diverge most in both runs: the full model's text, and the texts under the cutoff that is \
                     recommended for each run.";
        blocks.insert(0, Element::Paragraph(plain(words)));
    }
    blocks
}
