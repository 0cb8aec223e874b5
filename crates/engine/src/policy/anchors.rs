//! Anchors: prompt positions that exist at every layer.

use std::fmt;
use std::ops::Range;

/// Prompt positions whose rows run full depth in the prefill and keep KV at every layer; a position that is not among
/// the prefill tokens of a prompt counts for nothing.
///
/// Position 0 attends to itself alone, so its KV equals the full model's at every layer. Any other anchor sees only the
/// anchors before it and itself at layers ≥ cutoff, and its KV there is of that smaller sequence, not the full model's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Anchors {
    /// Ascending, neither empty nor touching.
    ranges: Vec<Range<usize>>,
}

impl Anchors {
    /// No anchors.
    pub fn none() -> Self {
        Self::default()
    }

    /// Position 0.
    pub fn bos() -> Self {
        Self { ranges: std::iter::once(0..1).collect() }
    }

    /// The positions of ranges in any order.
    pub fn of(mut ranges: Vec<Range<usize>>) -> Self {
        ranges.retain(|range| !range.is_empty());
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = vec![];
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Self { ranges: merged }
    }

    /// The anchors of a list: each item is `bos`, a position or `FIRST-LAST`. `None` where it is no such list.
    pub(super) fn parse<'a>(list: impl Iterator<Item = &'a str>) -> Option<Self> {
        let number = |text: &str| text.parse::<usize>().ok();
        let range = |item: &str| {
            let (first, last) = match item.split_once('-') {
                _ if item == "bos" => (0, 0),
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(item)?, number(item)?),
            };
            (first <= last).then_some(first..last.checked_add(1)?)
        };
        list.map(range).collect::<Option<_>>().map(Self::of)
    }

    /// Whether a position is an anchor.
    pub fn contains(&self, position: usize) -> bool {
        self.ranges.iter().any(|range| range.contains(&position))
    }

    /// Whether position 0 is the only one, if there is any: then anchors have the full model's keys and values.
    pub fn are_bos_alone(&self) -> bool {
        self.ranges.iter().all(|range| range.end <= 1)
    }

    /// How many of positions 0 … `len`−1 are anchors.
    pub fn within(&self, len: usize) -> usize {
        self.ranges.iter().map(|range| range.end.min(len).saturating_sub(range.start)).sum()
    }

    /// The first anchor at position `len` or behind it.
    pub fn first_beyond(&self, len: usize) -> Option<usize> {
        let first = self.ranges.iter().find(|range| range.end > len)?;
        Some(first.start.max(len))
    }
}

impl fmt::Display for Anchors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for range in &self.ranges {
            let mut start = range.start;
            if start == 0 {
                f.write_str("+bos")?;
                start = 1;
            }
            match range.end - start {
                0 => {}
                1 => write!(f, "+{start}")?,
                _ => write!(f, "+{start}-{}", range.end - 1)?,
            }
        }
        Ok(())
    }
}
