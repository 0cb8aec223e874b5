//! Products in whole numbers: activations of eight bits times quants that fit bytes, sixteen rows of W at a time.
//!
//! Columns of sixteen rows are unpacked so that each instruction multiplies four columns of all of them with four activations; sums
//! over 16 or 32 columns are whole numbers and then meet the scales. The rows of activations share what is unpacked, and each of
//! them gets the bits that it has alone.

use super::blocks::{ByteBlock, Span, Unpacked};
use super::format::by_byte_block;
use super::row::in_tasks;
use super::{Product, WeightFormat, Weights};
use crate::Instructions;
use crate::ahead::{Ahead, SOON};
use crate::instructions::{ByteOperation, Operation};
use crate::lanes::{ByteLanes, LANES, Lanes, RowByRow, SixteenRows, Start, Vector, WordByWord};
use pulp::Simd;
use rayon::prelude::*;
use std::marker::PhantomData;
use std::ops::Range;

/// Columns that are unpacked at a time.
const SPAN: usize = 256;
/// Columns that have a unit of activations in common.
const GROUP: usize = 32;
/// Their groups.
const SPAN_GROUPS: usize = SPAN / GROUP;
/// Rows of activations that meet unpacked columns before the next ones come, so that both stay in cache.
const MOST_ROWS: usize = 128;
/// Rows of W whose products go to the outputs together: their rows lie in pages of their own.
const WIDE: usize = 4 * LANES;
/// Spans that a task rounds.
const TASK_SPANS: usize = 64;

/// Activations in eight bits, in units that each 32 have in common. Σ x is that of rounded x, since the error is then that of Σ w·x
/// for weights about zero.
struct Rounded {
    /// In units, `[spans, rows]`: what meets the same columns of W lies together. Row by row, widths that are a power of two would put
    /// it into the same few sets of the cache. The last span of each row may end in zeros.
    x: Vec<[[[i8; 4]; 8]; SPAN_GROUPS]>,
    /// What belongs to them, as often.
    sums: Vec<[GroupSums; SPAN_GROUPS]>,
    /// `columns / 32`.
    groups: usize,
    rows: usize,
}

#[derive(Clone, Copy, Default)]
struct GroupSums {
    unit: f32,
    /// Σ x over each 16 columns.
    of_16: [f32; 2],
    /// Σ x over all.
    of_32: f32,
    /// −128·Σ x in units.
    start: i32,
    /// −32·Σ x in units over each 16 columns.
    starts: [Start; 2],
}

impl Rounded {
    /// Of rows `[rows, columns]`; columns are whole groups of 32.
    fn new(instructions: Instructions, x: &[f32], columns: usize) -> Self {
        let (rows, groups) = (x.len() / columns.max(1), columns / GROUP);
        let spans = (groups.div_ceil(SPAN_GROUPS) * rows).max(1);
        let mut rounded =
            Self { x: vec![Default::default(); spans], sums: vec![Default::default(); spans], groups, rows };
        if x.is_empty() {
            return rounded;
        }
        let round = |(task, (to, sums))| {
            instructions.dispatch(Round { x, columns, rows, first: task * TASK_SPANS, to, sums });
        };
        if spans < 2 * TASK_SPANS {
            round((0, (&mut rounded.x[..], &mut rounded.sums[..])));
        } else {
            let to = rounded.x.par_chunks_mut(TASK_SPANS);
            to.zip(rounded.sums.par_chunks_mut(TASK_SPANS)).enumerate().for_each(round);
        }
        rounded
    }

    /// A span of M rows.
    ///
    /// # Panics
    /// If there are fewer rows.
    #[inline(always)]
    fn spans<const M: usize>(&self, span: usize, first: usize) -> SpansOf<'_, M> {
        let index = span * self.rows + first;
        (&self.x[index..].as_chunks().0[0], &self.sums[index..].as_chunks().0[0])
    }

    /// A span of a row.
    #[inline(always)]
    fn span(&self, span: usize, row: usize) -> SpanOf<'_> {
        let ([x], [sums]) = self.spans(span, row);
        (x, sums)
    }
}

/// Activations of M rows, and what belongs to them.
type SpansOf<'a, const M: usize> = (&'a [[[[i8; 4]; 8]; SPAN_GROUPS]; M], &'a [[GroupSums; SPAN_GROUPS]; M]);

