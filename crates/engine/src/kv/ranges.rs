//! A layer's keys as ranges: those that are visible, cut where segments or positions end.

use super::KvStore;
use super::group::{HeadGroup, Memory};
use layerscope_kernels::attention::cuda::spans::DeviceKeySpan;
use layerscope_kernels::{KeySpan, Segment};
use std::ops::Range;

/// Which of a layer's keys, and how they are told apart.
#[derive(Clone, Copy, Default)]
pub(crate) struct View<'a> {
    /// Cut at the segments of a prompt of so many tokens; else all count as [`Segment::Decode`].
    pub(crate) prompt_len: Option<usize>,
    /// Whether the key at each of the first positions is visible; all later ones are.
    pub(crate) visible: Option<&'a [bool]>,
    /// Of decode tokens' keys, only the one at this position.
    pub(crate) only_decode: Option<usize>,
    /// Numbers keys by slot rather than by position, so that those side by side are one range wherever they are in the text.
    pub(crate) by_slot: bool,
}

/// Consecutive slots of some KV heads of a layer, with consecutive positions in one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// Which group of KV heads of the layer.
    pub(crate) group: usize,
    /// KV heads of that group.
    pub(crate) heads: Range<usize>,
    pub(crate) slot: usize,
    /// Number of the first key among the rows' positions; the others follow it.
    pub(crate) first_position: usize,
    pub(crate) len: usize,
    pub(crate) segment: Segment,
}

impl KeyRange {
    /// Where its mass is counted.
    pub fn segment(&self) -> Segment {
        self.segment
    }

    /// The same keys of those of its KV heads that are in a range.
    pub fn of_heads(&self, heads: Range<usize>) -> Option<Self> {
        let heads = self.heads.start.max(heads.start)..self.heads.end.min(heads.end);
        (!heads.is_empty()).then(|| Self { heads, ..self.clone() })
    }

    /// Those of its keys that are at some positions.
    pub fn of_positions(&self, positions: Range<usize>) -> Option<Self> {
        let first = positions.start.max(self.first_position);
        let end = positions.end.min(self.first_position + self.len);
        let slot = self.slot + first.saturating_sub(self.first_position);
        (first < end).then(|| Self { slot, first_position: first, len: end - first, ..self.clone() })
    }

    /// What is left where the keys at some of the first positions are not visible.
    fn visible(self, visible: &[bool]) -> Vec<Self> {
        let is_visible = |at: usize| visible.get(self.first_position + at).is_none_or(|visible| *visible);
        let mut ranges = vec![];
        let mut at = 0;
        while at < self.len {
            let len = (at..self.len).take_while(|&next| is_visible(next) == is_visible(at)).count();
            if is_visible(at) {
                let (slot, first_position) = (self.slot + at, self.first_position + at);
                ranges.push(Self { slot, first_position, len, ..self.clone() });
            }
            at += len;
        }
        ranges
    }
}

impl KvStore {
    /// All stored keys of a layer, cut at the segments of a prompt of `prompt_len` tokens.
    pub fn key_ranges(&self, layer: usize, prompt_len: usize) -> Vec<KeyRange> {
        self.ranges(layer, View { prompt_len: Some(prompt_len), ..View::default() })
    }

    /// The stored keys of a layer that a view shows.
    pub(crate) fn ranges(&self, layer: usize, view: View<'_>) -> Vec<KeyRange> {
        let mut segments = match view.prompt_len {
            None => vec![(Segment::Decode, 0..usize::MAX)],
            Some(p) => segments(p).to_vec(),
        };
        if let (Some(own), Some(decode)) = (view.only_decode, segments.last_mut()) {
            decode.1 = own..own + 1;
        }
        let groups = self.layers[layer].iter().enumerate();
        let mut ranges: Vec<KeyRange> =
            groups.flat_map(|(index, group)| group.ranges(index, &segments)).collect();
        if let Some(visible) = view.visible {
            ranges = ranges.into_iter().flat_map(|range| range.visible(visible)).collect();
        }
        if view.by_slot { by_slot(ranges) } else { ranges }
    }

