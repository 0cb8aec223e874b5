//! Finding, fetching and loading models.

use crate::args::{AdapterArguments, DeviceArguments, KvArguments, ModelArguments, PromptArguments, Weights};
use crate::interrupt::{self, heeded};
use crate::progress::{self, FetchBar};
use crate::terminal;
use layerscope_diagnostics::run::Run;
use layerscope_engine::{
    Device, DeviceChoice, Error, KvPrecision, MemoryNeed, Model, ModelSource, OpenedModel, Policy,
    PromptText, Result, Tokenizer, WeightsPrecision, check_memory,
};
use layerscope_models::{LocalModel, Places, Reference, fetch};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The embedded model's name.
pub(crate) const EMBEDDED_NAME: &str = "layerscope-tiny";
const EMBEDDED: &[u8] = include_bytes!("../../../fixtures/tiny/layerscope-tiny.gguf");

pub(crate) fn embedded() -> ModelSource {
    ModelSource::embedded(EMBEDDED_NAME, EMBEDDED)
}

/// Every model that can be loaded by name, as run manifests name it.
pub(crate) fn named() -> Vec<ModelSource> {
    let local = layerscope_models::local_models(&Places::from_environment());
    std::iter::once(embedded()).chain(local.into_iter().map(source)).collect()
}

fn source(model: LocalModel) -> ModelSource {
    ModelSource::named(model.name, model.path)
}

/// Resolves what the user typed: an existing path, the embedded model's name, the name of a model on this
/// disk, or a Hugging Face id, which is downloaded.
pub(crate) fn resolve(name: &str) -> Result<ModelSource> {
    if name == EMBEDDED_NAME && !Path::new(name).exists() {
        return Ok(embedded());
    }
    let places = Places::from_environment();
    Ok(match Reference::parse(name, &places).map_err(error)? {
        Reference::Path(path) => ModelSource::path(path),
        Reference::Local(model) => source(model),
        Reference::Hub(hub) => {
            let mut bar = FetchBar::new();
            let path =
                heeded(|interrupt| fetch(&hub, &places, &mut |progress| bar.observe(progress), interrupt));
            bar.finish();
            interrupt::check()?;
            ModelSource::named(hub.to_string(), path.map_err(error)?)
        }
    })
}

fn error(error: layerscope_models::Error) -> Error {
    match error.kind() {
        layerscope_models::ErrorKind::Input => Error::input(error.to_string()),
        layerscope_models::ErrorKind::Failure => Error::failure(error.to_string()),
        layerscope_models::ErrorKind::Interrupted => Error::Interrupted,
    }
}

/// A model that is about to be loaded: configuration, tokenizer and tensor list. A thread may read its weights meanwhile.
pub(crate) fn open(arguments: &ModelArguments, device: &Device) -> Result<OpenedModel> {
    let source = resolve(&arguments.model)?.of_architecture(arguments.architecture.as_deref());
    OpenedModel::open_to_load(&source, arguments.weights.into(), device)
}

/// [`open`] for sessions that round activations, unless they are to be exact.
pub(crate) fn open_to_generate(
    arguments: &ModelArguments,
    device: &Device,
    exact: bool,
) -> Result<OpenedModel> {
    if exact {
        return open(arguments, device);
    }
    let source = resolve(&arguments.model)?.of_architecture(arguments.architecture.as_deref());
    OpenedModel::open_to_round(&source, arguments.weights.into(), device)
}

/// Opens the model of a path, name or id without loading its weights.
pub(crate) fn open_named(name: &str, architecture: Option<&str>) -> Result<OpenedModel> {
    OpenedModel::open(&resolve(name)?.of_architecture(architecture))
}

/// The device to run on. With `auto`, prints which GPU it is, or why the CPU is used instead.
pub(crate) fn device(arguments: DeviceArguments) -> Result<Device> {
    let opened = arguments.device.preferred().open();
    if arguments.device != DeviceChoice::Auto {
        return opened;
    }
    match opened {
        Ok(Device::Cpu) => Ok(Device::Cpu),
        Ok(device) => {
            terminal::say(&format!("layerscope: running on {device}; `--device cpu` runs on the CPU"));
            Ok(device)
        }
        Err(error) => {
            terminal::say(&format!("layerscope: running on the CPU: {error}"));
            Ok(Device::Cpu)
        }
    }
}

/// Memory for a model of which keys and values are kept in the type that is asked for, `kept` tokens at each layer.
///
/// # Errors
/// [`Error::Input`] where it cannot keep them in that type.
pub(crate) fn memory_need(
    opened: &OpenedModel,
    weights: Weights,
    device: &Device,
    kv: &KvArguments,
    kept: &[usize],
) -> Result<MemoryNeed> {
    let need = opened.memory_need(weights.into(), device, kept);
    let Some(kv) = kv.kv.map(KvPrecision::from) else { return Ok(need) };
    kv.check(&opened.config, weights.into(), device)?;
    Ok(need.with_kv(&opened.config, kv))
}

