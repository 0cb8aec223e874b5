//! The training loop.

use crate::checkpoint::{Checkpoint, Measured, Progress};
use crate::continuations::Continuations;
use crate::data::{Item, Preparation, Under};
use crate::loss::Objective;
use crate::optimizer::AdamW;
use crate::settings::Settings;
use crate::spill::Spill;
use crate::trainer::Trainer;
use layerscope_diagnostics::prompts::{Prompt, PromptFile};
use layerscope_engine::training::BackwardWeights;
use layerscope_engine::{
    AdapterInfo, AdapterRows, AdapterTraining, Anchors, ComputeType, Error, ErrorKind, HeldOutFigures,
    Interrupt, LowRank, Model, Policy, Result, Target, Visibility, WeightsPrecision, available_memory,
    check_interrupt, readable_bytes,
};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// Memory that is left for training itself, bytes.
const SPARE_BYTES: u64 = 512 << 20;
/// Seconds between checkpoints, at most; each measurement on held-out prompts makes one as well.
const CHECKPOINT_S: f64 = 60.0;

/// What happens.
#[derive(Debug, Clone)]
pub enum Event<'a> {
    /// Prompts are about to be run through the full model.
    Preparing {
        /// Bytes of their keys and values and of the full model's last residual streams, at most.
        bytes: u64,
        /// So many of them stay in memory; the rest goes to a file.
        most: u64,
        /// Bytes of the weights' transposed copies.
        transposed: usize,
    },
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
        /// Bytes in memory of the prompts' keys and values, and of transposed weights.
        bytes: usize,
        /// Prompts whose keys and values are in a file.
        in_file: usize,
        /// Steps that an earlier run has done.
        resumed: usize,
    },
    /// A step is done.
    Step {
        /// Its number, from 1 on.
        step: usize,
        /// Its loss, nats.
        loss: f64,
        /// How much of the training is done, 0 to 1.
        done: f64,
    },
    /// Held-out prompts were measured, by this run or by an earlier one that it goes on from.
    Evaluated {
        /// After so many steps.
        step: usize,
        /// What was measured.
        figures: HeldOutFigures,
        /// Mean KL at some cutoffs, `(cutoff, nats)`, ascending; empty unless asked for.
        frontier: Vec<(usize, f64)>,
    },
}

/// What training did.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What it took, and what it changed.
    pub training: AdapterTraining,
    /// Held-out figures, from those without the adapter on.
    pub measured: Vec<Measured>,
    /// Ids of the prompts that were held out.
    pub held_out: Vec<String>,
    /// Whether it was interrupted.
    pub interrupted: bool,
}