/// Activations, and what belongs to them.
type SpanOf<'a> = (&'a [[[i8; 4]; 8]; SPAN_GROUPS], &'a [GroupSums; SPAN_GROUPS]);

struct Round<'a> {
    /// All rows.
    x: &'a [f32],
    columns: usize,
    rows: usize,
    /// The first of the spans.
    first: usize,
    to: &'a mut [[[[i8; 4]; 8]; SPAN_GROUPS]],
    sums: &'a mut [[GroupSums; SPAN_GROUPS]],
}

impl Operation for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, _: L) {
        for (index, (to, sums)) in (self.first..).zip(self.to.iter_mut().zip(self.sums)) {
            let (span, row) = (index / self.rows, index % self.rows);
            let x = &self.x[row * self.columns..][..self.columns][span * SPAN..];
            for ((x, to), sums) in x.as_chunks::<GROUP>().0.iter().zip(to).zip(sums) {
                let bytes: &mut [i8; GROUP] = bytemuck::cast_mut(to);
                let unit = round_to_bytes(x, bytes);
                let (mut first, mut second) = (0, 0);
                for i in 0..GROUP / 2 {
                    first += i32::from(bytes[i]);
                    second += i32::from(bytes[GROUP / 2 + i]);
                }
                let halves: &[[[i8; 4]; 4]; 2] = bytemuck::cast_ref(to);
                let starts = [Start::of(&halves[0]), Start::of(&halves[1])];
                *sums = GroupSums {
                    unit,
                    of_16: [unit * first as f32, unit * second as f32],
                    of_32: unit * (first + second) as f32,
                    start: -128 * (first + second),
                    starts,
                };
            }
        }
    }
}

/// Rounds numbers to whole units, at most 127 of them; the unit. It is NaN where one of the numbers is not finite, which the product
/// then shows.
#[inline(always)]
fn round_to_bytes(x: &[f32; GROUP], rounded: &mut [i8; GROUP]) -> f32 {
    let unit = super::dot::unit(x, i8::MAX.into());
    let units = 1.0 / unit;
    for (rounded, x) in rounded.iter_mut().zip(x) {
        // Where one is the smallest step of a float, sums are rounded to whole numbers, and their low bits are these.
        const WHOLE: f32 = 12_582_912.0;
        *rounded = (x * units + WHOLE).to_bits() as i8;
    }
    unit
}

/// Rows of activations times each of `products`, whose formats all have quants of bytes.
pub(super) fn multiply(instructions: Instructions, x: &[f32], products: &mut [Product<'_>]) {
    let columns = products.first().map_or(1, |product| product.weights.columns);
    let rounded = &Rounded::new(instructions, x, columns);
    let rows = x.len() / columns.max(1);
    in_tasks(products, rows, |weights, first, outputs| {
        by_byte_block!(
            weights.format,
            B => instructions.dispatch_bytes(IntegerProducts::<B> { x: rounded, weights, first, outputs, block: PhantomData }),
            others => {}
        );
    });
}

/// All rows of activations times some rows of W.
struct IntegerProducts<'a, 'o, B> {
    x: &'a Rounded,
    weights: Weights<'a>,
    /// The first of the rows of W.
    first: usize,
    /// A slice for each row of activations, as long as there are rows of W.
    outputs: &'a mut [&'o mut [f32]],
    block: PhantomData<B>,
}

impl<B: ByteBlock> ByteOperation for IntegerProducts<'_, '_, B> {
    type Output = ();

    #[inline(always)]
    fn run<L: ByteLanes>(self, l: L) {
        let rows = self.outputs.first().map_or(0, |output| output.len());
        let most = MOST_ROWS.min(self.outputs.len());
        let mut sums = vec![Vector([0.0; LANES]); most * WIDE / LANES];
        let mut unpacked = (Span::default(), Alone::new(l, self.x));
        for first in (0..rows).step_by(WIDE) {
            let wide = first..rows.min(first + WIDE);
            for first in (0..self.outputs.len()).step_by(MOST_ROWS) {
                let count = most.min(self.outputs.len() - first);
                for (row, sums) in wide.clone().step_by(LANES).zip(sums.chunks_mut(most)) {
                    let asked = row..wide.end.min(row + LANES);
                    self.some_rows(l, asked, first, &mut unpacked, &mut sums[..count]);
                }
                for (row, output) in self.outputs[first..][..count].iter_mut().enumerate() {
                    for (to, sums) in output[wide.clone()].chunks_mut(LANES).zip(sums.chunks(most)) {
                        match to.as_mut_array() {
                            Some(to) => *to = sums[row].0,
                            None => to.copy_from_slice(&sums[row].0[..to.len()]),
                        }
                    }
                }
            }
        }
    }
}

