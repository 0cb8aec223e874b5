//! The full model's next-token distributions, and comparisons with them, computed on the model's device.

use crate::record::Divergence;
use layerscope_engine::{ComputeType, Decoder, Error, Hooks, Result, Tensor, argmax, logit_rows, with_f32};
use layerscope_kernels::cuda::Buffer;
use layerscope_kernels::distribution::cuda::{self, ComparisonOnDevice, DistributionSummary};
use layerscope_kernels::distribution::{Distribution, DistributionComparison};
use rayon::prelude::*;
use std::ops::Range;

/// The distribution at each of N decode steps.
pub struct ReferenceDistributions {
    numbers: Numbers,
    /// The continuation, N tokens.
    tokens: Vec<u32>,
    /// −ln p of each of them.
    nll: Vec<f64>,
    /// Tokens that no text continues with.
    excluded: Vec<u32>,
}

enum Numbers {
    Host(Vec<Distribution>),
    /// Logits `[N, V]` on the device, with their normalisers as structs.
    Device {
        logits: Tensor,
        on_device: Buffer,
        summaries: Vec<DistributionSummary>,
    },
}

/// How a row of logits differs from a step's distribution. Where the row has a logit that is not finite, all but `argmax` is NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepComparison {
    /// KL(full ‖ row), nats.
    pub kl: f64,
    /// 1 where both have the same most likely token, else 0.
    pub top1: f64,
    /// The row's most likely token.
    pub argmax: u32,
    /// The token that a greedy text continues with here: the most likely one that is not excluded.
    pub choice: u32,
    /// NLL of the step's token under the row, minus that under the full model, nats.
    pub dnll: f64,
}

impl StepComparison {
    /// Means over the steps of a continuation.
    pub fn mean(steps: &[Self]) -> Divergence {
        let divergences =
            steps.iter().map(|step| Divergence { kl: step.kl, top1: step.top1, dnll: step.dnll });
        Divergence::mean(&divergences.collect::<Vec<_>>())
    }
}

impl ReferenceDistributions {
    /// Computes the distributions from the final residual stream `x [N, d]`, for a continuation of N tokens.
    ///
    /// # Errors
    /// [`Error::UndefinedLogits`] where a logit is not finite, or a token is beyond them.
    pub fn new(decoder: &Decoder, x: &Tensor, tokens: &[u32]) -> Result<Self> {
        check_tokens(tokens, decoder.config().vocab)?;
        let (numbers, nll) = match x.on_device() {
            None => {
                let steps = map_logits(decoder, x, |row, logits| distribution(logits, tokens[row]))?;
                let (distributions, nll) = steps.into_iter().unzip();
                (Numbers::Host(distributions), nll)
            }
            Some(_) => {
                let pieces = logits_of(decoder, x).map(|(_, logits)| logits).collect::<Result<Vec<_>>>()?;
                device_distributions(&pieces, tokens)?
            }
        };
        Self::checked(numbers, tokens, nll)
    }

