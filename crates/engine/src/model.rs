//! A model from a GGUF file or a Hugging Face folder: first opened (config and tokenizer), then loaded (weights).

mod hash;
mod source;

pub use source::{ModelFiles, ModelSource};

use crate::adapter::{Adapter, AdapterInfo, AdapterRows};
use crate::memory::{self, MemoryNeed};
use crate::policy::{Policy, ZERO_SHOT};
use crate::weights::{FileBytes, GgufFile, SafetensorsFiles, WeightsPrecision};
use crate::{Decoder, Device, Error, KvPrecision, ModelConfig, Result, Tokenizer};
use hash::FileHash;
use layerscope_kernels::matmul::Layout;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{slice, thread};

/// A loaded model. A clone shares its weights.
#[derive(Clone)]
pub struct Model {
    /// Display name.
    pub name: String,
    hash: FileHash,
    /// Where its file or folder is, as an absolute path; `None` for a model that is part of the program.
    pub path: Option<PathBuf>,
    /// Config and weights.
    pub decoder: Arc<Decoder>,
    /// Tokenizer and chat template.
    pub tokenizer: Arc<Tokenizer>,
    /// Precision of the weights.
    pub precision: WeightsPrecision,
    /// The adapter beside the weights, where there is one.
    pub adapter: Option<ModelAdapter>,
}

/// The adapter that a model runs with.
#[derive(Clone)]
pub struct ModelAdapter {
    /// Name of its folder.
    pub name: String,
    /// SHA-256 of its matrices' file.
    pub sha256: String,
    /// The rows it acts on.
    pub rows: AdapterRows,
    /// What it was made for, where its folder says so.
    pub made_for: Option<AdapterInfo>,
    /// The model without it.
    pub base: Arc<Decoder>,
}

/// A model whose config and tokenizer are read, but not its weights.
pub struct OpenedModel {
    /// Display name.
    pub name: String,
    /// Architecture numbers.
    pub config: ModelConfig,
    /// Tokenizer and chat template.
    pub tokenizer: Tokenizer,
    path: Option<PathBuf>,
    files: Files,
}

/// What the weights are read from.
enum Files {
    Gguf(GgufFile),
    /// The text of `config.json`, and the files beside it.
    Safetensors(String, SafetensorsFiles),
}

impl Model {
    /// Opens and loads a model onto a device; `progress(done, all)` is called after each layer and may stop with an error.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::MalformedFile`], [`Error::UnsupportedFamily`], [`Error::OutOfMemory`].
    pub fn load(
        source: &ModelSource,
        precision: WeightsPrecision,
        device: &Device,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Self> {
        let opened = OpenedModel::open_to_load(source, precision, device)?;
        memory::check(&opened.name, &opened.memory_need(precision, device, &[]), device)?;
        let model = opened.load(precision, device, progress)?;
        match &source.adapter {
            Some(adapter) => model.with_adapter(adapter),
            None => Ok(model),
        }
    }

    /// Architecture numbers.
    pub fn config(&self) -> &ModelConfig {
        self.decoder.config()
    }

    /// SHA-256 of the GGUF file; of a folder, of its `config.json` and weight files in order of name. On a CPU in native precision the
    /// first call computes it, which takes seconds for a large file.
    pub fn sha256(&self) -> &str {
        self.hash.get()
    }

    /// The model that divergences refer to: without its adapter, with keys and values in the type that goes with its weights.
    ///
    /// # Errors
    /// As [`KvPrecision::check`].
    pub fn reference(&self) -> Result<Arc<Decoder>> {
        let base = self.adapter.as_ref().map_or(&self.decoder, |adapter| &adapter.base);
        let kv = KvPrecision::with(self.precision, base.device());
        if kv == base.kv_precision() { Ok(Arc::clone(base)) } else { Ok(Arc::new(base.with_kv(kv)?)) }
    }

    /// What its adapter was made for, where there is one that says so.
    pub fn made_for(&self) -> Option<&AdapterInfo> {
        self.adapter.as_ref()?.made_for.as_ref()
    }

    /// What has to be said of a policy's output: an adapter that was made for it is its training.
    pub fn caveat(&self, policy: &Policy) -> Option<&'static str> {
        if policy.rules().searched_on().is_some_and(|sha256| sha256 != self.sha256()) {
            return Some("its KV heads were searched on another model");
        }
        let is_trained = self.made_for().is_some_and(|made_for| made_for.policy == policy.to_string());
        policy.caveat().filter(|caveat| !(is_trained && *caveat == ZERO_SHOT))
    }

