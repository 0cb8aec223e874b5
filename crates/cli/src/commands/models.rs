//! `layerscope models`: the models on this disk, where they are, and whether they can be loaded.

use crate::args::ModelsArguments;
use crate::{models, output, progress, terminal};
use layerscope_engine::{ModelSource, OpenedModel, Result};
use layerscope_models::{Places, local_models};
use serde_json::json;
use std::process::ExitCode;

struct Listed {
    source: ModelSource,
    origin: String,
    place: String,
    bytes: u64,
    opened: Result<OpenedModel>,
}

pub(crate) fn run(arguments: &ModelsArguments) -> Result<ExitCode> {
    let places = Places::from_environment();
    let embedded = models::embedded();
    let opened = OpenedModel::open(&embedded);
    let bytes = opened.as_ref().map_or(0, |opened| opened.weight_types().iter().map(|kind| kind.bytes).sum());
    let mut listed = vec![Listed {
        source: embedded,
        origin: "layerscope".to_owned(),
        place: "part of the program".to_owned(),
        bytes,
        opened,
    }];
    progress::waiting("reading models", || {
        listed.extend(local_models(&places).into_iter().map(|model| {
            let source = ModelSource::named(model.name, &model.path);
            Listed {
                opened: OpenedModel::open(&source),
                source,
                origin: model.origin.to_string(),
                place: model.path.display().to_string(),
                bytes: model.bytes,
            }
        }));
    });
    if arguments.json {
        let models: Vec<_> = listed
            .iter()
            .map(|model| {
                json!({
                    "name": model.source.name,
                    "origin": model.origin,
                    "path": model.place,
                    "bytes": model.bytes,
                    "loadable": model.opened.is_ok(),
                    "config": model.opened.as_ref().ok().map(|opened| &opened.config),
                    "reason": model.opened.as_ref().err().map(ToString::to_string),
                })
            })
            .collect();
        output::json(&json!({ "models": models, "searched": searched(&places) }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = listed.iter().map(|model| {
        let numbers = match &model.opened {
            Ok(opened) => {
                let config = &opened.config;
                [config.family.to_owned(), config.layers.to_string(), config.context.to_string()]
            }
            Err(_) => ["–", "–", "–"].map(str::to_owned),
        };
        [model.source.name.clone(), output::bytes(model.bytes as f64)]
            .into_iter()
            .chain(numbers)
            .chain([model.origin.clone(), if model.opened.is_ok() { "yes" } else { "no" }.to_owned()])
            .collect()
    });
    terminal::print(&output::table(
        &["model", "size", "family", "layers", "context", "found in", "loadable"],
        rows.collect(),
    ))?;
    for (model, error) in listed.iter().filter_map(|model| Some((model, model.opened.as_ref().err()?))) {
        let sentence = terminal::line(&format!("{} cannot be loaded: {error}", model.source.name));
        terminal::print(&format!("\n{sentence}"))?;
    }
    terminal::print(&format!(
        "\nsearched: {}; any other model is given by its path, or by its Hugging Face id",
        searched(&places).join(", ")
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The folders that were searched.
fn searched(places: &Places) -> Vec<String> {
    let folders = std::iter::once(&places.current_folder)
        .chain(&places.models_folder)
        .chain(&places.hub.cache)
        .chain(&places.ollama)
        .chain(&places.lm_studio)
        .chain(&places.llama_cpp);
    folders.map(|folder| folder.display().to_string()).collect()
}
