//! GGUF files: header, architecture, tokenizer, weights; what loads also runs.

use super::config_json::FAMILIES;
use super::fixture;
use crate::Target;
use crate::mutate::gguf;
use layerscope_engine::{
    Decoder, Device, GgufFile, Hooks, Interrupt, Policy, Session, Tokenizer, WeightsPrecision, gguf_config,
};
use std::sync::Arc;

/// A whole model file.
pub const TARGET: Target = Target { name: "gguf", read, mutate: gguf::changed, seeds };

/// Larger models take too long.
const LARGEST: usize = 1 << 18;

fn read(input: &[u8]) {
    let Ok(file) = GgufFile::in_memory("fuzzed.gguf", input.to_vec()) else { return };
    if let Ok(tokenizer) = Tokenizer::from_gguf(file.metadata(), file.path()) {
        let tokens = tokenizer.encode("one 2  drei 四").unwrap_or_default();
        let _ = tokenizer.decode(&tokens);
        tokens.iter().for_each(|&token| _ = tokenizer.token_text(token));
    }
    let Ok(config) = gguf_config(&file, None) else { return };
    let Ok(weights) = file.weights(&config) else { return };
    let loaded =
        Decoder::load(config.clone(), &weights, WeightsPrecision::Native, &Device::Cpu, &mut |_, _| Ok(()));
    if let Ok(decoder) = loaded {
        run(decoder);
    }
}

/// Two prompt tokens and a decode step.
pub(super) fn run(decoder: Decoder) {
    let config = decoder.config();
    if config.vocab < 3 || decoder.weight_bytes() > LARGEST {
        return;
    }
    let (layers, vocab) = (config.layers, config.vocab);
    let decoder = Arc::new(decoder);
    let Ok(mut session) = Session::new(&decoder, Policy::full(layers), 2, 2) else { return };
    let (mut hooks, interrupt) = (Hooks::none(), Interrupt::new(false));
    let prefilled = session.prefill(&[0, 1], &mut hooks, &interrupt, &mut |_| {});
    if prefilled.is_ok()
        && let Ok(logits) = session.step(2, &mut hooks)
    {
        assert_eq!(logits.to_vec().map(|logits| logits.len()).ok(), Some(vocab));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let small = |name: &&&str| !["gpt2", "gpt_neox_sequential"].contains(*name);
    let families =
        FAMILIES.iter().filter(small).map(|family| fixture(&format!("families/{family}/model.gguf")));
    let tokenizers = ["llama-spm", "smollm"].map(|name| fixture(&format!("tokenizer/{name}.gguf")));
    families.chain(tokenizers).collect()
}
