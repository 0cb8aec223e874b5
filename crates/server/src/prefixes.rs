//! Sequences that have ended and whose prompts' keys and values are kept for prompts that begin alike.

use layerscope_engine::Session;
use std::collections::VecDeque;
use std::sync::Arc;

/// Fewer shared tokens than this are run again.
const FEWEST_SHARED: usize = 16;

/// Kept sequences, the one used last at the end.
#[derive(Default)]
pub(crate) struct Prefixes {
    kept: VecDeque<Kept>,
}

struct Kept {
    prompt: Arc<[u32]>,
    session: Session,
}

impl Prefixes {
    /// Keeps a sequence that has ended, in the place of those of the same model and policy that it begins with.
    pub(crate) fn keep(&mut self, prompt: Arc<[u32]>, session: Session) {
        if prompt.len() < FEWEST_SHARED {
            return;
        }
        let replaces = |kept: &Kept| {
            kept.session.policy() == session.policy()
                && Arc::ptr_eq(kept.session.decoder(), session.decoder())
                && prompt.starts_with(&kept.prompt)
        };
        self.kept.retain(|kept| !replaces(kept));
        self.kept.push_back(Kept { prompt, session });
    }

    /// Gives up those used longest ago until all together take at most so many bytes.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        while self.bytes() > bytes {
            self.kept.pop_front();
        }
    }

    /// Bytes allocated for keys and values.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.iter().map(|kept| kept.session.store().allocated_bytes() as u64).sum()
    }

    /// Of the kept sequences and of others that run, the one that begins with most of a prompt and has the keys and values that
    /// `session` wants, and how many tokens that are.
    pub(crate) fn longest<'a>(
        &'a mut self,
        session: &Session,
        prompt: &[u32],
        running: impl Iterator<Item = (&'a [u32], &'a Session)>,
    ) -> Option<(&'a Session, usize)> {
        let best_kept = self
            .kept
            .iter()
            .enumerate()
            .filter_map(|(index, kept)| Some((index, shared(session, prompt, &kept.prompt, &kept.session)?)))
            .max_by_key(|&(_, len)| len);
        // Used last.
        let best_kept = best_kept.and_then(|(index, len)| {
            let kept = self.kept.remove(index)?;
            self.kept.push_back(kept);
            Some(len)
        });
        let kept = best_kept.and_then(|len| Some((&self.kept.back()?.session, len)));
        let running =
            running.filter_map(|(tokens, other)| Some((other, shared(session, prompt, tokens, other)?)));
        kept.into_iter().chain(running).max_by_key(|&(_, len)| len)
    }
}

/// How many of a prompt's first tokens can be taken over.
fn shared(session: &Session, prompt: &[u32], other_prompt: &[u32], other: &Session) -> Option<usize> {
    let alike = prompt.iter().zip(other_prompt).take_while(|(a, b)| a == b).count();
    if alike < FEWEST_SHARED {
        return None;
    }
    Some(session.can_take_over(other, alike)).filter(|&len| len >= FEWEST_SHARED)
}
