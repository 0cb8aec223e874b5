//! Attention of running sequences over their KV stores.

use super::Session;
use crate::attention::{LayerAttention, LayerStatistics, RowGroup};
use crate::decoder::{Attend, Location};
use crate::hooks::Hooks;
use crate::kv::View;
use crate::policy::PromptChunk;
use crate::tensor::{Tensor, with_f32};
use crate::{Error, Result};
use layerscope_kernels::{ReadLimits, SparseKeys};
use rayon::prelude::*;
use std::ops::Range;

/// Where a pass leaves its attention statistics.
pub(super) struct Collected<'a> {
    pub(super) layers: &'a mut Vec<LayerStatistics>,
    /// Whether attention received is summed up, which takes a second pass over the keys.
    pub(super) received: bool,
    /// What is listed of the prompt positions that each row reads; only where attention received is summed up.
    pub(super) reads: Option<ReadLimits>,
}

impl Collected<'_> {
    /// The same place, for one pass of several.
    pub(super) fn again(&mut self) -> Collected<'_> {
        Collected { layers: &mut *self.layers, received: self.received, reads: self.reads.clone() }
    }
}

/// Some of the rows of a pass: those of one sequence.
pub(super) struct Part<'a, 's> {
    pub(super) session: &'a mut Session,
    pub(super) rows: Range<usize>,
    pub(super) statistics: Option<Collected<'s>>,
}

/// Attention of the rows of several sequences, each over the KV store of its own.
pub(super) struct StoredAttention<'a, 'b, 's> {
    pub(super) parts: &'a mut [Part<'b, 's>],
}

impl Attend for StoredAttention<'_, '_, '_> {
    fn attend(
        &mut self,
        at: Location<'_>,
        q: &Tensor,
        kv: Option<[&Tensor; 2]>,
        hooks: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        if let [part] = &mut *self.parts {
            return part.session.attend(at, q, kv, part.statistics.as_mut(), hooks);
        }
        let each = |part: &mut Part<'_, '_>, hooks: &mut Hooks<'_>| part.attend(at, q, kv, hooks);
        // A single row is too little work to share out among threads: each thread takes whole sequences.
        let outputs: Result<Vec<Tensor>> = match hooks.is_empty() && at.positions_on_device.is_none() {
            true => self.parts.par_iter_mut().map(|part| each(part, &mut Hooks::none())).collect(),
            false => self.parts.iter_mut().map(|part| each(part, hooks)).collect(),
        };
        Tensor::cat(&outputs?.iter().collect::<Vec<_>>())
    }

    fn has_keys_values(&self, layer: usize) -> bool {
        self.parts.iter().all(|part| part.session.policy.shares_norm_at(layer))
    }
}

impl Part<'_, '_> {
    /// Attention of its rows of a pass.
    fn attend(
        &mut self,
        at: Location<'_>,
        q: &Tensor,
        kv: Option<[&Tensor; 2]>,
        hooks: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        let Self { session, rows, statistics } = self;
        let positions = &at.positions[rows.clone()];
        let on_device = session.decoder.positions_on_device(positions, None)?;
        let at = Location { positions, positions_on_device: on_device.as_deref(), ..at };
        let own = |x: &Tensor| x.narrow(rows.start, rows.len());
        let kv = match kv {
            Some([k, v]) => Some([own(k)?, own(v)?]),
            None => None,
        };
        let kv = kv.as_ref().map(|[k, v]| [k, v]);
        session.attend(at, &own(q)?, kv, statistics.as_mut(), hooks)
    }
}

impl Session {
    /// Stores the keys and values of rows, then attends to whatever is stored at or before each row's position.
    fn attend(
        &mut self,
        at: Location<'_>,
        q: &Tensor,
        kv: Option<[&Tensor; 2]>,
        statistics: Option<&mut Collected<'_>>,
        hooks: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        let Location { layer, positions, .. } = at;
        self.note_queries(layer, q)?;
        if let Some(selection) = &mut self.selection {
            selection.before_attention(layer, &mut self.store)?;
        }
        if let Some([k, v]) = kv.filter(|_| !self.policy.shares_norm_at(layer)) {
            self.store.append(layer, positions, k, v)?;
        }
        let received =
            statistics.as_ref().map(|collected| if collected.received { self.prompt_len } else { 0 });
        let sparse = if received.is_none() { self.sparse_keys(layer, positions, q)? } else { None };
        let reads = statistics.as_ref().and_then(|collected| collected.reads.clone());
        let mut watch = self.watch.take();
        let attention = LayerAttention { sparse, reads, ..self.layer_attention(at, received) };
        let (output, measured) = attention.attend(q, hooks)?;
        // What is read a second time is no part of the sequence.
        let is_again = self.prefill.as_ref().is_some_and(|prefill| prefill.is_again(positions));
        if let Some(watch) = watch.as_mut().filter(|_| !is_again) {
            watch.note(&attention, q)?;
        }
        self.watch = watch;
        if let (Some(collected), Some(measured)) = (statistics, measured) {
            collected.layers.push(measured);
        }
        if let Some(selection) = &mut self.selection {
            selection.after_attention(layer, q, &self.decoder, &mut self.store)?;
        }
        Ok(output)
    }

