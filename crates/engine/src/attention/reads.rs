//! What rows on a GPU read most, listed on the host from a copy of the layer's keys: the rows of one prompt's text, once.

use super::host::runs;
use super::{LayerAttention, RowGroup};
use crate::Result;
use crate::kv::KeyRange;
use crate::tensor::DeviceTensor;
use layerscope_kernels::{KeySpan, Queries, ReadLimits, Received, RowReads, attention_with_statistics};

impl LayerAttention<'_> {
    /// The strongest positions of the measured rows among prompt positions 0 … `positions`−1, in the order of the rows.
    pub(super) fn reads_of_device(
        &self,
        q: &DeviceTensor,
        positions: usize,
        limits: &ReadLimits,
    ) -> Result<Vec<RowReads>> {
        let keys = self.store.keys_of_heads(self.at.layer)?;
        let mut received = Received::with_reads(positions, Some(limits.clone()));
        for group in self.groups.iter().filter(|group| group.measured) {
            self.list(q, group, &keys, &mut received)?;
        }
        Ok(received.reads)
    }

    fn list(
        &self,
        q: &DeviceTensor,
        group: &RowGroup,
        keys: &[Vec<f32>],
        received: &mut Received,
    ) -> Result<()> {
        let spans: Vec<KeySpan<'_>> = group.keys.iter().flat_map(|range| self.copied(range, keys)).collect();
        for (first, rows) in runs(&self.at.positions[group.rows.clone()]) {
            let first = group.rows.start + first;
            let data = q.narrow(first, rows)?.to_vec()?;
            let queries = Queries { data: &data, rows, first_position: self.at.positions[first] };
            // The output is on the GPU already.
            let mut output = vec![0.0; data.len()];
            attention_with_statistics(&self.shape, &queries, &spans, &mut output, Some(received));
        }
        Ok(())
    }

    /// A range of the copied keys, head by head. Keys stand for values, which nothing is read from.
    fn copied<'a>(&'a self, range: &'a KeyRange, keys: &'a [Vec<f32>]) -> impl Iterator<Item = KeySpan<'a>> {
        let dim = self.shape.head_dim;
        range.heads.clone().filter_map(move |head| {
            let keys = keys.get(head)?.get(range.slot * dim..(range.slot + range.len) * dim)?;
            Some(KeySpan {
                first_head: head,
                heads: 1,
                keys: keys.into(),
                values: keys.into(),
                head_stride: keys.len(),
                len: range.len,
                first_position: range.first_position,
                segment: range.segment,
            })
        })
    }
}
