//! Invalid files and arguments: one sentence, the right exit code, no data loss.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use support::{demo_prompts, layerscope, refuse, run, stderr, tiny_model};

fn generate(model: &Path) -> std::process::Command {
    let mut command = layerscope();
    command.arg("generate").arg(model).args(["--max-new-tokens", "2", "--prompt", "a b c"]);
    command
}

fn record(prompts: &Path, out: &Path) -> std::process::Command {
    let mut command = layerscope();
    command.arg("record").arg(tiny_model()).args(["--max-new-tokens", "2", "--prompts"]).arg(prompts);
    command.arg("--out").arg(out);
    command
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }
}

#[test]
fn vector_instructions_that_are_not_there() {
    let output = run(layerscope().args(["models"]).env("LAYERSCOPE_INSTRUCTIONS", "avx1024"));
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("LAYERSCOPE_INSTRUCTIONS is avx1024, but this processor has plain"),
        "{message}"
    );
    // Those that every processor has.
    let output = run(generate(&tiny_model()).env("LAYERSCOPE_INSTRUCTIONS", "plain"));
    assert!(output.status.success(), "{}", stderr(&output));
}

/// A damaged file may still load (a flipped weight), but must not cause a panic, a crash or long output.
fn survives(command: &mut std::process::Command) {
    let output = run(command);
    let message = stderr(&output);
    assert!(matches!(output.status.code(), Some(0..=2)), "{:?}: {message}", output.status);
    assert!(!message.contains("panicked"), "{message}");
    if output.status.code() != Some(0) {
        assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    }
}

#[test]
fn truncated_and_bit_flipped_gguf() {
    let folder = Folder::new();
    let bytes = std::fs::read(tiny_model()).unwrap();
    for len in [0, 3, 4, 11, 24, 100, 5_000, bytes.len() / 2, bytes.len() - 1] {
        let file = folder.file("cut.gguf", &bytes[..len]);
        refuse(&mut generate(&file), 2, &["cut.gguf"]);
    }
    // The header, where a flip changes meaning: a fixed walk over its bits.
    let mut position = 0;
    while position < 60_000 {
        let mut flipped = bytes.clone();
        flipped[position] ^= 1 << (position % 8);
        survives(&mut generate(&folder.file("flipped.gguf", &flipped)));
        position += 1 + position / 9 + position % 7;
    }
}

#[test]
fn models_that_are_not_there_or_not_supported() {
    let folder = Folder::new();
    refuse(&mut generate(&folder.path("absent.gguf")), 2, &["absent.gguf", "layerscope models"]);
    refuse(&mut generate(&folder.file("text.gguf", "hello there")), 2, &["text.gguf", "GGUF"]);
    std::fs::create_dir(folder.path("empty")).unwrap();
    refuse(&mut generate(&folder.path("empty")), 2, &["config.json"]);
    let bytes = std::fs::read(tiny_model()).unwrap();
    let at = bytes.windows(5).position(|w| w == b"llama").unwrap();
    let mut other = bytes;
    other[at..at + 5].copy_from_slice(b"mamba");
    refuse(
        &mut generate(&folder.file("mamba.gguf", other)),
        2,
        &["mamba.gguf", "architecture `mamba`", "llama"],
    );
}

#[test]
fn damaged_safetensors_folders() {
    let folder = Folder::new();
    let config = r#"{"model_type":"llama","hidden_size":32,"num_hidden_layers":1,"num_attention_heads":2,
        "num_key_value_heads":1,"intermediate_size":64,"vocab_size":300,"max_position_embeddings":64,
        "rms_norm_eps":1e-5,"tie_word_embeddings":true}"#;
    folder.file("config.json", config);
    let model = folder.0.path().to_owned();
    refuse(&mut generate(&model), 2, &["safetensors"]);
    folder.file("model.safetensors", b"\x10\0\0\0\0\0\0\0{\"a\":");
    refuse(&mut generate(&model), 2, &["model.safetensors"]);
    folder.file("model.safetensors", b"\x02\0\0\0\0\0\0\0{}");
    refuse(&mut generate(&model), 2, &["tokenizer.json"]);
    folder.file("config.json", "{\"model_type\": ");
    refuse(&mut generate(&model), 2, &["config.json", "JSON"]);
}

#[test]
fn prompt_files() {
    let folder = Folder::new();
    let out = folder.path("run");
    let lines = |extra: &[u8]| {
        let mut text: Vec<u8> =
            (1..17).flat_map(|i| format!("{{\"id\":\"p{i}\",\"prompt\":\"x\"}}\n").into_bytes()).collect();
        text.extend_from_slice(extra);
        text
    };
    for (name, content, says) in [
        ("json.jsonl", lines(b"{\"id\": \"q\", \"prompt\": }\n"), vec!["line 17"]),
        ("utf8.jsonl", lines(b"{\"id\":\"q\",\"prompt\":\"\xff\xfe\"}\n"), vec!["line 17", "UTF-8"]),
        ("twice.jsonl", lines(b"{\"id\":\"p3\",\"prompt\":\"x\"}\n"), vec!["p3", "17"]),
        ("empty.jsonl", vec![], vec!["empty.jsonl"]),
        ("blank.jsonl", b"{\"id\":\"a\",\"prompt\":\"\"}\n".to_vec(), vec!["line 1"]),
        ("neither.jsonl", b"{\"id\":\"a\"}\n".to_vec(), vec!["line 1"]),
    ] {
        let file = folder.file(name, content);
        let mut names = vec![name];
        names.extend(says);
        refuse(&mut record(&file, &out), 2, &names);
        assert!(!out.exists(), "nothing is written for {name}");
    }
    refuse(&mut record(&folder.path("absent.jsonl"), &out), 2, &["absent.jsonl"]);
}

