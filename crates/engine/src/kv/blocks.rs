//! Blocks of tokens on their way out of the store and back into it.

use super::evict::{Evicted, Layout};
use super::group::{HeadGroup, Memory, PositionRun, joined};
use super::{KvBuffer, KvPrecision, KvStore};
use crate::{Error, Result};
use half::{bf16, f16};
use layerscope_kernels::Q8Block;
use layerscope_kernels::cuda::store::{self, Append};
use layerscope_kernels::cuda::{Buffer, Numbers};
use std::borrow::Cow;
use std::ops::Range;

/// All keys and values of a layer, on the host, in the store's type.
pub(crate) struct LayerBytes<'a> {
    /// `[kv_heads, capacity, head_dim]`.
    keys: Cow<'a, [u8]>,
    /// The same.
    values: Cow<'a, [u8]>,
    layout: Layout,
}

/// What comes back into the store: a record as [`LayerBytes::record`] makes it, and where it is.
pub(crate) enum Record<'a> {
    Host(&'a [u8]),
    Device { bytes: &'a Buffer, offset: usize },
}

impl LayerBytes<'_> {
    /// Makes `record` that of the tokens in `slots`: keys `[slots, kv_heads, head_dim]`, then values.
    pub(crate) fn record(&self, slots: Range<usize>, record: &mut Vec<u8>) {
        record.clear();
        for numbers in [&self.keys, &self.values] {
            for slot in slots.clone() {
                for head in 0..self.layout.kv_heads {
                    record.extend_from_slice(&numbers[self.layout.bytes_of(head, slot)]);
                }
            }
        }
    }
}

impl Evicted {
    /// All of it; beside what a GPU does, from any thread.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(crate) fn bytes(&self) -> Result<LayerBytes<'_>> {
        let [keys, values] = match &self.memory {
            Memory::Host { keys, values } => [keys, values].map(|numbers| Cow::Borrowed(numbers.bytes())),
            Memory::Device { keys, values } => {
                [Cow::Owned(keys.bytes_beside()?), Cow::Owned(values.bytes_beside()?)]
            }
        };
        Ok(LayerBytes { keys, values, layout: self.layout })
    }
}

impl Layout {
    fn bytes_of(&self, head: usize, slot: usize) -> Range<usize> {
        let width = self.precision.bytes(self.head_dim);
        let start = (head * self.capacity + slot) * width;
        start..start + width
    }
}

/// The keys of KV heads of a layer, or their values, on the host.
pub(crate) struct LayerKeys<'a> {
    /// `[kv_heads, capacity, head_dim]`.
    keys: Cow<'a, [u8]>,
    layout: Layout,
}

impl LayerKeys<'_> {
    /// Those of a head in its first slots in f32, `[slots, head_dim]`.
    fn of_head(&self, head: usize, slots: usize) -> Vec<f32> {
        let mut numbers = vec![0.0; slots * self.layout.head_dim];
        for (slot, key) in numbers.chunks_exact_mut(self.layout.head_dim).enumerate() {
            self.key_of_head(head, slot, key);
        }
        numbers
    }

    /// Writes the key in a slot in f32, `[kv_heads, head_dim]`.
    pub(crate) fn key(&self, slot: usize, key: &mut [f32]) {
        for (head, key) in key.chunks_exact_mut(self.layout.head_dim).enumerate() {
            self.key_of_head(head, slot, key);
        }
    }

    /// Writes the key of a KV head in a slot in f32, `[head_dim]`.
    pub(crate) fn key_of_head(&self, head: usize, slot: usize, key: &mut [f32]) {
        let bytes = &self.keys[self.layout.bytes_of(head, slot)];
        match self.layout.precision {
            KvPrecision::F32 => widen(bytes, key, f32::from_ne_bytes),
            KvPrecision::F16 => widen(bytes, key, |bytes| f16::from_ne_bytes(bytes).to_f32()),
            KvPrecision::Bf16 => widen(bytes, key, |bytes| bf16::from_ne_bytes(bytes).to_f32()),
            KvPrecision::Q8 => {
                for (to, block) in
                    key.as_chunks_mut().0.iter_mut().zip(bytes.chunks_exact(size_of::<Q8Block>()))
                {
                    *to = bytemuck::pod_read_unaligned::<Q8Block>(block).to_f32();
                }
            }
        }
    }
}

fn widen<const N: usize>(bytes: &[u8], numbers: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    numbers.iter_mut().zip(bytes.as_chunks().0).for_each(|(to, &bytes)| *to = number(bytes));
}

impl HeadGroup {
    fn keys(&self) -> Result<LayerKeys<'_>> {
        let keys = match &self.memory {
            Memory::Host { keys, .. } => Cow::Borrowed(keys.bytes()),
            Memory::Device { keys, .. } => Cow::Owned(keys.to_vec()?),
        };
        Ok(LayerKeys { keys, layout: self.layout() })
    }

    fn values(&self) -> Result<LayerKeys<'_>> {
        let values = match &self.memory {
            Memory::Host { values, .. } => Cow::Borrowed(values.bytes()),
            Memory::Device { values, .. } => Cow::Owned(values.to_vec()?),
        };
        Ok(LayerKeys { keys: values, layout: self.layout() })
    }
}

