//! Attention over spans of keys (`spans.cu`, `merge.cu`), and the attention that key positions receive (`received.cu`).
//!
//! In f32, for a few rows and many keys: rows and heads that share a KV head share its reads, and the keys are split among as
//! many blocks as the device runs at once, whose results are merged. What changes from one token to the next is read from
//! device memory, so that a captured graph stays valid.

use crate::attention::{AttentionShape, SEGMENTS};
use crate::cuda::{Buffer, Device, DeviceError, Element, Numbers};
use bytemuck::{Pod, Zeroable};
use std::f64::consts::LOG2_E;

/// Warps of a block.
const WARPS: usize = 4;
/// Numbers that describe the softmax of a row, head and split, and that a thread keeps in shared memory.
const STATE: usize = 8;
/// Fewest keys of a block, if there are as many.
const LEAST_KEYS: usize = 128;
/// The most splits of the keys of a row and head.
const MOST_SPLITS: usize = 512;
/// Windows and positions are no larger.
const MOST_POSITION: usize = 0x3fff_ffff;
/// Spans that the bits of a copy tell apart.
const MASKED_SPANS: usize = 32;
/// The largest head.
const MOST_HEAD_DIM: usize = 256;
/// Dimensions of a head that a lane holds.
const PER_LANE: usize = 8;
/// Positions of a block of `received`.
const POSITIONS: usize = 64;
/// Threads of a block of `received`.
const RECEIVED_THREADS: usize = 128;
/// Shared memory of a block of `received`: two tiles of 32 dimensions, four numbers of 64 entries, eight of the warps.
const RECEIVED_SHARED: usize = (2 * 32 * 68 + 4 * 64 + 8) * 4;

/// A contiguous run of keys and values in device memory.
///
/// Where a head takes a multiple of 16 bytes, addresses and strides are multiples of 16 bytes too.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceKeySpan {
    /// Address of the first key of KV head `first_head` (and of copy 0).
    pub keys: u64,
    /// Address of its value; values are laid out as the keys.
    pub values: u64,
    /// Elements between two heads.
    pub head_stride: u64,
    /// Elements between two keys; less than 2³².
    pub key_stride: u64,
    /// Elements between two copies; 0 where all share the keys.
    pub copy_stride: u64,
    /// Number of keys.
    pub len: u32,
    /// Position of the first key; the others follow it.
    pub first_position: u32,
    /// Where its mass is counted: a [`crate::Segment`] as a number.
    pub segment: u32,
    /// 1 where [`SpanAttention::decoded`] adds to `len`, else 0.
    pub grows: u32,
    /// The first KV head that has these keys.
    pub first_head: u32,
    /// Number of KV heads that have them; other heads do not see the span.
    pub heads: u32,
}

// SAFETY: plain numbers without padding, of which zeros are valid.
unsafe impl Zeroable for DeviceKeySpan {}
// SAFETY: as above.
unsafe impl Pod for DeviceKeySpan {}

/// Where mass and entropy of each row, head and segment go: f32 `[rows, query_heads, 3]` each.
#[derive(Clone, Copy)]
pub struct StatisticsOnDevice<'a> {
    /// Share of attention on each segment; NaN where the row's softmax is.
    pub mass: Numbers<'a>,
    /// Entropy within each segment, nats; NaN where the segment has no mass.
    pub entropy: Numbers<'a>,
}

/// The input and output of [`attention`]; all memory is of one device.
#[derive(Clone, Copy)]
pub struct SpanAttention<'a> {
    /// Sizes of the layer; a head has at most 256 elements.
    pub shape: AttentionShape,
    /// f32 or bf16 `[rows, query_heads, head_dim]`.
    pub queries: Numbers<'a>,
    /// i32 `[rows]`: absolute positions, below 2³⁰.
    pub positions: &'a Buffer,
    /// Number of rows.
    pub rows: usize,
    /// [`DeviceKeySpan`] `[span_count]`.
    pub spans: &'a Buffer,
    /// Number of spans.
    pub span_count: usize,
    /// Most keys that a row ever sees. The grid is sized for it; the keys that there are are split among its blocks.
    pub keys_at_most: usize,
    /// Type of all keys and values.
    pub key_element: Element,
    /// Row r belongs to copy r / `rows_per_copy`.
    pub rows_per_copy: usize,
    /// u32 `[copies]`: bit i says that the copy sees span i, of at most 32. `None`: all see all.
    pub visible_spans: Option<&'a Buffer>,
    /// i32 `[1]`: tokens decoded since the spans were written; spans that grow are longer by it.
    pub decoded: Option<&'a Buffer>,
    /// f32 or bf16 `[rows, query_heads, head_dim]`.
    pub output: Numbers<'a>,
    /// Mass and entropy, where wanted.
    pub statistics: Option<StatisticsOnDevice<'a>>,
    /// f32 `[rows, query_heads, 2]` for [`received`], where wanted: the largest score m, in units of log2 e, and Σ e^{s−m}.
    pub normalisers: Option<Numbers<'a>>,
}

