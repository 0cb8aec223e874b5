//! Rotary embedding: the angles of positions, once for all layers that turn alike.

use crate::config::RopeConfig;
use crate::{ModelConfig, Result, tensor};
use candle_core::Tensor;

/// The ways in which a model's layers turn queries and keys.
pub(super) struct RotaryTables {
    distinct: Vec<RopeConfig>,
    /// Index into `distinct` of each layer; `None` where a layer turns nothing.
    of_layer: Vec<Option<usize>>,
}

/// Angles of some positions.
pub(super) struct Angles<'a> {
    tables: &'a RotaryTables,
    /// For each distinct way: cos and sin `[rows, half]`.
    cos_sin: Vec<[Vec<f32>; 2]>,
}

/// Angles of some positions at a layer.
#[derive(Clone, Copy)]
pub(super) struct Rotary<'a> {
    cos_sin: &'a [Vec<f32>; 2],
    /// Pairs of elements that are turned.
    half: usize,
}

impl RotaryTables {
    pub(super) fn new(config: &ModelConfig) -> Self {
        let mut distinct: Vec<RopeConfig> = vec![];
        let mut index = |rope: &RopeConfig| {
            distinct.iter().position(|known| known == rope).unwrap_or_else(|| {
                distinct.push(rope.clone());
                distinct.len() - 1
            })
        };
        let of_layer = config.rope.iter().map(|rope| rope.as_ref().map(&mut index)).collect();
        Self { distinct, of_layer }
    }

    /// Angles of rows at `positions` in a sequence of at most `sequence_len` tokens.
    pub(super) fn angles(&self, positions: &[usize], sequence_len: usize) -> Angles<'_> {
        let cos_sin = self.distinct.iter().map(|rope| {
            // Frequencies and angles are rounded to f32, as the models were trained with.
            let frequencies: Vec<f32> = rope.frequencies(sequence_len).iter().map(|&f| f as f32).collect();
            let magnitude = rope.magnitude();
            let angles = positions.iter().flat_map(|&p| frequencies.iter().map(move |f| p as f32 * f));
            let (cos, sin) = angles
                .map(|angle| {
                    let (sin, cos) = f64::from(angle).sin_cos();
                    ((magnitude * cos) as f32, (magnitude * sin) as f32)
                })
                .unzip();
            [cos, sin]
        });
        Angles { tables: self, cos_sin: cos_sin.collect() }
    }
}

impl Angles<'_> {
    /// What a layer turns by.
    pub(super) fn of_layer(&self, layer: usize) -> Option<Rotary<'_>> {
        let index = self.tables.of_layer[layer]?;
        Some(Rotary { cos_sin: &self.cos_sin[index], half: self.tables.distinct[index].dims / 2 })
    }
}

impl Rotary<'_> {
    /// Turns pairs (i, i + half) of `x [rows, heads, head_dim]`.
    pub(super) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let [cos, sin] = self.cos_sin;
        tensor::rotate(x, [cos, sin], self.half)
    }
}
