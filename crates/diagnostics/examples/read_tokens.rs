//! The cost of reading the largest table: time and growth of peak memory of `Run::open`, `Run::prompt` and
//! `Run::tokens`, for a synthetic run of one prompt in a temporary folder.
//!
//!     cargo run --release -p layerscope-diagnostics --example read_tokens -- [LAYERS POSITIONS]
//!
//! Each phase's peak is relative to the memory in use at its start, so the growth of `Run::tokens` includes
//! its result, 8 bytes per layer and position. Memory is measured on Linux only.

#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::time::Instant;

use layerscope_diagnostics::record::*;
use layerscope_diagnostics::run::{Manifest, ModelInfo, Run, RunWriter, Settings};
use layerscope_engine::{Error, Result};
use ndarray::{Array2, Array3};

const HEADS: usize = 2;
const STEPS: usize = 4;

fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().ok());
    let mut number = |default| numbers.next().unwrap_or(Some(default));
    let (Some(layers), Some(positions)) = (number(64), number(131_072)) else {
        return Err(Error::input("usage: read_tokens [LAYERS POSITIONS]"));
    };
    let folder =
        tempfile::tempdir().map_err(|error| Error::failure(format!("no temporary folder: {error}")))?;
    timed("write", || write(folder.path(), layers, positions))?;
    let run = timed("Run::open", || Run::open(folder.path()))?;
    let prompt = timed("Run::prompt", || run.prompt("q0"))?;
    let tokens = timed("Run::tokens", || run.tokens("q0"))?;
    let returned = (tokens.mean.len() + tokens.max.len()) * size_of::<f32>();
    println!("{layers} layers x {} positions, {:.1} MB returned", prompt.p, megabytes(returned));
    Ok(())
}

/// Runs `work` and prints its time and memory.
fn timed<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // Resets the peak to the memory in use.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = peak_bytes();
    let start = Instant::now();
    let result = work()?;
    let seconds = start.elapsed().as_secs_f64();
    let growth = before.zip(peak_bytes()).map(|(before, after)| after.saturating_sub(before));
    let growth = growth.map_or("unknown".into(), |bytes| format!("{:.1} MB", megabytes(bytes)));
    println!("{name:12} {seconds:7.3} s, peak memory + {growth}");
    Ok(result)
}

/// Peak memory of this process, `VmHWM`.
fn peak_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok().map(|kib| kib * 1024)
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

fn write(folder: &std::path::Path, layers: usize, positions: usize) -> Result<()> {
    let mut writer = RunWriter::create_or_resume(folder, manifest(layers))?;
    writer.append(&record(layers, positions))?;
    writer.finish()?;
    Ok(())
}

fn manifest(layers: usize) -> Manifest {
    let model = ModelInfo {
        name: "made up".into(),
        sha256: String::new(),
        architecture: "llama".into(),
        layers,
        heads: HEADS,
        kv_heads: HEADS,
        head_dim: 4,
        hidden: 8,
        feed_forward: 16,
        vocab: 1 << 15,
        context: 1 << 20,
        windowed_layers: Vec::new(),
        window: None,
        bos: None,
        weight_bytes: None,
        row_weights: None,
        adapter: None,
    };
    let settings = Settings {
        max_new_tokens: STEPS,
        anchors: Vec::new(),
        prompts_file: "prompts.jsonl".into(),
        prompts_sha256: String::new(),
        other: BTreeMap::new(),
    };
    Manifest::new(model, "native", "cpu", 1, settings, vec!["q0".into()])
}

/// A prompt whose received attention values are all different, like real ones.
fn record(layers: usize, positions: usize) -> PromptRecord {
    let tokens: Vec<u32> = (0..positions as u32).map(|at| at.wrapping_mul(7919) % (1 << 15)).collect();
    let figure = Array3::from_elem((layers, HEADS, STEPS), 0.25);
    let mean = Array2::from_shape_fn((layers, positions), |(layer, position)| {
        let mixed = ((layer * positions + position) as u32).wrapping_mul(0x9E37_79B9);
        f32::from_bits(0x3000_0000 | mixed >> 6)
    });
    let figures = ProbedFigures {
        attention: AttentionFigures {
            bos_mass: figure.clone(),
            prompt_mass: figure.clone(),
            decode_mass: figure.clone(),
            prompt_entropy: figure.clone(),
            prompt_entropy_nats: figure,
        },
        received: ReceivedFigures { max: mean.mapv(|mean| 2.0 * mean), mean },
        reads: None,
        curvature_prompt_deg: vec![90.0; layers + 1],
        curvature_decode_deg: vec![90.0; layers + 1],
        lens: LensFigures { kl: Array2::zeros((layers, STEPS)), top1: Array2::zeros((layers, STEPS)) },
    };
    let summary = PromptSummary {
        id: "q0".into(),
        category: "long".into(),
        text: String::new(),
        prompt_token_text: tokens.iter().map(|token| format!("t{token}")).collect(),
        prompt_tokens: tokens,
        generated: vec![0; STEPS],
        generated_token_text: vec!["t0".into(); STEPS],
        generated_text: String::new(),
        answer_given: false,
        expected: None,
        p: positions,
        steps: STEPS,
        layers: figures.by_layer(),
        heads: figures.by_head(),
        frontier: Vec::new(),
        knockout: Vec::new(),
        native_kl: None,
        timings: Timings::default(),
    };
    let steps = figures.by_step(positions, &summary.generated);
    PromptRecord { summary, steps, received: figures.received, reads: None }
}
