//! Keeps what attention reads while a session runs.

use crate::Result;
use crate::attention::{LayerAttention, RowGroup};
use crate::tensor::{Tensor, with_f32};
use layerscope_kernels::{AttentionShape, SparseKeys};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What is kept of some layers' attention.
pub(crate) struct Watch {
    rows: usize,
    layers: BTreeMap<usize, Option<LayerReads>>,
}

/// What a layer's attention read.
pub(super) struct LayerReads {
    /// Sizes, window and sinks.
    pub(super) shape: AttentionShape,
    /// Rotated queries `[rows, H, head_dim]`.
    pub(super) queries: Vec<f32>,
    /// Rotated keys as they are stored, `[kv_heads, rows, head_dim]`.
    pub(super) keys: Vec<f32>,
    /// Whether a key is known, `[kv_heads, rows]`.
    known: Vec<bool>,
    /// What each row reads; `None` where a row does not run through this layer.
    of_rows: Vec<Option<RowReading>>,
    readings: Vec<Reading>,
}

/// Where what a row reads is said.
#[derive(Clone, Copy)]
struct RowReading {
    /// Index of the reading.
    reading: u32,
    /// Index of the row among the rows of its pass, as [`SparseKeys`] number them.
    row: u32,
}

/// The keys that rows read, each those that its shape lets it see.
struct Reading {
    /// Positions, of some KV heads; ascending.
    keys: Vec<(Range<usize>, Range<usize>)>,
    /// What of them, where a policy leaves some out.
    sparse: Option<Arc<SparseKeys>>,
}

impl Watch {
    /// Keeps these layers of a text of so many rows.
    pub(crate) fn new(rows: usize, layers: Vec<usize>) -> Self {
        Self { rows, layers: layers.into_iter().map(|layer| (layer, None)).collect() }
    }

    /// The layers, with what each has read.
    pub(super) fn into_layers(self) -> impl Iterator<Item = (usize, LayerReads)> {
        self.layers.into_iter().filter_map(|(layer, reads)| Some((layer, reads?)))
    }

    /// Keeps what rows with these queries attend to.
    pub(crate) fn note(&mut self, attention: &LayerAttention<'_>, q: &Tensor) -> Result<()> {
        let rows = self.rows;
        let Some(layer) = self.layers.get_mut(&attention.at.layer) else { return Ok(()) };
        let reads = layer.get_or_insert_with(|| LayerReads::new(attention.shape, rows));
        with_f32(q, |q| reads.note_queries(attention.at.positions, q))?;
        reads.note_keys(attention)?;
        let sparse = attention.sparse.clone().map(Arc::new);
        for group in &attention.groups {
            reads.note_reading(attention.at.positions, group, sparse.clone());
        }
        Ok(())
    }

    /// Forgets what the layers from `layer` on have at positions from `position` on.
    pub(crate) fn forget(&mut self, layer: usize, position: usize) {
        for reads in self.layers.range_mut(layer..).filter_map(|(_, reads)| reads.as_mut()) {
            let rows = reads.of_rows.len();
            reads.of_rows.iter_mut().skip(position).for_each(|row| *row = None);
            for known in reads.known.chunks_exact_mut(rows.max(1)) {
                known.iter_mut().skip(position).for_each(|known| *known = false);
            }
        }
    }
}

impl LayerReads {
    fn new(shape: AttentionShape, rows: usize) -> Self {
        Self {
            shape,
            queries: vec![0.0; rows * shape.query_heads * shape.head_dim],
            keys: vec![0.0; rows * shape.kv_heads * shape.head_dim],
            known: vec![false; rows * shape.kv_heads],
            of_rows: vec![None; rows],
            readings: vec![],
        }
    }

    fn note_queries(&mut self, positions: &[usize], q: &[f32]) {
        let width = self.shape.query_heads * self.shape.head_dim;
        for (&position, row) in positions.iter().zip(q.chunks_exact(width)) {
            if let Some(to) = self.queries.get_mut(position * width..(position + 1) * width) {
                to.copy_from_slice(row);
            }
        }
    }

