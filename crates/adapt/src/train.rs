//! The training loop.

use crate::checkpoint::Checkpoint;
use crate::continuations::Continuations;
use crate::data::{Item, prepare};
use crate::loss::{Figures, Objective, RowLoss};
use crate::optimizer::AdamW;
use layerscope_diagnostics::prompts::{Prompt, PromptFile};
use layerscope_engine::training::{
    BackwardWeights, Tape, TrainingSequence, backward, forward, unembed_backward,
};
use layerscope_engine::{
    Adapter, AdapterInfo, AdapterRows, ComputeType, Decoder, Error, ErrorKind, Hooks, Interrupt, LowRank,
    Model, Policy, Result, Target, Tensor, Visibility, available_memory, check_interrupt, readable_bytes,
};
use ndarray::Array2;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// Steps over which the learning rate rises, at most.
const WARM_UP: usize = 20;
/// Memory that is left for training itself, bytes.
const SPARE_BYTES: u64 = 512 << 20;
/// Seconds between checkpoints.
const CHECKPOINT_S: f64 = 60.0;

/// How to train.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The policy to train under; it has a cutoff.
    pub policy: Policy,
    /// The rows that the adapter acts on.
    pub rows: AdapterRows,
    /// Rank r.
    pub rank: usize,
    /// α; the adapter's factor is α/r, or α/√r.
    pub alpha: f64,
    /// Whether the factor is α/√r (Kalajdzievski 2023).
    pub rank_stabilised: bool,
    /// Matrices that get an addition.
    pub targets: Vec<Target>,
    /// Highest learning rate; it rises for a few steps, then falls as half a cosine.
    pub learning_rate: f64,
    /// Steps.
    pub steps: usize,
    /// Prompts in a step.
    pub batch: usize,
    /// Decode rows of a prompt.
    pub max_new_tokens: usize,
    /// Share of the prompts that are held out.
    pub held_out: f64,
    /// Steps between evaluations on held-out prompts.
    pub evaluate_every: usize,
    /// Held-out KL at which training ends, nats.
    pub target_kl: Option<f64>,
    /// Weight of the cross-entropy of the continuations, 0 to 1; the rest is KL's.
    pub sft: f64,
    /// Seed of the adapter, of the order and of what is held out.
    pub seed: u64,
}

/// What happens.
#[derive(Debug, Clone)]
pub enum Event<'a> {
    /// Prompts have been run through the full model.
    Prepared {
        /// So many,
        done: usize,
        /// of so many.
        all: usize,
    },
    /// A prompt cannot be used.
    LeftOut {
        /// Its id.
        id: &'a str,
        /// Why.
        reason: String,
    },
    /// Training begins, or goes on.
    Started {
        /// Prompts to train on.
        trained: usize,
        /// Prompts held out.
        held_out: usize,
        /// Bytes of the prompts' keys and values, and of transposed weights.
        bytes: usize,
        /// Steps that an earlier run has done.
        resumed: usize,
    },
    /// A step is done.
    Step {
        /// Its number, from 1 on.
        step: usize,
        /// Its loss, nats.
        loss: f64,
    },
    /// Held-out prompts were measured.
    Evaluated {
        /// After so many steps.
        step: usize,
        /// What was measured.
        figures: Figures,
    },
}

/// What training did.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Steps that were made.
    pub steps: usize,
    /// Decode rows that were trained on.
    pub tokens: usize,
    /// Seconds of training, without preparing the prompts.
    pub seconds: f64,
    /// Held-out figures without the adapter.
    pub before: Figures,
    /// Held-out figures with it.
    pub after: Figures,
    /// The same at full depth: what the adapter does to the full model. Not measured after an interrupt.
    pub full_depth: Option<Figures>,
    /// Whether it was interrupted.
    pub interrupted: bool,
}

/// How far a training is; goes into its checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Everything that the result depends on.
    pub(crate) settings: String,
    pub(crate) step: usize,
    tokens: usize,
    seconds: f64,
    before: Option<Figures>,
}

