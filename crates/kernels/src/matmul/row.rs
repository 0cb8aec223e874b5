//! Rows of activations, each as if it were alone: each row of W is unpacked in registers, once for a few of them.

use super::dot::{Activations, CACHED, Floats, Kind, Of32, Of256, Prepare, STRIP, Unpacked};
use super::format::by_block;
use super::{Layout, Product, WeightFormat, Weights};
use crate::Instructions;
use crate::ahead::{self, Ahead, SOON, prefetch};
use crate::instructions::Operation;
use crate::lanes::{LANES, Lanes};
use pulp::Simd;
use rayon::prelude::*;
use std::marker::PhantomData;

/// Fewest bytes of weights of a task.
const TASK_BYTES: usize = 32 << 10;
/// Tasks for each thread, so that a delayed thread does not delay the others.
const TASKS_PER_THREAD: usize = 2;

/// Places that rows of floats are read from at the same time where the processor reads ahead by itself; their sums fit the registers.
const PLACES: usize = 3;

/// Rows of W that a strip of activations meets before the next strip comes, where all strips together do not fit the L1 cache.
const CACHED_ROWS: usize = 16;

/// Rows of `x`, each as if it were alone.
pub(super) fn multiply(instructions: Instructions, x: &[f32], products: &mut [Product<'_>]) {
    let columns = products.first().map_or(1, |product| product.weights.columns);
    let formats = products.iter().map(|product| product.weights.format);
    let rows = x.len() / columns;
    let x = &instructions.dispatch(Prepare { x, columns, formats });
    in_tasks(products, rows, |weights, first, outputs| match weights.layout {
        Layout::Rows => multiply_rows(instructions, x, weights, first, outputs),
        Layout::Interleaved => {
            let (mut copy, columns) = (vec![], weights.columns / weights.format.block().0);
            let count = outputs.first().map_or(0, |output| output.len());
            for at in (0..count).step_by(LANES) {
                let here = at..count.min(at + LANES);
                weights.blocks_of(instructions, first + here.start..first + here.end, 0..columns, &mut copy);
                let rows = Weights { data: &copy, rows: here.len(), layout: Layout::Rows, ..weights };
                let mut outputs: Vec<_> =
                    outputs.iter_mut().map(|output| &mut output[here.clone()]).collect();
                multiply_rows(instructions, x, rows, 0, &mut outputs);
            }
        }
    });
}

/// Some rows of W, one after the other.
fn multiply_rows(
    instructions: Instructions,
    x: &[Activations<'_>],
    weights: Weights<'_>,
    first: usize,
    outputs: &mut [&mut [f32]],
) {
    by_block!(
        weights.format,
        floats => match outputs {
            [output] if ahead::by_itself() => {
                instructions.dispatch(RowsInPlaces { x: &x[0], weights, first, output });
            }
            _ => instructions.dispatch(RowProducts::<Floats>::new(x, weights, first, outputs)),
        },
        B of 32 => instructions.dispatch(RowProducts::<Of32<B>>::new(x, weights, first, outputs)),
        of 256 => instructions.dispatch(RowProducts::<Of256<B>>::new(x, weights, first, outputs))
    );
}

/// Runs tasks of some rows of a matrix each: its first row, and their outputs, one slice for each of `rows` rows of activations. Tasks begin at
/// multiples of sixteen rows.
pub(super) fn in_tasks(
    products: &mut [Product<'_>],
    rows: usize,
    run: impl Fn(Weights<'_>, usize, &mut [&mut [f32]]) + Sync,
) {
    let bytes: usize = products.iter().map(|product| product.weights.data.len()).sum();
    let share = (bytes / (rayon::current_num_threads() * TASKS_PER_THREAD)).max(TASK_BYTES);
    let mut tasks: Vec<(Weights<'_>, usize)> = vec![];
    let mut outputs: Vec<&mut [f32]> = vec![];
    for Product { weights, output } in products {
        let rows_per_task = share.div_ceil(weights.row_bytes()).next_multiple_of(LANES);
        let mut of_rows: Vec<_> =
            output.chunks_mut(weights.rows).map(|output| output.chunks_mut(rows_per_task)).collect();
        for first in (0..weights.rows).step_by(rows_per_task) {
            tasks.push((*weights, first));
            outputs.extend(of_rows.iter_mut().filter_map(Iterator::next));
        }
    }
    let run = |(&(weights, first), outputs): (&(Weights<'_>, usize), &mut [&mut [f32]])| {
        run(weights, first, outputs);
    };
    if tasks.len() == 1 {
        tasks.iter().zip(outputs.chunks_mut(rows)).for_each(run);
    } else {
        tasks.par_iter().zip(outputs.par_chunks_mut(rows)).with_max_len(1).for_each(run);
    }
}

/// One row of activations times rows of floats in several places at the same time.
struct RowsInPlaces<'a, 'o> {
    x: &'a Activations<'a>,
    weights: Weights<'a>,
    /// The first of the rows.
    first: usize,
    output: &'o mut [f32],
}

impl Operation for RowsInPlaces<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, lanes: L) {
        let Weights { format, .. } = self.weights;
        let row_bytes = self.weights.row_bytes();
        let data = &self.weights.data[self.first * row_bytes..][..self.output.len() * row_bytes];
        let each = self.output.len() / PLACES;
        for row in 0..each {
            let mut rows = [&data[..0]; PLACES];
            for place in 0..PLACES {
                rows[place] = &data[(place * each + row) * row_bytes..][..row_bytes];
            }
            let products: [f32; PLACES] = Floats::dots_of_rows(lanes, format, rows, self.x);
            for (place, product) in products.into_iter().enumerate() {
                self.output[place * each + row] = product;
            }
        }
        for row in PLACES * each..self.output.len() {
            let rows = [&data[row * row_bytes..][..row_bytes]];
            [self.output[row]] = Floats::dots_of_rows(lanes, format, rows, self.x);
        }
    }
}

struct RowProducts<'a, 'o, K> {
    x: &'a [Activations<'a>],
    weights: Weights<'a>,
    /// The first of the rows.
    first: usize,
    outputs: &'a mut [&'o mut [f32]],
    kind: PhantomData<K>,
}

impl<K: Kind> Operation for RowProducts<'_, '_, K> {
    type Output = ();

    /// The products with each group of activations.
    #[inline(always)]
    fn run<S: Simd, L: Lanes>(mut self, _: S, lanes: L) {
        let mut first = 0;
        for x in self.x {
            first += match x.count {
                8 => self.products::<L, 8>(lanes, x, first),
                4 => self.products::<L, 4>(lanes, x, first),
                2 => self.products::<L, 2>(lanes, x, first),
                _ => self.products::<L, 1>(lanes, x, first),
            };
        }
    }
}

impl<'a, 'o, K: Kind> RowProducts<'a, 'o, K> {
    fn new(
        x: &'a [Activations<'a>],
        weights: Weights<'a>,
        first: usize,
        outputs: &'a mut [&'o mut [f32]],
    ) -> Self {
        Self { x, weights, first, outputs, kind: PhantomData }
    }

    /// The products with M rows of activations, whose outputs begin with the one `at`; M.
    #[inline(always)]
    fn products<L: Lanes, const M: usize>(&mut self, lanes: L, x: &Activations<'_>, at: usize) -> usize {
        let Weights { data, format, columns, .. } = self.weights;
        let (row_bytes, strip_bytes) = (format.bytes(columns), format.bytes(STRIP));
        let outputs = &mut self.outputs[at..][..M];
        let rows = outputs.first().map_or(0, |output| output.len());
        let data = &data[self.first * row_bytes..][..rows * row_bytes];
        let strips = columns.div_ceil(STRIP);
        let at_once = if M == 1 || M * columns <= CACHED { 1 } else { CACHED_ROWS };
        let mut unpacked = Unpacked::default();
        let mut first = 0;
        while first < rows {
            for strip in 0..strips {
                let bytes = strip * strip_bytes..row_bytes.min((strip + 1) * strip_bytes);
                // Where the strip lies that is read after these rows' strips: the processor would not foresee it.
                let ahead = if strip + 1 < strips { strip_bytes } else { at_once * row_bytes - bytes.start };
                for row in first..rows.min(first + at_once) {
                    let start = row * row_bytes + bytes.start;
                    if at_once == 1 {
                        Ahead::new(data, start + SOON).ask(bytes.len());
                    } else if let Some(next) = data.get(start + ahead..start + ahead + bytes.len()) {
                        prefetch::<false, u8>(next.as_ptr(), next.len());
                    }
                    let weights = &data[start..][..bytes.len()];
                    let products: [f32; M] = K::dots(lanes, format, weights, x, strip * STRIP, &mut unpacked);
                    for (output, product) in outputs.iter_mut().zip(products) {
                        output[row] = if strip == 0 { product } else { output[row] + product };
                    }
                }
            }
            first += at_once;
        }
        M
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{noise, random_weights};
    use super::*;

    #[test]
    fn rows_in_places_have_the_bits_of_rows_one_by_one() {
        let shapes = [(1, 5), (2, 16), (3, 48), (4, 1024), (7, 1039), (37, 2100), (48, 576)];
        for (instructions, format, (rows, columns)) in Instructions::available().into_iter().flat_map(|i| {
            let formats = [WeightFormat::F32, WeightFormat::F16, WeightFormat::BF16];
            formats.into_iter().flat_map(move |format| shapes.map(|shape| (i, format, shape)))
        }) {
            let data = random_weights(format, rows + 2, columns, 3);
            let weights = Weights { data: &data, format, rows: rows + 2, columns, layout: Layout::Rows };
            let x = noise(4, columns);
            let x = &instructions.dispatch(Prepare { x: &x, columns, formats: [format].into_iter() });
            let (mut in_places, mut one_by_one) = (vec![f32::NAN; rows], vec![f32::NAN; rows]);
            let output = &mut in_places[..];
            instructions.dispatch(RowsInPlaces { x: &x[0], weights, first: 1, output });
            let outputs = &mut [&mut one_by_one[..]];
            instructions.dispatch(RowProducts::<Floats>::new(x, weights, 1, outputs));
            assert_eq!(in_places, one_by_one, "{instructions:?} {format:?} {rows}×{columns}");
        }
    }
}