/// Trains an adapter and writes it into a folder. A folder with an unfinished training of the same settings goes on.
///
/// # Errors
/// [`Error::Input`] where no adapter is trained for the policy, prompts do not suffice or the folder has another training;
/// [`Error::Failure`] where the folder cannot be written. An interrupt ends training early; what is done is kept.
pub fn adapt(
    model: &Model,
    prompts: &PromptFile,
    settings: &Settings,
    folder: &Path,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(Event<'_>),
) -> Result<Outcome> {
    let visibility = visibility(settings, model)?;
    let layers = model.config().layers;
    std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    let compute = match model.precision {
        WeightsPrecision::F32 => ComputeType::F32,
        WeightsPrecision::Native => ComputeType::Bf16,
    };
    let matrices = initial(model, settings);
    check_room(&matrices)?;
    let transposed = BackwardWeights::new(&model.decoder, compute)?;
    let preparation = Preparation {
        model,
        policy: &settings.policy,
        visibility: &visibility,
        rows: settings.rows,
        compute,
        continued: settings.continued,
        max_new_tokens: settings.max_new_tokens,
        interrupt,
    };
    let most = settings.prompt_memory.or_else(|| Some(available_memory()? / 2)).unwrap_or(u64::MAX);
    let bytes = preparation.expected_bytes(&prompts.prompts);
    observe(Event::Preparing { bytes, most, transposed: transposed.bytes() });
    let Prepared { trained, held_out, in_file } =
        prepare(&preparation, prompts, settings, most, folder, observe)?;
    let is_cutoff = visibility.cutoff < layers && !settings.policy.evicts_before_decode();
    let mut trainer = Trainer {
        base: &model.decoder,
        transposed,
        objective: Objective { sft: settings.sft as f32 },
        compute,
        rows: settings.rows,
        state: Checkpoint {
            matrices,
            optimizer: AdamW::default(),
            progress: Progress::of(format!(
                "{} {} {} {:?}",
                settings.identity(),
                model.sha256(),
                prompts.sha256,
                model.precision
            )),
        },
        is_cutoff,
        has_cutoffs_above: is_cutoff && visibility.anchors.are_bos_alone(),
        visibility,
    };
    trainer.state.resume(folder)?;
    let bytes = trained.iter().chain(&held_out).map(Item::bytes).sum::<usize>() + trainer.transposed.bytes();
    let resumed = trainer.state.progress.step;
    let (of_trained, of_held_out) = (trained.len(), held_out.len());
    observe(Event::Started { trained: of_trained, held_out: of_held_out, bytes, in_file, resumed });
    let before = match trainer.state.progress.measured.first() {
        Some(measured) => measured.figures,
        None => {
            let figures = trainer.evaluate(&held_out, Under::Policy, settings.batch)?;
            trainer.state.progress.measured.push(Measured { step: 0, seconds: 0.0, figures });
            figures
        }
    };
    let frontier = |trainer: &Trainer<'_>, figures: &HeldOutFigures| match settings.with_frontier {
        true => trainer.frontier(&held_out, figures, settings.batch),
        false => Ok(vec![]),
    };
    // With those that an earlier run measured; cutoffs can be measured of the present matrices alone.
    for Measured { step, figures, .. } in trainer.state.progress.measured.clone() {
        let frontier = if step == resumed { frontier(&trainer, &figures)? } else { vec![] };
        observe(Event::Evaluated { step, figures, frontier });
    }
    let (mut after, mut checkpointed, mut interrupted) = (None, Instant::now(), false);
    while trainer.done(settings) < 1.0 {
        if check_interrupt(interrupt).is_err() {
            interrupted = true;
            break;
        }
        let loss = trainer.step(&trained, settings)?;
        let (step, done) = (trainer.state.progress.step, trainer.done(settings));
        observe(Event::Step { step, loss, done });
        after = None;
        let mut is_due = checkpointed.elapsed().as_secs_f64() > CHECKPOINT_S;
        if done >= 1.0 || step.is_multiple_of(settings.evaluate_every) {
            let figures = trainer.evaluate(&held_out, Under::Policy, settings.batch)?;
            let seconds = trainer.state.progress.seconds;
            trainer.state.progress.measured.push(Measured { step, seconds, figures });
            observe(Event::Evaluated { step, figures, frontier: frontier(&trainer, &figures)? });
            after = Some(figures);
            is_due = true;
            if settings.target_kl.is_some_and(|target| figures.kl <= target) {
                break;
            }
        }
        if is_due {
            trainer.state.write(folder)?;
            checkpointed = Instant::now();
        }
    }
    trainer.state.write(folder)?;
    let after = match after {
        Some(after) => after,
        None => trainer.evaluate(&held_out, Under::Policy, settings.batch)?,
    };
    let full_depth = match interrupted {
        true => None,
        false => Some(trainer.evaluate(&held_out, Under::Cutoff(layers), settings.batch)?),
    };
    let Progress { step: steps, tokens, rows, seconds, ref measured, .. } = trainer.state.progress;
    let measured = measured.clone();
    let training = AdapterTraining {
        steps,
        tokens,
        rows,
        seconds,
        prompts: of_trained,
        held_out: of_held_out,
        before,
        after,
        full_depth,
    };
    let info = AdapterInfo {
        rows: settings.rows,
        policy: settings.policy.to_string(),
        model: model.name.clone(),
        model_sha256: model.sha256().to_owned(),
        prompts: prompts.name.clone(),
        prompts_sha256: prompts.sha256.clone(),
        layerscope: env!("CARGO_PKG_VERSION").to_owned(),
        training: Some(training.clone()),
    };
    trainer.adapter()?.write(folder, &info, model.config())?;
    let held_out = held_out.into_iter().map(|item| item.id).collect();
    Ok(Outcome { training, measured, held_out, interrupted })
}

/// What rows read under the policy; full depth is one to learn answers under, as a measure for others.
fn visibility(settings: &Settings, model: &Model) -> Result<Visibility> {
    let (policy, layers) = (&settings.policy, model.config().layers);
    let is_full = *policy == Policy::full(layers);
    if is_full && settings.sft > 0.0 {
        return Ok(Visibility { cutoff: layers, anchors: Anchors::none(), self_only: false });
    }
    let evicts = policy.evicts_before_decode();
    if evicts && settings.rows == AdapterRows::All {
        return Err(Error::input(format!(
            "an adapter for {policy} is one of decode rows; use --rows decode"
        )));
    }
    policy.rows_by_cutoff().filter(|visibility| evicts || visibility.cutoff < layers).ok_or_else(|| {
        let instead = if is_full { ", or --sft 1 to learn answers at full depth" } else { "" };
        Error::input(format!(
            "no adapter can be trained for {policy}; give a cutoff such as speed:{}+bos, or a set of KV heads such as \
             keep:0-{}+bos{instead}",
            layers * 3 / 4,
            layers / 2
        ))
    })
}

