//! The quality of policies, measured by running them.
//!
//! A session under each policy is teacher-forced along the full model's greedy continuation of a prompt, and its next-token
//! distributions are compared with the full model's at every step. The policy's prefill and decode steps run as they are;
//! nothing about them is assumed. The policy also generates freely, to test whether it still retrieves the number hidden in
//! the prompt ([`layerscope_diagnostics::needle`]).

use crate::{BenchPlan, BenchResults};
use layerscope_diagnostics::needle::{self, Grid, Haystack, NeedlePrompt, Outcome};
use layerscope_diagnostics::probe::continue_greedily;
use layerscope_diagnostics::record::Divergence;
use layerscope_diagnostics::reference_distributions::{ReferenceDistributions, StepComparison};
use layerscope_diagnostics::summary::mean;
use layerscope_diagnostics::undefined::number_or_null;
use layerscope_engine::{
    Decoder, Error, Hooks, Interrupt, Model, Policy, Result, Session, Tensor, check_interrupt,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Most prompts per length: one at every percent of depth.
pub const MOST_QUALITY_PROMPTS: usize = 101;
/// Seed of the prompts' texts.
const SEED: u64 = 1;

/// How near a policy comes to the full model at one length: means over prompts. Undefined figures are NaN here and null in
/// JSON.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Quality {
    /// KL(full ‖ policy) of the next-token distributions along the full model's own greedy continuation, mean over its
    /// steps, nats per token.
    #[serde(deserialize_with = "number_or_null")]
    pub kl: f64,
    /// Share of steps where both have the same most likely token, in \[0, 1\].
    #[serde(deserialize_with = "number_or_null")]
    pub top1: f64,
    /// Mean negative log-likelihood of the continuation, less that under the full model, nats per token.
    #[serde(deserialize_with = "number_or_null")]
    pub dnll: f64,
    /// Share of prompts whose hidden number is in the text that the policy generates, of as many tokens, in \[0, 1\].
    #[serde(deserialize_with = "number_or_null")]
    pub found: f64,
    /// Prompts.
    pub prompts: usize,
}

impl Quality {
    /// Whether the values are plausible; NaN means undefined and is allowed.
    pub(crate) fn is_plausible(&self) -> bool {
        let share = |figure: f64| figure.is_nan() || (0.0..=1.0).contains(&figure);
        self.prompts > 0 && (self.kl.is_nan() || self.kl >= 0.0) && share(self.top1) && share(self.found)
    }

    fn of(prompts: &[(Divergence, bool)]) -> Self {
        let divergences: Vec<Divergence> = prompts.iter().map(|(divergence, _)| *divergence).collect();
        let Divergence { kl, top1, dnll } = Divergence::mean_of_defined(&divergences);
        Self {
            kl,
            top1,
            dnll,
            found: mean(prompts.iter().map(|(_, found)| f64::from(u8::from(*found)))),
            prompts: prompts.len(),
        }
    }
}

/// Progress of a quality measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QualityEvent<'a> {
    /// A prompt starts under a policy; `full`, the reference, comes first.
    Started {
        /// Id of the prompt.
        id: &'a str,
        /// Name of the policy.
        policy: &'a str,
    },
    /// The prompt is done under this policy.
    Finished,
}

/// Needle prompts, the same number for each length, with numbers hidden at evenly spaced depths.
///
/// # Errors
/// [`Error::Input`] on zero or more than [`MOST_QUALITY_PROMPTS`] prompts, and as [`Grid::check`].
pub fn quality_grid(lengths: &[usize], prompts: usize) -> Result<Grid> {
    let depths = match prompts {
        1 => vec![50],
        2..=MOST_QUALITY_PROMPTS => (0..prompts).map(|index| (index * 100 / (prompts - 1)) as u32).collect(),
        _ => {
            return Err(Error::input(format!(
                "quality cannot be measured on {prompts} prompts at each length; give from 1 to {MOST_QUALITY_PROMPTS}"
            )));
        }
    };
    let grid =
        Grid { lengths: lengths.to_vec(), depths, samples: 1, seed: SEED, haystack: Haystack::Sentences };
    grid.check()?;
    Ok(grid)
}

