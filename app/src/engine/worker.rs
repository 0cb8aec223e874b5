//! The engine's thread: runs commands one after the other and reports how each ended.

use super::events::Events;
use super::message::{Command, Event, LoadedModel};
use super::pattern::PatternReader;
use super::tiles::TileReader;
use super::{adapting, generation, patching, recording, span};
use layerscope_engine::{
    DeviceChoice, Error, Interrupt, Model, ModelFiles, ModelSource, Result, WeightsPrecision,
    check_interrupt, guarded,
};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// Finds the model of a path, a name or an id.
pub(super) type Resolve = fn(&str) -> Result<ModelSource>;

/// A command and its cancel flag.
pub(super) struct Request {
    pub(super) command: Command,
    pub(super) interrupt: Arc<Interrupt>,
}

/// The context of a command.
#[derive(Clone, Copy)]
pub(super) struct Task<'m, 'a> {
    pub(super) model: &'m Model,
    pub(super) events: &'a Events,
    pub(super) interrupt: &'a Interrupt,
}

/// Runs commands until the window is closed.
pub(super) fn run(requests: &Receiver<Request>, events: &Events, resolve: Option<Resolve>) {
    let mut model = None;
    while let Some(loaded) = serve(model.as_ref(), requests, events, resolve) {
        model = Some(loaded);
    }
}

/// Runs commands with one model, or none, until another is loaded, which it returns, or the window is closed.
fn serve(
    model: Option<&Model>,
    requests: &Receiver<Request>,
    events: &Events,
    resolve: Option<Resolve>,
) -> Option<Model> {
    let (mut patterns, mut tiles) = (PatternReader::default(), TileReader::default());
    for Request { command, interrupt } in requests {
        let command = match (command, resolve) {
            (Command::LoadModel { source, precision, device }, Some(resolve)) => {
                resolved(source, resolve).map(|source| Command::LoadModel { source, precision, device })
            }
            (command, _) => Ok(command),
        };
        let work = || perform(command?, model, (&mut patterns, &mut tiles), events, &interrupt);
        let mut loaded = None;
        match guarded(|| Ok::<_, Infallible>(work())) {
            Ok(Ok(model)) => loaded = model,
            // The user cancelled it.
            Ok(Err(Error::Interrupted)) => {}
            Ok(Err(error)) => events.deliver(Event::Failed(error.to_string())),
            Err(panic) => {
                let sentence =
                    format!("the engine stumbled over an error of its own ({panic}); please report it");
                events.deliver(Event::Failed(sentence));
            }
        }
        events.deliver(Event::Idle);
        if loaded.is_some() {
            return loaded;
        }
    }
    None
}

/// Runs a command; returns the model if it loads one.
fn perform(
    command: Command,
    model: Option<&Model>,
    (patterns, tiles): (&mut PatternReader, &mut TileReader),
    events: &Events,
    interrupt: &Interrupt,
) -> Result<Option<Model>> {
    check_interrupt(interrupt)?;
    let task = || match model {
        Some(model) => Ok(Task { model, events, interrupt }),
        None => Err(Error::input("no model is loaded; open one first")),
    };
    if !matches!(
        command,
        Command::PatternTiles { .. } | Command::ReadPattern { .. } | Command::Generate { .. }
    ) {
        // Others need the memory.
        tiles.forget();
    }
    match command {
        Command::LoadModel { source, precision, device } => {
            return load(&source, precision, device, events, interrupt).map(Some);
        }
        Command::Record { prompts, max_new_tokens, folder, adapter } => {
            recording::record(task()?, &prompts, max_new_tokens, folder, adapter.as_deref())?;
        }
        Command::Adapt { prompts, training, folder } => {
            adapting::adapt(task()?, &prompts, &training, folder)?;
        }
        Command::Generate { sides, max_new_tokens, sampling } => {
            generation::generate(task()?, &sides, max_new_tokens, sampling)?;
        }
        Command::ReadPattern { prompt_tokens, continuation, layers } => {
            patterns.read(task()?, prompt_tokens, &continuation, &layers)?;
        }
        Command::PatternTiles { text, policy, tiles: keys } => {
            tiles.compute(task()?, &text, &policy, &keys)?
        }
        Command::RemoveSpan { folder, prompt_id, span } => span::remove(task()?, folder, &prompt_id, span)?,
        Command::Patch { folder, prompts, request, adapter } => {
            patching::patch(task()?, folder, &prompts, &request, adapter.as_deref())?;
        }
        // Handled by the window's side and never queued.
        Command::Cancel => {}
    }
    Ok(None)
}

/// The source itself, or what its path names where there is no such file.
fn resolved(source: ModelSource, resolve: Resolve) -> Result<ModelSource> {
    let ModelSource { architecture, adapter, .. } = &source;
    match &source.files {
        ModelFiles::Path(path) if !path.exists() => {
            let found = resolve(&path.to_string_lossy())?;
            Ok(found.of_architecture(architecture.as_deref()).with_adapter(adapter.clone()))
        }
        _ => Ok(source),
    }
}

fn load(
    source: &ModelSource,
    precision: WeightsPrecision,
    device: DeviceChoice,
    events: &Events,
    interrupt: &Interrupt,
) -> Result<Model> {
    let device = device.open()?;
    let model = Model::load(source, precision, &device, &mut |done, all| {
        events.progress(Event::Loading { done, all });
        check_interrupt(interrupt)
    })?;
    let config = model.config();
    let loaded = LoadedModel {
        name: model.name.clone(),
        sha256: model.sha256().to_owned(),
        path: model.path.clone(),
        layers: config.layers,
        heads: config.heads,
        context: config.context,
        precision: precision.name().to_owned(),
        device: device.to_string(),
        has_chat_template: model.tokenizer.has_chat_template(),
    };
    check_interrupt(interrupt)?;
    events.send(Event::Loaded(loaded), interrupt)?;
    Ok(model)
}
