//! Provenance: all that is needed to reproduce the figures.

use crate::data::{Report, RunReport};
use crate::document::{Cell, Element, Section, Table, column, plain};
use layerscope_cutoff::DEFAULT_KEPT;
use layerscope_cutoff::recommend::{Criterion, Recommendation};
use layerscope_diagnostics::record::Anchor;

pub(super) fn section(report: &Report) -> Section {
    let mut blocks = vec![Element::Paragraph(plain(
        "Every figure of this report is computed from the run folder’s Parquet files. The same model and prompts, by their \
         SHA-256, and the commands below give the same run and report.",
    ))];
    for (index, run) in report.runs.iter().enumerate() {
        if report.runs.len() > 1 {
            blocks.push(Element::Heading(run.name.clone()));
        }
        blocks.push(Element::Table(facts(run, index)));
    }
    blocks.push(Element::Heading("Commands".into()));
    blocks.push(Element::Code(commands(report)));
    Section { id: "provenance".into(), title: "Provenance".into(), blocks }
}

fn facts(run: &RunReport, index: usize) -> Table {
    let manifest = &run.manifest;
    let foreign = |text: &str| Cell::Foreign(text.to_owned());
    let mut rows = vec![
        ("run folder", foreign(&run.name)),
        ("recorded by", Cell::Text(format!("layerscope {}", manifest.layerscope))),
        ("model", foreign(&manifest.model.name)),
        ("SHA-256 of the weights", foreign(&manifest.model.sha256)),
        ("weights", foreign(&manifest.weights)),
        ("device", foreign(&manifest.device)),
        ("prompt file", foreign(&manifest.settings.prompts_file)),
        ("SHA-256 of the prompt file", foreign(&manifest.settings.prompts_sha256)),
        ("decode steps, at most", Cell::count(manifest.settings.max_new_tokens)),
        ("begun, UTC", foreign(&manifest.created)),
        ("last changed, UTC", foreign(&manifest.updated)),
    ];
    if let Some(machine) = &manifest.machine {
        let cpu = machine.cpu.as_deref().unwrap_or("unknown processor");
        let threads = machine.threads;
        let gpu = machine.gpu.as_ref().map_or_else(String::new, |gpu| format!("{gpu}; "));
        rows.push((
            "machine",
            foreign(&format!("{gpu}{cpu}, {threads} threads, {}, {}", machine.os, machine.architecture)),
        ));
    }
    let other: Vec<(String, String)> = manifest
        .settings
        .other
        .iter()
        .map(|(name, value)| (name.replace('_', " "), value.to_string()))
        .collect();
    rows.extend(other.iter().map(|(name, value)| (name.as_str(), foreign(value))));
    for failed in &manifest.prompts.failed {
        rows.push(("failed prompt", foreign(&format!("{}: {}", failed.id, failed.reason))));
    }
    Table {
        id: format!("provenance-{}", index + 1),
        caption: format!("How {} came about", run.name),
        columns: vec![column("what", ""), column("is", "")],
        rows: rows.into_iter().map(|(name, cell)| vec![Cell::Text(name.into()), cell]).collect(),
    }
}

/// The commands that reproduce the runs and the report.
fn commands(report: &Report) -> String {
    let record = |run: &RunReport| {
        let (manifest, settings) = (&run.manifest, &run.manifest.settings);
        if !manifest.command.is_empty() {
            let words: Vec<String> = manifest.command.iter().map(|word| quoted(word)).collect();
            return format!("layerscope {}\n", words.join(" "));
        }
        format!(
            "layerscope record {} --weights {} --prompts {} --max-new-tokens {} --out {}\n",
            quoted(&manifest.model.name),
            manifest.weights,
            quoted(&settings.prompts_file),
            settings.max_new_tokens,
            quoted(&run.name)
        )
    };
    let mut commands: String = report.runs.iter().map(record).collect();
    let names: Vec<String> = report.runs.iter().map(|run| quoted(&run.name)).collect();
    let anchor = if report.anchor == Anchor::None { " --anchor none" } else { "" };
    let judged = report.runs.first().map_or_else(String::new, |run| judged(&run.recommendation));
    commands.push_str(&format!(
        "layerscope report {} --tolerance {}{judged}{anchor} -o report.html\n",
        names.join(" "),
        report.tolerance
    ));
    commands
}

/// What was asked of a cutoff besides the tolerance, as arguments where it is not the default.
fn judged(recommendation: &Recommendation) -> String {
    let mut arguments = String::new();
    if recommendation.criterion != Criterion::Answers {
        arguments.push_str(&format!(" --criterion {}", recommendation.criterion.name()));
    }
    if recommendation.kept_wanted != DEFAULT_KEPT {
        arguments.push_str(&format!(" --answers {}", recommendation.kept_wanted));
    }
    arguments
}

/// A word quoted for a POSIX shell.
fn quoted(word: &str) -> String {
    let safe = |c: char| c.is_alphanumeric() || "._-/+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(safe) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(quoted("model-Q4_1.gguf"), "model-Q4_1.gguf");
        assert_eq!(quoted("my model's.gguf"), "'my model'\\''s.gguf'");
        assert_eq!(quoted("$(rm)"), "'$(rm)'");
    }
}
