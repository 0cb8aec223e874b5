//! Llama and the families that differ from it in a few points.

use super::Family;
use super::names::{fused_attention, fused_gate, gguf, gguf_in_pairs, hugging_face};
use crate::Result;
use crate::config::{Experts, Fields, Key, ModelConfig, NormPlacement, QueryKeyNorm, windows};
use crate::weights::Weight;

/// Llama 2, 3, 3.1 and later text models, SmolLM 1 and 2, TinyLlama and others of its shape.
pub(super) static LLAMA: Family = Family {
    name: "llama",
    model_types: &["llama"],
    gguf_names: &["llama"],
    configure: full_rotary,
    in_hugging_face: hugging_face,
    in_gguf: gguf_in_pairs,
};

/// A sliding window at every layer. (GGUF files of the older models say `llama`.)
pub(super) static MISTRAL: Family = Family {
    name: "mistral",
    model_types: &["mistral"],
    gguf_names: &[],
    configure: |fields, config| {
        config.windows = windows(fields, config.layers, |_| true)?;
        Ok(())
    },
    in_hugging_face: hugging_face,
    in_gguf: gguf_in_pairs,
};

/// Qwen 2 and 2.5: biases of queries, keys and values; windows above a layer where they are switched on.
pub(super) static QWEN_2: Family = Family {
    name: "qwen2",
    model_types: &["qwen2"],
    gguf_names: &["qwen2"],
    configure: qwen_windows,
    in_hugging_face: hugging_face,
    in_gguf: gguf,
};

/// Qwen 3: norms of queries and keys.
pub(super) static QWEN_3: Family = Family {
    name: "qwen3",
    model_types: &["qwen3"],
    gguf_names: &["qwen3"],
    configure: qwen_3,
    in_hugging_face: hugging_face,
    in_gguf: gguf,
};

/// Qwen 3 with experts, and some layers without.
pub(super) static QWEN_3_MOE: Family = Family {
    name: "qwen3_moe",
    model_types: &["qwen3_moe"],
    gguf_names: &["qwen3moe"],
    configure: |fields, config| {
        let normalized = fields.optional_boolean(Key("norm_topk_prob", ""))?.unwrap_or(!fields.is_json());
        let width = Key("moe_intermediate_size", "expert_feed_forward_length");
        config.experts = Some(experts(fields, fields.count(width)?, normalized)?);
        qwen_3(fields, config)
    },
    in_hugging_face: hugging_face,
    in_gguf: gguf,
};

/// Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: fused projections, LongRoPE, rotary embedding over a part of each head.
pub(super) static PHI_3: Family = Family {
    name: "phi3",
    model_types: &["phi3"],
    gguf_names: &["phi3"],
    configure: |fields, config| {
        config.windows = windows(fields, config.layers, |_| true)?;
        Ok(())
    },
    in_hugging_face: |weight, config| {
        match weight {
            Weight::Query(l) | Weight::Key(l) | Weight::Value(l) => {
                fused_attention(weight, config, &format!("model.layers.{l}.self_attn.qkv_proj.weight"))
            }
            Weight::Gate(l) | Weight::Up(l) => {
                fused_gate(weight, config, &format!("model.layers.{l}.mlp.gate_up_proj.weight"))
            }
            _ => None,
        }
        .unwrap_or_else(|| hugging_face(weight, config))
    },
    in_gguf: |weight, config| {
        match weight {
            Weight::Query(l) | Weight::Key(l) | Weight::Value(l) => {
                fused_attention(weight, config, &format!("blk.{l}.attn_qkv.weight"))
            }
            Weight::Gate(l) | Weight::Up(l) => fused_gate(weight, config, &format!("blk.{l}.ffn_up.weight")),
            _ => None,
        }
        .unwrap_or_else(|| gguf(weight, config))
    },
};

/// SmolLM 3: every fourth layer without rotary embedding.
pub(super) static SMOLLM_3: Family = Family {
    name: "smollm3",
    model_types: &["smollm3"],
    gguf_names: &["smollm3"],
    configure: |fields, config| {
        config.windows = qwen_like_windows(fields, config.layers)?;
        // 1 where a layer has rotary embedding, 0 where it has none; GGUF files leave it to the architecture.
        const WITH_ROPE: Key = Key("no_rope_layers", "");
        let with_rope = fields.optional_numbers(WITH_ROPE)?;
        let interval = fields.optional_count(Key("no_rope_layer_interval", ""))?.unwrap_or(4);
        for (layer, rope) in config.rope.iter_mut().enumerate() {
            let has_rope = match &with_rope {
                Some(list) => match list.get(layer) {
                    Some(value) => *value != 0.0,
                    None => return Err(fields.error(WITH_ROPE, "has fewer entries than there are layers")),
                },
                None => !(layer + 1).is_multiple_of(interval),
            };
            if !has_rope {
                *rope = None;
            }
        }
        full_rotary(fields, config)
    },
    in_hugging_face: hugging_face,
    in_gguf: gguf_in_pairs,
};

