//! A model whose matrices are all of different block types, against transformers with the same weights
//! (`fixtures/block-types`).

#![allow(clippy::unwrap_used)]

use candle_core::{DType, Tensor};
use layerscope_engine::{
    Decoder, Device, GgufFile, Hooks, Interrupt, Policy, Session, WeightsPrecision, gguf_config,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/block-types").join(name)
}

fn load(precision: WeightsPrecision) -> Arc<Decoder> {
    let file = GgufFile::open(&path("model.gguf")).unwrap();
    let config = gguf_config(&file, None).unwrap();
    let weights = file.weights(&config).unwrap();
    Arc::new(Decoder::load(config.clone(), &weights, precision, &Device::Cpu, &mut |_, _| Ok(())).unwrap())
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn expected() -> (Vec<u32>, Vec<f32>) {
    let all: HashMap<String, Tensor> =
        candle_core::safetensors::load(path("expected.safetensors"), &candle_core::Device::Cpu).unwrap();
    let tokens = all["tokens"].to_dtype(DType::U32).unwrap().to_vec1().unwrap();
    (tokens, numbers(&all["logits"]))
}

/// Largest difference of logits: after a prefill of `prompt` tokens, and after each single step beyond.
fn largest_difference(precision: WeightsPrecision, prompt: usize) -> f32 {
    let decoder = load(precision);
    let (tokens, logits) = expected();
    let vocab = decoder.config().vocab;
    let policy = Policy::full(decoder.config().layers);
    let mut session = Session::new(&decoder, policy, prompt, tokens.len() - prompt + 1).unwrap();
    let interrupt = Interrupt::new(false);
    let actual = session.prefill(&tokens[..prompt], &mut Hooks::none(), &interrupt, &mut |_| {}).unwrap();
    let mut actual = actual.to_vec().unwrap();
    for &token in &tokens[prompt..] {
        actual.extend(session.step(token, &mut Hooks::none()).unwrap().to_vec().unwrap());
    }
    let expected = &logits[(prompt - 1) * vocab..];
    assert_eq!(actual.len(), expected.len());
    actual.iter().zip(expected).fold(0.0, |worst, (a, b)| f32::max(worst, (a - b).abs()))
}

#[test]
fn widened_weights_equal_transformers() {
    for prompt in [1, 20, 48] {
        let off = largest_difference(WeightsPrecision::F32, prompt);
        assert!(off < 1e-4, "prefill of {prompt}: {off:e}");
    }
}

#[test]
fn packed_weights_are_as_close_as_their_products_are() {
    // Single rows meet weights in 16-bit activations at the coarsest.
    let off = largest_difference(WeightsPrecision::Native, 1);
    assert!(off < 5e-3, "{off:e}");
    // Several rows may be rounded to bf16; logits are up to 5.
    let off = largest_difference(WeightsPrecision::Native, 48);
    assert!(off < 0.1, "{off:e}");
}

#[test]
fn packed_weights_stay_packed() {
    let elements = |decoder: &Arc<Decoder>| {
        let config = decoder.config();
        config.layers * (2 * 256 * 256 + 2 * 32 * 256 + 3 * 256 * 256) + 2 * config.vocab * 256
    };
    let (packed, widened) = (load(WeightsPrecision::Native), load(WeightsPrecision::F32));
    assert_eq!(widened.weight_bytes(), 4 * elements(&widened));
    assert!(packed.weight_bytes() < elements(&packed));
}
