//! Prompt blocks that go on by their scores, and their KV that leaves the device and comes back (SlimInfer, Long et al.
//! 2025, arXiv 2508.06447).
//!
//! In the prefill the blocks that arrive at a pruning layer are scored by the mean query of the last four tokens against
//! the keys of its attention, and the best go on. Where decode is to read only a share of them, their KV is taken away once
//! the stage's prefill is done, and a copy of the best of them stays where the model runs. When a decode step passes the
//! pruning layer, the blocks that went on are scored again. Where too few of those that are wanted now are active, the others
//! come back, for each layer of the stage, in place of those that are not wanted any more: while the model goes on. The same
//! step reads them. What a step reads follows from scores alone, never from how fast a transfer is.

use super::counters::TransferCounters;
use super::representatives::{Representatives, folded};
use super::tier::{HostMemory, SpillFile, Tier};
use super::transfers::{Staging, Transfers};
use super::{BLOCK, BlockPruning, LAYERS_IN_TRANSIT, QUERY_WINDOW};
use crate::kv::{KvStore, Record};
use crate::policy::top::top_with_first;
use crate::policy::{Arrived, RunningSelection, SequenceSetup};
use crate::tensor::{Tensor, with_f32};
use crate::{Decoder, Device, Error, Result};
use layerscope_kernels::AttentionShape;
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::time::Instant;

/// The blocks of a running sequence.
pub(super) struct PromptBlocks {
    pruning: BlockPruning,
    prefill_len: usize,
    decode_len: usize,
    layers: usize,
    /// Blocks whose rows are on their way through the prefill, ascending.
    present: Vec<usize>,
    /// The stages of which decode reads a share, once the pruning before each is done.
    shared: Vec<SharedStage>,
    /// The last queries at each pruning layer, folded.
    queries: Vec<(usize, VecDeque<Vec<f32>>)>,
    transfers: Option<Transfers>,
    /// Whether everything taken away is known to have arrived.
    written: bool,
    counters: TransferCounters,
}

/// A stage of which decode reads some blocks.
struct SharedStage {
    /// The layer whose attention scores.
    scored_at: usize,
    layers: Range<usize>,
    /// The blocks that went on, ascending.
    blocks: Vec<usize>,
    /// What stands for each of them.
    representatives: Representatives,
    /// Which of them is in each place of the store; the first never changes.
    active: Vec<usize>,
    /// Whether its prefill is done, and the others are away.
    is_reduced: bool,
    /// Places whose block changes, with the block that comes.
    incoming: Vec<(usize, usize)>,
    /// The layers that have not taken in what comes.
    waiting: Range<usize>,
}