    /// Computes the distributions from the logits `[V]` of each step, in order, for a continuation of as many
    /// tokens. On the CPU, each step's logits are freed after use: the total is N · V f32.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_steps(logits: Vec<Tensor>, tokens: &[u32]) -> Result<Self> {
        check_tokens(tokens, logits.iter().map(Tensor::elements).min().unwrap_or(0))?;
        let (numbers, nll) = if logits.iter().any(|logits| logits.on_device().is_some()) {
            let rows = logits.iter().map(|logits| logits.reshape(&[1, logits.elements()]));
            device_distributions(&rows.collect::<Result<Vec<_>>>()?, tokens)?
        } else {
            let steps = logits.into_iter().zip(tokens);
            let steps = steps.map(|(logits, &token)| with_f32(&logits, |logits| distribution(logits, token)));
            let (distributions, nll) = steps.collect::<Result<Vec<_>>>()?.into_iter().unzip();
            (Numbers::Host(distributions), nll)
        };
        Self::checked(numbers, tokens, nll)
    }

    fn checked(numbers: Numbers, tokens: &[u32], nll: Vec<f64>) -> Result<Self> {
        let defined = match &numbers {
            Numbers::Host(distributions) => distributions.iter().all(Distribution::is_defined),
            Numbers::Device { summaries, .. } => summaries.iter().all(|summary| summary.finite != 0),
        };
        if !defined || nll.iter().any(|nll| !nll.is_finite()) {
            return Err(Error::UNDEFINED_LOGITS);
        }
        Ok(Self { numbers, tokens: tokens.to_vec(), nll, excluded: vec![] })
    }

    /// The same where no text continues with some tokens, such as the end of the sequence.
    #[must_use]
    pub fn excluding(self, excluded: &[u32]) -> Self {
        Self { excluded: excluded.to_vec(), ..self }
    }

    /// Number of steps N.
    pub fn steps(&self) -> usize {
        self.tokens.len()
    }

    /// NLL of the continuation at each step, nats.
    pub fn nll(&self) -> &[f64] {
        &self.nll
    }

    /// Most likely token at a step.
    pub fn argmax(&self, step: usize) -> u32 {
        match &self.numbers {
            Numbers::Host(distributions) => distributions[step].argmax() as u32,
            Numbers::Device { summaries, .. } => summaries[step].argmax,
        }
    }

    /// Compares the logits of residual rows `x [copies · N, d]`, each copy with steps 0 … N−1 in turn.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn compare(&self, decoder: &Decoder, x: &Tensor) -> Result<Vec<StepComparison>> {
        let steps = self.steps();
        match &self.numbers {
            Numbers::Host(distributions) => map_logits(decoder, x, |row, logits| {
                let step = row % steps;
                self.compare_on_host(step, &distributions[step], logits)
            }),
            Numbers::Device { .. } => {
                let mut compared = Vec::with_capacity(x.rows());
                for (rows, logits) in logits_of(decoder, x) {
                    let of: Vec<u32> = rows.map(|row| (row % steps) as u32).collect();
                    compared.extend(self.compare_on_device(&logits?, &of)?);
                }
                Ok(compared)
            }
        }
    }

    /// Compares logits `[V]` with a step's distribution.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn compare_step(&self, step: usize, logits: &Tensor) -> Result<StepComparison> {
        match &self.numbers {
            Numbers::Host(distributions) => {
                with_f32(logits, |logits| self.compare_on_host(step, &distributions[step], logits))
            }
            Numbers::Device { .. } => Ok(self.compare_on_device(logits, &[step as u32])?[0]),
        }
    }

    fn compare_on_host(&self, step: usize, distribution: &Distribution, logits: &[f32]) -> StepComparison {
        let logit = f64::from(logits[self.tokens[step] as usize]);
        let compared = self.comparison(step, &distribution.compare(logits), logit);
        if !self.excluded.contains(&compared.argmax) {
            return compared;
        }
        let left = (0u32..).zip(logits).filter(|(id, _)| !self.excluded.contains(id));
        let best = left.reduce(|best, next| if next.1 > best.1 { next } else { best });
        StepComparison { choice: best.map_or(compared.argmax, |(id, _)| id), ..compared }
    }

    fn comparison(&self, step: usize, comparison: &DistributionComparison, logit: f64) -> StepComparison {
        let argmax = comparison.argmax as u32;
        if !comparison.kl.is_finite() {
            return StepComparison { kl: f64::NAN, top1: f64::NAN, argmax, choice: argmax, dnll: f64::NAN };
        }
        StepComparison {
            kl: comparison.kl,
            top1: f64::from(u8::from(comparison.same_argmax)),
            argmax,
            choice: argmax,
            dnll: comparison.log_normaliser - logit - self.nll[step],
        }
    }

    /// Compares rows of logits `[rows, V]` on the device, each with its step.
    fn compare_on_device(&self, logits: &Tensor, of: &[u32]) -> Result<Vec<StepComparison>> {
        let (Numbers::Device { logits: reference, on_device, summaries }, Some(rows)) =
            (&self.numbers, logits.on_device())
        else {
            return Err(Error::failure("logits are on different devices; please report this"));
        };
        let reference = reference.on_device().ok_or_else(|| Error::failure("logits are not on the GPU"))?;
        let vocab = reference.dims()[1];
        let device = rows.device();
        let tokens: Vec<u32> = of.iter().map(|&step| self.tokens[step as usize]).collect();
        let (steps, tokens) = (device.upload(of)?, device.upload(&tokens)?);
        let output = device.allocate(of.len() * size_of::<ComparisonOnDevice>())?;
        cuda::compare(reference.numbers(), on_device, rows.numbers(), vocab, &steps, &tokens, &output)?;
        let measured = output.to_vec::<ComparisonOnDevice>()?;
        let compared = measured.iter().zip(of).map(|(measured, &step)| {
            let comparison = DistributionComparison {
                kl: if measured.finite == 0 { f64::NAN } else { measured.kl },
                same_argmax: measured.argmax == summaries[step as usize].argmax,
                argmax: measured.argmax as usize,
                log_normaliser: measured.log_normaliser,
            };
            self.comparison(step as usize, &comparison, f64::from(measured.token_logit))
        });
        let mut compared: Vec<StepComparison> = compared.collect();
        for (row, compared) in compared.iter_mut().enumerate() {
            // Rare, so that a kernel of its own is not worth it.
            if self.excluded.contains(&compared.argmax) && compared.kl.is_finite() {
                let row = logits.reshape(&[of.len(), vocab])?.narrow(row, 1)?;
                compared.choice = argmax(&row.reshape(&[vocab])?, &self.excluded)?;
            }
        }
        Ok(compared)
    }
}

