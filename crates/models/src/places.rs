//! Model folders and Hub settings, from the environment.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Model folders and Hub settings.
#[derive(Debug, Clone)]
pub struct Places {
    /// The user's own models, by file name.
    pub current_folder: PathBuf,
    /// Layerscope's own folder of models.
    pub models_folder: Option<PathBuf>,
    /// The Hugging Face Hub and its cache.
    pub hub: HubPlaces,
    /// Ollama's folders with `manifests` and `blobs`.
    pub ollama: Vec<PathBuf>,
    /// LM Studio's folders `publisher/repository/file.gguf`.
    pub lm_studio: Vec<PathBuf>,
    /// llama.cpp's folders of downloads.
    pub llama_cpp: Vec<PathBuf>,
}

/// Hub settings, from the environment variables of `huggingface_hub` (Python).
#[derive(Debug, Clone)]
pub struct HubPlaces {
    /// The cache with folders `models--owner--name`; absent where there is no home folder.
    pub cache: Option<PathBuf>,
    /// Address of the Hub, without a slash at its end.
    pub endpoint: String,
    /// Token for gated and private models.
    pub token: Option<Token>,
    /// The file that a token is read from, for messages.
    pub token_path: Option<PathBuf>,
    /// Use only the cache.
    pub offline: bool,
    /// Read timeout.
    pub timeout: Duration,
    /// Certificates (PEM) to trust instead of the built-in ones.
    pub certificates: Option<PathBuf>,
}

/// A secret that debug output hides.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Wraps a token, trimmed; `None` if it is empty.
    pub fn new(token: &str) -> Option<Self> {
        let token = token.trim();
        (!token.is_empty()).then(|| Self(token.to_owned()))
    }

    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// The public Hub.
const HUB: &str = "https://huggingface.co";

impl Places {
    /// Reads the environment of this process.
    pub fn from_environment() -> Self {
        Self::from_variables(std::env::home_dir().as_deref(), &|name| std::env::var_os(name))
    }

    /// Derives the places from a home folder and environment variables; an empty variable counts as unset.
    pub fn from_variables(home: Option<&Path>, variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| variable(name).map(|value| expand_home(PathBuf::from(value), home));
        let in_home = |relative: &str| home.map(|home| home.join(relative));
        let caches = path("XDG_CACHE_HOME").or_else(|| in_home(".cache"));
        let in_caches = |relative: &str| caches.as_ref().map(|caches| caches.join(relative));

        let llama_default = if cfg!(target_os = "macos") {
            in_home("Library/Caches/llama.cpp")
        } else {
            in_caches("llama.cpp")
        };
        let ollama_service = Path::new("/usr/share/ollama/.ollama/models");
        Self {
            current_folder: PathBuf::from("."),
            models_folder: path("LAYERSCOPE_CACHE")
                .or_else(|| in_caches("layerscope"))
                .map(|cache| cache.join("models")),
            hub: HubPlaces::from_variables(&variable, &path, in_caches("huggingface")),
            ollama: path("OLLAMA_MODELS")
                .or_else(|| in_home(".ollama/models"))
                .into_iter()
                .chain([ollama_service.to_owned()])
                .collect(),
            lm_studio: [".lmstudio/models", ".cache/lm-studio/models"]
                .into_iter()
                .filter_map(in_home)
                .collect(),
            llama_cpp: path("LLAMA_CACHE").or(llama_default).into_iter().collect(),
        }
    }
}