    /// The slots behind the stored ones, of each group of KV heads: the next token's, at `position`.
    pub(crate) fn next_ranges(&self, layer: usize, position: usize) -> Vec<KeyRange> {
        let next = |(group, of_group): (usize, &HeadGroup)| KeyRange {
            group,
            heads: of_group.heads.clone(),
            slot: of_group.len(),
            first_position: position,
            len: 1,
            segment: Segment::Decode,
        };
        self.layers[layer].iter().enumerate().map(next).collect()
    }

    /// A range as kernels on the host read it; `None` where it is on a GPU.
    pub(crate) fn span(&self, layer: usize, range: &KeyRange) -> Option<KeySpan<'_>> {
        let group = &self.layers[layer][range.group];
        let Memory::Host { keys, values } = &group.memory else { return None };
        let start = group.first_element(range);
        Some(KeySpan {
            first_head: range.heads.start,
            heads: range.heads.len(),
            keys: keys.elements().from_index(start),
            values: values.elements().from_index(start),
            head_stride: group.capacity * self.head_dim,
            len: range.len,
            first_position: range.first_position,
            segment: range.segment,
        })
    }

    /// A range as kernels on a GPU read it; `None` where it is on the host.
    pub(crate) fn device_span(&self, layer: usize, range: &KeyRange) -> Option<DeviceKeySpan> {
        let group = &self.layers[layer][range.group];
        let store = group.on_device()?;
        let start = self.precision.bytes(group.first_element(range)) as u64;
        Some(DeviceKeySpan {
            keys: store.keys.address() + start,
            values: store.values.address() + start,
            head_stride: (group.capacity * self.head_dim) as u64,
            key_stride: self.head_dim as u64,
            copy_stride: 0,
            len: range.len as u32,
            first_position: range.first_position as u32,
            segment: range.segment as u32,
            grows: 0,
            first_head: range.heads.start as u32,
            heads: range.heads.len() as u32,
        })
    }
}

impl HeadGroup {
    /// Index of the first element of a range's first head.
    fn first_element(&self, range: &KeyRange) -> usize {
        self.element(range.heads.start - self.heads.start, range.slot)
    }

    fn ranges(&self, group: usize, segments: &[(Segment, Range<usize>)]) -> Vec<KeyRange> {
        let mut ranges = vec![];
        let mut slot = 0;
        for run in &self.runs {
            for (segment, range) in segments {
                let first = range.start.max(run.first_position);
                let end = range.end.min(run.first_position + run.len);
                if first < end {
                    ranges.push(KeyRange {
                        group,
                        heads: self.heads.clone(),
                        slot: slot + first - run.first_position,
                        first_position: first,
                        len: end - first,
                        segment: *segment,
                    });
                }
            }
            slot += run.len;
        }
        ranges
    }
}

/// Ranges with slots in place of positions, and those as one that lie side by side in one segment.
pub(crate) fn by_slot(ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    let mut joined: Vec<KeyRange> = vec![];
    for range in ranges {
        match joined.last_mut() {
            Some(last)
                if last.group == range.group
                    && last.heads == range.heads
                    && last.slot + last.len == range.slot
                    && last.segment == range.segment =>
            {
                last.len += range.len;
            }
            _ => joined.push(KeyRange { first_position: range.slot, ..range }),
        }
    }
    joined
}

/// The segments of a sequence with a prompt of p tokens, as ranges of positions.
fn segments(p: usize) -> [(Segment, Range<usize>); 3] {
    // With p = 1 position 0 is the first decode token and counts as such.
    let bos_end = 1.min(p - 1);
    [(Segment::Bos, 0..bos_end), (Segment::Prompt, bos_end..p - 1), (Segment::Decode, p - 1..usize::MAX)]
}
