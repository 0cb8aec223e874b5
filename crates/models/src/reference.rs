//! Resolves the model that a user typed.

use crate::file_names::{is_gguf, stays_inside};
use crate::local::{LocalModel, Origin, local_models};
use crate::places::Places;
use crate::text::{list, near};
use crate::{Error, Result};
use percent_encoding::percent_decode_str;
use std::fmt;
use std::path::{Path, PathBuf};

/// The model that a name, path or Hub id refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// A path that exists.
    Path(PathBuf),
    /// A model on this disk.
    Local(LocalModel),
    /// A model on the Hugging Face Hub, for [`fetch`](crate::fetch).
    Hub(HubReference),
}

/// A model on the Hugging Face Hub, written `owner/name`, `owner/name@revision`, `owner/name:Q4_K_M` or
/// `owner/name/file.gguf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubReference {
    /// `owner/name`.
    pub id: String,
    /// Branch, tag or commit; `main` by default.
    pub revision: String,
    /// Which of the repository's models.
    pub wanted: Wanted,
}

/// Which model of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The safetensors checkpoint, or else the one GGUF file, or else the one of type Q4_K_M.
    Any,
    /// The one GGUF file with this quantisation in its name.
    Quantization(String),
    /// This GGUF file.
    File(String),
}

const MAIN: &str = "main";
const HOSTS: [&str; 3] = ["huggingface.co", "www.huggingface.co", "hf.co"];

impl Reference {
    /// Resolves a text: an existing path, else the name of a model on this disk, else a Hub id.
    ///
    /// # Errors
    /// [`Error::UnknownModel`], with similar names, if it is none of these.
    pub fn parse(text: &str, places: &Places) -> Result<Self> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Error::input(
                "no model is named; give a path, a name or a Hub id such as owner/name",
            ));
        }
        if Path::new(text).exists() {
            return Ok(Self::Path(PathBuf::from(text)));
        }
        let mut all = local_models(places);
        // Models in the Hub's cache are resolved through the Hub, which may have newer commits.
        let named = all.iter().position(|model| model.origin != Origin::HuggingFace && model.is_called(text));
        if let Some(at) = named {
            return Ok(Self::Local(all.swap_remove(at)));
        }
        if is_path(text) {
            let sentence = format!(
                "no model at {text}: there is no such file{}; give a path, or a name that `layerscope models` lists",
                or_near(text, &all)
            );
            return Err(Error::UnknownModel { name: text.to_owned(), sentence });
        }
        match HubReference::parse_for(text, places.hub.host())? {
            Some(hub) => Ok(Self::Hub(hub)),
            None => Err(unknown(text, &all)),
        }
    }
}

impl HubReference {
    /// Parses an id, `hf.co/…` or a Hub URL; `None` for any other text.
    ///
    /// # Errors
    /// [`Error::Input`] if it looks like one but names no model.
    pub fn parse(text: &str) -> Result<Option<Self>> {
        Self::parse_for(text, HOSTS[0])
    }

    /// The same with another host for the Hub, e.g. a mirror.
    fn parse_for(text: &str, mirror: &str) -> Result<Option<Self>> {
        let address = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let (host, rest) = address.unwrap_or(text).split_once('/').unwrap_or((text, ""));
        let known = HOSTS.contains(&host) || host == mirror;
        match (address, known) {
            (Some(_), true) => Self::from_address(text, rest).map(Some),
            (Some(_), false) => Err(Error::input(format!(
                "{text} is not on the Hugging Face Hub; fetch the file by other means and give its path"
            ))),
            (None, true) => Self::from_id(text, rest),
            (None, false) => Self::from_id(text, text),
        }
    }

    /// Parses `owner/name`, with `@revision`, and `:quantisation` or `/file`.
    fn from_id(text: &str, id: &str) -> Result<Option<Self>> {
        let (before, after) = id.split_once('@').unwrap_or((id, MAIN));
        let (revision, quantization_after) = split_colon(after);
        let (path, quantization_before) = split_colon(before);
        let quantization = quantization_after.or(quantization_before);
        let parts: Vec<&str> = path.splitn(3, '/').collect();
        let (owner, name, file) = match parts[..] {
            [owner, name] => (owner, name, None),
            [owner, name, file] => (owner, name, Some(file)),
            _ => return Ok(None),
        };
        if !is_owner(owner) || !is_id_part(name) {
            return Ok(None);
        }
        let wanted = match (file, quantization) {
            (None, None | Some("latest")) => Wanted::Any,
            (None, Some(quantization)) if is_id_part(quantization) => {
                Wanted::Quantization(quantization.to_owned())
            }
            (Some(file), None) if is_gguf(file) && stays_inside(file) => Wanted::File(file.to_owned()),
            _ => {
                return Err(Error::input(format!(
                    "{text}: after owner/name comes a file as /name.gguf, or a quantisation as :Q4_K_M"
                )));
            }
        };
        Self::new(text, owner, name, revision, wanted).map(Some)
    }

