//! Many rows of activations: W in panels of 32 rows, each dequantised once.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod bf16;
mod packed;

use super::dot::{Floats, Kind, Of32, Of256};
use super::format::by_block;
use super::layout::RowBytes;
use super::{ComputeType, WeightFormat, Weights};
use crate::Instructions;
use crate::instructions::Operation;
use crate::lanes::{LANES, Lanes};
use crate::line::{self, Line};
use packed::Packed;
use pulp::Simd;
use rayon::prelude::*;
use std::cell::{OnceCell, RefCell};
use std::marker::PhantomData;

/// Rows of W in a panel: columns of the output.
const WIDTH: usize = 32;
/// Columns of W dequantised at once, whole blocks of every format: a panel of them fits a core's L1 cache.
const DEPTH: usize = 256;
/// Most rows of W of a task: while its panels pass, what x has of these columns stays in a core's L2 cache.
const TASK_ROWS: usize = 4 * WIDTH;

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
    /// Writes `columns` columns of rows, from a row and a column on: `sums [rows, width]`.
    ///
    /// # Safety
    /// The output is alive and has these rows and columns, and nothing else writes them or reads them meanwhile.
    unsafe fn write(self, (first_row, first): (usize, usize), columns: usize, sums: &[f32], width: usize) {
        for (row, sums) in (first_row..).zip(sums.chunks_exact(width)) {
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
    rows: UnpackedRows,
    /// The panel: `[depth, WIDTH]` in f32, or `[depth / 2, WIDTH]` pairs of bf16.
    panel: Vec<Line>,
    /// Sums, `[rows of x, WIDTH]` of each panel; on tiles, those of each group of rows of W.
    sums: Vec<Line>,
}

/// Rows of W.
#[derive(Default)]
struct UnpackedRows {
    /// In f32, `[WIDTH, depth]`.
    numbers: Vec<f32>,
    /// Their bytes, where those of a row do not lie together.
    bytes: Vec<u8>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// Activations as a panel multiplies them.
enum Activations {
    F32(Packed),
    /// Pairs of bf16, in the bits of f32.
    #[cfg(target_arch = "x86_64")]
    Bf16(Packed),
    /// The same as tiles.
    #[cfg(target_arch = "x86_64")]
    Amx(Vec<Line>),
    /// f32, as tiles of their parts.
    #[cfg(target_arch = "x86_64")]
    AmxF32(Vec<Line>),
}

impl Activations {
    /// Rows of W that a task multiplies, of all: as many tasks for each thread, of whole panels.
    fn task_rows(&self, rows: usize) -> usize {
        let (most, group) = match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_) | Self::AmxF32(_) => (amx::TASK_ROWS, amx::GROUP),
            _ => (TASK_ROWS, WIDTH),
        };
        // A thread that had one more would keep all others waiting.
        let tasks = rows.div_ceil(most).next_multiple_of(rayon::current_num_threads());
        rows.div_ceil(tasks).next_multiple_of(group)
    }
}