    /// Copies the keys that are read and not known yet.
    fn note_keys(&mut self, attention: &LayerAttention<'_>) -> Result<()> {
        let (rows, dim, layer) = (self.of_rows.len(), self.shape.head_dim, attention.at.layer);
        // Of a GPU, all keys of the layer; copied at most once.
        let mut copied: Option<Vec<Vec<f32>>> = None;
        for range in attention.groups.iter().flat_map(|group| &group.keys) {
            let span = attention.store.span(layer, range);
            for head in range.heads.clone() {
                let unknown: Vec<usize> = (0..range.len)
                    .filter(|key| {
                        let position = range.first_position + key;
                        position < rows && !self.known[head * rows + position]
                    })
                    .collect();
                for run in unknown.chunk_by(|a, b| a + 1 == *b) {
                    let numbers = match &span {
                        Some(span) => {
                            let first = span.start_of(head).unwrap_or(0) + run[0] * dim;
                            span.keys.to_f32(first..first + run.len() * dim)
                        }
                        None => {
                            if copied.is_none() {
                                copied = Some(attention.store.keys_of_heads(layer)?);
                            }
                            let of_head = copied.as_ref().and_then(|heads| heads.get(head));
                            let first = (range.slot + run[0]) * dim;
                            of_head.map_or(vec![], |keys| keys[first..first + run.len() * dim].to_vec())
                        }
                    };
                    let first = head * rows + range.first_position + run[0];
                    self.keys[first * dim..first * dim + numbers.len()].copy_from_slice(&numbers);
                    self.known[first..first + run.len()].fill(true);
                }
            }
        }
        Ok(())
    }

    fn note_reading(&mut self, positions: &[usize], group: &RowGroup, sparse: Option<Arc<SparseKeys>>) {
        let range = |keys: &crate::kv::KeyRange| {
            (keys.heads.clone(), keys.first_position..keys.first_position + keys.len)
        };
        let mut keys: Vec<_> = group.keys.iter().map(range).collect();
        keys.sort_by_key(|(heads, positions)| (heads.start, positions.start));
        // Segments of a prompt continue each other.
        keys.dedup_by(|next, before| {
            let continues = next.0 == before.0 && next.1.start == before.1.end;
            if continues {
                before.1.end = next.1.end;
            }
            continues
        });
        let reading = self.readings.len() as u32;
        self.readings.push(Reading { keys, sparse });
        for row in group.rows.clone() {
            if let Some(of_row) = self.of_rows.get_mut(positions[row]) {
                *of_row = Some(RowReading { reading, row: row as u32 });
            }
        }
    }

    /// The keys among some positions that a row reads in a query head, as ranges that ascend.
    pub(super) fn visible(
        &self,
        row: usize,
        head: usize,
        keys: &Range<usize>,
        visible: &mut Vec<Range<usize>>,
    ) {
        visible.clear();
        let Some(of_row) = self.of_rows.get(row).copied().flatten() else { return };
        let reading = &self.readings[of_row.reading as usize];
        let kv_head = head / (self.shape.query_heads / self.shape.kv_heads);
        let window_start = self.shape.window.map_or(0, |window| (row + 1).saturating_sub(window));
        // Sinks before the window, and what is in it.
        let sinks = 0..self.shape.sinks.min(window_start);
        for (_, positions) in reading.keys.iter().filter(|(heads, _)| heads.contains(&kv_head)) {
            for seen in [&sinks, &(window_start..row + 1)] {
                let first = positions.start.max(seen.start).max(keys.start);
                let end = positions.end.min(seen.end).min(keys.end);
                if first < end {
                    visible.push(first..end);
                }
            }
        }
        visible.sort_by_key(|range| range.start);
        let Some(sparse) = &reading.sparse else { return };
        let all = std::mem::take(visible);
        for key in all.into_iter().flatten().filter(|&key| sparse.reads(head, of_row.row as usize, key)) {
            match visible.last_mut() {
                Some(last) if last.end == key => last.end += 1,
                _ => visible.push(key..key + 1),
            }
        }
    }
}