#[test]
fn a_prompt_beyond_the_context_fails_alone() {
    let folder = Folder::new();
    let out = folder.path("run");
    let long = "word ".repeat(5000);
    let file = folder.file(
        "mixed.jsonl",
        format!("{{\"id\":\"a\",\"prompt\":\"one two\"}}\n{{\"id\":\"long\",\"prompt\":\"{long}\"}}\n{{\"id\":\"b\",\"prompt\":\"three\"}}\n"),
    );
    let output = run(&mut record(&file, &out));
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    assert!(message.contains("prompt long") && message.contains("context"), "{message}");
    let show = support::json(layerscope().arg("show").arg(&out).arg("--json"));
    assert_eq!(show["prompts"].as_array().unwrap().len(), 2);
    assert_eq!(show["manifest"]["prompts"]["failed"][0]["id"], "long");
}

#[test]
fn arguments_beyond_the_model() {
    let layers = support::json(layerscope().arg("models").arg("--json"))["models"][0]["config"]["layers"]
        .as_u64()
        .unwrap();
    let tiny = tiny_model();
    refuse(generate(&tiny).args(["--policy", "speed:0"]), 2, &["between 1 and"]);
    refuse(generate(&tiny).args(["--policy", &format!("speed:{}", layers + 1)]), 2, &["between 1 and"]);
    refuse(generate(&tiny).args(["--policy", "warp:3"]), 2, &["warp:3", "speed:CUTOFF", "swiftkv:CUTOFF"]);
    refuse(generate(&tiny).args(["--policy", "popp:3"]), 2, &["nearest first: pop:CUTOFF"]);
    refuse(generate(&tiny).args(["--policy", "pop:3+bos"]), 2, &["pop:3+bos", "give it as pop:CUTOFF"]);
    refuse(
        generate(&tiny).args(["--policy", "speed:3+x"]),
        2,
        &["speed:3+x", "give it as speed:CUTOFF[+ANCHORS]"],
    );
    refuse(generate(&tiny).args(["--temperature", "-1"]), 2, &["temperature -1 must be 0 or more"]);
    refuse(layerscope().arg("generate").arg(&tiny).args(["--prompt", ""]), 2, &["empty"]);
    refuse(
        layerscope().arg("generate").arg(&tiny).args(["--max-new-tokens", "99999999", "--prompt", "a"]),
        2,
        &["context"],
    );
    refuse(
        layerscope().arg("capture").arg(&tiny).args([
            "--prompt",
            "a",
            "--hook",
            "blocks.0.hook_resid_pots",
            "--out",
            "x",
        ]),
        2,
        &["hook_resid_pots", "blocks.0.hook_resid_post"],
    );
}

#[test]
fn run_folders() {
    let folder = Folder::new();
    refuse(layerscope().arg("show").arg(folder.path("absent")), 2, &["absent"]);
    refuse(layerscope().arg("show").arg(folder.0.path()), 2, &["manifest.json"]);
    let out = folder.path("run");
    assert!(run(&mut record(&demo_prompts(), &out)).status.success());
    let layers = out.join("layers.parquet");
    let bytes = std::fs::read(&layers).unwrap();
    std::fs::write(&layers, &bytes[..bytes.len() / 2]).unwrap();
    refuse(layerscope().arg("show").arg(&out), 2, &["layers.parquet"]);
    std::fs::remove_file(&layers).unwrap();
    refuse(layerscope().arg("recommend").arg(&out), 2, &["layers.parquet"]);
    std::fs::write(out.join("manifest.json"), "{").unwrap();
    refuse(layerscope().arg("show").arg(&out), 2, &["manifest.json"]);
}

/// A file at the path of the run folder: writing fails for any user, including root.
#[test]
fn a_folder_that_cannot_be_written() {
    let folder = Folder::new();
    let file = folder.file("occupied", "x");
    let output = run(&mut record(&demo_prompts(), &file.join("run")));
    assert!(matches!(output.status.code(), Some(1 | 2)), "{}", stderr(&output));
    assert!(stderr(&output).contains("occupied"));
    if Path::new("/dev/full").exists() {
        let mut capture = layerscope();
        capture.arg("capture").arg(tiny_model()).args([
            "--prompt",
            "a",
            "--hook",
            "hook_embed",
            "--out",
            "/proc/x.safetensors",
        ]);
        refuse(&mut capture, 1, &["/proc/x.safetensors"]);
    }
}
