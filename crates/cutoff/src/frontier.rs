//! The exact frontier and the causal layer map, from one recorded run.
//!
//! Two identities make every cutoff cheap and exact. By causality, the KV that a cutoff c leaves in the layers below
//! it equals the full model's. Under teacher forcing, so do the decode tokens' residual streams at the entrance of
//! layer c. So each cutoff starts from the recorded residuals at its own layer and runs only the layers above, over
//! the N decode rows, seeing the anchor and the decode tokens: Σ_c (L−c)·N token-layers in all. Hiding the prompt at
//! layer k alone (knockout) starts likewise, and from layer k+1 on sees everything again.
//!
//! All variants go up through the layers together, so that each weight is read once per layer.

use candle_core::{Device, Tensor};
use layerscope_diagnostics::probe::{ProbedRun, for_each_logits};
use layerscope_diagnostics::record::{Anchor, Divergence, FrontierRow, KnockoutRow};
use layerscope_engine::{
    Attend, Decoder, Depth, Hooks, Interrupt, KvNumbers, KvStore, Location, Pass, Result, check_interrupt,
    with_f32,
};
use layerscope_kernels::{KeySpan, Queries, Segment, attention};
use rayon::prelude::*;

/// Rows that go through a layer at once: bounds memory, and products of this many rows run at full speed.
const ROWS_AT_ONCE: usize = 512;

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
            (_, Segment::Decode) => true,
            (Self::Cutoff { anchor, .. }, Segment::Bos) => anchor == Anchor::Bos,
            (Self::Cutoff { .. }, Segment::Prompt) => false,
            (Self::Knockout { .. }, Segment::Bos) => true,
            (Self::Knockout { layer: hidden }, Segment::Prompt) => layer != hidden,
        }
    }
}

/// Divergence at every cutoff, for both anchors, and at every knocked-out layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Frontier {
    /// One row per anchor and cutoff 1 … L.
    pub rows: Vec<FrontierRow>,
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
    run: &ProbedRun<'_>,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(usize),
) -> Result<Frontier> {
    let (layers, steps) = (decoder.config().layers, run.continuation.len());
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
    let mut result = Frontier { rows: vec![], knockout: vec![] };
    for batch in active.chunks((ROWS_AT_ONCE / steps).max(1)) {
        check_interrupt(interrupt)?;
        for ((variant, _), divergence) in batch.iter().zip(divergences(decoder, run, batch)?) {
            match *variant {
                Variant::Cutoff { anchor, cutoff } => {
                    result.rows.push(FrontierRow { anchor, cutoff, divergence });
                }
                Variant::Knockout { layer } => result.knockout.push(KnockoutRow { layer, divergence }),
            }
        }
    }
    // A cutoff of L hides nothing: it is the full model.
    let nothing = Divergence { kl: 0.0, top1: 1.0, dnll: 0.0 };
    result.rows.extend(Anchor::ALL.map(|anchor| FrontierRow { anchor, cutoff: layers, divergence: nothing }));
    result.rows.sort_by_key(|row| (row.anchor, row.cutoff));
    result.knockout.sort_by_key(|row| row.layer);
    Ok(result)
}

/// Every variant's rows through one layer.
fn through_layer(
    decoder: &Decoder,
    run: &ProbedRun<'_>,
    active: Vec<(Variant, Tensor)>,
    layer: usize,
    positions: &[usize],
) -> Result<Vec<(Variant, Tensor)>> {
    let steps = positions.len();
    let mut after = Vec::with_capacity(active.len() + 1);
    for group in active.chunks((ROWS_AT_ONCE / steps).max(1)) {
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
        let mut pass = Pass {
            attend: &mut attend,
            hooks: &mut hooks,
            sequence_len: run.session.sequence_len(),
            exact: true,
            keys_values_from: None,
        };
        let positions = positions.repeat(group.len());
        let x = decoder.forward(
            Tensor::cat(&rows, 0)?,
            &positions,
            Depth::of_layers(layer..layer + 1),
            &mut pass,
        )?;
        for (index, variant) in variants.into_iter().enumerate() {
            after.push((variant, x.narrow(0, index * steps, steps)?));
        }
    }
    Ok(after)
}

