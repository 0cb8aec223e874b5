//! Reads the config of a Llama-like decoder. A family then changes what it does differently.

use super::fields::{FieldSource, RopeFactors};
use super::{
    Activation, Fields, Key, MOST_LAYERS, ModelConfig, NormKind, NormPlacement, RopeConfig, RopeScaling,
};
use crate::Result;

/// The sizes from the config, with Llama's values for everything else.
pub(super) fn llama_like(
    fields: &Fields<'_>,
    architecture: &str,
    family: &'static str,
) -> Result<ModelConfig> {
    let heads = fields.count(Key("num_attention_heads|n_head", "attention.head_count"))?;
    let hidden = fields.count(Key("hidden_size|n_embd", "embedding_length"))?;
    const LAYERS: Key = Key("num_hidden_layers|n_layer", "block_count");
    let layers = fields.count(LAYERS)?;
    if layers > MOST_LAYERS {
        return Err(
            fields.error(LAYERS, &format!("is {layers}, more than {MOST_LAYERS}; the file may be damaged"))
        );
    }
    let context = fields.count(Key("max_position_embeddings|n_positions|n_ctx", "context_length"))?;
    let head_dim = match fields.optional_count(Key("head_dim", "attention.key_length"))? {
        Some(head_dim) => head_dim,
        None => (hidden / heads).max(1),
    };
    let kv_heads =
        fields.optional_count(Key("num_key_value_heads", "attention.head_count_kv"))?.unwrap_or(heads);
    let rope = rope(fields, None, head_dim, context)?;
    let config = ModelConfig {
        architecture: architecture.to_owned(),
        family,
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        // A family whose files leave it out sets it.
        feed_forward: fields
            .optional_count(Key("intermediate_size|n_inner", "feed_forward_length"))?
            .unwrap_or(hidden.saturating_mul(4)),
        vocab: 1,
        // Files that extend the context by YaRN may still give the original one.
        context: context.max(rope.stretched_context()),
        norm: NormKind::Rms,
        norm_epsilon: fields.number(Key(
            "rms_norm_eps|layer_norm_epsilon|layer_norm_eps|norm_epsilon",
            "attention.layer_norm_rms_epsilon|attention.layer_norm_epsilon",
        ))?,
        norm_placement: NormPlacement::Before,
        query_key_norm: None,
        parallel_residual: false,
        rope: vec![Some(rope); layers],
        learned_positions: false,
        windows: windows(fields, layers, |_| false)?,
        attention_scale: 1.0 / (head_dim as f64).sqrt(),
        attention_soft_cap: None,
        logit_soft_cap: None,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        activation: activation(fields, Key("hidden_act", ""), Activation::Silu)?,
        gated: true,
        experts: None,
        tied_embeddings: false,
    };
    Ok(config)
}

/// The activation function that a `config.json` names, or else the family's.
pub(crate) fn activation(fields: &Fields<'_>, key: Key, otherwise: Activation) -> Result<Activation> {
    Ok(match fields.optional_text(key)? {
        None => otherwise,
        Some("silu" | "swish") => Activation::Silu,
        Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Activation::GeluTanh,
        Some("gelu") => Activation::Gelu,
        Some(other) => {
            let known = "silu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh";
            return Err(fields.error(key, &format!("is `{other}`, which is not supported (known: {known})")));
        }
    })
}

/// The sliding window of each layer: of the layers that `layer_types` names, or else of those for which `windowed` returns
/// true. `None` everywhere without a `sliding_window`.
pub(crate) fn windows(
    fields: &Fields<'_>,
    layers: usize,
    windowed: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    const TYPES: Key = Key("layer_types", "");
    const WINDOW: Key = Key("sliding_window", "attention.sliding_window");
    let Some(window) = fields.optional_number_from_zero(WINDOW)?.filter(|&window| window > 0) else {
        if let Some(other) = fields
            .optional_texts(TYPES)?
            .and_then(|types| types.into_iter().find(|&kind| kind != "full_attention"))
        {
            return Err(unknown_layer_type(fields, TYPES, other));
        }
        return Ok(vec![None; layers]);
    };
    let Some(types) = fields.optional_texts(TYPES)? else {
        return Ok((0..layers).map(|layer| windowed(layer).then_some(window)).collect());
    };
    if types.len() < layers {
        return Err(fields.error(TYPES, &format!("names {} layers of {layers}", types.len())));
    }
    types[..layers]
        .iter()
        .map(|&kind| match kind {
            "full_attention" => Ok(None),
            "sliding_attention" => Ok(Some(window)),
            other => Err(unknown_layer_type(fields, TYPES, other)),
        })
        .collect()
}

