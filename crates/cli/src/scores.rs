//! The table of policies' scores at tasks.

use crate::output;
use layerscope_diagnostics::summary::Pairing;
use layerscope_eval::{Cell, Row};

/// A row for each metric and category, a column for each policy.
pub(crate) fn text(rows: &[Row], policies: &[String]) -> String {
    let percent = |share: f64| output::figure(100.0 * share, 1);
    let signed = |share: f64| if share.is_finite() { format!("{:+.1}", 100.0 * share) } else { "–".into() };
    let cell = |cell: &Cell| match &cell.difference {
        None => percent(cell.score),
        Some(found) => {
            let [mean, lower, upper] = [found.mean, found.lower95, found.upper95].map(signed);
            format!("{} ({mean} [{lower}, {upper}])", percent(cell.score))
        }
    };
    let lines = rows.iter().map(|row| {
        let category = row.category.clone().unwrap_or_else(|| "all".to_owned());
        let mark = if row.pairing == Pairing::Unpaired { "*" } else { "" };
        let names = [category, format!("{}{mark}", row.metric), row.items.to_string()];
        names.into_iter().chain(row.cells.iter().map(cell)).collect()
    });
    let header: Vec<&str> =
        ["category", "metric", "items"].into_iter().chain(policies.iter().map(String::as_str)).collect();
    let table = output::table(&header, lines.collect());
    let has = |metric: &str| rows.iter().any(|row| row.metric == metric);
    let mut notes = vec!["Scores in %, mean over items".to_owned()];
    if policies.len() > 1 {
        notes[0] += "; in brackets the difference from the first policy, item by item, with its 95 % bootstrap interval";
    }
    notes[0].push('.');
    if rows.iter().any(|row| row.pairing == Pairing::Unpaired) {
        notes.push(
            "* without scores of items: the interval is that of independent samples, from standard errors."
                .into(),
        );
    }
    if has("acc") {
        notes.push("acc: the likeliest choice is the right one; acc_norm: the likeliest by log-likelihood per character.".into());
    }
    format!("{table}\n\n{}", notes.join("\n"))
}
