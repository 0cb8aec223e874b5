//! The KV store: keys and values per layer, in buffers reserved once for what the policy will keep, and no more.

mod blocks;
mod numbers;
mod spans;

use crate::tensor::{Tensor, with_f32};
use crate::{Device, Error, ModelConfig, Result};
pub(crate) use blocks::{GivenUp, LayerKeys, Record};
use layerscope_kernels::cuda::store::{self, Append};
use layerscope_kernels::cuda::{Buffer, Numbers};
pub use numbers::{KvNumbers, KvPrecision};
pub(crate) use spans::View;
use std::ops::Range;

/// Keys and values of every layer, where the model runs.
pub struct KvStore {
    kv_heads: usize,
    head_dim: usize,
    precision: KvPrecision,
    layers: Vec<LayerStore>,
}

/// One layer.
struct LayerStore {
    numbers: LayerNumbers,
    capacity: usize,
    /// Stored positions in runs; slot order is run order. Ascending, unless blocks were exchanged.
    runs: Vec<Run>,
}

/// Keys and values, `[kv_heads, capacity, head_dim]` each.
enum LayerNumbers {
    Host { keys: KvNumbers, values: KvNumbers },
    Device { keys: Buffer, values: Buffer },
}

#[derive(Clone, Copy)]
struct Run {
    first_position: usize,
    len: usize,
}

/// A layer's keys and values in a GPU's memory, `[kv_heads, capacity, head_dim]`.
pub(crate) struct DeviceLayer<'a> {
    pub(crate) keys: Numbers<'a>,
    pub(crate) values: Numbers<'a>,
    pub(crate) capacity: usize,
    /// Tokens stored.
    pub(crate) len: usize,
    /// Whether they are at consecutive positions.
    pub(crate) consecutive: bool,
}

impl KvStore {
    /// Reserves room for `capacity[layer]` tokens in each layer.
    ///
    /// # Errors
    /// [`Error::Input`] where a GPU has not so much memory left.
    pub fn new(
        config: &ModelConfig,
        capacity: &[usize],
        precision: KvPrecision,
        device: &Device,
    ) -> Result<Self> {
        let per_token = config.kv_heads * config.head_dim;
        let layers = capacity.iter().map(|&capacity| {
            let numbers = LayerNumbers::reserved(precision, capacity * per_token, device)?;
            Ok(LayerStore { numbers, capacity, runs: vec![] })
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(Self { kv_heads: config.kv_heads, head_dim: config.head_dim, precision, layers })
    }

    /// Bytes allocated for keys and values.
    pub fn allocated_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.numbers.allocated_bytes()).sum()
    }

    /// The type of keys and values.
    pub fn precision(&self) -> KvPrecision {
        self.precision
    }

    /// Tokens that a layer has room for.
    pub(crate) fn capacity(&self, layer: usize) -> usize {
        self.layers[layer].capacity
    }

    /// Tokens stored in a layer.
    pub fn len(&self, layer: usize) -> usize {
        self.layers[layer].len()
    }

    /// Stores the keys and values of rows behind all stored ones, whatever their positions;
    /// `keys` and `values` are `[rows, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// [`Error::Failure`] where the layer has no room left.
    pub fn append(
        &mut self,
        layer: usize,
        positions: &[usize],
        keys: &Tensor,
        values: &Tensor,
    ) -> Result<()> {
        let (kv_heads, dim) = (self.kv_heads, self.head_dim);
        self.check_room(layer, positions.len())?;
        let store = &mut self.layers[layer];
        let first_slot = store.len();
        match &mut store.numbers {
            LayerNumbers::Host { keys: to_keys, values: to_values } => {
                for (numbers, to) in [(keys, to_keys), (values, to_values)] {
                    with_f32(numbers, |numbers| {
                        for (index, numbers) in numbers.chunks_exact(dim).enumerate() {
                            let (row, head) = (index / kv_heads, index % kv_heads);
                            to.write((head * store.capacity + first_slot + row) * dim, numbers);
                        }
                    })?;
                }
            }
            LayerNumbers::Device { .. } => self.append_on_device(layer, first_slot, None, [keys, values])?,
        }
        self.note(layer, positions);
        Ok(())
    }

    /// That a layer has room for so many tokens more.
    pub(crate) fn check_room(&self, layer: usize, tokens: usize) -> Result<()> {
        let capacity = self.layers[layer].capacity;
        if self.len(layer) + tokens <= capacity {
            return Ok(());
        }
        Err(Error::failure(format!(
            "the KV store of layer {layer} is full ({capacity} tokens); please report this"
        )))
    }

