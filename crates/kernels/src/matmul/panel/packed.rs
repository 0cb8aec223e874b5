//! Products in f32 on tiles that registers hold, with activations packed as tiles read them.

use super::WIDTH;
use pulp::Simd;
use rayon::prelude::*;

/// Rows of activations that lie together, and most rows of a tile.
pub(super) const ROWS: usize = 12;
/// Columns of x that a tile's loop takes at a time: with one, AVX2 spends a seventh of its time on the loop itself.
const STEPS: usize = 4;

/// Rows of activations in groups of twelve, some columns at a time: `[columns / depth, rows / 12, depth, 12]`, where the last columns are
/// fewer and rows that are not there are zeros. Row by row, widths that are a power of two would put all rows into the same few sets of
/// a cache.
pub(super) struct Packed {
    numbers: Vec<[f32; ROWS]>,
    groups: usize,
}

impl Packed {
    /// Of `x [rows, columns]`.
    pub(super) fn new(x: &[f32], rows: usize, depth: usize) -> Self {
        let (columns, groups) = (x.len() / rows, rows.div_ceil(ROWS));
        let mut numbers = vec![[0.0; ROWS]; groups * columns];
        numbers.par_chunks_mut(groups * depth).enumerate().for_each(|(index, numbers)| {
            let (start, depth) = (index * depth, numbers.len() / groups);
            numbers.par_chunks_mut(depth).zip(x.par_chunks(ROWS * columns)).for_each(|(to, x)| {
                for (row, x) in x.chunks(columns).enumerate() {
                    for (to, x) in to.iter_mut().zip(&x[start..]) {
                        to[row] = *x;
                    }
                }
            });
        });
        Self { numbers, groups }
    }

    /// Columns `start .. start + depth` of all groups, `[groups, depth]`; these are the columns packed at a time.
    pub(super) fn columns(&self, start: usize, depth: usize) -> &[[f32; ROWS]] {
        &self.numbers[start * self.groups..][..depth * self.groups]
    }
}

/// `sums [rows, WIDTH] += x · panel [depth, WIDTH]`, with all groups of `x`.
#[inline(always)]
pub(super) fn accumulate<S: Simd>(
    simd: S,
    x: &[[f32; ROWS]],
    panel: &[[f32; WIDTH]],
    sums: &mut [[f32; WIDTH]],
) {
    let width = 2 * S::F32_LANES;
    for column in (0..WIDTH).step_by(width) {
        for (x, sums) in x.chunks_exact(panel.len()).zip(sums.chunks_mut(ROWS)) {
            let mut row = 0;
            while row < sums.len() {
                // Two vectors of sums of each row: with AVX-512 there are twice as many registers.
                row += match sums.len() - row {
                    12.. if S::F32_LANES == 16 => tile::<S, 12>(simd, x, row, panel, column, sums),
                    6.. => tile::<S, 6>(simd, x, row, panel, column, sums),
                    4.. => tile::<S, 4>(simd, x, row, panel, column, sums),
                    2.. => tile::<S, 2>(simd, x, row, panel, column, sums),
                    _ => tile::<S, 1>(simd, x, row, panel, column, sums),
                };
            }
        }
    }
}

/// M rows of a group times two vectors of columns; M.
#[inline(always)]
fn tile<S: Simd, const M: usize>(
    simd: S,
    x: &[[f32; ROWS]],
    row: usize,
    panel: &[[f32; WIDTH]],
    column: usize,
    sums: &mut [[f32; WIDTH]],
) -> usize {
    let width = 2 * S::F32_LANES;
    // Outside the loop, where the compiler then checks nothing.
    assert!(row + M <= ROWS && column + width <= WIDTH);
    let mut totals = [[simd.splat_f32s(0.0); 2]; M];
    let ((x, last_x), (panel, last_panel)) = (x.as_chunks::<STEPS>(), panel.as_chunks::<STEPS>());
    for (x, panel) in x.iter().zip(panel) {
        for step in 0..STEPS {
            add_products(simd, &x[step], row, &panel[step], column, &mut totals);
        }
    }
    for (x, panel) in last_x.iter().zip(last_panel) {
        add_products(simd, x, row, panel, column, &mut totals);
    }
    for (sums, totals) in sums[row..].iter_mut().zip(&totals) {
        let (vectors, _) = S::as_mut_simd_f32s(&mut sums[column..column + width]);
        vectors[0] = simd.add_f32s(vectors[0], totals[0]);
        vectors[1] = simd.add_f32s(vectors[1], totals[1]);
    }
    M
}

/// One column of x times one of W.
#[inline(always)]
fn add_products<S: Simd, const M: usize>(
    simd: S,
    x: &[f32; ROWS],
    row: usize,
    panel: &[f32; WIDTH],
    column: usize,
    totals: &mut [[S::f32s; 2]; M],
) {
    let (vectors, _) = S::as_simd_f32s(&panel[column..column + 2 * S::F32_LANES]);
    let (low, high) = (vectors[0], vectors[1]);
    for (x, totals) in x[row..row + M].iter().zip(totals) {
        let x = simd.splat_f32s(*x);
        totals[0] = simd.mul_add_e_f32s(x, low, totals[0]);
        totals[1] = simd.mul_add_e_f32s(x, high, totals[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Instructions;
    use crate::instructions::Operation;
    use crate::lanes::Lanes;
    use crate::matmul::panel::DEPTH;

    struct Accumulate<'a> {
        x: &'a [[f32; ROWS]],
        panel: &'a [[f32; WIDTH]],
        sums: &'a mut [[f32; WIDTH]],
    }

    impl Operation for Accumulate<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd, L: Lanes>(self, simd: S, _: L) {
            accumulate(simd, self.x, self.panel, self.sums);
        }
    }

    #[test]
    fn sums_equal_plain_ones_for_every_count_of_rows() {
        for instructions in Instructions::available() {
            for rows in 1..=30 {
                let columns = DEPTH + 33;
                let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 64.0;
                let x: Vec<f32> = (0..rows * columns).map(value).collect();
                let panel: Vec<[f32; WIDTH]> = (0..columns)
                    .map(|step| std::array::from_fn(|column| value(step * WIDTH + column + 5)))
                    .collect();
                let mut sums = vec![[1.0; WIDTH]; rows];
                let packed = Packed::new(&x, rows, DEPTH);
                for (start, depth) in [(0, DEPTH), (DEPTH, 33)] {
                    let (x, panel) = (packed.columns(start, depth), &panel[start..][..depth]);
                    instructions.dispatch(Accumulate { x, panel, sums: &mut sums });
                }
                for (row, sums) in sums.iter().enumerate() {
                    for (column, sum) in sums.iter().enumerate() {
                        let products = panel.iter().zip(&x[row * columns..]);
                        let expected: f64 =
                            1.0 + products.map(|(w, x)| f64::from(w[column]) * f64::from(*x)).sum::<f64>();
                        assert!((f64::from(*sum) - expected).abs() < 1e-4, "{instructions:?}, {rows} rows");
                    }
                }
            }
        }
    }
}
