//! Attention over a KV store in a GPU's memory.

use super::LayerStatistics;
use super::attention::{StoredAttention, runs, shape_under};
use crate::decoder::Location;
use crate::kv::{KvStore, View};
use crate::tensor::{DeviceTensor, Tensor};
use crate::{Error, Result};
use layerscope_kernels::attention::cuda::prefill::{self, Prefill};
use layerscope_kernels::attention::cuda::spans::{self, DeviceKeySpan, SpanAttention, StatisticsOnDevice};
use layerscope_kernels::cuda::{Buffer, Device, Element};
use layerscope_kernels::{AttentionShape, AttentionStatistics, Received, SEGMENTS};

impl StoredAttention<'_> {
    /// What [`crate::Attend`] asks for, of queries `[rows, H, head_dim]` whose keys are stored.
    pub(super) fn attend_on_device(&mut self, at: Location<'_>, q: &DeviceTensor) -> Result<Tensor> {
        let Location { layer, positions, .. } = at;
        let shape = shape_under(self.rules, self.decoder, layer);
        let output = DeviceTensor::undefined(q.device(), q.element(), q.dims())?;
        let any_alone = positions.iter().any(|&position| self.is_alone(layer, position));
        let Some(collected) = &self.statistics else {
            if !any_alone
                && self.seen.is_none()
                && prefill_on_tensor_cores(&shape, self.store, layer, q, &output)?
            {
                return Ok(output.into());
            }
            self.attend_to_spans(at, &shape, q, &output, None)?;
            return Ok(output.into());
        };
        let asked = if collected.received { self.prompt_len } else { 0 };
        let decode_rows = positions.iter().filter(|&&position| self.is_decode_row(position)).count();
        let found = Found::new(q.device(), decode_rows * shape.query_heads, asked)?;
        self.attend_to_spans(at, &shape, q, &output, Some(&found))?;
        let statistics = found.to_host()?;
        if let Some(collected) = &mut self.statistics {
            collected.layers.push(statistics);
        }
        Ok(output.into())
    }

    /// Rows that see each other together, the others one by one. Statistics are those of decode rows, which come last.
    fn attend_to_spans(
        &self,
        at: Location<'_>,
        shape: &AttentionShape,
        q: &DeviceTensor,
        output: &DeviceTensor,
        found: Option<&Found>,
    ) -> Result<()> {
        let Location { layer, positions, positions_on_device } = at;
        let all = positions_on_device
            .ok_or_else(|| Error::failure("positions are not on the GPU; please report this"))?;
        let is_alone = |position| self.is_alone(layer, position);
        let view = View { prompt_len: Some(self.prompt_len), seen: self.seen, by_slot: false };
        let without_statistics = match found {
            Some(_) => positions.iter().take_while(|&&position| !self.is_decode_row(position)).count(),
            None => 0,
        };
        let groups = match positions.iter().any(|&position| is_alone(position)) {
            true => runs(positions, is_alone),
            false => {
                vec![(0, without_statistics), (without_statistics, positions.len() - without_statistics)]
            }
        };
        for (first, rows) in groups.into_iter().filter(|&(_, rows)| rows > 0) {
            let spans = if is_alone(positions[first]) {
                self.store.device_spans_without_other_decode_rows(layer, self.prompt_len, positions[first])
            } else {
                self.store.device_spans_of(layer, view)
            };
            if rows == positions.len() {
                return attend(self.store, shape, &spans, all, [q, output], found);
            }
            let own: Vec<i32> = positions[first..first + rows].iter().map(|&p| p as i32).collect();
            let own = q.device().upload(&own)?;
            let (q, output) = (q.narrow(first, rows)?, output.narrow(first, rows)?);
            let of_rows = |found: &Found| {
                let first = first.checked_sub(without_statistics)?;
                Some(found.narrow(first * shape.query_heads, rows * shape.query_heads))
            };
            let found = found.and_then(of_rows);
            attend(self.store, shape, &spans, &own, [&q, &output], found.transpose()?.as_ref())?;
        }
        Ok(())
    }
}

