//! Small dense products on tiles that stay in cache.

use pulp::Simd;

/// Column counts of `b` and `c` in [`accumulate`] are multiples of this.
pub(crate) const COLUMN_ALIGNMENT: usize = 32;

const ROWS: usize = 6;
const VECTORS: usize = 2;
/// Columns of `a` that the loop takes at a time: with one, AVX2 spends a seventh of its time on the loop itself.
const STEPS: usize = 4;

/// `c[m, n] += a[m, k] · b[k, n]`, rows `lda`, `ldb`, `ldc` elements apart; `n` a multiple of [`COLUMN_ALIGNMENT`].
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(crate) fn accumulate<S: Simd>(
    simd: S,
    (m, k, n): (usize, usize, usize),
    a: &[f32],
    lda: usize,
    b: &[f32],
    ldb: usize,
    c: &mut [f32],
    ldc: usize,
) {
    debug_assert_eq!(n % COLUMN_ALIGNMENT, 0);
    if k == 0 {
        return;
    }
    let width = VECTORS * S::F32_LANES;
    for column in (0..n).step_by(width) {
        let mut row = 0;
        while row < m {
            let a = &a[row * lda..];
            let c = &mut c[row * ldc + column..];
            let b = &b[column..];
            match m - row {
                1 => rows::<S, 1>(simd, k, a, lda, b, ldb, c, ldc),
                2 => rows::<S, 2>(simd, k, a, lda, b, ldb, c, ldc),
                3 => rows::<S, 3>(simd, k, a, lda, b, ldb, c, ldc),
                4 | 5 => rows::<S, 4>(simd, k, a, lda, b, ldb, c, ldc),
                _ => rows::<S, ROWS>(simd, k, a, lda, b, ldb, c, ldc),
            }
            row += match m - row {
                4 | 5 => 4,
                rest => rest.min(ROWS),
            };
        }
    }
}

/// `M` rows times two vectors of columns, sums held in registers.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn rows<S: Simd, const M: usize>(
    simd: S,
    k: usize,
    a: &[f32],
    lda: usize,
    b: &[f32],
    ldb: usize,
    c: &mut [f32],
    ldc: usize,
) {
    let lanes = S::F32_LANES;
    let mut sums = [[simd.splat_f32s(0.0); VECTORS]; M];
    // Checked here: in the loop, checks take more instructions than products.
    assert!(k > 0 && (k - 1).saturating_mul(ldb).saturating_add(VECTORS * lanes) <= b.len());
    let a: [*const f32; M] = std::array::from_fn(|row| a[row * lda..][..k].as_ptr());
    let whole = k - k % STEPS;
    for first in (0..whole).step_by(STEPS) {
        for step in first..first + STEPS {
            // SAFETY: within `b` and the rows, as checked.
            unsafe { add_products(simd, &a, step, b.as_ptr().add(step * ldb), &mut sums) };
        }
    }
    for step in whole..k {
        // SAFETY: as above.
        unsafe { add_products(simd, &a, step, b.as_ptr().add(step * ldb), &mut sums) };
    }
    for (row, sum) in sums.iter().enumerate() {
        let (vectors, _) = S::as_mut_simd_f32s(&mut c[row * ldc..][..VECTORS * lanes]);
        vectors[0] = simd.add_f32s(vectors[0], sum[0]);
        vectors[1] = simd.add_f32s(vectors[1], sum[1]);
    }
}

/// A number of each row times two vectors.
///
/// # Safety
/// The numbers are there.
#[inline(always)]
unsafe fn add_products<S: Simd, const M: usize>(
    simd: S,
    a: &[*const f32; M],
    step: usize,
    b: *const f32,
    sums: &mut [[S::f32s; VECTORS]; M],
) {
    // SAFETY: the caller's promise; vectors are plain numbers.
    let (b0, b1) = unsafe {
        (b.cast::<S::f32s>().read_unaligned(), b.add(S::F32_LANES).cast::<S::f32s>().read_unaligned())
    };
    for row in 0..M {
        // SAFETY: the caller's promise.
        let scale = simd.splat_f32s(unsafe { *a[row].add(step) });
        sums[row][0] = simd.mul_add_e_f32s(scale, b0, sums[row][0]);
        sums[row][1] = simd.mul_add_e_f32s(scale, b1, sums[row][1]);
    }
}

/// Σ a_i·b_i.
#[inline(always)]
pub(crate) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let (a_vectors, a_rest) = S::as_simd_f32s(a);
    let (b_vectors, b_rest) = S::as_simd_f32s(b);
    let mut sum = simd.splat_f32s(0.0);
    for (&x, &y) in a_vectors.iter().zip(b_vectors) {
        sum = simd.mul_add_e_f32s(x, y, sum);
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    simd.reduce_sum_f32s(sum) + rest
}

/// `transposed[d, j] = rows[j, d]` for `count` rows of length `dim`; columns beyond `count` are left as they are.
#[inline(always)]
pub(crate) fn transpose(rows: &[f32], count: usize, dim: usize, transposed: &mut [f32], ld: usize) {
    // Sixteen rows at a time: reads stay within a few cache lines, writes fill whole ones.
    for first in (0..count).step_by(16) {
        let last = (first + 16).min(count);
        for d in 0..dim {
            let column = &mut transposed[d * ld..][first..last];
            for (j, value) in column.iter_mut().enumerate() {
                *value = rows[(first + j) * dim + d];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Instructions;
    use crate::instructions::Operation;
    use crate::lanes::Lanes;

    struct Product<'a> {
        shape: (usize, usize, usize),
        a: &'a [f32],
        b: &'a [f32],
        c: &'a mut [f32],
    }

    impl Operation for Product<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd, L: Lanes>(self, simd: S, _: L) {
            let (_, k, n) = self.shape;
            accumulate(simd, self.shape, self.a, k, self.b, n, self.c, n);
        }
    }

    #[test]
    fn product_equals_the_plain_one_for_every_row_count() {
        for m in 1..=20 {
            for (k, n) in [(1, 32), (7, 64), (33, 96)] {
                let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 64.0;
                let a: Vec<f32> = (0..m * k).map(value).collect();
                let b: Vec<f32> = (0..k * n).map(|i| value(i + 5)).collect();
                let mut c = vec![1.0; m * n];
                Instructions::best().dispatch(Product { shape: (m, k, n), a: &a, b: &b, c: &mut c });
                for row in 0..m {
                    for column in 0..n {
                        let expected: f32 =
                            1.0 + (0..k).map(|s| a[row * k + s] * b[s * n + column]).sum::<f32>();
                        assert!((c[row * n + column] - expected).abs() < 1e-4);
                    }
                }
            }
        }
    }
}