/// Writes every number of the outputs, and reads none before.
///
/// # Safety
/// Each output has `rows` times as many numbers as its matrix has rows, and nothing else reads or writes them.
pub(super) unsafe fn multiply(
    instructions: Instructions,
    x: &[f32],
    rows: usize,
    products: &[(Weights<'_>, *mut f32)],
    compute: ComputeType,
) {
    let in_bf16 = |format: WeightFormat| {
        instructions.has_bf16()
            && compute != ComputeType::F32
            && (format.is_quantized() || format == WeightFormat::BF16)
    };
    let in_f32 = || Activations::F32(Packed::new(x, rows, DEPTH));
    #[cfg(target_arch = "x86_64")]
    let in_f32 = || match instructions.has_amx() {
        true => amx::split(x, rows).map_or_else(in_f32, Activations::AmxF32),
        false => in_f32(),
    };
    let pairs = || {
        #[cfg(target_arch = "x86_64")]
        return match instructions.has_amx() {
            true => Activations::Amx(amx::rounded(x, rows)),
            false => Activations::Bf16(bf16::rounded(x, rows)),
        };
        #[cfg(not(target_arch = "x86_64"))]
        in_f32()
    };
    // Each is made where a product needs it.
    let (plain, rounded) = (OnceCell::new(), OnceCell::new());
    let mut tasks = vec![];
    for &(weights, output) in products {
        let columns = Columns { output, stride: weights.rows };
        let activations = match in_bf16(weights.format) {
            true => rounded.get_or_init(pairs),
            false => plain.get_or_init(in_f32),
        };
        let rows_of_task = activations.task_rows(weights.rows);
        let panels = (0..weights.rows).step_by(rows_of_task).map(|first| {
            let count = rows_of_task.min(weights.rows - first);
            (Panel { weights, first, count }, columns, activations)
        });
        tasks.extend(panels);
    }
    tasks.into_par_iter().with_max_len(1).for_each(|(panel, columns, activations)| {
        let product = |activations| {
            BUFFERS.with_borrow_mut(|buffers| {
                // SAFETY: the caller's promise; no two tasks share columns of an output.
                instructions.dispatch(unsafe {
                    PanelProduct::new(instructions, panel, activations, (rows, columns), buffers)
                })
            })
        };
        if !product(activations) {
            product(&Activations::F32(Packed::new(x, rows, DEPTH)));
        }
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
    fn unpack(&self, instructions: Instructions, start: usize, depth: usize, rows: &mut UnpackedRows) {
        let UnpackedRows { numbers, bytes } = rows;
        numbers.resize(WIDTH * depth, 0.0);
        let format = self.weights.format;
        let bytes = self.bytes(instructions, start, depth, bytes);
        by_block!(
            format,
            floats => instructions.dispatch(Unpack::<Floats>::new(self, bytes, depth, numbers)),
            B of 32 => instructions.dispatch(Unpack::<Of32<B>>::new(self, bytes, depth, numbers)),
            of 256 => instructions.dispatch(Unpack::<Of256<B>>::new(self, bytes, depth, numbers))
        );
    }

    /// Bytes of columns `start .. start + depth` of its rows.
    fn bytes<'b>(
        &'b self,
        instructions: Instructions,
        start: usize,
        depth: usize,
        copy: &'b mut Vec<u8>,
    ) -> RowBytes<'b> {
        let elements = self.weights.format.block().0;
        let blocks = start / elements..(start + depth) / elements;
        self.weights.blocks_of(instructions, self.first..self.first + self.count, blocks, copy)
    }
}

/// The rows of a panel in f32.
struct Unpack<'a, K> {
    panel: &'a Panel<'a>,
    bytes: RowBytes<'a>,
    depth: usize,
    /// `[WIDTH, depth]`.
    rows: &'a mut [f32],
    kind: PhantomData<K>,
}

impl<'a, K: Kind> Unpack<'a, K> {
    fn new(panel: &'a Panel<'a>, bytes: RowBytes<'a>, depth: usize, rows: &'a mut [f32]) -> Self {
        Self { panel, bytes, depth, rows, kind: PhantomData }
    }
}

impl<K: Kind> Operation for Unpack<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, lanes: L) {
        let Panel { weights, count, .. } = *self.panel;
        for (row, unpacked) in self.rows.chunks_exact_mut(self.depth).enumerate() {
            if row < count {
                K::dequantize(lanes, weights.format, self.bytes.row(row), unpacked);
            } else {
                unpacked.fill(0.0);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Panel<'_> {
    /// Columns `start .. start + depth` as pairs of bf16, `[⌈depth / 2⌉, WIDTH]`, in rows of `width`.
    #[inline(always)]
    fn pairs<L: Lanes>(
        &self,
        (instructions, lanes): (Instructions, L),
        start: usize,
        depth: usize,
        rows: &mut UnpackedRows,
        to: &mut [f32],
        width: usize,
    ) {
        let pairs = depth.div_ceil(2);
        if self.weights.format == WeightFormat::BF16 {
            self.pairs_of_rows(instructions, start, depth, rows);
        } else {
            self.unpack(instructions, start, depth, rows);
            bf16::round_rows(&mut rows.numbers, depth);
        }
        interleave(lanes, &rows.numbers[..pairs * WIDTH], pairs, to, width);
    }

    /// The rows of weights in bf16 as pairs, `rows [WIDTH, ⌈depth / 2⌉]`.
    #[inline(always)]
    fn pairs_of_rows(&self, instructions: Instructions, start: usize, depth: usize, rows: &mut UnpackedRows) {
        let pairs = depth.div_ceil(2);
        let UnpackedRows { numbers, bytes } = rows;
        let bytes = self.bytes(instructions, start, depth, bytes);
        numbers.resize(WIDTH * pairs, 0.0);
        for (row, rows) in numbers.chunks_exact_mut(pairs).enumerate() {
            if row < self.count {
                bf16::pairs_of(bytes.row(row), rows);
            } else {
                rows.fill(0.0);
            }
        }
    }
}

struct PanelProduct<'a> {
    instructions: Instructions,
    panel: Panel<'a>,
    activations: &'a Activations,
    rows: usize,
    output: Columns,
    buffers: &'a mut Buffers,
}

impl<'a> PanelProduct<'a> {
    /// # Safety
    /// The output has as many rows, and the panel's columns; nothing else reads or writes these before the product has run.
    unsafe fn new(
        instructions: Instructions,
        panel: Panel<'a>,
        activations: &'a Activations,
        (rows, output): (usize, Columns),
        buffers: &'a mut Buffers,
    ) -> Self {
        Self { instructions, panel, activations, rows, output, buffers }
    }
}

impl Operation for PanelProduct<'_> {
    /// Whether the product is done: on tiles of parts, where all weights are finite.
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, simd: S, lanes: L) -> bool {
        let Self { instructions, panel: task, activations, rows, output, buffers } = self;
        let columns = task.weights.columns;
        // Some processors have one kind alone.
        #[allow(clippy::infallible_destructuring_match)]
        let x = match activations {
            Activations::F32(x) => x,
            #[cfg(target_arch = "x86_64")]
            Activations::Bf16(x) => x,
            #[cfg(target_arch = "x86_64")]
            Activations::Amx(x) => {
                // SAFETY: what `new` was promised.
                unsafe { amx::products((instructions, lanes), task, (x, rows), output, buffers) };
                return true;
            }
            #[cfg(target_arch = "x86_64")]
            Activations::AmxF32(x) => {
                // SAFETY: as above.
                return unsafe {
                    amx::products_of_parts((instructions, lanes), task, (x, rows), output, buffers)
                };
            }
        };
        let panels = (task.first..task.first + task.count).step_by(WIDTH);
        let panels =
            panels.map(|first| Panel { first, count: WIDTH.min(task.first + task.count - first), ..task });
        let sums = line::numbers(&mut buffers.sums, panels.len() * rows * WIDTH);
        sums.fill(0.0);
        let sums = sums.as_chunks_mut::<WIDTH>().0;
        for start in (0..columns).step_by(DEPTH) {
            let depth = DEPTH.min(columns - start);
            for (panel, sums) in panels.clone().zip(sums.chunks_exact_mut(rows)) {
                #[cfg(target_arch = "x86_64")]
                if matches!(activations, Activations::Bf16(_)) {
                    let pairs = line::numbers(&mut buffers.panel, depth.div_ceil(2) * WIDTH);
                    panel.pairs((instructions, lanes), start, depth, &mut buffers.rows, pairs, WIDTH);
                    let x = x.columns(start / 2, depth.div_ceil(2));
                    bf16::accumulate(x, pairs.as_chunks().0, sums);
                    continue;
                }
                panel.unpack(instructions, start, depth, &mut buffers.rows);
                let numbers = line::numbers(&mut buffers.panel, depth * WIDTH);
                interleave(lanes, &buffers.rows.numbers, depth, numbers, WIDTH);
                packed::accumulate(simd, x.columns(start, depth), numbers.as_chunks().0, sums);
            }
        }
        for row in 0..rows {
            for (panel, sums) in panels.clone().zip(sums.chunks_exact(rows)) {
                // SAFETY: what `new` was promised.
                unsafe { output.write((row, panel.first), panel.count, &sums[row], WIDTH) };
            }
        }
        true
    }
}

/// `panel [depth, WIDTH]`, in rows of `width`, from `rows [WIDTH, depth]`.
#[inline(always)]
fn interleave<L: Lanes>(l: L, rows: &[f32], depth: usize, panel: &mut [f32], width: usize) {
    let whole = depth / LANES * LANES;
    for first in (0..WIDTH).step_by(LANES) {
        let rows = &rows[first * depth..][..LANES * depth];
        for start in (0..whole).step_by(LANES) {
            l.transpose(&rows[start..], depth, &mut panel[start * width + first..], width);
        }
        for step in whole..depth {
            let to = &mut panel[step * width + first..][..LANES];
            for (row, to) in rows.chunks_exact(depth).zip(to) {
                *to = row[step];
            }
        }
    }
}
