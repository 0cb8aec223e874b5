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
        found.push(likelihood_behind(&mut session, prompt, continuation)?);
    }
    Ok(found)
}

/// The likelihood of a continuation in a session that has run its prompt, whatever ran behind that: what did is forgotten.
///
/// # Errors
/// [`Error::Misuse`] after decode rows under a policy that moves what is stored. Whatever fails beneath.
pub fn likelihood_behind(session: &mut Session, prompt: &[u32], continuation: &[u32]) -> Result<Likelihood> {
    let last = prompt.len() - 1;
    session.truncate(last)?;
    let rows = decode_rows(prompt, continuation);
    let x = session.teacher_forced(&rows, &mut Hooks::none(), &mut vec![])?;
    let positions: Vec<usize> = (last..last + rows.len()).collect();
    let logits = session.decoder().unembed(&x, &positions, &mut Hooks::none(), ComputeType::F32)?.to_vec()?;
    let of_rows = logits.chunks_exact(logits.len() / rows.len()).zip(continuation);
    let tokens: Vec<TokenLikelihood> =
        of_rows.map(|(logits, &token)| TokenLikelihood::of(logits, token, 0)).collect();
    let is_greedy = tokens.iter().all(|token| token.is_greedy);
    let tokens: Vec<f64> = tokens.into_iter().map(|token| token.log_probability).collect();
    Ok(Likelihood { log_likelihood: tokens.iter().sum(), is_greedy, tokens })
}

/// What a model says of a token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLikelihood {
    /// Natural logarithm of its probability.
    pub log_probability: f64,
    /// Whether it is the most likely one, the first of equals.
    pub is_greedy: bool,
    /// How many tokens are more likely, plus one.
    pub rank: usize,
    /// The most likely tokens, with the same logarithm of each.
    pub top: Vec<(u32, f64)>,
}

impl TokenLikelihood {
    /// Of a token, from the logits `[V]` that it is chosen from, and of the `top` most likely ones.
    ///
    /// # Panics
    /// If the vocabulary does not have the token.
    pub fn of(logits: &[f32], token: u32, top: usize) -> Self {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
        let log = |logit: f32| f64::from(logit - most) - sum.ln();
        let own = logits[token as usize];
        let by_likelihood =
            |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let mut tokens: Vec<u32> = if top > 0 { (0..logits.len() as u32).collect() } else { vec![] };
        if top < tokens.len() {
            tokens.select_nth_unstable_by(top, by_likelihood);
            tokens.truncate(top);
        }
        tokens.sort_unstable_by(by_likelihood);
        Self {
            log_probability: log(own),
            is_greedy: logits.iter().position(|logit| *logit == most) == Some(token as usize),
            rank: 1 + logits.iter().filter(|logit| **logit > own).count(),
            top: tokens.into_iter().map(|token| (token, log(logits[token as usize]))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_ranked_by_their_likelihood_and_the_first_of_equals_is_greedy() {
        let logits = [1.0f32, 3.0, 2.0, 3.0];
        let found = TokenLikelihood::of(&logits, 2, 3);
        let top: Vec<u32> = found.top.iter().map(|(token, _)| *token).collect();
        assert_eq!((top, found.rank, found.is_greedy), (vec![1, 3, 2], 3, false));
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        assert!((found.log_probability - (2.0 - sum.ln())).abs() < 1e-12);
        assert_eq!(found.top[2].1, found.log_probability);
        assert!(
            TokenLikelihood::of(&logits, 1, 0).is_greedy && !TokenLikelihood::of(&logits, 3, 0).is_greedy
        );
        assert_eq!(TokenLikelihood::of(&logits, 0, 9).top.len(), 4);
    }
}