/// OLMo 2: norms after attention and MLP alone, and of queries and keys over all heads.
pub(super) static OLMO_2: Family = Family {
    name: "olmo2",
    model_types: &["olmo2"],
    gguf_names: &["olmo2"],
    configure: |_, config| {
        config.norm_placement = NormPlacement::After;
        config.query_key_norm = Some(QueryKeyNorm::AllHeads);
        Ok(())
    },
    in_hugging_face: hugging_face,
    in_gguf: gguf,
};

/// OLMoE: experts at every layer, norms of queries and keys over all heads.
pub(super) static OLMOE: Family = Family {
    name: "olmoe",
    model_types: &["olmoe"],
    gguf_names: &["olmoe"],
    configure: |fields, config| {
        let normalized = fields.optional_boolean(Key("norm_topk_prob", ""))?.unwrap_or(false);
        config.experts = Some(experts(fields, config.feed_forward, normalized)?);
        config.query_key_norm = Some(QueryKeyNorm::AllHeads);
        if fields.has(Key("clip_qkv", "attention.clamp_kqv")) {
            return Err(
                fields.error(Key("clip_qkv", "attention.clamp_kqv"), "is set, which is not supported")
            );
        }
        Ok(())
    },
    in_hugging_face: hugging_face,
    in_gguf: gguf,
};

/// Granite 3 and 4 (dense): multipliers of embedding, residual stream, attention and logits.
pub(super) static GRANITE: Family = Family {
    name: "granite",
    model_types: &["granite"],
    gguf_names: &["granite"],
    configure: |fields, config| {
        config.embedding_scale = fields.number_or(Key("embedding_multiplier", "embedding_scale"), 1.0)?;
        config.residual_scale = fields.number_or(Key("residual_multiplier", "residual_scale"), 1.0)?;
        config.attention_scale =
            fields.number_or(Key("attention_multiplier", "attention.scale"), config.attention_scale)?;
        const LOGITS: Key = Key("logits_scaling", "logit_scale");
        let divisor = fields.number_or(LOGITS, 1.0)?;
        if divisor == 0.0 {
            return Err(fields.error(LOGITS, "is 0, by which logits cannot be divided"));
        }
        config.logit_scale = 1.0 / divisor;
        full_rotary(fields, config)
    },
    in_hugging_face: hugging_face,
    in_gguf: gguf_in_pairs,
};

/// Requires full rotary embedding of GGUF files: their query and key rows are reordered over whole heads, which cannot be
/// undone for a part of a head.
fn full_rotary(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<()> {
    match config.rope.iter().flatten().find(|rope| rope.dims != config.head_dim) {
        Some(rope) if !fields.is_json() => {
            let problem = format!("is {} of {} elements, which is not supported", rope.dims, config.head_dim);
            Err(fields.error(Key("", "rope.dimension_count"), &problem))
        }
        _ => Ok(()),
    }
}

fn qwen_3(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<()> {
    config.query_key_norm = Some(QueryKeyNorm::EachHead);
    qwen_windows(fields, config)
}

fn qwen_windows(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<()> {
    config.windows = qwen_like_windows(fields, config.layers)?;
    Ok(())
}

/// Windows that `use_sliding_window` switches on, from layer `max_window_layers` on.
fn qwen_like_windows(fields: &Fields<'_>, layers: usize) -> Result<Vec<Option<usize>>> {
    let on = fields.optional_boolean(Key("use_sliding_window", ""))?.unwrap_or(false);
    if !on {
        return Ok(vec![None; layers]);
    }
    let first = fields.optional_number_from_zero(Key("max_window_layers", ""))?.unwrap_or(0);
    windows(fields, layers, |layer| layer >= first)
}

fn experts(fields: &Fields<'_>, feed_forward: usize, normalized: bool) -> Result<Experts> {
    Ok(Experts {
        count: fields.count(Key("num_experts|num_local_experts", "expert_count"))?,
        used: fields.count(Key("num_experts_per_tok", "expert_used_count"))?,
        feed_forward,
        normalized,
    })
}