/// Trains an adapter and writes it into a folder. A folder with an unfinished training of the same settings goes on.
///
/// # Errors
/// [`Error::Input`] where the policy has no cutoff, prompts do not suffice or the folder has another training; [`Error::Failure`]
/// where the folder cannot be written. An interrupt ends training early; what is done is kept.
pub fn adapt(
    model: &Model,
    prompts: &PromptFile,
    settings: &Settings,
    folder: &Path,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(Event<'_>),
) -> Result<Outcome> {
    let visibility = visibility(settings, model)?;
    std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    let [trained, held_out] = items(model, prompts, settings, &visibility, folder, interrupt, observe)?;
    let compute = match model.precision {
        layerscope_engine::WeightsPrecision::F32 => ComputeType::F32,
        layerscope_engine::WeightsPrecision::Native => ComputeType::Bf16,
    };
    let mut trainer = Trainer {
        base: &model.decoder,
        transposed: BackwardWeights::new(&model.decoder, compute)?,
        visibility,
        objective: Objective { sft: settings.sft as f32 },
        compute,
        rows: settings.rows,
        state: Checkpoint {
            matrices: initial(model, settings),
            optimizer: AdamW::default(),
            progress: Progress {
                settings: format!("{settings:?} {} {} {:?}", model.sha256, prompts.sha256, model.precision),
                step: 0,
                tokens: 0,
                seconds: 0.0,
                before: None,
            },
        },
    };
    trainer.state.resume(folder)?;
    let bytes = trained.iter().chain(&held_out).map(Item::bytes).sum::<usize>() + trainer.transposed.bytes();
    let resumed = trainer.state.progress.step;
    observe(Event::Started { trained: trained.len(), held_out: held_out.len(), bytes, resumed });
    let before = match trainer.state.progress.before {
        Some(before) => before,
        None => trainer.evaluate(&held_out, &trainer.visibility, settings.batch)?,
    };
    trainer.state.progress.before = Some(before);
    observe(Event::Evaluated { step: resumed, figures: before });
    let (mut after, mut checkpointed, mut interrupted) = (None, Instant::now(), false);
    while trainer.state.progress.step < settings.steps {
        if check_interrupt(interrupt).is_err() {
            interrupted = true;
            break;
        }
        let step = trainer.state.progress.step;
        let loss = trainer.step(&batch_of(&trained, settings, step), settings)?;
        let step = step + 1;
        observe(Event::Step { step, loss });
        let is_last = step == settings.steps;
        if is_last || step.is_multiple_of(settings.evaluate_every) {
            let figures = trainer.evaluate(&held_out, &trainer.visibility, settings.batch)?;
            observe(Event::Evaluated { step, figures });
            after = Some(figures);
            if settings.target_kl.is_some_and(|target| figures.kl <= target) {
                break;
            }
        } else {
            after = None;
        }
        if checkpointed.elapsed().as_secs_f64() > CHECKPOINT_S {
            trainer.state.write(folder)?;
            checkpointed = Instant::now();
        }
    }
    trainer.state.write(folder)?;
    let info = AdapterInfo {
        rows: settings.rows,
        policy: settings.policy.to_string(),
        model: model.name.clone(),
        model_sha256: model.sha256.clone(),
        prompts: prompts.name.clone(),
        prompts_sha256: prompts.sha256.clone(),
        layerscope: env!("CARGO_PKG_VERSION").to_owned(),
    };
    trainer.adapter()?.write(folder, &info, model.config())?;
    let after = match after {
        Some(after) => after,
        None => trainer.evaluate(&held_out, &trainer.visibility, settings.batch)?,
    };
    let full = Visibility { cutoff: model.config().layers, ..trainer.visibility.clone() };
    let full_depth = match settings.rows {
        _ if interrupted => None,
        // Their prompts' keys above the cutoff are not kept.
        AdapterRows::Decode => Some(trainer.at_full_depth(model, prompts, &held_out, settings, interrupt)?),
        AdapterRows::All => Some(trainer.evaluate(&held_out, &full, settings.batch)?),
    };
    let Progress { step, tokens, seconds, .. } = trainer.state.progress;
    Ok(Outcome { steps: step, tokens, seconds, before, after, full_depth, interrupted })
}

fn visibility(settings: &Settings, model: &Model) -> Result<Visibility> {
    settings.policy.visibility().filter(|visibility| visibility.cutoff < model.config().layers).ok_or_else(
        || {
            Error::input(format!(
                "policy {} has no cutoff to train for; give one such as speed:{}+bos",
                settings.policy,
                model.config().layers * 3 / 4
            ))
        },
    )
}

/// Prompts to train on, and those held out.
fn items(
    model: &Model,
    prompts: &PromptFile,
    settings: &Settings,
    visibility: &Visibility,
    folder: &Path,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(Event<'_>),
) -> Result<[Vec<Item>; 2]> {
    let mut order: Vec<&Prompt> = prompts.prompts.iter().collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(settings.seed));
    let all = order.len();
    let (mut items, mut bytes) = (vec![], 0);
    let of = format!("{} {} {}", model.sha256, prompts.sha256, settings.max_new_tokens);
    let mut known = Continuations::read(folder, of)?;
    for (done, prompt) in order.into_iter().enumerate() {
        check_interrupt(interrupt)?;
        let (steps, text) = (settings.max_new_tokens, known.of(&prompt.id));
        match prepare(model, prompt, (visibility, settings.rows), steps, text, interrupt) {
            Ok(item) => {
                bytes += item.bytes();
                if let Some(free) =
                    available_memory().filter(|&free| free < item.bytes() as u64 + SPARE_BYTES)
                {
                    return Err(Error::input(format!(
                        "{} of {all} prompts take {} of memory, and {} are left; give fewer or shorter prompts",
                        items.len(),
                        readable_bytes(bytes as f64),
                        readable_bytes(free as f64)
                    )));
                }
                known.add(&item);
                items.push(item);
            }
            Err(error) if error.kind() == ErrorKind::Input => {
                observe(Event::LeftOut { id: &prompt.id, reason: error.to_string() });
            }
            Err(error) => return Err(error),
        }
        observe(Event::Prepared { done: done + 1, all });
    }
    known.write(folder)?;
    let held_out = ((items.len() as f64 * settings.held_out).round() as usize).max(1);
    if items.len() < held_out + 1 {
        return Err(Error::input(format!(
            "{} has {} prompts that can be used; training needs at least two, one of them held out",
            prompts.name,
            items.len()
        )));
    }
    let trained = items.split_off(held_out);
    Ok([trained, items])
}

/// A is uniform within ±1/√in, B is zero: as PEFT begins.
fn initial(model: &Model, settings: &Settings) -> BTreeMap<(usize, Target), LowRank> {
    let mut random = ChaCha8Rng::seed_from_u64(settings.seed);
    let (config, rank) = (model.config(), settings.rank);
    let divisor = if settings.rank_stabilised { (rank as f64).sqrt() } else { rank as f64 };
    let mut matrices = BTreeMap::new();
    for layer in 0..config.layers {
        for &target in &settings.targets {
            let Some([out, columns]) = target.shape(config) else { continue };
            let bound = 1.0 / (columns as f32).sqrt();
            let a = (0..rank * columns).map(|_| bound * (2.0 * random.random::<f32>() - 1.0)).collect();
            let scale = (settings.alpha / divisor) as f32;
            matrices.insert((layer, target), LowRank { a, b: vec![0.0; out * rank], rank, scale });
        }
    }
    matrices
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

struct Trainer<'a> {
    base: &'a Decoder,
    transposed: BackwardWeights,
    visibility: Visibility,
    objective: Objective,
    compute: ComputeType,
    rows: AdapterRows,
    state: Checkpoint,
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
    fn adapter(&self) -> Result<Adapter> {
        Adapter::new(self.rows, self.state.matrices.clone(), self.base.config())
    }

    fn forward(&self, adapted: &Decoder, items: &[&Item], visibility: &Visibility) -> Result<Ran> {
        let batch: Vec<TrainingSequence> = items.iter().map(|item| item.sequence.clone()).collect();
        let tape = forward(adapted, &batch, visibility, self.compute)?;
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
    fn step(&mut self, items: &[&Item], settings: &Settings) -> Result<f64> {
        let start = Instant::now();
        let adapter = self.adapter()?;
        let adapted = self.base.with_adapter(&adapter)?;
        let Ran { batch, tape, decode, last, teacher, student, tokens } =
            self.forward(&adapted, items, &self.visibility)?;
        let mut gradient = student.clone();
        let losses = self.objective.gradient(&teacher, &mut gradient, &tokens);
        drop(teacher);
        let by_row = unembed_backward(&adapted, &self.transposed, &last, &student, gradient)?;
        let mut dlast = Array2::zeros((tape.last_positions().len(), by_row.ncols()));
        for (row, gradient) in decode.iter().zip(by_row.outer_iter()) {
            dlast.row_mut(*row as usize).assign(&gradient);
        }
        let of = (batch.as_slice(), &self.visibility);
        let gradients = backward(&adapted, &self.transposed, &adapter, of, &tape, dlast)?;
        let loss = losses.iter().map(|row| self.objective.of(row)).sum::<f64>() / losses.len().max(1) as f64;
        if !loss.is_finite() {
            return Err(Error::failure(format!(
                "the loss is not finite at step {}; lower --learning-rate",
                self.state.progress.step + 1
            )));
        }
        let rate = learning_rate(settings, self.state.progress.step);
        self.state.optimizer.step(&mut self.state.matrices, &gradients, rate as f32);
        let progress = &mut self.state.progress;
        progress.step += 1;
        progress.tokens += tokens.len();
        progress.seconds += start.elapsed().as_secs_f64();
        Ok(loss)
    }

    fn evaluate(&self, items: &[Item], visibility: &Visibility, batch: usize) -> Result<Figures> {
        let adapted = self.base.with_adapter(&self.adapter()?)?;
        let (mut rows, mut answers): (Vec<RowLoss>, Vec<bool>) = (vec![], vec![]);
        for items in items.chunks(batch) {
            let items: Vec<&Item> = items.iter().collect();
            let Ran { teacher, mut student, tokens, .. } = self.forward(&adapted, &items, visibility)?;
            let losses = self.objective.gradient(&teacher, &mut student, &tokens);
            let mut first = 0;
            for item in items {
                let of_item = &losses[first..first + item.continuation.len()];
                first += item.continuation.len();
                if item.is_answer {
                    answers.push(of_item.iter().all(|row| row.is_token));
                }
            }
            rows.extend(losses);
        }
        let share = |of: &mut dyn Iterator<Item = bool>, count: usize| {
            of.filter(|is| *is).count() as f64 / count.max(1) as f64
        };
        Ok(Figures {
            kl: rows.iter().map(|row| row.kl).sum::<f64>() / rows.len().max(1) as f64,
            top1: share(&mut rows.iter().map(|row| row.same_top), rows.len()),
            answers: (!answers.is_empty()).then(|| share(&mut answers.iter().copied(), answers.len())),
        })
    }

    /// The adapted model at full depth on held-out prompts, whose keys and values are computed anew.
    fn at_full_depth(
        &self,
        model: &Model,
        prompts: &PromptFile,
        held_out: &[Item],
        settings: &Settings,
        interrupt: &Interrupt,
    ) -> Result<Figures> {
        let full = Visibility { cutoff: model.config().layers, ..self.visibility.clone() };
        let wanted = prompts.prompts.iter().filter(|prompt| held_out.iter().any(|item| item.id == prompt.id));
        let items = wanted.map(|prompt| {
            let known =
                held_out.iter().find(|item| item.id == prompt.id).map(|item| item.continuation.as_slice());
            prepare(model, prompt, (&full, self.rows), settings.max_new_tokens, known, interrupt)
        });
        let items = items.collect::<Result<Vec<_>>>()?;
        self.evaluate(&items, &full, settings.batch)
    }
}

/// Rises over the first steps, then falls as half a cosine.
fn learning_rate(settings: &Settings, step: usize) -> f64 {
    let warm_up = WARM_UP.min(settings.steps / 5).max(1);
    let rise = ((step + 1) as f64 / warm_up as f64).min(1.0);
    let done = step as f64 / settings.steps.max(1) as f64;
    settings.learning_rate * rise * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
}