/// The model with keys and values in the type that is asked for.
pub(crate) fn with_kv(model: Model, kv: &KvArguments) -> Result<Model> {
    kv.kv.map_or(Ok(model.clone()), |kv| model.with_kv(kv.into()))
}

/// Loads the weights if the device's memory suffices for them and the work.
pub(crate) fn load(
    opened: OpenedModel,
    weights: Weights,
    device: &Device,
    need: &MemoryNeed,
) -> Result<Model> {
    check_memory(&opened.name, need, device)?;
    let model = progress::loading(|progress| opened.load(weights.into(), device, progress))?;
    // The process ends with its use. To free the tables of a tokenizer.json of 262,144 tokens would take a fifth of a second.
    std::mem::forget(Arc::clone(&model.tokenizer));
    // Hashing a large file takes seconds, so a known path is not hashed again; `record` always hashes its model.
    if let Some(path) = &model.path
        && !layerscope_models::is_known(&Places::from_environment(), path)
    {
        remember(model.sha256(), path);
    }
    Ok(model)
}

/// Remembers where a model was loaded from, so that its runs find it again.
pub(crate) fn remember(sha256: &str, path: &Path) {
    layerscope_models::remember(&Places::from_environment(), sha256, path);
}

/// Where the model of a SHA-256 was loaded from before, if it is still there.
pub(crate) fn remembered(sha256: &str) -> Option<PathBuf> {
    layerscope_models::remembered(&Places::from_environment(), sha256)
}

/// The model with an adapter beside its weights, where one is named. Warns where it was made for another model or policy.
pub(crate) fn with_adapter(model: Model, arguments: &AdapterArguments, policies: &[Policy]) -> Result<Model> {
    let Some(folder) = &arguments.adapter else { return Ok(model) };
    let model =
        if arguments.merge { model.with_merged_adapter(folder)? } else { model.with_adapter(folder)? };
    let Some(made_for) = model.made_for() else { return Ok(model) };
    let folder = folder.display();
    if made_for.model_sha256 != model.sha256() {
        let other = &made_for.model;
        terminal::say(&format!(
            "layerscope: {folder} was made for {other}, whose weights are others than this model's"
        ));
    }
    let others =
        policies.iter().map(Policy::to_string).filter(|name| *name != made_for.policy && name != "full");
    for other in others {
        terminal::say(&format!("layerscope: {folder} was made for {}, not for {other}", made_for.policy));
    }
    Ok(model)
}

/// Loads a model from its path.
pub(crate) fn load_source(
    source: &ModelSource,
    precision: WeightsPrecision,
    device: DeviceArguments,
) -> Result<Model> {
    let device = self::device(device)?;
    progress::loading(|progress| Model::load(source, precision, &device, progress))
}

/// The model that a run was recorded with, in the run's precision: the one that the user gives, or else the
/// one with the name in the run's manifest, or the file that it was loaded from before. The caller checks that its bytes are the same.
pub(crate) fn of_run(run: &Run, name: Option<&str>, device: DeviceArguments) -> Result<Model> {
    let precision = precision_of(run)?;
    let model = &run.manifest().model;
    let with_adapter = model.adapter.as_ref().and_then(|adapter| model.name.strip_suffix(&adapter.name));
    let recorded = with_adapter.and_then(|name| name.strip_suffix(" + ")).unwrap_or(&model.name);
    let source = match name {
        Some(name) => resolve(name)?,
        None => {
            let seen = || remembered(&model.sha256).map(ModelSource::path);
            ModelSource::find(&named(), recorded).cloned().or_else(seen).ok_or_else(|| {
                Error::input(format!(
                    "{} was recorded with {recorded}, which was found neither by its name nor where it was loaded from before; \
                     give its file or folder with --model",
                    run.folder().display()
                ))
            })?
        }
    };
    load_source(&source, precision, device)
}

/// The weight precision that a run was recorded with.
pub(crate) fn precision_of(run: &Run) -> Result<WeightsPrecision> {
    let weights = &run.manifest().weights;
    WeightsPrecision::from_name(weights).ok_or_else(|| {
        Error::input(format!(
            "{} was recorded with weights {weights:?}, which this version does not support",
            run.folder().display()
        ))
    })
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
        return Ok(tokenizer.with_bos(tokenizer.encode_fitting(&text)?));
    }
    tokenizer.encode_prompt(&PromptText::Plain(text))
}

fn read_text(path: &Path) -> Result<String> {
    let mut bytes = vec![];
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes)
    } else {
        layerscope_files::open(path).and_then(|mut file| file.read_to_end(&mut bytes))
    };
    read.map_err(|e| Error::io("read the prompt", path, &e))?;
    String::from_utf8(bytes)
        .map_err(|e| Error::input(format!("{}: not UTF-8 text ({e}); save it as UTF-8", path.display())))
}
