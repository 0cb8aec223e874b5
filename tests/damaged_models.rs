//! Models with NaN in a weight, and models whose file changes while they run: a sentence that names the place, and no figures.

#![allow(clippy::unwrap_used)]

mod support;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Content;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{json, layerscope, refuse, run, stderr, tiny_model};

/// The embedded model with NaN as the first number of a tensor's last block, or as its scale.
fn damaged(tensor: &str) -> Vec<u8> {
    let mut bytes = std::fs::read(tiny_model()).unwrap();
    let content = Content::read(&mut Cursor::new(&bytes)).unwrap();
    let info = &content.tensor_infos[tensor];
    let blocks = info.shape.elem_count() / info.ggml_dtype.block_size();
    let start = content.tensor_data_offset as usize + info.offset as usize;
    let start = start + (blocks - 1) * info.ggml_dtype.type_size();
    let nan = match info.ggml_dtype {
        GgmlDType::F32 => f32::NAN.to_le_bytes().to_vec(),
        // Blocks begin with a scale in f16.
        _ => vec![0x00, 0x7e],
    };
    bytes[start..start + nan.len()].copy_from_slice(&nan);
    bytes
}

/// Prompts with an answer each, so that no token has to be chosen.
fn prompts(folder: &Path) -> PathBuf {
    let line = |id| {
        format!("{{\"id\":\"p{id}\",\"prompt\":\"Ben has a red box.\",\"answer\":\" Anna has a cup.\"}}\n")
    };
    let path = folder.join("prompts.jsonl");
    std::fs::write(&path, (0..3).map(line).collect::<String>()).unwrap();
    path
}

fn record(model: &Path, prompts: &Path, out: &Path, tokens: &str) -> Command {
    let mut command = layerscope();
    command.arg("record").arg(model).args(["--max-new-tokens", tokens, "--prompts"]).arg(prompts);
    command.arg("--out").arg(out);
    command
}

#[test]
fn a_nan_weight_yields_no_figures_and_no_recommendation() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = prompts(folder.path());
    for (tensor, place) in [
        ("output_norm.weight", "from the final norm or the unembedding on"),
        ("blk.2.attn_k.weight", "from layer 2 on"),
        ("blk.1.attn_q.weight", "from layer 1 on"),
        ("blk.0.ffn_down.weight", "from layer 0 on"),
    ] {
        let model = folder.path().join("damaged.gguf");
        std::fs::write(&model, damaged(tensor)).unwrap();
        let out = folder.path().join(tensor);
        let output = run(&mut record(&model, &prompts, &out, "8"));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("p0") && message.contains(place), "{tensor}: {message}");
        assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
        refuse(layerscope().arg("recommend").arg(&out), 2, &["damaged", "prompt `p0`", place]);
        let manifest: serde_json::Value =
            serde_json::from_slice(&std::fs::read(out.join("manifest.json")).unwrap()).unwrap();
        assert_eq!(manifest["prompts"]["failed"][2]["undefined"], true);
        let mut generate = layerscope();
        generate.arg("generate").arg(&model).args(["--max-new-tokens", "4", "--prompt", "Ben has"]);
        refuse(&mut generate, 2, &[place]);
    }
}

#[test]
fn one_nan_row_of_the_unembedding_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(tiny_model()).unwrap();
    let content = Content::read(&mut Cursor::new(&bytes)).unwrap();
    let name = ["output.weight", "token_embd.weight"]
        .into_iter()
        .find(|name| content.tensor_infos.contains_key(*name));
    // The last token's row alone; no prompt has that token.
    let model = folder.path().join("damaged.gguf");
    std::fs::write(&model, damaged(name.unwrap())).unwrap();
    let out = folder.path().join("run");
    let output = run(&mut record(&model, &prompts(folder.path()), &out, "8"));
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(json(layerscope().arg("show").arg(&out).arg("--json"))["prompts"].as_array().unwrap().is_empty());
    refuse(layerscope().arg("recommend").arg(&out), 2, &["the final norm or the unembedding"]);
}

/// Runs until the folder has a manifest, so that the model is loaded, does something to its file, and returns the exit code and
/// what was said.
fn changed_while_it_runs(model: &Path, out: &Path, change: impl FnOnce(&Path)) -> (Option<i32>, String) {
    std::fs::copy(tiny_model(), model).unwrap();
    let mut command = record(model, &support::fixtures().join("prompts/five-categories.jsonl"), out, "32");
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !out.join("manifest.json").exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    change(model);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), stderr(&output))
}

#[cfg(unix)]
#[test]
fn a_model_that_is_shortened_while_it_runs_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("short.gguf");
    let (code, message) = changed_while_it_runs(&model, &folder.path().join("run"), |model| {
        std::fs::OpenOptions::new().write(true).open(model).unwrap().set_len(5_000).unwrap();
    });
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("short.gguf was "), "{message}");
}

#[cfg(unix)]
#[test]
fn a_model_that_is_replaced_in_place_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (folder.path().join("other.gguf"), folder.path().join("run"));
    let (code, message) = changed_while_it_runs(&model, &out, |model| {
        let bytes = std::fs::read(model).unwrap();
        std::fs::write(model.with_extension("new"), bytes).unwrap();
        std::fs::rename(model.with_extension("new"), model).unwrap();
    });
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("other.gguf was changed"), "{message}");
}
