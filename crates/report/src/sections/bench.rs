//! Measured times and memory of policies, if the run folder has them.

use super::Place;
use crate::document::{Cell, Column, Drawing, Element, Figure, Inline, Table, column, plain};
use crate::policies::{compared, trade_off};
use layerscope_bench::{BenchReport, Measurement, Quality};
use layerscope_figures::{Along, Chart, Curve, Ink, Style, TradeOff, TradeOffPoint, TradeOffRow};

/// A figure of a measurement.
type FigureOf = fn(&Measurement) -> f64;

pub(super) fn blocks(place: &Place<'_>) -> Vec<Element> {
    let Some(bench) = &place.run.bench else { return vec![] };
    let machine = &bench.machine;
    let mut blocks = vec![
        Element::Paragraph(vec![
            Inline::Plain("Measured by layerscope bench on ".into()),
            Inline::Foreign(
                machine
                    .gpu
                    .clone()
                    .or_else(|| machine.cpu.clone())
                    .unwrap_or_else(|| "an unknown processor".into()),
            ),
            Inline::Plain(format!(
                ", {} threads: medians, beside what the cost model predicts. Every repeat runs each policy once.",
                machine.threads
            )),
        ]),
        Element::Figure(Box::new(by_length(
            place,
            bench,
            "ttft",
            "Time to first token",
            |m| m.ttft_s.median,
            1.0,
            "s",
        ))),
        Element::Figure(Box::new(by_length(
            place,
            bench,
            "tpot",
            "Time per output token",
            |m| m.tpot_s.median,
            1e3,
            "ms",
        ))),
    ];
    blocks.extend(quality(place, bench));
    blocks.push(Element::Table(table(place, bench)));
    if bench.interrupted {
        blocks.push(Element::Paragraph(plain(
            "The measurement was broken off: the last figures are based on fewer repeats.",
        )));
    }
    if !bench.notes.is_empty() {
        blocks.push(Element::List(
            bench.notes.iter().map(|note| vec![Inline::Foreign(note.clone())]).collect(),
        ));
    }
    blocks
}

/// Quality against cost, a figure per length; empty if quality was not measured.
fn quality(place: &Place<'_>, bench: &BenchReport) -> Vec<Element> {
    let Some(all) = trade_off(bench) else { return vec![] };
    let lengths = compared(bench);
    let prompts =
        lengths.iter().find_map(|(_, results)| Some(results.first()?.quality?.prompts)).unwrap_or(0);
    let mut blocks = vec![Element::Paragraph(plain(format!(
        "Quality: each policy is fed the full model’s own greedy continuation of prompts that hide a number ({prompts} at \
         each length), and its next-token distributions are compared with the full model’s at every step; then it generates \
         by itself, and the number is looked for in its text."
    )))];
    for ((full, results), row) in lengths.iter().zip(&all.rows) {
        let title = format!("Quality and cost at {}", row.name);
        let id = place.id(&format!("bench-quality-{}", full.length));
        let table = Table {
            id: format!("{id}-data"),
            caption: title.clone(),
            columns: quality_columns(&all.costs),
            rows: results
                .iter()
                .zip(&row.points)
                .map(|(result, point)| quality_cells(result, point))
                .collect(),
        };
        let row = TradeOffRow { name: String::new(), ..row.clone() };
        let drawing = Drawing::TradeOff(TradeOff { title, rows: vec![row], ..all.clone() });
        blocks.push(Element::Figure(Box::new(Figure { id, drawing, table, wide: true })));
    }
    blocks
}

fn quality_columns(costs: &[String]) -> Vec<Column> {
    let mut columns = vec![
        column("policy", ""),
        column("KL", "nats"),
        column("same top token", "%"),
        column("ΔNLL", "nats"),
        column("number found", "%"),
        column("prompts", ""),
    ];
    columns.extend(costs.iter().map(|cost| column(cost, "")));
    columns
}

