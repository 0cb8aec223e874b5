//! Information diffusion: from which layer on may a span of prompt tokens vanish? (SlimInfer, Long et al. 2025, the
//! experiment that motivates it.)
//!
//! A span *removed from layer ℓ on* stops at the entrance of that layer: no other token reads it there or above. What it
//! meant has by then diffused into later tokens or it has not, and the KL from the full model tells which.
//!
//! Everything below ℓ, and every row before the span, is the full model's. So one recorded prefill, with the residual streams
//! of the rows behind the span kept at each layer's entrance, serves all layers: for each ℓ only those rows and the N decode
//! rows run, through the layers from ℓ on. Layers are done from the last down, so that what the session holds below ℓ is still
//! the full model's, and a text can be generated from it at once.

#[cfg(test)]
mod tests;

use crate::answer::{Answer, Answered};
use crate::kept::keep_rows;
use layerscope_diagnostics::probe::{TeacherForced, teacher_forced};
use layerscope_diagnostics::record::{Divergence, SpanMasses, SpanRow};
use layerscope_diagnostics::reference_distributions::StepComparison;
use layerscope_diagnostics::summary::mean;
use layerscope_engine::{
    ComputeType, Decoder, Error, HookPoint, Hooks, Interrupt, LayerStatistics, Model, Policy, Result,
    Session, Site, Tensor, check_interrupt, check_memory,
};
use layerscope_kernels::Segment;
use std::cell::RefCell;
use std::ops::Range;

/// What is asked.
#[derive(Debug, Clone)]
pub struct Question<'a> {
    /// Token ids of the prompt, length p.
    pub prompt: &'a [u32],
    /// Token ids of the continuation that is followed, length N.
    pub continuation: &'a [u32],
    /// Positions of the span, within 0 … p−2: the last prompt token is the first decode token.
    pub span: Range<usize>,
    /// Layers from which it is removed, in 0 … L−1; L is looked at in any case.
    pub layers: &'a [usize],
    /// What is looked for in the texts.
    pub answer: Option<Answer<'a>>,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum DiffusionEvent {
    /// So many prompt tokens went through the model.
    Tokens {
        /// Tokens done.
        done: usize,
        /// Prompt tokens p.
        all: usize,
    },
    /// So many layers are looked at.
    Layers {
        /// Layers done.
        done: usize,
        /// Layers looked at.
        all: usize,
    },
}

/// What removing the span costs, a row per layer, ascending.
///
/// # Errors
/// [`Error::Input`] on a span or layer that is not there, or where memory does not suffice; [`Error::Interrupted`].
pub fn diffusion(
    model: &Model,
    question: &Question<'_>,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(DiffusionEvent),
) -> Result<Vec<SpanRow>> {
    let decoder = &model.decoder;
    question.check(decoder)?;
    let mut layers = question.layers.to_vec();
    layers.sort_unstable();
    layers.dedup();
    question.check_memory(decoder, layers.len())?;
    let mut experiment = Experiment::prepared(model, question, &layers, interrupt, &mut |done| {
        observe(DiffusionEvent::Tokens { done, all: question.prompt.len() });
    })?;
    layers.push(decoder.config().layers);
    let mut rows = vec![];
    for (done, &layer) in layers.iter().rev().enumerate() {
        rows.push(experiment.removed_from(layer, interrupt)?);
        observe(DiffusionEvent::Layers { done: done + 1, all: layers.len() });
    }
    rows.reverse();
    Ok(rows)
}

