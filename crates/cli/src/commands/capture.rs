//! `layerscope capture`: chosen activations into a safetensors file.

use crate::args::CaptureArguments;
use crate::{models, output};
use candle_core::{DType, Device, Tensor};
use layerscope_engine::{
    Error, HookContext, HookPoint, Hooks, Interrupt, Policy, Result, Session, Site, argmax, check_interrupt,
};
use serde_json::json;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::ExitCode;

type Captured = BTreeMap<HookPoint, Vec<Tensor>>;

pub(crate) fn run(arguments: &CaptureArguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let device = models::device(arguments.model.device)?;
    let opened = models::open(&arguments.model, interrupt)?;
    let layers = opened.config.layers;
    let mut points = vec![];
    for name in &arguments.hooks {
        points.extend(HookPoint::parse(name, layers)?);
    }
    points.sort();
    points.dedup();
    let policy = Policy::parse(&arguments.policy, layers)?;
    let prompt = models::prompt_tokens(&arguments.prompt, &opened.tokenizer)?;
    opened.config.check_sequence(prompt.len(), arguments.max_new_tokens.max(1))?;
    let kept = policy.in_memory(prompt.len(), arguments.max_new_tokens.max(1), &device);
    let need = opened.memory_need(arguments.model.weights.into(), &device, &kept);
    let model = models::load(opened, arguments.model.weights, &device, &need)?;

    let captured = RefCell::new(Captured::new());
    let mut hooks = Hooks::none();
    for &point in &points {
        hooks.add(point, |context: &HookContext<'_>, activation| {
            captured.borrow_mut().entry(context.point).or_default().push(activation.clone());
            Ok(None)
        });
    }
    // One decode row is the last prompt token; each new token but the last is one more.
    let steps = arguments.max_new_tokens;
    let mut session = Session::new(&model.decoder, policy.clone(), prompt.len(), steps.max(1))?;
    let mut logits = session.prefill(&prompt, &mut hooks, interrupt, &mut |_| {})?;
    let mut generated = vec![];
    while generated.len() < steps {
        check_interrupt(interrupt)?;
        generated.push(argmax(&logits, &[])?);
        if generated.len() < steps {
            logits = session.step(generated[generated.len() - 1], &mut hooks)?;
        }
    }
    drop(hooks);

    let captured = captured.into_inner();
    if let Some(absent) = points.iter().find(|point| !captured.contains_key(point)) {
        return Err(Error::input(format!(
            "{} has no {absent}: it is a point of other architectures than {}; leave it out",
            model.name,
            model.config().architecture
        )));
    }
    let mut tensors = vec![];
    for (point, pieces) in captured {
        tensors.push((point.to_string(), joined(point, &pieces)?));
    }
    let mut metadata = HashMap::from([
        ("layerscope".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("model".to_owned(), model.name.clone()),
        ("model_sha256".to_owned(), model.sha256.clone()),
        ("weights".to_owned(), model.precision.name().to_owned()),
        ("policy".to_owned(), policy.to_string()),
        ("prompt_tokens".to_owned(), json!(prompt).to_string()),
        ("generated".to_owned(), json!(generated).to_string()),
    ]);
    metadata.extend(policy.caveat().map(|caveat| ("caveat".to_owned(), caveat.to_owned())));
    write(&arguments.out, &tensors, metadata)?;
    report(arguments, &tensors)?;
    if let Some(caveat) = policy.caveat() {
        eprintln!("[{policy}] {caveat}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The pieces of a chunked run as one tensor. Scores and patterns grow with the keys: the missing ones are hidden.
fn joined(point: HookPoint, pieces: &[Tensor]) -> Result<Tensor> {
    let hidden = match point.site {
        Site::AttentionScores => f64::NEG_INFINITY,
        Site::Pattern => 0.0,
        _ => return Ok(Tensor::cat(pieces, 0)?),
    };
    let keys = pieces.iter().map(|piece| piece.dims()[2]).max().unwrap_or(0);
    let padded = pieces
        .iter()
        .map(|piece| {
            let (heads, rows, len) = piece.dims3()?;
            if len == keys {
                return Ok(piece.clone());
            }
            let missing = Tensor::full(hidden as f32, (heads, rows, keys - len), &Device::Cpu)?;
            Tensor::cat(&[piece, &missing], 2)
        })
        .collect::<candle_core::Result<Vec<_>>>()?;
    Ok(Tensor::cat(&padded, 1)?)
}

/// Writes beside the target first, so that a full disk leaves no half file.
fn write(out: &Path, tensors: &[(String, Tensor)], metadata: HashMap<String, String>) -> Result<()> {
    let unfinished = out.with_extension("safetensors.unfinished");
    let tensors = tensors
        .iter()
        .map(|(name, tensor)| Ok((name, tensor.to_dtype(DType::F32)?.contiguous()?)))
        .collect::<candle_core::Result<Vec<_>>>()?;
    let written = safetensors::serialize_to_file(tensors, Some(metadata), &unfinished)
        .map_err(|e| e.to_string())
        .and_then(|()| std::fs::rename(&unfinished, out).map_err(|e| e.to_string()));
    written.map_err(|e| {
        let _ = std::fs::remove_file(&unfinished);
        Error::failure(format!("cannot write {}: {e}", out.display()))
    })
}

fn report(arguments: &CaptureArguments, tensors: &[(String, Tensor)]) -> Result<()> {
    if arguments.json {
        let list: Vec<_> =
            tensors.iter().map(|(name, t)| json!({ "hook": name, "shape": t.dims() })).collect();
        return output::json(&json!({ "file": arguments.out, "activations": list }));
    }
    let rows = tensors.iter().map(|(name, t)| vec![name.clone(), format!("{:?}", t.dims())]);
    output::lines(&output::table(&["hook point", "shape"], rows.collect()))?;
    output::lines(&format!("written to {}", arguments.out.display()))
}