fn quality_cells(result: &Measurement, point: &TradeOffPoint) -> Vec<Cell> {
    let figure = |value: fn(&Quality) -> f64| result.quality.as_ref().map_or(f64::NAN, value);
    let mut cells = vec![
        Cell::Foreign(result.policy.clone()),
        Cell::figure(figure(|quality| quality.kl)),
        Cell::percent(figure(|quality| quality.top1)),
        Cell::figure(figure(|quality| quality.dnll)),
        Cell::percent(figure(|quality| quality.found)),
        Cell::count(result.quality.map_or(0, |quality| quality.prompts)),
    ];
    cells.extend(point.costs.iter().map(|cost| Cell::figure(*cost)));
    cells
}

fn policies(bench: &BenchReport) -> Vec<&str> {
    let mut policies: Vec<&str> = vec![];
    for measurement in &bench.results {
        if !policies.contains(&measurement.policy.as_str()) {
            policies.push(&measurement.policy);
        }
    }
    policies
}

fn by_length(
    place: &Place<'_>,
    bench: &BenchReport,
    id: &str,
    title: &str,
    figure: FigureOf,
    scale: f64,
    unit: &str,
) -> Figure {
    let mut lengths: Vec<usize> = bench.results.iter().map(|measurement| measurement.length).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let longest = lengths.last().copied().unwrap_or(1) as f64;
    let along = Along::Values { name: "prompt tokens".into(), range: [0.0, longest * 1.02] };
    let mut chart = Chart::new(title, format!("{unit}, median"), along);
    chart.range = Some([0.0, 0.0]);
    chart.description = format!("{title} by prompt length, median over repeats, a line for each policy.");
    let (mut columns, policies) = (vec![column("prompt tokens", "")], policies(bench));
    let of = |policy: &str, length: usize| {
        let found = bench.results.iter().find(|m| m.policy == policy && m.length == length);
        found.map_or(f64::NAN, |measurement| figure(measurement) * scale)
    };
    for (index, policy) in policies.iter().enumerate() {
        let values = lengths.iter().map(|length| of(policy, *length)).collect();
        let at = lengths.iter().map(|length| *length as f64).collect();
        let curve = Curve::new(*policy, Ink::Series(index), values).placed(at);
        chart.curves.push(curve.styled(Style::Marked));
        columns.push(column(*policy, unit));
    }
    let row = |length: &usize| {
        let figures = policies.iter().map(|policy| Cell::figure(of(policy, *length)));
        std::iter::once(Cell::count(*length)).chain(figures).collect()
    };
    let id = place.id(&format!("bench-{id}"));
    let table = Table {
        id: format!("{id}-data"),
        caption: format!("{title}, medians"),
        columns,
        rows: lengths.iter().map(row).collect(),
    };
    Figure { id, drawing: Drawing::Chart(chart), table, wide: false }
}

fn table(place: &Place<'_>, bench: &BenchReport) -> Table {
    let row = |m: &Measurement| {
        let ratio = |ratio: Option<f64>| Cell::figure(ratio.unwrap_or(f64::NAN));
        vec![
            Cell::Foreign(m.policy.clone()),
            Cell::count(m.length),
            Cell::count(m.new_tokens),
            Cell::count(m.repeats),
            Cell::figure(m.ttft_s.median),
            Cell::figure(m.ttft_s.std),
            ratio(m.ttft_ratio),
            Cell::figure(m.ttft_ratio_model),
            Cell::figure(m.tpot_s.median * 1e3),
            ratio(m.tpot_ratio),
            Cell::figure(m.tpot_ratio_model),
            Cell::figure(m.e2e_s.as_ref().map_or(f64::NAN, |seconds| seconds.median)),
            Cell::Count(m.kv_bytes),
            Cell::Count(m.kv_bytes_model),
        ]
    };
    Table {
        id: place.id("bench-table"),
        caption: "Policies at prompt lengths; “model” is the cost model’s prediction".into(),
        columns: vec![
            column("policy", ""),
            column("prompt", "tokens"),
            column("new", "tokens"),
            column("repeats", ""),
            column("TTFT", "s"),
            column("± deviation", "s"),
            column("TTFT / full", ""),
            column("model", ""),
            column("TPOT", "ms"),
            column("TPOT / full", ""),
            column("model", ""),
            column("E2E", "s"),
            column("KV", "bytes"),
            column("KV, model", "bytes"),
        ],
        rows: bench.results.iter().map(row).collect(),
    }
}
