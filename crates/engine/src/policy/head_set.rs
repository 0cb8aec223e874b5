//! Sets of KV heads.

use crate::{Error, ModelConfig, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

/// KV heads of some layers. `Display` is what [`Self::parse`] reads: whole layers and ranges of them, single heads and ranges of
/// them, `0-9+12.0-1`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeadSet {
    /// The heads of a layer; all where it names none.
    layers: BTreeMap<usize, Option<BTreeSet<usize>>>,
}

impl HeadSet {
    /// A set of (layer, KV head) of a model with so many KV heads in each layer.
    pub fn of(units: impl IntoIterator<Item = (usize, usize)>, kv_heads: usize) -> Self {
        let mut set = Self::default();
        for (layer, head) in units {
            set.add(layer, head..=head);
        }
        set.with_whole_layers(kv_heads)
    }

    /// Whether a head is in it.
    pub fn contains(&self, layer: usize, kv_head: usize) -> bool {
        self.layers
            .get(&layer)
            .is_some_and(|heads| heads.as_ref().is_none_or(|heads| heads.contains(&kv_head)))
    }

    /// Whether any head of a layer is in it.
    pub fn has_any_of(&self, layer: usize) -> bool {
        self.layers.get(&layer).is_some_and(|heads| heads.as_ref().is_none_or(|heads| !heads.is_empty()))
    }

    /// The heads of a layer with so many.
    pub fn of_layer(&self, layer: usize, kv_heads: usize) -> Vec<usize> {
        (0..kv_heads).filter(|&head| self.contains(layer, head)).collect()
    }

    /// Layers of which all heads are in it by name are written as layers.
    pub(super) fn with_whole_layers(mut self, kv_heads: usize) -> Self {
        for heads in self.layers.values_mut() {
            if heads.as_ref().is_some_and(|heads| (0..kv_heads).all(|head| heads.contains(&head))) {
                *heads = None;
            }
        }
        self
    }

    /// Adds what an item of a name says; `None` where it is no layers and no heads.
    pub(super) fn parse_item(&mut self, item: &str) -> Option<()> {
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
            (first <= last).then_some(usize::from(first)..=usize::from(last))
        };
        match item.split_once('.') {
            Some((layer, heads)) => self.add(usize::from(layer.parse::<u16>().ok()?), range(heads)?),
            None => range(item)?.for_each(|layer| _ = self.layers.insert(layer, None)),
        }
        Some(())
    }

    fn add(&mut self, layer: usize, heads: RangeInclusive<usize>) {
        if let Some(of_layer) = self.layers.entry(layer).or_insert_with(|| Some(BTreeSet::new())) {
            of_layer.extend(heads);
        }
    }

    /// # Errors
    /// [`Error::Input`] where it names a layer or a head that a model does not have.
    pub(super) fn check(&self, config: &ModelConfig) -> Result<()> {
        for (&layer, heads) in &self.layers {
            if layer >= config.layers {
                return Err(Error::input(format!(
                    "a set names layer {layer}, and the model's last one is {}",
                    config.layers - 1
                )));
            }
            if let Some(head) = heads.iter().flatten().find(|&&head| head >= config.kv_heads) {
                return Err(Error::input(format!(
                    "a set names KV head {head} of layer {layer}, and the model's last one is {}",
                    config.kv_heads - 1
                )));
            }
        }
        Ok(())
    }
}

impl fmt::Display for HeadSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |first: usize, last: usize| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        let mut items: Vec<String> = vec![];
        let layers: Vec<(&usize, &Option<BTreeSet<usize>>)> = self.layers.iter().collect();
        let follows = |a: &(&usize, &Option<BTreeSet<usize>>), b: &(&usize, &Option<BTreeSet<usize>>)| {
            a.1.is_none() && b.1.is_none() && a.0 + 1 == *b.0
        };
        for run in layers.chunk_by(follows) {
            let (layer, last) = (run[0].0, run[run.len() - 1].0);
            match run[0].1 {
                None => items.push(shown(*layer, *last)),
                Some(heads) => {
                    let heads: Vec<usize> = heads.iter().copied().collect();
                    let runs = heads.chunk_by(|a, b| a + 1 == *b);
                    items.extend(runs.map(|run| format!("{layer}.{}", shown(run[0], run[run.len() - 1]))));
                }
            }
        }
        if items.is_empty() { f.write_str(NOTHING) } else { f.write_str(&items.join("+")) }
    }
}

/// The empty set.
pub(super) const NOTHING: &str = "none";
