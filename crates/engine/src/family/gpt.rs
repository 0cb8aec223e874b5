//! GPT-2, GPT-NeoX (Pythia) and StarCoder 2: LayerNorm, biases, an MLP without gate.

use super::Family;
use super::names::{fused_attention, gguf, hugging_face};
use crate::Result;
use crate::config::{Activation, Fields, Key, ModelConfig, NormKind, activation, windows};
use crate::weights::{Place, Weight};

/// GPT-2: learned positions, matrices with rows and columns exchanged.
pub(super) static GPT_2: Family = Family {
    name: "gpt2",
    model_types: &["gpt2"],
    gguf_names: &["gpt2"],
    configure: |fields, config| {
        without_gate(fields, config, Key("activation_function", ""), Activation::GeluTanh)?;
        config.rope.fill(None);
        config.learned_positions = true;
        config.tied_embeddings = true;
        Ok(())
    },
    in_hugging_face: gpt_2_names,
    in_gguf: fused_gguf,
};

/// GPT-NeoX and Pythia: attention and MLP beside each other, rotary embedding over a part of each head.
pub(super) static GPT_NEOX: Family = Family {
    name: "gpt_neox",
    model_types: &["gpt_neox"],
    gguf_names: &["gptneox"],
    configure: |fields, config| {
        without_gate(fields, config, Key("hidden_act", ""), Activation::Gelu)?;
        let parallel = Key("use_parallel_residual", "use_parallel_residual");
        config.parallel_residual = fields.optional_boolean(parallel)?.unwrap_or(true);
        Ok(())
    },
    in_hugging_face: gpt_neox_names,
    in_gguf: fused_gguf,
};

/// StarCoder 2: a Llama with LayerNorm, biases and no gate.
pub(super) static STARCODER_2: Family = Family {
    name: "starcoder2",
    model_types: &["starcoder2"],
    gguf_names: &["starcoder2"],
    configure: |fields, config| {
        without_gate(fields, config, Key("hidden_act", ""), Activation::GeluTanh)?;
        config.windows = windows(fields, config.layers, |_| true)?;
        config.tied_embeddings = true;
        Ok(())
    },
    in_hugging_face: |weight, config| match weight {
        Weight::Up(l) => Place::whole(format!("model.layers.{l}.mlp.c_fc.weight")),
        Weight::Down(l) => Place::whole(format!("model.layers.{l}.mlp.c_proj.weight")),
        _ => hugging_face(weight, config),
    },
    in_gguf: gguf,
};

fn without_gate(
    fields: &Fields<'_>,
    config: &mut ModelConfig,
    key: Key,
    otherwise: Activation,
) -> Result<()> {
    config.norm = NormKind::Layer;
    config.gated = false;
    config.activation = activation(fields, key, otherwise)?;
    Ok(())
}

fn fused_gguf(weight: Weight, config: &ModelConfig) -> Place {
    match weight {
        Weight::Query(l) | Weight::Key(l) | Weight::Value(l) => {
            fused_attention(weight, config, &format!("blk.{l}.attn_qkv.weight"))
        }
        _ => None,
    }
    .unwrap_or_else(|| gguf(weight, config))
}

fn gpt_2_names(weight: Weight, config: &ModelConfig) -> Place {
    let layer = |l: usize, name: &str| Place::whole(format!("transformer.h.{l}.{name}.weight"));
    match weight {
        Weight::Embedding => Place::whole("transformer.wte.weight"),
        Weight::PositionEmbedding => Place::whole("transformer.wpe.weight"),
        Weight::FinalNorm => Place::whole("transformer.ln_f.weight"),
        Weight::AttentionNorm(l) => layer(l, "ln_1"),
        Weight::Query(l) | Weight::Key(l) | Weight::Value(l) => {
            let name = format!("transformer.h.{l}.attn.c_attn.weight");
            fused_attention(weight, config, &name).unwrap_or_else(|| Place::whole(name)).transposed()
        }
        Weight::AttentionOutput(l) => layer(l, "attn.c_proj").transposed(),
        Weight::MlpNorm(l) => layer(l, "ln_2"),
        Weight::Up(l) => layer(l, "mlp.c_fc").transposed(),
        Weight::Down(l) => layer(l, "mlp.c_proj").transposed(),
        _ => hugging_face(weight, config),
    }
}

fn gpt_neox_names(weight: Weight, config: &ModelConfig) -> Place {
    let layer = |l: usize, name: &str| Place::whole(format!("gpt_neox.layers.{l}.{name}.weight"));
    // Query, key and value of each head, one head after the other.
    let part = |l, part| layer(l, "attention.query_key_value").of_each_head(part, 3, config.head_dim);
    match weight {
        Weight::Embedding => Place::whole("gpt_neox.embed_in.weight"),
        Weight::Unembedding => Place::whole("embed_out.weight"),
        Weight::FinalNorm => Place::whole("gpt_neox.final_layer_norm.weight"),
        Weight::AttentionNorm(l) => layer(l, "input_layernorm"),
        Weight::Query(l) => part(l, 0),
        Weight::Key(l) => part(l, 1),
        Weight::Value(l) => part(l, 2),
        Weight::AttentionOutput(l) => layer(l, "attention.dense"),
        Weight::MlpNorm(l) => layer(l, "post_attention_layernorm"),
        Weight::Up(l) => layer(l, "mlp.dense_h_to_4h"),
        Weight::Down(l) => layer(l, "mlp.dense_4h_to_h"),
        _ => hugging_face(weight, config),
    }
}
