//! What the jobs of a sweep come to: whole runs, a table and a report.

use super::{FailedJob, Planned};
use crate::commands::merge_runs;
use crate::{output, progress, terminal};
use layerscope_diagnostics::run::{MANIFEST, Run};
use layerscope_engine::{Error, Result, readable_bytes, write_file};
use layerscope_sweep::{Candidate, Cell, Results, Row, Workload, rank, rows_of_run, to_parquet};
use serde_json::json;
use std::process::ExitCode;

pub(super) fn run(planned: &Planned, failed: &[FailedJob], json: bool) -> Result<ExitCode> {
    let results = progress::waiting("reading the runs", || results(planned))?;
    let (table, report) = (planned.layout.table(), planned.layout.report());
    write_file(&table, &to_parquet(&results)?)?;
    let files =
        progress::waiting("writing the report", || layerscope_report::render_sweep(&results, &report))?;
    layerscope_report::write(&files)?;
    let ranked = rank(&results);
    if json {
        let failed: Vec<_> = failed
            .iter()
            .map(|failed| json!({ "job": failed.job.number, "name": failed.job.name, "reason": failed.reason }))
            .collect();
        output::json(&json!({
            "ranking": ranked,
            "failed": failed,
            "notes": results.notes,
            "table": table,
            "report": report,
        }))?;
    } else {
        for workload in &ranked {
            terminal::print(&text(workload))?;
        }
        terminal::print(&format!("\nwrote {} and {}", table.display(), report.display()))?;
    }
    results.notes.iter().for_each(|note| terminal::say(&format!("layerscope: {note}")));
    if !failed.is_empty() {
        let count = failed.len();
        terminal::say(&format!(
            "layerscope: {count} of {} jobs {} not done; the same command tries again",
            planned.jobs.len(),
            if count == 1 { "is" } else { "are" }
        ));
        for FailedJob { job, reason } in failed {
            terminal::say(&format!("layerscope: job {}, {}: {reason}", job.number, job.name));
        }
    }
    Ok(if failed.is_empty() && results.notes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The rows of every finished cell, and a note of each other one.
fn results(planned: &Planned) -> Result<Results> {
    let options = planned.sweep.judge.options();
    let (mut rows, mut notes) = (vec![], vec![]);
    for (index, cell) in planned.sweep.cells.iter().enumerate() {
        match rows_of_cell(planned, index, cell) {
            Ok(Finished { rows: of_cell, failed }) => {
                rows.extend(of_cell);
                if failed > 0 {
                    let prompts = if failed == 1 { "prompt" } else { "prompts" };
                    notes.push(format!(
                        "{}: {failed} {prompts} could not be recorded; its log says why",
                        cell.name
                    ));
                }
            }
            Err(error @ Error::Interrupted) => return Err(error),
            Err(error) => notes.push(format!("{} is left out: {error}", cell.name)),
        }
    }
    Ok(Results {
        layerscope: env!("CARGO_PKG_VERSION").into(),
        tolerance: options.tolerance,
        criterion: options.criterion,
        kept: options.kept,
        anchor: options.anchor,
        rows,
        notes,
    })
}

/// A cell of which every prompt is done or has failed.
struct Finished {
    rows: Vec<Row>,
    failed: usize,
}

fn rows_of_cell(planned: &Planned, index: usize, cell: &Cell) -> Result<Finished> {
    let Planned { sweep, layout, jobs } = planned;
    let folder = layout.run(cell);
    let of_cell = jobs.iter().filter(|job| job.cell == index);
    let shares: Vec<_> =
        of_cell.filter(|job| job.shard.is_some()).map(|job| layout.recording(sweep, job)).collect();
    if !shares.is_empty() {
        let there: Vec<_> = shares.iter().filter(|share| share.join(MANIFEST).exists()).cloned().collect();
        if there.len() < shares.len() {
            let missing = shares.len() - there.len();
            return Err(Error::input(format!("{missing} of its {} shares are not recorded", shares.len())));
        }
        merge_runs::merge(&there, &folder)?;
    }
    if !folder.join(MANIFEST).exists() {
        return Err(Error::input("it is not recorded"));
    }
    let run = Run::open(&folder)?;
    let prompts = &run.manifest().prompts;
    if !run.manifest().nothing_left() {
        let left = prompts.ids.len() - prompts.done.len() - prompts.failed.len();
        return Err(Error::input(format!("{left} of its {} prompts are not recorded", prompts.ids.len())));
    }
    Ok(Finished { rows: rows_of_run(cell, &run, sweep.judge.options())?, failed: prompts.failed.len() })
}

/// A ranking as text.
fn text(workload: &Workload<'_>) -> String {
    let row = |(place, of): (usize, &Candidate<'_>)| {
        let row = of.row;
        let right = row.right.filter(|_| row.expected > 0);
        vec![
            format!("{}. {}", place + 1, row.run),
            row.policy.clone(),
            format!("{} of {}", row.cutoff.unwrap_or(row.layers), row.layers),
            right.map_or("–".into(), |right| format!("{right} of {}", row.expected)),
            output::figure(row.kl, 4),
            output::figure(row.text_unchanged * 100.0, 0),
            readable_bytes(row.kv_bytes),
            output::figure(row.kv_saved * 100.0, 1),
        ]
    };
    let header =
        ["run", "policy", "cutoff", "right", "KL nats", "texts unchanged %", "KV per prompt", "KV saved %"];
    let rows = workload.ranked.iter().enumerate().map(row).collect();
    let mut text = format!("\n{}\n\n{}", terminal::line(workload.prompt_set), output::table(&header, rows));
    if let Some(cheapest) = workload.ranked.get(workload.cheapest).filter(|_| workload.cheapest > 0) {
        text.push_str(&format!(
            "\n\n{} keeps less KV and may answer as well: its 95 % interval of right answers is {:.0} to {:.0} %",
            terminal::line(&cheapest.row.run),
            cheapest.right_ci95[0] * 100.0,
            cheapest.right_ci95[1] * 100.0
        ));
    }
    text
}