    /// [`Self::caveat`] of some policies, a sentence for each that needs one.
    pub fn caveats(&self, policies: &[Policy]) -> Vec<String> {
        policies.iter().filter_map(|policy| Some(format!("{policy}: {}", self.caveat(policy)?))).collect()
    }

    /// The same with an adapter beside its weights, which both share: a folder of PEFT's, or a GGUF file.
    ///
    /// # Errors
    /// As [`Adapter::read`]; [`Error::Input`] where it has one already.
    pub fn with_adapter(&self, folder: &Path) -> Result<Self> {
        self.adapted(folder, Decoder::with_adapter)
    }

    /// The same with an adapter in its weights.
    ///
    /// # Errors
    /// As [`Self::with_adapter`]; [`Error::Input`] on an adapter of decode rows.
    pub fn with_merged_adapter(&self, folder: &Path) -> Result<Self> {
        self.adapted(folder, Decoder::merged)
    }

    /// The same, which keeps keys and values in a type.
    ///
    /// # Errors
    /// As [`KvPrecision::check`].
    pub fn with_kv(&self, kv: KvPrecision) -> Result<Self> {
        Ok(Self { decoder: Arc::new(self.decoder.with_kv(kv)?), ..self.clone() })
    }

    fn adapted(
        &self,
        folder: &Path,
        adapted: impl FnOnce(&Decoder, &Adapter) -> Result<Decoder>,
    ) -> Result<Self> {
        let (adapter, made_for) = Adapter::read(folder, self.config())?;
        let sha256 = hash::of_file(&Adapter::tensors_file(folder))?;
        let decoder = Arc::new(adapted(&self.decoder, &adapter)?);
        let path = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let base = Arc::clone(&self.decoder);
        Ok(Self {
            name: format!("{} + {name}", self.name),
            hash: self.hash.clone(),
            path: self.path.clone(),
            decoder,
            tokenizer: Arc::clone(&self.tokenizer),
            precision: self.precision,
            adapter: Some(ModelAdapter { name, sha256, rows: adapter.rows, made_for, base }),
        })
    }
}

impl Files {
    /// Reads the weight files into huge pages, where that can be.
    fn reader(&self, config: &ModelConfig) -> Box<dyn FnOnce() + Send> {
        match self {
            Self::Gguf(file) => Box::new(file.reader(config)),
            Self::Safetensors(_, files) => Box::new(files.reader()),
        }
    }

    /// The bytes of the weight files.
    fn bytes(&self) -> &[Arc<FileBytes>] {
        match self {
            Self::Gguf(file) => slice::from_ref(file.bytes()),
            Self::Safetensors(_, files) => files.bytes(),
        }
    }

    /// The hash of [`Model::sha256`], once it is asked for.
    fn hash(&self) -> FileHash {
        let text = match self {
            Self::Gguf(_) => String::new(),
            Self::Safetensors(text, _) => text.clone(),
        };
        let files = self.bytes().to_vec();
        FileHash::later(move || {
            hash::of(|take| {
                take(text.as_bytes());
                files.iter().for_each(|file| file.for_each_piece(&mut *take));
            })
        })
    }
}

/// Whether weights stay as their file has them, and are multiplied from there.
fn stay(precision: WeightsPrecision, device: &Device) -> bool {
    precision == WeightsPrecision::Native && matches!(device, Device::Cpu)
}

