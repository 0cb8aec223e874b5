//! SmolLM2-135M and Gemma 3 270M compared with PyTorch eager attention in f32; the reference is from
//! fixtures/golden/oracle.py.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod support;

use serde_json::Value;
use std::path::Path;
use support::{fixtures, gemma3, json, layerscope, numbers, smollm2, succeed};

fn worst(found: &[f64], expected: &[f64]) -> f64 {
    assert!(found.len() >= expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// Within 2 % or 1e-4.
fn kl_agrees(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= (0.02 * expected.abs()).max(1e-4)
}

#[test]
fn every_figure_of_smollm2_equals_pytorchs() {
    let Some(model) = smollm2() else { return };
    let folder = tempfile::tempdir().unwrap();
    check_figures(&model, "smollm2-135m-q4_1.json", &folder.path().join("run"));
}

/// Sliding windows, with two prompts longer than the window; the recommended cutoff is after a full-attention
/// layer.
#[test]
fn every_figure_of_gemma3_equals_pytorchs_and_the_edge_is_a_global_layer() {
    let Some(model) = gemma3() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    check_figures(&model, "gemma3-270m-q4_k_m.json", &out);
    let recommendation = json(layerscope().arg("recommend").arg(&out).arg("--json"));
    let reasons = recommendation["reasons"].as_array().unwrap();
    let told = |part: &str| reasons.iter().any(|reason| reason.as_str().unwrap().contains(part));
    assert!(
        told("Layers 5, 11, 17 see the whole prompt, the other 15 a window of 512 tokens"),
        "{reasons:?}"
    );
    assert!(
        told("The steepest edge of the frontier is layer 11, one that sees the whole prompt"),
        "{reasons:?}"
    );
    assert!(told("4 of 6 prompts fit into the window"), "{reasons:?}");
}

/// Beyond the windows, only full-attention layers read the prompt, and the recommendation says so.
#[test]
fn on_prompts_longer_than_its_windows_gemma3_is_cut_right_above_a_global_layer() {
    let Some(model) = gemma3() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (prompts, out) = (folder.path().join("needles.jsonl"), folder.path().join("run"));
    succeed(
        layerscope()
            .arg("needle")
            .arg(&model)
            .args(["--lengths", "1280", "--depths", "0,25,50", "--samples", "1", "--write-prompts"])
            .arg(&prompts),
    );
    let recorded = json(
        layerscope()
            .arg("record")
            .arg(&model)
            .args(["--max-new-tokens", "12", "--failure-cases", "0", "--json", "--prompts"])
            .arg(&prompts)
            .arg("--out")
            .arg(&out),
    );
    // One needle in four moves by more than 0.1 nats there, and every number is found.
    let recommendation = json(layerscope().arg("recommend").arg(&out).args(["--tolerance", "0.4", "--json"]));
    assert_eq!((&recommendation["l_cut"], &recommendation["answers_kept"]), (&12.into(), &1.0.into()));
    let reasons = recommendation["reasons"].to_string();
    assert!(reasons.contains("layer 11, one that sees the whole prompt"), "{reasons}");
    assert!(reasons.contains("the cutoff lies right above it") && !reasons.contains("fit into the window"));
    // Position 0 is outside the window of sliding-window layers.
    for prompt in recorded["show"]["prompts"].as_array().unwrap() {
        for (layer, mass) in numbers(&prompt["bos_mass"]).into_iter().enumerate() {
            assert_eq!(mass == 0.0, ![5, 11, 17].contains(&layer), "layer {layer}: {mass}");
        }
    }
}

/// Records the golden prompts in f32 and compares every figure with PyTorch's.
fn check_figures(model: &Path, golden: &str, out: &Path) {
    let path = fixtures().join("golden").join(golden);
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    succeed(
        layerscope()
            .arg("record")
            .arg(model)
            .args([
                "--weights",
                "f32",
                "--max-new-tokens",
                "32",
                "--failure-cases",
                "0",
                "--json",
                "--prompts",
            ])
            .arg(fixtures().join("golden/prompts.jsonl"))
            .arg("--out")
            .arg(out),
    );
    let show = json(layerscope().arg("show").arg(out).arg("--json"));
    let layers = show["manifest"]["model"]["layers"].as_u64().unwrap();
    let prompts = show["prompts"].as_array().unwrap();
    for expected in golden.as_array().unwrap() {
        let id = expected["id"].as_str().unwrap();
        let found = prompts.iter().find(|p| p["id"] == expected["id"]).unwrap();
        assert_eq!(found["prompt_tokens"], expected["prompt_tokens"], "{id}");
        assert_eq!(found["generated"], expected["generated"], "{id}");
        for (figure, bar) in [
            ("bos_mass", 1e-4),
            ("prompt_mass", 1e-4),
            ("decode_mass", 1e-4),
            ("prompt_entropy", 1e-3),
            ("curvature_prompt_deg", 0.05),
        ] {
            let off = worst(&numbers(&found[figure]), &numbers(&expected[figure]));
            println!("{id}: {figure} off by at most {off:.2e}");
            assert!(off <= bar, "{id}: {figure} is off by {off}");
        }
        let by_head =
            |value: &Value| value.as_array().unwrap().iter().flat_map(numbers).collect::<Vec<f64>>();
        let off = worst(&by_head(&found["prompt_mass_by_head"]), &by_head(&expected["prompt_mass_by_head"]));
        assert!(off <= 1e-4, "{id}: prompt mass of a head is off by {off}");
        let mut compared = 0;
        for row in found["frontier"].as_array().unwrap() {
            let key = format!("frontier_{}", row["anchor"].as_str().unwrap());
            let expected = &expected[&key][row["cutoff"].to_string()];
            compared += compare(row, expected, &format!("{id}: {key} {}", row["cutoff"]));
        }
        for row in found["knockout"].as_array().unwrap() {
            let expected = &expected["knockout_bos"][row["layer"].to_string()];
            compared += compare(row, expected, &format!("{id}: knockout {}", row["layer"]));
        }
        assert_eq!(compared, 3 * layers, "both anchors and attention knockout");
    }
    assert_eq!(prompts.len(), golden.as_array().unwrap().len());
}

fn compare(found: &Value, expected: &Value, what: &str) -> u64 {
    let of = |value: &Value, key: &str| value[key].as_f64().unwrap();
    let (kl, reference) = (of(found, "kl"), of(expected, "kl"));
    assert!(kl_agrees(kl, reference), "{what}: KL {kl}, PyTorch {reference}");
    let (dnll, reference) = (of(found, "dnll"), of(expected, "dnll"));
    assert!(
        (dnll - reference).abs() <= (0.02 * reference.abs()).max(1e-3),
        "{what}: dNLL {dnll}, {reference}"
    );
    // One of 32 steps may differ by a near tie.
    assert!((of(found, "top1") - of(expected, "top1")).abs() <= 1.5 / 32.0, "{what}: top-1");
    1
}

#[test]
fn native_weights_are_close_to_f32_and_say_how_close() {
    for model in [smollm2(), gemma3()].into_iter().flatten() {
        check_native(&model);
    }
}

fn check_native(model: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("prompts.jsonl");
    std::fs::write(
        &prompts,
        "{\"id\":\"a\",\"prompt\":\"Name three rivers of Europe and the seas they reach.\"}\n",
    )
    .unwrap();
    let out = folder.path().join("run");
    succeed(
        layerscope()
            .arg("record")
            .arg(model)
            .args(["--max-new-tokens", "16", "--prompts"])
            .arg(&prompts)
            .arg("--out")
            .arg(&out),
    );
    let show = json(layerscope().arg("show").arg(&out).arg("--json"));
    let kl = show["manifest"]["native_kl"].as_f64().unwrap();
    assert!((0.0..0.05).contains(&kl), "native weights are {kl} nats from f32");
    let text = succeed(layerscope().arg("show").arg(&out));
    assert!(text.contains("nats per token from f32"), "{text}");
}

#[test]
fn a_cutoff_of_all_layers_is_the_full_model_and_kv_is_what_the_cost_model_says() {
    // Layers, KV heads and elements of a head.
    for (model, shape) in [(smollm2(), [30, 3, 64]), (gemma3(), [18, 1, 256])] {
        if let Some(model) = model {
            check_policies(&model, shape);
        }
    }
}

fn check_policies(model: &Path, [layers, kv_heads, head_dim]: [usize; 3]) {
    let generate = |policy: &str| {
        json(layerscope().arg("generate").arg(model).args([
            "--weights",
            "f32",
            "--max-new-tokens",
            "24",
            "--ignore-eos",
            "--json",
            "--policy",
            policy,
            "--prompt",
            "Write one sentence about the moon.",
        ]))
    };
    let full = generate("full");
    assert_eq!(generate(&format!("speed:{layers}"))["tokens"], full["tokens"]);
    assert_eq!(generate(&format!("speed:{layers}+bos"))["tokens"], full["tokens"]);
    // Bytes of one token's K and V at one layer, in f32.
    let token = 2 * kv_heads * head_dim * 4;
    let p = full["prompt_tokens"].as_array().unwrap().len();
    let (prefill, decode) = (p - 1, 24);
    for (policy, cutoff, anchors) in
        [("full", layers, 0), ("speed:12", 12, 0), ("speed:12+bos", 12, 1), ("speed:1", 1, 0)]
    {
        let expected = ((prefill - anchors) * cutoff + (anchors + decode) * layers) * token;
        let generation = generate(policy);
        assert_eq!(generation["kv_bytes"], expected, "{policy}: allocated");
        assert_eq!(generation["kv_bytes_model"], expected, "{policy}: cost model");
    }
}
