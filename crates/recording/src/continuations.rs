//! Failure cases: the prompts whose output a cutoff changes most, continued under that cutoff.
//!
//! The frontier compares next-token distributions along the full model's text. The text under the cutoff must be generated;
//! this module does so for the few prompts with the largest KL and writes the run folder's `continuations.json`.

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
        /// How many there are.
        prompts: usize,
        /// Those among them whose continuation is in the folder already; they are not run again.
        earlier: usize,
    },
    /// A prompt begins.
    Started {
        /// Its id.
        id: &'a str,
        /// Its number of tokens p, plus the N decode steps.
        tokens: usize,
    },
    /// So many of its p + N tokens went through the model.
    Tokens(usize),
    /// The continuation is durable.
    Finished(&'a Continuation),
}

/// Continues the `count` prompts of the run with the largest KL at a cutoff (of equals the earlier ones), greedily under
/// SPEED at that cutoff, from the run's own prompt tokens and for as many tokens as the run's settings say, and keeps the
/// continuations in the run folder. Returns them, the largest KL first.
///
/// Prompts with a given continuation are skipped: there is no text of the full model to compare with. Continuations that the
/// folder already has are not generated again. End-of-sequence tokens are never chosen, as in recording.
///
/// # Errors
/// [`Error::Input`] where the model or its precision is not the run's, the model has no such cutoff, or a file of the run
/// is damaged; [`Error::Interrupted`], with everything finished kept; [`Error::Failure`] where the folder cannot be
/// written.
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

/// A prompt with its KL at the cutoff, nats; NaN where undefined.
struct FailureCase {
    prompt: PromptSummary,
    kl: f64,
}

/// The generated prompts with the largest KL; what is undefined counts as smallest.
fn failure_cases(run: &Run, point: FrontierPoint, count: usize) -> Result<Vec<FailureCase>> {
    // Figures first: the prompts themselves are read again, so that only few are in memory.
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
    /// Whether an entry is up to date: it has as many tokens as are asked for now, and was compared with the run's current
    /// figures and text.
    fn is_up_to_date(&self, entry: &Continuation, max_new_tokens: usize) -> bool {
        [entry.max_new_tokens, entry.generated.len()] == [max_new_tokens; 2]
            && (entry.kl == self.kl || entry.kl.is_nan() && self.kl.is_nan())
            && entry.first_difference == self.first_difference(&entry.generated)
    }

    /// Generates under the policy as recording generates at full depth.
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

    /// The step at which a text first differs from the run's; the end of the run's, where that is all there is of it.
    fn first_difference(&self, generated: &[u32]) -> Option<usize> {
        (0..generated.len()).find(|&step| self.prompt.generated.get(step) != Some(&generated[step]))
    }
}
