//! One prompt: its run with probes, and what is computed from it.

use crate::{Recorded, RecordingEvent};
use layerscope_cutoff::Answer;
use layerscope_cutoff::answers::judge_answers;
use layerscope_cutoff::frontier::{CausalMap, PromptFrontier, frontier, part_of_frontier};
use layerscope_diagnostics::probe::{self, Decoding, ProbedRun};
use layerscope_diagnostics::prompts::Prompt;
use layerscope_diagnostics::record::{Anchor, FrontierRow, KnockoutRow, PromptRecord, PromptSummary};
use layerscope_engine::{Interrupt, Model, Result, WeightsPrecision};
use std::ops::Range;
use std::time::Instant;

/// Records one prompt.
///
/// # Errors
/// [`layerscope_engine::Error::Input`] on a prompt that cannot be run; [`layerscope_engine::Error::Interrupted`].
pub fn record_prompt(
    model: &Model,
    prompt: &Prompt,
    recorded: Recorded,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(RecordingEvent<'_>),
) -> Result<PromptRecord> {
    let begun = BegunPrompt::run(model, prompt, recorded.max_new_tokens, interrupt, observe)?;
    let map = recorded.map(model, &[begun.prompt_tokens.len()]);
    begun.finish(map, interrupt, observe)
}

/// A prompt that ran with all probes, with the data for the frontier still in memory.
pub(crate) struct BegunPrompt<'a> {
    model: &'a Model,
    pub(crate) prompt: &'a Prompt,
    prompt_tokens: Vec<u32>,
    answer_given: bool,
    max_new_tokens: usize,
    run: ProbedRun,
    /// Tokens that ran: p + N, for each model.
    pub(crate) tokens: usize,
}

impl<'a> BegunPrompt<'a> {
    pub(crate) fn run(
        model: &'a Model,
        prompt: &'a Prompt,
        max_new_tokens: usize,
        interrupt: &Interrupt,
        observe: &mut dyn FnMut(RecordingEvent<'_>),
    ) -> Result<Self> {
        let tokenizer = &model.tokenizer;
        let prompt_tokens = tokenizer.encode_prompt(&prompt.content)?;
        let answer = match &prompt.answer {
            None => None,
            Some(answer) => {
                let mut tokens = tokenizer.encode_fitting(answer)?;
                tokens.truncate(max_new_tokens);
                Some(tokens)
            }
        };
        let continuation = match &answer {
            Some(tokens) => Decoding::Given(tokens),
            None => Decoding::Greedy { tokens: max_new_tokens, excluded: tokenizer.eos_ids() },
        };
        let once = prompt_tokens.len() + answer.as_ref().map_or(max_new_tokens, Vec::len);
        let tokens = if model.adapter.is_some() { 2 * once } else { once };
        observe(RecordingEvent::Started { id: &prompt.id, tokens });
        let mut run =
            probe::run(&model.reference()?, &prompt_tokens, &continuation, interrupt, &mut |done| {
                observe(RecordingEvent::Tokens(done));
            })?;
        if model.adapter.is_some() {
            run = probe::run_adapted(&model.decoder, &prompt_tokens, run, interrupt, &mut |done| {
                observe(RecordingEvent::Tokens(once + done));
            })?;
        }
        let answer_given = answer.is_some();
        Ok(Self { model, prompt, prompt_tokens, answer_given, max_new_tokens, run, tokens })
    }

    /// A part of the frontier, answers included.
    pub(crate) fn part_of_frontier(
        &mut self,
        anchor: Anchor,
        cutoffs: Range<usize>,
        interrupt: &Interrupt,
    ) -> Result<Vec<FrontierRow>> {
        let start = Instant::now();
        let mut part = part_of_frontier(&self.model.decoder, &self.run, anchor, cutoffs, interrupt)?;
        self.judge_answers(&mut part, interrupt, &mut |_, _| {})?;
        self.run.timings.frontier_s += start.elapsed().as_secs_f64();
        Ok(part.rows)
    }

    /// The frontier and attention knockout, and all that is known of the prompt then.
    pub(crate) fn finish(
        mut self,
        map: CausalMap,
        interrupt: &Interrupt,
        observe: &mut dyn FnMut(RecordingEvent<'_>),
    ) -> Result<PromptRecord> {
        let start = Instant::now();
        let layers = self.model.config().layers;
        let mut frontier = frontier(&self.model.decoder, &self.run, map, interrupt, &mut |done| {
            observe(RecordingEvent::FrontierLayers { done, all: layers });
        })?;
        self.judge_answers(&mut frontier, interrupt, &mut |done, all| {
            observe(RecordingEvent::Texts { done, all });
        })?;
        self.run.timings.frontier_s += start.elapsed().as_secs_f64();
        let PromptFrontier { rows, knockout, .. } = frontier;
        let summary = self.summary(rows, knockout)?;
        let figures = self.run.figures;
        let by_step = figures.by_step(self.prompt_tokens.len(), &self.run.continuation);
        Ok(PromptRecord { summary, steps: by_step, received: figures.received, reads: figures.reads })
    }

    /// Looks for the expected answer, where there is one, in the texts under a frontier's cutoffs.
    fn judge_answers(
        &mut self,
        frontier: &mut PromptFrontier,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<()> {
        let (Some(text), Some(&last)) = (self.prompt.expected(), self.prompt_tokens.last()) else {
            return Ok(());
        };
        let room = (self.model.config().context + 1).saturating_sub(self.prompt_tokens.len());
        let answer = Answer { text, max_new_tokens: self.max_new_tokens.min(room) };
        judge_answers(self.model, &mut self.run, last, frontier, &answer, interrupt, progress)
    }

    /// What is known of the prompt with this frontier and knockout.
    pub(crate) fn summary(
        &self,
        frontier: Vec<FrontierRow>,
        knockout: Vec<KnockoutRow>,
    ) -> Result<PromptSummary> {
        let Self { model, prompt, prompt_tokens, run, .. } = self;
        let tokenizer = &model.tokenizer;
        let shown = |tokens: &[u32]| tokens.iter().map(|&id| tokenizer.token_text(id)).collect();
        Ok(PromptSummary {
            id: prompt.id.clone(),
            category: prompt.category.clone(),
            text: prompt.text(),
            p: prompt_tokens.len(),
            steps: run.continuation.len(),
            prompt_token_text: shown(prompt_tokens),
            prompt_tokens: prompt_tokens.clone(),
            generated_token_text: shown(&run.continuation),
            generated_text: tokenizer.decode(&run.continuation)?,
            generated: run.continuation.clone(),
            answer_given: self.answer_given,
            expected: prompt.expected().map(str::to_owned),
            native_kl: run.generation_kl.filter(|_| model.precision == WeightsPrecision::Native),
            timings: run.timings,
            layers: run.figures.by_layer(),
            heads: run.figures.by_head(),
            frontier,
            knockout,
        })
    }
}
