//! Runs one prompt for recording: prefill, continuation, and one teacher-forced pass with all probes.
//!
//! Statistics are from the teacher-forced pass over the N decode rows, not from the generating steps. Keys
//! and values are the same, but each layer needs one product instead of N, and the arithmetic is f32 for any
//! weights.

use crate::curvature::Curvature;
use crate::reads::{self, RowReads};
use crate::record::{AttentionFigures, LensFigures, ProbedFigures, ReceivedFigures, Timings};
use crate::reference_distributions::ReferenceDistributions;
use layerscope_engine::{
    Decoder, Error, HookPoint, Hooks, Interrupt, LayerStatistics, Policy, Result, Session, Site, Tensor,
    argmax, check_interrupt, logit_rows,
};
use layerscope_kernels::{ReadLimits, Segment};
use ndarray::{Array2, Array3};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

/// Minimum prompt mass for a meaningful entropy.
const SMALLEST_PROMPT_MASS: f32 = 1e-6;

/// The source of the decode tokens.
#[derive(Debug, Clone)]
pub enum Decoding<'a> {
    /// The model's greedy continuation of exactly this many tokens. End-of-sequence tokens are excluded, so
    /// that every prompt has the same number of steps.
    Greedy {
        /// Number of tokens.
        tokens: usize,
        /// Excluded tokens.
        excluded: &'a [u32],
    },
    /// A given continuation.
    Given(&'a [u32]),
}

impl Decoding<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Greedy { tokens, .. } => *tokens,
            Self::Given(tokens) => tokens.len(),
        }
    }

    fn excluded(&self) -> &[u32] {
        match self {
            Self::Greedy { excluded, .. } => excluded,
            Self::Given(_) => &[],
        }
    }
}

/// A recorded run, with the data for the frontier still in memory.
pub struct ProbedRun {
    /// KV of the prompt and of the decode tokens, full depth.
    pub session: Session,
    /// Number of prompt tokens p.
    pub prompt_len: usize,
    /// The continuation, N tokens.
    pub continuation: Vec<u32>,
    /// Residual stream of the N decode rows at the input of each layer, `[N, d]`; index L is the final one.
    pub residuals: Vec<Tensor>,
    /// The full model's next-token distribution at each step, N; of a model with an adapter, that of the model without.
    pub distributions: ReferenceDistributions,
    /// Whether these are another model's than the one that ran.
    pub refers_to_another: bool,
    /// Whether the continuation is the full model's greedy text, generated or given.
    pub greedy: bool,
    /// The probes' measurements.
    pub figures: ProbedFigures,
    /// Mean KL(f32 ‖ weights as run) of the generating steps, nats per token; `None` if nothing was
    /// generated.
    pub generation_kl: Option<f64>,
    /// Times; the frontier's is still 0.
    pub timings: Timings,
}

/// Runs a prompt with all probes.
///
/// Calls `progress` with the number of processed tokens, out of p + N.
///
/// # Errors
/// [`Error::Input`] on an empty prompt, an empty continuation or a sequence beyond the context;
/// [`Error::UndefinedLogits`], with the layer where they begin; [`Error::Interrupted`].
pub fn run(
    decoder: &Arc<Decoder>,
    prompt: &[u32],
    continuation: &Decoding<'_>,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(usize),
) -> Result<ProbedRun> {
    if continuation.len() == 0 {
        return Err(Error::input(
            "no decode steps: ask for at least one new token, and give no empty answer",
        ));
    }
    run_defined(decoder, prompt, continuation, interrupt, progress).map_err(|error| match continuation {
        Decoding::Given(tokens) => error.located(decoder, &[prompt, tokens].concat(), interrupt),
        Decoding::Greedy { .. } => error.located(decoder, prompt, interrupt),
    })
}