    /// Parses the path of a URL: `owner/name`, or `owner/name/KIND/REVISION` with an optional file, where
    /// `KIND` is `blob`, `resolve`, `tree` or `raw`.
    fn from_address(text: &str, path: &str) -> Result<Self> {
        let path = path.split(['?', '#']).next().unwrap_or(path).trim_end_matches('/');
        let parts: Vec<String> =
            path.split('/').map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned()).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        if let Some(kind @ ("datasets" | "spaces" | "collections" | "papers" | "docs")) =
            parts.first().copied()
        {
            return Err(Error::input(format!("{text} is of the Hub's {kind}, not a model")));
        }
        let (owner, name, rest) = match parts[..] {
            [owner, name] => {
                return Self::from_id(text, &format!("{owner}/{name}"))?.ok_or_else(|| no_model(text));
            }
            [owner, name, "blob" | "resolve" | "tree" | "raw", ref rest @ ..] if !rest.is_empty() => {
                (owner, name, rest)
            }
            _ => return Err(no_model(text)),
        };
        // Revisions of pull requests and conversions contain slashes.
        let length = if rest[0] == "refs" { rest.len().min(3) } else { 1 };
        let (revision, file) = (rest[..length].join("/"), rest[length..].join("/"));
        let wanted = if is_gguf(&file) && stays_inside(&file) {
            Wanted::File(file)
        } else if file.is_empty() || file.ends_with(".safetensors") || file.ends_with(".json") {
            Wanted::Any
        } else {
            return Err(Error::input(format!(
                "{text} is neither a GGUF file nor part of a safetensors model; give such a file, or owner/name"
            )));
        };
        Self::new(text, owner, name, &revision, wanted)
    }

    fn new(text: &str, owner: &str, name: &str, revision: &str, wanted: Wanted) -> Result<Self> {
        if !is_owner(owner) || !is_id_part(name) {
            return Err(no_model(text));
        }
        if !stays_inside(revision) || revision.contains(char::is_whitespace) {
            return Err(Error::input(format!("{text}: `{revision}` cannot be a branch, tag or commit")));
        }
        Ok(Self { id: format!("{owner}/{name}"), revision: revision.to_owned(), wanted })
    }
}

impl fmt::Display for HubReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)?;
        if let Wanted::File(file) = &self.wanted {
            write!(f, "/{file}")?;
        }
        if self.revision != MAIN {
            write!(f, "@{}", self.revision)?;
        }
        match &self.wanted {
            Wanted::Quantization(quantization) => write!(f, ":{quantization}"),
            _ => Ok(()),
        }
    }
}

fn split_colon(text: &str) -> (&str, Option<&str>) {
    text.split_once(':').map_or((text, None), |(before, after)| (before, Some(after)))
}

/// Whether the Hub allows the name of an owner. One that is called as the Hub itself would be read as its host.
fn is_owner(owner: &str) -> bool {
    is_id_part(owner) && !HOSTS.contains(&owner)
}

/// Whether the Hub allows this name for an owner or repository.
fn is_id_part(part: &str) -> bool {
    (1..=96).contains(&part.len())
        && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && !part.starts_with(['-', '.'])
        && !part.ends_with(['-', '.'])
        && !part.contains("--")
        && !part.contains("..")
}

/// Whether a text can only be a path.
fn is_path(text: &str) -> bool {
    let rooted = Path::new(text).is_absolute() || text.starts_with(['.', '~']) || text.contains('\\');
    rooted || (is_gguf(text) && !text.contains("://") && text.matches('/').count() < 2)
}

fn no_model(text: &str) -> Error {
    Error::input(format!("{text} is no address of a model; it is https://huggingface.co/owner/name"))
}

fn unknown(text: &str, all: &[LocalModel]) -> Error {
    let near = or_near(text, all);
    if let Some(name) = text.strip_prefix("ollama:").or_else(|| text.contains(':').then_some(text)) {
        let sentence = format!("Ollama has no model {name} here{near}; fetch it with `ollama pull {name}`");
        return Error::UnknownModel { name: name.to_owned(), sentence };
    }
    let sentence = format!(
        "no model is called {text}{near}; give a path, a name that `layerscope models` lists, or a Hub id owner/name"
    );
    Error::UnknownModel { name: text.to_owned(), sentence }
}

