//! The tokenizer of a model folder as Hugging Face lays it out: `tokenizer.json` and the files beside it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::{Inner, Parts, Tokenizer, encode_with, guarded, shorten};
use crate::{Error, Result};

/// The part of `tokenizer.json` that is checked against what the tokenizers crate made of it.
#[derive(Deserialize)]
struct AddedTokens {
    #[serde(default)]
    added_tokens: Vec<AddedTokenEntry>,
}

#[derive(Deserialize)]
struct AddedTokenEntry {
    id: u32,
    content: String,
}

impl Tokenizer {
    /// The tokenizer in the folder `directory`, from `tokenizer.json` and, where they are present,
    /// `tokenizer_config.json`, `chat_template.jinja`, `generation_config.json` and `config.json`.
    pub fn from_directory(directory: &Path) -> Result<Self> {
        let path = directory.join("tokenizer.json");
        let Some(text) = read(&path)? else {
            let mend = match directory.join("tokenizer.model").exists() {
                true => {
                    "make one of its tokenizer.model with transformers (AutoTokenizer.from_pretrained(folder)\
                     .save_pretrained(folder))"
                }
                false => "give a model folder with one",
            };
            let sentence =
                format!("{} has no tokenizer.json: {mend}, or give a GGUF file", directory.display());
            return Err(Error::MalformedFile { path: directory.to_owned(), sentence });
        };
        let inner = load(&path, &text)?;
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |&highest| highest as usize + 1);
        let folder = Folder {
            tokenizer_config: JsonFile::read(directory.join("tokenizer_config.json"))?,
            generation_config: JsonFile::read(directory.join("generation_config.json"))?,
            config: JsonFile::read(directory.join("config.json"))?,
            tokenizer_path: &path,
            inner: &inner,
            vocab_size,
        };

        let prefix = folder.post_processor_prefix()?;
        let bos_id = folder.bos_id(&prefix)?;
        let eos_ids = folder.eos_ids()?;
        let prefix = folder.prompt_prefix(prefix, bos_id)?;
        // The file of its own is the newer form, and wins in transformers too.
        let chat_template = match read(&directory.join("chat_template.jinja"))? {
            Some(template) => Some(template),
            None => folder.chat_template()?,
        };
        Ok(Self::assemble(Parts {
            source: directory.to_path_buf(),
            vocab_size,
            bos_id,
            eos_ids,
            prefix,
            chat_template,
            inner,
        }))
    }
}

/// The text of a file, or none where there is no such file.
fn read(path: &Path) -> Result<Option<String>> {
    match layerscope_files::read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, &error)),
    }
}

fn load(path: &Path, text: &str) -> Result<Inner> {
    let mut inner = guarded(path, "load", || Inner::from_bytes(text))?;
    // transformers pads and cuts only when it is asked to, whatever the file was saved with.
    inner.with_padding(None);
    guarded(path, "load", || inner.with_truncation(None).map(|_| ()))?;

    // The crate gives a token that is not in the vocabulary the next free id, and only logs that the file says another.
    let listed: AddedTokens = serde_json::from_str(text).map_err(|error| Error::damaged(path, error))?;
    for token in listed.added_tokens {
        let given = inner.token_to_id(&token.content);
        if given != Some(token.id) {
            let (content, id) = (shorten(&token.content), token.id);
            let reason = format_args!(
                "the added token {content:?} cannot have the id {id}, which does not follow its vocabulary"
            );
            return Err(Error::damaged(path, reason));
        }
    }
    Ok(inner)
}

/// A JSON file with an object in it; an empty one where the file is absent.
struct JsonFile {
    path: PathBuf,
    object: serde_json::Map<String, Value>,
}

impl JsonFile {
    fn read(path: PathBuf) -> Result<Self> {
        let object = match read(&path)? {
            None => serde_json::Map::new(),
            Some(text) => serde_json::from_str(&text).map_err(|error| Error::damaged(&path, error))?,
        };
        Ok(Self { path, object })
    }

    /// The value of `key`, where it is there and not null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn error(&self, key: &str, problem: impl std::fmt::Display) -> Error {
        let sentence = format!("{} has a damaged {key}: {problem}", self.path.display());
        Error::MalformedFile { path: self.path.clone(), sentence }
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>> {
        self.get(key)
            .map(|value| value.as_bool().ok_or_else(|| self.error(key, "it is neither true nor false")))
            .transpose()
    }

