//! Prompt blocks that go on by their scores, and their KV that leaves the device and comes back (SlimInfer, Long et al.
//! 2025, arXiv 2508.06447).
//!
//! In the prefill the blocks that arrive at a pruning layer are scored by the mean query of the last four tokens against
//! the keys of its attention, and the best go on. A stage ends there: all its blocks' KV is taken away, and a copy of
//! what decode reads of it, the blocks that went on, stays where the model runs. When a decode step passes the same attention, the
//! stage's blocks are scored again. Where too few of those that are wanted now are active, the others come back, for each
//! layer of the stage, in place of those that are not wanted any more: while the model goes on through the layers above,
//! chooses the token and begins the next step, which reads them. What a step reads follows from scores alone, never from
//! how fast a transfer is.

mod counters;
mod representatives;
#[cfg(test)]
mod tests;
mod tier;
mod transfers;

use crate::kv::{KvStore, Record};
use crate::policy::{BLOCK, BlockPruning, LAYERS_UNDER_WAY, QUERY_WINDOW};
use crate::tensor::{Tensor, with_f32};
use crate::{Decoder, Depth, Device, Error, Result};
pub use counters::TransferCounters;
use layerscope_kernels::AttentionShape;
use representatives::{Representatives, folded};
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::time::Instant;
use tier::{HostMemory, SpillFile, Tier};
use transfers::{Staging, Transfers};

/// The blocks of a running sequence.
pub(super) struct Blocks {
    pruning: BlockPruning,
    prefill_len: usize,
    decode_len: usize,
    /// Blocks whose rows are on their way through the prefill, ascending.
    present: Vec<usize>,
    /// Stages whose prefill has ended and of which decode reads only some blocks.
    stages: Vec<Stage>,
    /// The last queries at each pruning layer, folded.
    queries: Vec<(usize, VecDeque<Vec<f32>>)>,
    /// What the next end of a stage is told.
    chosen: Option<Chosen>,
    transfers: Option<Transfers>,
    /// Whether everything taken away is known to have arrived.
    written: bool,
    counters: TransferCounters,
}

/// What scores said at a pruning layer.
struct Chosen {
    /// Indices into the blocks that arrived, ascending.
    kept: Vec<usize>,
    representatives: Representatives,
}

/// Layers of which decode reads some blocks.
struct Stage {
    layers: Range<usize>,
    /// Blocks with KV, ascending; scored in this order.
    blocks: Vec<usize>,
    representatives: Representatives,
    /// The block in each place of the store, by index into `blocks`; the first never changes.
    active: Vec<usize>,
    /// Places whose block changes, with the index of the block that comes.
    incoming: Vec<(usize, usize)>,
    /// Layers of the stage that have not taken in what comes.
    waiting: Range<usize>,
}

impl Blocks {
    /// For a sequence of `prefill_len` prefill tokens and `decode_len` decode tokens.
    ///
    /// # Errors
    /// [`Error::Input`] where no place for the KV can be made that leaves the device.
    pub(super) fn new(
        pruning: &BlockPruning,
        decoder: &Decoder,
        prefill_len: usize,
        decode_len: usize,
        store: &KvStore,
    ) -> Result<Self> {
        let mut blocks = Self {
            pruning: pruning.clone(),
            prefill_len,
            decode_len,
            present: (0..BlockPruning::blocks(prefill_len)).collect(),
            stages: vec![],
            queries: pruning.schedule.prunings().iter().map(|p| (p.layer, VecDeque::new())).collect(),
            chosen: None,
            transfers: None,
            written: false,
            counters: TransferCounters::default(),
        };
        let kept = pruning.kept_blocks(prefill_len);
        let most = kept.iter().copied().filter(|&kept| kept < blocks.present.len()).max();
        if let (false, Some(most)) = (pruning.resident, most) {
            blocks.transfers = Some(start_transfers(decoder.device(), most * store.record_bytes(BLOCK))?);
        }
        Ok(blocks)
    }

    /// Whether decode steps change what is read.
    pub(super) fn changes(&self) -> bool {
        self.transfers.is_some()
    }

    /// What was moved so far; `None` where nothing ever is.
    pub(super) fn counters(&self) -> Option<&TransferCounters> {
        self.transfers.as_ref().map(|_| &self.counters)
    }