/// Attention of many rows on tensor cores, where the shape allows it; whether it did.
fn prefill_on_tensor_cores(
    shape: &AttentionShape,
    store: &KvStore,
    layer: usize,
    q: &DeviceTensor,
    output: &DeviceTensor,
) -> Result<bool> {
    let Some(stored) = store.on_device(layer) else { return Ok(false) };
    let rows = q.dims()[0];
    let applies = q.element() == Element::Bf16
        && stored.keys.element() == Element::Bf16
        && (shape.window.is_none() || stored.consecutive)
        && prefill::supports(shape, q.device());
    if applies {
        prefill::attention(&Prefill {
            shape: *shape,
            queries: q.numbers(),
            keys: stored.keys,
            values: stored.values,
            capacity: stored.capacity,
            first_slot: stored.len - rows,
            rows,
            output: output.numbers(),
        })?;
    }
    Ok(applies)
}

/// Attention of rows at `positions` (i32) over spans of the store.
fn attend(
    store: &KvStore,
    shape: &AttentionShape,
    spans: &[DeviceKeySpan],
    positions: &Buffer,
    [q, output]: [&DeviceTensor; 2],
    found: Option<&Found>,
) -> Result<()> {
    let on_device = q.device().upload(spans)?;
    let rows = q.dims()[0];
    let attention = SpanAttention {
        shape: *shape,
        queries: q.numbers(),
        positions,
        rows,
        spans: &on_device,
        span_count: spans.len(),
        keys_at_most: spans.iter().map(|span| span.len as usize).sum(),
        key_element: store.precision().device_element(),
        rows_per_copy: rows,
        visible_spans: None,
        decoded: None,
        output: output.numbers(),
        statistics: found.map(Found::rows),
        normalisers: found.filter(|found| found.asked > 0).map(|found| found.normalisers.numbers()),
    };
    spans::attention(&attention)?;
    if let Some(found) = found.filter(|found| found.asked > 0) {
        let [sum, max] = found.received.each_ref().map(DeviceTensor::numbers);
        spans::received(&attention, found.asked, sum, max)?;
    }
    Ok(())
}

/// Statistics of one layer on a GPU, of rows times heads.
struct Found {
    /// `[rows · H, segments]`.
    mass: DeviceTensor,
    /// `[rows · H, segments]`.
    entropy: DeviceTensor,
    /// `[rows · H, 2]`.
    normalisers: DeviceTensor,
    /// Sum and maximum, `[prompt positions]`.
    received: [DeviceTensor; 2],
    /// Prompt positions whose attention received is asked for.
    asked: usize,
}

impl Found {
    fn new(device: &Device, rows_and_heads: usize, asked: usize) -> Result<Self> {
        let figures = |width| DeviceTensor::undefined(device, Element::F32, &[rows_and_heads, width]);
        let zeros = || match asked {
            0 => DeviceTensor::undefined(device, Element::F32, &[0]),
            _ => DeviceTensor::upload(device, &vec![0.0; asked], &[asked]),
        };
        Ok(Self {
            mass: figures(SEGMENTS)?,
            entropy: figures(SEGMENTS)?,
            normalisers: figures(2)?,
            received: [zeros()?, zeros()?],
            asked,
        })
    }

    fn narrow(&self, first: usize, len: usize) -> Result<Self> {
        Ok(Self {
            mass: self.mass.narrow(first, len)?,
            entropy: self.entropy.narrow(first, len)?,
            normalisers: self.normalisers.narrow(first, len)?,
            received: self.received.clone(),
            asked: self.asked,
        })
    }

    fn rows(&self) -> StatisticsOnDevice<'_> {
        StatisticsOnDevice { mass: self.mass.numbers(), entropy: self.entropy.numbers() }
    }

    fn to_host(&self) -> Result<LayerStatistics> {
        let [sum, max] = self.received.each_ref().map(DeviceTensor::to_vec);
        Ok(LayerStatistics {
            rows: AttentionStatistics { mass: by_segment(&self.mass)?, entropy: by_segment(&self.entropy)? },
            received: Received { sum: sum?, max: max? },
        })
    }
}

/// Figures `[…, segments]` on the host.
pub(super) fn by_segment(figures: &DeviceTensor) -> Result<Vec<[f32; SEGMENTS]>> {
    Ok(figures.to_vec()?.as_chunks().0.to_vec())
}