impl Question<'_> {
    fn check(&self, decoder: &Decoder) -> Result<()> {
        let config = decoder.config();
        let last = self.prompt.len().saturating_sub(2);
        if self.prompt.len() < 2 {
            return Err(Error::input("a prompt of one token has no span to remove; take a longer prompt"));
        }
        if self.span.is_empty() || self.span.end > last + 1 {
            return Err(Error::input(format!(
                "there is no span of tokens {}–{} to remove; give positions from 0 to {last} (the last prompt token is the first \
                 to be decoded and always stays)",
                self.span.start,
                self.span.end.saturating_sub(1)
            )));
        }
        if self.continuation.is_empty() {
            return Err(Error::input(
                "the prompt has no continuation to follow; record it with at least one new token",
            ));
        }
        if let Some(layer) = self.layers.iter().find(|&&layer| layer >= config.layers) {
            return Err(Error::input(format!(
                "there is no layer {layer} to remove a span from; give layers from 0 to {}",
                config.layers - 1
            )));
        }
        let tokens = self.prompt.iter().chain(self.continuation);
        match tokens.copied().find(|&id| id as usize >= config.vocab) {
            Some(id) => Err(Error::input(format!(
                "the model has no token {id}; take the model that the prompt was recorded with"
            ))),
            None => Ok(()),
        }
    }

    /// Prompt rows that come after the span and are run anew.
    fn rows_behind(&self) -> Range<usize> {
        self.span.end..self.prompt.len() - 1
    }

    /// Decode rows that there must be room for.
    fn decode_rows(&self) -> usize {
        let texts = self.answer.as_ref().map_or(0, |answer| answer.max_new_tokens);
        self.continuation.len().max(texts)
    }

    fn check_memory(&self, decoder: &Decoder, layers: usize) -> Result<()> {
        let (config, rows) = (decoder.config(), self.rows_behind().len());
        let (prompt_len, decode_rows) = (self.prompt.len(), self.decode_rows());
        config.check_sequence(prompt_len, decode_rows)?;
        let kept = Policy::full(config.layers).capacity(prompt_len, decode_rows);
        let need = decoder
            .sequence_need(&kept)
            .with_probes(config, prompt_len, self.continuation.len())
            .with_residuals(config, rows.saturating_mul(layers));
        let name = format!("removing a span of {prompt_len} tokens from {layers} layers");
        check_memory(&name, &need, decoder.device()).map_err(|error| match error {
            Error::OutOfMemory { needed, free, sentence } => {
                let sentence = format!("{sentence}; looking at fewer layers keeps less (--layers 0,5,10-20)");
                Error::OutOfMemory { needed, free, sentence }
            }
            other => other,
        })
    }
}

/// A recorded prompt, ready to lose its span.
struct Experiment<'m, 'q> {
    model: &'m Model,
    question: &'q Question<'q>,
    /// The full model's KV of the prompt below the layer last looked at; from there on, KV without the span.
    session: Session,
    /// Residual streams of the prompt rows behind the span at the entrance of each layer looked at, in pieces that follow
    /// each other.
    behind: Vec<Vec<Tensor>>,
    forced: TeacherForced,
}

