//! The executor on a GPU.

use super::{LayerAttention, LayerStatistics, RowGroup};
use crate::kv::KeyRange;
use crate::tensor::{DeviceTensor, Tensor};
use crate::{Decoder, Device as ModelDevice, Error, Result};
use layerscope_kernels::attention::cuda::prefill::{self, Prefill};
use layerscope_kernels::attention::cuda::reads;
use layerscope_kernels::attention::cuda::spans::{self, DeviceKeySpan, SpanAttention, StatisticsOnDevice};
use layerscope_kernels::cuda::{Buffer, Device, Element};
use layerscope_kernels::{AttentionShape, AttentionStatistics, Received, RowReads, SEGMENTS, Segment};
use std::ops::Range;

/// Copies of rows see at most this many spans apart from each other.
const SPANS_BY_COPY: usize = 32;
/// Bytes of the probabilities of the rows that are listed at once, if more than one.
const LISTED_BYTES: usize = 128 << 20;

impl LayerAttention<'_> {
    pub(super) fn attend_on_device(&self, q: &DeviceTensor) -> Result<(Tensor, Option<LayerStatistics>)> {
        let output = DeviceTensor::undefined(q.device(), q.element(), q.dims())?;
        if let Some(own) = self.own {
            self.attend_with_own_rows(q, own, &output)?;
            return Ok((output.into(), None));
        }
        let Some(positions) = self.statistics else {
            if !self.attend_on_tensor_cores(q, &output)? {
                self.attend_by_group(q, &output, None)?;
            }
            return Ok((output.into(), None));
        };
        let rows: usize = self.measured().map(|group| group.rows.len()).sum();
        let measured = Measured::new(q.device(), rows * self.shape.query_heads, positions)?;
        let reads = self.attend_by_group(q, &output, Some(&measured))?;
        let mut statistics = measured.to_host()?;
        statistics.received.reads = reads;
        Ok((output.into(), Some(statistics)))
    }

    fn measured(&self) -> impl Iterator<Item = &RowGroup> {
        self.groups.iter().filter(|group| group.measured)
    }

    /// One launch for each group, or where rows are listed, for some rows of it; what they read.
    fn attend_by_group(
        &self,
        q: &DeviceTensor,
        output: &DeviceTensor,
        measured: Option<&Measured>,
    ) -> Result<Vec<RowReads>> {
        let heads = self.shape.query_heads;
        let first_measured = self.measured().next().map_or(0, |group| group.rows.start);
        let mut reads = vec![];
        for (group, Range { start: first, end }) in self.groups.iter().flat_map(|group| self.pieces(group)) {
            let rows = end - first;
            let measured = match measured.filter(|_| group.measured) {
                Some(measured) => Some(measured.narrow((first - first_measured) * heads, rows * heads)?),
                None => None,
            };
            let (q, output) = (q.narrow(first, rows)?, output.narrow(first, rows)?);
            let keys = self.device_spans(&group.keys)?;
            let uploaded;
            let positions = if rows == self.at.positions.len() {
                self.positions()?
            } else {
                let positions: Vec<i32> = self.at.positions[first..end].iter().map(|&p| p as i32).collect();
                uploaded = q.device().upload(&positions)?;
                &uploaded
            };
            reads.extend(self.attend_to(&keys, positions, [&q, &output], measured.as_ref())?);
        }
        Ok(reads)
    }

    /// A group's rows: all at once, or where they are listed, as many as there is to be memory for.
    fn pieces<'g>(&self, group: &'g RowGroup) -> impl Iterator<Item = (&'g RowGroup, Range<usize>)> {
        let row_bytes = 4 * self.shape.query_heads * self.statistics.unwrap_or(0).max(1);
        let most = match self.reads.as_ref().filter(|_| group.measured) {
            Some(_) => (LISTED_BYTES / row_bytes).max(1),
            None => group.rows.len().max(1),
        };
        let end = group.rows.end;
        group.rows.clone().step_by(most).map(move |first| (group, first..end.min(first + most)))
    }

    fn device_spans(&self, keys: &[KeyRange]) -> Result<Vec<DeviceKeySpan>> {
        let span = |keys| self.store.device_span(self.at.layer, keys).ok_or_else(elsewhere);
        keys.iter().map(span).collect()
    }

    fn positions(&self) -> Result<&Buffer> {
        self.at.positions_on_device.ok_or_else(elsewhere)
    }

    /// Attention of many rows on tensor cores, where the shape allows it; whether it did.
    fn attend_on_tensor_cores(&self, q: &DeviceTensor, output: &DeviceTensor) -> Result<bool> {
        let ([group], Some(stored)) = (&self.groups[..], self.store.on_device(self.at.layer)) else {
            return Ok(false);
        };
        let rows = q.dims()[0];
        let applies = self.reads_everything(group)
            && q.element() == Element::Bf16
            && stored.keys.element() == Element::Bf16
            && (self.shape.window.is_none() || stored.consecutive)
            && prefill::supports(&self.shape, q.device());
        if applies {
            prefill::attention(&Prefill {
                shape: self.shape,
                queries: q.numbers(),
                keys: stored.keys,
                values: stored.values,
                capacity: stored.capacity,
                first_slot: stored.len - rows,
                rows,
                sparse: self.sparse.as_ref(),
                output: output.numbers(),
            })?;
        } else if self.sparse.is_some() {
            return Err(Error::failure("rows cannot read some keys alone here; please report this"));
        }
        Ok(applies)
    }

    /// Attention of rows at `positions` (i32) over spans; what they read, where it is listed.
    fn attend_to(
        &self,
        keys: &[DeviceKeySpan],
        positions: &Buffer,
        [q, output]: [&DeviceTensor; 2],
        measured: Option<&Measured>,
    ) -> Result<Vec<RowReads>> {
        let on_device = q.device().upload(keys)?;
        let keys = DeviceKeys {
            spans: &on_device,
            count: keys.len(),
            at_most: keys.iter().map(|span| span.len as usize).sum(),
            element: self.store.precision().device_element(),
            decoded: None,
        };
        let normalisers = measured.filter(|measured| measured.positions > 0);
        let attention = SpanAttention {
            statistics: measured.map(Measured::rows),
            normalisers: normalisers.map(|measured| measured.normalisers.numbers()),
            ..keys.attention(self.shape, positions, [q, output])
        };
        spans::attention(&attention)?;
        let Some(measured) = normalisers else { return Ok(vec![]) };
        let [sum, max] = measured.received.each_ref().map(DeviceTensor::numbers);
        let Some(limits) = &self.reads else {
            spans::received(&attention, measured.positions, sum, max, None)?;
            return Ok(vec![]);
        };
        let sizes = [q.dims()[0], self.shape.query_heads, measured.positions];
        let probabilities = DeviceTensor::zeros(q.device(), Element::F32, &sizes)?;
        spans::received(&attention, measured.positions, sum, max, Some(probabilities.numbers()))?;
        Ok(reads::strongest(probabilities.numbers(), sizes, limits)?)
    }

    /// As many groups at once as tell apart few enough spans.
    fn attend_with_own_rows(
        &self,
        q: &DeviceTensor,
        [keys, values]: [&Tensor; 2],
        output: &DeviceTensor,
    ) -> Result<()> {
        let (Some(keys), Some(values)) = (keys.on_device(), values.on_device()) else {
            return Err(elsewhere());
        };
        let mut groups = &self.groups[..];
        while let Some(RowGroup { rows: Range { start, .. }, .. }) = groups.first() {
            let (together, stored) = sharing_spans(groups);
            let rows = groups[..together].iter().map(|group| group.rows.len()).sum();
            let narrowed = |tensor: &DeviceTensor| tensor.narrow(*start, rows);
            let own = [&narrowed(keys)?, &narrowed(values)?];
            self.attend_as_copies(&groups[..together], &stored, &narrowed(q)?, own, &narrowed(output)?)?;
            groups = &groups[together..];
        }
        Ok(())
    }

    /// Groups as copies of the same rows, which see some of these stored keys, and each its own.
    fn attend_as_copies(
        &self,
        groups: &[RowGroup],
        stored: &[&KeyRange],
        q: &DeviceTensor,
        [keys, values]: [&DeviceTensor; 2],
        output: &DeviceTensor,
    ) -> Result<()> {
        let Some(first) = groups.first() else { return Ok(()) };
        let (device, rows) = (q.device(), first.rows.len());
        if stored.len() >= SPANS_BY_COPY || groups.iter().any(|group| group.rows.len() != rows) {
            return Err(Error::failure("copies of rows differ too much; please report this"));
        }
        let positions = &self.at.positions[first.rows.start..first.rows.start + q.dims()[0]];
        let positions: Vec<i32> = positions.iter().map(|&position| position as i32).collect();
        let mut all = stored
            .iter()
            .map(|keys| self.store.device_span(self.at.layer, keys).ok_or_else(elsewhere))
            .collect::<Result<Vec<_>>>()?;
        // Rounded as they would be in the store.
        let element = self.store.precision().device_element();
        let (keys, values) = (keys.in_type(element)?, values.in_type(element)?);
        let width = (self.shape.kv_heads * self.shape.head_dim) as u64;
        all.push(DeviceKeySpan {
            keys: keys.numbers().address(),
            values: values.numbers().address(),
            head_stride: self.shape.head_dim as u64,
            key_stride: width,
            copy_stride: rows as u64 * width,
            len: rows as u32,
            first_position: self.at.positions[first.rows.start] as u32,
            segment: Segment::Decode as u32,
            grows: 0,
            first_head: 0,
            heads: self.shape.kv_heads as u32,
        });
        let visible = |group: &RowGroup| {
            let bits =
                stored.iter().enumerate().map(|(bit, keys)| u32::from(group.keys.contains(keys)) << bit);
            bits.sum::<u32>() | 1 << stored.len()
        };
        let visible: Vec<u32> = groups.iter().map(visible).collect();
        let keys = DeviceKeys {
            spans: &device.upload(&all)?,
            count: all.len(),
            at_most: all.iter().map(|span| span.len as usize).sum(),
            element,
            decoded: None,
        };
        Ok(spans::attention(&SpanAttention {
            rows_per_copy: rows,
            visible_spans: Some(&device.upload(&visible)?),
            ..keys.attention(self.shape, &device.upload(&positions)?, [q, output])
        })?)
    }
}

