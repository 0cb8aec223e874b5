//! The report of a sweep: which model, at which cutoff, for each prompt set.

use crate::document::{
    Answer, Cell, Document, Drawing, Element, Fact, Figure, Inline, Section, Table, column, plain,
};
use layerscope_cutoff::recommend::Criterion;
use layerscope_engine::readable_bytes;
use layerscope_figures::{Along, Chart, Curve};
use layerscope_sweep::{Candidate, Kind, Results, Row, Workload, rank};

impl Document {
    /// Builds the document of a sweep's results.
    pub(crate) fn of_sweep(results: &Results) -> Self {
        let ranked = rank(results);
        let mut sections = vec![answer(results, &ranked)];
        if !ranked.is_empty() {
            sections.push(frontiers(results, &ranked));
            sections.push(categories(results, &ranked));
        }
        if results.rows.iter().any(|row| row.kind == Kind::Policy) {
            sections.push(policies(results, &ranked));
        }
        sections.extend([method(results), provenance(results)]);
        let runs = ranked.iter().map(|of| of.ranked.len()).sum::<usize>();
        let counted =
            |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        Self {
            title: "Which model, at which cutoff".into(),
            subtitle: format!(
                "{} on {}; layerscope {}",
                counted(runs, "run"),
                counted(ranked.len(), "prompt set"),
                results.layerscope
            ),
            sections,
        }
    }
}