impl<'a, B: ByteBlock> IntegerProducts<'a, '_, B> {
    /// The products of some rows of activations, one for each of `sums`, with at most sixteen rows of W.
    #[inline(always)]
    fn some_rows<L: ByteLanes>(
        &self,
        l: L,
        asked: Range<usize>,
        first: usize,
        unpacked: &mut (Span, Alone<'a, L>),
        sums: &mut [Vector<f32, LANES>],
    ) {
        let row_bytes = self.weights.row_bytes();
        let data = &self.weights.data[(self.first + asked.start) * row_bytes..];
        if let Some(sixteen) = self.weights.sixteen(self.first + asked.start) {
            let here = WordByWord::new(sixteen, row_bytes / B::BLOCK_BYTES, B::WORDS);
            if sums.len() == 1 {
                here.ask_rest(LANES * row_bytes);
            }
            return self.sixteen(l, here, data, first, unpacked, sums);
        }
        let mut filled = vec![];
        let sixteen = if asked.len() == LANES {
            data
        } else {
            // Rows that are not there are zeros, and nobody reads their sums.
            filled.extend_from_slice(&data[..asked.len() * row_bytes]);
            filled.resize(LANES * row_bytes, 0);
            &filled
        };
        let here = RowByRow::new(sixteen, row_bytes, row_bytes, B::BLOCK_BYTES);
        self.sixteen(l, here, sixteen, first, unpacked, sums);
    }

    /// The products with sixteen rows of W. Bytes that will be needed next are those behind the sixteen in `data`.
    #[inline(always)]
    fn sixteen<L: ByteLanes, R: SixteenRows>(
        &self,
        l: L,
        sixteen: R,
        data: &[u8],
        first: usize,
        (span, alone): &mut (Span, Alone<'a, L>),
        sums: &mut [Vector<f32, LANES>],
    ) {
        let row_bytes = self.weights.row_bytes();
        sums.fill(Vector([0.0; LANES]));
        for at in 0..self.x.groups.div_ceil(SPAN_GROUPS) {
            let groups = SPAN_GROUPS.min(self.x.groups - at * SPAN_GROUPS);
            let block = at * SPAN / B::COLUMNS;
            // Of rows apart, where the next sixteen follow; of interleaved ones, soon.
            let behind = if R::APART { LANES * row_bytes } else { SOON };
            let mut ahead = Ahead::new(data, LANES * block * B::BLOCK_BYTES + behind);
            let here = sixteen.from(block);
            if !R::APART && sums.len() == 1 {
                alone.begin(l, self.x.span(at, first), &sums[0]);
                B::unpack(l, here, groups, &mut ahead, alone);
                sums[0] = alone.total::<B>(l, groups);
                continue;
            }
            B::unpack(l, here, groups, &mut ahead, span);
            let mut row = 0;
            while row < sums.len() {
                let (here, sums) = ((at, groups), &mut sums[row..]);
                row += match sums.len().min(l.rows_at_once(B::QUANTS)) {
                    8.. => self.rows::<L, 8>(l, span, first + row, here, sums),
                    4.. => self.rows::<L, 4>(l, span, first + row, here, sums),
                    2.. => self.rows::<L, 2>(l, span, first + row, here, sums),
                    _ => self.rows::<L, 1>(l, span, first + row, here, sums),
                };
            }
        }
    }

    /// Adds the products of M rows of activations with a span; M.
    #[inline(always)]
    fn rows<L: ByteLanes, const M: usize>(
        &self,
        l: L,
        span: &Span,
        first: usize,
        (at, groups): (usize, usize),
        totals: &mut [Vector<f32, LANES>],
    ) -> usize {
        if B::WHOLE_SCALES {
            return self.rows_with_whole_scales::<L, M>(l, span, first, (at, groups), totals);
        }
        let (x, sums_of) = self.x.spans::<M>(at, first);
        let mut totals_of = [l.splat(0.0); M];
        for m in 0..M {
            totals_of[m] = l.load(&totals[m].0);
        }
        for (group, quants) in span.quants.as_chunks::<8>().0[..groups].iter().enumerate() {
            if B::GROUP == GROUP {
                let (scales, offsets) = (l.load(&span.scales[group].0), l.load(&span.offsets[group].0));
                let (mut here, mut starts) = ([&x[0][group]; M], [0; M]);
                for m in 0..M {
                    (here[m], starts[m]) = (&x[m][group], sums_of[m][group].start);
                }
                let products = l.products_of_rows(quants, here, B::QUANTS, starts);
                for m in 0..M {
                    let sums = &sums_of[m][group];
                    let scales = l.multiply(scales, l.splat(sums.unit));
                    totals_of[m] = l.multiply_add(l.float(products[m]), scales, totals_of[m]);
                    if B::OFFSETS {
                        totals_of[m] = l.multiply_add(offsets, l.splat(sums.of_32), totals_of[m]);
                    }
                }
            } else {
                for half in 0..2 {
                    let w: &[_; 4] = &quants.as_chunks().0[half];
                    let scales = l.load(&span.scales[2 * group + half].0);
                    let offsets = l.load(&span.offsets[2 * group + half].0);
                    let mut here = [&x[0][group].as_chunks::<4>().0[half]; M];
                    for m in 0..M {
                        here[m] = &x[m][group].as_chunks().0[half];
                    }
                    let products = l.products_of_rows(w, here, B::QUANTS, [0; M]);
                    for m in 0..M {
                        let sums = &sums_of[m][group];
                        let scales = l.multiply(scales, l.splat(sums.unit));
                        totals_of[m] = l.multiply_add(l.float(products[m]), scales, totals_of[m]);
                        if B::OFFSETS {
                            totals_of[m] = l.multiply_add(offsets, l.splat(sums.of_16[half]), totals_of[m]);
                        }
                    }
                }
            }
        }
        for m in 0..M {
            l.store(totals_of[m], &mut totals[m].0);
        }
        M
    }

    /// [`Self::rows`] of [`ByteBlock::WHOLE_SCALES`].
    #[inline(always)]
    fn rows_with_whole_scales<L: ByteLanes, const M: usize>(
        &self,
        l: L,
        span: &Span,
        first: usize,
        (at, groups): (usize, usize),
        totals: &mut [Vector<f32, LANES>],
    ) -> usize {
        let (x, sums_of) = self.x.spans::<M>(at, first);
        let mut of_span = [l.splat(0.0); M];
        for (group, quants) in span.quants.as_chunks::<8>().0[..groups].iter().enumerate() {
            let mut products = [none(l); M];
            for half in 0..2 {
                let scales = l.integers(l.load_64(&span.whole_scales[2 * group + half].0));
                let (mut here, mut starts) =
                    ([&x[0][group].as_chunks::<4>().0[half]; M], [Start::default(); M]);
                for m in 0..M {
                    (here[m], starts[m]) = (&x[m][group].as_chunks().0[half], sums_of[m][group].starts[half]);
                }
                let w = &quants.as_chunks().0[half];
                products = l.scaled_products_of_rows(products, scales, w, here, starts);
            }
            for m in 0..M {
                let unit = l.splat(sums_of[m][group].unit);
                of_span[m] = l.multiply_add(l.float(products[m]), unit, of_span[m]);
            }
        }
        let unit = l.load(&span.unit.0);
        for m in 0..M {
            let total = l.multiply_add(of_span[m], unit, l.load(&totals[m].0));
            l.store(total, &mut totals[m].0);
        }
        M
    }
}

/// Zeros.
#[inline(always)]
fn none<L: ByteLanes>(l: L) -> L::Integers {
    l.integers(l.load_64(&[0; 4 * LANES]))
}

/// The products of one row of activations with columns as they are unpacked, so that no quants go to memory. Sums are those of
/// [`IntegerProducts::rows`], in their order.
struct Alone<'a, L: ByteLanes> {
    x: &'a [[[i8; 4]; 8]; SPAN_GROUPS],
    sums_of: &'a [GroupSums; SPAN_GROUPS],
    /// Of each group of columns.
    products: [L::Integers; SPAN / 16],
    scales: [L::Floats; SPAN / 16],
    offsets: [L::Floats; SPAN / 16],
    /// Of [`ByteBlock::WHOLE_SCALES`], instead.
    whole_scales: [L::Integers; SPAN / 16],
    unit: L::Floats,
    total: L::Floats,
}