/// [`run`] of a model with an adapter along what the model without it said in `reference`, whose distributions it is compared with.
///
/// # Errors
/// As [`run`].
pub fn run_adapted(
    decoder: &Arc<Decoder>,
    prompt: &[u32],
    reference: ProbedRun,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(usize),
) -> Result<ProbedRun> {
    let ProbedRun { continuation, distributions, greedy, generation_kl, timings, session, figures, .. } =
        reference;
    let adapted = if decoder.shares_prompts_with(session.decoder()) {
        let session = session.with_adapted(decoder)?;
        let curvature = figures.curvature_prompt_deg;
        let run = probed(decoder, session, (prompt, &continuation), &[], curvature, interrupt);
        progress(prompt.len() + continuation.len());
        let run =
            run.map_err(|error| error.located(decoder, &[prompt, &continuation].concat(), interrupt))?;
        let timings = Timings { prefill_s: timings.prefill_s, ..run.timings };
        ProbedRun { timings, ..run }
    } else {
        drop(session);
        run(decoder, prompt, &Decoding::Given(&continuation), interrupt, progress)?
    };
    let timings = Timings { decode_s: timings.decode_s, ..adapted.timings };
    Ok(ProbedRun { distributions, refers_to_another: true, greedy, generation_kl, timings, ..adapted })
}

/// [`run`]; undefined logits are not yet traced to the layer where they begin.
fn run_defined(
    decoder: &Arc<Decoder>,
    prompt: &[u32],
    continuation: &Decoding<'_>,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(usize),
) -> Result<ProbedRun> {
    let steps = continuation.len();
    let layers = decoder.config().layers;
    let mut session = Session::new(decoder, Policy::full(layers), prompt.len(), steps)?;

    let start = Instant::now();
    let curvature: Vec<_> = (0..=layers).map(|_| Curvature::default()).collect();
    let curvature = RefCell::new(curvature);
    let first_logits =
        session.prefill(prompt, &mut curvature_hooks(&curvature, layers), interrupt, progress)?;
    let prefill_s = start.elapsed().as_secs_f64();
    let curvature_prompt_deg = curvature.borrow().iter().map(Curvature::degrees).collect::<Result<_>>()?;

    let start = Instant::now();
    let mut generated_logits = vec![];
    let tokens = match continuation {
        Decoding::Given(tokens) => tokens.to_vec(),
        Decoding::Greedy { excluded, .. } => {
            continue_greedily(&mut session, first_logits, steps, excluded, interrupt, &mut |done, logits| {
                progress(done);
                generated_logits.push(logits.clone());
            })?
        }
    };
    let decode_s = if generated_logits.is_empty() { 0.0 } else { start.elapsed().as_secs_f64() };
    let excluded = continuation.excluded();
    let run = probed(decoder, session, (prompt, &tokens), excluded, curvature_prompt_deg, interrupt)?;
    Ok(ProbedRun {
        greedy: run.greedy || matches!(continuation, Decoding::Greedy { .. }),
        generation_kl: mean_kl(&run.distributions, &generated_logits)?,
        timings: Timings { prefill_s, decode_s, ..run.timings },
        ..run
    })
}

/// The teacher-forced pass, in a session that has prefilled the prompt; nothing was generated.
fn probed(
    decoder: &Decoder,
    mut session: Session,
    (prompt, continuation): (&[u32], &[u32]),
    excluded: &[u32],
    curvature_prompt_deg: Vec<f64>,
    interrupt: &Interrupt,
) -> Result<ProbedRun> {
    let (steps, heads) = (continuation.len(), decoder.config().heads);
    let start = Instant::now();
    let TeacherForced { residuals, statistics, distributions } =
        forced(decoder, &mut session, (prompt, continuation), Some(reads::limits(prompt.len())))?;
    let distributions = distributions.excluding(excluded);
    let likely = |(step, &token): (usize, &u32)| distributions.argmax(step) == token;
    let figures = ProbedFigures {
        curvature_prompt_deg,
        curvature_decode_deg: residuals.iter().map(trajectory_curvature).collect::<Result<_>>()?,
        lens: logit_lens(decoder, &residuals, &distributions, interrupt)?,
        attention: attention_figures(&statistics, heads, steps, prompt.len()),
        received: received_figures(&statistics, heads * steps),
        reads: step_reads(statistics, steps),
    };
    Ok(ProbedRun {
        prompt_len: prompt.len(),
        greedy: continuation.iter().enumerate().all(likely),
        figures,
        generation_kl: None,
        continuation: continuation.to_vec(),
        session,
        residuals,
        distributions,
        refers_to_another: false,
        timings: Timings { probe_s: start.elapsed().as_secs_f64(), ..Timings::default() },
    })
}

