//! Whether the text that a model writes contains an answer.

use layerscope_diagnostics::needle::is_right;
use layerscope_engine::{Hooks, Interrupt, Result, Session, Tokenizer, argmax, check_interrupt};

/// An answer that is looked for in greedy texts, which end as the model ends them.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// What a text must contain.
    pub text: &'a str,
    /// Most tokens of a text.
    pub max_new_tokens: usize,
}

/// Texts of a model, and the answer.
pub(crate) struct Answered<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) answer: &'a Answer<'a>,
}

impl Answered<'_> {
    /// Whether the greedy text contains it, as far as the most likely tokens along a continuation tell: while they are the
    /// continuation's own, both are the same text.
    pub(crate) fn along(&self, continuation: &[u32], argmax: &[u32]) -> Result<Option<bool>> {
        let ends = |token: &u32| self.tokenizer.eos_ids().contains(token);
        let most = self.answer.max_new_tokens;
        let same = continuation.iter().zip(argmax).take(most).take_while(|(a, b)| a == b && !ends(b)).count();
        let text = &continuation[..same];
        if self.is_in(text)? {
            return Ok(Some(true));
        }
        let is_over = same == most || argmax.get(same).is_some_and(ends);
        Ok(is_over.then_some(false))
    }

    /// Whether the text that a session generates contains it; `last` is the last prompt token, the first to go through.
    pub(crate) fn generated(&self, session: &mut Session, last: u32, interrupt: &Interrupt) -> Result<bool> {
        let mut tokens = vec![];
        let mut next = last;
        while tokens.len() < self.answer.max_new_tokens {
            check_interrupt(interrupt)?;
            next = argmax(&session.step(next, &mut Hooks::none())?, &[])?;
            if self.tokenizer.eos_ids().contains(&next) {
                break;
            }
            tokens.push(next);
            if self.is_in(&tokens)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn is_in(&self, tokens: &[u32]) -> Result<bool> {
        Ok(is_right(self.answer.text, &self.tokenizer.decode_skipping_special(tokens)?))
    }
}
