//! Files beside a model: adapters in PEFT's and llama.cpp's formats, and patterns of heads. What is read also runs.

use super::fixture;
use super::gguf::run;
use crate::mutate::{Random, gguf, json, records, safetensors};
use crate::{Target, scratch};
use layerscope_engine::{Adapter, Decoder, Device, HeadPatterns, WeightsPrecision, folder_config};
use std::sync::LazyLock;

/// The files of an adapter's folder, by their number.
pub const ADAPTER: Target = Target { name: "adapter", read, mutate, seeds };

/// A file of patterns.
pub const HEAD_PATTERNS: Target = Target {
    name: "head_patterns",
    read: |input| {
        let folder = scratch::folder([("heads.json", input)]);
        if let Ok(patterns) = HeadPatterns::read(&folder.path().join("heads.json")) {
            let _ = patterns.to_json();
        }
    },
    mutate: json::changed,
    seeds: || {
        vec![br#"[{"0": ["vertical_and_slash", 1000, 6096, 0.5], "1": ["stream_llm", 64, 448, 0.25]}, {"0": ["block_sparse", 8, 1, 1.0]}]"#.to_vec()]
    },
};

const FILES: [&str; 4] = ["adapter_config.json", "adapter_model.safetensors", "layerscope.json", GGUF];
const GGUF: &str = "adapter.gguf";

static DECODER: LazyLock<Decoder> = LazyLock::new(|| {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/families/gpt2");
    let (_, config, files) = folder_config(&folder, None).expect("a folder");
    let weights = files.weights(&config).expect("weights");
    Decoder::load(config.clone(), &weights, WeightsPrecision::F32, &Device::Cpu, &mut |_, _| Ok(()))
        .expect("a model")
});

fn read(input: &[u8]) {
    let files = records::split(input).into_iter();
    let files = files.filter_map(|(number, bytes)| Some((*FILES.get(usize::from(number))?, bytes)));
    let folder = scratch::folder(files);
    let gguf = folder.path().join(GGUF);
    let path = if gguf.is_file() { &gguf } else { folder.path() };
    let Ok((adapter, _)) = Adapter::read(path, DECODER.config()) else { return };
    if let Ok(adapted) = DECODER.with_adapter(&adapter) {
        run(adapted);
    }
}

fn mutate(input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    records::changed(input, random, |number, file, random| match number {
        1 => safetensors::changed(file, random),
        3 => gguf::changed(file, random),
        _ => json::changed(file, random),
    })
}

fn seeds() -> Vec<Vec<u8>> {
    let [config, tensors] =
        [FILES[0], FILES[1]].map(|name| fixture(&format!("families/gpt2/adapter/{name}")));
    let info = br#"{"rows": "decode", "policy": "speed:1+bos", "model": "m", "model_sha256": "", "prompts": "p", "prompts_sha256": "", "layerscope": "0.1.0"}"#;
    let both: [(u8, &[u8]); 2] = [(0, &config), (1, &tensors)];
    let gguf = fixture("families/gpt2/adapter.gguf");
    let alone: [(u8, &[u8]); 1] = [(3, &gguf)];
    let all = both.into_iter().chain([(2, info.as_slice())]);
    vec![records::joined(both), records::joined(all), records::joined(alone)]
}
