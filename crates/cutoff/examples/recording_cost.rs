//! What recording costs on a model: prefill, decode, probes and frontier, and the frontier's share of the rest.
//!
//!     cargo run --release -p layerscope-cutoff --example recording_cost -- MODEL.gguf [PROMPT_TOKENS] [STEPS] [native|f32]

use layerscope_cutoff::frontier::frontier;
use layerscope_diagnostics::probe::{self, Continuation};
use layerscope_engine::{Device, Interrupt, Model, ModelSource, Result, WeightsPrecision};
use std::time::Instant;

fn main() -> Result<()> {
    layerscope_engine::one_pool()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: usize| {
        arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let path = arguments.first().cloned().unwrap_or_default();
    let precision = match arguments.get(3).map(String::as_str) {
        Some("native") => WeightsPrecision::Native,
        _ => WeightsPrecision::F32,
    };
    let model = Model::load(&ModelSource::path(path), precision, &Device::Cpu, &mut |_, _| Ok(()))?;
    let (p, steps) = (number(1, 1300), number(2, 32));
    // Ordinary token ids in a fixed, irregular order: speed does not depend on what they say.
    let prompt: Vec<u32> = (0..p as u32).map(|i| 1000 + i.wrapping_mul(7919) % 10_000).collect();
    let interrupt = Interrupt::new(false);
    for round in 1..=5 {
        let continuation = Continuation::Greedy { tokens: steps, excluded: &[] };
        let run = probe::run(&model.decoder, &prompt, &continuation, &interrupt, &mut |_| {})?;
        let start = Instant::now();
        frontier(&model.decoder, &run, &interrupt, &mut |_| {})?;
        let frontier_s = start.elapsed().as_secs_f64();
        let t = run.timings;
        println!(
            "round {round}: p {p}, N {steps}: prefill {:.2} s ({:.0} tokens/s), decode {:.2} s ({:.1} tokens/s), probes \
             {:.2} s, frontier and causal map {frontier_s:.2} s = {:.2}x the recorded run",
            t.prefill_s,
            p as f64 / t.prefill_s,
            t.decode_s,
            (steps - 1) as f64 / t.decode_s,
            t.probe_s,
            frontier_s / (t.prefill_s + t.decode_s + t.probe_s)
        );
    }
    Ok(())
}
