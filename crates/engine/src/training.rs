//! Training: gradients of an adapter's matrices. The forward pass is the decoder's own; hooks keep what the backward pass needs.
//!
//! Rows of a batch are those of several sequences, one after the other. In each, attention reads a *prefix* (keys and values that
//! are constants, such as a prompt's under the base weights) and the sequence's own rows, through which gradients flow.

mod attention;
mod backward;
mod derivatives;
mod dropout;
mod keys;

pub use backward::{BackwardWeights, Gradient, Gradients, backward, unembed_backward};
pub use dropout::Dropout;
pub use keys::{HeadKeys, KeyType, Prefix};

use crate::decoder::{Pass, SequenceRows};
use crate::hooks::{HookPoint, Hooks, Site};
use crate::policy::Visibility;
use crate::tensor::Tensor;
use crate::{ComputeType, Decoder, Depth, Device, Error, KvPrecision, Result, Session};
use attention::{BatchAttention, SavedAttention};
use ndarray::Array2;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Rows of one sequence.
#[derive(Debug, Clone)]
pub struct TrainingSequence {
    /// Tokens of the rows, at consecutive positions; at least two decode rows are among them.
    pub tokens: Vec<u32>,
    /// Position of the first.
    pub first_position: usize,
    /// Prompt tokens p; rows from p − 1 on are decode rows.
    pub prompt_len: usize,
    /// What rows read beside each other, by layer.
    pub prefix: Prefix,
}

impl TrainingSequence {
    /// Positions of the rows.
    pub fn positions(&self) -> Range<usize> {
        self.first_position..self.first_position + self.tokens.len()
    }
}

/// What a forward pass leaves for the backward pass.
pub struct Tape {
    /// By layer.
    layers: Vec<SavedLayer>,
    attention: Vec<SavedAttention>,
    /// Of the rows that enter the pass, those that go on from the cutoff.
    kept: Vec<u32>,
    cutoff: usize,
    /// Positions and sequences below the cutoff and from it on.
    rows: [Rows; 2],
    /// Residual stream `[rows, d]` behind the last layer, of the rows that went on.
    last: Tensor,
}

/// Rows of a pass.
#[derive(Debug, Clone, Default)]
struct Rows {
    positions: Vec<usize>,
    sequences: Vec<SequenceRows>,
}

/// Activations of a layer, `[rows, width]`.
#[derive(Default)]
struct SavedLayer {
    /// Residual stream before the layer.
    pre: Array2<f32>,
    /// Residual stream between attention and MLP; empty where they are parallel.
    mid: Array2<f32>,
    /// Queries and keys before their norm; empty where there is none.
    query: Array2<f32>,
    key: Array2<f32>,
    /// Gate and up projection; of an MLP without gate, the former is its only one. Empty where there are experts.
    gate: Array2<f32>,
    up: Array2<f32>,
}

impl Tape {
    /// Residual stream `[rows, d]` behind the last layer: all rows, or those that went on from the cutoff.
    pub fn last(&self) -> &Tensor {
        &self.last
    }

    /// Positions of these rows.
    pub fn last_positions(&self) -> &[usize] {
        &self.rows[1].positions
    }
}

/// The keys and values that a session stores, as constants for products in `compute`: of a prompt without its last token, say.
///
/// # Errors
/// Where a GPU fails.
pub fn prefix(session: &Session, compute: ComputeType) -> Result<Prefix> {
    let store = session.store();
    let kind = KeyType::for_products(compute, session.decoder().kv_precision() == KvPrecision::F16);
    let config = session.decoder().config();
    let of_head = |layer, head| {
        let numbers = store.keys_and_values_of(layer, head)?;
        Ok(Arc::new(HeadKeys::new(store.positions(layer, head), kind, numbers)))
    };
    let of_layer = |layer| (0..config.kv_heads).map(|head| of_head(layer, head)).collect();
    (0..config.layers).map(of_layer).collect()
}

