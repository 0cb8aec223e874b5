//! Products on tiles, summed in f32: of bf16, and of f32 as three bf16 each.

use super::{Buffers, Columns, Panel, WIDTH};
use crate::Instructions;
use crate::amx::{self, Amx, DEPTH, PARTS, ROWS, Rows};
use crate::lanes::Lanes;
use crate::line::{self, Line, NUMBERS};
use rayon::prelude::*;

/// Columns of W unpacked at once, whole blocks of every format: as much of sixteen rows of x, and of [`GROUP`] rows of W, stays in a
/// core's L1 cache.
const COLUMNS: usize = 256;
/// Where columns are not whole blocks of the largest format, up to so many are unpacked at once.
const MOST_COLUMNS: usize = 320;
/// Rows of W whose sums are in tiles at the same time.
pub(super) const GROUP: usize = amx::WIDTH_OF_PARTS;
/// Tiles of parts, so many columns of each, that rows of x pass at a time: as much of [`GROUP`] rows of W stays in the L1 cache.
const STEPS_OF_PARTS: usize = 2;
/// Most rows of W of a task: while they pass, what x has of the unpacked columns stays in a core's L2 cache.
pub(super) const TASK_ROWS: usize = 5 * GROUP;

/// Activations `[rows, columns]` as tiles, `[⌈rows / 16⌉, ⌈columns / 32⌉, 16]` lines.
pub(super) fn rounded(x: &[f32], rows: usize) -> Vec<Line> {
    let columns = x.len() / rows;
    let block = columns.div_ceil(DEPTH) * ROWS;
    let lines = rows.div_ceil(ROWS) * block;
    let mut tiles: Vec<Line> = Vec::with_capacity(lines);
    let each = tiles.spare_capacity_mut()[..lines].par_chunks_exact_mut(block);
    each.zip(x.par_chunks(ROWS * columns)).for_each(|(tiles, x)| {
        // SAFETY: the processor has the instructions, or there would be no products on tiles.
        unsafe { amx::round_rows(x, columns, tiles) };
    });
    // SAFETY: every line is written.
    unsafe { tiles.set_len(lines) };
    tiles
}

/// Activations `[rows, columns]` in f32, as tiles of their parts; `None` where one is not finite.
pub(super) fn split(x: &[f32], rows: usize) -> Option<Vec<Line>> {
    let columns = x.len() / rows;
    let block = columns.div_ceil(DEPTH) * PARTS * ROWS;
    let mut tiles = vec![Line::default(); rows.div_ceil(ROWS) * block];
    // SAFETY: the processor has the instructions, or there would be no products on tiles.
    let split = |(tiles, x): (&mut [Line], &[f32])| unsafe { amx::split_rows(x, columns, tiles) };
    tiles.par_chunks_exact_mut(block).zip(x.par_chunks(ROWS * columns)).all(split).then_some(tiles)
}

/// All rows of activations times the rows of a task, into its columns of the output.
///
/// # Safety
/// As [`Columns::write`].
#[inline(always)]
pub(super) unsafe fn products<L: Lanes>(
    with: (Instructions, L),
    task: Panel<'_>,
    (x, rows): (&[Line], usize),
    output: Columns,
    buffers: &mut Buffers,
) {
    let columns = task.weights.columns;
    let of = columns.div_ceil(DEPTH);
    let amx = Amx::new();
    let Buffers { rows: unpacked, panel: pairs, sums } = buffers;
    let padded = rows.next_multiple_of(ROWS);
    let sums = line::numbers(sums, padded * TASK_ROWS);
    let at_once = match columns.is_multiple_of(COLUMNS) {
        true => COLUMNS,
        false => columns.div_ceil(columns.div_ceil(MOST_COLUMNS)).next_multiple_of(DEPTH),
    };
    for start in (0..columns).step_by(at_once) {
        let depth = at_once.min(columns - start);
        let steps = depth.div_ceil(DEPTH);
        let x = &x[start / DEPTH * ROWS..];
        for first in (0..task.count).step_by(GROUP) {
            let count = GROUP.min(task.count - first);
            let width = count.next_multiple_of(WIDTH);
            let numbers = line::numbers(pairs, steps * NUMBERS * width);
            numbers[depth.div_ceil(2) * width..].fill(0.0);
            for part in (0..count).step_by(WIDTH) {
                let (first, count) = (task.first + first + part, WIDTH.min(count - part));
                let panel = Panel { first, count, ..task };
                panel.pairs(with, start, depth, unpacked, &mut numbers[part..], width);
            }
            let sums = &mut sums[padded * first..][..padded * width];
            let of_group = Rows { start: sums.as_mut_ptr(), stride: width };
            let from = (start > 0).then_some(of_group);
            let is_last = start + depth == columns;
            // The last sums of whole tiles are written to the output at once.
            let whole = if is_last && count == width { rows / ROWS } else { 0 };
            let w = &pairs[..steps * width];
            // SAFETY: there are so many rows of sums; of the output, where this column is the caller's, `whole` tiles.
            unsafe {
                let to = Rows { start: output.output.add(task.first + first), stride: output.stride };
                amx.multiply_to(width, (steps, of), x, w, whole, (from, to));
                let rest = |rows: Rows| rows.at_row(whole * ROWS);
                let x = x.get(whole * of * ROWS..).unwrap_or_default();
                let (from, to) = (from.map(rest), rest(of_group));
                amx.multiply_to(width, (steps, of), x, w, padded / ROWS - whole, (from, to));
            }
            if is_last {
                let rest = &sums[whole * ROWS * width..rows * width];
                // SAFETY: the caller's promise.
                unsafe { output.write((whole * ROWS, task.first + first), count, rest, width) };
            }
        }
    }
}

