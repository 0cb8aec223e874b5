//! KV heads of a layer that store the same positions.

use super::{DeviceLayer, Gathered, KvBuffer, KvPrecision};
use crate::tensor::{Tensor, with_f32};
use crate::{Device, Error, Result};
use layerscope_kernels::cuda::store::{self, Append};
use layerscope_kernels::cuda::{Buffer, Numbers};
use std::ops::Range;

/// Keys and values of some KV heads.
pub(super) struct HeadGroup {
    pub(super) heads: Range<usize>,
    pub(super) head_dim: usize,
    pub(super) precision: KvPrecision,
    /// Slots.
    pub(super) capacity: usize,
    pub(super) memory: Memory,
    /// Stored positions in runs; slot order is run order. Ascending, unless blocks were exchanged.
    pub(super) runs: Vec<PositionRun>,
}

/// Keys and values, `[heads, capacity, head_dim]` each.
pub(super) enum Memory {
    Host { keys: KvBuffer, values: KvBuffer },
    Device { keys: Buffer, values: Buffer },
}

/// Consecutive positions in consecutive slots.
#[derive(Clone, Copy)]
pub(super) struct PositionRun {
    pub(super) first_position: usize,
    pub(super) len: usize,
}

impl HeadGroup {
    /// Without tokens, with room for `capacity`.
    pub(super) fn reserved(
        heads: Range<usize>,
        head_dim: usize,
        capacity: usize,
        precision: KvPrecision,
        device: &Device,
    ) -> Result<Self> {
        let memory = Memory::reserved(precision, heads.len() * capacity * head_dim, device)?;
        Ok(Self { heads, head_dim, precision, capacity, memory, runs: vec![] })
    }

    pub(super) fn len(&self) -> usize {
        self.runs.iter().map(|run| run.len).sum()
    }

    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        self.runs.iter().flat_map(|run| run.first_position..run.first_position + run.len)
    }

    pub(super) fn is_ascending(&self) -> bool {
        self.runs.windows(2).all(|pair| pair[0].first_position + pair[0].len <= pair[1].first_position)
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.memory.allocated_bytes()
    }

    /// Index of the first element of a slot of a head, counted within the group.
    pub(super) fn element(&self, head: usize, slot: usize) -> usize {
        (head * self.capacity + slot) * self.head_dim
    }

    /// Writes this group's heads of rows `[rows, row_heads, head_dim]` into slots from `first_slot` on.
    pub(super) fn write(
        &mut self,
        row_heads: usize,
        first_slot: usize,
        decoded: Option<&Buffer>,
        [keys, values]: [&Tensor; 2],
    ) -> Result<()> {
        let (dim, capacity, heads) = (self.head_dim, self.capacity, self.heads.clone());
        let Memory::Host { keys: to_keys, values: to_values } = &mut self.memory else {
            return self.write_on_device(row_heads, first_slot, decoded, [keys, values]);
        };
        for (rows, to) in [(keys, to_keys), (values, to_values)] {
            with_f32(rows, |rows| {
                for (row, numbers) in rows.chunks_exact(row_heads * dim).enumerate() {
                    for (index, head) in heads.clone().enumerate() {
                        let at = (index * capacity + first_slot + row) * dim;
                        to.write(at, &numbers[head * dim..][..dim]);
                    }
                }
            })?;
        }
        Ok(())
    }

    /// The same on a GPU, where the slots move on by what `decoded` holds (i32) when it runs.
    pub(super) fn write_on_device(
        &self,
        row_heads: usize,
        first_slot: usize,
        decoded: Option<&Buffer>,
        [keys, values]: [&Tensor; 2],
    ) -> Result<()> {
        let (Some(to), Some(from), Some(values)) = (self.on_device(), keys.on_device(), values.on_device())
        else {
            return Err(Error::failure("keys and their store are on different devices; please report this"));
        };
        Ok(store::append(&Append {
            keys: from.numbers(),
            values: values.numbers(),
            row_heads,
            first_head: self.heads.start,
            kv_heads: self.heads.len(),
            head_dim: self.head_dim,
            rows: keys.rows(),
            first_slot,
            decoded,
            capacity: self.capacity,
            to_keys: to.keys,
            to_values: to.values,
        })?)
    }

    /// Keeps account of rows at these positions having been stored.
    pub(super) fn add(&mut self, positions: &[usize]) {
        for &position in positions {
            match self.runs.last_mut() {
                Some(run) if run.first_position + run.len == position => run.len += 1,
                _ => self.runs.push(PositionRun { first_position: position, len: 1 }),
            }
        }
    }

    /// Its memory on a GPU, if it is there.
    pub(super) fn on_device(&self) -> Option<DeviceLayer<'_>> {
        let Memory::Device { keys, values } = &self.memory else { return None };
        let element = self.precision.device_element();
        Some(DeviceLayer {
            keys: Numbers::all(keys, element),
            values: Numbers::all(values, element),
            capacity: self.capacity,
            len: self.len(),
            consecutive: self.runs.len() <= 1,
        })
    }

    pub(super) fn gathered(&self) -> Result<Gathered> {
        let positions: Vec<usize> = self.positions().collect();
        let of_heads = |all: &dyn Fn(Range<usize>) -> Vec<f32>| {
            let starts = (0..self.heads.len()).map(|head| self.element(head, 0));
            starts.flat_map(|start| all(start..start + positions.len() * self.head_dim)).collect::<Vec<f32>>()
        };
        let (keys, values) = match &self.memory {
            Memory::Host { keys, values } => (
                of_heads(&|range| keys.elements().to_f32(range)),
                of_heads(&|range| values.elements().to_f32(range)),
            ),
            Memory::Device { keys, values } => {
                let [keys, values] = [keys, values]
                    .map(|numbers| Numbers::all(numbers, self.precision.device_element()).to_vec());
                let (keys, values) = (keys?, values?);
                (of_heads(&|range| keys[range].to_vec()), of_heads(&|range| values[range].to_vec()))
            }
        };
        Ok(Gathered { heads: self.heads.clone(), positions, keys, values })
    }

    /// The runs of some slots.
    pub(super) fn runs_within(&self, slots: Range<usize>) -> Vec<PositionRun> {
        let mut runs = vec![];
        let mut slot = 0;
        for run in &self.runs {
            let (first, end) = (slots.start.max(slot), slots.end.min(slot + run.len));
            if first < end {
                runs.push(PositionRun {
                    first_position: run.first_position + first - slot,
                    len: end - first,
                });
            }
            slot += run.len;
        }
        runs
    }

    /// The slots of positions for which `stays` says so, as ranges.
    pub(super) fn slots_where(&self, stays: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
        let mut slots: Vec<Range<usize>> = vec![];
        for (slot, _) in self.positions().enumerate().filter(|&(_, position)| stays(position)) {
            match slots.last_mut() {
                Some(last) if last.end == slot => last.end += 1,
                _ => slots.push(slot..slot + 1),
            }
        }
        slots
    }
}