impl<'a, L: ByteLanes> Alone<'a, L> {
    #[inline(always)]
    fn new(l: L, x: &'a Rounded) -> Self {
        let (zero, none) = (l.splat(0.0), none(l));
        let (x, sums_of) = x.span(0, 0);
        Self {
            x,
            sums_of,
            products: [none; SPAN / 16],
            scales: [zero; SPAN / 16],
            offsets: [zero; SPAN / 16],
            whole_scales: [none; SPAN / 16],
            unit: zero,
            total: zero,
        }
    }

    /// Takes the activations of a span.
    #[inline(always)]
    fn begin(&mut self, l: L, (x, sums_of): SpanOf<'a>, total: &Vector<f32, LANES>) {
        (self.x, self.sums_of) = (x, sums_of);
        self.total = l.load(&total.0);
    }

    /// Adds the products of a group of columns.
    #[inline(always)]
    fn add<B: ByteBlock>(&self, l: L, group: usize, total: L::Floats) -> L::Floats {
        let of_32 = GROUP / B::GROUP;
        let sums = &self.sums_of[group / of_32];
        let scales = l.multiply(self.scales[group], l.splat(sums.unit));
        let total = l.multiply_add(l.float(self.products[group]), scales, total);
        if !B::OFFSETS {
            return total;
        }
        let of_x = if of_32 == 1 { sums.of_32 } else { sums.of_16[group % 2] };
        l.multiply_add(self.offsets[group], l.splat(of_x), total)
    }

