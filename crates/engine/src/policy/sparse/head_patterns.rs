//! Patterns of all heads of a model, as a file beside it, in the format of the configurations that MInference publishes.

use super::pattern::HeadPattern;
use crate::{Error, ModelConfig, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// A pattern and the share of attention that it kept where it was searched; NaN where a file has none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FoundPattern {
    /// The pattern.
    pub pattern: HeadPattern,
    /// Share of attention, 0 to 1; files of others may have other scores.
    pub score: f64,
}

/// By layer and query head, a pattern; heads may be missing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadPatterns {
    layers: Vec<BTreeMap<usize, FoundPattern>>,
}

/// A pattern in a file: kind, two budgets, score.
type Written = (String, usize, usize, f64);

impl HeadPatterns {
    pub(super) fn new(layers: Vec<BTreeMap<usize, FoundPattern>>) -> Self {
        Self { layers }
    }

    /// Layers, each with the patterns of its heads.
    pub fn layers(&self) -> &[BTreeMap<usize, FoundPattern>] {
        &self.layers
    }

    pub(super) fn of(&self, layer: usize, head: usize) -> Option<HeadPattern> {
        Some(self.layers.get(layer)?.get(&head)?.pattern)
    }

    /// Reads a file: a list with an object for each layer, which has for each head `["vertical_and_slash", keys, distances,
    /// score]`, `["stream_llm", first keys, last keys, score]` or `["block_sparse", blocks of 64 keys, 1, score]`.
    ///
    /// # Errors
    /// [`Error::Input`] if it cannot be read or is of another format.
    pub fn read(path: &Path) -> Result<Self> {
        let text = layerscope_files::read_text(path).map_err(|error| Error::io("read", path, &error))?;
        let written: Vec<BTreeMap<usize, Written>> =
            serde_json::from_str(&text).map_err(|error| Error::damaged(path, error))?;
        let found = |(kind, first, second, score): Written| {
            let pattern = match kind.as_str() {
                "vertical_and_slash" => HeadPattern::VerticalSlash { vertical: first, slash: second },
                "stream_llm" => HeadPattern::AShape { first, last: second },
                "block_sparse" => HeadPattern::Blocks(first),
                _ => return Err(Error::damaged(path, format_args!("no pattern is called {kind:?}"))),
            };
            Ok(FoundPattern { pattern, score })
        };
        let layer = |heads: BTreeMap<usize, Written>| {
            heads.into_iter().map(|(head, written)| Ok((head, found(written)?))).collect()
        };
        Ok(Self { layers: written.into_iter().map(layer).collect::<Result<_>>()? })
    }

    /// The text of a file, a layer in each line.
    pub fn to_json(&self) -> String {
        let layer = |heads: &BTreeMap<usize, FoundPattern>| {
            let written = heads.iter().map(|(head, found)| {
                let (kind, first, second) = match found.pattern {
                    HeadPattern::VerticalSlash { vertical, slash } => ("vertical_and_slash", vertical, slash),
                    HeadPattern::AShape { first, last } => ("stream_llm", first, last),
                    HeadPattern::Blocks(blocks) => ("block_sparse", blocks, 1),
                };
                format!("\"{head}\": [\"{kind}\", {first}, {second}, {}]", found.score)
            });
            format!("{{{}}}", written.collect::<Vec<_>>().join(", "))
        };
        format!("[{}]\n", self.layers.iter().map(layer).collect::<Vec<_>>().join(",\n"))
    }

    /// # Errors
    /// [`Error::Input`], naming `file`, if it is of a model of another shape.
    pub(super) fn check(&self, file: &str, config: &ModelConfig) -> Result<()> {
        let heads = self.layers.iter().flat_map(BTreeMap::keys).max().map_or(0, |head| head + 1);
        if self.layers.len() == config.layers && heads <= config.heads {
            return Ok(());
        }
        Err(Error::input(format!(
            "{file} has patterns for {} layers of {heads} heads, and this model has {} of {}; search its own with `layerscope \
             patterns`",
            self.layers.len(),
            config.layers,
            config.heads
        )))
    }
}