/// The decode rows of a continuation, run in one pass.
pub struct TeacherForced {
    /// Residual stream of the N decode rows at the input of each layer, `[N, d]`; index L is the final one.
    pub residuals: Vec<Tensor>,
    /// Attention of the decode rows, L.
    pub statistics: Vec<LayerStatistics>,
    /// The next-token distribution at each step, N.
    pub distributions: ReferenceDistributions,
}

/// Tokens of the decode rows of a continuation of at least one token: the last prompt token and all tokens of the continuation
/// except the last.
pub fn decode_rows(prompt: &[u32], continuation: &[u32]) -> Vec<u32> {
    let (last, before_last) = (&prompt[prompt.len() - 1..], &continuation[..continuation.len() - 1]);
    [last, before_last].concat()
}

/// Runs the decode rows of a continuation of at least one token through a session that has prefilled the
/// prompt. They replace earlier decode rows of the session.
///
/// # Errors
/// [`Error::UndefinedLogits`].
pub fn teacher_forced(
    decoder: &Decoder,
    session: &mut Session,
    prompt: &[u32],
    continuation: &[u32],
) -> Result<TeacherForced> {
    forced(decoder, session, (prompt, continuation), None)
}

/// [`teacher_forced`], which also lists what each row reads within the limits.
fn forced(
    decoder: &Decoder,
    session: &mut Session,
    (prompt, continuation): (&[u32], &[u32]),
    limits: Option<ReadLimits>,
) -> Result<TeacherForced> {
    let layers = decoder.config().layers;
    session.truncate(prompt.len() - 1)?;
    let mut statistics = vec![];
    let residuals = RefCell::new(vec![]);
    let rows = decode_rows(prompt, continuation);
    let mut hooks = residual_hooks(&residuals, layers);
    match limits {
        Some(limits) => session.teacher_forced_with_reads(&rows, &mut hooks, &mut statistics, limits)?,
        None => session.teacher_forced(&rows, &mut hooks, &mut statistics)?,
    };
    drop(hooks);
    let residuals = residuals.into_inner();
    let distributions = ReferenceDistributions::new(decoder, &residuals[layers], continuation)?;
    Ok(TeacherForced { residuals, statistics, distributions })
}

/// The greedy continuation of exactly `tokens` tokens, without `excluded` ones, in a session whose prefill
/// returned `first_logits` `[V]`. Before each choice, `observe` gets the number of tokens processed so far
/// and the logits.
///
/// # Errors
/// [`Error::UndefinedLogits`]; [`Error::Interrupted`].
pub fn continue_greedily(
    session: &mut Session,
    first_logits: Tensor,
    tokens: usize,
    excluded: &[u32],
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(usize, &Tensor),
) -> Result<Vec<u32>> {
    let mut continuation = vec![];
    let mut logits = first_logits;
    while continuation.len() < tokens {
        if let Some(&last) = continuation.last() {
            check_interrupt(interrupt)?;
            logits = session.step(last, &mut Hooks::none())?;
        }
        continuation.push(argmax(&logits, excluded)?);
        observe(session.len(), &logits);
    }
    Ok(continuation)
}

/// Hooks that measure the curvature of the residual stream at every layer boundary.
fn curvature_hooks<'a>(curvature: &'a RefCell<Vec<Curvature>>, layers: usize) -> Hooks<'a> {
    boundary_hooks(layers, move |boundary, x| curvature.borrow_mut()[boundary].extend(x))
}

/// Hooks that keep the residual stream at every layer boundary.
fn residual_hooks<'a>(residuals: &'a RefCell<Vec<Tensor>>, layers: usize) -> Hooks<'a> {
    boundary_hooks(layers, move |_, x| {
        residuals.borrow_mut().push(x.clone());
        Ok(())
    })
}

/// Calls `f(boundary, x)` at the embedding output (0) and after each block ℓ (ℓ + 1).
fn boundary_hooks<'a>(layers: usize, f: impl Fn(usize, &Tensor) -> Result<()> + Copy + 'a) -> Hooks<'a> {
    let mut hooks = Hooks::none();
    for boundary in 0..=layers {
        let point = match boundary {
            0 => HookPoint { layer: 0, site: Site::ResidPre },
            after => HookPoint { layer: after - 1, site: Site::ResidPost },
        };
        hooks.observe(point, move |_, x| f(boundary, x));
    }
    hooks
}

