//! The KV store: keys and values per layer, in buffers reserved once for what the policy will keep, and no more.

use crate::{Error, ModelConfig, Result, WeightsPrecision};
use half::f16;
use layerscope_kernels::{Elements, KeySpan, Segment};
use std::ops::Range;

/// In which type keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvPrecision {
    /// Four bytes an element.
    F32,
    /// Two bytes an element.
    F16,
}

impl KvPrecision {
    /// The type that goes with weights of a precision: f32 with f32, else f16.
    pub fn with(precision: WeightsPrecision) -> Self {
        match precision {
            WeightsPrecision::F32 => Self::F32,
            WeightsPrecision::Native => Self::F16,
        }
    }

    /// Bytes of an element.
    pub fn element_bytes(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::F16 => size_of::<f16>(),
        }
    }
}

/// Keys or values in one of these types.
pub enum KvNumbers {
    /// f32.
    F32(Vec<f32>),
    /// The bits of f16.
    F16(Vec<u16>),
}

impl KvNumbers {
    fn zeros(precision: KvPrecision, len: usize) -> Self {
        match precision {
            KvPrecision::F32 => Self::F32(vec![0.0; len]),
            KvPrecision::F16 => Self::F16(vec![0; len]),
        }
    }

    /// Rounded to a type.
    pub fn rounded(precision: KvPrecision, numbers: &[f32]) -> Self {
        let mut rounded = Self::zeros(precision, numbers.len());
        rounded.write(0, numbers);
        rounded
    }

    fn write(&mut self, at: usize, numbers: &[f32]) {
        match self {
            Self::F32(to) => to[at..at + numbers.len()].copy_from_slice(numbers),
            Self::F16(to) => {
                for (to, &x) in to[at..at + numbers.len()].iter_mut().zip(numbers) {
                    // What is too large for f16 becomes its largest number rather than infinite; NaN stays NaN.
                    let most = f16::MAX.to_f32();
                    *to = f16::from_f32(x.clamp(-most, most)).to_bits();
                }
            }
        }
    }

    /// As kernels read them.
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Self::F32(numbers) => Elements::F32(numbers),
            Self::F16(numbers) => Elements::F16(numbers),
        }
    }

    fn allocated_bytes(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.capacity() * size_of::<f32>(),
            Self::F16(numbers) => numbers.capacity() * size_of::<u16>(),
        }
    }
}

/// Keys and values of every layer.
pub struct KvStore {
    kv_heads: usize,
    head_dim: usize,
    precision: KvPrecision,
    layers: Vec<LayerStore>,
}

/// One layer: `[kv_heads, capacity, head_dim]` each.
struct LayerStore {
    keys: KvNumbers,
    values: KvNumbers,
    capacity: usize,
    /// Stored positions, ascending, in runs; slot order is run order.
    runs: Vec<Run>,
}

#[derive(Clone, Copy)]
struct Run {
    first_position: usize,
    len: usize,
}

impl KvStore {
    /// Reserves room for `capacity[layer]` tokens in each layer.
    pub fn new(config: &ModelConfig, capacity: &[usize], precision: KvPrecision) -> Self {
        let per_token = config.kv_heads * config.head_dim;
        let layers = capacity.iter().map(|&capacity| LayerStore {
            keys: KvNumbers::zeros(precision, capacity * per_token),
            values: KvNumbers::zeros(precision, capacity * per_token),
            capacity,
            runs: vec![],
        });
        Self { kv_heads: config.kv_heads, head_dim: config.head_dim, precision, layers: layers.collect() }
    }

