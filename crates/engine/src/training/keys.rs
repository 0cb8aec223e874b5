//! Keys and values of prompts, which training takes as constants, and products with them.

use crate::product::product;
use half::slice::HalfFloatSliceExt;
use half::vec::HalfFloatVecExt;
use half::{bf16, f16};
use layerscope_kernels::Instructions;
use layerscope_kernels::matmul::{ComputeType, Layout, Product, WeightFormat, Weights, multiply};
use ndarray::{Array2, ArrayView2};
use std::borrow::Cow;
use std::sync::Arc;

/// Keys and values of a KV head that are constants.
#[derive(Debug, Clone, Default)]
pub struct HeadKeys {
    /// Positions, ascending.
    pub positions: Vec<usize>,
    /// Keys, rotated, and values, each `[positions, head_dim]`.
    numbers: [Numbers; 2],
}

/// What the rows of a sequence read beside each other, by layer and KV head; none where they read nothing else.
pub type Prefix = Vec<Vec<Arc<HeadKeys>>>;

/// Which of the two.
#[derive(Debug, Clone, Copy)]
pub(super) enum Which {
    Keys,
    Values,
}

/// Numbers `[positions, head_dim]`.
#[derive(Debug, Clone)]
enum Numbers {
    F32(Vec<f32>),
    F16(Vec<f16>),
    /// For products of bf16: bytes of `[positions, head_dim]`, and of `[head_dim, positions]`.
    Bf16 {
        rows: Vec<u8>,
        columns: Vec<u8>,
    },
}

/// The type in which keys are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// Four bytes a number.
    F32,
    /// Two bytes a number.
    F16,
    /// Two bytes a number, twice: as products of both directions read it.
    Bf16,
}

impl KeyType {
    /// The type for products in `compute`, of keys that a session keeps in two bytes, or in four.
    pub fn for_products(compute: ComputeType, in_two_bytes: bool) -> Self {
        match (compute, in_two_bytes) {
            (ComputeType::Bf16 | ComputeType::Int8, _) if Instructions::best().has_bf16() => Self::Bf16,
            (_, true) => Self::F16,
            (_, false) => Self::F32,
        }
    }
}

impl KeyType {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 | Self::Bf16 => 4,
        }
    }
}

impl Default for Numbers {
    fn default() -> Self {
        Self::F32(vec![])
    }
}

impl HeadKeys {
    /// Of keys and values `[positions, head_dim]`.
    pub fn new(positions: Vec<usize>, kind: KeyType, numbers: [Vec<f32>; 2]) -> Self {
        let count = positions.len();
        let numbers = numbers.map(|numbers| match kind {
            KeyType::F32 => Numbers::F32(numbers),
            KeyType::F16 => Numbers::F16(Vec::from_f32_slice(&numbers)),
            KeyType::Bf16 => {
                Numbers::bf16(numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(), count)
            }
        });
        Self { positions, numbers }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.numbers.iter().map(Numbers::len_bytes).sum()
    }

    /// Width of the head.
    fn head_dim(&self) -> usize {
        self.numbers[0].len() / self.positions.len().max(1)
    }

    /// Some of the positions.
    #[must_use]
    pub fn select(&self, chosen: impl Fn(usize) -> bool) -> Self {
        let slots: Vec<usize> =
            (0..self.positions.len()).filter(|&slot| chosen(self.positions[slot])).collect();
        let dim = self.head_dim();
        Self {
            positions: slots.iter().map(|&slot| self.positions[slot]).collect(),
            numbers: self.numbers.each_ref().map(|numbers| numbers.select(dim, &slots)),
        }
    }

    /// Keys and values as bytes.
    pub fn to_bytes(&self) -> [&[u8]; 2] {
        self.numbers.each_ref().map(|numbers| match numbers {
            Numbers::F32(numbers) => bytemuck::cast_slice(numbers),
            Numbers::F16(numbers) => bytemuck::cast_slice(numbers),
            Numbers::Bf16 { rows, .. } => rows,
        })
    }