    /// Which of the rows that arrived at an exit go on; `None` until the prompt's last has arrived.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(super) fn go_on(
        &mut self,
        exit: Depth,
        positions: &[usize],
        queries: &Tensor,
        decoder: &Decoder,
        store: &KvStore,
    ) -> Result<Option<Vec<bool>>> {
        let layer = exit.layer();
        self.note_queries(layer, queries, &decoder.attention_shape(layer))?;
        if positions.last() != Some(&self.prefill_len) {
            return Ok(None);
        }
        let prunings = self.pruning.schedule.prunings();
        let index = prunings.iter().position(|pruning| pruning.layer == layer);
        let kept =
            index.map_or(self.present.len(), |index| self.pruning.kept_blocks(self.prefill_len)[index]);
        if kept >= self.present.len() {
            return Ok(Some(vec![true; positions.len()]));
        }
        let shape = decoder.attention_shape(layer);
        let representatives = Representatives::of(
            &store.keys(layer)?,
            self.present.len(),
            self.pruning.pooling,
            shape.kv_heads * shape.head_dim,
            decoder.device(),
        )?;
        let kept = best(&representatives.scores(&self.mean_query(layer))?, kept);
        let blocks: HashSet<usize> = kept.iter().map(|&index| self.present[index]).collect();
        // The rest at the end that is no whole block, and the last prompt token, always go on.
        let whole = BlockPruning::blocks(self.prefill_len) * BLOCK;
        let goes_on = |&position: &usize| position >= whole || blocks.contains(&(position / BLOCK));
        let answer = positions.iter().map(goes_on).collect();
        self.chosen = Some(Chosen { kept, representatives });
        Ok(Some(answer))
    }

    /// A stage's prefill has ended: takes away what decode does not read of its layers.
    ///
    /// # Errors
    /// [`Error::Failure`] where a transfer fails.
    pub(super) fn stage_ended(&mut self, layers: Range<usize>, store: &mut KvStore) -> Result<()> {
        let Some(Chosen { kept, representatives }) = self.chosen.take() else { return Ok(()) };
        let onward = kept.iter().map(|&index| self.present[index]).collect();
        let blocks = std::mem::replace(&mut self.present, onward);
        let Some(transfers) = &mut self.transfers else { return Ok(()) };
        let rest = self.prefill_len % BLOCK;
        let end = blocks.len() * BLOCK;
        // The kept blocks, the rest of the prompt, and the last prompt token.
        let slots: Vec<Range<usize>> = kept
            .iter()
            .map(|&index| index * BLOCK..(index + 1) * BLOCK)
            .chain(std::iter::once(end..end + rest + 1))
            .collect();
        let capacity = kept.len() * BLOCK + rest + self.decode_len;
        for layer in layers.clone() {
            let given_up = store.keep_slots(layer, &slots, capacity)?;
            self.counters.bytes_out += (blocks.len() * store.record_bytes(BLOCK)) as u64;
            transfers.write(blocks.iter().map(|&block| (layer, block)).collect(), given_up)?;
        }
        self.stages.push(Stage {
            waiting: layers.end..layers.end,
            layers,
            blocks,
            representatives,
            active: kept,
            incoming: vec![],
        });
        Ok(())
    }

    /// A decode step comes to a layer: takes in what was asked for, and waits for it where it has not come.
    ///
    /// # Errors
    /// [`Error::Failure`] where a transfer failed; no later step will succeed either.
    pub(super) fn before_attention(&mut self, layer: usize, store: &mut KvStore) -> Result<()> {
        let Some(transfers) = &mut self.transfers else { return Ok(()) };
        let Some(stage) = self.stages.iter_mut().find(|stage| stage.layers.contains(&layer)) else {
            return Ok(());
        };
        if !self.written {
            // From here on an error in writing would be one too late.
            let start = Instant::now();
            transfers.finish_writing()?;
            self.written = true;
            self.counters.write_wait_s = start.elapsed().as_secs_f64();
        }
        if stage.waiting.start == layer && !stage.waiting.is_empty() {
            take_in(stage, layer, transfers, store, &mut self.counters)?;
        }
        Ok(())
    }

    /// A decode step has attended in a layer: where a stage ends there, its blocks are scored again, and swapped if need be.
    ///
    /// # Errors
    /// [`Error::Failure`] where a transfer failed.
    pub(super) fn after_attention(
        &mut self,
        layer: usize,
        queries: &Tensor,
        shape: &AttentionShape,
        store: &mut KvStore,
    ) -> Result<()> {
        let Some(index) = self.stages.iter().position(|stage| stage.layers.end == layer + 1) else {
            return Ok(());
        };
        self.note_queries(layer, queries, shape)?;
        let query = self.mean_query(layer);
        let (stage, counters) = (&mut self.stages[index], &mut self.counters);
        let Some(transfers) = &mut self.transfers else { return Ok(()) };
        let wanted = best(&stage.representatives.scores(&query)?, stage.active.len());
        let active: HashSet<usize> = stage.active.iter().copied().collect();
        let hits = wanted.iter().filter(|index| active.contains(index)).count();
        counters.rescored += 1;
        counters.blocks_wanted += wanted.len() as u64;
        counters.blocks_active += hits as u64;
        if hits as f64 >= self.pruning.swap_below * wanted.len() as f64 {
            return Ok(());
        }
        counters.swaps += 1;
        let kept: HashSet<usize> = wanted.iter().copied().collect();
        let comes = wanted.into_iter().filter(|index| !active.contains(index));
        let goes = (0..stage.active.len()).filter(|&place| !kept.contains(&stage.active[place]));
        stage.incoming = goes.zip(comes).collect();
        stage.waiting = stage.layers.clone();
        for &(place, block) in &stage.incoming {
            stage.active[place] = block;
        }
        for layer in stage.layers.clone() {
            transfers
                .read(stage.incoming.iter().map(|&(_, index)| (layer, stage.blocks[index])).collect())?;
        }
        if !self.pruning.asynchronous {
            for layer in stage.layers.clone() {
                take_in(stage, layer, transfers, store, counters)?;
            }
        }
        Ok(())
    }

    /// Keeps the last queries `[rows, H, head_dim]` of a pruning layer.
    fn note_queries(&mut self, layer: usize, queries: &Tensor, shape: &AttentionShape) -> Result<()> {
        let Some((_, last)) = self.queries.iter_mut().find(|(of, _)| *of == layer) else { return Ok(()) };
        let rows = queries.rows().min(QUERY_WINDOW);
        let newest = queries.narrow(queries.rows() - rows, rows)?;
        with_f32(&newest, |numbers| {
            let rows = numbers.chunks_exact(shape.query_heads * shape.head_dim);
            last.extend(rows.map(|query| folded(query, shape)));
        })?;
        while last.len() > QUERY_WINDOW {
            last.pop_front();
        }
        Ok(())
    }

    /// Their mean.
    fn mean_query(&self, layer: usize) -> Vec<f32> {
        let Some((_, last)) = self.queries.iter().find(|(of, _)| *of == layer) else { return vec![] };
        let mut mean = vec![0.0; last.front().map_or(0, Vec::len)];
        for query in last {
            mean.iter_mut().zip(query).for_each(|(sum, x)| *sum += x / last.len() as f32);
        }
        mean
    }
}

