//! The cost of recording on a model: prefill, decode, probes and frontier, and the frontier's time relative
//! to the rest.
//!
//!     cargo run --release -p layerscope-recording --example recording_cost -- \
//!         MODEL.gguf|shape:NAME [PROMPT_TOKENS] [STEPS] [native|f32] [DEVICE] [json]
//!
//! `shape:llama-3.1-8b` is that shape with random weights in bf16.

#![allow(clippy::print_stdout)]

use layerscope_cutoff::frontier::{CausalMap, frontier};
use layerscope_diagnostics::probe::{self, Decoding};
use layerscope_engine::{
    Decoder, Device, DeviceChoice, Interrupt, Model, ModelSource, Result, Shape, ShapeWeights,
    WeightsPrecision,
};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

const ROUNDS: usize = 5;

fn main() -> Result<()> {
    layerscope_engine::one_pool()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    let number = |index, default| argument(index).and_then(|text| text.parse().ok()).unwrap_or(default);
    let precision = argument(3).and_then(WeightsPrecision::from_name).unwrap_or(WeightsPrecision::F32);
    let device = argument(4).unwrap_or("cpu").parse::<DeviceChoice>()?.open()?;
    let decoder = decoder(argument(0).unwrap_or_default(), precision, &device)?;
    let (p, steps): (usize, usize) = (number(1, 1300), number(2, 32));
    // Ordinary token ids in a fixed, irregular order: speed does not depend on the content.
    let vocab = decoder.config().vocab as u32;
    let prompt: Vec<u32> = (0..p as u32).map(|i| (1000 + i.wrapping_mul(7919) % 10_000) % vocab).collect();
    let interrupt = Interrupt::new(false);
    for round in 1..=ROUNDS {
        let continuation = Decoding::Greedy { tokens: steps, excluded: &[] };
        let run = probe::run(&decoder, &prompt, &continuation, &interrupt, &mut |_| {})?;
        let start = Instant::now();
        frontier(&decoder, &run, CausalMap::Layers, &interrupt, &mut |_| {})?;
        let frontier_s = start.elapsed().as_secs_f64();
        let t = run.timings;
        if argument(5) == Some("json") {
            let round = json!({
                "prefill_s": t.prefill_s, "decode_s": t.decode_s, "probe_s": t.probe_s, "frontier_s": frontier_s,
            });
            println!("{round}");
            continue;
        }
        println!(
            "round {round}: p {p}, N {steps}: prefill {:.2} s ({:.0} tokens/s), decode {:.2} s ({:.1} tokens/s), probes \
             {:.2} s, frontier and attention knockout {frontier_s:.2} s = {:.2}x the recorded run",
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

fn decoder(model: &str, precision: WeightsPrecision, device: &Device) -> Result<Arc<Decoder>> {
    let silent = &mut |_, _| Ok(());
    match model.strip_prefix("shape:") {
        Some(name) => {
            Shape::named(name)?.decoder(ShapeWeights::Bf16, precision, device, 0, silent).map(Arc::new)
        }
        None => Ok(Model::load(&ModelSource::path(model), precision, device, silent)?.decoder),
    }
}