    /// The same without its numbers, from which [`Self::with_bytes`] makes it again.
    #[must_use]
    pub fn without_numbers(&self) -> Self {
        let none = |numbers: &Numbers| match numbers {
            Numbers::F32(_) => Numbers::F32(vec![]),
            Numbers::F16(_) => Numbers::F16(vec![]),
            Numbers::Bf16 { .. } => Numbers::Bf16 { rows: vec![], columns: vec![] },
        };
        Self { positions: self.positions.clone(), numbers: self.numbers.each_ref().map(none) }
    }

    /// The same with numbers from [`Self::to_bytes`].
    #[must_use]
    pub fn with_bytes(&self, bytes: [Vec<u8>; 2]) -> Self {
        let mut kinds = self.numbers.iter();
        let numbers = bytes.map(|bytes| match kinds.next() {
            Some(Numbers::F16(_)) => {
                Numbers::F16(bytes.as_chunks().0.iter().map(|x| f16::from_ne_bytes(*x)).collect())
            }
            Some(Numbers::Bf16 { .. }) => Numbers::bf16(bytes, self.positions.len()),
            _ => Numbers::F32(bytes.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect()),
        });
        Self { positions: self.positions.clone(), numbers }
    }

    /// Keys or values.
    pub(super) fn matrix(&self, which: Which) -> HeadMatrix<'_> {
        let numbers = self.numbers[which as usize].for_products();
        HeadMatrix { positions: self.positions.len(), dim: self.head_dim(), numbers }
    }
}

impl Numbers {
    /// From bytes of bf16, `[positions, head_dim]`.
    fn bf16(rows: Vec<u8>, positions: usize) -> Self {
        let numbers: &[[u8; 2]] = rows.as_chunks().0;
        let dim = numbers.len() / positions.max(1);
        let mut columns = Vec::with_capacity(rows.len());
        for column in 0..dim {
            columns.extend(numbers.iter().skip(column).step_by(dim).flatten());
        }
        Self::Bf16 { rows, columns }
    }

    fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::F16(numbers) => numbers.len(),
            Self::Bf16 { rows, .. } => rows.len() / size_of::<bf16>(),
        }
    }

    fn len_bytes(&self) -> usize {
        match self {
            Self::F32(numbers) => size_of_val(numbers.as_slice()),
            Self::F16(numbers) => size_of_val(numbers.as_slice()),
            Self::Bf16 { rows, columns } => rows.len() + columns.len(),
        }
    }

    /// Runs of `len` numbers, by index, one after the other.
    fn select(&self, len: usize, runs: &[usize]) -> Self {
        fn chosen<T: Copy>(numbers: &[T], len: usize, runs: &[usize]) -> Vec<T> {
            runs.iter().flat_map(|run| &numbers[run * len..(run + 1) * len]).copied().collect()
        }
        match self {
            Self::F32(numbers) => Self::F32(chosen(numbers, len, runs)),
            Self::F16(numbers) => Self::F16(chosen(numbers, len, runs)),
            Self::Bf16 { rows, .. } => Self::bf16(chosen(rows, len * size_of::<bf16>(), runs), runs.len()),
        }
    }

    fn for_products(&self) -> HeadNumbers<'_> {
        match self {
            Self::F32(numbers) => HeadNumbers::F32(Cow::Borrowed(numbers)),
            Self::F16(numbers) => {
                let mut wide = vec![0.0; numbers.len()];
                numbers.convert_to_f32_slice(&mut wide);
                HeadNumbers::F32(Cow::Owned(wide))
            }
            Self::Bf16 { rows, columns } => HeadNumbers::Bf16 { rows, columns },
        }
    }
}

/// Keys or values of one head, `[positions, head_dim]`.
pub(super) struct HeadMatrix<'a> {
    positions: usize,
    dim: usize,
    numbers: HeadNumbers<'a>,
}

enum HeadNumbers<'a> {
    F32(Cow<'a, [f32]>),
    Bf16 { rows: &'a [u8], columns: &'a [u8] },
}