/// `; did you mean …` if a name is similar.
fn or_near(text: &str, all: &[LocalModel]) -> String {
    let near: Vec<String> =
        near(text, all.iter().map(|model| model.name.as_str())).into_iter().map(str::to_owned).collect();
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", list(&near, 3)) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hub(text: &str) -> HubReference {
        HubReference::parse(text).unwrap().unwrap_or_else(|| panic!("{text} is no reference"))
    }

    fn reference(id: &str, revision: &str, wanted: Wanted) -> HubReference {
        HubReference { id: id.to_owned(), revision: revision.to_owned(), wanted }
    }

    #[test]
    fn ids_carry_revision_quantisation_or_file() {
        let (any, q8) = (Wanted::Any, Wanted::Quantization("Q8_0".to_owned()));
        let file = Wanted::File("sub/x-F16.gguf".to_owned());
        assert_eq!(hub("Qwen/Qwen3-0.6B"), reference("Qwen/Qwen3-0.6B", "main", any.clone()));
        assert_eq!(hub("o/n@v1.0"), reference("o/n", "v1.0", any.clone()));
        assert_eq!(hub("o/n@refs/pr/3"), reference("o/n", "refs/pr/3", any.clone()));
        assert_eq!(hub("o/n:Q8_0"), reference("o/n", "main", q8.clone()));
        assert_eq!(hub("o/n:latest"), reference("o/n", "main", any.clone()));
        assert_eq!(hub("o/n@v1:Q8_0"), reference("o/n", "v1", q8.clone()));
        assert_eq!(hub("o/n:Q8_0@v1"), reference("o/n", "v1", q8.clone()));
        assert_eq!(hub("o/n/sub/x-F16.gguf"), reference("o/n", "main", file.clone()));
        assert_eq!(hub("o/n/sub/x-F16.gguf@v1"), reference("o/n", "v1", file));
        assert_eq!(hub("hf.co/o/n:Q8_0"), reference("o/n", "main", q8));
        assert_eq!(hub("huggingface.co/o/n"), reference("o/n", "main", any));
    }

    #[test]
    fn addresses_are_read_as_the_browser_shows_them() {
        let at = "https://huggingface.co/o/n";
        let file = |revision: &str, file: &str| reference("o/n", revision, Wanted::File(file.to_owned()));
        assert_eq!(hub(at), reference("o/n", "main", Wanted::Any));
        assert_eq!(hub(&format!("{at}/")), reference("o/n", "main", Wanted::Any));
        assert_eq!(hub(&format!("{at}/tree/v2")), reference("o/n", "v2", Wanted::Any));
        assert_eq!(hub(&format!("{at}/tree/refs%2Fpr%2F1")), reference("o/n", "refs/pr/1", Wanted::Any));
        assert_eq!(hub(&format!("{at}/blob/main/x.gguf?download=true")), file("main", "x.gguf"));
        assert_eq!(hub(&format!("{at}/resolve/refs/pr/1/a/x.gguf")), file("refs/pr/1", "a/x.gguf"));
        assert_eq!(hub(&format!("{at}/blob/main/model.safetensors")), reference("o/n", "main", Wanted::Any));
        for (wrong, why) in [
            ("https://example.org/x.gguf", "not on the Hugging Face Hub"),
            ("https://huggingface.co/datasets/o/n", "datasets, not a model"),
            ("https://huggingface.co/o", "no address of a model"),
            ("https://huggingface.co/o/n/discussions", "no address of a model"),
            ("https://huggingface.co/o/n/blob/main/pytorch_model.bin", "neither a GGUF file"),
            ("https://huggingface.co/o/n/resolve/main/..%2F..%2Fx.gguf", "neither a GGUF file"),
            ("https://huggingface.co/o/n/tree/..", "cannot be a branch"),
        ] {
            let error = HubReference::parse(wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn other_texts_are_no_ids() {
        for text in ["", "gpt2", "gemma3:270m", "a//b", "-o/n", "o/n..m", "o/na me", "../x", "hf.co/hf.co/n"]
        {
            assert_eq!(HubReference::parse(text).unwrap(), None, "{text}");
        }
        for text in ["o/n/readme.md", "o/n/x.gguf:Q8_0", "o/n/../x.gguf", "o/n@", "o/n@../x"] {
            assert!(HubReference::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_mirror_in_the_settings_is_the_hub_too() {
        let parsed = HubReference::parse_for("https://mirror.test/o/n", "mirror.test").unwrap();
        assert_eq!(parsed, Some(reference("o/n", "main", Wanted::Any)));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            id in "[a-zA-Z0-9]{1,8}/[a-zA-Z0-9]{1,8}",
            revision in "main|v[0-9]|refs/pr/[0-9]|[0-9a-f]{40}",
            wanted in prop_oneof![
                Just(Wanted::Any),
                "Q[2-8]_K_[SM]".prop_map(Wanted::Quantization),
                "[a-z]{1,4}/[a-zA-Z0-9-]{1,9}\\.gguf".prop_map(Wanted::File),
            ],
        ) {
            let written = HubReference { id, revision, wanted };
            prop_assert_eq!(HubReference::parse(&written.to_string()).unwrap(), Some(written));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}", id in "[a-z/:@.~%é\\\\-]{0,30}") {
            for text in [text.clone(), id.clone(), format!("https://huggingface.co/{id}"), format!("hf.co/{id}")] {
                if let Ok(Some(reference)) = HubReference::parse(&text) {
                    prop_assert!(!reference.id.contains("..") && !reference.revision.contains(".."));
                }
            }
        }
    }
}
