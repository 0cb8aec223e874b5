//! A layer's keys as spans: those that are seen, cut where segments or positions end.

use super::{KvStore, LayerNumbers};
use layerscope_kernels::attention::cuda::spans::DeviceKeySpan;
use layerscope_kernels::{KeySpan, Segment};
use std::ops::Range;

/// Which of a layer's keys, and how they are told apart.
#[derive(Clone, Copy, Default)]
pub(crate) struct View<'a> {
    /// Cut at the segments of a prompt of so many tokens; else all count as [`Segment::Decode`].
    pub(crate) prompt_len: Option<usize>,
    /// Whether the key at each of the first positions is there; all later ones are.
    pub(crate) seen: Option<&'a [bool]>,
    /// Numbers keys by slot rather than by position, so that those side by side are one span wherever they are in the text.
    pub(crate) by_slot: bool,
}

/// Consecutive slots with consecutive positions in one segment.
struct Piece {
    slot: usize,
    first_position: usize,
    len: usize,
    segment: Segment,
}

impl KvStore {
    /// The stored keys of a layer as spans; with the prompt length p they are cut at the segments' borders, else
    /// all count as [`Segment::Decode`]. None where they are on a GPU.
    pub fn spans(&self, layer: usize, prompt_len: Option<usize>) -> Vec<KeySpan<'_>> {
        self.host_spans(layer, self.pieces(layer, prompt_len))
    }

    /// The stored keys of a layer without decode rows, cut as [`Self::spans`] cuts them, but for the row at `own`.
    pub fn spans_without_other_decode_rows(
        &self,
        layer: usize,
        prompt_len: usize,
        own: usize,
    ) -> Vec<KeySpan<'_>> {
        self.host_spans(layer, self.pieces_without_other_decode_rows(layer, prompt_len, own))
    }

    /// The stored keys of a layer that a view shows; none where they are on a GPU.
    pub(crate) fn spans_of(&self, layer: usize, view: View<'_>) -> Vec<KeySpan<'_>> {
        self.host_spans(layer, self.pieces_of(layer, view))
    }

    /// [`Self::spans_of`] a layer on a GPU.
    pub(crate) fn device_spans_of(&self, layer: usize, view: View<'_>) -> Vec<DeviceKeySpan> {
        self.spans_of_pieces(layer, self.pieces_of(layer, view))
    }

    /// [`Self::spans`] of a layer on a GPU.
    pub fn device_spans(&self, layer: usize, prompt_len: Option<usize>) -> Vec<DeviceKeySpan> {
        self.spans_of_pieces(layer, self.pieces(layer, prompt_len))
    }

    /// [`Self::spans_without_other_decode_rows`] of a layer on a GPU.
    pub(crate) fn device_spans_without_other_decode_rows(
        &self,
        layer: usize,
        prompt_len: usize,
        own: usize,
    ) -> Vec<DeviceKeySpan> {
        self.spans_of_pieces(layer, self.pieces_without_other_decode_rows(layer, prompt_len, own))
    }

    /// The span of the next key alone, a decode token's at `position`, which grows with those that follow.
    pub(crate) fn device_span_of_next(&self, layer: usize, position: usize) -> DeviceKeySpan {
        let piece =
            Piece { slot: self.len(layer), first_position: position, len: 1, segment: Segment::Decode };
        let mut spans = self.spans_of_pieces(layer, vec![piece]);
        let mut span = spans.swap_remove(0);
        span.grows = 1;
        span
    }

    fn host_spans(&self, layer: usize, pieces: Vec<Piece>) -> Vec<KeySpan<'_>> {
        let store = &self.layers[layer];
        let LayerNumbers::Host { keys, values } = &store.numbers else { return vec![] };
        let span = |piece: Piece| {
            let start = piece.slot * self.head_dim;
            KeySpan {
                keys: keys.elements().from_index(start),
                values: values.elements().from_index(start),
                head_stride: store.capacity * self.head_dim,
                len: piece.len,
                first_position: piece.first_position,
                segment: piece.segment,
            }
        };
        pieces.into_iter().map(span).collect()
    }

    fn spans_of_pieces(&self, layer: usize, pieces: Vec<Piece>) -> Vec<DeviceKeySpan> {
        let Some(store) = self.on_device(layer) else { return vec![] };
        let span = |piece: Piece| {
            let start = (piece.slot * self.head_dim * self.precision.element_bytes()) as u64;
            DeviceKeySpan {
                keys: store.keys.address() + start,
                values: store.values.address() + start,
                head_stride: (store.capacity * self.head_dim) as u64,
                key_stride: self.head_dim as u64,
                copy_stride: 0,
                len: piece.len as u32,
                first_position: piece.first_position as u32,
                segment: piece.segment as u32,
                grows: 0,
            }
        };
        pieces.into_iter().map(span).collect()
    }

    fn pieces(&self, layer: usize, prompt_len: Option<usize>) -> Vec<Piece> {
        match prompt_len {
            None => self.pieces_within(layer, &[(Segment::Decode, 0..usize::MAX)]),
            Some(p) => self.pieces_within(layer, &segments(p)),
        }
    }

    fn pieces_of(&self, layer: usize, view: View<'_>) -> Vec<Piece> {
        let mut pieces = self.pieces(layer, view.prompt_len);
        if let Some(seen) = view.seen {
            pieces = pieces.into_iter().flat_map(|piece| piece.seen(seen)).collect();
        }
        if view.by_slot {
            pieces = by_slot(pieces);
        }
        pieces
    }

    fn pieces_without_other_decode_rows(&self, layer: usize, prompt_len: usize, own: usize) -> Vec<Piece> {
        let [bos, prompt, _] = segments(prompt_len);
        self.pieces_within(layer, &[bos, prompt, (Segment::Decode, own..own + 1)])
    }

    fn pieces_within(&self, layer: usize, segments: &[(Segment, Range<usize>)]) -> Vec<Piece> {
        let mut pieces = vec![];
        let mut slot = 0;
        for run in &self.layers[layer].runs {
            for (segment, range) in segments {
                let first = range.start.max(run.first_position);
                let end = range.end.min(run.first_position + run.len);
                if first < end {
                    pieces.push(Piece {
                        slot: slot + first - run.first_position,
                        first_position: first,
                        len: end - first,
                        segment: *segment,
                    });
                }
            }
            slot += run.len;
        }
        pieces
    }
}

impl Piece {
    /// What is left where the keys at some of the first positions are not seen.
    fn seen(self, seen: &[bool]) -> Vec<Self> {
        let is_seen = |at: usize| seen.get(self.first_position + at).is_none_or(|seen| *seen);
        let mut pieces = vec![];
        let mut at = 0;
        while at < self.len {
            let len = (at..self.len).take_while(|&next| is_seen(next) == is_seen(at)).count();
            if is_seen(at) {
                let (slot, first_position) = (self.slot + at, self.first_position + at);
                pieces.push(Self { slot, first_position, len, segment: self.segment });
            }
            at += len;
        }
        pieces
    }
}

/// Pieces with slots in place of positions, and those as one that lie side by side in one segment.
fn by_slot(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = vec![];
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.slot + last.len == piece.slot && last.segment == piece.segment => {
                last.len += piece.len
            }
            _ => joined.push(Piece { first_position: piece.slot, ..piece }),
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
