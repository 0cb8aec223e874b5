//! Steps of training, and measurements.

use crate::checkpoint::Checkpoint;
use crate::data::{Item, Under};
use crate::loss::{Objective, RowLoss};
use crate::settings::Settings;
use layerscope_engine::training::{
    BackwardWeights, Dropout, Tape, TrainingSequence, backward, forward, unembed_backward,
};
use layerscope_engine::{
    Adapter, AdapterRows, ComputeType, Decoder, Error, HeldOutFigures, Hooks, Result, Tensor, Visibility,
};
use ndarray::Array2;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Instant;

/// Steps over which the learning rate rises, at most.
const WARM_UP: usize = 20;
const SECONDS: f64 = 60.0;

/// Trains an adapter beside the weights of a model.
pub(crate) struct Trainer<'a> {
    pub(crate) base: &'a Decoder,
    pub(crate) transposed: BackwardWeights,
    /// Of the policy that is trained for.
    pub(crate) visibility: Visibility,
    /// Whether the policy is a cutoff, and nothing else.
    pub(crate) is_cutoff: bool,
    /// Whether cutoffs between the policy's and full depth are others of its kind.
    pub(crate) has_cutoffs_above: bool,
    pub(crate) objective: Objective,
    pub(crate) compute: ComputeType,
    pub(crate) rows: AdapterRows,
    pub(crate) state: Checkpoint,
}

/// A batch that has run forward.
struct Ran {
    batch: Vec<TrainingSequence>,
    tape: Tape,
    /// Rows of the tape's last residual stream that are decode rows, and that stream.
    decode: Vec<u32>,
    last: Tensor,
    /// Logits of the full model and of the adapted one, `[rows, V]`.
    teacher: Vec<f32>,
    student: Vec<f32>,
    /// What each decode row yields in the continuation.
    tokens: Vec<u32>,
}

