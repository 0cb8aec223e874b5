//! Diagnostics under policies: a recorded prompt runs under a policy, and its decode rows are teacher-forced along the recorded
//! continuation.

use crate::recorded_with;
use layerscope_diagnostics::probe::{attention_figures, decode_rows, teacher_forced};
use layerscope_diagnostics::prompts::check_policy_name;
use layerscope_diagnostics::record::{PolicyRecord, PromptSummary};
use layerscope_diagnostics::reference_distributions::{ReferenceDistributions, StepComparison};
use layerscope_diagnostics::run::{PoliciesWriter, Run};
use layerscope_engine::{Error, Hooks, Interrupt, Model, Policy, Result, Session, check_interrupt};

/// Progress of recording under policies.
#[derive(Debug, Clone, Copy)]
pub enum PolicyEvent<'a> {
    /// A prompt begins.
    Started {
        /// Its id.
        id: &'a str,
        /// Tokens to run, over all its policies.
        tokens: usize,
    },
    /// So many more tokens of it have run.
    Tokens(usize),
}

/// Adds the attention under policies to a run folder, along the text that each prompt was recorded with. Prompts that the
/// folder has under a policy are not run again.
///
/// # Errors
/// [`Error::Input`] if the model or its precision is not the run's, a policy's name is too long for the folder, or memory does
/// not suffice; [`Error::Interrupted`], which keeps finished prompts; [`Error::Failure`] if the folder cannot be written.
pub fn record_policies(
    run: &Run,
    model: &Model,
    policies: &[Policy],
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(PolicyEvent<'_>),
) -> Result<()> {
    recorded_with::check(run, model)?;
    let policies = distinct(policies)?;
    let mut writer = PoliciesWriter::open(run)?;
    for id in run.prompt_ids() {
        let is_missing = |policy: &&Policy| !writer.has(id, &policy.to_string());
        let missing: Vec<&Policy> = policies.iter().copied().filter(is_missing).collect();
        if missing.is_empty() {
            continue;
        }
        check_interrupt(interrupt)?;
        let prompt = run.prompt(id)?;
        // The full model runs once, as the reference.
        let tokens = (missing.len() + 1) * (prompt.p + prompt.steps);
        observe(PolicyEvent::Started { id, tokens });
        writer.put(of_prompt(model, &prompt, &missing, interrupt, observe)?)?;
    }
    Ok(())
}

/// Each policy once: several names may stand for one, as all cutoffs of L do for `full`.
fn distinct(policies: &[Policy]) -> Result<Vec<&Policy>> {
    let mut distinct: Vec<&Policy> = vec![];
    for policy in policies {
        check_policy_name(&policy.to_string()).map_err(|problem| {
            Error::input(format!(
                "policy {policy} cannot be recorded: its name has {problem}; give fewer anchors"
            ))
        })?;
        if !distinct.contains(&policy) {
            distinct.push(policy);
        }
    }
    Ok(distinct)
}

fn of_prompt(
    model: &Model,
    prompt: &PromptSummary,
    policies: &[&Policy],
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(PolicyEvent<'_>),
) -> Result<Vec<PolicyRecord>> {
    let (decoder, tokens, continuation) = (&model.decoder, &prompt.prompt_tokens, &prompt.generated);
    let prefilled = |decoder, policy: &Policy, observe: &mut dyn FnMut(PolicyEvent<'_>)| {
        let mut session = Session::new(decoder, policy.clone(), prompt.p, continuation.len())?;
        let mut told = 0;
        session.prefill(tokens, &mut Hooks::none(), interrupt, &mut |done| {
            observe(PolicyEvent::Tokens(done - told));
            told = done;
        })?;
        Ok::<Session, Error>(session)
    };
    let full = Policy::full(decoder.config().layers);
    let base = model.reference()?;
    let mut session = prefilled(&base, &full, observe)?;
    let reference = teacher_forced(&base, &mut session, tokens, continuation)?.distributions;
    drop(session);
    observe(PolicyEvent::Tokens(continuation.len()));
    let mut records = vec![];
    for policy in policies {
        let session = prefilled(decoder, policy, observe)?;
        records.push(under(model, prompt, policy, session, &reference)?);
        observe(PolicyEvent::Tokens(continuation.len()));
    }
    Ok(records)
}

/// The decode rows of the continuation in a session that has prefilled the prompt.
fn under(
    model: &Model,
    prompt: &PromptSummary,
    policy: &Policy,
    mut session: Session,
    reference: &ReferenceDistributions,
) -> Result<PolicyRecord> {
    let rows = decode_rows(&prompt.prompt_tokens, &prompt.generated);
    session.truncate(prompt.p - 1)?;
    let mut statistics = vec![];
    let last = session.teacher_forced(&rows, &mut Hooks::none(), &mut statistics)?;
    let compared = reference.compare(&model.decoder, &last)?;
    let figures = attention_figures(&statistics, model.config().heads, rows.len(), prompt.p);
    Ok(PolicyRecord {
        prompt_id: prompt.id.clone(),
        policy: policy.to_string(),
        divergence: StepComparison::mean(&compared),
        attention: figures.by_step(),
    })
}
