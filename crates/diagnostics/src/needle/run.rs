//! Runs needle prompts through a model under each policy.

use super::{NeedlePrompt, is_right};
use layerscope_engine::{
    Error, GenerationSettings, Interrupt, Model, Policy, Repetition, Result, Sampling, check_interrupt,
    generate,
};
use serde::Serialize;
use std::ops::ControlFlow;

/// Progress of a needle run.
#[derive(Debug)]
pub enum NeedleEvent<'a> {
    /// A generation begins.
    Started {
        /// Id of the prompt.
        id: &'a str,
        /// Name of the policy.
        policy: &'a str,
    },
    /// The generation has ended.
    Finished(&'a Outcome),
}

/// The result of one prompt under one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Id of the prompt.
    pub id: String,
    /// Name of the policy.
    pub policy: String,
    /// A caveat to show with the output.
    pub caveat: Option<&'static str>,
    /// Token budget of the prompt.
    pub length: usize,
    /// Share of the sentences before the needle, percent.
    pub depth: u32,
    /// Index among the prompts of its length and depth.
    pub sample: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The expected digits.
    pub answer: String,
    /// The generated text.
    pub text: String,
    /// Whether it contains the digits.
    pub correct: bool,
    /// Tokens generated.
    pub new_tokens: usize,
    /// The loop at the end of the text, if any.
    pub repetition: Option<Repetition>,
    /// Time to first token, seconds.
    pub ttft_s: f64,
    /// Mean time per output token after the first, seconds.
    pub tpot_s: Option<f64>,
}

/// The results of a run, complete or up to an interrupt.
#[derive(Debug)]
pub struct Outcomes {
    /// One for each prompt and policy that is done.
    pub outcomes: Vec<Outcome>,
    /// Whether an interrupt stopped it.
    pub interrupted: bool,
}

/// Generates greedily from every prompt under every policy, at most `max_new_tokens` tokens each. Runs all
/// policies of a prompt before the next prompt. An interrupt keeps the finished results.
///
/// # Errors
/// [`Error::Input`] on a prompt longer than the model's context; errors of the model.
pub fn run(
    model: &Model,
    prompts: &[NeedlePrompt],
    policies: &[Policy],
    max_new_tokens: usize,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(NeedleEvent<'_>),
) -> Result<Outcomes> {
    let mut done = Outcomes { outcomes: vec![], interrupted: false };
    for prompt in prompts {
        for policy in policies.iter().cloned() {
            let name = policy.to_string();
            observe(NeedleEvent::Started { id: &prompt.id, policy: &name });
            match outcome(model, prompt, policy, name, max_new_tokens, interrupt) {
                Err(Error::Interrupted) => {
                    done.interrupted = true;
                    return Ok(done);
                }
                outcome => {
                    let outcome = outcome?;
                    observe(NeedleEvent::Finished(&outcome));
                    done.outcomes.push(outcome);
                }
            }
        }
    }
    Ok(done)
}

fn outcome(
    model: &Model,
    prompt: &NeedlePrompt,
    policy: Policy,
    name: String,
    max_new_tokens: usize,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let settings = GenerationSettings {
        max_new_tokens,
        choice: Sampling::Greedy.into(),
        stop_tokens: model.tokenizer.eos_ids(),
        statistics: false,
        rounded: false,
    };
    let caveat = policy.caveat();
    let generation = generate(&model.decoder, &prompt.tokens, policy, &settings, interrupt, &mut |_| {
        ControlFlow::Continue(())
    })?;
    // An interrupt while decoding ends the text early; that must not count as a needle not found.
    check_interrupt(interrupt)?;
    let text = model.tokenizer.decode_skipping_special(&generation.tokens)?;
    Ok(Outcome {
        id: prompt.id.clone(),
        policy: name,
        caveat,
        length: prompt.length,
        depth: prompt.depth,
        sample: prompt.sample,
        prompt_tokens: prompt.tokens.len(),
        answer: prompt.answer.clone(),
        correct: is_right(&prompt.answer, &text),
        text,
        new_tokens: generation.tokens.len(),
        repetition: Repetition::at_end_of(&generation.tokens),
        ttft_s: generation.ttft_s,
        tpot_s: generation.tpot_s,
    })
}
