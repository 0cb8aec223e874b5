//! Whether the text under each cutoff, or set of KV heads, still gives the answer that the full model gives.
//!
//! While the most likely tokens are those of the continuation, the text is the full model's. So a text that departs after the answer
//! keeps it, and is not generated. The others are, all together: they share the prompt's KV and read of it what their cutoff or
//! set leaves ([`Branches`]).

use crate::answer::{Answer, Answered};
use crate::copies::RowCopy;
use crate::frontier::{PromptFrontier, Variant};
use crate::search::{OnPrompt, Shown};
use layerscope_diagnostics::probe::ProbedRun;
use layerscope_diagnostics::record::FrontierRow;
use layerscope_engine::{
    BranchToken, Branches, Interrupt, KeyRange, Model, Result, argmax, check_interrupt, check_memory,
};

/// Fills in [`layerscope_diagnostics::record::TextUnderCutoff::answered`] of each row of a run's frontier. The run's session loses
/// its decode tokens; `last_prompt_token` is the first to run again.
///
/// `progress(done, all)` is told how many tokens of at most so many are generated.
///
/// # Errors
/// [`layerscope_engine::Error::Interrupted`], or whatever fails beneath.
pub fn judge_answers(
    model: &Model,
    run: &mut ProbedRun,
    last_prompt_token: u32,
    frontier: &mut PromptFrontier,
    answer: &Answer<'_>,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<()> {
    let answered = Answered { tokenizer: &model.tokenizer, answer };
    let mut texts = Texts { model, answered, run, last_prompt_token, interrupt };
    let layers = model.config().layers;
    let of_row = |row: &usize| {
        let FrontierRow { anchor, cutoff, .. } = frontier.rows[*row];
        (Variant::Cutoff { anchor, cutoff }, &frontier.most_likely[*row][..])
    };
    let (full, cut): (Vec<usize>, Vec<usize>) =
        (0..frontier.rows.len()).partition(|&row| frontier.rows[row].cutoff == layers);
    // At full depth the model has a row for each anchor, and one text.
    let at_full_depth =
        texts.judge(full.iter().take(1).map(of_row).collect(), progress)?.first() == Some(&true);
    // With an adapter that text need not be the full model's, which is the continuation.
    let given = match texts.run.refers_to_another {
        true => texts.answered.is_in(&texts.run.continuation)?,
        false => at_full_depth,
    };
    let kept = if given { texts.judge(cut.iter().map(of_row).collect(), progress)? } else { vec![] };
    full.iter().for_each(|&row| frontier.rows[row].text.answered = Some(at_full_depth));
    for (&row, kept) in cut.iter().zip(kept) {
        frontier.rows[row].text.answered = Some(kept);
    }
    Ok(())
}

/// Whether the text under each set contains the answer, given the most likely tokens along the continuation under it.
/// The run's session loses its decode tokens, as in [`judge_answers`].
///
/// # Errors
/// As [`judge_answers`].
pub fn judge_sets(
    model: &Model,
    run: &mut ProbedRun,
    last_prompt_token: u32,
    sets: &[(&Shown, &[u32])],
    answer: &Answer<'_>,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<bool>> {
    let answered = Answered { tokenizer: &model.tokenizer, answer };
    let prompt_len = run.prompt_len;
    let mut texts = Texts { model, answered, run, last_prompt_token, interrupt };
    let copies = sets.iter().map(|(shown, most_likely)| (OnPrompt::new(shown, prompt_len), *most_likely));
    texts.judge(copies.collect(), progress)
}

/// The texts of a prompt.
struct Texts<'a> {
    model: &'a Model,
    answered: Answered<'a>,
    run: &'a mut ProbedRun,
    last_prompt_token: u32,
    interrupt: &'a Interrupt,
}

/// A text that is generated.
struct Text {
    tokens: Vec<u32>,
    /// Tokens that it has in common with the continuation.
    same: usize,
    answered: Option<bool>,
}

impl Texts<'_> {
    /// Whether texts contain the answer, each with what it sees and the most likely tokens along the continuation.
    fn judge<C: RowCopy>(
        &mut self,
        copies: Vec<(C, &[u32])>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<bool>> {
        let continuation = &self.run.continuation;
        let mut texts: Vec<(C, Text)> = vec![];
        for (copy, most_likely) in copies {
            let same = continuation.iter().zip(most_likely).take_while(|(a, b)| a == b).count();
            let answered = self.answered.along(continuation, most_likely)?;
            texts.push((copy, Text { tokens: vec![], same, answered }));
        }
        let open = texts.iter_mut().filter(|(_, text)| text.answered.is_none());
        let mut open: Vec<(&C, &mut Text)> = open.map(|(copy, text)| (&*copy, text)).collect();
        let most = self.answered.answer.max_new_tokens;
        let (mut done, all) = (0, open.len() * most);
        let at_once = self.texts_at_once(open.len());
        for batch in open.chunks_mut(at_once) {
            self.generate(batch, &mut |tokens| progress(done + tokens, all))?;
            done += batch.len() * most;
        }
        Ok(texts.iter().map(|(_, text)| text.answered == Some(true)).collect())
    }

    /// Generates texts until each contains the answer, ends or is long enough.
    fn generate<C: RowCopy>(
        &mut self,
        texts: &mut [(&C, &mut Text)],
        progress: &mut dyn FnMut(usize),
    ) -> Result<()> {
        let most = self.answered.answer.max_new_tokens;
        let continuation = &self.run.continuation;
        let copies: Vec<&C> = texts.iter().map(|(copy, _)| *copy).collect();
        let sees = |text: usize, layer: usize, keys: &KeyRange| copies[text].sees(layer, keys);
        let mut branches = Branches::new(&mut self.run.session, texts.len(), texts.len() * most, &sees)?;
        for step in 0..most {
            check_interrupt(self.interrupt)?;
            let open = (0..texts.len()).filter(|&text| texts[text].1.answered.is_none());
            let next = open.map(|branch| {
                let token = texts[branch].1.tokens.last().copied().unwrap_or(self.last_prompt_token);
                BranchToken { branch, token }
            });
            let next: Vec<BranchToken> = next.collect();
            if next.is_empty() {
                break;
            }
            let logits = branches.step(&next)?;
            for (row, next) in next.iter().enumerate() {
                let text = &mut *texts[next.branch].1;
                let token = match continuation[..text.same].get(step) {
                    Some(known) => *known,
                    None => argmax(&logits.narrow(row, 1)?, &[])?,
                };
                if self.answered.tokenizer.eos_ids().contains(&token) {
                    text.answered = Some(false);
                    continue;
                }
                text.tokens.push(token);
                if self.answered.is_in(&text.tokens)? {
                    text.answered = Some(true);
                }
            }
            progress((step + 1) * texts.len());
        }
        let boundary = self.run.prompt_len - 1;
        self.run.session.truncate(boundary)
    }

    /// How many of so many texts there is memory for at once.
    fn texts_at_once(&self, texts: usize) -> usize {
        let (decoder, most) = (&self.model.decoder, self.answered.answer.max_new_tokens);
        let fits = |texts: &usize| {
            let need = decoder.sequence_need(&vec![texts * most; decoder.config().layers]);
            check_memory("texts", &need, decoder.device()).is_ok()
        };
        std::iter::successors(Some(texts), |texts| Some(texts / 2))
            .find(|texts| *texts <= 1 || fits(texts))
            .unwrap_or(1)
            .clamp(1, MOST_AT_ONCE)
    }
}

/// Texts that are generated at once, at most.
const MOST_AT_ONCE: usize = 256;
