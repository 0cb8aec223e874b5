//! A model as a user has it: a GGUF file or a Hugging Face folder, opened into config, decoder and tokenizer.

use crate::weights::{GgufFile, SafetensorsFiles, WeightsPrecision};
use crate::{Decoder, Error, ModelConfig, Result, Tokenizer};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A loaded model.
pub struct Model {
    /// Name for people: the file's or folder's name.
    pub name: String,
    /// SHA-256 of the GGUF file; of a folder, of its `config.json` and weight files in order of name.
    pub sha256: String,
    /// Config and weights.
    pub decoder: Decoder,
    /// Tokenizer and chat template.
    pub tokenizer: Tokenizer,
    /// Precision of the weights.
    pub precision: WeightsPrecision,
}

/// Where a model comes from.
#[derive(Debug, Clone)]
pub enum ModelSource {
    /// A GGUF file, or a folder with config.json, tokenizer.json and safetensors.
    Path(PathBuf),
    /// A GGUF file that is part of the program.
    Embedded {
        /// Its name for people.
        name: &'static str,
        /// Its content.
        bytes: &'static [u8],
    },
}

impl Model {
    /// Opens and loads a model; `progress(done, all)` is told after each block and may break off with an error.
    /// `architecture` is what the user says the model is, whatever its file says.
    ///
    /// # Errors
    /// [`Error::Input`] naming the file that is absent, damaged or unsupported.
    pub fn load(
        source: &ModelSource,
        architecture: Option<&str>,
        precision: WeightsPrecision,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Self> {
        match source {
            ModelSource::Embedded { name, bytes } => {
                Self::from_gguf(&GgufFile::in_memory(name, *bytes)?, architecture, precision, progress)
            }
            ModelSource::Path(path) if path.is_dir() => {
                Self::from_folder(path, architecture, precision, progress)
            }
            ModelSource::Path(path) => {
                Self::from_gguf(&GgufFile::open(path)?, architecture, precision, progress)
            }
        }
    }

    fn from_gguf(
        file: &GgufFile,
        architecture: Option<&str>,
        precision: WeightsPrecision,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Self> {
        let config = gguf_config(file, architecture)?;
        let tokenizer = Tokenizer::from_gguf(file.metadata(), file.path())?;
        let decoder = Decoder::load(config.clone(), &file.weights(&config)?, precision, progress)?;
        let mut digest = Sha256::new();
        digest.update(file.bytes());
        Self::assemble(file.path(), digest, decoder, tokenizer, precision)
    }

    fn from_folder(
        folder: &Path,
        architecture: Option<&str>,
        precision: WeightsPrecision,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Self> {
        let (text, config, files) = folder_config(folder, architecture)?;
        let tokenizer = Tokenizer::from_directory(folder)?;
        let mut digest = Sha256::new();
        digest.update(text.as_bytes());
        for path in files.files() {
            hash_file(path, &mut digest)?;
        }
        let decoder = Decoder::load(config.clone(), &files.weights(&config)?, precision, progress)?;
        Self::assemble(folder, digest, decoder, tokenizer, precision)
    }

    fn assemble(
        path: &Path,
        digest: Sha256,
        decoder: Decoder,
        tokenizer: Tokenizer,
        precision: WeightsPrecision,
    ) -> Result<Self> {
        let (known, rows) = (tokenizer.vocab_size(), decoder.config().vocab);
        if known > rows {
            return Err(Error::input(format!(
                "{}: the tokenizer has {known} tokens but the model only {rows}; they are not of one model",
                path.display()
            )));
        }
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
        let sha256 = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { name, sha256, decoder, tokenizer, precision })
    }

    /// Architecture numbers.
    pub fn config(&self) -> &ModelConfig {
        self.decoder.config()
    }
}

/// Architecture numbers of a GGUF file, without loading its weights.
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
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read the model's config", &path, &e))?;
    let mut config = ModelConfig::from_json(&text, architecture, &path)?;
    let files = SafetensorsFiles::open(folder)?;
    // Some checkpoints leave the flag out and the matrix with it.
    config.tied_embeddings |= !files.has_unembedding(&config)?;
    Ok((text, config, files))
}

fn hash_file(path: &Path, digest: &mut Sha256) -> Result<()> {
    let error = |e: std::io::Error| Error::io("read the weights", path, &e);
    let mut file = std::fs::File::open(path).map_err(error)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(error)? {
            0 => return Ok(()),
            read => digest.update(&buffer[..read]),
        }
    }
}
