//! `layerscope bench`: time, memory and KV of policies by prompt length.

use crate::args::BenchArguments;
use crate::interrupt::{UNHEEDED, heeded};
use crate::progress::{self, BenchBars, QualityBar};
use crate::{models, output, terminal};
use layerscope_bench::{
    self as bench, BenchPlan, BenchReport, Machine, Measurement, PromptTokens, Quality, QualityEvent,
    Statistics, Transfers,
};
use layerscope_diagnostics::needle::NeedlePrompt;
use layerscope_diagnostics::prompts::{Prompt, parse_prompts};
use layerscope_diagnostics::run::Run;
use layerscope_engine::{
    Decoder, Error, KvPrecision, Model, ModelConfig, OpenedModel, Policy, Result, Shape, ShapeWeights,
    WeightsPrecision, caveats, check_memory,
};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The text that prompts are taken from.
const TEXT: &[u8] = include_bytes!("../../../../fixtures/prompts/five-categories.jsonl");
const TEXT_NAME: &str = "five-categories.jsonl";
/// Seed of random weights and tokens.
const SEED: u64 = 0;

/// What to measure.
struct Subject {
    name: String,
    weights: Weights,
    prompt: PromptTokens,
    /// The prompts for quality; `None` without `--quality`.
    needles: Vec<NeedlePrompt>,
    notes: Vec<String>,
}

enum Weights {
    Model(Box<Model>),
    Random(Arc<Decoder>),
}

impl Subject {
    fn decoder(&self) -> &Arc<Decoder> {
        match &self.weights {
            Weights::Model(model) => &model.decoder,
            Weights::Random(decoder) => decoder,
        }
    }

    /// SHA-256 of the model; `None` for random weights.
    fn sha256(&self) -> Option<&str> {
        match &self.weights {
            Weights::Model(model) => Some(model.sha256()),
            Weights::Random(_) => None,
        }
    }
}

pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode> {
    let destination = arguments.out.as_deref().map(Destination::of).transpose()?;
    let subject = match &arguments.shape {
        Some(name) => random_weights(arguments, name)?,
        None => model(arguments)?,
    };
    if let Some(destination) = &destination {
        destination.check_model(&subject)?;
    }
    let plan = plan(arguments, subject.decoder().config())?;
    let plans = plans(&plan, subject.decoder());
    if !arguments.json {
        plans.iter().for_each(|plan| terminal::say(plan));
    }
    let bars = BenchBars::new(&plan);
    let measured = heeded(|interrupt| {
        bench::measure(subject.decoder(), &plan, &subject.prompt, interrupt, &mut |event| bars.observe(event))
    });
    bars.finish();
    let mut measured = measured?;
    if let (Weights::Model(model), false, false) =
        (&subject.weights, subject.needles.is_empty(), measured.interrupted)
    {
        let (needles, bar) = (&subject.needles, QualityBar::new(&plan, subject.needles.len()));
        let done = heeded(|interrupt| {
            let observe = &mut |event: QualityEvent<'_>| bar.observe(event);
            bench::measure_quality(model, &plan, needles, &mut measured, interrupt, observe)
        });
        bar.finish();
        done?;
    }
    let weight_bytes = subject.decoder().weight_bytes() as u64;
    let (layers, machine) = (subject.decoder().config().layers, Machine::with(subject.decoder().device()));
    let statistics = plan.statistics.then(|| "with attention statistics of every decode step".to_owned());
    let caveats = match &subject.weights {
        Weights::Model(model) => model.caveats(&plan.policies),
        Weights::Random(_) => caveats(&plan.policies),
    };
    let kv = subject.decoder().kv_precision().name();
    let kv = arguments.kv.kv.map(|_| format!("keys and values in {kv}"));
    let notes = subject.notes.into_iter().chain(kv).chain(statistics).chain(plans).chain(caveats);
    let report = BenchReport {
        results: measured.results,
        model: subject.name,
        weights: arguments.weights.into(),
        weight_bytes,
        layers,
        machine,
        layerscope: env!("CARGO_PKG_VERSION").to_owned(),
        interrupted: measured.interrupted,
        notes: notes.chain(measured.no_peak.map(str::to_owned)).collect(),
    };
    if let Some(destination) = &destination {
        destination.write(&report)?;
    }
    if arguments.json {
        output::json(&report)?;
    } else {
        terminal::print(&text(&report))?;
    }
    if report.interrupted {
        terminal::say("layerscope: interrupted; printing the measurements so far");
        return Ok(ExitCode::from(Error::Interrupted.exit_code()));
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(arguments: &BenchArguments, config: &ModelConfig) -> Result<BenchPlan> {
    let policies = match &arguments.policies {
        None => {
            let policies = BenchPlan::default_policies(config.layers)?.into_iter();
            policies.map(|policy| policy.for_model(config)).collect()
        }
        Some(list) => {
            let names = bench::split_policies(list);
            names.iter().map(|name| Policy::parse_for(name, config)).collect::<Result<_>>()?
        }
    };
    let plan = BenchPlan {
        policies,
        lengths: bench::parse_lengths(&arguments.lengths)?,
        new_tokens: arguments.new_tokens,
        repeats: arguments.repeats,
        statistics: arguments.statistics,
    };
    plan.check(config)?;
    match &arguments.out {
        Some(path) if is_svg(path) => check_figure(path, arguments, &plan)?,
        _ => {}
    }
    Ok(plan)
}

fn is_svg(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "svg")
}

/// Fails if the figure would be empty.
fn check_figure(path: &Path, arguments: &BenchArguments, plan: &BenchPlan) -> Result<()> {
    let full = plan.policies.iter().any(|policy| policy.to_string() == "full");
    if arguments.quality.is_some() && full {
        return Ok(());
    }
    Err(Error::input(format!(
        "{}: the figure plots quality against cost, both relative to the full model; add {}, or write .json",
        path.display(),
        if full { "--quality" } else { "--quality, and full to --policies" }
    )))
}

fn random_weights(arguments: &BenchArguments, name: &str) -> Result<Subject> {
    if arguments.quality.is_some() {
        return Err(Error::input(
            "random weights have no quality to measure; leave out --quality, or name a model instead of --shape",
        ));
    }
    let mut shape = Shape::named(name)?;
    if let Some(layers) = arguments.layers {
        shape = shape.cut_to(layers)?;
    }
    let weights = ShapeWeights::parse(&arguments.shape_weights)?;
    // Checked before gigabytes are allocated.
    let plan = plan(arguments, shape.config())?;
    let precision: WeightsPrecision = arguments.weights.into();
    let device = models::device(arguments.device)?;
    let need = shape.memory_need(weights, precision, &device);
    let need = need.with_sequence(shape.config(), &plan.most_in_memory(&device));
    let kv = arguments.kv.kv.map_or(KvPrecision::with(precision, &device), KvPrecision::from);
    kv.check(shape.config(), precision, &device)?;
    let need = need.with_kv(shape.config(), kv);
    check_memory(&format!("random weights of shape {shape}"), &need, &device)?;
    let decoder = progress::loading(|progress| shape.decoder(weights, precision, &device, SEED, progress))?;
    Ok(Subject {
        name: shape.to_string(),
        prompt: PromptTokens::Random { vocab: decoder.config().vocab, seed: SEED },
        weights: Weights::Random(Arc::new(decoder.with_kv(kv)?)),
        needles: vec![],
        notes: vec![format!("random weights ({weights}) of shape {shape}: speed only")],
    })
}

fn model(arguments: &BenchArguments) -> Result<Subject> {
    let name = arguments.model.as_deref().unwrap_or_default();
    let device = models::device(arguments.device)?;
    let source = models::resolve(name)?.of_architecture(arguments.architecture.as_deref());
    let opened = OpenedModel::open_to_round(&source, arguments.weights.into(), &device)?;
    let plan = plan(arguments, &opened.config)?;
    let needles = match arguments.quality {
        Some(prompts) => {
            bench::quality_grid(&plan.lengths, prompts)?.prompts(&opened.tokenizer, &UNHEEDED)?
        }
        None => vec![],
    };
    // Quality is compared with the full model, even if its time is not measured.
    let full = plan.lengths.iter().max().filter(|_| !needles.is_empty());
    let full = full.map(|&longest| {
        let full = Policy::full(opened.config.layers).for_model(&opened.config);
        full.capacity(longest, plan.new_tokens)
    });
    let held = full.into_iter().chain([plan.most_in_memory(&device)]);
    let held = held.max_by_key(|held| held.iter().sum::<usize>()).unwrap_or_default();
    let need = models::memory_need(&opened, arguments.weights, &device, &arguments.kv, &held)?;
    let model = models::load(opened, arguments.weights, &device, &need)?;
    let model = models::with_kv(model, &arguments.kv)?;
    let model = models::with_adapter(model, &arguments.adapter, &plan.policies)?;
    let prompts = parse_prompts(TEXT_NAME, TEXT)?;
    let text: Vec<String> = prompts.iter().map(Prompt::text).collect();
    Ok(Subject {
        prompt: PromptTokens::of_text(&model.tokenizer, &text.join("\n\n"))?,
        name: model.name.clone(),
        weights: Weights::Model(Box::new(model)),
        needles,
        notes: vec![],
    })
}

/// Describes, per prompt length, policies whose names do not give all settings, and their KV transfers.
fn plans(plan: &BenchPlan, decoder: &Decoder) -> Vec<String> {
    let token_bytes = decoder.sequence_need(&[]).kv_token_layer as f64;
    let at = |length: usize| {
        plan.policies.iter().filter_map(move |policy| {
            let told = policy.plan(length, &|tokens| output::bytes(tokens as f64 * token_bytes))?;
            Some(format!("{policy}: {told}"))
        })
    };
    plan.lengths.iter().flat_map(|&length| at(length)).collect()
}

/// The path and format of `--out`.
struct Destination {
    path: PathBuf,
    format: MeasurementFormat,
    /// The run that the measurements are stored with, if `--out` is a run folder.
    run: Option<Run>,
}

#[derive(Clone, Copy)]
enum MeasurementFormat {
    Json,
    Parquet,
    Svg,
}

impl Destination {
    fn of(path: &Path) -> Result<Self> {
        if path.is_dir() {
            let run = Run::open(path)?;
            return Ok(Self {
                path: path.join(bench::FILE_NAME),
                format: MeasurementFormat::Json,
                run: Some(run),
            });
        }
        output::check_folder(path)?;
        let format = match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => MeasurementFormat::Json,
            Some("parquet") => MeasurementFormat::Parquet,
            Some("svg") => MeasurementFormat::Svg,
            _ => {
                return Err(Error::input(format!(
                    "{}: measurements are written as .json, .parquet or .svg, or into a run folder; choose one of \
                     these endings or an existing run",
                    path.display()
                )));
            }
        };
        Ok(Self { path: path.to_owned(), format, run: None })
    }

    /// Fails if the run folder is of another model.
    fn check_model(&self, subject: &Subject) -> Result<()> {
        match &self.run {
            Some(run) if subject.sha256() != Some(run.manifest().model.sha256.as_str()) => {
                Err(Error::input(format!(
                    "{} is a run of {}, not of {}; choose another --out, e.g. bench.json",
                    run.folder().display(),
                    run.manifest().model.name,
                    subject.name
                )))
            }
            _ => Ok(()),
        }
    }

    fn write(&self, report: &BenchReport) -> Result<()> {
        let bytes = match self.format {
            MeasurementFormat::Json => output::json_text(report)?.into_bytes(),
            MeasurementFormat::Parquet => bench::to_parquet(report)?,
            MeasurementFormat::Svg => {
                let Some(svg) = layerscope_report::trade_off_svg(report) else {
                    terminal::say(&format!(
                        "layerscope: no prompt was measured under every policy; {} is not written",
                        self.path.display()
                    ));
                    return Ok(());
                };
                svg.into_bytes()
            }
        };
        layerscope_engine::write_file(&self.path, &bytes)
    }
}

