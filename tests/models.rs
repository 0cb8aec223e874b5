//! Sources of models, `inspect` and `models`, and checks before loading.

#![allow(clippy::unwrap_used)]

#[path = "../crates/models/tests/hub/server.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod server;
mod support;

use serde_json::{Value, json as object};
use server::{COMMIT, Hub};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::process::Command;
use support::{json, layerscope, refuse, run, stderr, succeed, tiny_model, with_tokenizer};

/// The binary, isolated from this machine's models.
fn alone(home: &Path) -> Command {
    let mut command = layerscope();
    command.current_dir(home).env("HOME", home);
    for variable in [
        "LAYERSCOPE_CACHE",
        "XDG_CACHE_HOME",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_TOKEN",
        "HF_ENDPOINT",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "OLLAMA_MODELS",
        "LLAMA_CACHE",
    ] {
        command.env_remove(variable);
    }
    command
}

fn generated(command: &mut Command) -> Value {
    json(command.args(["--prompt", "the door", "--max-new-tokens", "6", "--json"]))["tokens"].clone()
}

#[test]
fn inspect_says_what_a_model_is_and_what_it_needs() {
    let home = tempfile::tempdir().unwrap();
    let text = succeed(alone(home.path()).arg("inspect").arg(tiny_model()).args(["--context", "1k"]));
    for part in ["llama", "8", "every layer sees every token", "BoS", "chat template", "1024 tokens", "fits"]
    {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    let found =
        json(alone(home.path()).arg("inspect").arg(tiny_model()).args(["--context", "1000", "--json"]));
    let config = &found["config"];
    let count = |name: &str| config[name].as_u64().unwrap();
    let kv = |element: u64| 1000 * count("layers") * 2 * count("kv_heads") * count("head_dim") * element;
    for (memory, element) in found["memory"].as_array().unwrap().iter().zip([2, 4]) {
        assert_eq!(memory["need"]["kv"], kv(element));
        assert_eq!(memory["fits"], true);
    }
    // f32 weights take four bytes each.
    let f32_bytes = found["memory"][1]["need"]["weights"].as_u64().unwrap();
    assert_eq!(f32_bytes, 4 * found["parameters"].as_u64().unwrap());
    // Windows, RoPE and experts of other families.
    for (family, parts) in [
        ("gemma3", ["48 tokens at layers 0–4, 6; layers 5 see everything", "base 10000", "before and after"]),
        ("smollm3", ["none at layers 3", "RMSNorm", "SiLU"]),
        ("qwen3_moe", ["2 of 8 experts", "each head's queries and keys", "gated"]),
        ("gpt2", ["positions are learned", "LayerNorm", "without gate"]),
    ] {
        let folder = with_tokenizer(family, home.path());
        let text = succeed(alone(home.path()).arg("inspect").arg(&folder));
        for part in parts {
            assert!(text.contains(part), "{family}: `{part}` is not in {text}");
        }
    }
}

#[test]
fn every_family_records_and_is_cut_from_a_folder() {
    let home = tempfile::tempdir().unwrap();
    let prompts = home.path().join("prompts.jsonl");
    let text = "abcdefghijklmnop".repeat(5);
    std::fs::write(&prompts, format!("{{\"id\":\"a\",\"prompt\":\"{text}\"}}\n")).unwrap();
    for family in ["gemma3", "gpt_neox", "gpt2", "olmo2", "qwen3_moe", "phi3"] {
        let folder = with_tokenizer(family, home.path());
        let out = home.path().join(format!("{family}-run"));
        let record = |command: &mut Command| {
            json(
                command
                    .arg("record")
                    .arg(&folder)
                    .args(["--weights", "f32", "--max-new-tokens", "8", "--failure-cases", "0", "--json"])
                    .arg("--prompts")
                    .arg(&prompts)
                    .arg("--out")
                    .arg(&out),
            )
        };
        let recorded = record(&mut alone(home.path()));
        let model = &recorded["show"]["manifest"]["model"];
        let layers = model["layers"].as_u64().unwrap();
        // With all layers kept, every policy equals the full model, also with windows, experts and parallel
        // blocks.
        let generate = |policy: &str| {
            let mut command = alone(home.path());
            command.arg("generate").arg(&folder).args(["--policy", policy, "--prompt", &text]);
            json(command.args([
                "--raw",
                "--max-new-tokens",
                "8",
                "--ignore-eos",
                "--json",
                "--weights",
                "f32",
            ]))
        };
        let full = generate("full");
        assert_eq!(full["tokens"], recorded["show"]["prompts"][0]["generated"], "{family}");
        for policy in ["speed", "speed+bos", "pop", "swiftkv", "selfonly"] {
            let (name, anchor) = policy.split_once('+').map_or((policy, ""), |(name, _)| (name, "+bos"));
            let all = generate(&format!("{name}:{layers}{anchor}"));
            assert_eq!(all["tokens"], full["tokens"], "{family}: {policy}");
            let cut = generate(&format!("{name}:2{anchor}"));
            assert_eq!(cut["kv_bytes"], cut["kv_bytes_model"], "{family}: {policy}");
        }
        // The frontier at the first cutoff below full depth equals generation under it, as long as the texts
        // agree.
        let frontier = recorded["show"]["prompts"][0]["frontier"].as_array().unwrap();
        assert!(frontier.iter().all(|row| row["kl"].as_f64().is_some_and(|kl| kl >= 0.0)), "{family}");
    }
}

#[test]
fn models_of_other_programs_are_found_and_run_by_their_names() {
    let home = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(tiny_model()).unwrap();
    let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let ollama = home.path().join(".ollama/models");
    let manifest = ollama.join("manifests/registry.ollama.ai/library/little");
    std::fs::create_dir_all(&manifest).unwrap();
    std::fs::create_dir_all(ollama.join("blobs")).unwrap();
    std::fs::write(ollama.join(format!("blobs/sha256-{digest}")), &bytes).unwrap();
    let layer = object!({
        "mediaType": "application/vnd.ollama.image.model",
        "digest": format!("sha256:{digest}"),
        "size": bytes.len(),
    });
    std::fs::write(manifest.join("1b"), object!({ "schemaVersion": 2, "layers": [layer] }).to_string())
        .unwrap();
    let studio = home.path().join(".lmstudio/models/someone/a-GGUF");
    std::fs::create_dir_all(&studio).unwrap();
    std::fs::write(studio.join("a.gguf"), &bytes).unwrap();
    std::fs::write(studio.join("broken.gguf"), b"GGUF").unwrap();

    let listed = json(alone(home.path()).args(["models", "--json"]));
    let models = listed["models"].as_array().unwrap();
    let of = |origin: &str| models.iter().filter(|model| model["origin"] == origin).collect::<Vec<_>>();
    assert_eq!(of("Ollama")[0]["name"], "little:1b");
    assert_eq!(of("Ollama")[0]["loadable"], true);
    assert_eq!(of("LM Studio").len(), 2);
    let text = succeed(alone(home.path()).arg("models"));
    assert!(text.contains("little:1b") && text.contains("cannot be loaded"), "{text}");

    let mut by_name = alone(home.path());
    let answer = json(by_name.args([
        "generate",
        "little:1b",
        "--prompt",
        "the door",
        "--max-new-tokens",
        "6",
        "--json",
    ]));
    assert_eq!(answer["model"], "little:1b");
    assert_eq!(answer["tokens"], generated(alone(home.path()).arg("generate").arg(tiny_model())));
    refuse(alone(home.path()).args(["generate", "litle:1b", "--prompt", "x"]), 2, &["litle:1b", "little:1b"]);
}

#[test]
fn a_model_of_the_hub_is_fetched_once_and_then_needs_no_network() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start();
    hub.has("owner/tiny-GGUF", COMMIT, &[("tiny-Q8_0.gguf", std::fs::read(tiny_model()).unwrap())]);
    let online = || {
        let mut command = alone(home.path());
        command.env("HF_ENDPOINT", hub.endpoint()).env("NO_PROXY", "127.0.0.1");
        command
    };
    let expected = generated(alone(home.path()).arg("generate").arg(tiny_model()));
    let answer = json(online().args([
        "generate",
        "owner/tiny-GGUF:Q8_0",
        "--prompt",
        "the door",
        "--max-new-tokens",
        "6",
        "--json",
    ]));
    assert_eq!((&answer["tokens"], &answer["model"]), (&expected, &"owner/tiny-GGUF:Q8_0".into()));
    assert_eq!(hub.downloads().len(), 1);
    assert_eq!(generated(online().args(["generate", "owner/tiny-GGUF"])), expected);
    assert!(hub.downloads().is_empty(), "nothing is fetched twice");
    drop(hub);
    let offline = || {
        let mut command = alone(home.path());
        command.env("HF_HUB_OFFLINE", "1");
        command
    };
    assert_eq!(generated(offline().args(["generate", "owner/tiny-GGUF"])), expected);
    refuse(offline().args(["inspect", "owner/other"]), 2, &["owner/other", "HF_HUB_OFFLINE"]);
}