fn unknown_layer_type(fields: &Fields<'_>, key: Key, name: &str) -> crate::Error {
    let problem = match name {
        "sliding_attention" => "names sliding_attention, but there is no sliding_window".to_owned(),
        _ => format!("names `{name}`, which is not supported (known: full_attention, sliding_attention)"),
    };
    fields.error(key, &problem)
}

/// The rotary embedding; that of one layer type where the config has several.
pub(crate) fn rope(
    fields: &Fields<'_>,
    layer_type: Option<Key>,
    head_dim: usize,
    context: usize,
) -> Result<RopeConfig> {
    match fields.source {
        FieldSource::Gguf { rope_factors, .. } => gguf_rope(fields, rope_factors, head_dim, context),
        FieldSource::Json(_) => json_rope(fields, layer_type, head_dim, context),
    }
}

const ORIGINAL_CONTEXT: Key = Key("original_max_position_embeddings", "rope.scaling.original_context_length");

fn gguf_rope(
    fields: &Fields<'_>,
    factors: &RopeFactors,
    head_dim: usize,
    context: usize,
) -> Result<RopeConfig> {
    const TYPE: Key = Key("", "rope.scaling.type");
    const FACTOR: Key = Key("", "rope.scaling.factor");
    let original_context = fields.optional_count(ORIGINAL_CONTEXT)?.unwrap_or(context);
    let magnitude = fields.number_or(Key("", "rope.scaling.attn_factor"), 1.0)?;
    let scaling = match (&factors.all, &factors.short_and_long, fields.optional_text(TYPE)?) {
        (Some(factors), ..) => RopeScaling::Factors(factors.clone()),
        (None, Some([short, long]), _) => {
            RopeScaling::Long { short: short.clone(), long: long.clone(), original_context, magnitude }
        }
        (None, None, None | Some("none")) => RopeScaling::None,
        (None, None, Some("linear")) => RopeScaling::Linear(fields.number(FACTOR)?),
        (None, None, Some("yarn")) => {
            let factor = fields.number(FACTOR)?;
            RopeScaling::Yarn {
                factor,
                original_context: original_context as f64,
                beta_fast: fields.number_or(Key("", "rope.scaling.yarn_beta_fast"), 32.0)?,
                beta_slow: fields.number_or(Key("", "rope.scaling.yarn_beta_slow"), 1.0)?,
                whole_elements: true,
                magnitude: magnitude * yarn_magnitude(factor, 1.0),
            }
        }
        (None, None, Some(other)) => {
            let known = "none, linear, yarn, and factors for each frequency";
            return Err(fields.error(TYPE, &format!("is `{other}`, which is not supported (known: {known})")));
        }
    };
    Ok(RopeConfig {
        base: fields.number_or(Key("", "rope.freq_base"), 10_000.0)?,
        dims: fields.optional_count(Key("", "rope.dimension_count"))?.unwrap_or(head_dim),
        scaling,
    })
}

