//! The exact frontier and the causal layer map, from one recorded run.
//!
//! Two identities make every cutoff cheap and exact. By causality, the KV that a cutoff c leaves in the layers below
//! it equals the full model's. Under teacher forcing, so do the decode tokens' residual streams at the entrance of
//! layer c. So each cutoff starts from the recorded residuals at its own layer and runs only the layers above, over
//! the N decode rows, seeing the anchor and the decode tokens: Σ_c (L−c)·N layer-tokens in all. Hiding the prompt at
//! layer k alone (knockout) starts likewise, and from layer k+1 on sees everything again.
//!
//! All variants go up through the layers together, so that each weight is read once per layer.

mod attention;

use attention::VariantAttention;
use layerscope_diagnostics::probe::ProbedRun;
use layerscope_diagnostics::record::{Anchor, Divergence, FrontierRow, KnockoutRow, TextUnderCutoff};
use layerscope_diagnostics::reference_distributions::StepComparison;
use layerscope_engine::{
    ComputeType, Decoder, Depth, Device, Error, Hooks, Interrupt, Pass, Policy, Result, SequenceRows, Tensor,
    check_interrupt,
};
use layerscope_kernels::Segment;

/// What a copy of the decode rows sees of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// From layer `cutoff` on: the anchor and the decode tokens.
    Cutoff { anchor: Anchor, cutoff: usize },
    /// At layer `layer` alone: position 0 and the decode tokens; everything elsewhere.
    Knockout { layer: usize },
}

impl Variant {
    fn sees(self, layer: usize, segment: Segment) -> bool {
        match (self, segment) {
            (Self::Cutoff { anchor, .. }, segment) => sees(anchor, segment),
            (Self::Knockout { layer: hidden }, Segment::Prompt) => layer != hidden,
            (Self::Knockout { .. }, Segment::Bos | Segment::Decode) => true,
        }
    }
}

/// What a decode row sees at and above a cutoff.
pub(crate) fn sees(anchor: Anchor, segment: Segment) -> bool {
    match segment {
        Segment::Bos => anchor == Anchor::Bos,
        Segment::Prompt => false,
        Segment::Decode => true,
    }
}

/// Divergence at every cutoff, for both anchors, and at every knocked-out layer.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptFrontier {
    /// One row per anchor and cutoff 1 … L.
    pub rows: Vec<FrontierRow>,
    /// The most likely token at each step, N, for each of the rows.
    pub most_likely: Vec<Vec<u32>>,
    /// One row per layer.
    pub knockout: Vec<KnockoutRow>,
}

/// Computes both from a recorded run.
///
/// `progress(layer)` is told how many layers are done.
///
/// # Errors
/// [`layerscope_engine::Error::Interrupted`], or whatever fails beneath.
pub fn frontier(
    decoder: &Decoder,
    run: &ProbedRun,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(usize),
) -> Result<PromptFrontier> {
    let (layers, steps) = (decoder.config().layers, run.continuation.len());
    // Under it, each layer stores the prompt as at most three ranges of keys.
    if *run.session.policy() != Policy::full(layers) {
        return Err(Error::failure("a frontier starts from a run of the full model; please report this"));
    }
    let positions: Vec<usize> = (run.prompt_len - 1..).take(steps).collect();
    let mut active: Vec<(Variant, Tensor)> = vec![];
    for layer in 0..layers {
        check_interrupt(interrupt)?;
        let entering = &run.residuals[layer];
        // Within its own layer a knockout is the anchored cutoff: one copy serves both and is shared out afterwards.
        active.push((Variant::Knockout { layer }, entering.clone()));
        if layer > 0 {
            active.push((Variant::Cutoff { anchor: Anchor::None, cutoff: layer }, entering.clone()));
        }
        active = through_layer(decoder, run, active, layer, &positions)?;
        if layer > 0 {
            let shared = active.iter().find(|(variant, _)| *variant == Variant::Knockout { layer });
            if let Some((_, x)) = shared {
                let x = x.clone();
                active.push((Variant::Cutoff { anchor: Anchor::Bos, cutoff: layer }, x));
            }
        }
        progress(layer + 1);
    }
    let (mut rows, mut knockout) = (vec![], vec![]);
    for batch in active.chunks((rows_at_once(decoder) / steps).max(1)) {
        check_interrupt(interrupt)?;
        let x: Vec<&Tensor> = batch.iter().map(|(_, x)| x).collect();
        let compared = run.distributions.compare(decoder, &Tensor::cat(&x)?)?;
        for ((variant, _), compared) in batch.iter().zip(compared.chunks(steps)) {
            let divergence = StepComparison::mean(compared);
            match *variant {
                Variant::Cutoff { anchor, cutoff } => {
                    let text = text(run, compared);
                    let most_likely = compared.iter().map(|step| step.argmax).collect();
                    rows.push((FrontierRow { anchor, cutoff, divergence, text }, most_likely));
                }
                Variant::Knockout { layer } => knockout.push(KnockoutRow { layer, divergence }),
            }
        }
    }
    let (divergence, text, most_likely) = at_full_depth(decoder, run)?;
    rows.extend(
        Anchor::ALL
            .map(|anchor| (FrontierRow { anchor, cutoff: layers, divergence, text }, most_likely.clone())),
    );
    rows.sort_by_key(|(row, _)| (row.anchor, row.cutoff));
    knockout.sort_by_key(|row| row.layer);
    let (rows, most_likely) = rows.into_iter().unzip();
    Ok(PromptFrontier { rows, most_likely, knockout })
}

