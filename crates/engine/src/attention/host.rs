//! The executor on the CPU.

use super::{LayerAttention, LayerStatistics, RowGroup};
use crate::kv::{KeyRange, KvBuffer, by_slot};
use crate::tensor::{Tensor, with_f32};
use crate::{Error, Result};
use layerscope_kernels::{
    AttentionStatistics, KeySpan, Queries, Received, Segment, SparseKeys, attention,
    attention_with_statistics, sparse_attention,
};
use rayon::prelude::*;
use std::ops::Range;

/// Rows that the kernel takes at once: consecutive ones, as the keys number them.
struct Task<'a> {
    rows: Range<usize>,
    first_position: usize,
    spans: Vec<KeySpan<'a>>,
    measured: bool,
}

/// Keys or values of the rows themselves, of each group `[kv_heads, rows, head_dim]`, rounded as the store would.
struct OwnRows {
    keys: KvBuffer,
    values: KvBuffer,
}

impl LayerAttention<'_> {
    pub(super) fn attend_on_host(&self, q: &Tensor) -> Result<(Tensor, Option<LayerStatistics>)> {
        if let Some(sparse) = &self.sparse {
            return Ok((self.attend_sparsely(q, sparse)?, None));
        }
        let own = self.own_rows()?;
        let tasks = self.tasks(&own);
        let row_len = self.shape.query_heads * self.shape.head_dim;
        let mut output = vec![0.0; self.at.positions.len() * row_len];
        let mut statistics = self.statistics.map(|positions| LayerStatistics {
            rows: AttentionStatistics::default(),
            received: Received::with_reads(positions, self.reads.clone()),
        });
        with_f32(q, |q| {
            let outputs = split(&mut output, tasks.iter().map(|task| task.rows.len() * row_len));
            let queries = |task: &Task<'_>| Queries {
                data: &q[task.rows.start * row_len..task.rows.end * row_len],
                rows: task.rows.len(),
                first_position: task.first_position,
            };
            let Some(statistics) = &mut statistics else {
                return outputs.into_par_iter().zip(&tasks).for_each(|(output, task)| {
                    attention(&self.shape, &queries(task), &task.spans, output);
                });
            };
            // In their order, so that sums do not depend on timing.
            for (output, task) in outputs.into_iter().zip(&tasks) {
                let (queries, spans) = (queries(task), &task.spans);
                if !task.measured {
                    attention(&self.shape, &queries, spans, output);
                    continue;
                }
                let received = Some(&mut statistics.received).filter(|received| !received.sum.is_empty());
                let rows = attention_with_statistics(&self.shape, &queries, spans, output, received);
                statistics.rows.mass.extend(rows.mass);
                statistics.rows.entropy.extend(rows.entropy);
            }
        })?;
        Ok((Tensor::from_vec(output, q.dims())?, statistics))
    }

    fn attend_sparsely(&self, q: &Tensor, sparse: &SparseKeys) -> Result<Tensor> {
        let keys = self.groups.iter().flat_map(|group| self.spans(&by_slot(group.keys.clone())));
        let ([keys], [first_position, ..]) = (&keys.collect::<Vec<_>>()[..], self.at.positions) else {
            return Err(Error::misuse("rows of a sparse prefill read one run of keys; please report this"));
        };
        let mut output = vec![0.0; self.at.positions.len() * self.shape.query_heads * self.shape.head_dim];
        with_f32(q, |data| {
            let queries = Queries { data, rows: self.at.positions.len(), first_position: *first_position };
            sparse_attention(&self.shape, &queries, keys, sparse, &mut output);
        })?;
        Tensor::from_vec(output, q.dims())
    }

    /// Groups as the kernel takes them.
    fn tasks<'a>(&'a self, own: &'a [OwnRows]) -> Vec<Task<'a>> {
        let (layer, positions) = (self.at.layer, self.at.positions);
        // Without a window only the order of keys and rows matters, so both may be numbered by slot. Rows far apart then go
        // together, and so do keys. Of the last row alone not even the order matters.
        let by_order = self.shape.window.is_none() && self.statistics.unwrap_or(0) == 0 && self.own.is_none();
        if let ([group], true) = (&self.groups[..], by_order && self.store.is_ascending(layer))
            && let [stored] = self.store.next_slots(layer)[..]
            && self.reads_everything(group)
        {
            let first_position = stored - positions.len();
            let spans = self.spans(&by_slot(group.keys.clone()));
            return vec![Task { rows: group.rows.clone(), first_position, spans, measured: group.measured }];
        }
        let one_by_one = |(index, group): (usize, &'a RowGroup)| {
            let own_span = own.get(index).map(|own| self.own_span(group, own));
            let tasks = runs(&positions[group.rows.clone()]).into_iter().map(move |(first, rows)| {
                let first = group.rows.start + first;
                let is_last = rows == 1 && first + 1 == positions.len();
                // Slots of a sequence's keys are no higher than their positions; those of branches are.
                let in_order = |keys: &KeyRange| keys.slot + keys.len <= positions[first] + 1;
                let mut spans = match by_order && is_last && group.keys.iter().all(in_order) {
                    true => self.spans(&by_slot(group.keys.clone())),
                    false => self.spans(&group.keys),
                };
                spans.extend(own_span);
                let first_position = positions[first];
                Task { rows: first..first + rows, first_position, spans, measured: group.measured }
            });
            tasks.collect::<Vec<_>>()
        };
        self.groups.iter().enumerate().flat_map(one_by_one).collect()
    }

    fn spans(&self, keys: &[KeyRange]) -> Vec<KeySpan<'_>> {
        keys.iter().filter_map(|keys| self.store.span(self.at.layer, keys)).collect()
    }

    fn own_rows(&self) -> Result<Vec<OwnRows>> {
        let Some([keys, values]) = self.own else { return Ok(vec![]) };
        let width = self.shape.kv_heads * self.shape.head_dim;
        let by_head = |rows: &[f32]| {
            let (heads, dim) = (self.shape.kv_heads, self.shape.head_dim);
            let mut numbers = Vec::with_capacity(rows.len());
            for head in 0..heads {
                for row in rows.chunks_exact(width) {
                    numbers.extend_from_slice(&row[head * dim..][..dim]);
                }
            }
            KvBuffer::rounded(self.store.precision(), &numbers)
        };
        with_f32(keys, |keys| {
            with_f32(values, |values| {
                let groups = self.groups.par_iter().map(|RowGroup { rows, .. }| {
                    let elements = rows.start * width..rows.end * width;
                    OwnRows { keys: by_head(&keys[elements.clone()]), values: by_head(&values[elements]) }
                });
                groups.collect()
            })
        })?
    }

    fn own_span<'a>(&self, group: &RowGroup, own: &'a OwnRows) -> KeySpan<'a> {
        KeySpan {
            first_head: 0,
            heads: self.shape.kv_heads,
            keys: own.keys.elements(),
            values: own.values.elements(),
            head_stride: group.rows.len() * self.shape.head_dim,
            len: group.rows.len(),
            first_position: self.at.positions[group.rows.start],
            segment: Segment::Decode,
        }
    }
}

/// (first row, rows) of each run of consecutive positions.
fn runs(positions: &[usize]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = vec![];
    for (row, &position) in positions.iter().enumerate() {
        match runs.last_mut() {
            Some((first, rows)) if positions[*first] + *rows == position => *rows += 1,
            _ => runs.push((row, 1)),
        }
    }
    runs
}

/// Parts of these lengths, one after the other.
fn split(mut numbers: &mut [f32], lengths: impl Iterator<Item = usize>) -> Vec<&mut [f32]> {
    let mut parts = vec![];
    for length in lengths {
        let (part, rest) = numbers.split_at_mut(length);
        parts.push(part);
        numbers = rest;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn runs_split_where_positions_jump() {
        assert_eq!(runs(&[0, 7, 8, 9, 12]), [(0, 1), (1, 3), (4, 1)]);
        assert_eq!(runs(&[]), []);
    }
}
