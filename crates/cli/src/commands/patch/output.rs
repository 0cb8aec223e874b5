//! What is printed and written of a map of patches.

use crate::args::PatchArguments;
use crate::output::{self, figure};
use crate::terminal;
use layerscope_diagnostics::patching::{PatchFigures, PatchMap, PatchMetric, PatchSite};
use layerscope_diagnostics::run::write_patching;
use layerscope_engine::{Error, Model, Result, write_file};
use layerscope_report::patching_svg;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The file and format of `--out`.
pub(super) struct Destination {
    path: PathBuf,
    format: Format,
}

#[derive(Clone, Copy)]
enum Format {
    Json,
    Parquet,
    Svg,
}

impl Destination {
    pub(super) fn of(path: &Path) -> Result<Self> {
        output::check_folder(path)?;
        let format = match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() => None,
            Some("json") => Some(Format::Json),
            Some("parquet") => Some(Format::Parquet),
            Some("svg") => Some(Format::Svg),
            _ => None,
        };
        let format = format.ok_or_else(|| {
            Error::input(format!(
                "{}: maps of patches are written as .json, .parquet or .svg; choose a file with one of these endings",
                path.display()
            ))
        })?;
        Ok(Self { path: path.to_owned(), format })
    }

    pub(super) fn write(&self, map: &PatchMap, model: &Model) -> Result<()> {
        match self.format {
            Format::Json => write_file(&self.path, output::json_text(&as_json(map, model))?.as_bytes()),
            Format::Parquet => write_patching(&self.path, map),
            Format::Svg => write_file(&self.path, patching_svg(map, &model.name).as_bytes()),
        }
    }
}

/// Prints a map; `kept` is the run folder's file that has it now.
pub(super) fn print(
    map: &PatchMap,
    model: &Model,
    arguments: &PatchArguments,
    kept: Option<&Path>,
) -> Result<()> {
    if arguments.json {
        return output::json(&as_json(map, model));
    }
    terminal::print(&text(map, model))?;
    let written = arguments.out.iter().map(|out| format!("written to {}", out.display()));
    let kept = kept.map(|kept| format!("kept in {}", kept.display()));
    let lines: Vec<String> = written.chain(kept).collect();
    if lines.is_empty() { Ok(()) } else { terminal::print(&format!("\n{}", lines.join("\n"))) }
}

fn as_json(map: &PatchMap, model: &Model) -> Value {
    let matrix = |value: &dyn Fn(PatchFigures) -> f64| -> Vec<Vec<Option<f64>>> {
        let row = |row| (0..map.columns.len()).map(|at| map.cell(row, at).map(value)).collect();
        (0..map.layers.len()).map(row).collect()
    };
    let is_head = map.site == PatchSite::Head;
    json!({
        "model": model.name,
        "weights": model.precision,
        "what": map.site,
        "direction": map.direction,
        "metric": map.metric,
        "answer": map.answer,
        "wrong": map.wrong,
        "clean": map.clean,
        "corrupted": map.corrupted,
        "layers": map.layers,
        "positions": if is_head { &map.head_positions } else { &map.columns },
        "heads": is_head.then_some(&map.columns),
        "effect": matrix(&|cell| map.effect(cell)),
        "logit_diff": matrix(&|cell| cell.logit_diff),
        "kl": matrix(&|cell| cell.kl),
        "complete": map.is_complete(),
    })
}

/// What an interrupted map has.
pub(super) fn done(map: &PatchMap) -> String {
    let computed = |at: usize, by_row: bool| {
        let [rows, columns] = [map.layers.len(), map.columns.len()];
        match by_row {
            true => (0..columns).all(|column| map.cell(at, column).is_some()),
            false => (0..rows).all(|row| map.cell(row, at).is_some()),
        }
    };
    let by_row = map.site == PatchSite::Head;
    let (places, name) = if by_row { (&map.layers, "layers") } else { (&map.columns, "positions") };
    let whole: Vec<usize> =
        (0..places.len()).filter(|&at| computed(at, by_row)).map(|at| places[at]).collect();
    let parts = match (whole.first(), whole.last()) {
        (Some(first), Some(last)) => format!(", among them all of {name} {first} to {last}"),
        _ => String::new(),
    };
    format!("{} of {} cells are done{parts}", map.done(), map.cells.len())
}

/// Strongest cells that are listed.
const STRONGEST: usize = 10;

fn text(map: &PatchMap, model: &Model) -> String {
    let ([source, base], what) = (map.direction.runs(), map.what());
    let prompt = |name: &str, of: &layerscope_diagnostics::patching::PatchedPrompt| {
        terminal::line(&format!(
            "{name}: most likely next token {:?}, logit difference {}, KL {} nats",
            of.next.text,
            figure(of.figures.logit_diff, 3),
            figure(of.figures.kl, 4)
        ))
    };
    let metric = match map.metric {
        PatchMetric::LogitDiff => "the logit difference",
        PatchMetric::Kl => "KL from the clean run",
    };
    let header = terminal::line(&format!("{}: {what}, of the {source} run in the {base} run", model.name));
    let difference = terminal::line(&format!(
        "logit difference: {:?} less {:?}; effect: {metric}, 0 as in the corrupted run, 1 as in the clean run",
        map.answer.text, map.wrong.text
    ));
    let strongest = map.strongest();
    if strongest.is_empty() {
        let none =
            "no effect is defined: both runs are equal by the metric; choose other answers or --metric kl";
        return [header, prompt("clean", &map.clean), prompt("corrupted", &map.corrupted), none.into()]
            .join("\n");
    }
    let of_rows: Vec<(usize, usize)> = (0..map.layers.len())
        .filter_map(|row| strongest.iter().copied().find(|(of, _)| *of == row))
        .collect();
    [
        header,
        prompt("clean", &map.clean),
        prompt("corrupted", &map.corrupted),
        difference,
        format!("\nstrongest patches\n{}", table(map, strongest.iter().take(STRONGEST).copied())),
        format!("\nthe strongest of each layer\n{}", table(map, of_rows.into_iter())),
    ]
    .join("\n")
}

fn table(map: &PatchMap, places: impl Iterator<Item = (usize, usize)>) -> String {
    let is_head = map.site == PatchSite::Head;
    let mut header = vec!["layer", map.site.column_name()];
    header.extend((!is_head).then_some("clean token"));
    header.extend((!is_head).then_some("corrupted token"));
    header.extend(["effect", "logit diff", "KL"]);
    let rows = places.filter_map(|(row, at)| {
        let (cell, column) = (map.cell(row, at)?, map.columns[at]);
        let mut cells = vec![map.layers[row].to_string(), column.to_string()];
        if !is_head {
            let tokens = [&map.clean, &map.corrupted].map(|prompt| prompt.tokens.get(column));
            cells
                .extend(tokens.map(|token| token.map_or(String::new(), |token| format!("{:?}", token.text))));
        }
        cells.extend([figure(map.effect(cell), 3), figure(cell.logit_diff, 3), figure(cell.kl, 4)]);
        Some(cells)
    });
    output::table(&header, rows.collect())
}
