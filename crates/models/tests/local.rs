//! Models of other programs on this disk, and their names.

#![allow(clippy::unwrap_used, missing_docs)]

use layerscope_models::{ErrorKind, LocalModel, ModelFormat, Origin, Places, Reference, local_models};
use std::path::{Path, PathBuf};

const COMMIT: &str = "1111111111111111111111111111111111111111";
const OTHER_COMMIT: &str = "2222222222222222222222222222222222222222";

/// An empty home folder, isolated from this machine.
struct Home {
    folder: tempfile::TempDir,
    places: Places,
}

impl Home {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut places = Places::from_variables(Some(folder.path()), &|_| None);
        places.ollama.retain(|path| path.starts_with(folder.path()));
        places.current_folder = folder.path().join("here");
        Self { folder, places }
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    #[cfg(unix)]
    fn link(&self, target: &str, path: &str) {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    fn names(&self) -> Vec<String> {
        local_models(&self.places).into_iter().map(|model| model.name).collect()
    }

    fn parse(&self, text: &str) -> Reference {
        Reference::parse(text, &self.places).unwrap()
    }

    fn error(&self, text: &str) -> String {
        match Reference::parse(text, &self.places) {
            Err(error) if error.kind() == ErrorKind::Input => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    /// An Ollama model, laid out as by `ollama pull`.
    fn ollama(&self, path: &str, seed: char) -> PathBuf {
        let digest = seed.to_string().repeat(64);
        let manifest = format!(
            r#"{{"schemaVersion": 2, "config": {{"digest": "sha256:{0}"}}, "layers": [
            {{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:{0}", "size": 1}},
            {{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:{digest}", "size": 7}}]}}"#,
            "f".repeat(64)
        );
        self.write(&format!(".ollama/models/manifests/{path}"), manifest);
        self.write(&format!(".ollama/models/blobs/sha256-{digest}"), "GGUF123")
    }

    fn checkpoint(&self, folder: &str) {
        self.write(&format!("{folder}/config.json"), "{}");
        self.write(&format!("{folder}/tokenizer.json"), "{}");
        self.write(&format!("{folder}/model.safetensors"), "12345");
    }
}

#[test]
fn every_program_s_models_are_found_with_a_name_to_type() {
    let home = Home::new();
    home.write("here/mine.gguf", "1");
    home.write("here/notes.txt", "");
    home.checkpoint("here/folder");
    home.write(".cache/layerscope/models/ours.gguf", "12");
    home.checkpoint(&format!(".cache/huggingface/hub/models--o--n/snapshots/{COMMIT}"));
    home.write(".cache/huggingface/hub/models--o--n/refs/main", COMMIT);
    home.write(&format!(".cache/huggingface/hub/models--p--q-GGUF/snapshots/{COMMIT}/q-Q8_0.gguf"), "123");
    home.write(".cache/huggingface/hub/models--p--q-GGUF/refs/main", COMMIT);
    let blob = home.ollama("registry.ollama.ai/library/gemma3/270m", 'a');
    home.ollama("registry.ollama.ai/someone/tuned/latest", 'b');
    home.ollama("hf.co/p/q-GGUF/Q8_0", 'c');
    home.write(".lmstudio/models/pub/repo/file-Q4_K_M.gguf", "1234");
    home.write(".cache/llama.cpp/ggml-org_gemma_gemma-Q8_0.gguf", "12345");
    home.write(".cache/llama.cpp/ggml-org_gemma_mmproj-gemma.gguf", "12345");
    home.write(".cache/llama.cpp/ggml-org_gemma_gemma-Q8_0.gguf.json", "{}");

    let all = local_models(&home.places);
    let shown: Vec<String> =
        all.iter().map(|f| format!("{} | {} | {} | {}", f.name, f.origin, f.format, f.bytes)).collect();
    assert_eq!(
        shown,
        [
            "folder | this folder | safetensors | 5",
            "mine.gguf | this folder | GGUF | 1",
            "ours.gguf | layerscope | GGUF | 2",
            "o/n | Hugging Face | safetensors | 5",
            "p/q-GGUF/q-Q8_0.gguf | Hugging Face | GGUF | 3",
            "hf.co/p/q-GGUF:Q8_0 | Ollama | GGUF | 7",
            "gemma3:270m | Ollama | GGUF | 7",
            "someone/tuned:latest | Ollama | GGUF | 7",
            "pub/repo/file-Q4_K_M.gguf | LM Studio | GGUF | 4",
            "ggml-org_gemma_gemma-Q8_0.gguf | llama.cpp | GGUF | 5",
        ]
    );
    assert!(all.iter().all(|model| model.path.exists()));
    assert_eq!(all[6].path, blob);

    // Each name resolves to the model itself, or to the Hub, which has its newest commit.
    for model in &all {
        match home.parse(&model.name) {
            Reference::Local(again) => assert_eq!(&again, model),
            Reference::Hub(hub) => {
                assert_eq!((model.origin, hub.to_string()), (Origin::HuggingFace, model.name.clone()));
            }
            Reference::Path(path) => panic!("{}", path.display()),
        }
    }
    let path = |text: &str| match home.parse(text) {
        Reference::Local(model) => model.path,
        other => panic!("{other:?}"),
    };
    assert_eq!(path("ollama:gemma3:270m"), blob);
    assert_eq!(path("mine"), home.folder.path().join("here/mine.gguf"));
    assert_eq!(path("someone/tuned"), path("someone/tuned:latest"));
}

#[test]
fn a_path_wins_and_same_names_go_by_their_paths() {
    let home = Home::new();
    let own = home.write("here/x.gguf", "");
    let ours = home.write(".cache/layerscope/models/x.gguf", "");
    assert_eq!(home.names(), ["x.gguf".to_owned(), ours.display().to_string()]);
    assert_eq!(home.parse(&own.display().to_string()), Reference::Path(own));
    assert!(matches!(home.parse("x"), Reference::Local(LocalModel { origin: Origin::CurrentFolder, .. })));
}

#[test]
fn what_is_damaged_incomplete_or_not_a_whole_model_is_left_out() {
    let home = Home::new();
    let manifests = ".ollama/models/manifests/registry.ollama.ai/library";
    home.write(&format!("{manifests}/a/damaged"), "{\"layers\": [");
    home.write(&format!("{manifests}/a/empty"), "");
    home.write(&format!("{manifests}/a/binary"), [0xff, 0xfe, 0]);
    home.write(&format!("{manifests}/a/other"), r#"{"layers": []}"#);
    let layer = |digest: &str| {
        format!(
            r#"{{"layers": [{{"mediaType": "application/vnd.ollama.image.model", "digest": "{digest}"}}]}}"#
        )
    };
    home.write(&format!("{manifests}/a/absent"), layer(&format!("sha256:{}", "d".repeat(64))));
    home.write(&format!("{manifests}/a/outside"), layer("sha256:../../../../here/x"));
    home.write(&format!("{manifests}/a/large"), vec![b' '; 2 << 20]);
    home.write("here/x-00001-of-00002.gguf", "");
    home.write("here/config.json", "");
    std::fs::create_dir_all(home.folder.path().join("here/folder.gguf")).unwrap();
    home.write("here/half/config.json", "{}");
    home.write("here/half/tokenizer.json", "{}");
    home.write("here/half/model.safetensors.index.json", r#"{"weight_map": {"a": "absent.safetensors"}}"#);
    let snapshot = format!(".cache/huggingface/hub/models--o--n/snapshots/{COMMIT}");
    home.write(&format!("{snapshot}/config.json"), "{}");
    home.write(".cache/huggingface/hub/models--o--n/refs/main", "../../../../here");
    home.write(".cache/huggingface/hub/models--odd", "a file");
    home.write(".cache/huggingface/hub/datasets--o--n/snapshots/1/x.gguf", "");
    home.write(".lmstudio/models/too-high.gguf", "");
    assert_eq!(home.names(), Vec::<String>::new());
}

#[cfg(unix)]
#[test]
fn links_are_followed_but_never_in_circles() {
    let home = Home::new();
    let cache = ".cache/huggingface/hub/models--o--n";
    home.write(&format!("{cache}/blobs/aa"), "123");
    home.link("../../blobs/aa", &format!("{cache}/snapshots/{COMMIT}/x.gguf"));
    home.link("../../blobs/gone", &format!("{cache}/snapshots/{COMMIT}/gone.gguf"));
    home.link(".", &format!("{cache}/snapshots/{COMMIT}/circle"));
    home.link("..", &format!("{cache}/refs/circle"));
    home.link("..", ".lmstudio/models/pub/circle");
    home.link("..", "here/circle");
    home.link("circle.gguf", "here/circle.gguf");
    let all = local_models(&home.places);
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!((all[0].bytes, all[0].format), (3, ModelFormat::Gguf));
}

#[cfg(unix)]
#[test]
fn several_commits_of_one_repository_are_told_apart_and_the_same_weights_are_one() {
    let home = Home::new();
    let cache = ".cache/huggingface/hub/models--o--n";
    home.write(&format!("{cache}/blobs/aa"), "123");
    home.write(&format!("{cache}/blobs/bb"), "1234");
    home.link("../../blobs/aa", &format!("{cache}/snapshots/{COMMIT}/x-Q4_0.gguf"));
    home.link("../../blobs/aa", &format!("{cache}/snapshots/{OTHER_COMMIT}/x-Q4_0.gguf"));
    home.link("../../../blobs/bb", &format!("{cache}/snapshots/{OTHER_COMMIT}/sub/x-Q8_0.gguf"));
    home.write(&format!("{cache}/refs/main"), COMMIT);
    let with_commit = format!("o/n/sub/x-Q8_0.gguf@{OTHER_COMMIT}");
    assert_eq!(home.names(), ["o/n/x-Q4_0.gguf", &with_commit]);
    home.write(&format!("{cache}/refs/refs/pr/7"), OTHER_COMMIT);
    assert_eq!(home.names(), ["o/n/x-Q4_0.gguf", "o/n/sub/x-Q8_0.gguf@refs/pr/7"]);
    let Reference::Hub(hub) = home.parse("o/n/sub/x-Q8_0.gguf@refs/pr/7") else { panic!() };
    assert_eq!(hub.revision, "refs/pr/7");
}

#[test]
fn unknown_words_are_answered_with_what_may_have_been_meant() {
    let home = Home::new();
    home.ollama("registry.ollama.ai/library/gemma3/270m", 'a');
    home.write("here/qwen3-0.6b-q8_0.gguf", "");
    let has = |text: &str, parts: &[&str]| {
        let sentence = home.error(text);
        for part in parts {
            assert!(sentence.contains(part), "{part:?} is not in: {sentence}");
        }
    };
    has("", &["no model is named"]);
    has(
        "gemma3:271m",
        &["Ollama has no model gemma3:271m", "did you mean gemma3:270m?", "ollama pull gemma3:271m"],
    );
    has("ollama:phi4", &["Ollama has no model phi4", "`ollama pull phi4`"]);
    has("qwen3", &["no model is called qwen3; did you mean qwen3-0.6b-q8_0.gguf?", "owner/name"]);
    has("qwen3-0.6b-q4_0.gguf", &["no such file", "did you mean qwen3-0.6b-q8_0.gguf?"]);
    has("models/none.gguf", &["no model at models/none.gguf"]);
    has("./none", &["no model at ./none"]);
    has("o/n/readme.md", &["/name.gguf", ":Q4_K_M"]);
    has("https://example.org/x.gguf", &["not on the Hugging Face Hub"]);
    assert!(matches!(home.parse("owner/name:Q8_0"), Reference::Hub(_)));
}

#[test]
fn unreadable_and_absent_folders_are_no_error() {
    let mut home = Home::new();
    home.write("a-file", "");
    let file = home.folder.path().join("a-file");
    home.places.current_folder = file.clone();
    home.places.models_folder = Some(file.clone());
    home.places.hub.cache = Some(file.clone());
    home.places.ollama = vec![file.clone(), Path::new("/absent").to_owned()];
    home.places.lm_studio = vec![file.clone()];
    home.places.llama_cpp = vec![file];
    assert!(home.names().is_empty());
}