impl Trainer<'_> {
    pub(crate) fn adapter(&self) -> Result<Adapter> {
        Adapter::new(self.rows, self.state.matrices.clone(), self.base.config())
    }

    /// How much of the training is done, 0 to 1.
    pub(crate) fn done(&self, settings: &Settings) -> f64 {
        let progress = &self.state.progress;
        let of_steps = progress.step as f64 / settings.steps.max(1) as f64;
        let of_time = settings.minutes.map_or(0.0, |minutes| progress.seconds / (minutes * SECONDS));
        of_steps.max(of_time).min(1.0)
    }

    /// Rises over the first steps, then falls as half a cosine.
    fn learning_rate(&self, settings: &Settings) -> f64 {
        let warm_up = WARM_UP.min(settings.steps / 5).max(1);
        let rise = ((self.state.progress.step + 1) as f64 / warm_up as f64).min(1.0);
        settings.learning_rate * rise * 0.5 * (1.0 + (std::f64::consts::PI * self.done(settings)).cos())
    }

    /// What a step runs under: the policy, or a cutoff above its own.
    fn under(&self, settings: &Settings, step: usize) -> Under {
        let (cutoff, layers) = (self.visibility.cutoff, self.base.config().layers);
        let mut random = ChaCha8Rng::seed_from_u64(settings.seed.wrapping_add(1));
        random.set_stream(step as u64 + 1);
        match random.random::<f64>() < settings.other_cutoffs {
            true if !self.has_cutoffs_above => Under::Cutoff(layers),
            true => Under::Cutoff(random.random_range(cutoff + 1..=layers)),
            false => Under::Policy,
        }
    }

    fn visibility(&self, under: Under) -> Visibility {
        match under {
            Under::Policy => self.visibility.clone(),
            Under::Cutoff(cutoff) => Visibility { cutoff, ..self.visibility.clone() },
        }
    }

    fn forward(&self, adapted: &Decoder, items: &[&Item], under: Under) -> Result<Ran> {
        let batch = items.iter().map(|item| item.sequence(under)).collect::<Result<Vec<_>>>()?;
        let visibility = self.visibility(under);
        let tape = forward(adapted, &batch, &visibility, self.compute)?;
        let mut decode = vec![];
        let mut first = 0;
        for sequence in &batch {
            let goes_on = |position: &usize| visibility.goes_on(*position, sequence.prompt_len);
            let rows: Vec<usize> = sequence.positions().filter(goes_on).collect();
            let is_decode = |row: &usize| rows[*row] + 1 >= sequence.prompt_len;
            decode.extend((0..rows.len()).filter(is_decode).map(|row| (first + row) as u32));
            first += rows.len();
        }
        let last = tape.last().select(&decode)?;
        let positions: Vec<usize> = decode.iter().map(|&row| tape.last_positions()[row as usize]).collect();
        let logits =
            |x: &Tensor| self.base.unembed(x, &positions, &mut Hooks::none(), self.compute)?.to_vec();
        let teacher = Tensor::cat(&items.iter().map(|item| &item.teacher).collect::<Vec<_>>())?;
        let tokens = items.iter().flat_map(|item| &item.continuation).copied().collect();
        Ok(Ran { batch, decode, teacher: logits(&teacher)?, student: logits(&last)?, last, tape, tokens })
    }

    /// One step; the mean loss over its rows.
    pub(crate) fn step(&mut self, items: &[Item], settings: &Settings) -> Result<f64> {
        let start = Instant::now();
        let step = self.state.progress.step;
        let items = batch_of(items, settings, step);
        let under = self.under(settings, step);
        let adapter = self.adapter()?;
        let dropout = Dropout { rate: settings.dropout, seed: settings.seed ^ ((step as u64) << 32) };
        let dropout = Some(dropout).filter(|dropout| dropout.rate > 0.0);
        let adapted = self.base.in_training(&adapter, dropout)?;
        let Ran { batch, tape, decode, last, teacher, student, tokens } =
            self.forward(&adapted, &items, under)?;
        let mut gradient = student.clone();
        let losses = self.objective.gradient(&teacher, &mut gradient, &tokens);
        drop(teacher);
        let by_row = unembed_backward(&adapted, &self.transposed, &last, &student, gradient)?;
        let mut dlast = Array2::zeros((tape.last_positions().len(), by_row.ncols()));
        for (row, gradient) in decode.iter().zip(by_row.outer_iter()) {
            dlast.row_mut(*row as usize).assign(&gradient);
        }
        let visibility = self.visibility(under);
        let of = (batch.as_slice(), &visibility);
        let gradients = backward(&adapted, &self.transposed, &adapter, of, &tape, dlast)?;
        let loss = losses.iter().map(|row| self.objective.of(row)).sum::<f64>() / losses.len().max(1) as f64;
        if !loss.is_finite() {
            return Err(Error::failure(format!(
                "the loss is not finite at step {}; lower --learning-rate",
                step + 1
            )));
        }
        let rate = self.learning_rate(settings);
        self.state.optimizer.step(&mut self.state.matrices, &gradients, rate as f32);
        let progress = &mut self.state.progress;
        progress.step += 1;
        progress.tokens += tokens.len();
        progress.rows += batch.iter().map(|sequence| sequence.tokens.len()).sum::<usize>();
        progress.seconds += start.elapsed().as_secs_f64();
        Ok(loss)
    }

    /// Mean KL of items at some cutoffs, `(cutoff, nats)`, ascending, of which `own` is at the policy's, if it is a cutoff: at that
    /// alone, and at full depth, where other anchors' keys and values differ from cutoff to cutoff.
    pub(crate) fn frontier(
        &self,
        items: &[Item],
        own: &HeldOutFigures,
        batch: usize,
    ) -> Result<Vec<(usize, f64)>> {
        let (cutoff, layers) = (self.visibility.cutoff, self.base.config().layers);
        let cutoffs = match self.has_cutoffs_above {
            true => shown_cutoffs(cutoff, layers),
            false if self.is_cutoff => vec![cutoff, layers],
            false => vec![layers],
        };
        let of = |other: usize| match other == cutoff && self.is_cutoff {
            true => Ok((other, own.kl)),
            false => Ok((other, self.evaluate(items, Under::Cutoff(other), batch)?.kl)),
        };
        cutoffs.into_iter().map(of).collect()
    }

    /// Runs items, so many at a time.
    pub(crate) fn evaluate(&self, items: &[Item], under: Under, batch: usize) -> Result<HeldOutFigures> {
        let adapted = self.base.with_adapter(&self.adapter()?)?;
        let (mut rows, mut answers): (Vec<RowLoss>, Vec<bool>) = (vec![], vec![]);
        for items in items.chunks(batch) {
            let items: Vec<&Item> = items.iter().collect();
            let Ran { teacher, mut student, tokens, .. } = self.forward(&adapted, &items, under)?;
            let losses = self.objective.gradient(&teacher, &mut student, &tokens);
            let mut of_items = losses.as_slice();
            for item in items {
                let (of_item, others) = of_items.split_at(item.continuation.len());
                of_items = others;
                answers.extend(item.answer_len.map(|len| of_item[..len].iter().all(|row| row.is_token)));
            }
            rows.extend(losses);
        }
        let share = |of: &mut dyn Iterator<Item = bool>, count: usize| {
            of.filter(|is| *is).count() as f64 / count.max(1) as f64
        };
        Ok(HeldOutFigures {
            kl: rows.iter().map(|row| row.kl).sum::<f64>() / rows.len().max(1) as f64,
            top1: share(&mut rows.iter().map(|row| row.same_top), rows.len()),
            answers: (!answers.is_empty()).then(|| share(&mut answers.iter().copied(), answers.len())),
        })
    }
}

