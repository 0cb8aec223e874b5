//! KL against KV bytes: cutoffs beside sets of KV heads.

use super::Place;
use crate::data::Report;
use crate::document::{Cell, Drawing, Element, Figure, Table, column, plain};
use layerscope_cutoff::DEFAULT_KEPT;
use layerscope_cutoff::budget::{BudgetCurve, BudgetPoint};
use layerscope_figures::{Along, Chart, Curve};

/// Rows of a curve in the table, about.
const ROWS: usize = 16;

pub(super) fn blocks(place: &Place<'_>, report: &Report) -> Vec<Element> {
    vec![
        Element::Paragraph(plain(
            "A set keeps the whole prompt at some KV heads and only its ends at the others. Sets were searched on some of the prompts; all \
             figures here are of the others, cutoffs included.",
        )),
        Element::Figure(Box::new(frontier(
            ["budgets", "budgets-data"].map(|id| place.id(id)),
            "Budget frontier",
            &named(&place.run.budgets, ""),
            report,
        ))),
        Element::Table(smallest_of_each(place, report)),
    ]
}

/// Curves by name, with what sets them apart from others of that name.
pub(super) fn named<'a>(curves: &'a [BudgetCurve], apart: &str) -> Vec<(String, &'a BudgetCurve)> {
    curves.iter().map(|curve| (format!("{}{apart}", curve.name), curve)).collect()
}

/// The smallest policy of each kind that holds.
fn smallest_of_each(place: &Place<'_>, report: &Report) -> Table {
    let row = |curve: &BudgetCurve| {
        let [kept, kl, policy] = match smallest(curve, report.tolerance) {
            Some(point) => {
                [Cell::percent(point.kv_kept), Cell::figure(point.kl), Cell::Foreign(point.policy.clone())]
            }
            None => ["", "", "none"].map(|text| Cell::Text(text.into())),
        };
        vec![Cell::Text(curve.name.clone()), kept, kl, policy]
    };
    Table {
        id: place.id("budgets-smallest"),
        caption: format!(
            "The smallest policy of each kind that stays within {} nats and keeps {:.0} % of the answers, as do all larger ones",
            report.tolerance,
            DEFAULT_KEPT * 100.0
        ),
        columns: vec![
            column("dropped", ""),
            column("KV kept", "%"),
            column("KL", "nats"),
            column("policy", ""),
        ],
        rows: place.run.budgets.iter().map(row).collect(),
    }
}

/// The policy that keeps least, of those that with all larger ones hold.
fn smallest(curve: &BudgetCurve, tolerance: f64) -> Option<&BudgetPoint> {
    let holds = |point: &&BudgetPoint| {
        point.kl_upper95 <= tolerance && point.answers_kept as f64 >= DEFAULT_KEPT * point.answers as f64
    };
    curve.points.iter().take_while(holds).last().filter(|point| point.kv_kept < 1.0)
}

/// KL against the share of the KV bytes that stays, for some curves, by name.
pub(super) fn frontier(
    ids: [String; 2],
    title: &str,
    curves: &[(String, &BudgetCurve)],
    report: &Report,
) -> Figure {
    let [figure_id, table_id] = ids;
    let along = Along::Values { name: "KV bytes kept, %".into(), range: [0.0, 100.0] };
    let mut chart = Chart::new(title, "mean KL(full ‖ policy), nats per token", along);
    chart.logarithmic = true;
    chart.level = Some((report.tolerance, format!("tolerance {}", report.tolerance)))
        .filter(|(tolerance, _)| *tolerance > 0.0);
    chart.description = "Mean KL divergence from the full model against the share of the KV bytes that stays, logarithmic, for each \
                         cutoff and for sets of KV heads or layers that were searched."
        .into();
    for (index, (name, curve)) in curves.iter().enumerate() {
        let of = |figure: fn(&BudgetPoint) -> f64| curve.points.iter().map(figure).collect::<Vec<f64>>();
        let kept = of(|point| point.kv_kept * 100.0);
        chart.curves.push(Curve::series(name.clone(), index, of(|point| point.kl)).placed(kept));
    }
    let mut rows = vec![];
    for (name, curve) in curves {
        let every = curve.points.len().div_ceil(ROWS).max(1);
        rows.extend(curve.points.iter().step_by(every).map(|point| {
            let share =
                if point.answers == 0 { f64::NAN } else { point.answers_kept as f64 / point.answers as f64 };
            vec![
                Cell::Text(name.clone()),
                Cell::percent(point.kv_kept),
                Cell::figure(point.kl),
                Cell::figure(point.kl_upper95),
                Cell::percent(share),
            ]
        }));
    }
    Figure {
        id: figure_id,
        drawing: Drawing::Chart(chart),
        table: Table {
            id: table_id,
            caption: "KL and answers by share of the KV bytes that stays; every set is in sets.json".into(),
            columns: vec![
                column("dropped", ""),
                column("KV kept", "%"),
                column("KL", "nats"),
                column("95 % bound", "nats"),
                column("answers kept", "%"),
            ],
            rows,
        },
        wide: true,
    }
}
