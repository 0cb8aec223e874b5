//! Many rows of activations: W in panels of 32 rows, each dequantised once.

#[cfg(target_arch = "x86_64")]
mod bf16;

use super::dot::{Floats, Kind, Of32, Of256};
use super::format::by_block;
use super::{ComputeType, Product, WeightFormat, Weights};
use crate::Instructions;
use crate::instructions::Operation;
use crate::lanes::{LANES, Lanes};
use crate::tile::accumulate;
use pulp::Simd;
use rayon::prelude::*;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of W in a panel: columns of the output.
const WIDTH: usize = 32;
/// Columns of W dequantised at once, whole blocks of every format: a panel of them fits a core's L2 cache.
const DEPTH: usize = 1024;

/// An output `[rows, columns]`, whose columns tasks write.
#[derive(Clone, Copy)]
struct Columns {
    output: *mut f32,
    stride: usize,
}

// SAFETY: every task writes columns of its own (see `multiply`).
unsafe impl Send for Columns {}
// SAFETY: as above.
unsafe impl Sync for Columns {}

impl Columns {
    /// Writes `columns` columns from `first` on: `sums [rows, WIDTH]`.
    ///
    /// # Safety
    /// The output is alive and has these rows and columns, and nothing else writes them or reads them meanwhile.
    unsafe fn write(self, first: usize, columns: usize, sums: &[f32]) {
        for (row, sums) in sums.chunks_exact(WIDTH).enumerate() {
            // SAFETY: the caller's promise.
            let output = unsafe {
                std::slice::from_raw_parts_mut(self.output.add(row * self.stride + first), columns)
            };
            output.copy_from_slice(&sums[..columns]);
        }
    }
}

/// Buffers of one thread, kept for the next panel.
#[derive(Default)]
struct Buffers {
    /// Rows of W, dequantised, `[WIDTH, depth]`.
    rows: Vec<f32>,
    /// The panel: `[depth, WIDTH]` in f32, or `[depth / 2, WIDTH]` pairs of bf16.
    panel: Vec<f32>,
    /// Sums, `[rows of x, WIDTH]`.
    sums: Vec<f32>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// Activations as a panel multiplies them.
enum Activations<'a> {
    F32(&'a [f32]),
    /// Pairs of bf16, `[rows, columns / 2]`.
    #[cfg(target_arch = "x86_64")]
    Bf16(Vec<u32>),
}

pub(super) fn multiply(
    instructions: Instructions,
    x: &[f32],
    rows: usize,
    products: &mut [Product<'_>],
    compute: ComputeType,
) {
    let in_bf16 = |format: WeightFormat| {
        instructions.has_bf16()
            && compute != ComputeType::F32
            && (format.is_quantized() || format == WeightFormat::BF16)
    };
    let plain = Activations::F32(x);
    #[cfg(target_arch = "x86_64")]
    let rounded = match products.iter().any(|product| in_bf16(product.weights.format)) {
        true => Activations::Bf16(bf16::rounded(x, rows)),
        false => Activations::F32(x),
    };
    #[cfg(not(target_arch = "x86_64"))]
    let rounded = Activations::F32(x);
    let mut tasks = vec![];
    for Product { weights, output } in products {
        let columns = Columns { output: output.as_mut_ptr(), stride: weights.rows };
        let activations = if in_bf16(weights.format) { &rounded } else { &plain };
        tasks.extend((0..weights.rows).step_by(WIDTH).map(|first| (*weights, columns, activations, first)));
    }
    tasks.into_par_iter().with_max_len(1).for_each(|(weights, columns, activations, first)| {
        BUFFERS.with_borrow_mut(|buffers| {
            let count = WIDTH.min(weights.rows - first);
            let panel = Panel { weights, first, count };
            instructions.dispatch(PanelProduct { instructions, panel, activations, rows, buffers });
            // SAFETY: the outputs outlive the loop; no two tasks share columns of one of them.
            unsafe { columns.write(first, count, &buffers.sums) };
        });
    });
}

/// `count` rows of W from `first` on.
#[derive(Clone, Copy)]
struct Panel<'a> {
    weights: Weights<'a>,
    first: usize,
    count: usize,
}

impl Panel<'_> {
    /// Columns `start .. start + depth` of its rows in f32: `rows [WIDTH, depth]`, zeros below the last row.
    #[inline(always)]
    fn unpack(&self, instructions: Instructions, start: usize, depth: usize, rows: &mut Vec<f32>) {
        rows.resize(WIDTH * depth, 0.0);
        let format = self.weights.format;
        let columns = format.bytes(start)..format.bytes(start + depth);
        by_block!(
            format,
            floats => instructions.dispatch(Unpack::<Floats>::new(self, columns, depth, rows)),
            B of 32 => instructions.dispatch(Unpack::<Of32<B>>::new(self, columns, depth, rows)),
            of 256 => instructions.dispatch(Unpack::<Of256<B>>::new(self, columns, depth, rows))
        );
    }
}

