//! A checkpoint's safetensors file; what loads also runs.

use super::gguf::run;
use crate::mutate::safetensors::{assembled, changed};
use crate::{Target, scratch};
use layerscope_engine::{Decoder, Device, WeightsPrecision, folder_config};
use serde_json::{Map, Value, json};

/// `model.safetensors` of a GPT-2 of one layer.
pub const TARGET: Target = Target { name: "safetensors", read, mutate: changed, seeds };

const CONFIG: &str = r#"{"model_type": "gpt2", "n_embd": 4, "n_head": 1, "n_layer": 1, "n_positions": 4, "vocab_size": 4,
    "layer_norm_epsilon": 1e-5}"#;

fn read(input: &[u8]) {
    let folder = scratch::folder([("config.json", CONFIG.as_bytes()), ("model.safetensors", input)]);
    let Ok((_, config, files)) = folder_config(folder.path(), None) else { return };
    let Ok(weights) = files.weights(&config) else { return };
    for precision in [WeightsPrecision::Native, WeightsPrecision::F32] {
        let loaded = Decoder::load(config.clone(), &weights, precision, &Device::Cpu, &mut |_, _| Ok(()));
        if let Ok(decoder) = loaded {
            run(decoder);
        }
    }
}

/// A whole GPT-2 of one layer, in f32 and in bf16.
fn seeds() -> Vec<Vec<u8>> {
    [("F32", 4), ("BF16", 2), ("F16", 2)].map(|(kind, width)| model(kind, width)).to_vec()
}

fn model(kind: &str, width: usize) -> Vec<u8> {
    const TENSORS: [(&str, &[usize]); 16] = [
        ("wte.weight", &[4, 4]),
        ("wpe.weight", &[4, 4]),
        ("h.0.ln_1.weight", &[4]),
        ("h.0.ln_1.bias", &[4]),
        ("h.0.attn.c_attn.weight", &[4, 12]),
        ("h.0.attn.c_attn.bias", &[12]),
        ("h.0.attn.c_proj.weight", &[4, 4]),
        ("h.0.attn.c_proj.bias", &[4]),
        ("h.0.ln_2.weight", &[4]),
        ("h.0.ln_2.bias", &[4]),
        ("h.0.mlp.c_fc.weight", &[4, 16]),
        ("h.0.mlp.c_fc.bias", &[16]),
        ("h.0.mlp.c_proj.weight", &[16, 4]),
        ("h.0.mlp.c_proj.bias", &[4]),
        ("ln_f.weight", &[4]),
        ("ln_f.bias", &[4]),
    ];
    let (mut header, mut data) = (Map::new(), vec![]);
    for (name, shape) in TENSORS {
        let start = data.len();
        let numbers = shape.iter().product::<usize>();
        // Small numbers in any of the types.
        data.extend(
            (0..numbers * width).map(|at| if at % width == width - 1 { 0x3c } else { (at % 7) as u8 }),
        );
        header.insert(
            name.to_owned(),
            json!({"dtype": kind, "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    assembled(Value::Object(header).to_string().as_bytes(), &data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_models() {
        for seed in seeds() {
            let folder = scratch::folder([("config.json", CONFIG.as_bytes()), ("model.safetensors", &seed)]);
            let (_, config, files) = folder_config(folder.path(), None).expect("a folder");
            let weights = files.weights(&config).expect("weights");
            let native = WeightsPrecision::Native;
            Decoder::load(config.clone(), &weights, native, &Device::Cpu, &mut |_, _| Ok(()))
                .expect("a model");
        }
    }
}