/// [`products`] in f32; false where a weight is not finite.
///
/// # Safety
/// As [`Columns::write`].
#[inline(always)]
pub(super) unsafe fn products_of_parts<L: Lanes>(
    (instructions, lanes): (Instructions, L),
    task: Panel<'_>,
    (x, rows): (&[Line], usize),
    output: Columns,
    buffers: &mut Buffers,
) -> bool {
    let columns = task.weights.columns;
    let of = columns.div_ceil(DEPTH);
    let amx = Amx::new();
    let Buffers { rows: unpacked, panel: pairs, sums } = buffers;
    let padded = rows.next_multiple_of(ROWS);
    let sums = line::numbers(sums, padded * TASK_ROWS);
    let mut split = vec![];
    for start in (0..columns).step_by(COLUMNS) {
        let depth = COLUMNS.min(columns - start);
        let steps = depth.div_ceil(DEPTH);
        for first in (0..task.count).step_by(GROUP) {
            let count = GROUP.min(task.count - first);
            pairs.resize(pairs.len().max(steps * PARTS * GROUP), Line::default());
            split.resize(2 * steps * PARTS * ROWS, Line::default());
            for part in (0..GROUP).step_by(WIDTH) {
                let (first, count) = (task.first + first + part, WIDTH.min(count.saturating_sub(part)));
                let panel = Panel { first, count, ..task };
                panel.unpack(instructions, start, depth, unpacked);
                // SAFETY: the processor has the instructions, or there would be no products on tiles.
                if !unsafe { amx::split_rows(&unpacked.numbers, depth, &mut split) } {
                    return false;
                }
                for (index, rows) in split.as_chunks::<ROWS>().0.iter().enumerate() {
                    let (sixteen, tile) = (index / (steps * PARTS), index % (steps * PARTS));
                    let mut columns = [lanes.splat(0.0); ROWS];
                    for (column, row) in columns.iter_mut().zip(rows) {
                        *column = lanes.load(&row.0);
                    }
                    let to = &mut pairs[tile * GROUP + part / NUMBERS + sixteen..];
                    for (pair, column) in lanes.transposed(columns).into_iter().enumerate() {
                        lanes.store(column, &mut to[pair * GROUP / NUMBERS].0);
                    }
                }
            }
            let sums = &mut sums[padded * first..][..padded * GROUP];
            let of_group = Rows { start: sums.as_mut_ptr(), stride: GROUP };
            for step in (0..steps).step_by(STEPS_OF_PARTS) {
                let here = STEPS_OF_PARTS.min(steps - step);
                let at = start / DEPTH + step;
                let (x, w) = (&x[at * PARTS * ROWS..], &pairs[step * PARTS * GROUP..]);
                let from = (at > 0).then_some(of_group);
                // SAFETY: there are so many rows of sums.
                unsafe { amx.multiply_parts_to((here, of), x, w, padded / ROWS, (from, of_group)) };
            }
            if start + depth == columns {
                // SAFETY: the caller's promise.
                unsafe { output.write((0, task.first + first), count, &sums[..rows * GROUP], GROUP) };
            }
        }
    }
    true
}