/// From `rope_theta` and `rope_scaling`, or from `rope_parameters` in newer files, which may have one entry for each layer
/// type.
fn json_rope(
    fields: &Fields<'_>,
    layer_type: Option<Key>,
    head_dim: usize,
    context: usize,
) -> Result<RopeConfig> {
    const BASE: Key = Key("rope_theta|rotary_emb_base", "");
    const PART: Key = Key("partial_rotary_factor|rotary_pct", "");
    let parameters = fields.object(Key("rope_parameters", ""));
    let parameters = match (parameters, layer_type) {
        (Some(parameters), Some(key)) => Some(parameters.object(key).unwrap_or(parameters)),
        (parameters, _) => parameters,
    };
    // Among the other parameters, or at the top level.
    let number = |key: Key, otherwise: f64| match &parameters {
        Some(parameters) if parameters.has(key) => parameters.number(key),
        _ => fields.number_or(key, otherwise),
    };
    let (base, part) = (number(BASE, 10_000.0)?, number(PART, 1.0)?);
    let scaling = match parameters.or_else(|| fields.object(Key("rope_scaling", ""))) {
        None => RopeScaling::None,
        Some(scaling) => json_scaling(fields, &scaling, context)?,
    };
    Ok(RopeConfig { base, dims: (head_dim as f64 * part) as usize, scaling })
}

fn json_scaling(fields: &Fields<'_>, scaling: &Fields<'_>, context: usize) -> Result<RopeScaling> {
    const TYPE: Key = Key("rope_type|type", "");
    const FACTOR: Key = Key("factor", "");
    let original_context = match scaling.optional_count(ORIGINAL_CONTEXT)? {
        Some(context) => Some(context),
        None => fields.optional_count(ORIGINAL_CONTEXT)?,
    };
    let given_magnitude = scaling.optional_number(Key("attention_factor", ""))?;
    Ok(match scaling.optional_text(TYPE)?.unwrap_or("default") {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear(scaling.number(FACTOR)?),
        "llama3" => RopeScaling::Llama3 {
            factor: scaling.number(FACTOR)?,
            low_freq_factor: scaling.number(Key("low_freq_factor", ""))?,
            high_freq_factor: scaling.number(Key("high_freq_factor", ""))?,
            original_context: scaling.number(ORIGINAL_CONTEXT)?,
        },
        "yarn" => {
            let factor = scaling.number(FACTOR)?;
            let multiple = |key| scaling.optional_number(key);
            let magnitude = match (multiple(Key("mscale", ""))?, multiple(Key("mscale_all_dim", ""))?) {
                (Some(of), Some(over)) if of != 0.0 && over != 0.0 => {
                    yarn_magnitude(factor, of) / yarn_magnitude(factor, over)
                }
                _ => yarn_magnitude(factor, 1.0),
            };
            RopeScaling::Yarn {
                factor,
                original_context: original_context.unwrap_or(context) as f64,
                beta_fast: scaling.number_or(Key("beta_fast", ""), 32.0)?,
                beta_slow: scaling.number_or(Key("beta_slow", ""), 1.0)?,
                whole_elements: scaling.optional_boolean(Key("truncate", ""))?.unwrap_or(true),
                magnitude: given_magnitude.unwrap_or(magnitude),
            }
        }
        "longrope" | "su" => {
            let original_context = original_context.unwrap_or(context);
            let factor = context as f64 / original_context as f64;
            let magnitude = given_magnitude.unwrap_or_else(|| match factor {
                factor if factor <= 1.0 => 1.0,
                factor => (1.0 + factor.ln() / (original_context as f64).ln()).sqrt(),
            });
            let factors = |key| -> Result<Vec<f32>> {
                let numbers = scaling.optional_numbers(key)?;
                let numbers = numbers.ok_or_else(|| scaling.error(key, "is missing"))?;
                Ok(numbers.into_iter().map(|number| number as f32).collect())
            };
            RopeScaling::Long {
                short: factors(Key("short_factor", ""))?,
                long: factors(Key("long_factor", ""))?,
                original_context,
                magnitude,
            }
        }
        other => {
            let known = "default, linear, llama3, yarn, longrope";
            return Err(
                scaling.error(TYPE, &format!("is `{other}`, which is not supported (known: {known})"))
            );
        }
    })
}

/// YaRN's correction of attention for an extended context (Peng et al. 2023, section 3.4): 0.1·multiple·ln(factor) + 1.
fn yarn_magnitude(factor: f64, multiple: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * multiple * factor.ln() + 1.0 }
}
