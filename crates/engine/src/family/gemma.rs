//! Gemma, Gemma 2 and Gemma 3.

use super::Family;
use super::names::{gguf, hugging_face};
use crate::Result;
use crate::config::{
    Activation, Fields, Key, ModelConfig, NormPlacement, QueryKeyNorm, RopeConfig, RopeScaling, activation,
    rope, windows,
};
use crate::weights::{Place, Weight};

/// Gemma: scaled embeddings, a gate with GELU.
pub(super) static GEMMA: Family = Family {
    name: "gemma",
    model_types: &["gemma"],
    gguf_names: &["gemma"],
    configure: all_gemmas,
    in_hugging_face: |weight, config| add_one_to_norms(weight, hugging_face(weight, config)),
    in_gguf: gguf,
};

/// Gemma 2: soft caps, a window at every other layer, norms before and after.
pub(super) static GEMMA_2: Family = Family {
    name: "gemma2",
    model_types: &["gemma2"],
    gguf_names: &["gemma2"],
    configure: |fields, config| {
        // GGUF files leave the scale of the 27B model, and the order of layers, to the architecture.
        sandwiched(fields, config, 46)?;
        // There unless they are switched off.
        let cap = |key: Key, otherwise: f64| match fields.is_null(key) {
            true => Ok(None),
            false => fields.number_or(key, otherwise).map(Some),
        };
        config.attention_soft_cap = cap(Key("attn_logit_softcapping", "attn_logit_softcapping"), 50.0)?;
        config.logit_soft_cap = cap(Key("final_logit_softcapping", "final_logit_softcapping"), 30.0)?;
        config.windows = windows(fields, config.layers, |layer| layer.is_multiple_of(2))?;
        Ok(())
    },
    in_hugging_face: sandwich_names,
    in_gguf: gguf,
};

/// Gemma 3 (text): a window at five of six layers, which have a RoPE base of their own; norms of queries and keys.
pub(super) static GEMMA_3: Family = Family {
    name: "gemma3",
    model_types: &["gemma3_text"],
    gguf_names: &["gemma3"],
    configure: |fields, config| {
        sandwiched(fields, config, 62)?;
        config.query_key_norm = Some(QueryKeyNorm::EachHead);
        config.attention_soft_cap = fields.optional_number(Key("attn_logit_softcapping", ""))?;
        config.logit_soft_cap = fields.optional_number(Key("final_logit_softcapping", ""))?;
        let pattern =
            Key("sliding_window_pattern|_sliding_window_pattern", "attention.sliding_window_pattern");
        let pattern = fields.optional_count(pattern)?.unwrap_or(6);
        config.windows = windows(fields, config.layers, |layer| !(layer + 1).is_multiple_of(pattern))?;
        let global = match fields.is_json() {
            true => rope(fields, Some(Key("full_attention", "")), config.head_dim, config.context)?,
            false => rope(fields, None, config.head_dim, config.context)?,
        };
        let local = local_rope(fields, config)?;
        config.rope = config
            .windows
            .iter()
            .map(|window| Some(if window.is_some() { local.clone() } else { global.clone() }))
            .collect();
        Ok(())
    },
    in_hugging_face: sandwich_names,
    in_gguf: gguf,
};

/// Rotary embedding of the windowed layers: never stretched, and with a base of its own.
fn local_rope(fields: &Fields<'_>, config: &ModelConfig) -> Result<RopeConfig> {
    const BASE: Key = Key("rope_local_base_freq", "rope.freq_base_swa");
    let by_type = Key("sliding_attention", "");
    let mut local = rope(fields, Some(by_type), config.head_dim, config.context)?;
    let named = fields.object(Key("rope_parameters", "")).is_some_and(|ropes| ropes.has(by_type));
    if !named {
        local.base = fields.number_or(BASE, 10_000.0)?;
        local.scaling = RopeScaling::None;
    }
    Ok(local)
}

fn all_gemmas(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<()> {
    config.embedding_scale = (config.hidden as f64).sqrt();
    // `hidden_act` of the first files says `gelu` where the models were trained with the approximation.
    config.activation = activation(fields, Key("hidden_activation", ""), Activation::GeluTanh)?;
    config.tied_embeddings = true;
    Ok(())
}

fn sandwiched(fields: &Fields<'_>, config: &mut ModelConfig, layers_of_27b: usize) -> Result<()> {
    all_gemmas(fields, config)?;
    config.norm_placement = NormPlacement::BeforeAndAfter;
    let otherwise = match config.layers == layers_of_27b {
        true => config.hidden / config.heads,
        false => config.head_dim,
    };
    config.attention_scale = fields.number_or(Key("query_pre_attn_scalar", ""), otherwise as f64)?.powf(-0.5);
    Ok(())
}

fn sandwich_names(weight: Weight, config: &ModelConfig) -> Place {
    let place = match weight {
        Weight::MlpNorm(l) => Place::whole(format!("model.layers.{l}.pre_feedforward_layernorm.weight")),
        _ => hugging_face(weight, config),
    };
    add_one_to_norms(weight, place)
}

/// Checkpoints have norm scales less 1; GGUF files have them whole.
fn add_one_to_norms(weight: Weight, place: Place) -> Place {
    if weight.is_norm() { place.plus_one() } else { place }
}