    /// The total with so many groups of 32 columns.
    #[inline(always)]
    fn total<B: ByteBlock>(&self, l: L, groups: usize) -> Vector<f32, LANES> {
        let mut total = self.total;
        if B::WHOLE_SCALES {
            let mut of_span = l.splat(0.0);
            for group in 0..groups.min(SPAN_GROUPS) {
                let unit = l.splat(self.sums_of[group].unit);
                of_span = l.multiply_add(l.float(self.products[group]), unit, of_span);
            }
            total = l.multiply_add(of_span, self.unit, total);
        } else if !B::IN_ORDER {
            for group in 0..groups.min(SPAN_GROUPS) * (GROUP / B::GROUP) {
                total = self.add::<B>(l, group, total);
            }
        }
        let mut stored = Vector([0.0; LANES]);
        l.store(total, &mut stored.0);
        stored
    }
}

impl<L: ByteLanes> Unpacked<L> for Alone<'_, L> {
    #[inline(always)]
    fn quants<B: ByteBlock>(&mut self, l: L, column: usize, quants: [L::Bytes; 4]) {
        let (group, half) = (column / GROUP, column % GROUP / 16);
        let x = &self.x[group].as_chunks::<4>().0[half];
        if B::WHOLE_SCALES {
            let before = if half == 0 { none(l) } else { self.products[group] };
            let scales = self.whole_scales[2 * group + half];
            let start = self.sums_of[group].starts[half];
            self.products[group] = l.scaled_products(before, scales, &quants, x, start);
            return;
        }
        if B::GROUP < GROUP {
            self.products[2 * group + half] = l.products(&quants, x, B::QUANTS, 0);
            return;
        }
        if half == 0 {
            self.products[group] = l.products(&quants, x, B::QUANTS, self.sums_of[group].start);
            return;
        }
        let others = l.products(&quants, x, B::QUANTS, 0);
        self.products[group] = l.plus(self.products[group], others);
        if B::IN_ORDER {
            self.total = self.add::<B>(l, group, self.total);
        }
    }

    #[inline(always)]
    fn scales(&mut self, _: L, group: usize, scales: L::Floats, offsets: L::Floats) {
        self.scales[group] = scales;
        self.offsets[group] = offsets;
    }

    #[inline(always)]
    fn whole_scales(&mut self, _: L, group: usize, scales: L::Integers) {
        self.whole_scales[group] = scales;
    }

    #[inline(always)]
    fn unit(&mut self, _: L, unit: L::Floats) {
        self.unit = unit;
    }
}
