//! Likelihoods of continuations of a prompt under a policy.

use layerscope_diagnostics::probe::decode_rows;
use layerscope_engine::{
    ComputeType, Error, Hooks, Interrupt, Model, Policy, Result, Session, check_interrupt,
};
use serde::{Deserialize, Serialize};

/// The likelihood of a continuation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Likelihood {
    /// Natural logarithm of its probability.
    pub log_likelihood: f64,
    /// Whether each of its tokens is the most likely one.
    pub is_greedy: bool,
    /// Natural logarithm of each token's probability.
    pub tokens: Vec<f64>,
}

/// Likelihoods of continuations behind a prompt: the prompt runs under the policy as it does when text is generated, its last
/// token and each continuation as decode rows behind it, in f32.
///
/// # Errors
/// [`Error::Input`] on a prompt or a continuation without tokens; [`Error::Interrupted`], or whatever fails beneath.
pub fn likelihoods(
    model: &Model,
    prompt: &[u32],
    continuations: &[Vec<u32>],
    policy: &Policy,
    interrupt: &Interrupt,
) -> Result<Vec<Likelihood>> {
    let longest = continuations.iter().map(Vec::len).max().unwrap_or(0);
    if continuations.iter().any(Vec::is_empty) {
        return Err(Error::input("a choice has no tokens behind the prompt; give it some text"));
    }
    let begin = || -> Result<Session> {
        let mut session = Session::new(&model.decoder, policy.clone(), prompt.len(), longest)?;
        session.prefill(prompt, &mut Hooks::none(), interrupt, &mut |_| {})?;
        Ok(session)
    };
    // What decode steps move under such policies does not come back.
    let runs_again = policy.rules().selection().refers_to_stored();
    let mut session = begin()?;
    let mut found = vec![];
    for (index, continuation) in continuations.iter().enumerate() {
        check_interrupt(interrupt)?;
        if runs_again && index > 0 {
            session = begin()?;
        }
        found.push(likelihood(&mut session, prompt, continuation)?);
    }
    Ok(found)
}

fn likelihood(session: &mut Session, prompt: &[u32], continuation: &[u32]) -> Result<Likelihood> {
    let last = prompt.len() - 1;
    session.truncate(last)?;
    let rows = decode_rows(prompt, continuation);
    let x = session.teacher_forced(&rows, &mut Hooks::none(), &mut vec![])?;
    let positions: Vec<usize> = (last..last + rows.len()).collect();
    let logits = session.decoder().unembed(&x, &positions, &mut Hooks::none(), ComputeType::F32)?.to_vec()?;
    let (mut tokens, mut is_greedy) = (vec![], true);
    for (logits, &token) in logits.chunks_exact(logits.len() / rows.len()).zip(continuation) {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
        let own = logits[token as usize];
        tokens.push(f64::from(own - most) - sum.ln());
        is_greedy &= logits.iter().position(|logit| *logit == most) == Some(token as usize);
    }
    Ok(Likelihood { log_likelihood: tokens.iter().sum(), is_greedy, tokens })
}
