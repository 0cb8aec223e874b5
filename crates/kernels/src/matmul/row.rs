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

/// Some rows of a matrix and their outputs.
struct RowRange<'a> {
    weights: Weights<'a>,
    first: usize,
    output: &'a mut [f32],
}

pub(super) fn multiply(instructions: Instructions, x: &[f32], products: &mut [Product<'_>]) {
    let bytes: usize = products.iter().map(|product| product.weights.data.len()).sum();
    let share = (bytes / (rayon::current_num_threads() * TASKS_PER_THREAD)).max(TASK_BYTES);
    let mut tasks = vec![];
    for Product { weights, output } in products {
        let rows_per_task = share.div_ceil(weights.row_bytes());
        let parts = output.chunks_mut(rows_per_task).enumerate();
        tasks.extend(parts.map(|(part, output)| RowRange {
            weights: *weights,
            first: part * rows_per_task,
            output,
        }));
    }
    let x = &Activations::new(x);
    let run = |task: RowRange<'_>| instructions.dispatch(RowProducts { x, task });
    if tasks.len() == 1 {
        tasks.into_iter().for_each(run);
    } else {
        tasks.into_par_iter().with_max_len(1).for_each(run);
    }
}

struct RowProducts<'a> {
    x: &'a Activations<'a>,
    task: RowRange<'a>,
}

impl Operation for RowProducts<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, lanes: L) {
        let Self { x, task: RowRange { weights, first, output } } = self;
        for (index, y) in output.iter_mut().enumerate() {
            *y = dot(lanes, weights.format, weights.row(first + index), x);
        }
    }
}