/// `Problem` of `spans.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Problem {
    queries: u64,
    positions: u64,
    spans: u64,
    visible_spans: u64,
    decoded: u64,
    span_count: u32,
    rows_per_copy: u32,
    copies: u32,
    query_heads: u32,
    kv_heads: u32,
    group: u32,
    entries: u32,
    head_dim: u32,
    window: i32,
    sinks: i32,
    queries_in_bf16: u32,
    unused: u32,
    query_scale: f32,
    cap: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    problem: Problem,
    outputs: u64,
    states: u64,
    splits: u32,
    tiles: u32,
    tiles_per_block: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MergeParameters {
    outputs: u64,
    states: u64,
    output: u64,
    mass: u64,
    entropy: u64,
    normalisers: u64,
    head_dim: u32,
    splits: u32,
    output_in_bf16: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ReceivedParameters {
    problem: Problem,
    normalisers: u64,
    sum: u64,
    max: u64,
    probabilities: u64,
    count: u32,
    unused: u32,
}

/// softmax(cap(q·kᵀ·scale))·v of each row over the keys that it sees: those of its copy's spans at or before its position and
/// within the window or among the sinks. A row's output is NaN where
/// [`attention`](crate::attention::attention)'s is, and may be where a key is infinite.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree, or a head has more than 256 elements.
pub fn attention(a: &SpanAttention<'_>) -> Result<(), DeviceError> {
    check(a);
    let (device, shape) = (a.queries.device(), &a.shape);
    let plan = Plan::new(a, device);
    let parts = a.rows * shape.query_heads * plan.splits;
    let outputs = device.allocate(parts * shape.head_dim * 4)?;
    let states = device.allocate(parts * STATE * 4)?;
    let parameters = Parameters {
        problem: problem(a),
        outputs: outputs.address(),
        states: states.address(),
        splits: plan.splits as u32,
        tiles: plan.tiles as u32,
        tiles_per_block: plan.tiles_per_block as u32,
        unused: 0,
    };
    let grid = [(plan.tiles * a.copies()).div_ceil(plan.tiles_per_block), plan.splits, shape.kv_heads];
    // Results of the warps and a state of each thread.
    let shared = WARPS * (plan.entries * (PER_LANE * plan.lanes + STATE) + 32 * STATE) * 4;
    // SAFETY: sizes were checked and scratch is as large as the plan says; spans are the caller's word.
    unsafe { device.launch(plan.kernel, grid, WARPS * 32, shared, &parameters)? };

    let address = |numbers: Option<Numbers<'_>>| numbers.map_or(0, |numbers| numbers.address());
    let parameters = MergeParameters {
        outputs: outputs.address(),
        states: states.address(),
        output: a.output.address(),
        mass: address(a.statistics.map(|statistics| statistics.mass)),
        entropy: address(a.statistics.map(|statistics| statistics.entropy)),
        normalisers: address(a.normalisers),
        head_dim: shape.head_dim as u32,
        splits: plan.splits as u32,
        output_in_bf16: (a.output.element() == Element::Bf16).into(),
        unused: 0,
    };
    let shared = WARPS * 2 * SEGMENTS * 8 + (WARPS + WARPS * shape.head_dim + plan.splits) * 4;
    let grid = [a.rows * shape.query_heads, 1, 1];
    // SAFETY: as above.
    unsafe { device.launch("span_attention_merge", grid, WARPS * 32, shared, &parameters) }
}

/// Adds the attention that key positions 0 … `count`−1 receive from these rows, over all heads: f32 `[count]` sums of
/// probabilities, and the largest. [`attention`] has filled [`SpanAttention::normalisers`] before. Where there are `probabilities`, f32
/// `[rows, query_heads, count]` of zeros, each is left there.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree, or there are no normalisers.
pub fn received(
    a: &SpanAttention<'_>,
    count: usize,
    sum: Numbers<'_>,
    max: Numbers<'_>,
    probabilities: Option<Numbers<'_>>,
) -> Result<(), DeviceError> {
    check(a);
    let all = a.rows * a.shape.query_heads * count;
    let fits = |numbers: Numbers<'_>| numbers.element() == Element::F32 && numbers.len() >= all;
    assert!(probabilities.is_none_or(fits), "a place for each probability");
    assert!(sum.len() >= count && max.len() >= count && count <= MOST_POSITION, "sizes of what is received");
    assert!(sum.element() == Element::F32 && max.element() == Element::F32, "what is received is in f32");
    let normalisers = a.normalisers.map_or(0, |normalisers| normalisers.address());
    assert!(normalisers != 0, "the normalisers of the rows");
    let parameters = ReceivedParameters {
        problem: problem(a),
        normalisers,
        sum: sum.address(),
        max: max.address(),
        probabilities: probabilities.map_or(0, |numbers| numbers.address()),
        count: count as u32,
        unused: 0,
    };
    let kernel = match a.key_element {
        Element::F32 => "span_attention_received_f32",
        Element::Bf16 => "span_attention_received_bf16",
    };
    let grid = [count.div_ceil(POSITIONS), 1, 1];
    // SAFETY: sizes were checked; spans are the caller's word.
    unsafe { a.queries.device().launch(kernel, grid, RECEIVED_THREADS, RECEIVED_SHARED, &parameters) }
}

impl SpanAttention<'_> {
    fn copies(&self) -> usize {
        self.rows / self.rows_per_copy
    }

    /// Rows of a copy times heads of a KV head.
    fn entries(&self) -> usize {
        self.rows_per_copy * (self.shape.query_heads / self.shape.kv_heads)
    }
}

