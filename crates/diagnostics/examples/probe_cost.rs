//! The cost of the probes: prefill and decode of one prompt with and without them, alternating; medians and
//! ratios.
//!
//!     cargo run --release -p layerscope-diagnostics --example probe_cost -- MODEL.gguf [PROMPT_TOKENS] [NEW_TOKENS] [ROUNDS]

#![allow(clippy::print_stdout)]

use layerscope_diagnostics::probe::{self, Decoding};
use layerscope_engine::{
    Device, GenerationEvent, GenerationSettings, Interrupt, Model, ModelSource, Policy, Result, Sampling,
    WeightsPrecision, generate,
};
use std::ops::ControlFlow;

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Peak memory of the process in MB, if the system reports it.
fn peak_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1e3)
}

fn main() -> Result<()> {
    layerscope_engine::keep_freed_memory();
    layerscope_engine::one_pool()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: usize| {
        arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let path = arguments.first().cloned().unwrap_or_default();
    let model =
        Model::load(&ModelSource::path(path), WeightsPrecision::Native, &Device::Cpu, &mut |_, _| Ok(()))?;
    let (p, new_tokens, rounds) = (number(1, 2048), number(2, 32), number(3, 5));
    let prompt: Vec<u32> = (0..p as u32).map(|i| 1000 + i.wrapping_mul(7919) % 10_000).collect();
    let interrupt = Interrupt::new(false);
    let mut times = [const { vec![] }; 4];
    for _ in 0..rounds {
        let mut tpot = [0.0; 2];
        for statistics in [false, true] {
            let settings = GenerationSettings {
                max_new_tokens: new_tokens,
                choice: Sampling::Greedy.into(),
                stop_tokens: &[],
                statistics,
                rounded: false,
            };
            let policy = Policy::full(model.config().layers);
            let ignore = &mut |_: GenerationEvent<'_>| ControlFlow::Continue(());
            let done = generate(&model.decoder, &prompt, policy, &settings, &interrupt, ignore)?;
            tpot[usize::from(statistics)] = done.tpot_s.unwrap_or(0.0);
            if !statistics {
                times[0].push(done.ttft_s);
            }
        }
        let plain_peak = peak_mb();
        let continuation = Decoding::Greedy { tokens: new_tokens, excluded: &[] };
        let run = probe::run(&model.decoder, &prompt, &continuation, &interrupt, &mut |_| {})?;
        times[1].push(run.timings.prefill_s);
        // The peak never falls, so only the first round shows the difference.
        if let (1, Some(plain), Some(probed)) = (times[1].len(), plain_peak, peak_mb()) {
            println!(
                "peak memory: {plain:.0} MB plain, {probed:.0} MB with every probe ({:.3}x)",
                probed / plain
            );
        }
        times[2].push(tpot[0]);
        times[3].push(tpot[1]);
    }
    let [prefill, probed_prefill, step, probed_step] = times.map(|times| median(&times));
    println!(
        "p {p}, {rounds} rounds: prefill {prefill:.3} s, with probes {probed_prefill:.3} s ({:.3}x); decode {:.2} ms a token, \
         with statistics {:.2} ms ({:.3}x)",
        probed_prefill / prefill,
        step * 1e3,
        probed_step * 1e3,
        probed_step / step
    );
    Ok(())
}
