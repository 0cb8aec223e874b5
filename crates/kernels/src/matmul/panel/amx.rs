//! Products of bf16 on tiles, summed in f32.

use super::{Buffers, Columns, Panel, WIDTH};
use crate::Instructions;
use crate::amx::{self, Amx, DEPTH, ROWS, Rows};
use crate::lanes::Lanes;
use crate::line::{self, Line, NUMBERS};
use rayon::prelude::*;

/// Columns of W unpacked at once, whole blocks of every format: as much of sixteen rows of x, and of [`GROUP`] rows of W, stays in a
/// core's L1 cache.
const COLUMNS: usize = 256;
/// Where columns are not whole blocks of the largest format, up to so many are unpacked at once.
const MOST_COLUMNS: usize = 320;
/// Rows of W whose sums are in tiles at the same time.
const GROUP: usize = 64;
/// Rows of W of a task: while they pass, what x has of the unpacked columns stays in a core's L2 cache.
const TASK: [usize; 2] = [GROUP, 4 * GROUP];

/// Rows of W of a task.
pub(super) fn task_rows(rows: usize) -> usize {
    let share = rows / (8 * rayon::current_num_threads());
    (share / GROUP * GROUP).clamp(TASK[0], TASK[1])
}

/// Activations `[rows, columns]` as tiles, `[⌈rows / 16⌉, ⌈columns / 32⌉, 16]` lines.
pub(super) fn rounded(x: &[f32], rows: usize) -> Vec<Line> {
    let columns = x.len() / rows;
    let block = columns.div_ceil(DEPTH) * ROWS;
    let mut tiles = vec![Line::default(); rows.div_ceil(ROWS) * block];
    tiles.par_chunks_exact_mut(block).zip(x.par_chunks(ROWS * columns)).for_each(|(tiles, x)| {
        // SAFETY: the processor has the instructions, or there would be no products on tiles.
        unsafe { amx::round_rows(x, columns, tiles) };
    });
    tiles
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
    let sums = line::numbers(sums, padded * TASK[1]);
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
                let rest = |rows: Rows| rows.from_row(whole * ROWS);
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
