//! The exact frontier and attention knockout, from one recorded run.
//!
//! Two identities make every cutoff cheap and exact. By causality, the KV that a cutoff c leaves in the layers below
//! it equals the full model's. Under teacher forcing, so do the decode tokens' residual streams at the entrance of
//! layer c. So each cutoff starts from the recorded residuals at its own layer and runs only the layers above, over
//! the N decode rows, seeing the anchor and the decode tokens: Σ_c (L−c)·N layer-tokens in all. Hiding the prompt at
//! layer k alone (knockout) starts likewise, and from layer k+1 on sees everything again; hiding it from one KV head of a layer, too.
//!
//! All variants go up through the layers together, so that each weight is read once per layer.

use crate::copies::{Recorded, RowCopy};
use layerscope_diagnostics::probe::ProbedRun;
use layerscope_diagnostics::record::{Anchor, Divergence, FrontierRow, KnockoutRow, TextUnderCutoff};
use layerscope_diagnostics::reference_distributions::StepComparison;
use layerscope_engine::{Decoder, Interrupt, KeyRange, ModelConfig, Result, Tensor, check_interrupt};
use layerscope_kernels::Segment;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a copy of the decode rows sees of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// From layer `cutoff` on: the anchor and the decode tokens.
    Cutoff { anchor: Anchor, cutoff: usize },
    /// At layer `layer` alone: position 0 and the decode tokens; everything elsewhere.
    Knockout { layer: usize },
    /// The same of one KV head of the layer.
    HeadKnockout { layer: usize, kv_head: usize },
}

impl RowCopy for Variant {
    fn sees(&self, layer: usize, keys: &KeyRange) -> Vec<KeyRange> {
        let all = 0..usize::MAX;
        let heads = match (*self, keys.segment()) {
            (Self::Cutoff { anchor, cutoff }, segment) if layer >= cutoff && !sees(anchor, segment) => vec![],
            (Self::Knockout { layer: hidden }, Segment::Prompt) if hidden == layer => vec![],
            (Self::HeadKnockout { layer: hidden, kv_head }, Segment::Prompt) if hidden == layer => {
                vec![0..kv_head, kv_head + 1..usize::MAX]
            }
            _ => vec![all],
        };
        heads.into_iter().filter_map(|heads| keys.of_heads(heads)).collect()
    }
}

/// What a decode row sees at and above a cutoff.
fn sees(anchor: Anchor, segment: Segment) -> bool {
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

/// The units of attention knockout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CausalMap {
    /// Layers.
    Layers,
    /// Layers, and each KV head of each layer.
    Heads,
}

impl CausalMap {
    /// With heads where they take no more multiplications than all else that is recorded of prompts of so many tokens.
    pub fn affordable(config: &ModelConfig, prompt_lens: &[usize], steps: usize) -> Self {
        let work = Work::of(config, prompt_lens, steps);
        match config.kv_heads as f64 * work.variants <= work.run + work.frontier(Self::Layers, config) {
            true => Self::Heads,
            false => Self::Layers,
        }
    }
}

/// Multiplications by weights that a recording takes.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Of the recorded runs, logit lens included.
    pub run: f64,
    /// Of one kind of variant, which starts at every layer: the rows of the layers above, and their logits.
    variants: f64,
}

impl Work {
    /// Of prompts of so many tokens with so many decode steps each.
    pub fn of(config: &ModelConfig, prompt_lens: &[usize], steps: usize) -> Self {
        let (layers, steps, prompts) = (config.layers as f64, steps as f64, prompt_lens.len() as f64);
        let layer = config.row_weights().map(|weights| weights as f64).iter().sum::<f64>();
        let unembedding = (config.vocab * config.hidden) as f64;
        let tokens: f64 = prompt_lens.iter().map(|&len| len as f64 + steps).sum();
        Self {
            run: tokens * layers * layer + prompts * steps * (layers + 1.0) * unembedding,
            variants: prompts * steps * layers * ((layers + 1.0) / 2.0 * layer + unembedding),
        }
    }

    /// Of cutoffs with both anchors and attention knockout.
    pub fn frontier(&self, map: CausalMap, config: &ModelConfig) -> f64 {
        let kinds = match map {
            CausalMap::Layers => 3,
            CausalMap::Heads if config.kv_heads == 1 => 3,
            CausalMap::Heads => 3 + config.kv_heads,
        };
        kinds as f64 * self.variants
    }
}