fn check_tokens(tokens: &[u32], vocab: usize) -> Result<()> {
    if tokens.iter().any(|&token| token as usize >= vocab) { Err(Error::UNDEFINED_LOGITS) } else { Ok(()) }
}

/// A step's distribution and the NLL of its token.
fn distribution(logits: &[f32], token: u32) -> (Distribution, f64) {
    let distribution = Distribution::new(logits);
    let nll = distribution.nll(logits[token as usize]);
    (distribution, nll)
}

/// Computes normalisers and NLLs of rows of logits `[rows, V]`, one per token.
fn device_distributions(pieces: &[Tensor], tokens: &[u32]) -> Result<(Numbers, Vec<f64>)> {
    let logits = Tensor::cat(&pieces.iter().collect::<Vec<_>>())?;
    let numbers = logits.on_device().ok_or_else(|| Error::failure("logits are not on the GPU"))?;
    let vocab = numbers.dims()[1];
    let on_device = numbers.device().allocate(tokens.len() * size_of::<DistributionSummary>())?;
    cuda::summarize(numbers.numbers(), vocab, &on_device)?;
    let summaries = on_device.to_vec::<DistributionSummary>()?;
    let all = Numbers::Device { logits, on_device, summaries };
    // The NLL of the full model's tokens is the normaliser minus their logits, as in a comparison with
    // itself.
    let unknown = ReferenceDistributions {
        numbers: all,
        tokens: tokens.to_vec(),
        nll: vec![0.0; tokens.len()],
        excluded: vec![],
    };
    let Numbers::Device { logits, .. } = &unknown.numbers else { unreachable!("made just now") };
    let steps: Vec<u32> = (0..tokens.len() as u32).collect();
    let nll = unknown.compare_on_device(logits, &steps)?.iter().map(|compared| compared.dnll).collect();
    Ok((unknown.numbers, nll))
}

/// Logits of residual rows `[rows, d]` in f32, in blocks of rows, each with the indices of its rows.
fn logits_of<'a>(
    decoder: &'a Decoder,
    x: &'a Tensor,
) -> impl Iterator<Item = (Range<usize>, Result<Tensor>)> + 'a {
    let blocks = x.rows().div_ceil(logit_rows(decoder.config().vocab)).max(1);
    let at_once = x.rows().div_ceil(blocks).max(1);
    (0..x.rows()).step_by(at_once).map(move |first| {
        let len = at_once.min(x.rows() - first);
        let rows = x.narrow(first, len);
        let logits =
            rows.and_then(|rows| decoder.unembed(&rows, &vec![0; len], &mut Hooks::none(), ComputeType::F32));
        (first..first + len, logits)
    })
}

/// What `f` makes of the logits of each residual row of `[rows, d]`, in f32, with the row's index; of several rows side by side.
///
/// # Errors
/// Whatever fails beneath.
pub fn map_logits<T: Send>(
    decoder: &Decoder,
    x: &Tensor,
    f: impl Fn(usize, &[f32]) -> T + Sync,
) -> Result<Vec<T>> {
    let mut mapped = Vec::with_capacity(x.rows());
    for (rows, logits) in logits_of(decoder, x) {
        let vocab = decoder.config().vocab;
        with_f32(&logits?, |logits| {
            let rows = rows.into_par_iter().zip(logits.par_chunks_exact(vocab));
            mapped.par_extend(rows.map(|(row, logits)| f(row, logits)));
        })?;
    }
    Ok(mapped)
}