/// Runs, with those that continue each other as one.
pub(super) fn joined(runs: Vec<PositionRun>) -> Vec<PositionRun> {
    let mut joined: Vec<PositionRun> = vec![];
    for run in runs {
        match joined.last_mut() {
            Some(before) if before.first_position + before.len == run.first_position => before.len += run.len,
            _ => joined.push(run),
        }
    }
    joined
}

impl Memory {
    /// Room for so many numbers of keys and as many of values.
    pub(super) fn reserved(precision: KvPrecision, len: usize, device: &Device) -> Result<Self> {
        Ok(match device {
            Device::Cpu => {
                Self::Host { keys: KvBuffer::zeros(precision, len), values: KvBuffer::zeros(precision, len) }
            }
            Device::Cuda(device) => {
                let bytes = precision.bytes(len);
                Self::Device { keys: device.reserve(bytes)?, values: device.reserve(bytes)? }
            }
        })
    }

    pub(super) fn device(&self) -> Device {
        match self {
            Self::Host { .. } => Device::Cpu,
            Self::Device { keys, .. } => Device::Cuda(keys.device().clone()),
        }
    }

    fn allocated_bytes(&self) -> usize {
        match self {
            Self::Host { keys, values } => keys.allocated_bytes() + values.allocated_bytes(),
            Self::Device { keys, values } => keys.bytes() + values.bytes(),
        }
    }

    /// Copies `len` numbers of keys, and of values, from the index `from` of another to the index `to`.
    pub(super) fn copy_from(
        &mut self,
        to: usize,
        other: &Self,
        from: usize,
        len: usize,
        precision: KvPrecision,
    ) -> Result<()> {
        let bytes = |elements| precision.bytes(elements);
        match (self, other) {
            (Self::Host { keys, values }, Self::Host { keys: other_keys, values: other_values }) => {
                for (numbers, other) in [(keys, other_keys), (values, other_values)] {
                    numbers.write_bytes(to, &other.bytes()[bytes(from)..bytes(from + len)]);
                }
            }
            (Self::Device { keys, values }, Self::Device { keys: other_keys, values: other_values }) => {
                for (numbers, other) in [(keys, other_keys), (values, other_values)] {
                    numbers.copy_from(bytes(to), other, bytes(from), bytes(len))?;
                }
            }
            _ => return Err(Error::failure("KV is on two devices; please report this")),
        }
        Ok(())
    }
}