    /// What prompt rows read, where the policy has a pattern for them and that leaves anything out.
    fn sparse_keys(&mut self, layer: usize, positions: &[usize], q: &Tensor) -> Result<Option<SparseKeys>> {
        let shape = self.policy.attention_shape(&self.decoder, layer);
        let pattern = self.policy.rules().prefill_pattern();
        let Some(pattern) = pattern.filter(|_| self.is_prefilling() && shape.window.is_none()) else {
            return Ok(None);
        };
        let keys = self.store.keys_by_head(layer)?;
        let sparse = with_f32(q, |queries| {
            let (first_position, rows) = (positions[0], positions.len());
            pattern.sparse_keys(&PromptChunk { layer, shape, first_position, rows, queries, keys: &keys })
        })?;
        let seen = |&position: &usize| shape.query_heads as u64 * (position as u64 + 1);
        let all: u64 = positions.iter().map(seen).sum();
        let read = sparse.as_ref().map_or(all, SparseKeys::pairs);
        let total = self.prefill_pairs.get_or_insert([0; 2]);
        *total = [total[0] + read, total[1] + all];
        Ok(sparse.filter(|_| read < all))
    }

    /// What rows attend to whose keys are stored.
    fn layer_attention<'a>(&'a self, at: Location<'a>, statistics: Option<usize>) -> LayerAttention<'a> {
        LayerAttention {
            shape: self.policy.attention_shape(&self.decoder, at.layer),
            groups: self.row_groups(at.layer, at.positions, statistics.is_some()),
            at,
            store: &self.store,
            own: None,
            sparse: None,
            statistics,
            reads: None,
        }
    }

    /// Rows by what they read: decode rows that do not see each other one by one, and where statistics are taken, decode rows
    /// apart from prompt rows.
    fn row_groups(&self, layer: usize, positions: &[usize], with_statistics: bool) -> Vec<RowGroup> {
        let selection = self.policy.rules().selection();
        let is_decode_row = |position: usize| position + 1 >= self.prompt_len;
        let self_only = selection.self_only_mask(layer);
        let visible = self.selection.as_ref().and_then(|selection| selection.visible());
        let prompt_len = (with_statistics || self_only).then_some(self.prompt_len);
        let view = View { prompt_len, visible, ..View::default() };
        let first_decode = positions.iter().position(|&position| is_decode_row(position));
        let first_decode = first_decode.unwrap_or(positions.len());
        let rows = positions.len();
        let together = match (with_statistics, self_only) {
            (false, false) => [0..rows, rows..rows],
            (_, true) => [0..first_decode, first_decode..first_decode],
            (true, false) => [0..first_decode, first_decode..rows],
        };
        let mut groups: Vec<RowGroup> = together
            .into_iter()
            .filter(|rows| !rows.is_empty())
            .map(|rows| {
                let measured = with_statistics && rows.start >= first_decode;
                RowGroup { rows, keys: self.store.ranges(layer, view), measured }
            })
            .collect();
        if self_only {
            groups.extend((first_decode..positions.len()).map(|row| {
                let keys = self.store.ranges(layer, View { only_decode: Some(positions[row]), ..view });
                RowGroup { rows: row..row + 1, keys, measured: with_statistics }
            }));
        }
        groups
    }

    /// Keeps the queries `[rows, H, head_dim]` of the rows that attended last, and of as many of the last prefill rows as the
    /// retention looks at.
    fn note_queries(&mut self, layer: usize, q: &Tensor) -> Result<()> {
        self.queries = Some(q.clone());
        let wanted = self.policy.rules().retention().observed_rows();
        if wanted == 0 || self.prefill.is_none() {
            return Ok(());
        }
        let rows = q.rows().min(wanted);
        // A copy of its own: a part of a chunk would keep the whole.
        let last: Vec<u32> = (q.rows() - rows..q.rows()).map(|row| row as u32).collect();
        let pieces = self.observed.entry(layer).or_default();
        pieces.push(if rows < q.rows() { q.select(&last)? } else { q.clone() });
        let mut more: usize = pieces.iter().map(Tensor::rows).sum();
        while more - pieces[0].rows() >= wanted {
            more -= pieces.remove(0).rows();
        }
        Ok(())
    }

    /// Attention that each prompt position received from the last row in the attention before a point, summed over heads.
    pub(super) fn received_from_last(&self, layer: usize) -> Result<Vec<f32>> {
        let queries = self.queries.as_ref();
        let queries = queries.ok_or_else(|| Error::failure("no row has attended yet; please report this"))?;
        let (last, positions) = (queries.narrow(queries.rows() - 1, 1)?, [self.len - 1]);
        let on_device = self.decoder.positions_on_device(&positions, None)?;
        let at = Location { layer, positions: &positions, positions_on_device: on_device.as_deref() };
        let attention = self.layer_attention(at, Some(self.prompt_len));
        let (_, measured) = attention.attend(&last, &mut Hooks::none())?;
        Ok(measured.map_or(vec![], |measured| measured.received.sum))
    }
}

/// The last of all rows of some tensors, at most so many.
pub(super) fn last_rows(pieces: &[Tensor], wanted: usize) -> Result<Tensor> {
    let all = match pieces {
        [one] => one.clone(),
        _ => Tensor::cat(&pieces.iter().collect::<Vec<_>>())?,
    };
    let rows = all.rows().min(wanted);
    all.narrow(all.rows() - rows, rows)
}