/// A table per length, then notes on how to read it.
fn text(report: &BenchReport) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "{}: {} layers, weights {} ({}), {}, {} threads\n",
        terminal::line(&report.model),
        report.layers,
        report.weights.name(),
        output::bytes(report.weight_bytes as f64),
        machine.gpu.as_ref().or(machine.cpu.as_ref()).unwrap_or(&machine.architecture),
        machine.threads
    );
    for block in report.results.chunk_by(|a, b| a.length == b.length) {
        let Measurement { length, new_tokens, repeats, .. } = &block[0];
        // After an interrupt, later policies have one repeat fewer.
        let uneven = if block.iter().any(|other| other.repeats != *repeats) { " or fewer" } else { "" };
        text += &format!("\n{length} prompt tokens, {new_tokens} new, repeats: {repeats}{uneven}\n\n");
        let quality = report.results.iter().any(|result| result.quality.is_some());
        let header: Vec<&str> = if quality { [&HEADER[..], &QUALITY].concat() } else { HEADER.to_vec() };
        let rows = block.iter().map(|result| {
            let cells = if quality { quality_cells(result.quality.as_ref()).to_vec() } else { vec![] };
            [row(result), cells].concat()
        });
        text += &output::table(&header, rows.collect());
        text.push('\n');
        let moved = block.iter().filter_map(|result| Some(transfers_row(&result.policy, &result.transfers?)));
        let moved: Vec<Vec<String>> = moved.collect();
        if !moved.is_empty() {
            text += &format!("\n{}\n", output::table(&TRANSFERS, moved));
        }
    }
    text += "\nTTFT: time to first token. TPOT: time per output token after the first. ± sample standard deviation.\n\
             /full: medians over those of the full model; model: what the cost model predicts.";
    if report.results.iter().any(|result| result.transfers.is_some()) {
        text += "\nKV taken away and brought back: of one generation; waited: for what came back, of the time that bringing it \
                 back took;\nlongest excess: by how much a wait was longer than its own transfer at most.";
    }
    if let Some(quality) = report.results.iter().find_map(|result| result.quality) {
        let new_tokens = report.results[0].new_tokens;
        text += &format!(
            "\nKL(full ‖ policy) of next-token distributions in nats per token, share of steps with the same top token, and \
             change of the NLL,\nalong {new_tokens} tokens of the full model's own continuation; found: share of prompts whose \
             hidden number is in {new_tokens} generated\ntokens. Prompts at each length: {}.",
            quality.prompts
        );
    }
    for note in &report.notes {
        text += &format!("\n{}", terminal::line(note));
    }
    text
}

