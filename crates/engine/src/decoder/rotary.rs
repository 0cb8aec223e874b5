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
    /// Angles that are known, for each distinct embedding.
    known: Vec<Mutex<KnownAngles>>,
    /// Frequencies that are on a GPU already.
    on_device: Mutex<Vec<(Vec<f32>, Arc<Buffer>)>>,
}

/// cos and sin of the positions from 0 on, `[positions, half]`. Copies of the same rows go through one layer at a time and ask for the
/// same angles each time.
#[derive(Default)]
struct KnownAngles {
    frequencies: Vec<f32>,
    cos_sin: [Vec<f32>; 2],
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
        let known = distinct.iter().map(|_| Mutex::default()).collect();
        Self { distinct, of_layer, known, on_device: Mutex::default() }
    }

    /// Angles of rows at `positions`, those of one sequence after the other.
    pub(super) fn angles(&self, positions: &[usize], sequences: &[SequenceRows]) -> Angles<'_> {
        let of_config = self.distinct.iter().zip(&self.known).map(|(rope, known)| {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            let mut cos_sin = [vec![], vec![]];
            let mut rest = positions;
            for sequence in sequences {
                let frequencies = rounded_frequencies(rope, sequence.sequence_len);
                let (own, others) = rest.split_at(sequence.rows.min(rest.len()));
                known.append(own, frequencies, rope.magnitude(), &mut cos_sin);
                rest = others;
            }
            Angle::Host(cos_sin)
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

impl KnownAngles {
    /// Positions below this are kept: a few MiB.
    const POSITIONS: usize = 16_384;

    /// Appends cos and sin of some positions.
    fn append(&mut self, positions: &[usize], frequencies: Vec<f32>, magnitude: f64, to: &mut [Vec<f32>; 2]) {
        let end = positions.iter().max().map_or(0, |last| last + 1);
        // A decode step asks for a position once.
        if positions.len() == 1 || end > Self::POSITIONS {
            for &position in positions {
                append_angles(position, &frequencies, magnitude, to);
            }
            return;
        }
        if self.frequencies != frequencies {
            *self = Self { frequencies, ..Self::default() };
        }
        let half = self.frequencies.len();
        let known = self.cos_sin[0].len() / half.max(1);
        if known < end {
            for position in known..end.next_power_of_two().min(Self::POSITIONS) {
                append_angles(position, &self.frequencies, magnitude, &mut self.cos_sin);
            }
        }
        for (to, known) in to.iter_mut().zip(&self.cos_sin) {
            to.reserve(positions.len() * half);
            for position in positions {
                to.extend_from_slice(&known[position * half..][..half]);
            }
        }
    }
}

/// Appends cos and sin of a position.
fn append_angles(position: usize, frequencies: &[f32], magnitude: f64, [cos, sin]: &mut [Vec<f32>; 2]) {
    for frequency in frequencies {
        let (of_sin, of_cos) = f64::from(position as f32 * frequency).sin_cos();
        cos.push((magnitude * of_cos) as f32);
        sin.push((magnitude * of_sin) as f32);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_angles_are_those_of_each_position() {
        let frequencies = vec![1.0f32, 0.25, 0.003];
        let far = KnownAngles::POSITIONS;
        let mut known = KnownAngles::default();
        for positions in [vec![2, 3, 2, 3], vec![700, 0, 5], vec![9], vec![far - 1, 1], vec![far + 5, 4]] {
            let (mut found, mut expected) = ([vec![7.0], vec![8.0]], [vec![7.0], vec![8.0]]);
            known.append(&positions, frequencies.clone(), 1.5, &mut found);
            for position in positions {
                append_angles(position, &frequencies, 1.5, &mut expected);
            }
            assert_eq!(found, expected);
        }
        // Other frequencies, as of a longer sequence under LongRoPE.
        let (mut found, mut expected) = ([vec![], vec![]], [vec![], vec![]]);
        known.append(&[6, 2], vec![0.5], 1.0, &mut found);
        [6, 2].into_iter().for_each(|position| append_angles(position, &[0.5], 1.0, &mut expected));
        assert_eq!(found, expected);
    }
}
