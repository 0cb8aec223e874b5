//! Attention of several copies of the decode rows: each sees its own decode keys and, of the recorded prompt, what its
//! variant leaves visible.

use super::Variant;
use layerscope_engine::{
    Attend, Decoder, DeviceTensor, Error, Hooks, KvNumbers, KvStore, Location, Result, Tensor, with_f32,
};
use layerscope_kernels::attention::cuda::spans::{self, DeviceKeySpan, SpanAttention};
use layerscope_kernels::{KeySpan, Queries, Segment, attention};
use rayon::prelude::*;

pub(super) struct VariantAttention<'a> {
    pub(super) decoder: &'a Decoder,
    pub(super) store: &'a KvStore,
    pub(super) prompt_len: usize,
    pub(super) variants: &'a [Variant],
    pub(super) steps: usize,
}

impl Attend for VariantAttention<'_> {
    fn attend(&mut self, at: Location<'_>, [q, k, v]: [&Tensor; 3], _: &mut Hooks<'_>) -> Result<Tensor> {
        match [q, k, v].map(Tensor::on_device) {
            [Some(q), Some(k), Some(v)] => self.on_device(at, [q, k, v]),
            _ => self.on_host(at, [q, k, v]),
        }
    }
}

impl VariantAttention<'_> {
    fn on_host(&self, at: Location<'_>, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        let shape = self.decoder.attention_shape(at.layer);
        let (copies, steps) = (self.variants.len(), self.steps);
        // [copies, kv_heads, steps, head_dim]: each copy's keys laid out as the kernel reads them.
        let by_head = |x: &Tensor| -> Result<Tensor> {
            let x = x.to_host()?.reshape((copies, steps, shape.kv_heads, shape.head_dim))?;
            Ok(x.transpose(1, 2)?.contiguous()?.into())
        };
        let (k, v) = (by_head(k)?, by_head(v)?);
        let stored: Vec<KeySpan<'_>> = self.store.spans(at.layer, Some(self.prompt_len));
        let row_len = shape.query_heads * shape.head_dim;
        let own_len = shape.kv_heads * steps * shape.head_dim;
        // Rounded as they would be in the store, so that only what is hidden makes a difference.
        let precision = self.store.precision();
        let mut output = vec![0.0; copies * steps * row_len];
        with_f32(q, |q| {
            with_f32(&k, |k| {
                with_f32(&v, |v| {
                    let copies = output
                        .par_chunks_exact_mut(steps * row_len)
                        .zip(q.par_chunks_exact(steps * row_len))
                        .zip(k.par_chunks_exact(own_len).zip(v.par_chunks_exact(own_len)))
                        .zip(self.variants);
                    copies.for_each(|(((output, q), (keys, values)), variant)| {
                        let mut spans: Vec<KeySpan<'_>> = stored
                            .iter()
                            .filter(|span| span.segment != Segment::Decode)
                            .filter(|span| variant.sees(at.layer, span.segment))
                            .copied()
                            .collect();
                        let keys = KvNumbers::rounded(precision, keys);
                        let values = KvNumbers::rounded(precision, values);
                        spans.push(KeySpan {
                            first_head: 0,
                            heads: shape.kv_heads,
                            keys: keys.elements(),
                            values: values.elements(),
                            head_stride: steps * shape.head_dim,
                            len: steps,
                            first_position: self.prompt_len - 1,
                            segment: Segment::Decode,
                        });
                        let queries = Queries { data: q, rows: steps, first_position: self.prompt_len - 1 };
                        attention(&shape, &queries, &spans, output);
                    });
                })
            })
        })???;
        Tensor::from_vec(output, &[copies * steps, shape.query_heads, shape.head_dim])
    }

    fn on_device(&self, at: Location<'_>, [q, k, v]: [&DeviceTensor; 3]) -> Result<Tensor> {
        let shape = self.decoder.attention_shape(at.layer);
        let (device, rows) = (q.device(), self.variants.len() * self.steps);
        let positions = at
            .positions_on_device
            .ok_or_else(|| Error::failure("positions are not on the GPU; please report this"))?;
        // Rounded as they would be in the store.
        let element = self.store.precision().device_element();
        let (keys, values) = (k.in_type(element)?, v.in_type(element)?);
        let mut spans: Vec<DeviceKeySpan> = self.store.device_spans(at.layer, Some(self.prompt_len));
        spans.retain(|span| span.segment != Segment::Decode as u32);
        let key_len = (shape.kv_heads * shape.head_dim) as u64;
        spans.push(DeviceKeySpan {
            keys: keys.numbers().address(),
            values: values.numbers().address(),
            head_stride: shape.head_dim as u64,
            key_stride: key_len,
            copy_stride: self.steps as u64 * key_len,
            len: self.steps as u32,
            first_position: (self.prompt_len - 1) as u32,
            segment: Segment::Decode as u32,
            grows: 0,
            first_head: 0,
            heads: shape.kv_heads as u32,
        });
        let segments = [Segment::Bos, Segment::Prompt, Segment::Decode];
        let visible: Vec<u32> = self
            .variants
            .iter()
            .map(|variant| {
                let seen = spans.iter().map(|span| variant.sees(at.layer, segments[span.segment as usize]));
                seen.enumerate().map(|(index, seen)| u32::from(seen) << index).sum()
            })
            .collect();
        let output = DeviceTensor::undefined(device, q.element(), q.dims())?;
        spans::attention(&SpanAttention {
            shape,
            queries: q.numbers(),
            positions,
            rows,
            spans: &device.upload(&spans)?,
            span_count: spans.len(),
            keys_at_most: spans.iter().map(|span| span.len as usize).sum(),
            key_element: element,
            rows_per_copy: self.steps,
            visible_spans: Some(&device.upload(&visible)?),
            decoded: None,
            output: output.numbers(),
            statistics: None,
            normalisers: None,
        })?;
        Ok(output.into())
    }
}