impl HubPlaces {
    /// Precedence as in `huggingface_hub/constants.py`.
    fn from_variables(
        variable: &dyn Fn(&str) -> Option<OsString>,
        path: &dyn Fn(&str) -> Option<PathBuf>,
        default_home: Option<PathBuf>,
    ) -> Self {
        let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
        let is_true = |name: &str| {
            text(name)
                .is_some_and(|value| matches!(value.to_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE"))
        };
        let home = path("HF_HOME").or(default_home);
        let in_home = |relative: &str| home.as_ref().map(|home| home.join(relative));
        let token_path = path("HF_TOKEN_PATH").or_else(|| in_home("token"));
        let from_file = || layerscope_files::read_text(token_path.as_ref()?).ok();
        let token = text("HF_TOKEN")
            .or_else(|| text("HUGGING_FACE_HUB_TOKEN"))
            .or_else(from_file)
            .unwrap_or_default();
        let seconds = text("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|text| text.parse().ok()).filter(|&s| s > 0);
        Self {
            cache: path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE")).or_else(|| in_home("hub")),
            endpoint: text("HF_ENDPOINT").unwrap_or_else(|| HUB.to_owned()).trim_end_matches('/').to_owned(),
            token: Token::new(&token).filter(|_| !is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN")),
            token_path,
            offline: if variable("HF_HUB_OFFLINE").is_some() {
                is_true("HF_HUB_OFFLINE")
            } else {
                is_true("TRANSFORMERS_OFFLINE")
            },
            timeout: Duration::from_secs(seconds.unwrap_or(30)),
            certificates: path("SSL_CERT_FILE"),
        }
    }

    /// The Hub's host, for messages.
    pub(crate) fn host(&self) -> &str {
        self.endpoint.split_once("://").map_or(&self.endpoint, |(_, host)| host)
    }
}

fn expand_home(path: PathBuf, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(relative), Some(home)) => home.join(relative),
        _ => path,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn places(variables: &[(&str, &str)]) -> Places {
        let variables: HashMap<String, OsString> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), OsString::from(value))).collect();
        Places::from_variables(Some(Path::new("/home/u")), &|name| variables.get(name).cloned())
    }

    fn hub_cache(variables: &[(&str, &str)]) -> PathBuf {
        places(variables).hub.cache.unwrap()
    }

    #[test]
    fn the_hub_cache_is_where_the_python_library_looks() {
        assert_eq!(hub_cache(&[]), Path::new("/home/u/.cache/huggingface/hub"));
        assert_eq!(hub_cache(&[("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(hub_cache(&[("XDG_CACHE_HOME", "")]), Path::new("/home/u/.cache/huggingface/hub"));
        assert_eq!(hub_cache(&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/hf")]), Path::new("/home/u/hf/hub"));
        let old = ("HUGGINGFACE_HUB_CACHE", "/old");
        assert_eq!(hub_cache(&[("HF_HOME", "/hf"), old]), Path::new("/old"));
        assert_eq!(hub_cache(&[old, ("HF_HUB_CACHE", "/new")]), Path::new("/new"));
    }

    #[test]
    fn the_token_comes_from_the_variable_or_its_file_and_stays_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "hf_file\n").unwrap();
        let home = ("HF_HOME", folder.path().to_str().unwrap());
        let token = |variables: &[(&str, &str)]| places(variables).hub.token.map(|t| t.secret().to_owned());
        assert_eq!(token(&[home]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[home, ("HF_TOKEN", " hf_word ")]).as_deref(), Some("hf_word"));
        assert_eq!(token(&[home, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
        assert_eq!(token(&[("HF_TOKEN_PATH", file.to_str().unwrap())]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[]), None);
        assert!(!format!("{:?}", places(&[home])).contains("hf_file"));
    }

    #[test]
    fn offline_endpoint_and_other_programs_follow_their_variables() {
        assert!(!places(&[]).hub.offline);
        assert!(places(&[("HF_HUB_OFFLINE", "true")]).hub.offline);
        assert!(places(&[("TRANSFORMERS_OFFLINE", "1")]).hub.offline);
        assert!(!places(&[("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")]).hub.offline);
        assert_eq!(places(&[]).hub.endpoint, HUB);
        let mirror = places(&[("HF_ENDPOINT", "https://mirror.test/")]);
        assert_eq!((mirror.hub.endpoint.as_str(), mirror.hub.host()), ("https://mirror.test", "mirror.test"));
        assert_eq!(places(&[("OLLAMA_MODELS", "/o")]).ollama[0], Path::new("/o"));
        assert_eq!(places(&[]).ollama[0], Path::new("/home/u/.ollama/models"));
        assert_eq!(places(&[("LLAMA_CACHE", "/l")]).llama_cpp, [PathBuf::from("/l")]);
        assert_eq!(places(&[("LAYERSCOPE_CACHE", "/c")]).models_folder.unwrap(), Path::new("/c/models"));
    }

    #[test]
    fn without_a_home_folder_there_are_fewer_places() {
        let places = Places::from_variables(None, &|_| None);
        assert!(places.hub.cache.is_none() && places.models_folder.is_none() && places.lm_studio.is_empty());
    }
}