/// The rows of a panel in f32.
struct Unpack<'a, K> {
    panel: &'a Panel<'a>,
    /// Bytes of a row.
    columns: Range<usize>,
    depth: usize,
    /// `[WIDTH, depth]`.
    rows: &'a mut [f32],
    kind: PhantomData<K>,
}

impl<'a, K: Kind> Unpack<'a, K> {
    fn new(panel: &'a Panel<'a>, columns: Range<usize>, depth: usize, rows: &'a mut [f32]) -> Self {
        Self { panel, columns, depth, rows, kind: PhantomData }
    }
}

impl<K: Kind> Operation for Unpack<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, lanes: L) {
        let Panel { weights, first, count } = *self.panel;
        for (row, unpacked) in self.rows.chunks_exact_mut(self.depth).enumerate() {
            if row < count {
                K::dequantize(
                    lanes,
                    weights.format,
                    &weights.row(first + row)[self.columns.clone()],
                    unpacked,
                );
            } else {
                unpacked.fill(0.0);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Panel<'_> {
    /// The same of weights in bf16 as pairs, `rows [WIDTH, ⌈depth / 2⌉]`.
    #[inline(always)]
    fn pairs(&self, start: usize, depth: usize, rows: &mut Vec<f32>) {
        let pairs = depth.div_ceil(2);
        let format = self.weights.format;
        let bytes = format.bytes(start)..format.bytes(start + depth);
        rows.resize(WIDTH * pairs, 0.0);
        for (row, rows) in rows.chunks_exact_mut(pairs).enumerate() {
            if row < self.count {
                bf16::pairs_of(&self.weights.row(self.first + row)[bytes.clone()], rows);
            } else {
                rows.fill(0.0);
            }
        }
    }
}

struct PanelProduct<'a> {
    instructions: Instructions,
    panel: Panel<'a>,
    activations: &'a Activations<'a>,
    rows: usize,
    buffers: &'a mut Buffers,
}

impl Operation for PanelProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, simd: S, lanes: L) {
        let Self { instructions, panel, activations, rows, buffers } = self;
        let columns = panel.weights.columns;
        buffers.sums.clear();
        buffers.sums.resize(rows * WIDTH, 0.0);
        for start in (0..columns).step_by(DEPTH) {
            let depth = DEPTH.min(columns - start);
            match activations {
                Activations::F32(x) => {
                    panel.unpack(instructions, start, depth, &mut buffers.rows);
                    buffers.panel.resize(depth * WIDTH, 0.0);
                    interleave(lanes, &buffers.rows, depth, &mut buffers.panel);
                    let shape = (rows, depth, WIDTH);
                    accumulate(
                        simd,
                        shape,
                        &x[start..],
                        columns,
                        &buffers.panel,
                        WIDTH,
                        &mut buffers.sums,
                        WIDTH,
                    );
                }
                #[cfg(target_arch = "x86_64")]
                Activations::Bf16(x) => {
                    let pairs = depth.div_ceil(2);
                    if panel.weights.format == WeightFormat::BF16 {
                        panel.pairs(start, depth, &mut buffers.rows);
                    } else {
                        panel.unpack(instructions, start, depth, &mut buffers.rows);
                        bf16::round_rows(&mut buffers.rows, depth);
                    }
                    buffers.panel.resize(pairs * WIDTH, 0.0);
                    interleave(lanes, &buffers.rows[..pairs * WIDTH], pairs, &mut buffers.panel);
                    let x = bf16::PairRows { pairs: x, stride: columns.div_ceil(2), start: start / 2, rows };
                    bf16::accumulate(x, pairs, &buffers.panel, &mut buffers.sums);
                }
            }
        }
    }
}

/// `panel [depth, WIDTH]` from `rows [WIDTH, depth]`.
#[inline(always)]
fn interleave<L: Lanes>(l: L, rows: &[f32], depth: usize, panel: &mut [f32]) {
    let whole = depth / LANES * LANES;
    for first in (0..WIDTH).step_by(LANES) {
        let rows = &rows[first * depth..][..LANES * depth];
        for start in (0..whole).step_by(LANES) {
            let mut block = [l.splat(0.0); LANES];
            for (row, block) in rows.chunks_exact(depth).zip(&mut block) {
                if let Some(row) = row[start..].first_chunk() {
                    *block = l.load(row);
                }
            }
            let columns = l.transposed(block);
            for (step, column) in columns.into_iter().enumerate() {
                if let Some(to) = panel[(start + step) * WIDTH + first..].first_chunk_mut() {
                    l.store(column, to);
                }
            }
        }
        for step in whole..depth {
            let to = &mut panel[step * WIDTH + first..][..LANES];
            for (row, to) in rows.chunks_exact(depth).zip(to) {
                *to = row[step];
            }
        }
    }
}