impl<'m, 'q> Experiment<'m, 'q> {
    fn prepared(
        model: &'m Model,
        question: &'q Question<'q>,
        layers: &[usize],
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Self> {
        let (decoder, prompt) = (&model.decoder, question.prompt);
        let depth = decoder.config().layers;
        let full = Policy::full(depth);
        let mut session = Session::resumable(decoder, full, prompt.len(), question.decode_rows())?;
        let behind = RefCell::new(vec![vec![]; depth]);
        let mut hooks = Hooks::none();
        for &layer in layers {
            let point = HookPoint { layer, site: Site::ResidPre };
            keep_rows(&mut hooks, point, question.rows_behind(), &behind, layer);
        }
        session.prefill(prompt, &mut hooks, interrupt, progress)?;
        drop(hooks);
        let forced = teacher_forced(decoder, &mut session, prompt, question.continuation)?;
        session.truncate(prompt.len() - 1)?;
        Ok(Self { model, question, session, behind: behind.into_inner(), forced })
    }

    /// The span removed from a layer on; layers must come in descending order.
    fn removed_from(&mut self, layer: usize, interrupt: &Interrupt) -> Result<SpanRow> {
        if layer == self.model.decoder.config().layers {
            let distributions = &self.forced.distributions;
            let argmax: Vec<u32> =
                (0..distributions.steps()).map(|step| distributions.argmax(step)).collect();
            let found = self.found(&argmax, interrupt)?;
            let masses = SpanMasses::UNDEFINED;
            return Ok(SpanRow { layer, divergence: Divergence::ZERO, decode_mass: f64::NAN, masses, found });
        }
        let mut without = vec![];
        let x = self.rerun(layer, &mut without, interrupt)?;
        let compared = self.forced.distributions.compare(&self.model.decoder, &x)?;
        let argmax: Vec<u32> = compared.iter().map(|step| step.argmax).collect();
        Ok(SpanRow {
            layer,
            divergence: StepComparison::mean(&compared),
            decode_mass: self.span_mass(layer, self.question.span.start),
            masses: self.masses(layer, &without),
            found: self.found(&argmax, interrupt)?,
        })
    }

    /// Final residual stream `[N, d]` of the decode rows where the span is removed from a layer on: what comes after the span runs
    /// anew from there; their attention in the layers from there on is left in `statistics`. The session is left without decode
    /// rows.
    fn rerun(
        &mut self,
        layer: usize,
        statistics: &mut Vec<LayerStatistics>,
        interrupt: &Interrupt,
    ) -> Result<Tensor> {
        let boundary = self.question.prompt.len() - 1;
        self.session.forget(layer, self.question.span.start)?;
        let mut first = self.question.span.end;
        // As the prefill ran them: in its chunks and its arithmetic.
        for x in std::mem::take(&mut self.behind[layer]) {
            check_interrupt(interrupt)?;
            self.session.resume(layer, &x, first, ComputeType::Bf16)?;
            first += x.rows();
        }
        check_interrupt(interrupt)?;
        let x = self.session.resume_with_statistics(
            layer,
            &self.forced.residuals[layer],
            boundary,
            statistics,
        )?;
        self.session.truncate(boundary)?;
        Ok(x)
    }

    /// Where attention goes in the layers from one on, with the span and without it.
    fn masses(&self, layer: usize, without: &[LayerStatistics]) -> SpanMasses {
        let full = &self.forced.statistics[layer..];
        let layers = layer..layer + full.len();
        // Position 0 is no part of the prompt's mass.
        let span = mean(layers.map(|layer| self.span_mass(layer, self.question.span.start.max(1))));
        SpanMasses {
            span_full: span,
            rest_full: mean_mass(full, Segment::Prompt) - span,
            bos_after: mean_mass(without, Segment::Bos),
            rest_after: mean_mass(without, Segment::Prompt),
            decode_after: mean_mass(without, Segment::Decode),
        }
    }

    /// Share of the decode queries' attention on the span, from a position on, at a layer of the full model, mean over heads and
    /// steps.
    fn span_mass(&self, layer: usize, first: usize) -> f64 {
        let received = &self.forced.statistics[layer].received.sum[first..self.question.span.end.max(first)];
        let queries = self.model.decoder.config().heads * self.question.continuation.len();
        received.iter().map(|&sum| f64::from(sum)).sum::<f64>() / queries as f64
    }

    /// Whether the greedy text of the session as it stands contains the answer, if one is looked for; `argmax` are the most
    /// likely tokens along the continuation.
    fn found(&mut self, argmax: &[u32], interrupt: &Interrupt) -> Result<Option<bool>> {
        let Some(answer) = &self.question.answer else { return Ok(None) };
        let answered = Answered { tokenizer: &self.model.tokenizer, answer };
        if let Some(found) = answered.along(self.question.continuation, argmax)? {
            return Ok(Some(found));
        }
        let boundary = self.question.prompt.len() - 1;
        let found = answered.generated(&mut self.session, self.question.prompt[boundary], interrupt)?;
        self.session.truncate(boundary)?;
        Ok(Some(found))
    }
}

/// Mass on a segment, mean over layers, heads and rows.
fn mean_mass(layers: &[LayerStatistics], segment: Segment) -> f64 {
    let rows = layers.iter().flat_map(|layer| &layer.rows.mass);
    mean(rows.map(|mass| f64::from(mass[segment as usize])))
}
