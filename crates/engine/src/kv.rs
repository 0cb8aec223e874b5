//! The KV store: keys and values per layer and KV head, in buffers reserved once for what the policy keeps, and no more.

mod blocks;
mod buffer;
mod evict;
mod group;
mod prefix;
mod ranges;

use crate::tensor::Tensor;
use crate::{Device, Error, ModelConfig, Result};
pub(crate) use blocks::{LayerKeys, Record};
pub use buffer::{KvBuffer, KvPrecision};
pub(crate) use evict::{Evicted, KeptSlots};
use group::HeadGroup;
use layerscope_kernels::cuda::{Buffer, Numbers};
pub use ranges::KeyRange;
pub(crate) use ranges::{View, by_slot};

/// Keys and values of every layer, where the model runs.
pub struct KvStore {
    kv_heads: usize,
    head_dim: usize,
    precision: KvPrecision,
    /// KV heads that store the same positions share a group: all of a layer, until a policy keeps more for some heads than
    /// for others.
    layers: Vec<Vec<HeadGroup>>,
}

/// A layer's keys and values in a GPU's memory, `[kv_heads, capacity, head_dim]`.
pub(crate) struct DeviceLayer<'a> {
    pub(crate) keys: Numbers<'a>,
    pub(crate) values: Numbers<'a>,
    pub(crate) capacity: usize,
    /// Tokens stored.
    pub(crate) len: usize,
    /// Whether they are at consecutive positions.
    pub(crate) consecutive: bool,
}

impl KvStore {
    /// Reserves room for `capacity[layer]` tokens in each layer.
    ///
    /// # Errors
    /// Where a GPU has not so much memory left.
    pub fn new(
        config: &ModelConfig,
        capacity: &[usize],
        precision: KvPrecision,
        device: &Device,
    ) -> Result<Self> {
        let (kv_heads, head_dim) = (config.kv_heads, config.head_dim);
        let layers = capacity.iter().map(|&capacity| {
            Ok(vec![HeadGroup::reserved(0..kv_heads, head_dim, capacity, precision, device)?])
        });
        Ok(Self { kv_heads, head_dim, precision, layers: layers.collect::<Result<_>>()? })
    }

    /// Bytes allocated for keys and values.
    pub fn allocated_bytes(&self) -> usize {
        self.layers.iter().flatten().map(HeadGroup::allocated_bytes).sum()
    }

    /// The type of keys and values.
    pub fn precision(&self) -> KvPrecision {
        self.precision
    }

    /// Tokens that a layer has room for; of its KV heads, the one with most.
    pub(crate) fn capacity(&self, layer: usize) -> usize {
        self.layers[layer].iter().map(|group| group.capacity).max().unwrap_or(0)
    }

    /// Tokens stored in a layer; of its KV heads, the one with most.
    pub fn len(&self, layer: usize) -> usize {
        self.layers[layer].iter().map(HeadGroup::len).max().unwrap_or(0)
    }

    /// Positions that a KV head of a layer stores, in the order of their slots.
    pub fn positions(&self, layer: usize, kv_head: usize) -> Vec<usize> {
        let group = self.layers[layer].iter().find(|group| group.heads.contains(&kv_head));
        group.map_or(vec![], |group| group.positions().collect())
    }

    /// Stores the keys and values of rows behind all stored ones, whatever their positions;
    /// `keys` and `values` are `[rows, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// [`Error::Failure`] where the layer has no room left.
    pub fn append(
        &mut self,
        layer: usize,
        positions: &[usize],
        keys: &Tensor,
        values: &Tensor,
    ) -> Result<()> {
        self.check_room(layer, positions.len())?;
        for group in &mut self.layers[layer] {
            let first_slot = group.len();
            group.write(self.kv_heads, first_slot, None, [keys, values])?;
            group.add(positions);
        }
        Ok(())
    }

    /// That a layer has room for so many tokens more.
    pub(crate) fn check_room(&self, layer: usize, tokens: usize) -> Result<()> {
        match self.layers[layer].iter().find(|group| group.len() + tokens > group.capacity) {
            None => Ok(()),
            Some(group) => Err(Error::failure(format!(
                "the KV store of layer {layer} is full ({} tokens); please report this",
                group.capacity
            ))),
        }
    }

    /// Keys stored in a layer, summed over KV heads.
    pub(crate) fn stored_keys(&self, layer: usize) -> usize {
        self.layers[layer].iter().map(|group| group.heads.len() * group.len()).sum()
    }

    /// Slots behind the stored ones, one for each group of KV heads.
    pub(crate) fn next_slots(&self, layer: usize) -> Vec<usize> {
        self.layers[layer].iter().map(HeadGroup::len).collect()
    }

    /// Queues the storing of rows on a GPU from [`Self::next_slots`] on, which move on by what `decoded` holds (i32) when it
    /// runs. [`Self::add_positions`] keeps account of it.
    pub(crate) fn append_on_device(
        &self,
        layer: usize,
        first_slots: &[usize],
        decoded: &Buffer,
        keys_values: [&Tensor; 2],
    ) -> Result<()> {
        let groups = self.layers[layer].iter().zip(first_slots);
        groups.into_iter().try_for_each(|(group, &first_slot)| {
            group.write_on_device(self.kv_heads, first_slot, Some(decoded), keys_values)
        })
    }

    /// Keeps account of rows at these positions having been stored.
    pub(crate) fn add_positions(&mut self, layer: usize, positions: &[usize]) {
        self.layers[layer].iter_mut().for_each(|group| group.add(positions));
    }

    /// Whether each key of a layer is at a position behind those in the slots before its own.
    pub(crate) fn is_ascending(&self, layer: usize) -> bool {
        self.layers[layer].iter().all(HeadGroup::is_ascending)
    }

    /// A layer's memory on a GPU, if it is there and all KV heads store the same positions.
    pub(crate) fn on_device(&self, layer: usize) -> Option<DeviceLayer<'_>> {
        match &self.layers[layer][..] {
            [group] => group.on_device(),
            _ => None,
        }
    }

    /// The one group that holds all KV heads of a layer.
    fn whole(&self, layer: usize) -> Result<&HeadGroup> {
        match &self.layers[layer][..] {
            [group] => Ok(group),
            _ => Err(Error::failure("KV heads of a layer store different positions; please report this")),
        }
    }

    fn whole_mut(&mut self, layer: usize) -> Result<&mut HeadGroup> {
        match &mut self.layers[layer][..] {
            [group] => Ok(group),
            _ => Err(Error::failure("KV heads of a layer store different positions; please report this")),
        }
    }

    /// For each group of KV heads of a layer: the heads, the stored positions, and keys and values in f32,
    /// `[heads, stored, head_dim]`.
    pub(crate) fn gathered(&self, layer: usize) -> Result<Vec<Gathered>> {
        self.layers[layer].iter().map(HeadGroup::gathered).collect()
    }
}

/// Keys and values of some KV heads, copied to the host.
pub(crate) struct Gathered {
    pub(crate) heads: std::ops::Range<usize>,
    /// In the order of their slots.
    pub(crate) positions: Vec<usize>,
    /// f32 `[heads, stored, head_dim]`.
    pub(crate) keys: Vec<f32>,
    /// Alike.
    pub(crate) values: Vec<f32>,
}