/// Cutoffs of a frontier that is shown while training goes on: few, since each is a pass over the prompts.
const SHOWN_CUTOFFS: usize = 8;

/// About [`SHOWN_CUTOFFS`] cutoffs from halfway below the policy's to full depth, the policy's among them; ascending.
fn shown_cutoffs(cutoff: usize, layers: usize) -> Vec<usize> {
    let lowest = cutoff.div_ceil(2);
    let step = (layers - lowest).div_ceil(SHOWN_CUTOFFS).max(1);
    let mut cutoffs: Vec<usize> = (lowest..=layers).rev().step_by(step).chain([cutoff]).collect();
    cutoffs.sort_unstable();
    cutoffs.dedup();
    cutoffs
}

/// The prompts of a step: each epoch has an order of its own.
fn batch_of<'a>(items: &'a [Item], settings: &Settings, step: usize) -> Vec<&'a Item> {
    let in_epoch = items.len().div_ceil(settings.batch);
    let (epoch, index) = (step / in_epoch, step % in_epoch);
    let mut order: Vec<&Item> = items.iter().collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(
        settings.seed ^ (epoch as u64 + 1).wrapping_mul(0x9e37_79b9),
    ));
    order.into_iter().skip(index * settings.batch).take(settings.batch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_cutoffs_are_few_and_have_the_policys() {
        assert_eq!(shown_cutoffs(22, 30), [12, 15, 18, 21, 22, 24, 27, 30]);
        assert_eq!(shown_cutoffs(5, 8), [3, 4, 5, 6, 7, 8]);
        assert_eq!(shown_cutoffs(1, 1), [1]);
        for layers in 1..100 {
            for cutoff in 1..=layers {
                let cutoffs = shown_cutoffs(cutoff, layers);
                assert!(cutoffs.contains(&cutoff) && cutoffs.ends_with(&[layers]), "{cutoff} of {layers}");
                assert!(cutoffs.len() <= SHOWN_CUTOFFS + 2, "{cutoffs:?}");
            }
        }
    }
}