fn answer(results: &Results, ranked: &[Workload<'_>]) -> Section {
    let mut blocks = vec![];
    if ranked.is_empty() {
        blocks.push(Element::Paragraph(plain("No run is finished, so there is nothing to rank.")));
    }
    for (index, workload) in ranked.iter().enumerate() {
        let Some(best) = workload.ranked.first() else { continue };
        blocks.push(Element::Heading(workload.prompt_set.to_owned()));
        blocks.push(Element::Answer(best_answer(best, results)));
        blocks.extend(cheaper(workload).map(Element::Paragraph));
        blocks.push(Element::Table(ranking(index, workload)));
    }
    if ranked.iter().any(|of| of.ranked.iter().any(|candidate| candidate.right.is_nan())) {
        blocks.push(Element::Paragraph(plain(
            "Where prompts expect no answer, runs are ranked by their KV alone: KL compares a model with itself and says nothing \
             of which model writes better texts. Add \"expected\" to the prompts to rank by answers.",
        )));
    }
    if !results.notes.is_empty() {
        blocks.push(Element::Heading("Left out".into()));
        blocks.push(Element::List(
            results.notes.iter().map(|note| vec![Inline::Foreign(note.clone())]).collect(),
        ));
    }
    Section { id: "answer".into(), title: "The answer".into(), blocks }
}

/// The first of a ranking.
fn best_answer(best: &Candidate<'_>, results: &Results) -> Answer {
    let row = best.row;
    let cuts = row.cutoff.is_some_and(|cutoff| cutoff < row.layers);
    let mut facts = vec![];
    if best.right.is_finite() {
        let [lower, upper] = best.right_ci95.map(|share| share * 100.0);
        facts.push(Fact {
            name: "Right answers",
            cell: Cell::percent(best.right),
            unit: "% of prompts",
            note: format!(
                "{} of {}; 95 % interval {lower:.0} to {upper:.0} %",
                row.right.unwrap_or_default(),
                row.expected
            ),
        });
    }
    facts.extend([
        Fact {
            name: "Divergence",
            cell: Cell::figure(row.kl),
            unit: "nats per token",
            note: format!(
                "from its own full model; 95 % upper bound {}, tolerance {}",
                Cell::figure(row.kl_upper95).shown(),
                results.tolerance
            ),
        },
        Fact {
            name: "KV",
            cell: bytes(row.kv_bytes),
            unit: "per prompt",
            note: format!("{} at full depth", readable_bytes(row.kv_bytes_full)),
        },
        Fact {
            name: "KV saved",
            cell: Cell::percent(row.kv_saved),
            unit: "% of bytes",
            note: "at these prompts’ lengths".into(),
        },
        Fact {
            name: "TTFT saved",
            cell: Cell::percent(row.predicted_ttft_saved),
            unit: "%",
            note: "predicted from FLOPs".into(),
        },
    ]);
    let with = row.adapter.as_ref().map_or(String::new(), |adapter| format!(" with {adapter}"));
    let model = format!("{}{with}", row.model);
    let headline = match (row.cutoff, cuts) {
        (Some(cutoff), true) => format!("{model}: cut at {cutoff} of {} layers", row.layers),
        _ => format!("{model}: keep full depth, all {} layers", row.layers),
    };
    Answer { run: row.run.clone(), headline, policy: cuts.then(|| row.policy.clone()), facts }
}

/// The one that may answer as well with less KV, where that is another.
fn cheaper(workload: &Workload<'_>) -> Option<Vec<Inline>> {
    let (best, cheapest) = (workload.ranked.first()?, workload.ranked.get(workload.cheapest)?);
    (workload.cheapest > 0).then(|| {
        vec![
            Inline::Strong("Less KV, perhaps as many answers: ".into()),
            Inline::Foreign(cheapest.row.run.clone()),
            Inline::Plain(format!(
                " with {} of {} right and {} of KV per prompt. Its 95 % interval, {:.0} to {:.0} %, reaches the {:.0} % of the \
                 first; more prompts would tell them apart.",
                cheapest.row.right.unwrap_or_default(),
                cheapest.row.expected,
                readable_bytes(cheapest.row.kv_bytes),
                cheapest.right_ci95[0] * 100.0,
                cheapest.right_ci95[1] * 100.0,
                best.right * 100.0
            )),
        ]
    })
}

fn ranking(index: usize, workload: &Workload<'_>) -> Table {
    let row = |(place, of): (usize, &Candidate<'_>)| {
        let row = of.row;
        let interval = match of.right_ci95 {
            [lower, upper] if lower.is_finite() => format!("{:.0} to {:.0}", lower * 100.0, upper * 100.0),
            _ => String::new(),
        };
        vec![
            Cell::count(place + 1),
            Cell::Foreign(row.run.clone()),
            row.cutoff.map_or(Cell::Text(String::new()), Cell::count),
            Cell::count(row.layers),
            Cell::percent(of.right),
            Cell::Text(interval),
            answers_kept(row),
            Cell::figure(row.kl),
            Cell::figure(row.kl_upper95),
            Cell::percent(row.text_unchanged),
            bytes(row.kv_bytes),
            Cell::percent(row.kv_saved),
            Cell::figure(row.full_ttft_s),
            Cell::count(row.prompts),
        ]
    };
    Table {
        id: format!("ranking-{}", index + 1),
        caption: format!("{}: every run at the cutoff that it recommends, best first", workload.prompt_set),
        columns: vec![
            column("", ""),
            column("run", ""),
            column("L_cut", "layers"),
            column("L", "layers"),
            column("right", "%"),
            column("95 % interval", "%"),
            column("answers kept", ""),
            column("KL", "nats"),
            column("95 % bound", "nats"),
            column("texts unchanged", "%"),
            column("KV per prompt", ""),
            column("KV saved", "%"),
            column("TTFT at full depth", "s"),
            column("prompts", ""),
        ],
        rows: workload.ranked.iter().enumerate().map(row).collect(),
    }
}

/// How many of the full model's answers a row keeps.
fn answers_kept(row: &Row) -> Cell {
    Cell::Text(match row.answers {
        Some(of) if of > 0 => format!("{:.0} of {of}", row.answers_kept * of as f64),
        _ => String::new(),
    })
}

fn bytes(value: f64) -> Cell {
    Cell::Figure { value, shown: if value.is_finite() { readable_bytes(value) } else { "–".into() } }
}

/// The rows of a run's cutoffs 1 … L over all prompts, with the results' anchor.
fn cutoffs<'a>(results: &'a Results, run: &str) -> Vec<&'a Row> {
    let is_one = |row: &&Row| {
        row.run == run
            && row.category.is_none()
            && row.kind == Kind::Cutoff
            && row.anchor == Some(results.anchor)
    };
    results.rows.iter().filter(is_one).collect()
}