/// Prompts that were run through the full model.
struct Prepared {
    trained: Vec<Item>,
    held_out: Vec<Item>,
    /// Those whose keys and values are in a file.
    in_file: usize,
}

/// Runs prompts through the full model, in a random order; at most so many bytes stay in memory.
fn prepare(
    preparation: &Preparation<'_>,
    prompts: &PromptFile,
    settings: &Settings,
    most: u64,
    folder: &Path,
    observe: &mut dyn FnMut(Event<'_>),
) -> Result<Prepared> {
    let mut order: Vec<&Prompt> = prompts.prompts.iter().collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(settings.seed));
    let (all, model) = (order.len(), preparation.model);
    let of = format!("{} {} {}", model.sha256(), prompts.sha256, settings.max_new_tokens);
    let mut known = Continuations::read(folder, of)?;
    let (mut items, mut bytes, mut in_file, mut spill) = (vec![], 0, 0, None);
    let mut written = Instant::now();
    for (done, prompt) in order.into_iter().enumerate() {
        match preparation.item(prompt, known.of(&prompt.id)) {
            Ok(mut item) => {
                known.add(&item);
                if written.elapsed().as_secs_f64() > CHECKPOINT_S {
                    known.write(folder)?;
                    written = Instant::now();
                }
                if bytes + item.bytes() as u64 > most {
                    let spill = match &spill {
                        Some(spill) => spill,
                        None => spill.insert(Spill::new(folder)?),
                    };
                    item.spill(spill)?;
                    in_file += 1;
                }
                bytes += item.bytes() as u64;
                if let Err(error) = check_memory(items.len(), bytes) {
                    known.write(folder)?;
                    return Err(error);
                }
                items.push(item);
            }
            Err(error) if error.kind() == ErrorKind::Input => {
                observe(Event::LeftOut { id: &prompt.id, reason: error.to_string() });
            }
            Err(error) => {
                known.write(folder)?;
                return Err(error);
            }
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
    Ok(Prepared { trained, held_out: items, in_file })
}

/// Of prompt rows that are trained, residual streams stay in memory.
fn check_memory(prompts: usize, bytes: u64) -> Result<()> {
    let size = readable_bytes(bytes as f64);
    let mend = "give --prompt-memory, or fewer or shorter prompts";
    check_free(SPARE_BYTES, &format!("{prompts} prompts take {size} of memory"), mend)
}

/// Two moments, gradients and a copy in the decoder come with what is trained.
fn check_room(matrices: &BTreeMap<(usize, Target), LowRank>) -> Result<()> {
    let elements: usize = matrices.values().map(|matrix| matrix.a.len() + matrix.b.len()).sum();
    let need = (elements * size_of::<f32>() * 4) as u64;
    let what = format!("training {elements} elements takes {} more of memory", readable_bytes(need as f64));
    check_free(need, &what, "give a lower --rank, or fewer --targets")
}

fn check_free(need: u64, what: &str, mend: &str) -> Result<()> {
    match available_memory() {
        Some(free) if free < need => {
            Err(Error::input(format!("{what}, and {} are left; {mend}", readable_bytes(free as f64))))
        }
        _ => Ok(()),
    }
}

/// A is uniform within ±1/√in, B is zero: as PEFT begins. Additions of full rank are zero.
fn initial(model: &Model, settings: &Settings) -> BTreeMap<(usize, Target), LowRank> {
    let mut random = ChaCha8Rng::seed_from_u64(settings.seed);
    let config = model.config();
    let mut matrices = BTreeMap::new();
    for layer in 0..config.layers {
        for &target in &settings.targets {
            let Some(shape @ [out, columns]) = target.shape(config) else { continue };
            let Some(rank) = settings.rank else {
                matrices.insert((layer, target), LowRank::of_full_rank(shape));
                continue;
            };
            let divisor = if settings.rank_stabilised { (rank as f64).sqrt() } else { rank as f64 };
            let bound = 1.0 / (columns as f32).sqrt();
            let a = (0..rank * columns).map(|_| bound * (2.0 * random.random::<f32>() - 1.0)).collect();
            let scale = (settings.alpha / divisor) as f32;
            matrices.insert((layer, target), LowRank { a, b: vec![0.0; out * rank], rank, scale });
        }
    }
    matrices
}
