//! `layerscope inspect`: a model's configuration and memory, without loading its weights.

use crate::args::InspectArguments;
use crate::{models, output, terminal};
use layerscope_diagnostics::summary::ranges;
use layerscope_engine::{
    Activation, MemoryNeed, ModelConfig, NormKind, NormPlacement, OpenedModel, QueryKeyNorm, Result,
    RopeScaling, Tokenizer, WeightsPrecision,
};
use serde_json::json;
use std::fmt::Write;
use std::process::ExitCode;

/// Memory at one weight precision.
struct Memory {
    precision: WeightsPrecision,
    need: MemoryNeed,
}

pub(crate) fn run(arguments: &InspectArguments) -> Result<ExitCode> {
    let device = models::device(arguments.device)?;
    let opened = models::open_named(&arguments.model, arguments.architecture.as_deref())?;
    let config = &opened.config;
    let context = arguments.context.unwrap_or(config.context);
    let kept = vec![context; config.layers];
    let memory = [WeightsPrecision::Native, WeightsPrecision::F32]
        .map(|precision| Memory { precision, need: opened.memory_need(precision, &device, &kept) });
    let free = device.free_memory()?;
    if arguments.json {
        output::json(&json!({
            "name": opened.name,
            "config": config,
            "parameters": opened.weight_types().iter().map(|kind| kind.elements).sum::<u64>(),
            "weights": opened.weight_types(),
            "memory": memory.each_ref().map(|memory| json!({
                "weights": memory.precision,
                "context": context,
                "need": memory.need,
                "total": memory.need.total(),
                "fits": free.map(|free| memory.need.total() <= free),
            })),
            "device": device.to_string(),
            "available_memory": free,
            "tokenizer": {
                "vocabulary": opened.tokenizer.vocab_size(),
                "bos": opened.tokenizer.bos_id().map(|id| token(&opened.tokenizer, id)),
                "adds_bos": opened.tokenizer.adds_bos(),
                "end": opened.tokenizer.eos_ids().iter()
                    .map(|&id| token(&opened.tokenizer, id)).collect::<Vec<_>>(),
                "chat_template": opened.tokenizer.chat_template(),
            },
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = table(&opened);
    let _ = write!(text, "\n\nmemory at {context} tokens");
    if let Some(free) = free {
        let _ = write!(text, " ({device}: {} are free)", output::bytes(free as f64));
    }
    let _ = write!(text, "\n{}", memory_table(&memory, free));
    if context > opened.config.context {
        let longest = opened.config.context;
        let _ = write!(
            text,
            "\nThe model takes at most {longest} tokens, its context: longer sequences are refused."
        );
    }
    if let Some(template) = opened.tokenizer.chat_template().filter(|_| arguments.template) {
        let _ = write!(text, "\n\nchat template\n{template}");
    }
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn token(tokenizer: &Tokenizer, id: u32) -> serde_json::Value {
    json!({ "id": id, "text": tokenizer.token_text(id) })
}

fn table(opened: &OpenedModel) -> String {
    let (config, tokenizer) = (&opened.config, &opened.tokenizer);
    let types = opened.weight_types();
    let parameters = types.iter().map(|kind| kind.elements).sum::<u64>();
    let bytes = types.iter().map(|kind| kind.bytes).sum::<u64>();
    let kinds: Vec<String> =
        types.iter().map(|kind| format!("{} {}", kind.name, output::bytes(kind.bytes as f64))).collect();
    let architecture = match config.architecture == config.family {
        true => config.architecture.clone(),
        false => format!("{}, run as {}", config.architecture, config.family),
    };
    let shown = |id: u32| format!("{:?} ({id})", tokenizer.token_text(id));
    let bos = match (tokenizer.bos_id(), tokenizer.adds_bos()) {
        (Some(id), true) => format!("{}, before every prompt", shown(id)),
        (Some(id), false) => format!("{}, not put before prompts", shown(id)),
        (None, _) => "none; the anchor `bos` is whatever token comes first".to_owned(),
    };
    let ends: Vec<String> = tokenizer.eos_ids().iter().map(|&id| shown(id)).collect();
    let rows = [
        ("model", opened.name.clone()),
        ("architecture", architecture),
        ("layers", config.layers.to_string()),
        ("heads", heads(config)),
        ("hidden size", config.hidden.to_string()),
        ("MLP", mlp(config)),
        ("norms", norms(config)),
        ("attention", attention(config)),
        ("windows", windows(&config.windows)),
        ("rotary embedding", rope(config)),
        ("context", format!("{} tokens", config.context)),
        ("vocabulary", format!("{} tokens", config.vocab)),
        ("embeddings", if config.tied_embeddings { "tied" } else { "untied" }.to_owned()),
        ("parameters", count(parameters)),
        ("weights", format!("{}: {}", output::bytes(bytes as f64), kinds.join(", "))),
        ("BoS", bos),
        ("end tokens", if ends.is_empty() { "none".to_owned() } else { ends.join(", ") }),
        (
            "chat template",
            tokenizer.chat_template().map_or("none".to_owned(), |t| {
                format!("yes, {} characters (--template prints it)", t.chars().count())
            }),
        ),
    ];
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let lines: Vec<String> =
        rows.iter().map(|(name, value)| format!("{name:width$}  {}", terminal::line(value))).collect();
    lines.join("\n")
}

fn memory_table(memory: &[Memory], free: Option<u64>) -> String {
    let rows = memory.iter().map(|Memory { precision, need }| {
        let verdict = match free {
            Some(free) if need.total() <= free => "yes",
            Some(_) => "no",
            None => "unknown",
        };
        let cells = [need.weights, need.tokenizer, need.kv, need.activations, need.total()];
        std::iter::once(format!("--weights {}", precision.name()))
            .chain(cells.map(|bytes| output::bytes(bytes as f64)))
            .chain([verdict.to_owned()])
            .collect()
    });
    output::table(
        &["", "weights", "tokenizer", "keys and values", "activations", "together", "fits"],
        rows.collect(),
    )
}

fn heads(config: &ModelConfig) -> String {
    let groups = match config.heads / config.kv_heads {
        1 => "as many".to_owned(),
        _ => config.kv_heads.to_string(),
    };
    format!("{} for queries, {groups} for keys and values, of {} elements", config.heads, config.head_dim)
}

fn mlp(config: &ModelConfig) -> String {
    let activation = match config.activation {
        Activation::Silu => "SiLU",
        Activation::Gelu => "GELU",
        Activation::GeluTanh => "GELU (tanh)",
    };
    let gate = if config.gated { "gated" } else { "without gate" };
    match &config.experts {
        None => format!("{} wide, {gate}, {activation}", config.feed_forward),
        Some(experts) => format!(
            "{} of {} experts, {} wide, {gate}, {activation}",
            experts.used, experts.count, experts.feed_forward
        ),
    }
}

fn norms(config: &ModelConfig) -> String {
    let kind = match config.norm {
        NormKind::Rms => "RMSNorm",
        NormKind::Layer => "LayerNorm",
    };
    let place = match config.norm_placement {
        NormPlacement::Before => "before attention and MLP",
        NormPlacement::After => "after attention and MLP",
        NormPlacement::BeforeAndAfter => "before and after attention and MLP",
    };
    let query_key = match config.query_key_norm {
        None => "",
        Some(QueryKeyNorm::EachHead) => ", and of each head's queries and keys",
        Some(QueryKeyNorm::AllHeads) => ", and of queries and keys over all heads",
    };
    format!("{kind} {place}{query_key}")
}

fn attention(config: &ModelConfig) -> String {
    let mut parts = vec![format!("scores times {:.4}", config.attention_scale)];
    parts.extend(config.attention_soft_cap.map(|cap| format!("soft cap {cap}")));
    if config.parallel_residual {
        parts.push("beside the MLP".to_owned());
    }
    parts.join(", ")
}

/// The layers by their attention window.
fn windows(windows: &[Option<usize>]) -> String {
    let mut widths: Vec<usize> = windows.iter().flatten().copied().collect();
    widths.sort_unstable();
    widths.dedup();
    let layers = |wanted: Option<usize>| {
        let layers: Vec<usize> = (0..windows.len()).filter(|&layer| windows[layer] == wanted).collect();
        ranges(&layers)
    };
    if widths.is_empty() {
        return "none: every layer sees every token".to_owned();
    }
    let of_width = |width: &usize| format!("{width} tokens at layers {}", layers(Some(*width)));
    let windowed: Vec<String> = widths.iter().map(of_width).collect();
    match windows.iter().filter(|window| window.is_none()).count() {
        0 => format!("{}; no layer sees everything", windowed.join(", ")),
        _ => format!("{}; layers {} see everything", windowed.join(", "), layers(None)),
    }
}

fn rope(config: &ModelConfig) -> String {
    let without: Vec<usize> = (0..config.layers).filter(|&layer| config.rope[layer].is_none()).collect();
    if without.len() == config.layers {
        return if config.learned_positions { "none: positions are learned" } else { "none" }.to_owned();
    }
    let mut kinds: Vec<(String, Vec<usize>)> = vec![];
    for (layer, rope) in config.rope.iter().enumerate() {
        let Some(rope) = rope else { continue };
        let scaling = match &rope.scaling {
            RopeScaling::None => "not stretched".to_owned(),
            RopeScaling::Linear(factor) => format!("stretched ×{factor}"),
            RopeScaling::Llama3 { factor, .. } => format!("stretched ×{factor} (Llama 3)"),
            RopeScaling::Yarn { factor, .. } => format!("stretched ×{factor} (YaRN)"),
            RopeScaling::Long { .. } => "stretched by LongRoPE".to_owned(),
            RopeScaling::Factors(_) => "stretched by factors in the file".to_owned(),
        };
        let part = match rope.dims == config.head_dim {
            true => String::new(),
            false => format!(", {} of {} elements", rope.dims, config.head_dim),
        };
        let kind = format!("base {}{part}, {scaling}", rope.base);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, layers)) => layers.push(layer),
            None => kinds.push((kind, vec![layer])),
        }
    }
    let several = kinds.len() > 1;
    let named = |(kind, layers): (String, Vec<usize>)| match several {
        true => format!("{kind}, at layers {}", ranges(&layers)),
        false => kind,
    };
    let kinds: Vec<String> = kinds.into_iter().map(named).collect();
    let none = match without.is_empty() {
        true => String::new(),
        false => format!("; none at layers {}", ranges(&without)),
    };
    format!("{}{none}", kinds.join("; "))
}

/// A large number as text, e.g. `1.24 billion`.
fn count(number: u64) -> String {
    match number {
        0..1_000_000 => number.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} million", number as f64 / 1e6),
        _ => format!("{:.2} billion", number as f64 / 1e9),
    }
}