/// Which kernel runs, on how many blocks.
struct Plan {
    kernel: &'static str,
    /// Lanes that hold a key.
    lanes: usize,
    /// Entries of a tile.
    entries: usize,
    /// Tiles of a KV head and copy.
    tiles: usize,
    tiles_per_block: usize,
    splits: usize,
}

impl Plan {
    fn new(a: &SpanAttention<'_>, device: &Device) -> Self {
        let shape = &a.shape;
        let in_vectors = (shape.head_dim * a.key_element.bytes()).is_multiple_of(16);
        let (lanes, entries, kernel) = if in_vectors {
            let by_lanes = shape.head_dim.div_ceil(PER_LANE).next_power_of_two().clamp(8, 32);
            let by_entries = a.entries().next_power_of_two().min(8);
            let (row, column) = (by_lanes.ilog2() as usize - 3, by_entries.ilog2() as usize);
            (by_lanes, by_entries, kernels(a.key_element)[row][column])
        } else {
            let kernel = match a.key_element {
                Element::F32 => "span_attention_f32_any",
                Element::Bf16 => "span_attention_bf16_any",
            };
            (32, 2, kernel)
        };
        let tiles = a.entries().div_ceil(entries);
        // The warps of a block either split the keys of a tile, or have a tile each and share keys through the L1 cache.
        let tiles_per_block = if tiles * a.copies() < WARPS { 1 } else { WARPS };
        let blocks = (tiles * a.copies()).div_ceil(tiles_per_block) * shape.kv_heads;
        let resident =
            if entries == 8 || !in_vectors { 2 } else { 3 } * device.information().multiprocessors as usize;
        let in_window = |w: usize| w.saturating_add(shape.sinks).saturating_add(a.rows_per_copy);
        let keys = shape.window.map_or(a.keys_at_most, |w| a.keys_at_most.min(in_window(w)));
        let splits = splits(blocks, resident, keys);
        Self { kernel, lanes, entries, tiles, tiles_per_block, splits }
    }
}

/// Into how many parts keys go: few blocks fill the device exactly once, more make two rounds at least, so that the last
/// round matters less.
fn splits(blocks: usize, resident: usize, keys: usize) -> usize {
    let wanted = match resident / blocks {
        0 | 1 => (2 * resident).div_ceil(blocks),
        fitting => fitting,
    };
    wanted.min(keys.div_ceil(LEAST_KEYS)).clamp(1, MOST_SPLITS)
}

