//! Failure cases: continuations under a cutoff of the prompts whose output it changes most.
//!
//! The frontier compares next-token distributions along the full model's text. The text under the cutoff must
//! be generated: this module does so for the prompts with the largest KL and writes `continuations.json`.

use crate::recorded_with;
use layerscope_cutoff::recommend::FrontierPoint;
use layerscope_diagnostics::probe::continue_greedily;
use layerscope_diagnostics::record::PromptSummary;
use layerscope_diagnostics::run::{Continuation, ContinuationsWriter, Run};
use layerscope_diagnostics::summary::largest;
use layerscope_engine::{Hooks, Interrupt, Model, Policy, Repetition, Result, Session, check_interrupt};

/// Progress of the continuations.
#[derive(Debug)]
pub enum ContinuationEvent<'a> {
    /// The prompts are chosen.
    Chosen {
        /// Number of prompts.
        prompts: usize,
        /// Prompts whose continuation is already in the folder; they are not run again.
        earlier: usize,
    },
    /// A prompt begins.
    Started {
        /// Its id.
        id: &'a str,
        /// Its number of tokens p, plus the N decode steps.
        tokens: usize,
    },
    /// This many of its p + N tokens are processed.
    Tokens(usize),
    /// The continuation is durable.
    Finished(&'a Continuation),
}

/// Continues the `count` prompts of the run with the largest KL at a cutoff (the earlier of equal ones)
/// greedily under SPEED at that cutoff, with the run's prompt tokens and number of new tokens, and writes the
/// continuations to the run folder. Returns them, largest KL first.
///
/// Skips prompts with a given answer, because there is no text of the full model to compare with, and
/// continuations that the folder already has. Excludes end-of-sequence tokens, like recording.
///
/// # Errors
/// [`Error::Input`] if the model or its precision is not the run's, the model has no such cutoff, or a file
/// of the run is damaged; [`Error::Interrupted`], which keeps finished continuations; [`Error::Failure`] if
/// the folder cannot be written.
pub fn continue_failure_cases(
    run: &Run,
    model: &Model,
    point: FrontierPoint,
    count: usize,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(ContinuationEvent<'_>),
) -> Result<Vec<Continuation>> {
    recorded_with::check(run, model)?;
    let policy = point.policy(model.config().layers)?;
    let name = policy.to_string();
    let max_new_tokens = run.manifest().settings.max_new_tokens;
    let mut writer = ContinuationsWriter::open(run)?;
    let cases = failure_cases(run, point, count)?;
    let is_done = |case: &&FailureCase| {
        let entry = writer.continuations().find(&case.prompt.id, &name);
        entry.is_some_and(|entry| case.is_up_to_date(entry, max_new_tokens))
    };
    let (earlier, pending): (Vec<_>, Vec<_>) = cases.iter().partition(is_done);
    observe(ContinuationEvent::Chosen { prompts: cases.len(), earlier: earlier.len() });
    for case in pending {
        check_interrupt(interrupt)?;
        observe(ContinuationEvent::Started { id: &case.prompt.id, tokens: case.prompt.p + max_new_tokens });
        let entry = case.continued(model, &policy, max_new_tokens, interrupt, &mut |done| {
            observe(ContinuationEvent::Tokens(done));
        })?;
        observe(ContinuationEvent::Finished(writer.put(entry)?));
    }
    let entries = cases.iter().filter_map(|case| writer.continuations().find(&case.prompt.id, &name));
    Ok(entries.cloned().collect())
}

/// A prompt with its KL at the cutoff, nats; NaN if undefined.
struct FailureCase {
    prompt: PromptSummary,
    kl: f64,
}

/// The prompts with generated continuations and the largest KL; an undefined KL counts as smallest.
fn failure_cases(run: &Run, point: FrontierPoint, count: usize) -> Result<Vec<FailureCase>> {
    // Reads only the KL first, then the chosen prompts again, so that few are in memory.
    let (mut ids, mut kl) = (vec![], vec![]);
    for prompt in run.prompts() {
        let prompt = prompt?;
        if !prompt.answer_given {
            let at = prompt.at(point.anchor, point.cutoff).kl;
            kl.push(if at.is_finite() { at } else { f64::NAN });
            ids.push(prompt.id);
        }
    }
    let ranks = kl.iter().map(|kl| if kl.is_nan() { f64::MIN } else { *kl });
    let cases = largest(ranks, count).into_iter();
    cases.map(|index| Ok(FailureCase { prompt: run.prompt(&ids[index])?, kl: kl[index] })).collect()
}

impl FailureCase {
    /// Whether an entry is current: it has the requested number of tokens and matches the run's KL and text.
    fn is_up_to_date(&self, entry: &Continuation, max_new_tokens: usize) -> bool {
        [entry.max_new_tokens, entry.generated.len()] == [max_new_tokens; 2]
            && (entry.kl == self.kl || entry.kl.is_nan() && self.kl.is_nan())
            && entry.first_difference == self.first_difference(&entry.generated)
    }

    /// Generates under the policy with the settings of recording.
    fn continued(
        &self,
        model: &Model,
        policy: &Policy,
        max_new_tokens: usize,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Continuation> {
        let (prompt, tokenizer) = (&self.prompt, &model.tokenizer);
        let tokens = &prompt.prompt_tokens;
        let mut session = Session::new(&model.decoder, policy.clone(), tokens.len(), max_new_tokens)?;
        let logits = session.prefill(tokens, &mut Hooks::none(), interrupt, progress)?;
        let excluded = tokenizer.eos_ids();
        let generated =
            continue_greedily(&mut session, logits, max_new_tokens, excluded, interrupt, &mut |done, _| {
                progress(done);
            })?;
        Ok(Continuation {
            prompt_id: prompt.id.clone(),
            policy: policy.to_string(),
            max_new_tokens,
            generated_token_text: generated.iter().map(|&id| tokenizer.token_text(id)).collect(),
            generated_text: tokenizer.decode(&generated)?,
            kl: self.kl,
            first_difference: self.first_difference(&generated),
            repetition: Repetition::at_end_of(&generated),
            generated,
        })
    }

    /// The step at which a text first differs from the run's; the end of the run's text if it is a prefix.
    fn first_difference(&self, generated: &[u32]) -> Option<usize> {
        (0..generated.len()).find(|&step| self.prompt.generated.get(step) != Some(&generated[step]))
    }
}