    /// The ids under `key`: a number or a list of numbers.
    fn ids(&self, key: &str, vocab_size: usize) -> Result<Vec<u32>> {
        let values = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        values
            .iter()
            .map(|value| {
                value
                    .as_u64()
                    .and_then(|id| u32::try_from(id).ok())
                    .filter(|&id| (id as usize) < vocab_size)
                    .ok_or_else(|| {
                        let shown = shorten(&value.to_string());
                        self.error(
                            key,
                            format_args!("{shown} is no id of a vocabulary of {vocab_size} tokens"),
                        )
                    })
            })
            .collect()
    }
}

/// The files of the folder, each checked where it is used.
struct Folder<'a> {
    tokenizer_config: JsonFile,
    generation_config: JsonFile,
    config: JsonFile,
    tokenizer_path: &'a Path,
    inner: &'a Inner,
    vocab_size: usize,
}

impl Folder<'_> {
    /// The special tokens that the post-processor puts before a text.
    fn post_processor_prefix(&self) -> Result<Vec<u32>> {
        let probe = "a";
        let bare = encode_with(self.inner, self.tokenizer_path, probe, false)?;
        let mut full = encode_with(self.inner, self.tokenizer_path, probe, true)?;
        let start = full.windows(bare.len().max(1)).position(|window| window == bare).unwrap_or(0);
        full.truncate(start);
        if let Some(id) = full.iter().find(|&&id| id as usize >= self.vocab_size) {
            let reason = format_args!(
                "its post-processor adds the token {id}, outside its vocabulary of {} tokens",
                self.vocab_size
            );
            return Err(Error::damaged(self.tokenizer_path, reason));
        }
        Ok(full)
    }

    /// The id of a token that `tokenizer_config.json` names by its text; the outer option is none where the key is
    /// absent, the inner where it is null.
    fn named_token(&self, key: &str) -> Result<Option<Option<u32>>> {
        let config = &self.tokenizer_config;
        let text = match config.object.get(key) {
            None => return Ok(None),
            Some(Value::Null) => return Ok(Some(None)),
            Some(Value::String(text)) => text,
            Some(Value::Object(token)) => match token.get("content") {
                Some(Value::String(text)) => text,
                _ => return Err(config.error(key, "it has no content")),
            },
            Some(_) => return Err(config.error(key, "it is not a token")),
        };
        match self.inner.token_to_id(text) {
            Some(id) => Ok(Some(Some(id))),
            None => Err(config.error(key, format_args!("tokenizer.json has no token {:?}", shorten(text)))),
        }
    }

    /// A null BoS in `tokenizer_config.json` counts: `config.json` may still name one that the model never saw.
    fn bos_id(&self, prefix: &[u32]) -> Result<Option<u32>> {
        if let Some(named) = self.named_token("bos_token")? {
            return Ok(named);
        }
        if let &[bos] = prefix {
            return Ok(Some(bos));
        }
        let ids = self.config.ids("bos_token_id", self.vocab_size)?;
        Ok(ids.first().copied())
    }

    fn eos_ids(&self) -> Result<Vec<u32>> {
        let mut ids = Vec::from_iter(self.named_token("eos_token")?.flatten());
        for file in [&self.generation_config, &self.config] {
            ids.extend(file.ids("eos_token_id", self.vocab_size)?);
        }
        Ok(ids)
    }

    /// What a prompt starts with: what the post-processor adds, unless `add_bos_token` says otherwise.
    fn prompt_prefix(&self, mut prefix: Vec<u32>, bos_id: Option<u32>) -> Result<Vec<u32>> {
        let key = "add_bos_token";
        match (self.tokenizer_config.boolean(key)?, bos_id) {
            (None, _) => {}
            (Some(false), _) => prefix.retain(|&id| Some(id) != bos_id),
            (Some(true), Some(bos)) => {
                if !prefix.contains(&bos) {
                    prefix.insert(0, bos);
                }
            }
            (Some(true), None) => {
                return Err(self.tokenizer_config.error(key, "it is true, but there is no bos_token"));
            }
        }
        Ok(prefix)
    }

    /// The template in `tokenizer_config.json`: one, or several by name, of which `default` is meant.
    fn chat_template(&self) -> Result<Option<String>> {
        let key = "chat_template";
        let file = &self.tokenizer_config;
        match file.get(key) {
            None => Ok(None),
            Some(Value::String(template)) => Ok(Some(template.clone())),
            Some(Value::Array(named)) => named
                .iter()
                .find(|entry| entry["name"] == "default")
                .and_then(|entry| entry["template"].as_str())
                .map(|template| Some(template.to_owned()))
                .ok_or_else(|| file.error(key, "none of its templates is named \"default\"")),
            Some(_) => Err(file.error(key, "it is neither a template nor a list of them")),
        }
    }
}
