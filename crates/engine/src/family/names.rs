//! The names that most families give their weights.

use crate::config::ModelConfig;
use crate::weights::{Place, Weight};

/// As Llama's Hugging Face checkpoints have them.
pub(super) fn hugging_face(weight: Weight, _: &ModelConfig) -> Place {
    let layer = |l: usize, name: &str| Place::whole(format!("model.layers.{l}.{name}.weight"));
    let expert = |l, e, name| layer(l, &format!("mlp.experts.{e}.{name}"));
    match weight {
        Weight::Embedding => Place::whole("model.embed_tokens.weight"),
        Weight::PositionEmbedding => Place::whole("model.embed_positions.weight"),
        Weight::FinalNorm => Place::whole("model.norm.weight"),
        Weight::Unembedding => Place::whole("lm_head.weight"),
        Weight::AttentionNorm(l) => layer(l, "input_layernorm"),
        Weight::Query(l) => layer(l, "self_attn.q_proj"),
        Weight::Key(l) => layer(l, "self_attn.k_proj"),
        Weight::Value(l) => layer(l, "self_attn.v_proj"),
        Weight::QueryNorm(l) => layer(l, "self_attn.q_norm"),
        Weight::KeyNorm(l) => layer(l, "self_attn.k_norm"),
        Weight::AttentionOutput(l) => layer(l, "self_attn.o_proj"),
        Weight::AttentionPostNorm(l) => layer(l, "post_attention_layernorm"),
        Weight::MlpNorm(l) => layer(l, "post_attention_layernorm"),
        Weight::Gate(l) => layer(l, "mlp.gate_proj"),
        Weight::Up(l) => layer(l, "mlp.up_proj"),
        Weight::Down(l) => layer(l, "mlp.down_proj"),
        Weight::MlpPostNorm(l) => layer(l, "post_feedforward_layernorm"),
        Weight::Router(l) => layer(l, "mlp.gate"),
        Weight::ExpertGate(l, e) => expert(l, e, "gate_proj"),
        Weight::ExpertUp(l, e) => expert(l, e, "up_proj"),
        Weight::ExpertDown(l, e) => expert(l, e, "down_proj"),
    }
}

/// As GGUF files have them.
pub(super) fn gguf(weight: Weight, config: &ModelConfig) -> Place {
    let layer = |l: usize, name: &str| Place::whole(format!("blk.{l}.{name}.weight"));
    // All experts of a layer are in one tensor, one after the other.
    let expert = |l, e: usize, name, rows: usize| {
        layer(l, name).rows_from(e * rows, config.experts.as_ref().map_or(1, |experts| experts.count) * rows)
    };
    let width = config.experts.as_ref().map_or(0, |experts| experts.feed_forward);
    match weight {
        Weight::Embedding => Place::whole("token_embd.weight"),
        Weight::PositionEmbedding => Place::whole("position_embd.weight"),
        Weight::FinalNorm => Place::whole("output_norm.weight"),
        Weight::Unembedding => Place::whole("output.weight"),
        Weight::AttentionNorm(l) => layer(l, "attn_norm"),
        Weight::Query(l) => layer(l, "attn_q"),
        Weight::Key(l) => layer(l, "attn_k"),
        Weight::Value(l) => layer(l, "attn_v"),
        Weight::QueryNorm(l) => layer(l, "attn_q_norm"),
        Weight::KeyNorm(l) => layer(l, "attn_k_norm"),
        Weight::AttentionOutput(l) => layer(l, "attn_output"),
        Weight::AttentionPostNorm(l) => layer(l, "post_attention_norm"),
        Weight::MlpNorm(l) => layer(l, "ffn_norm"),
        Weight::Gate(l) => layer(l, "ffn_gate"),
        Weight::Up(l) => layer(l, "ffn_up"),
        Weight::Down(l) => layer(l, "ffn_down"),
        Weight::MlpPostNorm(l) => layer(l, "post_ffw_norm"),
        Weight::Router(l) => layer(l, "ffn_gate_inp"),
        Weight::ExpertGate(l, e) => expert(l, e, "ffn_gate_exps", width),
        Weight::ExpertUp(l, e) => expert(l, e, "ffn_up_exps", width),
        Weight::ExpertDown(l, e) => expert(l, e, "ffn_down_exps", config.hidden),
    }
}

/// The same, with the rows of queries and keys reordered for llama.cpp's rotary embedding of neighbouring pairs.
pub(super) fn gguf_in_pairs(weight: Weight, config: &ModelConfig) -> Place {
    match weight {
        Weight::Query(_) => gguf(weight, config).in_pairs(config.heads),
        Weight::Key(_) => gguf(weight, config).in_pairs(config.kv_heads),
        _ => gguf(weight, config),
    }
}

/// Query, key and value as parts of one matrix, one after the other.
pub(super) fn fused_attention(weight: Weight, config: &ModelConfig, name: &str) -> Option<Place> {
    let (query, kv) = (config.query_width(), config.kv_width());
    let first = match weight {
        Weight::Query(_) => 0,
        Weight::Key(_) => query,
        Weight::Value(_) => query + kv,
        _ => return None,
    };
    Some(Place::whole(name).rows_from(first, query + 2 * kv))
}

/// Gate and up projection as halves of one matrix.
pub(super) fn fused_gate(weight: Weight, config: &ModelConfig, name: &str) -> Option<Place> {
    let first = match weight {
        Weight::Gate(_) => 0,
        Weight::Up(_) => config.feed_forward,
        _ => return None,
    };
    Some(Place::whole(name).rows_from(first, 2 * config.feed_forward))
}