/// Runs a batch through all layers, in `compute`, and keeps what the backward pass needs.
///
/// # Errors
/// [`Error::Input`] where the model is on a GPU; whatever the forward pass returns.
pub fn forward(
    decoder: &Decoder,
    batch: &[TrainingSequence],
    visibility: &Visibility,
    compute: ComputeType,
) -> Result<Tape> {
    if matches!(decoder.device(), Device::Cuda(_)) {
        return Err(Error::input("adapters are trained on the CPU here; use --device cpu"));
    }
    let config = decoder.config();
    let all = rows_of(batch, &|_, _| true);
    let kept_rows = rows_of(batch, &|position, prompt_len| visibility.goes_on(position, prompt_len));
    let goes_on = batch.iter().flat_map(|sequence| {
        sequence.positions().map(|position| visibility.goes_on(position, sequence.prompt_len))
    });
    let kept: Vec<u32> = (0u32..).zip(goes_on).filter(|(_, goes_on)| *goes_on).map(|(row, _)| row).collect();
    let saved = RefCell::new((0..config.layers).map(|_| SavedLayer::default()).collect::<Vec<_>>());
    let mut hooks = Hooks::none();
    for layer in 0..config.layers {
        let mut sites = vec![Site::ResidPre, Site::ResidMid, Site::MlpPre, Site::MlpPreLinear];
        if config.query_key_norm.is_some() {
            sites.extend([Site::Query, Site::Key]);
        }
        for site in sites {
            let saved = &saved;
            hooks.add(HookPoint { layer, site }, move |_, x| {
                let rows = x.shape()[0];
                let numbers = x.as_slice().map_or_else(|| x.iter().copied().collect(), <[f32]>::to_vec);
                let matrix = Array2::from_shape_vec((rows, numbers.len() / rows.max(1)), numbers);
                let matrix = matrix.map_err(|error| Error::failure(error.to_string()))?;
                let layer = &mut saved.borrow_mut()[layer];
                match site {
                    Site::ResidPre => layer.pre = matrix,
                    Site::ResidMid => layer.mid = matrix,
                    Site::MlpPre => layer.gate = matrix,
                    Site::MlpPreLinear => layer.up = matrix,
                    Site::Query => layer.query = matrix,
                    _ => layer.key = matrix,
                }
                Ok(None)
            });
        }
    }
    let cutoff = visibility.cutoff.min(config.layers);
    let mut attend = BatchAttention::new(decoder, batch, visibility);
    let tokens: Vec<u32> = batch.iter().flat_map(|sequence| &sequence.tokens).copied().collect();
    let mut x = decoder.embed(&tokens, &all.positions, &mut hooks)?;
    for (rows, layers) in [(&all, 0..cutoff), (&kept_rows, cutoff..config.layers)] {
        if layers.start == cutoff && kept.len() < all.positions.len() {
            x = x.select(&kept)?;
        }
        attend.rows = rows.clone();
        let mut pass = Pass {
            attend: &mut attend,
            hooks: &mut hooks,
            sequences: &rows.sequences,
            compute,
            rows_on_device: None,
        };
        x = decoder.forward(x, &rows.positions, Depth::of_layers(layers), &mut pass)?;
    }
    let attention = attend.saved;
    drop(hooks);
    Ok(Tape { layers: saved.into_inner(), attention, kept, cutoff, rows: [all, kept_rows], last: x })
}

/// The rows of a batch that are chosen, by position and prompt length. A pass wants single rows last, which a batch does not have:
/// all are multiplied together.
fn rows_of(batch: &[TrainingSequence], chosen: &dyn Fn(usize, usize) -> bool) -> Rows {
    let mut rows = Rows::default();
    for sequence in batch {
        let before = rows.positions.len();
        rows.positions.extend(sequence.positions().filter(|&position| chosen(position, sequence.prompt_len)));
        rows.sequences.push(SequenceRows {
            rows: rows.positions.len() - before,
            sequence_len: sequence.positions().end,
            first_decode: sequence.prompt_len - 1,
        });
    }
    rows
}