fn divergences(
    decoder: &Decoder,
    run: &ProbedRun<'_>,
    batch: &[(Variant, Tensor)],
) -> Result<Vec<Divergence>> {
    let steps = run.continuation.len();
    let rows: Vec<&Tensor> = batch.iter().map(|(_, x)| x).collect();
    let mut sums = vec![Divergence { kl: 0.0, top1: 0.0, dnll: 0.0 }; batch.len()];
    for_each_logits(decoder, &Tensor::cat(&rows, 0)?, |row, logits| {
        let (sum, step) = (&mut sums[row / steps], row % steps);
        let comparison = run.distributions[step].compare(logits);
        let logit = f64::from(logits[run.continuation[step] as usize]);
        sum.kl += comparison.kl;
        sum.top1 += f64::from(u8::from(comparison.same_argmax));
        sum.dnll += comparison.log_normaliser - logit - run.nll[step];
    })?;
    let n = steps as f64;
    Ok(sums.into_iter().map(|s| Divergence { kl: s.kl / n, top1: s.top1 / n, dnll: s.dnll / n }).collect())
}

/// Attention of several copies of the decode rows: each sees its own decode keys and, of the recorded prompt, what its
/// variant leaves visible.
struct VariantAttention<'a> {
    decoder: &'a Decoder,
    store: &'a KvStore,
    prompt_len: usize,
    variants: &'a [Variant],
    steps: usize,
}

impl Attend for VariantAttention<'_> {
    fn attend(&mut self, at: Location<'_>, [q, k, v]: [&Tensor; 3], _: &mut Hooks<'_>) -> Result<Tensor> {
        let shape = self.decoder.attention_shape(at.layer);
        let (copies, steps) = (self.variants.len(), self.steps);
        // [copies, kv_heads, steps, head_dim]: each copy's keys laid out as the kernel reads them.
        let by_head = |x: &Tensor| -> Result<Tensor> {
            let x = x.reshape((copies, steps, shape.kv_heads, shape.head_dim))?;
            Ok(x.transpose(1, 2)?.contiguous()?)
        };
        let (k, v) = (by_head(k)?, by_head(v)?);
        let stored: Vec<KeySpan<'_>> = self.store.spans(at.layer, Some(self.prompt_len));
        let row_len = shape.query_heads * shape.head_dim;
        let own_len = shape.kv_heads * steps * shape.head_dim;
        // Rounded as they would be in the store, so that only what is hidden makes a difference.
        let precision = self.store.precision();
        let mut output = vec![0.0; copies * steps * row_len];
        with_f32(q, |q| {
            with_f32(&k, |k| {
                with_f32(&v, |v| {
                    let copies = output
                        .par_chunks_exact_mut(steps * row_len)
                        .zip(q.par_chunks_exact(steps * row_len))
                        .zip(k.par_chunks_exact(own_len).zip(v.par_chunks_exact(own_len)))
                        .zip(self.variants);
                    copies.for_each(|(((output, q), (keys, values)), variant)| {
                        let mut spans: Vec<KeySpan<'_>> = stored
                            .iter()
                            .filter(|span| span.segment != Segment::Decode)
                            .filter(|span| variant.sees(at.layer, span.segment))
                            .copied()
                            .collect();
                        let keys = KvNumbers::rounded(precision, keys);
                        let values = KvNumbers::rounded(precision, values);
                        spans.push(KeySpan {
                            keys: keys.elements(),
                            values: values.elements(),
                            head_stride: steps * shape.head_dim,
                            len: steps,
                            first_position: self.prompt_len - 1,
                            segment: Segment::Decode,
                        });
                        let queries = Queries { data: q, rows: steps, first_position: self.prompt_len - 1 };
                        attention(&shape, &queries, &spans, output);
                    });
                })
            })
        })???;
        let dims = (copies * steps, shape.query_heads, shape.head_dim);
        Ok(Tensor::from_vec(output, dims, &Device::Cpu)?)
    }
}
