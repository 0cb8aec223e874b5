//! `layerscope capture`: writes chosen activations to a safetensors file.

use crate::args::CaptureArguments;
use crate::interrupt::UNHEEDED;
use crate::{models, output, terminal};
use layerscope_engine::{Error, HookContext, HookPoint, Hooks, Policy, Result, Session, Site, argmax};
use ndarray::{ArrayD, Axis};
use safetensors::tensor::{Dtype, SafeTensorError, TensorView};
use serde_json::json;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::ExitCode;

type Captured = BTreeMap<HookPoint, Vec<ArrayD<f32>>>;

pub(crate) fn run(arguments: &CaptureArguments) -> Result<ExitCode> {
    let device = models::device(arguments.model.device)?;
    let opened = models::open(&arguments.model, &device)?;
    let layers = opened.config.layers;
    let mut points = vec![];
    for name in &arguments.hooks {
        points.extend(HookPoint::parse(name, layers)?);
    }
    points.sort();
    points.dedup();
    let policy = Policy::parse_for(&arguments.policy, &opened.config)?;
    let prompt = models::prompt_tokens(&arguments.prompt, &opened.tokenizer)?;
    opened.config.check_sequence(prompt.len(), arguments.max_new_tokens.max(1))?;
    let kept = policy.in_memory(prompt.len(), arguments.max_new_tokens.max(1), &device);
    let need = opened.memory_need(arguments.model.weights.into(), &device, &kept);
    let model = models::load(opened, arguments.model.weights, &device, &need)?;
    let model = models::with_adapter(model, &arguments.adapter, std::slice::from_ref(&policy))?;

    let captured = RefCell::new(Captured::new());
    let mut hooks = Hooks::none();
    for &point in &points {
        hooks.add(point, |context: &HookContext<'_>, activation| {
            captured.borrow_mut().entry(context.point).or_default().push(activation.to_owned());
            Ok(None)
        });
    }
    // Decode rows are the last prompt token and every new token except the last.
    let steps = arguments.max_new_tokens;
    let mut session = Session::new(&model.decoder, policy.clone(), prompt.len(), steps.max(1))?;
    let mut logits = session.prefill(&prompt, &mut hooks, &UNHEEDED, &mut |_| {})?;
    let mut generated = vec![];
    while generated.len() < steps {
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
        ("model_sha256".to_owned(), model.sha256().to_owned()),
        ("weights".to_owned(), model.precision.name().to_owned()),
        ("policy".to_owned(), policy.to_string()),
        ("prompt_tokens".to_owned(), json!(prompt).to_string()),
        ("generated".to_owned(), json!(generated).to_string()),
    ]);
    metadata.extend(model.caveat(&policy).map(|caveat| ("caveat".to_owned(), caveat.to_owned())));
    write(&arguments.out, &tensors, metadata)?;
    report(arguments, &tensors)?;
    if let Some(caveat) = model.caveat(&policy) {
        terminal::say(&format!("[{policy}] {caveat}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Concatenates the chunks of a run. Scores and patterns grow with the keys; missing keys count as masked.
fn joined(point: HookPoint, pieces: &[ArrayD<f32>]) -> Result<ArrayD<f32>> {
    let hidden = match point.site {
        Site::AttentionScores => f32::NEG_INFINITY,
        Site::Pattern => 0.0,
        _ => return concatenated(Axis(0), pieces),
    };
    let keys = pieces.iter().map(|piece| piece.shape()[2]).max().unwrap_or(0);
    let padded: Vec<ArrayD<f32>> = pieces
        .iter()
        .map(|piece| {
            let mut padded = ArrayD::from_elem(vec![piece.shape()[0], piece.shape()[1], keys], hidden);
            padded.slice_axis_mut(Axis(2), (..piece.shape()[2]).into()).assign(piece);
            padded
        })
        .collect();
    concatenated(Axis(1), &padded)
}

fn concatenated(axis: Axis, pieces: &[ArrayD<f32>]) -> Result<ArrayD<f32>> {
    let pieces: Vec<_> = pieces.iter().map(|piece| piece.view()).collect();
    ndarray::concatenate(axis, &pieces).map_err(|error| {
        Error::failure(format!("activations cannot be joined ({error}); please report this"))
    })
}

/// Writes to a temporary file in the same folder first, so that a full disk leaves no partial file.
fn write(out: &Path, tensors: &[(String, ArrayD<f32>)], metadata: HashMap<String, String>) -> Result<()> {
    let unfinished = out.with_extension("safetensors.unfinished");
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, array)| array.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, array), bytes)| {
        Ok((name, TensorView::new(Dtype::F32, array.shape().to_vec(), bytes)?))
    });
    let written = views
        .collect::<std::result::Result<Vec<_>, SafeTensorError>>()
        .and_then(|views| safetensors::serialize_to_file(views, Some(metadata), &unfinished))
        .map_err(|e| e.to_string())
        .and_then(|()| std::fs::rename(&unfinished, out).map_err(|e| e.to_string()));
    written.map_err(|e| {
        let _ = std::fs::remove_file(&unfinished);
        Error::failure(format!("cannot write {}: {e}", out.display()))
    })
}

fn report(arguments: &CaptureArguments, tensors: &[(String, ArrayD<f32>)]) -> Result<()> {
    if arguments.json {
        let list: Vec<_> =
            tensors.iter().map(|(name, t)| json!({ "hook": name, "shape": t.shape() })).collect();
        return output::json(&json!({ "file": arguments.out, "activations": list }));
    }
    let rows = tensors.iter().map(|(name, t)| vec![name.clone(), format!("{:?}", t.shape())]);
    terminal::print(&output::table(&["hook point", "shape"], rows.collect()))?;
    terminal::print(&format!("written to {}", arguments.out.display()))
}
