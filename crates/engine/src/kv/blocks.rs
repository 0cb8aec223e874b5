//! Runs of tokens on their way out of the store and back into it.

use super::{KvNumbers, KvPrecision, KvStore, LayerNumbers, LayerStore, Run};
use crate::{Error, Result};
use half::{bf16, f16};
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

/// Keys and values that the store has given up.
pub(crate) struct GivenUp {
    numbers: LayerNumbers,
    layout: Layout,
}

/// How the keys of a layer lie.
#[derive(Clone, Copy)]
struct Layout {
    precision: KvPrecision,
    kv_heads: usize,
    capacity: usize,
    head_dim: usize,
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

impl GivenUp {
    /// All of it; beside what a GPU does, from any thread.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(crate) fn bytes(&self) -> Result<LayerBytes<'_>> {
        let [keys, values] = match &self.numbers {
            LayerNumbers::Host { keys, values } => {
                [keys, values].map(|numbers| Cow::Borrowed(numbers.bytes()))
            }
            LayerNumbers::Device { keys, values } => {
                [Cow::Owned(keys.bytes_beside()?), Cow::Owned(values.bytes_beside()?)]
            }
        };
        Ok(LayerBytes { keys, values, layout: self.layout })
    }
}

impl Layout {
    fn bytes_of(&self, head: usize, slot: usize) -> Range<usize> {
        let width = self.head_dim * self.precision.element_bytes();
        let start = (head * self.capacity + slot) * width;
        start..start + width
    }
}

/// The keys of a layer, on the host.
pub(crate) struct LayerKeys<'a> {
    /// `[kv_heads, capacity, head_dim]`.
    keys: Cow<'a, [u8]>,
    layout: Layout,
}

impl LayerKeys<'_> {
    /// Writes the key in a slot in f32, `[kv_heads, head_dim]`.
    pub(crate) fn key(&self, slot: usize, key: &mut [f32]) {
        for (head, key) in key.chunks_exact_mut(self.layout.head_dim).enumerate() {
            let bytes = &self.keys[self.layout.bytes_of(head, slot)];
            match self.layout.precision {
                KvPrecision::F32 => widen(bytes, key, f32::from_ne_bytes),
                KvPrecision::F16 => widen(bytes, key, |bytes| f16::from_ne_bytes(bytes).to_f32()),
                KvPrecision::Bf16 => widen(bytes, key, |bytes| bf16::from_ne_bytes(bytes).to_f32()),
            }
        }
    }
}

fn widen<const N: usize>(bytes: &[u8], numbers: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    numbers.iter_mut().zip(bytes.as_chunks().0).for_each(|(to, &bytes)| *to = number(bytes));
}

impl KvStore {
    /// Bytes of a record of so many tokens.
    pub(crate) fn record_bytes(&self, tokens: usize) -> usize {
        2 * tokens * self.kv_heads * self.head_dim * self.precision.element_bytes()
    }

    fn layout(&self, layer: usize) -> Layout {
        let (precision, kv_heads, head_dim) = (self.precision, self.kv_heads, self.head_dim);
        Layout { precision, kv_heads, capacity: self.layers[layer].capacity, head_dim }
    }