/// Kernels by lanes (8, 16, 32) and entries (1, 2, 4, 8).
fn kernels(element: Element) -> [[&'static str; 4]; 3] {
    macro_rules! of_lanes {
        ($element:literal, $lanes:literal) => {
            [
                concat!("span_attention_", $element, "_lanes_", $lanes, "_entries_1"),
                concat!("span_attention_", $element, "_lanes_", $lanes, "_entries_2"),
                concat!("span_attention_", $element, "_lanes_", $lanes, "_entries_4"),
                concat!("span_attention_", $element, "_lanes_", $lanes, "_entries_8"),
            ]
        };
    }
    match element {
        Element::F32 => [of_lanes!("f32", "8"), of_lanes!("f32", "16"), of_lanes!("f32", "32")],
        Element::Bf16 => [of_lanes!("bf16", "8"), of_lanes!("bf16", "16"), of_lanes!("bf16", "32")],
    }
}

fn problem(a: &SpanAttention<'_>) -> Problem {
    let shape = &a.shape;
    let scale = f64::from(shape.scale);
    // Scores in units of log2 e, with the scale in the queries.
    let (query_scale, cap) = match shape.soft_cap.map(f64::from) {
        Some(cap) => (scale / cap, cap * LOG2_E),
        None => (scale * LOG2_E, 0.0),
    };
    Problem {
        queries: a.queries.address(),
        positions: a.positions.address(),
        spans: a.spans.address(),
        visible_spans: a.visible_spans.map_or(0, Buffer::address),
        decoded: a.decoded.map_or(0, Buffer::address),
        span_count: a.span_count as u32,
        rows_per_copy: a.rows_per_copy as u32,
        copies: a.copies() as u32,
        query_heads: shape.query_heads as u32,
        kv_heads: shape.kv_heads as u32,
        group: (shape.query_heads / shape.kv_heads) as u32,
        entries: a.entries() as u32,
        head_dim: shape.head_dim as u32,
        window: shape.window.unwrap_or(MOST_POSITION).min(MOST_POSITION) as i32,
        sinks: shape.sinks.min(MOST_POSITION) as i32,
        queries_in_bf16: (a.queries.element() == Element::Bf16).into(),
        unused: 0,
        query_scale: query_scale as f32,
        cap: cap as f32,
    }
}

fn check(a: &SpanAttention<'_>) {
    let AttentionShape { query_heads, kv_heads, head_dim, .. } = a.shape;
    assert!(kv_heads > 0 && query_heads >= kv_heads && query_heads.is_multiple_of(kv_heads), "heads divide");
    assert!((1..=MOST_HEAD_DIM).contains(&head_dim), "elements of a head");
    assert!(a.rows > 0 && a.rows_per_copy > 0 && a.rows.is_multiple_of(a.rows_per_copy), "rows of copies");
    let rows_and_heads = a.rows * query_heads;
    assert!(u32::try_from(rows_and_heads).is_ok(), "rows and heads");
    let size = rows_and_heads * head_dim;
    assert!(a.queries.len() >= size && a.output.len() >= size, "query and output sizes");
    assert!(a.positions.bytes() >= a.rows * size_of::<i32>(), "a position for each row");
    assert!(a.spans.bytes() >= a.span_count * size_of::<DeviceKeySpan>(), "as many spans as said");
    if let Some(visible) = a.visible_spans {
        let fits = visible.bytes() >= a.copies() * size_of::<u32>() && a.span_count <= MASKED_SPANS;
        assert!(fits, "a bit of each copy for each span");
    }
    assert!(a.decoded.is_none_or(|decoded| decoded.bytes() >= size_of::<i32>()), "how much was decoded");
    let is_in_f32 = |numbers: Numbers<'_>, each: usize| {
        numbers.element() == Element::F32 && numbers.len() >= rows_and_heads * each
    };
    if let Some(StatisticsOnDevice { mass, entropy }) = a.statistics {
        assert!(is_in_f32(mass, SEGMENTS) && is_in_f32(entropy, SEGMENTS), "statistics in f32");
    }
    assert!(a.normalisers.is_none_or(|normalisers| is_in_f32(normalisers, 2)), "normalisers in f32");
}

#[cfg(all(test, feature = "cuda-emulation"))]
mod tests;