#[test]
fn what_the_hub_refuses_is_one_sentence() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start();
    hub.has("owner/gated", COMMIT, &[("m-Q4_K_M.gguf", vec![1; 100])]);
    hub.change("owner/gated", |repository| repository.gated = true);
    let inspect = |id: &str| {
        let mut command = alone(home.path());
        command.env("HF_ENDPOINT", hub.endpoint()).env("NO_PROXY", "127.0.0.1").args(["inspect", id]);
        command
    };
    refuse(&mut inspect("owner/nowhere"), 2, &["owner/nowhere"]);
    refuse(&mut inspect("owner/gated"), 2, &["owner/gated", "HF_TOKEN"]);
    let output = run(inspect("owner/nowhere").env("HF_ENDPOINT", "http://127.0.0.1:1"));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[test]
fn an_unknown_architecture_is_run_as_what_the_user_says() {
    let home = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(tiny_model()).unwrap();
    // `general.architecture` and the keys with its prefix.
    let places: Vec<usize> = (0..bytes.len() - 6)
        .filter(|&at| &bytes[at..at + 6] == b"llama." || (at < 200 && &bytes[at..at + 5] == b"llama"))
        .collect();
    assert!(places.len() > 8, "{places:?}");
    for at in places {
        bytes[at..at + 5].copy_from_slice(b"newco");
    }
    let path = home.path().join("newco.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let generate = |path: &Path| {
        let mut command = alone(home.path());
        command.arg("generate").arg(path);
        command
    };
    refuse(
        generate(&path).args(["--prompt", "x"]),
        2,
        &["newco.gguf", "`newco`", "--architecture llama", "RMSNorm"],
    );
    let asserted = generated(generate(&path).args(["--architecture", "llama"]));
    assert_eq!(asserted, generated(&mut generate(&tiny_model())));
    let text = succeed(alone(home.path()).arg("inspect").arg(&path).args(["--architecture", "llama"]));
    assert!(text.contains("newco, run as llama"), "{text}");
    refuse(generate(&path).args(["--architecture", "lama", "--prompt", "x"]), 2, &["`lama`", "llama"]);
    // An unused weight is detected.
    refuse(
        generate(&with_tokenizer("qwen3", home.path())).args(["--architecture", "llama", "--prompt", "x"]),
        2,
        &["k_norm.weight", "qwen3"],
    );
}