    /// All keys of a layer.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(crate) fn keys(&self, layer: usize) -> Result<LayerKeys<'_>> {
        let keys = match &self.layers[layer].numbers {
            LayerNumbers::Host { keys, .. } => Cow::Borrowed(keys.bytes()),
            LayerNumbers::Device { keys, .. } => Cow::Owned(keys.to_vec()?),
        };
        Ok(LayerKeys { keys, layout: self.layout(layer) })
    }

    /// Gives up a layer's tokens but for copies of those in `slots`, ascending, which stay in their order, in room for
    /// `capacity`.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(crate) fn keep_slots(
        &mut self,
        layer: usize,
        slots: &[Range<usize>],
        capacity: usize,
    ) -> Result<GivenUp> {
        let layout = self.layout(layer);
        let store = &self.layers[layer];
        let len = capacity * self.kv_heads * self.head_dim;
        let mut numbers = LayerNumbers::reserved(self.precision, len, &store.numbers.device())?;
        let mut first = 0;
        for slots in slots {
            for head in 0..self.kv_heads {
                let element = |slot: usize, capacity: usize| (head * capacity + slot) * self.head_dim;
                let (from, to) = (element(slots.start, store.capacity), element(first, capacity));
                numbers.copy_from(to, &store.numbers, from, slots.len() * self.head_dim, self.precision)?;
            }
            first += slots.len();
        }
        let runs = joined(slots.iter().flat_map(|slots| store.runs_within(slots.clone())).collect());
        let before = std::mem::replace(&mut self.layers[layer], LayerStore { numbers, capacity, runs });
        Ok(GivenUp { numbers: before.numbers, layout })
    }

    /// Gives up the tokens of a layer at some positions, with room for `capacity` in all from then on.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(crate) fn give_up(&mut self, layer: usize, positions: Range<usize>, capacity: usize) -> Result<()> {
        let store = &self.layers[layer];
        let mut kept = vec![];
        let mut slot = 0;
        for run in &store.runs {
            let end = run.first_position + run.len;
            for part in
                [run.first_position..end.min(positions.start), run.first_position.max(positions.end)..end]
            {
                if !part.is_empty() {
                    kept.push(slot + part.start - run.first_position..slot + part.end - run.first_position);
                }
            }
            slot += run.len;
        }
        let stays: usize = kept.iter().map(Range::len).sum();
        if stays == slot && capacity == store.capacity {
            return Ok(());
        }
        self.keep_slots(layer, &kept, capacity).map(drop)
    }

    /// Gives a layer room for `capacity` tokens, which is no less than it has.
    ///
    /// # Errors
    /// [`Error::Input`] where a GPU has not so much memory left.
    pub(crate) fn grow(&mut self, layer: usize, capacity: usize) -> Result<()> {
        let all = 0..self.len(layer);
        self.keep_slots(layer, std::slice::from_ref(&all), capacity).map(drop)
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
        let store = &mut self.layers[layer];
        match (&mut store.numbers, record) {
            (LayerNumbers::Host { keys, values }, Record::Host(record)) => {
                let halves = record.split_at(record.len() / 2);
                for (to, from) in [(keys, halves.0), (values, halves.1)] {
                    let width = from.len() / (tokens * kv_heads);
                    for (index, bytes) in from.chunks_exact(width).enumerate() {
                        let (token, head) = (index / kv_heads, index % kv_heads);
                        to.write_bytes((head * store.capacity + slot + token) * dim, bytes);
                    }
                }
            }
            (LayerNumbers::Device { keys: to_keys, values: to_values }, Record::Device { bytes, offset }) => {
                let len = tokens * kv_heads * dim;
                let first = offset / element.bytes();
                store::append(&Append {
                    keys: Numbers::new(bytes, element, first, len),
                    values: Numbers::new(bytes, element, first + len, len),
                    kv_heads,
                    head_dim: dim,
                    rows: tokens,
                    first_slot: slot,
                    decoded: None,
                    capacity: store.capacity,
                    to_keys: Numbers::all(to_keys, element),
                    to_values: Numbers::all(to_values, element),
                })?;
            }
            _ => return Err(Error::failure("KV comes back to another device; please report this")),
        }
        let end = store.len();
        let mut runs = store.runs_within(0..slot);
        runs.push(Run { first_position, len: tokens });
        runs.extend(store.runs_within(slot + tokens..end));
        store.runs = joined(runs);
        Ok(())
    }
}

impl LayerStore {
    /// The runs of some slots.
    fn runs_within(&self, slots: Range<usize>) -> Vec<Run> {
        let mut runs = vec![];
        let mut slot = 0;
        for run in &self.runs {
            let (first, end) = (slots.start.max(slot), slots.end.min(slot + run.len));
            if first < end {
                runs.push(Run { first_position: run.first_position + first - slot, len: end - first });
            }
            slot += run.len;
        }
        runs
    }
}

/// Runs, with those that continue each other as one.
fn joined(runs: Vec<Run>) -> Vec<Run> {
    let mut joined: Vec<Run> = vec![];
    for run in runs {
        match joined.last_mut() {
            Some(before) if before.first_position + before.len == run.first_position => before.len += run.len,
            _ => joined.push(run),
        }
    }
    joined
}

impl LayerNumbers {
    fn device(&self) -> crate::Device {
        match self {
            Self::Host { .. } => crate::Device::Cpu,
            Self::Device { keys, .. } => crate::Device::Cuda(keys.device().clone()),
        }
    }

    /// Copies `len` numbers of keys, and of values, from the index `from` of another to the index `to`.
    fn copy_from(
        &mut self,
        to: usize,
        other: &Self,
        from: usize,
        len: usize,
        precision: KvPrecision,
    ) -> Result<()> {
        let bytes = precision.element_bytes();
        match (self, other) {
            (Self::Host { keys, values }, Self::Host { keys: other_keys, values: other_values }) => {
                for (numbers, other) in [(keys, other_keys), (values, other_values)] {
                    numbers.write_bytes(to, &other.bytes()[from * bytes..(from + len) * bytes]);
                }
            }
            (Self::Device { keys, values }, Self::Device { keys: other_keys, values: other_values }) => {
                for (numbers, other) in [(keys, other_keys), (values, other_values)] {
                    numbers.copy_from(to * bytes, other, from * bytes, len * bytes)?;
                }
            }
            _ => return Err(Error::failure("KV is on two devices; please report this")),
        }
        Ok(())
    }
}

impl KvNumbers {
    /// As bytes in memory.
    fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(numbers) => bytemuck::cast_slice(numbers),
            Self::F16(numbers) => bytemuck::cast_slice(numbers),
        }
    }

    /// Overwrites numbers from the index `at` on.
    fn write_bytes(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Self::F32(to) => {
                bytemuck::cast_slice_mut::<_, u8>(&mut to[at..at + bytes.len() / size_of::<f32>()])
                    .copy_from_slice(bytes);
            }
            Self::F16(to) => {
                bytemuck::cast_slice_mut::<_, u8>(&mut to[at..at + bytes.len() / size_of::<u16>()])
                    .copy_from_slice(bytes);
            }
        }
    }
}