impl HeadMatrix<'_> {
    /// `factor · x · Mᵀ`, `[rows of x, positions]`.
    pub(super) fn times_transposed(&self, x: &ArrayView2<'_, f32>, factor: f32) -> Array2<f32> {
        match &self.numbers {
            HeadNumbers::F32(numbers) => product(x, &self.view(numbers).t(), factor),
            HeadNumbers::Bf16 { rows, .. } => in_bf16(&(x * factor).view(), rows, [self.positions, self.dim]),
        }
    }

    /// `x · M`, `[rows of x, head_dim]`.
    pub(super) fn times(&self, x: &ArrayView2<'_, f32>) -> Array2<f32> {
        match &self.numbers {
            HeadNumbers::F32(numbers) => product(x, &self.view(numbers), 1.0),
            HeadNumbers::Bf16 { columns, .. } => in_bf16(x, columns, [self.dim, self.positions]),
        }
    }

    fn view<'b>(&self, numbers: &'b [f32]) -> ArrayView2<'b, f32> {
        let view = ArrayView2::from_shape((self.positions, self.dim), numbers);
        view.expect("a head has a number for each position and dimension")
    }
}

/// x · Wᵀ, of W `[rows, columns]` in bf16.
fn in_bf16(x: &ArrayView2<'_, f32>, data: &[u8], [rows, columns]: [usize; 2]) -> Array2<f32> {
    let x = x.as_standard_layout();
    let numbers = x.as_slice().unwrap_or_default();
    let mut output = vec![0.0; x.nrows() * rows];
    let weights = Weights { data, format: WeightFormat::BF16, rows, columns, layout: Layout::Rows };
    multiply(numbers, x.nrows(), &mut [Product { weights, output: &mut output }], ComputeType::Bf16);
    Array2::from_shape_vec((x.nrows(), rows), output).expect("an output for each row of both")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn numbers(seed: usize, count: usize) -> Vec<f32> {
        (0..count).map(|index| ((index * 7_919 + seed * 104_729) % 1_013) as f32 / 506.0 - 1.0).collect()
    }

    #[test]
    fn products_and_parts_of_every_type() {
        let dim = 10;
        for count in [1, 2, 31, 32, 33, 150] {
            let both = [numbers(1, count * dim), numbers(2, count * dim)];
            let positions: Vec<usize> = (5..5 + count).collect();
            for (kind, accuracy) in [(KeyType::F32, 1e-5), (KeyType::F16, 1e-2), (KeyType::Bf16, 5e-2)] {
                let keys = HeadKeys::new(positions.clone(), kind, both.clone());
                let again = keys.without_numbers().with_bytes(keys.to_bytes().map(<[u8]>::to_vec));
                let slots: Vec<usize> = (0..count).step_by(2).collect();
                let part = again.select(|position| (position - 5).is_multiple_of(2));
                assert_eq!(part.positions, slots.iter().map(|slot| slot + 5).collect::<Vec<_>>());
                for (which, all) in [Which::Keys, Which::Values].into_iter().zip(&both) {
                    let whole = Array2::from_shape_fn((count, dim), |(p, d)| all[p * dim + d]);
                    let some = Array2::from_shape_fn((slots.len(), dim), |(p, d)| whole[[slots[p], d]]);
                    for (matrix, expected) in [(&again, whole), (&part, some)] {
                        let matrix = matrix.matrix(which);
                        let close = |actual: Array2<f32>, expected: Array2<f32>| {
                            let most = (actual - expected).mapv(f32::abs).fold(0.0, |a: f32, b| a.max(*b));
                            assert!(
                                most < accuracy * (count as f32).sqrt().max(3.0),
                                "{kind:?} {count}: {most}"
                            );
                        };
                        for rows in [1, 2, 9] {
                            let x = Array2::from_shape_vec((rows, dim), numbers(3, rows * dim)).unwrap();
                            close(matrix.times_transposed(&x.view(), 0.5), x.dot(&expected.t()) * 0.5);
                            let y = Array2::from_shape_vec(
                                (rows, expected.nrows()),
                                numbers(4, rows * expected.nrows()),
                            );
                            let y = y.unwrap();
                            close(matrix.times(&y.view()), y.dot(&expected));
                        }
                    }
                }
            }
        }
        assert_eq!(HeadKeys::default().select(|_| true).bytes(), 0);
    }
}