/// How many of the first groups see few enough different ranges of keys, at least one, and those ranges.
fn sharing_spans(groups: &[RowGroup]) -> (usize, Vec<&KeyRange>) {
    let mut stored: Vec<&KeyRange> = vec![];
    for (index, group) in groups.iter().enumerate() {
        let new: Vec<&KeyRange> = group.keys.iter().filter(|keys| !stored.contains(keys)).collect();
        if index > 0 && stored.len() + new.len() >= SPANS_BY_COPY {
            return (index, stored);
        }
        stored.extend(new);
    }
    (groups.len(), stored)
}

/// Whether the rows of a prefill may read some keys alone where the model runs: on the CPU always.
pub(crate) fn supports_sparse_prefill(decoder: &Decoder) -> bool {
    let ModelDevice::Cuda(device) = decoder.device() else { return true };
    let shapes = (0..decoder.config().layers).map(|layer| decoder.attention_shape(layer));
    let mut unlimited = shapes.filter(|shape| shape.window.is_none());
    let is_bf16 = decoder.kv_precision().device_element() == Element::Bf16;
    is_bf16 && unlimited.all(|shape| prefill::supports(&shape, device))
}

/// Key spans in a GPU's memory.
#[derive(Clone, Copy)]
pub(crate) struct DeviceKeys<'a> {
    /// [`DeviceKeySpan`] `[count]`.
    pub(crate) spans: &'a Buffer,
    pub(crate) count: usize,
    /// Most keys that a row sees.
    pub(crate) at_most: usize,
    pub(crate) element: Element,
    /// i32 `[1]`: tokens decoded since the spans were written; spans that grow are longer by it.
    pub(crate) decoded: Option<&'a Buffer>,
}