/// A cutoff of L hides nothing: it is the full model, or, with an adapter, what the adapter makes of it.
fn at_full_depth(decoder: &Decoder, run: &ProbedRun) -> Result<(Divergence, TextUnderCutoff, Vec<u32>)> {
    if run.refers_to_another {
        let compared = run.distributions.compare(decoder, &run.residuals[decoder.config().layers])?;
        let most_likely = compared.iter().map(|step| step.argmax).collect();
        return Ok((StepComparison::mean(&compared), text(run, &compared), most_likely));
    }
    let most_likely = (0..run.continuation.len()).map(|step| run.distributions.argmax(step)).collect();
    let text = if run.greedy { TextUnderCutoff::SAME } else { TextUnderCutoff::UNKNOWN };
    Ok((Divergence::ZERO, text, most_likely))
}

/// What becomes of the continuation where the steps compare like this.
fn text(run: &ProbedRun, compared: &[StepComparison]) -> TextUnderCutoff {
    let mut steps = compared.iter().zip(&run.continuation);
    let departs = steps.position(|(step, token)| step.choice != *token || !step.kl.is_finite());
    match departs {
        _ if !run.greedy => TextUnderCutoff::UNKNOWN,
        Some(step) if !compared[step].kl.is_finite() => TextUnderCutoff::UNKNOWN,
        departs => TextUnderCutoff::departing(departs),
    }
}

/// Rows that go through a layer at once: bounds memory, and products of so many run at full speed.
fn rows_at_once(decoder: &Decoder) -> usize {
    match decoder.device() {
        Device::Cpu => 512,
        Device::Cuda(_) => 2_048,
    }
}

/// Every variant's rows through one layer.
fn through_layer(
    decoder: &Decoder,
    run: &ProbedRun,
    active: Vec<(Variant, Tensor)>,
    layer: usize,
    positions: &[usize],
) -> Result<Vec<(Variant, Tensor)>> {
    let steps = positions.len();
    let mut after = Vec::with_capacity(active.len() + 1);
    for group in active.chunks((rows_at_once(decoder) / steps).max(1)) {
        let variants: Vec<Variant> = group.iter().map(|(variant, _)| *variant).collect();
        let rows: Vec<&Tensor> = group.iter().map(|(_, x)| x).collect();
        let mut attend = VariantAttention {
            decoder,
            store: run.session.store(),
            prompt_len: run.prompt_len,
            variants: &variants,
            steps,
        };
        let mut hooks = Hooks::none();
        let sequence_len = run.session.sequence_len();
        let sequences =
            [SequenceRows { rows: group.len() * steps, sequence_len, first_decode: run.prompt_len - 1 }];
        let mut pass = Pass {
            attend: &mut attend,
            hooks: &mut hooks,
            sequences: &sequences,
            compute: ComputeType::F32,
            rows_on_device: None,
        };
        let positions = positions.repeat(group.len());
        let depth = Depth::of_layers(layer..layer + 1);
        let x = decoder.forward(Tensor::cat(&rows)?, &positions, depth, &mut pass)?;
        for (index, variant) in variants.into_iter().enumerate() {
            after.push((variant, x.narrow(index * steps, steps)?));
        }
    }
    Ok(after)
}