impl OpenedModel {
    /// Reads a model's config and tokenizer.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::MalformedFile`], [`Error::UnsupportedFamily`].
    pub fn open(source: &ModelSource) -> Result<Self> {
        Self::opened(source, None)
    }

    /// [`Self::open`] for a model that is about to be loaded in this precision onto this device: on a CPU in native precision a thread
    /// reads its files meanwhile.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_to_load(source: &ModelSource, precision: WeightsPrecision, device: &Device) -> Result<Self> {
        Self::opened(source, stay(precision, device).then_some(Layout::Rows))
    }

    /// [`Self::open_to_load`] for sessions that round ([`crate::Session::round_activations`]): quantised weights are brought into the order from
    /// which their products are faster. Others get the same numbers, more slowly.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_to_round(source: &ModelSource, precision: WeightsPrecision, device: &Device) -> Result<Self> {
        Self::opened(source, stay(precision, device).then_some(Layout::Interleaved))
    }

    /// `layout`: into which weights are read meanwhile, if they are.
    fn opened(source: &ModelSource, layout: Option<Layout>) -> Result<Self> {
        let architecture = source.architecture.as_deref();
        let begin = |read: Box<dyn FnOnce() + Send>| {
            if layout.is_some() {
                // Where no thread can be started, `load` reads them.
                let _ = thread::Builder::new().name("weights".into()).spawn(read);
            }
        };
        let in_layout = |file: GgufFile| file.in_layout(layout.unwrap_or(Layout::Rows));
        let (config, tokenizer, files) = match &source.files {
            ModelFiles::Path(path) if path.is_dir() => {
                let (text, config, files) = folder_config(path, architecture)?;
                begin(Box::new(files.reader()));
                (config, Tokenizer::from_directory(path)?, Files::Safetensors(text, files))
            }
            ModelFiles::Path(path) => Self::gguf(in_layout(GgufFile::open(path)?), architecture, begin)?,
            ModelFiles::Embedded(bytes) => {
                let file = GgufFile::in_memory(&source.name, *bytes)?;
                Self::gguf(in_layout(file), architecture, begin)?
            }
        };
        let (known, rows) = (tokenizer.vocab_size(), config.vocab);
        if known > rows {
            return Err(Error::input(format!(
                "{}: the tokenizer has {known} tokens but the model only {rows}; they are not of one model",
                tokenizer.source().display()
            )));
        }
        let tokenizer = tokenizer.within(config.context);
        let path = match &source.files {
            ModelFiles::Path(path) => std::path::absolute(path).ok(),
            ModelFiles::Embedded(_) => None,
        };
        Ok(Self { name: source.name.clone(), path, config, tokenizer, files })
    }

    fn gguf(
        mut file: GgufFile,
        architecture: Option<&str>,
        begin: impl FnOnce(Box<dyn FnOnce() + Send>),
    ) -> Result<(ModelConfig, Tokenizer, Files)> {
        let config = gguf_config(&file, architecture)?;
        begin(Box::new(file.reader(&config)));
        let tokenizer = Tokenizer::from_gguf(file.metadata(), file.path())?;
        file.forget_vocabulary();
        Ok((config, tokenizer, Files::Gguf(file)))
    }

    /// Number and bytes of the weights by their type in the file; most bytes first.
    pub fn weight_types(&self) -> Vec<WeightType> {
        match &self.files {
            Files::Gguf(file) => file.weight_types(),
            Files::Safetensors(_, files) => files.weight_types(),
        }
    }

    /// Memory on a device for the weights in a precision, the tokenizer and a sequence that keeps `kept` tokens at each layer.
    pub fn memory_need(&self, precision: WeightsPrecision, device: &Device, kept: &[usize]) -> MemoryNeed {
        let types = self.weight_types();
        let bytes = types.iter().map(|kind| match precision {
            WeightsPrecision::Native => kind.bytes,
            WeightsPrecision::F32 => kind.elements.saturating_mul(size_of::<f32>() as u64),
        });
        let bytes = bytes.fold(0, u64::saturating_add);
        MemoryNeed::of_weights(&self.config, KvPrecision::with(precision, device), bytes, device)
            .with_tokenizer(self.tokenizer.bytes())
            .with_sequence(&self.config, kept)
    }

    /// Loads the weights onto a device; `progress(done, all)` is called after each layer and may stop with an error.
    ///
    /// # Errors
    /// [`Error::MalformedFile`], [`Error::OutOfMemory`].
    pub fn load(
        self,
        precision: WeightsPrecision,
        device: &Device,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Model> {
        let Self { name, path, config, tokenizer, files } = self;
        let stays = stay(precision, device);
        // Of weights that are dequantised or that a GPU gets, the file is read only once.
        if stays {
            files.reader(&config)();
        }
        let decoder = match &files {
            Files::Gguf(file) => {
                Decoder::load(config.clone(), &file.weights(&config)?, precision, device, progress)?
            }
            Files::Safetensors(_, files) => {
                Decoder::load(config.clone(), &files.weights(&config)?, precision, device, progress)?
            }
        };
        let hash = files.hash();
        if !stays {
            // Nothing else keeps the file.
            hash.get();
        }
        Ok(Model {
            name,
            hash,
            path,
            decoder: Arc::new(decoder),
            tokenizer: Arc::new(tokenizer),
            precision,
            adapter: None,
        })
    }
}