    /// Queues the storing of rows from a slot on, which moves on by what `decoded` holds (i32) when it runs; keeps no account
    /// of it.
    pub(crate) fn append_on_device(
        &self,
        layer: usize,
        first_slot: usize,
        decoded: Option<&Buffer>,
        [keys, values]: [&Tensor; 2],
    ) -> Result<()> {
        let (Some(to), Some(from), Some(values)) =
            (self.on_device(layer), keys.on_device(), values.on_device())
        else {
            return Err(Error::failure("keys and their store are on different devices; please report this"));
        };
        Ok(store::append(&Append {
            keys: from.numbers(),
            values: values.numbers(),
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            rows: keys.rows(),
            first_slot,
            decoded,
            capacity: to.capacity,
            to_keys: to.keys,
            to_values: to.values,
        })?)
    }

    /// Keeps account of rows at these positions having been stored.
    pub(crate) fn note(&mut self, layer: usize, positions: &[usize]) {
        let runs = &mut self.layers[layer].runs;
        for &position in positions {
            match runs.last_mut() {
                Some(run) if run.first_position + run.len == position => run.len += 1,
                _ => runs.push(Run { first_position: position, len: 1 }),
            }
        }
    }

    /// Forgets every key at `position` and after it, in the layers from `layer` on.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub fn truncate(&mut self, layer: usize, position: usize) -> Result<()> {
        for layer in layer..self.layers.len() {
            if !self.is_ascending(layer) {
                self.give_up(layer, position..usize::MAX, self.capacity(layer))?;
                continue;
            }
            // What goes is behind all that stays.
            self.layers[layer].runs.retain_mut(|run| {
                run.len = run.len.min(position.saturating_sub(run.first_position));
                run.len > 0
            });
        }
        Ok(())
    }

    /// Whether each key of a layer is at a position behind those in the slots before its own.
    pub(crate) fn is_ascending(&self, layer: usize) -> bool {
        let runs = &self.layers[layer].runs;
        runs.windows(2).all(|pair| pair[0].first_position + pair[0].len <= pair[1].first_position)
    }

    /// A layer's memory on a GPU, if it is there.
    pub(crate) fn on_device(&self, layer: usize) -> Option<DeviceLayer<'_>> {
        let store = &self.layers[layer];
        let LayerNumbers::Device { keys, values } = &store.numbers else { return None };
        let element = self.precision.device_element();
        Some(DeviceLayer {
            keys: Numbers::all(keys, element),
            values: Numbers::all(values, element),
            capacity: store.capacity,
            len: store.len(),
            consecutive: store.runs.len() <= 1,
        })
    }

    /// Stored positions of a layer and, of every KV head, their keys and values in f32, `[kv_heads, stored, head_dim]`.
    pub(crate) fn gathered(&self, layer: usize) -> Result<(Vec<usize>, Vec<f32>, Vec<f32>)> {
        let store = &self.layers[layer];
        let positions: Vec<usize> =
            store.runs.iter().flat_map(|run| run.first_position..run.first_position + run.len).collect();
        let of_heads = |all: &dyn Fn(Range<usize>) -> Vec<f32>| {
            let heads = (0..self.kv_heads).map(|head| head * store.capacity * self.head_dim);
            heads.flat_map(|start| all(start..start + positions.len() * self.head_dim)).collect::<Vec<f32>>()
        };
        let (keys, values) = match &store.numbers {
            LayerNumbers::Host { keys, values } => (
                of_heads(&|range| keys.elements().to_f32(range)),
                of_heads(&|range| values.elements().to_f32(range)),
            ),
            LayerNumbers::Device { .. } => {
                let Some(on_device) = self.on_device(layer) else { unreachable!("it is on the device") };
                let (keys, values) = (on_device.keys.to_vec()?, on_device.values.to_vec()?);
                (of_heads(&|range| keys[range].to_vec()), of_heads(&|range| values[range].to_vec()))
            }
        };
        Ok((positions, keys, values))
    }
}

impl LayerNumbers {
    /// Room for so many keys' numbers and as many values'.
    fn reserved(precision: KvPrecision, len: usize, device: &Device) -> Result<Self> {
        Ok(match device {
            Device::Cpu => Self::Host {
                keys: KvNumbers::zeros(precision, len),
                values: KvNumbers::zeros(precision, len),
            },
            Device::Cuda(device) => {
                let bytes = len * precision.element_bytes();
                Self::Device { keys: device.reserve(bytes)?, values: device.reserve(bytes)? }
            }
        })
    }

    fn allocated_bytes(&self) -> usize {
        match self {
            Self::Host { keys, values } => keys.allocated_bytes() + values.allocated_bytes(),
            Self::Device { keys, values } => keys.bytes() + values.bytes(),
        }
    }
}

impl LayerStore {
    fn len(&self) -> usize {
        self.runs.iter().map(|run| run.len).sum()
    }
}