    /// Bytes allocated for keys and values.
    pub fn allocated_bytes(&self) -> usize {
        let buffers = self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]);
        buffers.map(KvNumbers::allocated_bytes).sum()
    }

    /// The type of keys and values.
    pub fn precision(&self) -> KvPrecision {
        self.precision
    }

    /// Tokens stored in a layer.
    pub fn len(&self, layer: usize) -> usize {
        self.layers[layer].len()
    }

    /// Stores the keys and values of rows at ascending positions after all stored ones;
    /// `keys` and `values` are `[rows, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// [`Error::Failure`] where the layer has no room left.
    pub fn append(&mut self, layer: usize, positions: &[usize], keys: &[f32], values: &[f32]) -> Result<()> {
        let (kv_heads, dim) = (self.kv_heads, self.head_dim);
        let store = &mut self.layers[layer];
        let first_slot = store.len();
        if first_slot + positions.len() > store.capacity {
            return Err(Error::failure(format!(
                "the KV store of layer {layer} is full ({} tokens); please report this",
                store.capacity
            )));
        }
        for (row, &position) in positions.iter().enumerate() {
            for head in 0..kv_heads {
                let from = (row * kv_heads + head) * dim;
                let to = (head * store.capacity + first_slot + row) * dim;
                store.keys.write(to, &keys[from..from + dim]);
                store.values.write(to, &values[from..from + dim]);
            }
            match store.runs.last_mut() {
                Some(run) if run.first_position + run.len == position => run.len += 1,
                _ => store.runs.push(Run { first_position: position, len: 1 }),
            }
        }
        Ok(())
    }

    /// Forgets every key at `position` and after it, in all layers.
    pub fn truncate(&mut self, position: usize) {
        for layer in &mut self.layers {
            layer.runs.retain_mut(|run| {
                run.len = run.len.min(position.saturating_sub(run.first_position));
                run.len > 0
            });
        }
    }

    /// The stored keys of a layer as spans; with the prompt length p they are cut at the segments' borders, else
    /// all count as [`Segment::Decode`].
    pub fn spans(&self, layer: usize, prompt_len: Option<usize>) -> Vec<KeySpan<'_>> {
        match prompt_len {
            None => self.spans_within(layer, &[(Segment::Decode, 0..usize::MAX)]),
            Some(p) => self.spans_within(layer, &segments(p)),
        }
    }

    /// The stored keys of a layer without decode rows, cut as [`Self::spans`] cuts them, but for the row at `own`.
    pub fn spans_without_other_decode_rows(
        &self,
        layer: usize,
        prompt_len: usize,
        own: usize,
    ) -> Vec<KeySpan<'_>> {
        let [bos, prompt, _] = segments(prompt_len);
        self.spans_within(layer, &[bos, prompt, (Segment::Decode, own..own + 1)])
    }

    fn spans_within(&self, layer: usize, segments: &[(Segment, Range<usize>)]) -> Vec<KeySpan<'_>> {
        let store = &self.layers[layer];
        let mut spans = vec![];
        let mut slot = 0;
        for run in &store.runs {
            for (segment, range) in segments {
                let first = range.start.max(run.first_position);
                let end = range.end.min(run.first_position + run.len);
                if first < end {
                    spans.push(self.span(
                        layer,
                        slot + first - run.first_position,
                        first,
                        end - first,
                        *segment,
                    ));
                }
            }
            slot += run.len;
        }
        spans
    }

    fn span(
        &self,
        layer: usize,
        slot: usize,
        first_position: usize,
        len: usize,
        segment: Segment,
    ) -> KeySpan<'_> {
        let store = &self.layers[layer];
        let start = slot * self.head_dim;
        KeySpan {
            keys: store.keys.elements().from_index(start),
            values: store.values.elements().from_index(start),
            head_stride: store.capacity * self.head_dim,
            len,
            first_position,
            segment,
        }
    }
}

/// The segments of a sequence with a prompt of p tokens, as ranges of positions.
fn segments(p: usize) -> [(Segment, Range<usize>); 3] {
    // With p = 1 position 0 is the first decode token and counts as such.
    let bos_end = 1.min(p - 1);
    [(Segment::Bos, 0..bos_end), (Segment::Prompt, bos_end..p - 1), (Segment::Decode, p - 1..usize::MAX)]
}

impl LayerStore {
    fn len(&self) -> usize {
        self.runs.iter().map(|run| run.len).sum()
    }
}
