//! Finding and loading models.

use crate::args::{ModelArguments, PromptArguments, Weights};
use crate::progress;
use layerscope_engine::{
    Error, GgufFile, Model, ModelSource, PromptText, Result, Tokenizer, WeightsPrecision,
};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The embedded model's name.
pub(crate) const EMBEDDED_NAME: &str = "layerscope-tiny";
const EMBEDDED: &[u8] = include_bytes!("../../../fixtures/tiny/layerscope-tiny.gguf");

pub(crate) fn embedded() -> ModelSource {
    ModelSource::Embedded { name: EMBEDDED_NAME, bytes: EMBEDDED }
}

/// The folder for what can be made or fetched again.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    std::env::var_os("LAYERSCOPE_CACHE").map(PathBuf::from).or_else(|| {
        let base = std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
        base.or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
            .map(|base| base.join("layerscope"))
    })
}

/// Folders that are searched for models, in order.
pub(crate) fn folders() -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::from(".")];
    folders.extend(cache_folder().map(|cache| cache.join("models")));
    folders
}

/// Every model that can be loaded by its name, as a run's manifest has it.
pub(crate) fn named() -> Vec<(String, ModelSource)> {
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let found = found().into_iter().filter_map(|path| Some((name(&path)?, ModelSource::Path(path))));
    std::iter::once((EMBEDDED_NAME.to_owned(), embedded())).chain(found).collect()
}

/// GGUF files and checkpoint folders in the searched folders, by path.
pub(crate) fn found() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = folders()
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| {
            let gguf = path.is_file() && path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
            gguf || (path.join("config.json").is_file() && path.join("tokenizer.json").is_file())
        })
        .collect();
    paths.sort();
    paths
}

/// The model that a user means: an existing path, the embedded model's name, or the name of one that was found.
pub(crate) fn resolve(name: &str) -> Result<ModelSource> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(ModelSource::Path(path.to_owned()));
    }
    if name == EMBEDDED_NAME {
        return Ok(embedded());
    }
    let named = |path: &PathBuf| {
        path.file_name().is_some_and(|file| file == name) || path.file_stem().is_some_and(|stem| stem == name)
    };
    found().into_iter().find(named).map(ModelSource::Path).ok_or_else(|| {
        Error::input(format!("no model at {name}; give a path, or a name that `layerscope models` lists"))
    })
}

pub(crate) fn load(arguments: &ModelArguments) -> Result<Model> {
    load_named(&arguments.model, arguments.weights)
}

/// The model of a path or name.
pub(crate) fn load_named(name: &str, weights: Weights) -> Result<Model> {
    load_source(&resolve(name)?, weights.into())
}

pub(crate) fn load_source(source: &ModelSource, precision: WeightsPrecision) -> Result<Model> {
    progress::loading(|progress| Model::load(source, None, precision, progress))
}

/// The tokenizer of a model alone, without its weights.
pub(crate) fn load_tokenizer(name: &str) -> Result<Tokenizer> {
    let file = match resolve(name)? {
        ModelSource::Embedded { name, bytes } => GgufFile::in_memory(name, bytes)?,
        ModelSource::Path(path) if path.is_dir() => return Tokenizer::from_directory(&path),
        ModelSource::Path(path) => GgufFile::open(&path)?,
    };
    Tokenizer::from_gguf(file.metadata(), file.path())
}

/// The prompt's token ids.
pub(crate) fn prompt_tokens(arguments: &PromptArguments, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let text = match (&arguments.prompt, &arguments.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text(path)?,
        (None, None) => String::new(),
    };
    if text.is_empty() {
        return Err(Error::input("the prompt is empty; give some text"));
    }
    if arguments.raw {
        let mut tokens = tokenizer.encode(&text)?;
        if let Some(bos) =
            tokenizer.bos_id().filter(|bos| tokenizer.adds_bos() && tokens.first() != Some(bos))
        {
            tokens.insert(0, bos);
        }
        return Ok(tokens);
    }
    tokenizer.encode_prompt(&PromptText::Plain(text))
}

fn read_text(path: &Path) -> Result<String> {
    let mut bytes = vec![];
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes))
    };
    read.map_err(|e| Error::io("read the prompt", path, &e))?;
    String::from_utf8(bytes)
        .map_err(|e| Error::input(format!("{}: not UTF-8 text ({e}); save it as UTF-8", path.display())))
}
