//! Prompt blocks that go on by their scores, and their KV that leaves the device and comes back (SlimInfer, Long et al.
//! 2025, arXiv 2508.06447).
//!
//! In the prefill the blocks that arrive at a pruning layer are scored by the mean query of the last four tokens against
//! the keys of its attention, and the best go on. The layers up to the first pruning hold the whole prompt. When it is
//! done, all of their prompt blocks' KV is taken away, and a copy of what decode reads of it, the blocks that went on,
//! stays where the model runs. When a decode step passes the same attention, the blocks are scored again. Where too few of
//! those that are wanted now are active, the others come back, for each of these layers, in place of those that are not
//! wanted any more: while the model goes on through the layers above, chooses the token and begins the next step, which
//! reads them. What a step reads follows from scores alone, never from how fast a transfer is.

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
    /// Blocks whose rows are on their way through the prefill, ascending.
    present: Vec<usize>,
    /// The layers of which decode reads only some blocks, once the first pruning is done.
    whole: Option<WholePrompt>,
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

/// The layers that hold the whole prompt, of which decode reads some blocks.
struct WholePrompt {
    /// They are 0 … this−1; the last one scores.
    layers: usize,
    representatives: Representatives,
    /// The block in each place of the store; the first never changes.
    active: Vec<usize>,
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
        let mut blocks = Self {
            pruning: pruning.clone(),
            prefill_len,
            decode_len,
            present: (0..BlockPruning::blocks(prefill_len)).collect(),
            whole: None,
            queries: pruning.schedule.prunings().iter().map(|p| (p.layer, VecDeque::new())).collect(),
            chosen: None,
            transfers: None,
            written: false,
            counters: TransferCounters::default(),
        };
        if let Some((_, kept)) = pruning.first_drop(prefill_len) {
            blocks.transfers = Some(start_transfers(decoder.device(), kept * store.record_bytes(BLOCK))?);
        }
        Ok(blocks)
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
        let kept = top_with_first(&representatives.scores(&self.mean_query(layer))?, kept);
        let blocks: HashSet<usize> = kept.iter().map(|&index| self.present[index]).collect();
        // The rest at the end that is no whole block, and the last prompt token, are always kept.
        let whole = BlockPruning::blocks(self.prefill_len) * BLOCK;
        let is_kept = |&position: &usize| position >= whole || blocks.contains(&(position / BLOCK));
        let answer = positions.iter().map(is_kept).collect();
        self.chosen = Some(Chosen { kept, representatives });
        Ok(Some(answer))
    }

    /// Where that is the first pruning, takes away what decode does not read.
    fn stage_ended(&mut self, layers: usize, store: &mut KvStore) -> Result<()> {
        let Some(Chosen { kept, representatives }) = self.chosen.take() else { return Ok(()) };
        let whole = self.present.len();
        self.present = kept.iter().map(|&index| self.present[index]).collect();
        let Some(transfers) = self.transfers.as_mut().filter(|_| self.whole.is_none()) else { return Ok(()) };
        let rest = self.prefill_len % BLOCK;
        // The kept blocks, the rest of the prompt, and the last prompt token.
        let slots: Vec<Range<usize>> = kept
            .iter()
            .map(|&block| block * BLOCK..(block + 1) * BLOCK)
            .chain(std::iter::once(whole * BLOCK..whole * BLOCK + rest + 1))
            .collect();
        let capacity = kept.len() * BLOCK + rest + self.decode_len;
        for layer in 0..layers {
            let evicted = store.keep_slots(layer, &slots, capacity)?;
            self.counters.bytes_out += (whole * store.record_bytes(BLOCK)) as u64;
            transfers.write((0..whole).map(|block| (layer, block)).collect(), evicted)?;
        }
        let (active, waiting) = (kept, layers..layers);
        self.whole = Some(WholePrompt { layers, representatives, active, incoming: vec![], waiting });
        Ok(())
    }

    /// Takes in what was asked for, and waits for it where it has not come. Where a transfer failed, no later step succeeds
    /// either.
    fn before_attention(&mut self, layer: usize, store: &mut KvStore) -> Result<()> {
        let Some(transfers) = &mut self.transfers else { return Ok(()) };
        let Some(whole) = self.whole.as_mut().filter(|whole| layer < whole.layers) else { return Ok(()) };
        if !self.written {
            // From here on an error in writing would be one too late.
            let start = Instant::now();
            transfers.finish_writing()?;
            self.written = true;
            self.counters.write_wait_s = start.elapsed().as_secs_f64();
        }
        if whole.waiting.start == layer && !whole.waiting.is_empty() {
            take_in(whole, layer, transfers, store, &mut self.counters)?;
        }
        Ok(())
    }

    /// In the layer that scores, scores the blocks again, and swaps them if need be.
    fn after_attention(
        &mut self,
        layer: usize,
        queries: &Tensor,
        decoder: &Decoder,
        store: &mut KvStore,
    ) -> Result<()> {
        if self.whole.as_ref().is_none_or(|whole| whole.layers != layer + 1) {
            return Ok(());
        }
        self.note_queries(layer, queries, &decoder.attention_shape(layer))?;
        let query = self.mean_query(layer);
        let (Some(whole), Some(transfers)) = (&mut self.whole, &mut self.transfers) else { return Ok(()) };
        let wanted = top_with_first(&whole.representatives.scores(&query)?, whole.active.len());
        let active: HashSet<usize> = whole.active.iter().copied().collect();
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
        let goes = (0..whole.active.len()).filter(|&place| !kept.contains(&whole.active[place]));
        whole.incoming = goes.zip(comes).collect();
        whole.waiting = 0..whole.layers;
        for &(place, block) in &whole.incoming {
            whole.active[place] = block;
        }
        for layer in 0..whole.layers {
            transfers.read(whole.incoming.iter().map(|&(_, block)| (layer, block)).collect())?;
        }
        if !self.pruning.asynchronous {
            for layer in 0..whole.layers {
                take_in(whole, layer, transfers, store, counters)?;
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

/// Puts what has come for a layer into its places.
fn take_in(
    whole: &mut WholePrompt,
    layer: usize,
    transfers: &mut Transfers,
    store: &mut KvStore,
    counters: &mut TransferCounters,
) -> Result<()> {
    let arrival = transfers.arrival()?;
    let record_bytes = store.record_bytes(BLOCK);
    let Staging { bytes, on_device } = &arrival.staging;
    if bytes.len() != whole.incoming.len() * record_bytes {
        return Err(Error::failure("KV of other blocks came than was asked for; please report this"));
    }
    for (index, &(place, block)) in whole.incoming.iter().enumerate() {
        let offset = index * record_bytes;
        let record = match on_device {
            Some(buffer) => Record::Device { bytes: buffer, offset },
            None => Record::Host(&bytes[offset..offset + record_bytes]),
        };
        let positions = (block * BLOCK, BLOCK);
        store.replace(layer, place * BLOCK, positions, &record)?;
    }
    counters.took_in(bytes.len(), arrival.waited, arrival.took);
    if let Some(buffer) = on_device {
        // What is copied from it has to be out before the next transfer comes in.
        buffer.device().synchronize()?;
    }
    transfers.give_back(arrival.staging);
    whole.waiting.start = layer + 1;
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
    Transfers::start(tier, (0..LAYERS_IN_TRANSIT).map(|_| staging()).collect::<Result<_>>()?)
}
