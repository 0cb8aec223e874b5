//! `keep:SET`: the KV heads of a set keep the prompt, the others only its ends.

use super::head_set::{HeadSet, HeadSetFile, NOTHING};
use super::registry::Argument;
use super::{
    Anchors, Cutoff, Eviction, LayerKv, PolicyKind, PolicyRules, Reach, Retention, StoredHead, full,
};
use crate::{ModelConfig, Result};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Which prompt tokens a KV head keeps that is not in the set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ends {
    /// Positions 0 … this−1.
    pub first: usize,
    /// So many at the end of the prompt, before its last token, which is the first decode token.
    pub last: usize,
}

impl Ends {
    /// Takes what an item of a name says; `None` where that names no ends.
    pub(super) fn parse_item(&mut self, item: &str) -> Option<()> {
        match item.split_once('=') {
            None if item == "bos" => self.first = 1,
            Some(("sinks", tokens)) => self.first = tokens.parse().ok()?,
            Some(("window", tokens)) => self.last = tokens.parse().ok()?,
            _ => return None,
        }
        Some(())
    }

    /// Whether a position is among them, of a prompt whose last token is at position `prefill_len`.
    pub fn contain(self, position: usize, prefill_len: usize) -> bool {
        position < self.first || position >= prefill_len.saturating_sub(self.last)
    }

    /// How many of positions `from` … `prefill_len`−1 are among them.
    fn within(self, from: usize, prefill_len: usize) -> usize {
        let first = self.first.min(prefill_len).saturating_sub(from);
        let after = prefill_len.saturating_sub(self.last).max(self.first).max(from);
        first + prefill_len.saturating_sub(after)
    }
}

/// A set of KV heads that keep the prompt. Its rows run through all layers, or down to a cutoff: what a head does not keep is
/// evicted before the first decode token attends.
#[derive(Debug, Clone)]
pub(super) struct KeptHeads {
    set: HeadSet,
    /// Where the set is from a file: its name and content.
    file: Option<(String, HeadSetFile)>,
    ends: Ends,
    cutoff: Option<Cutoff>,
}

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "keep",
    syntax: "keep:SET[+bos|+sinks=N][+window=N]",
    description: "KV heads of the SET keep the whole prompt, as in keep:0-9+12.0-1 (layers 0 to 9, KV heads 0 and 1 of layer 12); \
                  the others keep position 0 (bos), the first N tokens (sinks), the last N (window). heads=FILE is a SET that \
                  `layerscope recommend --write-heads` wrote, with what its other heads keep. Behind a cutoff: speed:25+bos+keep:SET",
    standard_name: Some("keep:0+bos"),
    parse: |argument| Ok(Arc::new(parse(argument)?)),
};

/// What joins a cutoff and a set in a name.
const JOINT: &str = "+keep:";

/// The parts of a name that has a cutoff before a set.
pub(super) fn behind_cutoff(name: &str) -> Option<(&str, &str)> {
    let joint = name.find(JOINT)?;
    Some((&name[..joint], &name[joint + 1..]))
}

/// A set behind a cutoff; without one where the cutoff is that of the full model.
pub(super) fn composed(cutoff: Option<Cutoff>, set: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    Ok(Arc::new(KeptHeads { cutoff, ..parse(set)? }))
}

fn parse(argument: &Argument<'_>) -> Result<KeptHeads> {
    let (mut set, mut ends, mut file) = (HeadSet::default(), None::<Ends>, None);
    for item in argument.items() {
        match item.split_once('=') {
            Some(("heads", name)) if set == HeadSet::default() => {
                let (of_file, content) = HeadSetFile::read(Path::new(name))?;
                (set, file) = (of_file, Some((name.to_owned(), content)));
            }
            _ if ends.get_or_insert_default().parse_item(item).is_some() => {}
            None if item == NOTHING => {}
            None if file.is_none() => set.parse_item(item).ok_or_else(|| argument.malformed())?,
            _ => return Err(argument.malformed()),
        }
    }
    if argument.items().next().is_none() {
        return Err(argument.malformed());
    }
    // Those that the file's set was searched with, where the name says none.
    let ends = ends.or_else(|| file.as_ref().map(|(_, content)| content.ends())).unwrap_or_default();
    Ok(KeptHeads { set, file, ends, cutoff: None })
}

impl KeptHeads {
    /// Whether a layer is one that the prompt's rows do not reach: what it has are anchors.
    fn is_cut(&self, layer: usize) -> bool {
        self.cutoff.as_ref().is_some_and(|cutoff| layer >= cutoff.layer)
    }

    /// Tokens that a head of a layer keeps which is in the set, or is not.
    fn kept_where(&self, layer: LayerKv, is_in_set: bool) -> usize {
        match self.is_cut(layer.layer) || is_in_set {
            true => layer.stored,
            false => self.ends.within(layer.prefill_len - layer.stored, layer.prefill_len),
        }
    }
}

impl Retention for KeptHeads {
    fn eviction(&self) -> Eviction {
        Eviction::BeforeDecode
    }

    fn kept(&self, layer: LayerKv) -> usize {
        self.kept_where(layer, self.set.has_any_of(layer.layer))
    }

    fn kept_by_head(&self, layer: LayerKv, kv_head: usize) -> usize {
        self.kept_where(layer, self.set.contains(layer.layer, kv_head))
    }

    fn keep_mask(&self, stored: &StoredHead<'_>) -> Result<Vec<bool>> {
        let all = self.is_cut(stored.layer) || self.set.contains(stored.layer, stored.kv_head);
        let keeps = |&position: &usize| all || self.ends.contain(position, stored.prefill_len);
        Ok(stored.positions.iter().map(keeps).collect())
    }
}

impl PolicyRules for KeptHeads {
    fn reach(&self) -> &dyn Reach {
        match &self.cutoff {
            Some(cutoff) => cutoff,
            None => &full::Full,
        }
    }

    fn retention(&self) -> &dyn Retention {
        self
    }

    fn check(&self, config: &ModelConfig) -> Result<()> {
        if let Some((name, file)) = &self.file {
            file.check(name, config)?;
        }
        self.set.check(config)
    }

    fn searched_on(&self) -> Option<&str> {
        self.file.as_ref().map(|(_, file)| &file.sha256[..])
    }

    fn for_model(&self, config: &ModelConfig) -> Option<Arc<dyn PolicyRules>> {
        Some(Arc::new(Self { set: self.set.clone().with_whole_layers(config.kv_heads), ..self.clone() }))
    }
}

impl fmt::Display for KeptHeads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(cutoff) = &self.cutoff {
            write!(f, "speed:{cutoff}+")?;
        }
        match &self.file {
            Some((name, _)) => write!(f, "{}:heads={name}", KIND.name)?,
            None => write!(f, "{}:{}", KIND.name, self.set)?,
        }
        match self.ends.first {
            0 => {}
            1 => write!(f, "{}", Anchors::bos())?,
            first => write!(f, "+sinks={first}")?,
        }
        if self.ends.last > 0 { write!(f, "+window={}", self.ends.last) } else { Ok(()) }
    }
}
