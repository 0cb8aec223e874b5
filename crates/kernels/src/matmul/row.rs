//! One row of activations: each row of W is dequantised in registers.

use super::dot::{Activations, dot};
use super::{Product, Weights};
use crate::Instructions;
use crate::instructions::Operation;
use crate::lanes::Lanes;
use pulp::Simd;
use rayon::prelude::*;

/// Fewest bytes of weights of a task.
const TASK_BYTES: usize = 32 << 10;
/// Tasks for each thread, so that a delayed thread does not delay the others.
const TASKS_PER_THREAD: usize = 4;

/// Rows of W that several rows of activations meet one after the other.
const CACHED_ROWS: usize = 16;

/// Rows of `x`, each as if it were alone.
pub(super) fn multiply(instructions: Instructions, x: &[f32], products: &mut [Product<'_>]) {
    let bytes: usize = products.iter().map(|product| product.weights.data.len()).sum();
    let share = (bytes / (rayon::current_num_threads() * TASKS_PER_THREAD)).max(TASK_BYTES);
    let columns = products.first().map_or(1, |product| product.weights.columns);
    let x: &Vec<Activations<'_>> = &x.chunks(columns).map(Activations::new).collect();
    // Some rows of a matrix each, and their outputs, one slice for each row of activations.
    let mut tasks: Vec<(Weights<'_>, usize)> = vec![];
    let mut outputs: Vec<&mut [f32]> = vec![];
    for Product { weights, output } in products {
        let rows_per_task = share.div_ceil(weights.row_bytes());
        let mut of_rows: Vec<_> =
            output.chunks_mut(weights.rows).map(|output| output.chunks_mut(rows_per_task)).collect();
        for first in (0..weights.rows).step_by(rows_per_task) {
            tasks.push((*weights, first));
            outputs.extend(of_rows.iter_mut().filter_map(Iterator::next));
        }
    }
    let run = |(&(weights, first), outputs): (&(Weights<'_>, usize), &mut [&mut [f32]])| {
        instructions.dispatch(RowProducts { x, weights, first, outputs });
    };
    if tasks.len() == 1 {
        tasks.iter().zip(outputs.chunks_mut(x.len())).for_each(run);
    } else {
        tasks.par_iter().zip(outputs.par_chunks_mut(x.len())).with_max_len(1).for_each(run);
    }
}

struct RowProducts<'a, 'o> {
    x: &'a [Activations<'a>],
    weights: Weights<'a>,
    /// The first of the rows.
    first: usize,
    outputs: &'a mut [&'o mut [f32]],
}

impl Operation for RowProducts<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, lanes: L) {
        let Self { x, weights, first, outputs } = self;
        let rows = outputs.first().map_or(0, |output| output.len());
        // Several rows of activations meet few rows of W at a time, which then come from the cache.
        let at_once = if x.len() == 1 { rows } else { CACHED_ROWS };
        for start in (0..rows).step_by(at_once.max(1)) {
            for (x, output) in x.iter().zip(&mut *outputs) {
                for (index, y) in output[start..rows.min(start + at_once)].iter_mut().enumerate() {
                    *y = dot(lanes, weights.format, weights.row(first + start + index), x);
                }
            }
        }
    }
}