fn trajectory_curvature(rows: &Tensor) -> Result<f64> {
    let mut curvature = Curvature::default();
    curvature.extend(rows)?;
    curvature.degrees()
}

/// KL(final ‖ lens) and the lens's top token at every layer; at the last layer, lens and final are the same.
fn logit_lens(
    decoder: &Decoder,
    residuals: &[Tensor],
    distributions: &ReferenceDistributions,
    interrupt: &Interrupt,
) -> Result<LensFigures> {
    let (layers, steps) = (residuals.len() - 1, distributions.steps());
    let mut lens = LensFigures { kl: Array2::zeros((layers, steps)), top1: Array2::zeros((layers, steps)) };
    for step in 0..steps {
        lens.top1[[layers - 1, step]] = distributions.argmax(step);
    }
    let inner = &residuals[1..layers];
    if inner.is_empty() {
        return Ok(lens);
    }
    let per_batch = (logit_rows(decoder.config().vocab) / steps).max(1);
    for (batch, boundaries) in inner.chunks(per_batch).enumerate() {
        check_interrupt(interrupt)?;
        let rows = Tensor::cat(&boundaries.iter().collect::<Vec<_>>())?;
        for (row, comparison) in distributions.compare(decoder, &rows)?.iter().enumerate() {
            let (layer, step) = (batch * per_batch + row / steps, row % steps);
            lens.kl[[layer, step]] = comparison.kl as f32;
            lens.top1[[layer, step]] = comparison.argmax;
        }
    }
    Ok(lens)
}

/// Masses and entropies of `steps` decode rows in each layer. The entropy within the prompt is undefined
/// (NaN) if the prompt has too few positions or too little mass.
pub fn attention_figures(
    statistics: &[LayerStatistics],
    heads: usize,
    steps: usize,
    prompt_len: usize,
) -> AttentionFigures {
    let shape = (statistics.len(), heads, steps);
    let mass = |segment: Segment| {
        Array3::from_shape_fn(shape, |(layer, head, step)| {
            statistics[layer].rows.mass[step * heads + head][segment as usize]
        })
    };
    let prompt_mass = mass(Segment::Prompt);
    let prompt_entropy_nats = Array3::from_shape_fn(shape, |(layer, head, step)| {
        let defined = prompt_len >= 4 && prompt_mass[[layer, head, step]] > SMALLEST_PROMPT_MASS;
        let entropy = statistics[layer].rows.entropy[step * heads + head][Segment::Prompt as usize];
        if defined { entropy } else { f32::NAN }
    });
    let most = (prompt_len as f32 - 2.0).max(1.0).ln();
    AttentionFigures {
        bos_mass: mass(Segment::Bos),
        decode_mass: mass(Segment::Decode),
        // `clamp` keeps NaN; `min` would turn it into 1.
        prompt_entropy: prompt_entropy_nats.mapv(|nats| (nats / most).clamp(0.0, 1.0)),
        prompt_entropy_nats,
        prompt_mass,
    }
}

fn received_figures(statistics: &[LayerStatistics], queries: usize) -> ReceivedFigures {
    let positions = statistics.first().map_or(0, |s| s.received.sum.len());
    let shape = (statistics.len(), positions);
    ReceivedFigures {
        mean: Array2::from_shape_fn(shape, |(layer, position)| {
            statistics[layer].received.sum[position] / queries as f32
        }),
        max: Array2::from_shape_fn(shape, |(layer, position)| statistics[layer].received.max[position]),
    }
}

/// What each step reads at each layer, `[L, N]`; `None` where a layer has not listed it.
fn step_reads(statistics: Vec<LayerStatistics>, steps: usize) -> Option<Array2<RowReads>> {
    let layers = statistics.len();
    let all = statistics.into_iter().flat_map(|layer| layer.received.reads).collect();
    Array2::from_shape_vec((layers, steps), all).ok()
}

fn mean_kl(distributions: &ReferenceDistributions, logits: &[Tensor]) -> Result<Option<f64>> {
    if logits.is_empty() {
        return Ok(None);
    }
    let mut sum = 0.0;
    for (step, logits) in logits.iter().enumerate() {
        sum += distributions.compare_step(step, logits)?.kl;
    }
    Ok(Some(sum / logits.len() as f64))
}
