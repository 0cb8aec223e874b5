//! The attention pattern of real models against PyTorch's matrices (`fixtures/pattern/make.py`).

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use layerscope_engine::{
    Device, Interrupt, Model, ModelSource, PatternHeads, PatternText, Policy, TextPattern, TileRequest,
    UNSEEN, WeightsPrecision,
};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A real model; `None` with a message where it is missing, or a failure where it is required.
fn real_model(name: &str, file: &str) -> Option<PathBuf> {
    let cached = std::env::home_dir().map(|home| home.join(".cache/layerscope/models").join(file));
    let named = std::env::var_os(format!("LAYERSCOPE_{name}")).map(PathBuf::from);
    let found = named.or(cached).filter(|path| path.exists());
    if found.is_none() {
        assert!(std::env::var_os(format!("LAYERSCOPE_REQUIRE_{name}")).is_none(), "{file} is absent");
        eprintln!("skipped: {file} is absent");
    }
    found
}

fn number(value: &Value) -> Option<f32> {
    value.as_f64().map(|x| x as f32)
}

fn check(model: &Path, golden: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/pattern");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(folder.join(golden)).unwrap()).unwrap();
    let source = ModelSource::path(model);
    let model = Model::load(&source, WeightsPrecision::F32, &Device::Cpu, &mut |_, _| Ok(())).unwrap();
    let tokens: Vec<u32> =
        golden["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let (rows, prompt) = (tokens.len(), golden["prompt"].as_u64().unwrap() as usize);
    // The last token of a continuation reads nothing.
    let continuation = [&tokens[prompt..], &[tokens[0]]].concat();
    let policy = Policy::full(model.config().layers);
    let text = PatternText { prompt: &tokens[..prompt], continuation: &continuation, policy: &policy };
    let never = Interrupt::new(false);
    let pattern = TextPattern::read(&model.decoder, text, &[], 2 << 30, &never, &mut |_| {}).unwrap();
    assert_eq!((pattern.rows(), pattern.layers().count()), (rows, model.config().layers));

    let mut largest = 0.0_f32;
    let mut compare = |actual: f32, expected: f32, what: &str| {
        let off = (actual - expected).abs();
        assert!(off < 1e-5, "{what}: {actual} instead of {expected}");
        largest = largest.max(off);
    };
    let cell = golden["cell"].as_u64().unwrap() as usize;
    for tile in golden["tiles"].as_array().unwrap() {
        let layer = tile["layer"].as_u64().unwrap() as usize;
        let heads = tile["head"].as_u64().map_or(PatternHeads::Mean, |head| PatternHeads::One(head as usize));
        let request = TileRequest { layer, heads, rows: 0..rows, keys: 0..rows, cell: [cell, cell] };
        let actual = pattern.tile(&request, &never).unwrap();
        for (name, cells) in [("max", &actual.max), ("mean", &actual.mean)] {
            let expected = tile[name].as_array().unwrap();
            assert_eq!(cells.len(), expected.len());
            for (index, (&actual, expected)) in cells.iter().zip(expected).enumerate() {
                let what = format!("{name} of cell {index}, layer {layer}, {heads:?}");
                match number(expected) {
                    Some(expected) => compare(actual, expected, &what),
                    None => assert!(actual == UNSEEN || actual.is_nan(), "{what}: {actual}"),
                }
            }
        }
    }
    for pair in golden["pairs"].as_array().unwrap() {
        let at = |index: usize| pair[index].as_u64().unwrap() as usize;
        let (layer, head, query, key) = (at(0), at(1), at(2), at(3));
        let heads = PatternHeads::One(head);
        let request = TileRequest { layer, heads, rows: query..query + 1, keys: key..key + 1, cell: [1, 1] };
        let actual = pattern.tile(&request, &never).unwrap().max[0];
        let what = format!("layer {layer}, head {head}, query {query}, key {key}");
        compare(actual, number(&pair[4]).unwrap(), &what);
    }
    eprintln!("the largest difference is {largest:e}");
}

#[test]
fn cells_of_smollm2_are_those_of_pytorch() {
    let Some(model) = real_model("SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    check(&model, "smollm2-135m-q4_1.json");
}

#[test]
fn cells_of_gemma3_with_its_windows_are_those_of_pytorch() {
    let Some(model) = real_model("GEMMA3", "gemma-3-270m-q4_k_m.gguf") else { return };
    check(&model, "gemma3-270m-q4_k_m.json");
}
