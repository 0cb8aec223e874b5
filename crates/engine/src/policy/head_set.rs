//! Sets of KV heads, and their files.

use super::keep::{self, Ends};
use crate::{Error, ModelConfig, Result, write_file};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

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

/// A set in a file, with the model that it was searched on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadSetFile {
    /// The set, as [`HeadSet`] shows it.
    pub heads: String,
    /// Layers of the model.
    pub layers: usize,
    /// KV heads of each of its layers.
    pub kv_heads: usize,
    /// The model's name.
    pub model: String,
    /// SHA-256 of its weights, lower-case hexadecimal.
    pub sha256: String,
    /// The whole policy, with what the other heads keep.
    pub policy: String,
}

impl HeadSetFile {
    /// The set of a policy's name, `keep:…` or `speed:…+keep:…`; `None` where that names no heads.
    pub fn heads_of(policy: &str) -> Option<String> {
        let set = keep::behind_cutoff(policy).map_or(policy, |(_, set)| set).strip_prefix("keep:")?;
        let mut heads = HeadSet::default();
        let named = set.split('+').take_while(|item| heads.parse_item(item).is_some()).count();
        (named > 0).then(|| heads.to_string())
    }

    /// What the whole policy says that the other heads keep.
    pub(super) fn ends(&self) -> Ends {
        let set = keep::behind_cutoff(&self.policy).map_or(&self.policy[..], |(_, set)| set);
        let mut ends = Ends::default();
        for item in set.split('+') {
            let _ = ends.parse_item(item);
        }
        ends
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Input`] if it cannot be read or is of another format.
    pub fn read(path: &Path) -> Result<(HeadSet, Self)> {
        let text = layerscope_files::read_text(path).map_err(|error| Error::io("read", path, &error))?;
        let file: Self = serde_json::from_str(&text).map_err(|error| Error::damaged(path, error))?;
        let mut set = HeadSet::default();
        for item in file.heads.split('+').filter(|item| *item != NOTHING) {
            let wrong = || Error::damaged(path, format_args!("{item:?} names no layers and no KV heads"));
            set.parse_item(item).ok_or_else(wrong)?;
        }
        Ok((set, file))
    }

    /// # Errors
    /// [`Error::Failure`] where it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|error| Error::failure(error.to_string()))?;
        write_file(path, format!("{text}\n").as_bytes())
    }

    /// # Errors
    /// [`Error::Input`] if it is for a model of another shape.
    pub(super) fn check(&self, name: &str, config: &ModelConfig) -> Result<()> {
        match [self.layers, self.kv_heads] == [config.layers, config.kv_heads] {
            true => Ok(()),
            false => Err(Error::input(format!(
                "{name} is a set of {}, which has {} layers with {} KV heads each; this model has {} with {}: search one for it \
                 with layerscope search",
                self.model, self.layers, self.kv_heads, config.layers, config.kv_heads
            ))),
        }
    }
}

/// The empty set.
pub(super) const NOTHING: &str = "none";