impl<'a> DeviceKeys<'a> {
    /// Attention of rows at `positions` (i32) over these keys: one copy of the rows, without statistics.
    pub(crate) fn attention(
        &self,
        shape: AttentionShape,
        positions: &'a Buffer,
        [q, output]: [&'a DeviceTensor; 2],
    ) -> SpanAttention<'a> {
        let rows = q.dims()[0];
        SpanAttention {
            shape,
            queries: q.numbers(),
            positions,
            rows,
            spans: self.spans,
            span_count: self.count,
            keys_at_most: self.at_most,
            key_element: self.element,
            rows_per_copy: rows,
            visible_spans: None,
            decoded: self.decoded,
            output: output.numbers(),
            statistics: None,
            normalisers: None,
        }
    }
}

fn elsewhere() -> Error {
    Error::failure("rows and keys are on different devices; please report this")
}

/// AttentionStatistics of one layer on a GPU, of rows times heads.
struct Measured {
    /// `[rows · H, segments]`.
    mass: DeviceTensor,
    /// `[rows · H, segments]`.
    entropy: DeviceTensor,
    /// `[rows · H, 2]`.
    normalisers: DeviceTensor,
    /// Sum and maximum, `[prompt positions]`.
    received: [DeviceTensor; 2],
    /// Prompt positions whose attention received is wanted.
    positions: usize,
}

impl Measured {
    fn new(device: &Device, rows_and_heads: usize, positions: usize) -> Result<Self> {
        let figures = |width| DeviceTensor::undefined(device, Element::F32, &[rows_and_heads, width]);
        let zeros = || DeviceTensor::zeros(device, Element::F32, &[positions]);
        Ok(Self {
            mass: figures(SEGMENTS)?,
            entropy: figures(SEGMENTS)?,
            normalisers: figures(2)?,
            received: [zeros()?, zeros()?],
            positions,
        })
    }

    fn narrow(&self, first: usize, len: usize) -> Result<Self> {
        Ok(Self {
            mass: self.mass.narrow(first, len)?,
            entropy: self.entropy.narrow(first, len)?,
            normalisers: self.normalisers.narrow(first, len)?,
            received: self.received.clone(),
            positions: self.positions,
        })
    }

    fn rows(&self) -> StatisticsOnDevice<'_> {
        StatisticsOnDevice { mass: self.mass.numbers(), entropy: self.entropy.numbers() }
    }

    fn to_host(&self) -> Result<LayerStatistics> {
        let [sum, max] = self.received.each_ref().map(DeviceTensor::to_vec);
        Ok(LayerStatistics {
            rows: AttentionStatistics { mass: by_segment(&self.mass)?, entropy: by_segment(&self.entropy)? },
            received: Received { sum: sum?, max: max?, ..Received::default() },
        })
    }
}

/// Figures `[…, segments]` on the host.
pub(crate) fn by_segment(figures: &DeviceTensor) -> Result<Vec<[f32; SEGMENTS]>> {
    Ok(figures.to_vec()?.as_chunks().0.to_vec())
}
