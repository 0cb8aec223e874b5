//! Products of small matrices of any layout.

use gemm::Parallelism;
use ndarray::{Array2, ArrayView2, ArrayViewMut2};

/// Multiplications from which on a product is shared among threads.
const SHARED_FROM: usize = 1 << 22;

/// `factor · a · b`, of `[m, k]` and `[k, n]`, on all threads where it is large.
pub(crate) fn product(a: &ArrayView2<'_, f32>, b: &ArrayView2<'_, f32>, factor: f32) -> Array2<f32> {
    let mut output = Array2::zeros((a.nrows(), b.ncols()));
    let is_large = a.len() * b.ncols() >= SHARED_FROM;
    let threads = if is_large { Parallelism::Rayon(0) } else { Parallelism::None };
    multiply(&mut output.view_mut(), a, b, [0.0, factor], threads);
    output
}

/// Adds `factor · a · b` to `sum`, on this thread.
pub(crate) fn add_product(
    sum: &mut ArrayViewMut2<'_, f32>,
    a: &ArrayView2<'_, f32>,
    b: &ArrayView2<'_, f32>,
    factor: f32,
) {
    multiply(sum, a, b, [1.0, factor], Parallelism::None);
}

/// `factor · a · b` in place of `output`, on this thread.
pub(crate) fn write_product(
    output: &mut ArrayViewMut2<'_, f32>,
    a: &ArrayView2<'_, f32>,
    b: &ArrayView2<'_, f32>,
    factor: f32,
) {
    multiply(output, a, b, [0.0, factor], Parallelism::None);
}

/// output = kept · output + factor · a · b.
fn multiply(
    output: &mut ArrayViewMut2<'_, f32>,
    a: &ArrayView2<'_, f32>,
    b: &ArrayView2<'_, f32>,
    [kept, factor]: [f32; 2],
    threads: Parallelism,
) {
    let (m, k, n) = (a.nrows(), a.ncols(), b.ncols());
    assert_eq!((output.dim(), b.nrows()), ((m, n), k), "matrices that are multiplied fit");
    if m == 0 || k == 0 || n == 0 {
        if kept == 0.0 {
            output.fill(0.0);
        }
        return;
    }
    let [output_strides, a_strides, b_strides] =
        [output.strides(), a.strides(), b.strides()].map(|strides| (strides[1], strides[0]));
    // SAFETY: sizes and strides are those of the views, each of which is valid for all its elements; `output` is borrowed alone.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            output.as_mut_ptr(),
            output_strides.0,
            output_strides.1,
            kept != 0.0,
            a.as_ptr(),
            a_strides.0,
            a_strides.1,
            b.as_ptr(),
            b_strides.0,
            b_strides.1,
            kept,
            factor,
            false,
            false,
            false,
            threads,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::s;

    #[test]
    fn products_of_any_layout_are_those_of_ndarray() {
        for (m, k, n) in [(1, 1, 1), (3, 7, 5), (64, 16, 33), (5, 0, 4), (130, 300, 257)] {
            let numbers = |index: usize| ((index * 7919 % 1013) as f32 - 500.0) / 500.0;
            let a = Array2::from_shape_fn((m, k), |(i, j)| numbers(i * 31 + j));
            let b = Array2::from_shape_fn((n, k), |(i, j)| numbers(i * 17 + j + 5));
            let expected = a.dot(&b.t());
            let close = |actual: &Array2<f32>, factor: f32| {
                let difference = (actual - &(&expected * factor)).mapv(f32::abs);
                assert!(difference.iter().all(|&x| x < 1e-3), "{m} {k} {n}");
            };
            close(&product(&a.view(), &b.t(), 0.5), 0.5);
            let mut sum = Array2::zeros((n, m));
            add_product(&mut sum.view_mut().reversed_axes(), &a.view(), &b.t(), 1.0);
            add_product(&mut sum.view_mut().reversed_axes(), &a.view(), &b.t(), 2.0);
            close(&sum.t().to_owned(), 3.0);
            write_product(&mut sum.view_mut().reversed_axes(), &a.view(), &b.t(), 0.5);
            close(&sum.t().to_owned(), 0.5);
        }
        let a = Array2::from_shape_fn((6, 8), |(i, j)| (i * 8 + j) as f32);
        let every_second = a.slice(s![..;2, 1..;3]);
        let expected = every_second.dot(&every_second.t());
        assert_eq!(product(&every_second, &every_second.t(), 1.0), expected);
    }
}
