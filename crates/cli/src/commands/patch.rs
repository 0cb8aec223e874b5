//! `layerscope patch`: activations of one prompt's run in the run of another.

mod output;

use super::chosen;
use crate::args::{ModelArguments, PatchArguments, Weights};
use crate::interrupt::heeded;
use crate::progress::PatchBar;
use crate::{models, terminal};
use layerscope_cutoff::patching::PatchEvent;
use layerscope_diagnostics::patching::{PatchDirection, PatchMap};
use layerscope_diagnostics::run::{MANIFEST, PATCHES, Run};
use layerscope_engine::{Error, Interrupt, Model, Policy, PromptText, Result, Tokenizer};
use layerscope_recording::patching::{KeptPatches, PatchRequest, patch_prompts, patch_tokens};
use output::Destination;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) fn run(arguments: &PatchArguments) -> Result<ExitCode> {
    let destination = arguments.out.as_deref().map(Destination::of).transpose()?;
    let done = match Path::new(&arguments.model).join(MANIFEST).is_file() {
        true => of_recorded(arguments)?,
        false => of_texts(arguments)?,
    };
    let Done { map, model, file, kept } = &done;
    if let Some(destination) = &destination {
        destination.write(map, model)?;
    }
    output::print(map, model, arguments, file.as_deref().filter(|_| *kept))?;
    if map.is_complete() {
        return Ok(ExitCode::SUCCESS);
    }
    let earlier = match file {
        Some(file) if !kept => format!("; {} keeps its earlier map, of which more is done", file.display()),
        _ => String::new(),
    };
    terminal::say(&format!("layerscope: interrupted; {}{earlier}", output::done(map)));
    Ok(ExitCode::from(Error::Interrupted.exit_code()))
}

/// A map and the model that it is of.
struct Done {
    map: PatchMap,
    model: Model,
    /// The file of the run folder for maps.
    file: Option<PathBuf>,
    /// Whether it has this one.
    kept: bool,
}

fn of_texts(arguments: &PatchArguments) -> Result<Done> {
    if arguments.run_model.is_some() {
        return Err(Error::input(format!(
            "--model is for a run folder, which {} is not (it has no {MANIFEST}); leave it out",
            arguments.model
        )));
    }
    let device = models::device(arguments.device)?;
    let weights = arguments.weights.unwrap_or(Weights::Native);
    let model = ModelArguments {
        model: arguments.model.clone(),
        weights,
        architecture: arguments.architecture.clone(),
        device: arguments.device,
    };
    let opened = models::open(&model, &device)?;
    let tokens = |name, text| prompt_tokens(name, text, arguments.raw, &opened.tokenizer);
    let [clean, corrupted] = [tokens("clean", &arguments.clean)?, tokens("corrupted", &arguments.corrupted)?];
    opened.config.check_sequence(clean.len(), 1)?;
    let request = request(arguments, [opened.config.layers, clean.len()])?;
    let kept = Policy::full(opened.config.layers).in_memory(clean.len(), 1, &device);
    let need = opened.memory_need(weights.into(), &device, &kept);
    let model = models::load(opened, weights, &device, &need)?;
    let model = models::with_adapter(model, &arguments.adapter, &[])?;
    let map =
        shown(|interrupt, observe| patch_tokens(&model, [&clean, &corrupted], &request, interrupt, observe))?;
    Ok(Done { map, model, file: None, kept: false })
}

fn of_recorded(arguments: &PatchArguments) -> Result<Done> {
    let given = [
        ("--raw", arguments.raw),
        ("--weights", arguments.weights.is_some()),
        ("--architecture", arguments.architecture.is_some()),
    ];
    if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
        return Err(Error::input(format!(
            "{} is a run folder, whose prompts and model are as they were recorded; leave {name} out",
            arguments.model
        )));
    }
    let run = Run::open(Path::new(&arguments.model))?;
    let ids = [arguments.clean.as_str(), arguments.corrupted.as_str()];
    // Before the model is loaded.
    let [clean, corrupted] = ids.map(|id| run.prompt(id));
    corrupted?;
    let request = request(arguments, [run.manifest().model.layers, clean?.p])?;
    let model = models::of_run(&run, arguments.run_model.as_deref(), arguments.device)?;
    let model = models::with_adapter(model, &arguments.adapter, &[])?;
    let KeptPatches { map, kept } =
        shown(|interrupt, observe| patch_prompts(&run, &model, ids, &request, interrupt, observe))?;
    Ok(Done { map, model, file: Some(run.folder().join(PATCHES)), kept })
}

/// What is asked of a model of so many layers and prompts of so many tokens.
fn request(arguments: &PatchArguments, [layers, p]: [usize; 2]) -> Result<PatchRequest> {
    let places =
        |text: &Option<String>, all, name| text.as_deref().map(|text| chosen(text, all, name)).transpose();
    Ok(PatchRequest {
        site: arguments.what,
        direction: match arguments.noising {
            true => PatchDirection::Noising,
            false => PatchDirection::Denoising,
        },
        metric: arguments.metric.map(Into::into),
        answer: arguments.answer.clone(),
        wrong: arguments.wrong.clone(),
        layers: places(&arguments.layers, layers, "layer")?,
        positions: places(&arguments.positions, p, "position")?,
    })
}

/// Runs what can be interrupted, with its progress.
fn shown<T>(work: impl FnOnce(&Interrupt, &mut dyn FnMut(PatchEvent)) -> Result<T>) -> Result<T> {
    let bar = PatchBar::new();
    let done = heeded(|interrupt| work(interrupt, &mut |event| bar.observe(event)));
    bar.finish();
    done
}

fn prompt_tokens(name: &str, text: &str, raw: bool, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    if text.is_empty() {
        return Err(Error::input(format!("the {name} prompt is empty; give some text with --{name}")));
    }
    match raw {
        true => Ok(tokenizer.with_bos(tokenizer.encode_fitting(text)?)),
        false => tokenizer.encode_prompt(&PromptText::Plain(text.to_owned())),
    }
}
