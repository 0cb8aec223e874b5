//! `layerscope models`: what can be loaded, and where it was found.

use crate::args::ModelsArguments;
use crate::{models, output};
use layerscope_engine::{GgufFile, ModelConfig, ModelSource, Result, Tokenizer, gguf_config};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

struct Listed {
    name: String,
    place: String,
    bytes: u64,
    config: Result<ModelConfig>,
}

pub(crate) fn run(arguments: &ModelsArguments) -> Result<ExitCode> {
    let mut listed = vec![];
    if let ModelSource::Embedded { name, bytes } = models::embedded() {
        let config = GgufFile::in_memory(name, bytes).and_then(|file| readable(&file));
        let bytes = bytes.len() as u64;
        listed.push(Listed { name: name.to_owned(), place: "embedded".to_owned(), bytes, config });
    }
    for path in models::found() {
        let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        listed.push(Listed {
            name,
            place: path.display().to_string(),
            bytes: size(&path),
            config: inspect(&path),
        });
    }
    if arguments.json {
        let models: Vec<_> = listed
            .iter()
            .map(|model| {
                json!({
                    "name": model.name,
                    "path": model.place,
                    "bytes": model.bytes,
                    "loadable": model.config.is_ok(),
                    "config": model.config.as_ref().ok(),
                    "reason": model.config.as_ref().err().map(ToString::to_string),
                })
            })
            .collect();
        output::json(&json!({ "models": models, "searched": models::folders() }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = listed.iter().map(|model| {
        let (layers, context, verdict) = match &model.config {
            Ok(config) => (config.layers.to_string(), config.context.to_string(), "yes".to_owned()),
            Err(error) => ("–".to_owned(), "–".to_owned(), format!("no: {error}")),
        };
        vec![
            model.name.clone(),
            output::bytes(model.bytes as f64),
            layers,
            context,
            model.place.clone(),
            verdict,
        ]
    });
    output::lines(&output::table(
        &["model", "size", "layers", "context", "where", "loadable"],
        rows.collect(),
    ))?;
    let folders: Vec<String> = models::folders().iter().map(|f| f.display().to_string()).collect();
    output::lines(&format!("\nsearched: {}; any other model is given by its path", folders.join(", ")))?;
    Ok(ExitCode::SUCCESS)
}

fn inspect(path: &Path) -> Result<ModelConfig> {
    if path.is_dir() {
        let config = path.join("config.json");
        let text = std::fs::read_to_string(&config)
            .map_err(|e| layerscope_engine::Error::io("read the model's config", &config, &e))?;
        return ModelConfig::from_json(&text, None, &config);
    }
    readable(&GgufFile::open(path)?)
}

fn readable(file: &GgufFile) -> Result<ModelConfig> {
    let config = gguf_config(file, None)?;
    Tokenizer::from_gguf(file.metadata(), file.path())?;
    Ok(config)
}

fn size(path: &Path) -> u64 {
    let len = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    if path.is_file() {
        return len(path);
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .map(|p| len(&p))
        .sum()
}