/// The weights of one type in a file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct WeightType {
    /// The type, e.g. `Q4_K`.
    pub name: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of weights.
    pub elements: u64,
    /// Their bytes in the file.
    pub bytes: u64,
}

impl WeightType {
    /// Sums tensors of (type, elements, bytes) by type; most bytes first.
    pub(crate) fn sums(tensors: impl Iterator<Item = (String, u64, u64)>) -> Vec<Self> {
        let mut sums: Vec<Self> = vec![];
        for (name, elements, bytes) in tensors {
            let index = sums.iter().position(|sum| sum.name == name).unwrap_or_else(|| {
                sums.push(Self { name, tensors: 0, elements: 0, bytes: 0 });
                sums.len() - 1
            });
            let sum = &mut sums[index];
            sum.tensors += 1;
            sum.elements = sum.elements.saturating_add(elements);
            sum.bytes = sum.bytes.saturating_add(bytes);
        }
        sums.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        sums
    }
}

/// Architecture numbers of a GGUF file, without loading its weights. `architecture` is what the user says the model is,
/// whatever its file says.
///
/// # Errors
/// [`Error::Input`] naming what is missing or unsupported.
pub fn gguf_config(file: &GgufFile, architecture: Option<&str>) -> Result<ModelConfig> {
    const EMBEDDING: &str = "token_embd.weight";
    let rope_factors = file.rope_factors()?;
    // The architecture is checked before tensors are looked for, so that an unsupported one is named as such.
    let vocab = file.shape(EMBEDDING).ok().and_then(|shape| shape.first().copied());
    let tied = file.shape("output.weight").is_err();
    let config = ModelConfig::from_gguf(
        file.metadata(),
        vocab.unwrap_or(1),
        tied,
        &rope_factors,
        architecture,
        file.path(),
    )?;
    file.shape(EMBEDDING)?;
    Ok(config)
}

/// The text of a folder's `config.json`, its architecture numbers and its weight files, without loading the weights.
///
/// # Errors
/// [`Error::Input`] naming what is missing, damaged or unsupported.
pub fn folder_config(
    folder: &Path,
    architecture: Option<&str>,
) -> Result<(String, ModelConfig, SafetensorsFiles)> {
    let path = folder.join("config.json");
    let text =
        layerscope_files::read_text(&path).map_err(|e| Error::io("read the model's config", &path, &e))?;
    let mut config = ModelConfig::from_json(&text, architecture, &path)?;
    let files = SafetensorsFiles::open(folder)?;
    // Some checkpoints leave the flag out and the matrix with it.
    config.tied_embeddings |= !files.has_unembedding(&config)?;
    Ok((text, config, files))
}