impl KvStore {
    /// Bytes of a record of so many tokens.
    pub(crate) fn record_bytes(&self, tokens: usize) -> usize {
        2 * self.precision.bytes(tokens * self.kv_heads * self.head_dim)
    }

    /// All keys of a layer.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(crate) fn keys(&self, layer: usize) -> Result<LayerKeys<'_>> {
        self.whole(layer)?.keys()
    }

    /// All values of a layer, as keys are.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(crate) fn values(&self, layer: usize) -> Result<LayerKeys<'_>> {
        self.whole(layer)?.values()
    }

    /// The stored keys of a layer in f32, in the order of their slots: `[kv_heads, stored, head_dim]`.
    ///
    /// # Errors
    /// Where a GPU fails, or KV heads of the layer store different positions.
    pub fn keys_by_head(&self, layer: usize) -> Result<Vec<f32>> {
        let (keys, count) = (self.keys(layer)?, self.len(layer));
        Ok((0..self.kv_heads).flat_map(|head| keys.of_head(head, count)).collect())
    }

    /// The stored keys of each KV head of a layer in f32, in the order of their slots: `[stored, head_dim]` each.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(crate) fn keys_of_heads(&self, layer: usize) -> Result<Vec<Vec<f32>>> {
        let mut of_heads = vec![vec![]; self.kv_heads];
        for group in &self.layers[layer] {
            let (keys, count) = (group.keys()?, group.len());
            for (index, head) in group.heads.clone().enumerate() {
                of_heads[head] = keys.of_head(index, count);
            }
        }
        Ok(of_heads)
    }

    /// The stored keys and values of a KV head in f32, in the order of their slots: `[stored, head_dim]` each.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(crate) fn keys_and_values_of(&self, layer: usize, kv_head: usize) -> Result<[Vec<f32>; 2]> {
        let group = self.layers[layer].iter().find(|group| group.heads.contains(&kv_head));
        let Some(group) = group else { return Ok([vec![], vec![]]) };
        let (head, count) = (kv_head - group.heads.start, group.len());
        Ok([group.keys()?.of_head(head, count), group.values()?.of_head(head, count)])
    }

    /// Puts the tokens of a record, at consecutive positions from `first_position` on, into slots from `slot` on, in place of
    /// what is there.
    ///
    /// # Errors
    /// [`Error::Failure`] where the record is of another device, or the GPU fails.
    pub(crate) fn replace(
        &mut self,
        layer: usize,
        slot: usize,
        (first_position, tokens): (usize, usize),
        record: &Record<'_>,
    ) -> Result<()> {
        let (kv_heads, dim, element) = (self.kv_heads, self.head_dim, self.precision.device_element());
        let group = self.whole_mut(layer)?;
        match (&mut group.memory, record) {
            (Memory::Host { keys, values }, Record::Host(record)) => {
                let halves = record.split_at(record.len() / 2);
                for (to, from) in [(keys, halves.0), (values, halves.1)] {
                    let width = from.len() / (tokens * kv_heads);
                    for (index, bytes) in from.chunks_exact(width).enumerate() {
                        let (token, head) = (index / kv_heads, index % kv_heads);
                        to.write_bytes((head * group.capacity + slot + token) * dim, bytes);
                    }
                }
            }
            (Memory::Device { keys: to_keys, values: to_values }, Record::Device { bytes, offset }) => {
                let len = tokens * kv_heads * dim;
                let first = offset / element.bytes();
                store::append(&Append {
                    keys: Numbers::new(bytes, element, first, len),
                    values: Numbers::new(bytes, element, first + len, len),
                    row_heads: kv_heads,
                    first_head: 0,
                    kv_heads,
                    head_dim: dim,
                    rows: tokens,
                    first_slot: slot,
                    decoded: None,
                    capacity: group.capacity,
                    to_keys: Numbers::all(to_keys, element),
                    to_values: Numbers::all(to_values, element),
                })?;
            }
            _ => return Err(Error::failure("KV comes back to another device; please report this")),
        }
        let end = group.len();
        let mut runs = group.runs_within(0..slot);
        runs.push(PositionRun { first_position, len: tokens });
        runs.extend(group.runs_within(slot + tokens..end));
        group.runs = joined(runs);
        Ok(())
    }
}

impl KvBuffer {
    /// As bytes in memory.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(numbers) => bytemuck::cast_slice(numbers),
            Self::F16(numbers) => bytemuck::cast_slice(numbers),
            Self::Q8(blocks) => bytemuck::cast_slice(blocks),
        }
    }

    /// Overwrites numbers from the index `at` on.
    pub(super) fn write_bytes(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Self::F32(to) => {
                bytemuck::cast_slice_mut::<_, u8>(&mut to[at..at + bytes.len() / size_of::<f32>()])
                    .copy_from_slice(bytes);
            }
            Self::F16(to) => {
                bytemuck::cast_slice_mut::<_, u8>(&mut to[at..at + bytes.len() / size_of::<u16>()])
                    .copy_from_slice(bytes);
            }
            Self::Q8(to) => {
                let blocks = &mut to[at / Q8Block::ELEMENTS..][..bytes.len() / size_of::<Q8Block>()];
                bytemuck::cast_slice_mut::<_, u8>(blocks).copy_from_slice(bytes);
            }
        }
    }
}