/// The indices of the `count` largest scores, the first of equals, ascending; index 0 is always among them.
pub(super) fn best(scores: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (1..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut best: Vec<usize> = std::iter::once(0).chain(order).take(count.min(scores.len())).collect();
    best.sort_unstable();
    best
}

/// Puts what has come for a layer into its places.
fn take_in(
    stage: &mut Stage,
    layer: usize,
    transfers: &mut Transfers,
    store: &mut KvStore,
    counters: &mut TransferCounters,
) -> Result<()> {
    let arrival = transfers.arrival()?;
    let record_bytes = store.record_bytes(BLOCK);
    let Staging { bytes, on_device } = &arrival.staging;
    if bytes.len() != stage.incoming.len() * record_bytes {
        return Err(Error::failure("KV of other blocks came than was asked for; please report this"));
    }
    for (index, &(place, block)) in stage.incoming.iter().enumerate() {
        let offset = index * record_bytes;
        let record = match on_device {
            Some(buffer) => Record::Device { bytes: buffer, offset },
            None => Record::Host(&bytes[offset..offset + record_bytes]),
        };
        let positions = (stage.blocks[block] * BLOCK, BLOCK);
        store.replace(layer, place * BLOCK, positions, &record)?;
    }
    counters.took_in(bytes.len(), arrival.waited, arrival.took);
    if let Some(buffer) = on_device {
        // What is copied from it has to be out before the next transfer comes in.
        buffer.device().synchronize()?;
    }
    transfers.give_back(arrival.staging);
    stage.waiting.start = layer + 1;
    Ok(())
}

/// Transfers of at most `layer_bytes` of a layer at once, to where KV goes from a device.
fn start_transfers(device: &Device, layer_bytes: usize) -> Result<Transfers> {
    let tier: Box<dyn Tier> = match device {
        Device::Cpu => Box::new(SpillFile::create()?),
        Device::Cuda(_) => Box::<HostMemory>::default(),
    };
    let staging = || -> Result<Staging> {
        let on_device = match device {
            Device::Cpu => None,
            Device::Cuda(device) => Some(device.reserve(layer_bytes)?),
        };
        Ok(Staging { bytes: vec![], on_device })
    };
    Transfers::start(tier, (0..LAYERS_UNDER_WAY).map(|_| staging()).collect::<Result<_>>()?)
}