const TRANSFERS: [&str; 8] = [
    "policy",
    "KV taken away MiB",
    "brought back MiB",
    "swaps",
    "active already %",
    "waited ms",
    "transfers ms",
    "longest excess ms",
];

fn transfers_row(policy: &str, moved: &Transfers) -> Vec<String> {
    let milliseconds = |seconds: f64| format!("{:.2}", seconds * 1e3);
    vec![
        policy.to_owned(),
        mebibytes(moved.bytes_out),
        mebibytes(moved.bytes_in),
        format!("{} of {}", moved.swaps, moved.rescored),
        moved.hit_rate.map_or_else(|| "–".to_owned(), |rate| format!("{:.0}", rate * 100.0)),
        milliseconds(moved.wait_s + moved.write_wait_s),
        milliseconds(moved.transfer_s),
        milliseconds(moved.longest_excess_s),
    ]
}

const HEADER: [&str; 14] = [
    "policy",
    "TTFT s",
    "median",
    "TPOT ms",
    "median",
    "E2E s",
    "KV MiB",
    "model",
    "peak MiB",
    "layer-tokens",
    "TTFT/full",
    "model",
    "TPOT/full",
    "model",
];

/// Columns that are present if quality was measured.
const QUALITY: [&str; 4] = ["KL nats", "same top", "ΔNLL", "found"];

fn quality_cells(quality: Option<&Quality>) -> [String; 4] {
    let figure =
        |value: fn(&Quality) -> f64, decimals| output::figure(quality.map_or(f64::NAN, value), decimals);
    [figure(|q| q.kl, 4), figure(|q| q.top1, 3), figure(|q| q.dnll, 4), figure(|q| q.found, 2)]
}

fn mebibytes(bytes: u64) -> String {
    output::figure(bytes as f64 / f64::from(1 << 20), 2)
}

fn row(measurement: &Measurement) -> Vec<String> {
    let spread = |statistics: &Statistics, factor: f64, decimals| {
        let [mean, std] = [statistics.mean, statistics.std].map(|s| output::figure(s * factor, decimals));
        format!("{mean} ± {std}")
    };
    let ratio = |ratio: Option<f64>| output::figure(ratio.unwrap_or(f64::NAN), 2);
    let Measurement { ttft_s, tpot_s, .. } = measurement;
    vec![
        measurement.policy.clone(),
        spread(ttft_s, 1.0, 3),
        output::figure(ttft_s.median, 3),
        spread(tpot_s, 1e3, 2),
        output::figure(tpot_s.median * 1e3, 2),
        output::figure(measurement.e2e_s.as_ref().map_or(f64::NAN, |seconds| seconds.median), 3),
        mebibytes(measurement.kv_bytes),
        mebibytes(measurement.kv_bytes_model),
        measurement.peak_bytes.map_or_else(|| "–".to_owned(), mebibytes),
        measurement.layer_tokens.to_string(),
        ratio(measurement.ttft_ratio),
        ratio(Some(measurement.ttft_ratio_model)),
        ratio(measurement.tpot_ratio),
        ratio(Some(measurement.tpot_ratio_model)),
    ]
}