impl PromptBlocks {
    /// Of a sequence.
    ///
    /// # Errors
    /// [`Error::Input`] where no place for the KV can be made that leaves the device.
    pub(super) fn new(pruning: &BlockPruning, sequence: &SequenceSetup<'_>) -> Result<Self> {
        let &SequenceSetup { decoder, store, prefill_len, decode_len } = sequence;
        let most_read = pruning.limited(prefill_len).into_iter().map(|(_, [_, read])| read).max();
        let transfers =
            most_read.map(|read| start_transfers(decoder.device(), read * store.record_bytes(BLOCK)));
        Ok(Self {
            pruning: pruning.clone(),
            prefill_len,
            decode_len,
            layers: decoder.config().layers,
            present: (0..BlockPruning::blocks(prefill_len)).collect(),
            shared: vec![],
            queries: pruning.schedule.prunings().iter().map(|p| (p.layer, VecDeque::new())).collect(),
            transfers: transfers.transpose()?,
            written: false,
            counters: TransferCounters::default(),
        })
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

impl RunningSelection for PromptBlocks {
    fn keep_mask(&mut self, arrived: &Arrived<'_>, decoder: &Decoder) -> Result<Option<Vec<bool>>> {
        let &Arrived { positions, store, .. } = arrived;
        let layer = arrived.point.layer();
        let queries = arrived.queries;
        let queries = queries.ok_or_else(|| Error::failure("no row has attended yet; please report this"))?;
        self.note_queries(layer, queries, &decoder.attention_shape(layer))?;
        if positions.last() != Some(&self.prefill_len) {
            return Ok(None);
        }
        let prunings = self.pruning.schedule.prunings();
        let index = prunings.iter().position(|pruning| pruning.layer == layer);
        let index = index.ok_or_else(|| Error::failure("no pruning is there; please report this"))?;
        let [kept, read] =
            [self.pruning.kept_blocks(self.prefill_len), self.pruning.read_blocks(self.prefill_len)]
                .map(|of| of[index]);
        if kept >= self.present.len() && read >= kept {
            return Ok(Some(vec![true; positions.len()]));
        }
        let shape = decoder.attention_shape(layer);
        let (keys, pooling) = (store.keys(layer)?, self.pruning.pooling);
        let representatives = |blocks: &[usize]| {
            Representatives::of(&keys, blocks, pooling, shape.kv_heads * shape.head_dim, decoder.device())
        };
        let arrived: Vec<usize> = (0..self.present.len()).collect();
        let scores = representatives(&arrived)?.scores(&self.mean_query(layer))?;
        let kept = top_with_first(&scores, kept);
        self.present = kept.iter().map(|&index| self.present[index]).collect();
        if read < kept.len() {
            let scores: Vec<f32> = kept.iter().map(|&index| scores[index]).collect();
            let layers = self.pruning.schedule.layers_of_stage(index + 1, self.layers);
            self.shared.push(SharedStage {
                scored_at: layer,
                waiting: layers.end..layers.end,
                layers,
                blocks: self.present.clone(),
                representatives: representatives(&kept)?,
                active: top_with_first(&scores, read),
                is_reduced: false,
                incoming: vec![],
            });
        }
        // The rest at the end that is no whole block, and the last prompt token, are always kept.
        let whole = BlockPruning::blocks(self.prefill_len) * BLOCK;
        let blocks: HashSet<usize> = self.present.iter().copied().collect();
        let is_kept = |&position: &usize| position >= whole || blocks.contains(&(position / BLOCK));
        Ok(Some(positions.iter().map(is_kept).collect()))
    }

    /// Takes away what decode does not read of the stage.
    fn stage_ended(&mut self, layers: usize, store: &mut KvStore) -> Result<()> {
        let stage = self.shared.iter_mut().find(|stage| stage.layers.end == layers);
        let (Some(stage), Some(transfers)) = (stage, &mut self.transfers) else { return Ok(()) };
        let (whole, rest) = (stage.blocks.len(), self.prefill_len % BLOCK);
        // The active blocks, the rest of the prompt, and the last prompt token.
        let active = stage.active.iter().map(|&block| block * BLOCK..(block + 1) * BLOCK);
        let slots: Vec<Range<usize>> =
            active.chain(std::iter::once(whole * BLOCK..whole * BLOCK + rest + 1)).collect();
        let capacity = stage.active.len() * BLOCK + rest + self.decode_len;
        for layer in stage.layers.clone() {
            let evicted = store.keep_slots(layer, &slots, capacity)?;
            self.counters.bytes_out += (whole * store.record_bytes(BLOCK)) as u64;
            transfers.write(stage.blocks.iter().map(|&block| (layer, block)).collect(), evicted)?;
        }
        stage.is_reduced = true;
        Ok(())
    }

    /// Takes in what was asked for, and waits for it where it has not come. Where a transfer failed, no later step succeeds
    /// either.
    fn before_attention(&mut self, layer: usize, store: &mut KvStore) -> Result<()> {
        let Some(transfers) = &mut self.transfers else { return Ok(()) };
        let of_layer = |stage: &&mut SharedStage| stage.is_reduced && stage.layers.contains(&layer);
        let Some(stage) = self.shared.iter_mut().find(of_layer) else { return Ok(()) };
        if !self.written {
            // From here on an error in writing would be one too late.
            let start = Instant::now();
            transfers.finish_writing()?;
            self.written = true;
            self.counters.write_wait_s = start.elapsed().as_secs_f64();
        }
        if stage.waiting.start == layer && !stage.waiting.is_empty() {
            stage.take_in(transfers, store, &mut self.counters)?;
        }
        Ok(())
    }

    /// In a layer that scores, scores the blocks again, and swaps them if need be.
    fn after_attention(
        &mut self,
        layer: usize,
        queries: &Tensor,
        decoder: &Decoder,
        store: &mut KvStore,
    ) -> Result<()> {
        let scores_here = |stage: &SharedStage| stage.is_reduced && stage.scored_at == layer;
        if !self.shared.iter().any(scores_here) {
            return Ok(());
        }
        self.note_queries(layer, queries, &decoder.attention_shape(layer))?;
        let query = self.mean_query(layer);
        let stage = self.shared.iter_mut().find(|stage| scores_here(stage));
        let (Some(stage), Some(transfers)) = (stage, &mut self.transfers) else { return Ok(()) };
        let wanted = top_with_first(&stage.representatives.scores(&query)?, stage.active.len());
        let active: HashSet<usize> = stage.active.iter().copied().collect();
        let hits = wanted.iter().filter(|block| active.contains(block)).count();
        let counters = &mut self.counters;
        counters.rescored += 1;
        counters.blocks_wanted += wanted.len() as u64;
        counters.blocks_active += hits as u64;
        if hits as f64 >= self.pruning.swap_below * wanted.len() as f64 {
            return Ok(());
        }
        counters.swaps += 1;
        let kept: HashSet<usize> = wanted.iter().copied().collect();
        let comes = wanted.into_iter().filter(|block| !active.contains(block));
        let goes = (0..stage.active.len()).filter(|&place| !kept.contains(&stage.active[place]));
        stage.incoming = goes.zip(comes).collect();
        stage.waiting = stage.layers.clone();
        for &(place, block) in &stage.incoming {
            stage.active[place] = block;
        }
        for layer in stage.layers.clone() {
            let comes = stage.incoming.iter().map(|&(_, block)| (layer, stage.blocks[block]));
            transfers.read(comes.collect())?;
        }
        if !self.pruning.asynchronous {
            while !stage.waiting.is_empty() {
                stage.take_in(transfers, store, counters)?;
            }
        }
        Ok(())
    }

    fn transfers(&self) -> Option<&TransferCounters> {
        self.transfers.as_ref().map(|_| &self.counters)
    }

    fn is_settled(&self) -> bool {
        self.transfers.is_none()
    }
}

impl SharedStage {
    /// Puts what has come for the next layer into its places.
    fn take_in(
        &mut self,
        transfers: &mut Transfers,
        store: &mut KvStore,
        counters: &mut TransferCounters,
    ) -> Result<()> {
        let arrival = transfers.arrival()?;
        let record_bytes = store.record_bytes(BLOCK);
        let Staging { bytes, on_device } = &arrival.staging;
        if bytes.len() != self.incoming.len() * record_bytes {
            return Err(Error::failure("KV of other blocks came than was asked for; please report this"));
        }
        for (index, &(place, block)) in self.incoming.iter().enumerate() {
            let offset = index * record_bytes;
            let record = match on_device {
                Some(buffer) => Record::Device { bytes: buffer, offset },
                None => Record::Host(&bytes[offset..offset + record_bytes]),
            };
            let positions = (self.blocks[block] * BLOCK, BLOCK);
            store.replace(self.waiting.start, place * BLOCK, positions, &record)?;
        }
        counters.took_in(bytes.len(), arrival.waited, arrival.took);
        if let Some(buffer) = on_device {
            // What is copied from it has to be out before the next transfer comes in.
            buffer.device().synchronize()?;
        }
        transfers.give_back(arrival.staging);
        self.waiting.start += 1;
        Ok(())
    }
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
    Transfers::start(tier, (0..LAYERS_IN_TRANSIT).map(|_| staging()).collect::<Result<_>>()?)
}