/// Adds quality to each measurement, over the prompts of its length. An interrupt keeps the prompts that
/// every policy has run, so that all policies are compared on the same prompts.
///
/// # Errors
/// [`Error::Input`] on a prompt longer than the model's context; errors of the model.
pub fn measure_quality(
    model: &Model,
    plan: &BenchPlan,
    prompts: &[NeedlePrompt],
    measured: &mut BenchResults,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(QualityEvent<'_>),
) -> Result<()> {
    let reference = &model.reference()?;
    for &length in &plan.lengths {
        let mut done: Vec<Vec<(Divergence, bool)>> = vec![vec![]; plan.policies.len()];
        for prompt in prompts.iter().filter(|prompt| prompt.length == length) {
            match of_prompt(model, reference, plan, prompt, interrupt, observe) {
                Err(Error::Interrupted) => {
                    measured.interrupted = true;
                    break;
                }
                results => done.iter_mut().zip(results?).for_each(|(done, result)| done.push(result)),
            }
        }
        for (policy, done) in plan.policies.iter().zip(&done).filter(|(_, done)| !done.is_empty()) {
            let name = policy.to_string();
            let same =
                measured.results.iter_mut().find(|result| (result.length, &result.policy) == (length, &name));
            if let Some(result) = same {
                result.quality = Some(Quality::of(done));
            }
        }
        if measured.interrupted {
            break;
        }
    }
    Ok(())
}

/// Divergence of each policy from the full model on one prompt, and whether it retrieves the number.
fn of_prompt(
    model: &Model,
    reference: &Arc<Decoder>,
    plan: &BenchPlan,
    prompt: &NeedlePrompt,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(QualityEvent<'_>),
) -> Result<Vec<(Divergence, bool)>> {
    let decoder = &model.decoder;
    let (tokens, excluded) = (&prompt.tokens, model.tokenizer.eos_ids());
    observe(QualityEvent::Started { id: &prompt.id, policy: "full" });
    let full = FullContinuation::of(reference, tokens, plan.new_tokens, excluded, interrupt)?;
    observe(QualityEvent::Finished);
    let mut results = vec![];
    for policy in &plan.policies {
        observe(QualityEvent::Started { id: &prompt.id, policy: &policy.to_string() });
        let divergence = full.divergence(decoder, policy, interrupt)?;
        let (one, policies) = (std::slice::from_ref(prompt), std::slice::from_ref(policy));
        let text = needle::run(model, one, policies, plan.new_tokens, interrupt, &mut |_| {})?;
        let Some(Outcome { correct, .. }) = text.outcomes.first() else { return Err(Error::Interrupted) };
        results.push((divergence, *correct));
        observe(QualityEvent::Finished);
    }
    Ok(results)
}

/// The full model's greedy continuation of a prompt with its next-token distributions: the reference for policies.
pub struct FullContinuation<'a> {
    decoder: Arc<Decoder>,
    prompt: &'a [u32],
    tokens: Vec<u32>,
    distributions: ReferenceDistributions,
}

impl<'a> FullContinuation<'a> {
    /// Generates exactly `steps` tokens under `full`, without `excluded` ones. The distributions, N · V f32,
    /// are those of the generating steps, with the same compute dtype as the policies.
    ///
    /// # Errors
    /// [`Error::Input`] on an empty prompt, no steps or a sequence longer than the context;
    /// [`Error::Interrupted`].
    pub fn of(
        decoder: &Arc<Decoder>,
        prompt: &'a [u32],
        steps: usize,
        excluded: &[u32],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let full = Policy::full(decoder.config().layers);
        let mut session = Session::new(decoder, full, prompt.len(), steps)?;
        let first = session.prefill(prompt, &mut Hooks::none(), interrupt, &mut |_| {})?;
        let mut logits = vec![];
        let tokens =
            continue_greedily(&mut session, first, steps, excluded, interrupt, &mut |_, row: &Tensor| {
                logits.push(row.clone());
            })?;
        drop(session);
        let distributions = ReferenceDistributions::of_steps(logits, &tokens)?;
        Ok(Self { decoder: Arc::clone(decoder), prompt, tokens, distributions })
    }

    /// The continuation, N tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Divergence of a policy from the full model along the continuation: prefill under the policy, then step
    /// by step. The full model itself has divergence 0 and is not run.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; errors of the model.
    pub fn divergence(
        &self,
        decoder: &Arc<Decoder>,
        policy: &Policy,
        interrupt: &Interrupt,
    ) -> Result<Divergence> {
        let is_full = *policy == Policy::full(decoder.config().layers);
        if is_full && Arc::ptr_eq(decoder, &self.decoder) {
            return Ok(Divergence::ZERO);
        }
        let mut session = Session::new(decoder, policy.clone(), self.prompt.len(), self.tokens.len())?;
        let mut logits = session.prefill(self.prompt, &mut Hooks::none(), interrupt, &mut |_| {})?;
        let mut compared = vec![self.distributions.compare_step(0, &logits)?];
        for (step, &token) in (1..self.tokens.len()).zip(&self.tokens) {
            check_interrupt(interrupt)?;
            logits = session.step(token, &mut Hooks::none())?;
            compared.push(self.distributions.compare_step(step, &logits)?);
        }
        Ok(StepComparison::mean(&compared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_spread_evenly() {
        let depths = |prompts| quality_grid(&[512], prompts).expect("a grid").depths;
        assert_eq!(depths(1), [50]);
        assert_eq!(depths(2), [0, 100]);
        assert_eq!(depths(4), [0, 33, 66, 100]);
        assert_eq!(depths(MOST_QUALITY_PROMPTS), (0..=100).collect::<Vec<_>>());
        for wrong in [0, MOST_QUALITY_PROMPTS + 1] {
            let error = quality_grid(&[512], wrong).expect_err("refused");
            assert!(error.exit_code() == 2 && error.to_string().contains("101"), "{error}");
        }
    }

    #[test]
    fn means_over_prompts() {
        let of = |kl, found| (Divergence { kl, top1: 1.0 - kl, dnll: -kl }, found);
        let quality = Quality::of(&[of(0.25, true), of(0.75, false)]);
        assert_eq!(quality, Quality { kl: 0.5, top1: 0.5, dnll: -0.5, found: 0.5, prompts: 2 });
        assert!(quality.is_plausible());
        assert!(Quality { kl: f64::NAN, ..quality }.is_plausible());
        assert!(!Quality { found: 1.5, ..quality }.is_plausible());
        assert!(!Quality { kl: -0.1, ..quality }.is_plausible());
        assert!(!Quality { prompts: 0, ..quality }.is_plausible());
    }
}
