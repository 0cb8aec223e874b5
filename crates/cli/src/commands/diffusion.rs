//! `layerscope span-ablation`: from which layer on a span of a recorded prompt can be removed.

use super::chosen;
use crate::args::DiffusionArguments;
use crate::interrupt::heeded;
use crate::output::{self, figure};
use crate::progress::SpansBar;
use crate::{models, terminal};
use layerscope_diagnostics::record::SpanRecord;
use layerscope_diagnostics::run::{Run, SPANS};
use layerscope_diagnostics::spans::{MeanSpanRow, SpanReport, mean_by_layer};
use layerscope_engine::{Error, ErrorKind, Interrupt, Model, Result};
use layerscope_recording::spans::{SpanRequest, SpanTokens, remove_span};
use serde_json::json;
use std::process::ExitCode;

pub(crate) fn run(arguments: &DiffusionArguments) -> Result<ExitCode> {
    if arguments.tolerance.is_nan() || arguments.tolerance < 0.0 {
        return Err(Error::input("--tolerance must be a number of nats, 0 or more"));
    }
    let run = Run::open(&arguments.run)?;
    let spans = spans(&run, arguments)?;
    let layers = arguments
        .layers
        .as_ref()
        .map(|text| chosen(text, run.manifest().model.layers, "layer"))
        .transpose()?;
    let model = models::of_run(&run, arguments.model.as_deref(), arguments.device)?;
    let requests = spans.iter().map(|(prompt_id, tokens)| SpanRequest {
        prompt_id,
        tokens: tokens.clone(),
        answer: arguments.answer.as_deref(),
        layers: layers.as_deref(),
    });
    let done = heeded(|interrupt| all(&run, &model, requests.collect(), interrupt))?;
    print(&run, &done.records, arguments)?;
    if done.interrupted {
        terminal::say(&format!(
            "layerscope: interrupted; what was finished is in {}",
            run.folder().join(SPANS).display()
        ));
        return Ok(ExitCode::from(Error::Interrupted.exit_code()));
    }
    Ok(if done.failed { ExitCode::from(2) } else { ExitCode::SUCCESS })
}

/// The requested prompts, each with its span.
fn spans(run: &Run, arguments: &DiffusionArguments) -> Result<Vec<(String, SpanTokens)>> {
    let (named, folder) = (&run.manifest().prompts.spans, run.folder().display());
    if let Some(id) = &arguments.prompt {
        let span = match (&arguments.tokens, &arguments.span) {
            (Some(tokens), _) => Some(SpanTokens::At(tokens.clone())),
            (None, text) => text.as_ref().or_else(|| named.get(id)).cloned().map(SpanTokens::OfText),
        };
        let span = span.ok_or_else(|| {
            Error::input(format!("{folder}: the prompt {id:?} has no span; give one with --span or --tokens"))
        })?;
        return Ok(vec![(id.clone(), span)]);
    }
    let of = |id: &String| Some((id.clone(), SpanTokens::OfText(named.get(id)?.clone())));
    let spans: Vec<_> = run.prompt_ids().iter().filter_map(of).collect();
    if spans.is_empty() {
        return Err(Error::input(format!(
            "{folder}: no recorded prompt names a span (\"span\" in the prompt file); name a prompt with --prompt"
        )));
    }
    Ok(spans)
}

struct Done {
    records: Vec<SpanRecord>,
    failed: bool,
    interrupted: bool,
}

/// Removes the spans one by one. With several, one that fails does not stop the others.
fn all(run: &Run, model: &Model, requests: Vec<SpanRequest<'_>>, interrupt: &Interrupt) -> Result<Done> {
    let mut done = Done { records: vec![], failed: false, interrupted: false };
    let mut bar = SpansBar::new(requests.len());
    for request in &requests {
        bar.start(request.prompt_id);
        match remove_span(run, model, request, interrupt, &mut |event| bar.observe(event)) {
            Ok(record) => done.records.push(record),
            Err(Error::Interrupted) => {
                done.interrupted = true;
                break;
            }
            Err(error) if error.kind() == ErrorKind::Input && requests.len() > 1 => {
                done.failed = true;
                bar.say(&format!("layerscope: {}: {error}", request.prompt_id));
            }
            Err(error) => {
                bar.finish();
                return Err(error);
            }
        }
    }
    bar.finish();
    Ok(done)
}

fn print(run: &Run, records: &[SpanRecord], arguments: &DiffusionArguments) -> Result<()> {
    let (model, tolerance) = (&run.manifest().model, arguments.tolerance);
    let means = mean_by_layer(records);
    if arguments.json {
        let reports = records.iter().map(|record| SpanReport::new(record.clone(), tolerance));
        return output::json(&json!({
            "model": model.name,
            "layers": model.layers,
            "tolerance": tolerance,
            "spans": reports.collect::<Vec<_>>(),
            "mean": means,
        }));
    }
    if records.is_empty() {
        return Ok(());
    }
    terminal::print(&format!("{}\n\n{LEGEND}\n", table(&means, records.len() > 1)))?;
    for record in records {
        let of = if records.len() > 1 { format!("{}: ", record.prompt_id) } else { String::new() };
        let verdict = format!("{of}{} {}", record.name(), record.verdict(tolerance, model.layers));
        terminal::print(&terminal::line(&verdict))?;
    }
    Ok(())
}

const LEGEND: &str = "\
KL, top-1, ΔNLL: what it costs where the span is gone from this layer up (the last row: nothing is removed), nats, share of steps
span mass: share of the generating tokens' attention on the span at this layer of the full model
rest, rest without: share on the rest of the prompt at the layers from this one up, of the full model and without the span";

/// A row per layer. With several spans, the row holds means and the number of spans.
fn table(means: &[MeanSpanRow], several: bool) -> String {
    let answers = means.iter().any(|row| row.found.is_finite());
    let mut header = vec!["from layer", "KL", "top-1", "ΔNLL", "span mass", "rest", "rest without"];
    header.extend(answers.then_some("found"));
    header.extend(several.then_some("spans"));
    let rows = means.iter().map(|row| {
        let cost = row.divergence;
        let mut cells = vec![
            row.layer.to_string(),
            figure(cost.kl, 4),
            figure(cost.top1, 2),
            figure(cost.dnll, 4),
            figure(row.decode_mass, 4),
            figure(row.masses.rest_full, 4),
            figure(row.masses.rest_after, 4),
        ];
        cells.extend(answers.then(|| match several {
            true => figure(row.found, 2),
            false => if row.found > 0.5 { "yes" } else { "no" }.to_owned(),
        }));
        cells.extend(several.then(|| row.spans.to_string()));
        cells
    });
    output::table(&header, rows.collect())
}