fn frontiers(results: &Results, ranked: &[Workload<'_>]) -> Section {
    let figures = ranked
        .iter()
        .enumerate()
        .map(|(index, workload)| Element::Figure(Box::new(frontier(results, index, workload))));
    Section { id: "frontiers".into(), title: "What each cutoff costs".into(), blocks: figures.collect() }
}

/// Mean KL by cutoff, a line for each run; by relative depth where models differ in theirs.
fn frontier(results: &Results, index: usize, workload: &Workload<'_>) -> Figure {
    let runs: Vec<(&str, Vec<&Row>)> =
        workload.ranked.iter().map(|of| (of.row.run.as_str(), cutoffs(results, &of.row.run))).collect();
    let layers = runs.iter().map(|(_, rows)| rows.len()).max().unwrap_or(0);
    let same = runs.iter().all(|(_, rows)| rows.len() == layers);
    let along = match same {
        true => Along::Cutoffs(layers),
        false => Along::Values { name: "cutoff, % of layers".into(), range: [0.0, 100.0] },
    };
    let title = format!("{}: divergence by cutoff", workload.prompt_set);
    let mut chart = Chart::new(title, "mean KL(full ‖ cut), nats per token", along);
    chart.logarithmic = true;
    chart.level = Some((results.tolerance, format!("tolerance {}", results.tolerance)))
        .filter(|(tolerance, _)| *tolerance > 0.0);
    chart.description = "Mean KL divergence from the full model by cutoff, a line for each run, logarithmic; bands reach to the \
                         one-sided 95 % bootstrap bound."
        .into();
    let mut columns = vec![column("cutoff", "layers")];
    for (index, (run, rows)) in runs.iter().enumerate() {
        let of = |figure: fn(&Row) -> f64| rows.iter().map(|row| figure(row)).collect::<Vec<f64>>();
        let kl = of(|row| row.kl);
        let depth = (1..=kl.len()).map(|cutoff| cutoff as f64 / kl.len() as f64 * 100.0).collect();
        let curve = Curve::series(*run, index, kl.clone()).with_band(kl, of(|row| row.kl_upper95));
        chart.curves.push(if same { curve } else { curve.placed(depth) });
        columns.push(column(*run, "nats"));
    }
    let row = |cutoff: usize| {
        let kl = runs.iter().map(|(_, rows)| match rows.get(cutoff) {
            Some(row) => Cell::figure(row.kl),
            None => Cell::Text(String::new()),
        });
        std::iter::once(Cell::count(cutoff + 1)).chain(kl).collect()
    };
    let id = format!("frontier-{}", index + 1);
    let table = Table {
        id: format!("{id}-data"),
        caption: format!("{}: divergence by cutoff", workload.prompt_set),
        columns,
        rows: (0..layers).map(row).collect(),
    };
    Figure { id, drawing: Drawing::Chart(chart), table, wide: true }
}

/// Each category at the recommended cutoff, and the cutoff from which it passes on its own.
fn categories(results: &Results, ranked: &[Workload<'_>]) -> Section {
    let tables = ranked.iter().enumerate().map(|(index, workload)| {
        let of_run = |of: &Candidate<'_>| {
            let run = of.row.run.clone();
            let is_one = move |row: &&Row| row.run == run && row.category.is_some() && row.recommended;
            results.rows.iter().filter(is_one).map(|row| category(results, row)).collect::<Vec<_>>()
        };
        Element::Table(Table {
            id: format!("categories-{}", index + 1),
            caption: format!("{}: categories at the recommended cutoffs", workload.prompt_set),
            columns: vec![
                column("run", ""),
                column("category", ""),
                column("prompts", ""),
                column("passes from", "layers"),
                column("KL", "nats"),
                column("95 % bound", "nats"),
                column("right", ""),
                column("answers kept", ""),
                column("texts unchanged", "%"),
            ],
            rows: workload.ranked.iter().flat_map(of_run).collect(),
        })
    });
    Section { id: "categories".into(), title: "By category".into(), blocks: tables.collect() }
}

fn category(results: &Results, row: &Row) -> Vec<Cell> {
    let of_category = results.rows.iter().filter(|other| {
        other.run == row.run && other.category == row.category && other.anchor == Some(results.anchor)
    });
    // From the deepest cutoff down, as long as all pass.
    let mut descending: Vec<&Row> = of_category.collect();
    descending.reverse();
    let passing = descending.iter().take_while(|other| other.passes == Some(true)).last();
    vec![
        Cell::Foreign(row.run.clone()),
        Cell::Foreign(row.category.clone().unwrap_or_default()),
        Cell::count(row.prompts),
        passing.and_then(|other| other.cutoff).map_or(Cell::Text(String::new()), Cell::count),
        Cell::figure(row.kl),
        Cell::figure(row.kl_upper95),
        Cell::Text(match row.right {
            Some(right) if row.expected > 0 => format!("{right} of {}", row.expected),
            _ => String::new(),
        }),
        answers_kept(row),
        Cell::percent(row.text_unchanged),
    ]
}

/// Recorded policies beside each run's recommended cutoff, least KV first.
fn policies(results: &Results, ranked: &[Workload<'_>]) -> Section {
    let mut blocks = vec![Element::Paragraph(plain(
        "Policies that were recorded besides, along the full model’s texts, and each run’s recommended cutoff; least KV first. What \
         they do to texts and answers is not known: layerscope eval judges that.",
    ))];
    for (index, workload) in ranked.iter().enumerate() {
        let is_one = |row: &&Row| {
            row.prompt_set == workload.prompt_set
                && row.category.is_none()
                && (row.kind == Kind::Policy || row.recommended)
        };
        let mut rows: Vec<&Row> = results.rows.iter().filter(is_one).collect();
        rows.sort_by(|a, b| a.kv_bytes.total_cmp(&b.kv_bytes));
        let row = |row: &&Row| {
            vec![
                Cell::Foreign(row.run.clone()),
                Cell::Foreign(row.policy.clone()),
                bytes(row.kv_bytes),
                Cell::percent(row.kv_saved),
                Cell::figure(row.kl),
                Cell::figure(row.kl_upper95),
                Cell::percent(row.top1),
                Cell::percent(row.predicted_ttft_saved),
                Cell::percent(row.predicted_tpot_saved),
                Cell::count(row.prompts),
            ]
        };
        blocks.push(Element::Table(Table {
            id: format!("policies-{}", index + 1),
            caption: format!("{}: policies by KV", workload.prompt_set),
            columns: vec![
                column("run", ""),
                column("policy", ""),
                column("KV per prompt", ""),
                column("KV saved", "%"),
                column("KL", "nats"),
                column("95 % bound", "nats"),
                column("same top token", "% of steps"),
                column("TTFT saved, predicted", "%"),
                column("TPOT saved, predicted", "%"),
                column("prompts", ""),
            ],
            rows: rows.iter().map(row).collect(),
        }));
    }
    Section { id: "policies".into(), title: "Under policies".into(), blocks }
}

fn method(results: &Results) -> Section {
    let holds = match results.criterion {
        Criterion::Answers => {
            format!(", and at least {:.0} % of the full model’s answers are kept", results.kept * 100.0)
        }
        Criterion::Text => format!(", and at least {:.0} % of the texts stay the same", results.kept * 100.0),
        Criterion::Kl => String::new(),
    };
    let items = [
        format!(
            "Each run’s cutoff is the smallest at which the mean KL divergence from its own full model stays within {} nats with its \
             95 % bootstrap bound, over all prompts and in each category{holds}. Where it would save less than 5 % of the KV, full \
             depth is kept.",
            results.tolerance
        ),
        "Runs of a prompt set are ranked by the share of prompts whose text at that cutoff has the expected answer; of as many, and \
         where none is expected, the one with less KV per prompt comes first. The intervals are Wilson’s. Prompts that could \
         not be recorded count as wrong, and so do, below full depth, those that the full model answers wrongly."
            .into(),
        "KV is what remains after the last decode token, by the cost model, mean over the prompts. TTFT at full depth was measured \
         while recording, on whatever machine ran the job; savings of TTFT and TPOT are predictions."
            .into(),
    ];
    Section {
        id: "method".into(),
        title: "Method".into(),
        blocks: vec![Element::List(items.into_iter().map(plain).collect())],
    }
}

fn provenance(results: &Results) -> Section {
    let mut runs: Vec<&Row> = vec![];
    for row in &results.rows {
        if !runs.iter().any(|known| known.run == row.run) {
            runs.push(row);
        }
    }
    let row = |row: &&Row| {
        vec![
            Cell::Foreign(row.run.clone()),
            Cell::Foreign(row.model_sha256.clone()),
            Cell::Foreign(row.weights.clone()),
            Cell::Foreign(row.device.clone()),
            Cell::Foreign(row.prompts_sha256.clone()),
            Cell::count(row.max_new_tokens),
            Cell::count(row.prompts_failed),
            Cell::figure(row.record_s),
            Cell::Text(row.layerscope.clone()),
        ]
    };
    let table = Table {
        id: "provenance-runs".into(),
        caption: "The runs; each is a folder of its name, which layerscope report tells all about".into(),
        columns: vec![
            column("run", ""),
            column("SHA-256 of the weights", ""),
            column("weights", ""),
            column("device", ""),
            column("SHA-256 of the prompts", ""),
            column("decode steps, at most", ""),
            column("failed prompts", ""),
            column("recorded in", "s"),
            column("layerscope", ""),
        ],
        rows: runs.iter().map(row).collect(),
    };
    Section { id: "provenance".into(), title: "Provenance".into(), blocks: vec![Element::Table(table)] }
}
