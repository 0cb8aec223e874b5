//! The next token after the last position: logit difference and KL from the clean run.

use super::runs::Runs;
use super::{PatchMetric, PatchQuestion, PatchToken};
use layerscope_diagnostics::patching::{PatchFigures, PatchedPrompt};
use layerscope_diagnostics::reference_distributions::map_logits;
use layerscope_engine::{Decoder, Error, Result, Tensor};
use layerscope_kernels::distribution::Distribution;

/// What cells are measured by.
pub(super) struct Measure {
    pub(super) metric: PatchMetric,
    pub(super) answer: u32,
    pub(super) wrong: u32,
    /// The clean run's distribution.
    clean: Distribution,
    /// Most likely next tokens of the clean and of the corrupted run.
    next: [u32; 2],
    /// Figures of both.
    figures: [PatchFigures; 2],
}

impl Measure {
    /// # Errors
    /// [`Error::UndefinedLogits`]; [`Error::Input`] where the logit difference is asked for and both answers are the same token.
    pub(super) fn new(question: &PatchQuestion<'_>, runs: &Runs) -> Result<Self> {
        let [clean, corrupted] = &runs.logits;
        let [of_clean, of_corrupted] = [clean, corrupted].map(|logits| Distribution::new(logits));
        if !of_clean.is_defined() || !of_corrupted.is_defined() {
            return Err(Error::UNDEFINED_LOGITS);
        }
        let next = [&of_clean, &of_corrupted].map(|distribution| distribution.argmax() as u32);
        let (answer, wrong) = (question.answer.unwrap_or(next[0]), question.wrong.unwrap_or(next[1]));
        let given = question.answer.is_some() || question.wrong.is_some();
        let default = if given { PatchMetric::LogitDiff } else { PatchMetric::Kl };
        let metric = question.metric.unwrap_or(default);
        if metric == PatchMetric::LogitDiff && answer == wrong {
            return Err(Error::input(
                "the answer and the wrong answer are the same token, so their logit difference is always 0; give two with --answer \
                 and --wrong, or take --metric kl",
            ));
        }
        let mut measure = Self {
            metric,
            answer,
            wrong,
            clean: of_clean,
            next,
            figures: [PatchFigures { logit_diff: 0.0, kl: 0.0 }; 2],
        };
        measure.figures =
            [PatchFigures { kl: 0.0, ..measure.figures_of(clean) }, measure.figures_of(corrupted)];
        Ok(measure)
    }

    /// Figures of logits `[V]`; NaN where a logit is not finite.
    fn figures_of(&self, logits: &[f32]) -> PatchFigures {
        let logit = |token: u32| f64::from(logits[token as usize]);
        let kl = self.clean.compare(logits).kl;
        match kl.is_finite() {
            true => PatchFigures { logit_diff: logit(self.answer) - logit(self.wrong), kl },
            false => PatchFigures { logit_diff: f64::NAN, kl: f64::NAN },
        }
    }

    /// Figures of final residual streams `[cells, d]`.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub(super) fn of_streams(&self, decoder: &Decoder, x: &Tensor) -> Result<Vec<PatchFigures>> {
        map_logits(decoder, x, |_, logits| self.figures_of(logits))
    }

    /// Figures of the clean and of the corrupted run.
    pub(super) fn unpatched(&self) -> [PatchFigures; 2] {
        self.figures
    }

    /// Both prompts with what they give without a patch.
    pub(super) fn prompts(
        &self,
        question: &PatchQuestion<'_>,
        token: &dyn Fn(u32) -> PatchToken,
    ) -> [PatchedPrompt; 2] {
        let prompt = |id: &str, tokens: &[u32], of: usize| PatchedPrompt {
            id: id.to_owned(),
            tokens: tokens.iter().copied().map(token).collect(),
            next: token(self.next[of]),
            figures: self.figures[of],
        };
        [prompt("clean", question.clean, 0), prompt("corrupted", question.corrupted, 1)]
    }
}
