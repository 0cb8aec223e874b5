//! Attention of a running sequence over its KV store.

use super::blocks::Blocks;
use super::{Collected, LayerStatistics};
use crate::Result;
use crate::decoder::{Attend, Decoder, Location};
use crate::hooks::{Hooks, Site};
use crate::kv::{KvStore, View};
use crate::policy::PolicyRules;
use crate::tensor::{Tensor, with_f32};
use layerscope_kernels::{
    AttentionShape, AttentionStatistics, KeySpan, Queries, Received, attention, attention_with_statistics,
};
use std::ops::Range;

/// Attention over the KV store: append, then see whatever is stored at or before each row's position.
pub(super) struct StoredAttention<'a> {
    pub(super) decoder: &'a Decoder,
    pub(super) rules: &'a dyn PolicyRules,
    pub(super) store: &'a mut KvStore,
    pub(super) prompt_len: usize,
    pub(super) queries: &'a mut Option<Tensor>,
    pub(super) blocks: Option<&'a mut Blocks>,
    /// Where decode rows read only some of the prompt: whether each prefill token's key is seen.
    pub(super) seen: Option<&'a [bool]>,
    pub(super) statistics: Option<Collected<'a>>,
}

impl Attend for StoredAttention<'_> {
    fn attend(&mut self, at: Location<'_>, [q, k, v]: [&Tensor; 3], hooks: &mut Hooks<'_>) -> Result<Tensor> {
        let Location { layer, positions, .. } = at;
        *self.queries = Some(q.clone());
        if let Some(blocks) = &mut self.blocks {
            blocks.before_attention(layer, self.store)?;
        }
        self.store.append(layer, positions, k, v)?;
        let output = self.attend_to_stored(at, q, hooks)?;
        if let Some(blocks) = &mut self.blocks {
            blocks.after_attention(layer, q, &self.decoder.attention_shape(layer), self.store)?;
        }
        Ok(output)
    }
}

impl StoredAttention<'_> {
    pub(super) fn attend_to_stored(
        &mut self,
        at: Location<'_>,
        q: &Tensor,
        hooks: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        let Location { layer, positions, .. } = at;
        if hooks.wants(layer, Site::AttentionScores) || hooks.wants(layer, Site::Pattern) {
            return self.materialised(at, q, hooks);
        }
        if let Some(q) = q.on_device() {
            return self.attend_on_device(at, q);
        }
        let shape = shape_under(self.rules, self.decoder, layer);
        let row_len = shape.query_heads * shape.head_dim;
        let mut output = vec![0.0; positions.len() * row_len];
        let mut found = self.statistics.as_ref().map(|collected| LayerStatistics {
            rows: AttentionStatistics::default(),
            received: Received::new(if collected.received { self.prompt_len } else { 0 }),
        });
        let received = self.statistics.as_ref().is_some_and(|collected| collected.received);
        with_f32(q, |q| {
            for Group { rows, first_position, spans } in self.groups(&shape, layer, positions) {
                let range = rows.start * row_len..rows.end * row_len;
                let queries = Queries { data: &q[range.clone()], rows: rows.len(), first_position };
                let output = &mut output[range];
                match found.as_mut().filter(|_| self.is_decode_row(positions[rows.start])) {
                    None => attention(&shape, &queries, &spans, output),
                    Some(found) => {
                        let wanted = received.then_some(&mut found.received);
                        let rows = attention_with_statistics(&shape, &queries, &spans, output, wanted);
                        found.rows.mass.extend(rows.mass);
                        found.rows.entropy.extend(rows.entropy);
                    }
                }
            }
        })?;
        if let (Some(collected), Some(found)) = (&mut self.statistics, found) {
            collected.layers.push(found);
        }
        Tensor::from_vec(output, &[positions.len(), shape.query_heads, shape.head_dim])
    }

    /// Rows that the kernel takes at once, each group with the keys that it sees.
    fn groups(&self, shape: &AttentionShape, layer: usize, positions: &[usize]) -> Vec<Group<'_>> {
        let received = self.statistics.as_ref().is_some_and(|collected| collected.received);
        let alone = |position| self.is_alone(layer, position);
        let prompt_len = self.statistics.as_ref().map(|_| self.prompt_len);
        let view = View { prompt_len, seen: self.seen, by_slot: false };
        // Without a window only the order of keys and rows matters, so both may be numbered by slot. Rows far apart then go
        // together, and so do keys. Of the last row alone not even the order matters.
        let any_alone = positions.iter().any(|&position| alone(position));
        let by_order = shape.window.is_none() && !received && !any_alone;
        if by_order && self.seen.is_none() && self.store.is_ascending(layer) {
            let spans = self.store.spans_of(layer, View { by_slot: true, ..view });
            let first_position = self.store.len(layer) - positions.len();
            return vec![Group { rows: 0..positions.len(), first_position, spans }];
        }
        // Prompt rows beside a decode row have no statistics.
        let begins_anew =
            |position| alone(position) || self.seen.is_some() && position + 1 == self.prompt_len;
        let group = |(first, rows): (usize, usize)| {
            let first_position = positions[first];
            let is_last = rows == 1 && first + 1 == positions.len();
            let spans = match alone(first_position) {
                true => self.store.spans_without_other_decode_rows(layer, self.prompt_len, first_position),
                false => self.store.spans_of(layer, View { by_slot: by_order && is_last, ..view }),
            };
            Group { rows: first..first + rows, first_position, spans }
        };
        runs(positions, begins_anew).into_iter().map(group).collect()
    }

    /// Whether the row at a position is a decode row that sees no other one.
    pub(super) fn is_alone(&self, layer: usize, position: usize) -> bool {
        self.is_decode_row(position) && !self.rules.decode_rows_see_each_other(layer)
    }

    pub(super) fn is_decode_row(&self, position: usize) -> bool {
        position + 1 >= self.prompt_len
    }
}

/// Rows that go together.
struct Group<'a> {
    rows: Range<usize>,
    /// Of the first row, as the spans number them.
    first_position: usize,
    spans: Vec<KeySpan<'a>>,
}

/// Sizes of a layer's attention, with what a policy lets rows see.
pub(super) fn shape_under(rules: &dyn PolicyRules, decoder: &Decoder, layer: usize) -> AttentionShape {
    let shape = decoder.attention_shape(layer);
    rules.window().map_or(shape, |window| window.narrowed(shape))
}

/// (first row, rows) of each run of consecutive positions; a position that is to be alone is a run of its own.
pub(super) fn runs(positions: &[usize], alone: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = vec![];
    for (row, &position) in positions.iter().enumerate() {
        match runs.last_mut() {
            Some((first, rows)) if positions[*first] + *rows == position && !alone(position) => *rows += 1,
            _ => runs.push((row, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn runs_split_where_positions_jump() {
        assert_eq!(runs(&[0, 7, 8, 9, 12], |_| false), [(0, 1), (1, 3), (4, 1)]);
        assert_eq!(runs(&[0, 7, 8, 9, 10], |position| position > 8), [(0, 1), (1, 2), (3, 1), (4, 1)]);
        assert_eq!(runs(&[], |_| false), []);
    }
}