#[test]
fn what_does_not_fit_into_memory_is_refused_before_it_is_loaded() {
    let home = tempfile::tempdir().unwrap();
    let folder = with_tokenizer("llama2", home.path());
    // A sparse file with weights of four tebibytes.
    let header = object!({
        "model.embed_tokens.weight": { "dtype": "F32", "shape": [1 << 20, 1 << 20], "data_offsets": [0, 1u64 << 42] },
        "lm_head.weight": { "dtype": "F32", "shape": [1], "data_offsets": [1u64 << 42, (1u64 << 42) + 4] },
    })
    .to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    let path = folder.join("model.safetensors");
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(bytes.len() as u64 + (1 << 42) + 4).unwrap();
    let command = |command: &str| {
        let mut program = alone(home.path());
        program.arg(command).arg(&folder);
        program
    };
    let parts = ["llama2", "weights 4.0 TiB", "are free", "smaller model", "LAYERSCOPE_MEMORY_CHECK=off"];
    refuse(command("generate").args(["--prompt", "x"]), 2, &parts);
    let prompts = home.path().join("p.jsonl");
    std::fs::write(&prompts, "{\"id\":\"a\",\"prompt\":\"abc\"}\n").unwrap();
    let out = home.path().join("run");
    refuse(command("record").arg("--prompts").arg(&prompts).arg("--out").arg(&out), 2, &parts);
    assert!(!out.exists());
    let shown = json(command("inspect").arg("--json"));
    assert_eq!(shown["memory"][0]["fits"], false);
    // With the override it continues and reports the error in the file.
    refuse(command("generate").args(["--prompt", "x"]).env("LAYERSCOPE_MEMORY_CHECK", "off"), 2, &["tensor"]);
}