/// Computes them from a recorded run.
///
/// `progress(layer)` is told how many layers are done.
///
/// # Errors
/// [`layerscope_engine::Error::Interrupted`], or whatever fails beneath.
pub fn frontier(
    decoder: &Decoder,
    run: &ProbedRun,
    map: CausalMap,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(usize),
) -> Result<PromptFrontier> {
    let recorded = Recorded::new(decoder, run)?;
    let layers = decoder.config().layers;
    // A layer's only KV head is the layer.
    let heads = match (map, decoder.config().kv_heads) {
        (CausalMap::Layers, _) | (CausalMap::Heads, 1) => 0,
        (CausalMap::Heads, heads) => heads,
    };
    let mut active: Vec<(Variant, Tensor)> = vec![];
    for layer in 0..layers {
        check_interrupt(interrupt)?;
        let entering = &run.residuals[layer];
        // Within its own layer a knockout is the anchored cutoff: one copy serves both and is shared out afterwards.
        active.push((Variant::Knockout { layer }, entering.clone()));
        active.extend((0..heads).map(|kv_head| (Variant::HeadKnockout { layer, kv_head }, entering.clone())));
        if layer > 0 {
            active.push((Variant::Cutoff { anchor: Anchor::None, cutoff: layer }, entering.clone()));
        }
        active = recorded.through_layer(active, layer)?;
        if layer > 0 {
            let shared = active.iter().find(|(variant, _)| *variant == Variant::Knockout { layer });
            if let Some((_, x)) = shared {
                let x = x.clone();
                active.push((Variant::Cutoff { anchor: Anchor::Bos, cutoff: layer }, x));
            }
        }
        progress(layer + 1);
    }
    let (mut rows, mut knockout, mut by_head) = (vec![], vec![], BTreeMap::new());
    compare(recorded, &active, interrupt, &mut |variant, compared| match variant {
        Variant::Cutoff { anchor, cutoff } => rows.push(row(run, anchor, cutoff, compared)),
        Variant::Knockout { layer } => knockout.push((layer, StepComparison::mean(compared))),
        Variant::HeadKnockout { layer, kv_head } => {
            by_head.insert((layer, kv_head), StepComparison::mean(compared));
        }
    })?;
    let at_full_depth = at_full_depth(decoder, run)?;
    rows.extend(Anchor::ALL.map(|anchor| at_full_depth.row(anchor, layers)));
    rows.sort_by_key(|(row, _)| (row.anchor, row.cutoff));
    knockout.sort_by_key(|(layer, _)| *layer);
    let knockout = knockout.into_iter().map(|(layer, divergence)| {
        let of_heads = by_head.range((layer, 0)..(layer + 1, 0)).map(|(_, divergence)| *divergence).collect();
        let by_kv_head = if map == CausalMap::Heads && heads == 0 { vec![divergence] } else { of_heads };
        KnockoutRow { layer, divergence, by_kv_head }
    });
    let knockout = knockout.collect();
    let (rows, most_likely) = rows.into_iter().unzip();
    Ok(PromptFrontier { rows, most_likely, knockout })
}

/// Some cutoffs of 1 … L−1, and L, with one anchor and without knockout: what [`frontier`] says of them, up to rounding.
///
/// # Errors
/// As [`frontier`].
pub fn part_of_frontier(
    decoder: &Decoder,
    run: &ProbedRun,
    anchor: Anchor,
    cutoffs: Range<usize>,
    interrupt: &Interrupt,
) -> Result<PromptFrontier> {
    let recorded = Recorded::new(decoder, run)?;
    let layers = decoder.config().layers;
    let mut active: Vec<(Variant, Tensor)> = vec![];
    for layer in cutoffs.start..layers {
        check_interrupt(interrupt)?;
        if cutoffs.contains(&layer) {
            active.push((Variant::Cutoff { anchor, cutoff: layer }, run.residuals[layer].clone()));
        }
        active = recorded.through_layer(active, layer)?;
    }
    let mut rows = vec![];
    compare(recorded, &active, interrupt, &mut |variant, compared| {
        if let Variant::Cutoff { anchor, cutoff } = variant {
            rows.push(row(run, anchor, cutoff, compared));
        }
    })?;
    rows.push(at_full_depth(decoder, run)?.row(anchor, layers));
    let (rows, most_likely) = rows.into_iter().unzip();
    Ok(PromptFrontier { rows, most_likely, knockout: vec![] })
}

/// Compares each copy's steps with the full model's.
fn compare(
    recorded: Recorded<'_>,
    copies: &[(Variant, Tensor)],
    interrupt: &Interrupt,
    take: &mut dyn FnMut(Variant, &[StepComparison]),
) -> Result<()> {
    for batch in copies.chunks(recorded.at_once()) {
        check_interrupt(interrupt)?;
        let x: Vec<&Tensor> = batch.iter().map(|(_, x)| x).collect();
        let compared = recorded.run.distributions.compare(recorded.decoder, &Tensor::cat(&x)?)?;
        for ((variant, _), compared) in batch.iter().zip(compared.chunks(recorded.steps())) {
            take(*variant, compared);
        }
    }
    Ok(())
}

/// A row, and the most likely token at each step.
fn row(
    run: &ProbedRun,
    anchor: Anchor,
    cutoff: usize,
    compared: &[StepComparison],
) -> (FrontierRow, Vec<u32>) {
    let divergence = StepComparison::mean(compared);
    let most_likely = compared.iter().map(|step| step.argmax).collect();
    (FrontierRow { anchor, cutoff, divergence, text: text(run, compared) }, most_likely)
}

/// What a cutoff of L comes to, with any anchor.
struct FullDepth {
    divergence: Divergence,
    text: TextUnderCutoff,
    most_likely: Vec<u32>,
}

impl FullDepth {
    fn row(&self, anchor: Anchor, cutoff: usize) -> (FrontierRow, Vec<u32>) {
        let Self { divergence, text, .. } = *self;
        (FrontierRow { anchor, cutoff, divergence, text }, self.most_likely.clone())
    }
}

/// A cutoff of L hides nothing: it is the full model, or, with an adapter, what the adapter makes of it.
fn at_full_depth(decoder: &Decoder, run: &ProbedRun) -> Result<FullDepth> {
    if run.refers_to_another {
        let compared = run.distributions.compare(decoder, &run.residuals[decoder.config().layers])?;
        let most_likely = compared.iter().map(|step| step.argmax).collect();
        return Ok(FullDepth {
            divergence: StepComparison::mean(&compared),
            text: text(run, &compared),
            most_likely,
        });
    }
    let most_likely = (0..run.continuation.len()).map(|step| run.distributions.argmax(step)).collect();
    let text = if run.greedy { TextUnderCutoff::SAME } else { TextUnderCutoff::UNKNOWN };
    Ok(FullDepth { divergence: Divergence::ZERO, text, most_likely })
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
