//! Benchmarks of policies: time, memory and quality, compared with the predictions of the cost model.
//!
//! The protocol is that of the SPEED paper's efficiency figures: prompts of 1K to 128K tokens, 128 new
//! tokens, five repeats, mean and standard deviation. Every generation is greedy, ignores end-of-sequence
//! tokens and has full length.
//!
//! Each length starts with an uncounted warm-up. Every repeat runs each policy once and starts with a different policy, so
//! that drifting machine speed favours none. One generation runs at a time. Quality is deterministic and
//! measured
//! once, after all times ([`measure_quality`]).

mod memory;
mod parquet_file;
mod plan;
mod prediction;
mod prompt;
mod quality;
mod report;
mod report_file;
mod statistics;
mod transfers;

pub use layerscope_diagnostics::machine::Machine;
pub use parquet_file::to_parquet;
pub use plan::{BenchPlan, DEFAULT_NEW_TOKENS, DEFAULT_REPEATS, parse_length, parse_lengths, split_policies};
pub use prompt::PromptTokens;
pub use quality::{
    FullContinuation, MOST_QUALITY_PROMPTS, Quality, QualityEvent, measure_quality, quality_grid,
};
pub use report::{BenchReport, Measurement};
pub use report_file::{FILE_NAME, read_of_run};
pub use statistics::Statistics;
pub use transfers::Transfers;

use layerscope_engine::{
    Decoder, Error, GenerationEvent, GenerationSettings, Interrupt, Policy, Result, Sampling,
    TransferCounters, check_interrupt, generate,
};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Progress of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BenchEvent<'a> {
    /// A generation begins.
    Started {
        /// Name of the policy.
        policy: &'a str,
        /// Prompt tokens p.
        length: usize,
        /// The repeat, from 1; 0 is the warm-up.
        repeat: usize,
    },
    /// This many of its p + N tokens are processed.
    Tokens(usize),
    /// The generation has ended.
    Finished {
        /// Layer tokens of all generations so far, including warm-ups.
        work_done: u64,
        /// Layer tokens of all generations of the plan.
        work: u64,
    },
}

/// Time and memory of one generation.
#[derive(Debug, Clone)]
struct Sample {
    ttft_s: f64,
    tpot_s: Option<f64>,
    kv_bytes: u64,
    peak_bytes: Option<u64>,
    transfers: Option<TransferCounters>,
}

impl Sample {
    /// Prompt to the last of so many new tokens, seconds.
    fn e2e_s(&self, new_tokens: usize) -> f64 {
        self.ttft_s + self.tpot_s.unwrap_or(0.0) * new_tokens.saturating_sub(1) as f64
    }
}

/// The measurements of a plan, complete or up to an interrupt.
#[derive(Debug)]
pub struct BenchResults {
    /// One per policy and length with at least one counted repeat, by length, then in the plan's order.
    pub results: Vec<Measurement>,
    /// Why peak memory is unknown, if it is.
    pub no_peak: Option<&'static str>,
    /// Whether an interrupt ended it early; the last results may then have fewer repeats.
    pub interrupted: bool,
}

/// Measures a plan. An interrupt ends it early and keeps the finished generations.
///
/// # Errors
/// [`Error::Input`] if the plan does not fit the model; errors of the model.
pub fn measure(
    decoder: &Arc<Decoder>,
    plan: &BenchPlan,
    prompt: &PromptTokens,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(BenchEvent<'_>),
) -> Result<BenchResults> {
    plan.check(decoder.config())?;
    let mut measured = BenchResults {
        results: vec![],
        no_peak: memory::reset_peak(decoder.device()).err(),
        interrupted: false,
    };
    let work = plan.work();
    let mut work_done = 0;
    for &length in &plan.lengths {
        let tokens = prompt.of_length(length);
        let mut samples = vec![vec![]; plan.policies.len()];
        'rounds: for round in 0..=plan.repeats {
            for (index, policy) in plan.round(round) {
                let name = policy.to_string();
                observe(BenchEvent::Started { policy: &name, length, repeat: round });
                let cost = plan.layer_tokens(&policy, length);
                match sample(decoder, &tokens, policy, plan, interrupt, observe) {
                    Err(Error::Interrupted) => {
                        measured.interrupted = true;
                        break 'rounds;
                    }
                    sample => {
                        // Round 0 is the warm-up.
                        if round > 0 {
                            samples[index].push(sample?);
                        } else {
                            sample?;
                        }
                    }
                }
                work_done += cost;
                observe(BenchEvent::Finished { work_done, work });
            }
        }
        measured.results.extend(report::measurements(decoder, plan, length, &samples));
        if measured.interrupted {
            break;
        }
    }
    Ok(measured)
}

/// One generation.
fn sample(
    decoder: &Arc<Decoder>,
    prompt: &[u32],
    policy: Policy,
    plan: &BenchPlan,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(BenchEvent<'_>),
) -> Result<Sample> {
    check_interrupt(interrupt)?;
    let settings = GenerationSettings {
        max_new_tokens: plan.new_tokens,
        choice: Sampling::Greedy.into(),
        stop_tokens: &[],
        statistics: plan.statistics,
        rounded: true,
    };
    let peak_known = memory::reset_peak(decoder.device()).is_ok();
    let mut generated = 0;
    let generation = generate(decoder, prompt, policy, &settings, interrupt, &mut |event| {
        observe(BenchEvent::Tokens(match event {
            GenerationEvent::Prefilled(done) => done,
            GenerationEvent::Token(_) => {
                generated += 1;
                prompt.len() + generated
            }
        }));
        ControlFlow::Continue(())
    })?;
    // An interrupt while decoding ends the text early.
    if generation.tokens.len() < plan.new_tokens {
        return Err(Error::Interrupted);
    }
    Ok(Sample {
        ttft_s: generation.ttft_s,
        tpot_s: generation.tpot_s,
        kv_bytes: generation.kv_bytes as u64,
        peak_bytes: if peak_known { memory::peak_bytes(decoder.device()) } else { None },
        transfers: generation.transfers,
    })
}
