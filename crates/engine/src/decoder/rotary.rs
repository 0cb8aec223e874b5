//! Rotary embedding (Su et al. 2021): the angles of positions, computed once for all layers with the same frequencies.

use super::SequenceRows;
use crate::config::RopeConfig;
use crate::tensor::{Tensor, mixed};
use crate::{Error, ModelConfig, Result};
use layerscope_kernels::cuda::{Buffer, Device, Element, Numbers};
use layerscope_kernels::elementwise::cuda::Rotation;
use std::sync::{Arc, Mutex, PoisonError};

/// The rotary embeddings of a model's layers.
pub(super) struct RotaryTables {
    distinct: Vec<RopeConfig>,
    /// Index into `distinct` of each layer; `None` where a layer has none.
    of_layer: Vec<Option<usize>>,
    /// Frequencies that are on a GPU already.
    on_device: Mutex<Vec<(Vec<f32>, Arc<Buffer>)>>,
}

/// Angles of some positions.
pub(super) struct Angles<'a> {
    tables: &'a RotaryTables,
    /// For each distinct embedding.
    of_config: Vec<Angle>,
}

/// By how much the pairs of some rows are rotated.
pub(crate) enum Angle {
    /// cos and sin `[rows, half]`.
    Host([Vec<f32>; 2]),
    /// To be computed on a GPU.
    Device(DeviceAngle),
}

/// Positions (i32 `[rows]`) and frequencies (f32 `[half]`) in a GPU's memory.
pub(crate) struct DeviceAngle {
    positions: Arc<Buffer>,
    frequencies: Arc<Buffer>,
    magnitude: f32,
}

impl Angle {
    pub(crate) fn on_host(&self) -> Result<&[Vec<f32>; 2]> {
        match self {
            Self::Host(angle) => Ok(angle),
            Self::Device(_) => Err(mixed()),
        }
    }

    pub(crate) fn on_gpu(&self) -> Result<&DeviceAngle> {
        match self {
            Self::Device(angle) => Ok(angle),
            Self::Host(_) => Err(mixed()),
        }
    }
}

impl DeviceAngle {
    /// As kernels take it.
    pub(crate) fn rotation(&self, half: usize) -> Rotation<'_> {
        Rotation {
            positions: &self.positions,
            frequencies: Numbers::new(&self.frequencies, Element::F32, 0, half),
            magnitude: self.magnitude,
        }
    }
}

/// Angles of some positions at a layer.
#[derive(Clone, Copy)]
pub(super) struct Rotary<'a> {
    angle: &'a Angle,
    /// Pairs of elements that are rotated.
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
        Self { distinct, of_layer, on_device: Mutex::default() }
    }

    /// Angles of rows at `positions`, those of one sequence after the other.
    pub(super) fn angles(&self, positions: &[usize], sequences: &[SequenceRows]) -> Angles<'_> {
        let of_config = self.distinct.iter().map(|rope| {
            let magnitude = rope.magnitude();
            let mut angles = vec![];
            let mut rest = positions;
            for sequence in sequences {
                let frequencies = rounded_frequencies(rope, sequence.sequence_len);
                let (own, others) = rest.split_at(sequence.rows.min(rest.len()));
                angles.extend(own.iter().flat_map(|&p| frequencies.iter().map(move |f| p as f32 * f)));
                rest = others;
            }
            let (cos, sin) = angles
                .into_iter()
                .map(|angle| {
                    let (sin, cos) = f64::from(angle).sin_cos();
                    ((magnitude * cos) as f32, (magnitude * sin) as f32)
                })
                .unzip();
            Angle::Host([cos, sin])
        });
        Angles { tables: self, of_config: of_config.collect() }
    }

    /// The same of rows whose positions (i32) are on a GPU, for sequences with the same frequencies.
    pub(super) fn angles_on_device(
        &self,
        positions: Arc<Buffer>,
        sequences: &[SequenceRows],
    ) -> Result<Angles<'_>> {
        let of_config = self.distinct.iter().map(|rope| {
            let mut each = sequences.iter().map(|sequence| rounded_frequencies(rope, sequence.sequence_len));
            let frequencies = each.next().unwrap_or_default();
            if each.any(|other| other != frequencies) {
                return Err(Error::failure(
                    "on a GPU, short and long sequences of a model with LongRoPE share no forward pass",
                ));
            }
            let frequencies = self.frequencies_on_device(positions.device(), frequencies)?;
            let positions = Arc::clone(&positions);
            let magnitude = rope.magnitude() as f32;
            Ok(Angle::Device(DeviceAngle { positions, frequencies, magnitude }))
        });
        Ok(Angles { tables: self, of_config: of_config.collect::<Result<_>>()? })
    }

    fn frequencies_on_device(&self, device: &Device, frequencies: Vec<f32>) -> Result<Arc<Buffer>> {
        let mut known = self.on_device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, buffer)) = known.iter().find(|(numbers, _)| *numbers == frequencies) {
            return Ok(Arc::clone(buffer));
        }
        let buffer = device.reserve(size_of_val(frequencies.as_slice()))?;
        buffer.write(0, &frequencies)?;
        let buffer = Arc::new(buffer);
        known.push((frequencies, Arc::clone(&buffer)));
        Ok(buffer)
    }
}

/// Frequencies and angles are rounded to f32, as the models were trained with.
fn rounded_frequencies(rope: &RopeConfig, sequence_len: usize) -> Vec<f32> {
    rope.frequencies(sequence_len).iter().map(|&f| f as f32).collect()
}

impl Angles<'_> {
    /// The rotation of a layer.
    pub(super) fn of_layer(&self, layer: usize) -> Option<Rotary<'_>> {
        let index = self.tables.of_layer[layer]?;
        Some(Rotary { angle: &self.of_config[index], half: self.tables.distinct[index].dims / 2 })
    }
}

impl Rotary<'_> {
    /// cos and sin, `[rows, half]`.
    pub(super) fn on_host(&self) -> Result<[Vec<f32>; 2]> {
        self.angle.on_host().cloned()
    }

    /// Rotates queries and keys.
    pub(super) fn apply_to_both(&self, both: [&Tensor; 2]) -> Result<[Tensor; 2]> {
        Tensor::both_rotated(both, self.angle, self.half)
    }

    /// Rotates pairs (i, i + half) of `x [rows, heads, head_dim]`.
    pub(super) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        x.rotated(self.angle, self.half)
    }
}
