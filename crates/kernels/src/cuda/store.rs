//! Rows gathered and added by index, keys and values appended to their cache, and the counters of captured decode steps.

#[cfg(all(test, feature = "cuda-emulation"))]
mod tests;

use super::backend::Result;
use super::{Buffer, Element, Numbers, Packs, blocks_of_rows, kernel_of};

const THREADS: usize = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct GatherParameters {
    x: u64,
    ids: u64,
    output: u64,
    rows: u64,
    count: u64,
    units: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AddWeightedParameters {
    x: u64,
    ids: u64,
    weights: u64,
    output: u64,
    rows: u64,
    count: u64,
    width: u32,
    packed: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AppendParameters {
    from: [u64; 2],
    to: [u64; 2],
    decoded: u64,
    first_slot: u64,
    rows: u64,
    capacity: u64,
    kv_heads: u32,
    head_dim: u32,
    packed: u32,
    row_stride: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AdvanceParameters {
    positions: u64,
    decoded: u64,
    rows: u64,
}

/// Rows of `x [n, width]` by their numbers `ids`, u32 `[count]`, to `output [count, width]` in the same type. A row that
/// there is none of comes out as zeros.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes or types do not agree.
pub fn gather_rows(
    x: Numbers<'_>,
    width: usize,
    ids: &Buffer,
    count: usize,
    output: Numbers<'_>,
) -> Result<()> {
    assert!(x.element() == output.element() && output.len() == count * width, "rows of one type");
    assert!(x.len().is_multiple_of(width) && ids.bytes() >= count * size_of::<u32>(), "whole rows, all ids");
    let row_bytes = width * x.element().bytes();
    // In the largest units that rows and addresses are multiples of.
    let fits = |bytes: usize| {
        [row_bytes as u64, x.address(), output.address()].iter().all(|n| n % bytes as u64 == 0)
    };
    let (kernel, unit) = match (fits(16), fits(4)) {
        (true, _) => ("gather_rows_16", 16),
        (_, true) => ("gather_rows_4", 4),
        _ => ("gather_rows_2", 2),
    };
    let units = row_bytes / unit;
    let parameters = GatherParameters {
        x: x.address(),
        ids: ids.address(),
        output: output.address(),
        rows: (x.len() / width) as u64,
        count: count as u64,
        units: units as u32,
        unused: 0,
    };
    // SAFETY: the lengths are checked above; the kernel passes over ids beyond `rows`.
    unsafe { x.device().launch(kernel, blocks_of_rows(units, THREADS, count), THREADS, 0, &parameters) }
}

/// Adds row r of `x [count, width]` times `weights[r]`, f32, to row `ids[r]`, u32, of `output [n, width]`, f32. Ids must be
/// distinct; one that there is no row of is passed over.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree, or weights or output are not in f32.
pub fn add_weighted_rows(
    x: Numbers<'_>,
    width: usize,
    ids: &Buffer,
    weights: Numbers<'_>,
    output: Numbers<'_>,
) -> Result<()> {
    let count = weights.len();
    assert!(weights.element() == Element::F32 && output.element() == Element::F32, "sums in f32");
    assert!(x.len() == count * width && output.len().is_multiple_of(width), "whole rows");
    assert!(ids.bytes() >= count * size_of::<u32>(), "an id for each row");
    let packs = Packs::of(&[x, output]);
    let packed = packs.fit(width);
    let parameters = AddWeightedParameters {
        x: x.address(),
        ids: ids.address(),
        weights: weights.address(),
        output: output.address(),
        rows: (output.len() / width) as u64,
        count: count as u64,
        width: width as u32,
        packed: packed.into(),
    };
    let items = if packed { width / packs.size } else { width };
    let kernel = kernel_of!("add_weighted_rows", x.element());
    // SAFETY: the lengths are checked above; the kernel passes over ids beyond `rows`.
    unsafe { x.device().launch(kernel, blocks_of_rows(items, THREADS, count), THREADS, 0, &parameters) }
}

/// Keys and values of new rows, and where they go: row r into slot `first_slot` + r, and `decoded` more where that is given.
#[derive(Clone, Copy)]
pub struct Append<'a> {
    /// `[rows, row_heads, head_dim]`.
    pub keys: Numbers<'a>,
    /// Alike, of the same type.
    pub values: Numbers<'a>,
    /// KV heads of the rows.
    pub row_heads: usize,
    /// The first of them that is stored.
    pub first_head: usize,
    /// KV heads that are stored.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// New rows.
    pub rows: usize,
    /// Slot of the first row, before `decoded`.
    pub first_slot: usize,
    /// A number on the device that is added to the slots, i32 `[1]`.
    pub decoded: Option<&'a Buffer>,
    /// Slots that there are.
    pub capacity: usize,
    /// The cache, `[kv_heads, capacity, head_dim]`.
    pub to_keys: Numbers<'a>,
    /// Alike, of the same type.
    pub to_values: Numbers<'a>,
}

/// Appends keys and values to their cache. A row whose slot is beyond the capacity is not written. What is too large for bf16
/// becomes its largest number; NaN stays NaN.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes or types do not agree.
pub fn append(a: &Append<'_>) -> Result<()> {
    let (width, row_stride) = (a.kv_heads * a.head_dim, a.row_heads * a.head_dim);
    assert!(a.first_head + a.kv_heads <= a.row_heads, "heads of the rows");
    assert!(a.keys.len() == a.rows * row_stride && a.values.len() == a.keys.len(), "whole rows");
    assert!(
        a.to_keys.len() == a.capacity * width && a.to_values.len() == a.to_keys.len(),
        "a cache of that capacity"
    );
    let (from, to) = (a.keys.element(), a.to_keys.element());
    assert!(a.values.element() == from && a.to_values.element() == to, "keys and values of one type");
    assert!(a.decoded.is_none_or(|decoded| decoded.bytes() >= size_of::<i32>()), "a number");
    let packs = Packs::of(&[a.keys, a.values, a.to_keys, a.to_values]);
    let packed = packs.fit(a.head_dim);
    let skipped = (a.first_head * a.head_dim * from.bytes()) as u64;
    let parameters = AppendParameters {
        from: [a.keys, a.values].map(|rows| rows.address() + skipped),
        to: [a.to_keys.address(), a.to_values.address()],
        decoded: a.decoded.map_or(0, Buffer::address),
        first_slot: a.first_slot as u64,
        rows: a.rows as u64,
        capacity: a.capacity as u64,
        kv_heads: a.kv_heads as u32,
        head_dim: a.head_dim as u32,
        packed: packed.into(),
        row_stride: row_stride as u32,
    };
    let items = if packed { width / packs.size } else { width };
    let [x, y, _] = blocks_of_rows(items, THREADS, a.rows);
    let kernel = kernel_of!("append", from, to);
    // SAFETY: the lengths are checked above; the kernel writes within the capacity only.
    unsafe { a.keys.device().launch(kernel, [x, y, 2], THREADS, 0, &parameters) }
}

/// What a decode step does after itself, so that a captured graph counts on: positions\[r\] += 1 for each of `rows`, and
/// decoded\[0\] += 1; all i32.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree.
pub fn advance(positions: &Buffer, rows: usize, decoded: &Buffer) -> Result<()> {
    assert!(positions.bytes() >= rows * size_of::<i32>(), "a position for each row");
    assert!(decoded.bytes() >= size_of::<i32>(), "a number");
    let parameters =
        AdvanceParameters { positions: positions.address(), decoded: decoded.address(), rows: rows as u64 };
    let blocks = rows.div_ceil(THREADS).clamp(1, 1024);
    // SAFETY: the lengths are checked above.
    unsafe { positions.device().launch("advance_counters", [blocks, 1, 1], THREADS, 0, &parameters) }
}
