//! Four bytes of each of sixteen rows at a time: quants of a weight matrix, and their products with activations of eight bits. Sums
//! of products are whole numbers, the same with any instructions.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::{LANES, Lanes, Plain};
use crate::ahead::prefetch;

/// Bytes of a vector: four of each of [`LANES`] rows.
pub(crate) const BYTES: usize = 4 * LANES;

/// Numbers of one vector, where no load of it touches two cache lines.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Vector<T, const N: usize>(pub(crate) [T; N]);

/// What the quants of a format are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quants {
    /// Whether they are signed; they then come from [`ByteLanes::signed_quants`], and −128·Σ x goes with their products.
    pub(crate) signed: bool,
    /// The largest magnitude; other processors have no use for it.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) most: i32,
}

impl Quants {
    /// Six bits; 32 is taken from each.
    pub(crate) const SIX_BITS: Self = Self { signed: false, most: 63 };
}

/// −32·Σ x of sixteen activations: what products with [`Quants::SIX_BITS`] begin with, so that 32 is taken from each quant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Start {
    whole: i32,
    /// Over the first two of each four, and over the others.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pairs: [i16; 2],
}

impl Start {
    /// Of activations −127 … 127.
    #[inline(always)]
    pub(crate) fn of(x: &[[i8; 4]; 4]) -> Self {
        let mut pairs = [0i16; 2];
        for [a, b, c, d] in *x {
            pairs[0] += i16::from(a) + i16::from(b);
            pairs[1] += i16::from(c) + i16::from(d);
        }
        let pairs = pairs.map(|sum| -32 * sum);
        Self { whole: i32::from(pairs[0]) + i32::from(pairs[1]), pairs }
    }
}

/// Blocks of sixteen rows; offsets are within a block.
pub(crate) trait SixteenRows: Copy {
    /// Whether the blocks of one row lie together, apart from those of the next.
    const APART: bool;

    /// From a block on.
    fn from(self, block: usize) -> Self;
    /// Sixteen bytes of each row from an offset on, four in each vector.
    fn columns<L: ByteLanes>(self, l: L, block: usize, at: usize) -> [L::Bytes; 4];
    /// Four bytes of each row, as a whole number.
    fn words(self, block: usize, at: usize) -> [u32; LANES];
    /// Two bytes of each row, as a whole number.
    fn halves(self, block: usize, at: usize) -> [u32; LANES];
    /// One byte of each row.
    fn bytes(self, block: usize, at: usize) -> [u8; LANES];
}

/// Rows that follow each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowByRow<'a> {
    data: &'a [u8],
    stride: usize,
    /// Bytes of a row.
    bytes: usize,
    /// Bytes of a block.
    block_bytes: usize,
}

impl<'a> RowByRow<'a> {
    /// The first `bytes` of each row; rows begin `stride` bytes apart.
    ///
    /// # Panics
    /// If there are fewer bytes.
    #[inline(always)]
    pub(crate) fn new(data: &'a [u8], stride: usize, bytes: usize, block_bytes: usize) -> Self {
        assert!(stride >= bytes && data.len() >= (LANES - 1) * stride + bytes, "sixteen rows");
        Self { data, stride, bytes, block_bytes }
    }

    /// N bytes of one row from an offset on.
    #[inline(always)]
    pub(crate) fn part<const N: usize>(self, row: usize, at: usize) -> &'a [u8; N] {
        assert!(row < LANES && at + N <= self.bytes, "bytes of a row");
        // SAFETY: `new` made sure of `bytes` bytes in each of the rows; these are among them.
        unsafe { &*self.data.as_ptr().add(row * self.stride + at).cast() }
    }
}

impl SixteenRows for RowByRow<'_> {
    const APART: bool = true;

    #[inline(always)]
    fn from(self, block: usize) -> Self {
        let start = block * self.block_bytes;
        Self { data: &self.data[start..], bytes: self.bytes - start, ..self }
    }

    #[inline(always)]
    fn columns<L: ByteLanes>(self, l: L, block: usize, at: usize) -> [L::Bytes; 4] {
        l.columns(self, block * self.block_bytes + at)
    }

    #[inline(always)]
    fn words(self, block: usize, at: usize) -> [u32; LANES] {
        let mut words = [0; LANES];
        for (row, word) in words.iter_mut().enumerate() {
            *word = u32::from_le_bytes(*self.part(row, block * self.block_bytes + at));
        }
        words
    }

    #[inline(always)]
    fn halves(self, block: usize, at: usize) -> [u32; LANES] {
        let mut halves = [0; LANES];
        for (row, half) in halves.iter_mut().enumerate() {
            *half = u16::from_le_bytes(*self.part(row, block * self.block_bytes + at)).into();
        }
        halves
    }

    #[inline(always)]
    fn bytes(self, block: usize, at: usize) -> [u8; LANES] {
        let mut bytes = [0; LANES];
        for (row, byte) in bytes.iter_mut().enumerate() {
            [*byte] = *self.part(row, block * self.block_bytes + at);
        }
        bytes
    }
}

/// Rows that are interleaved, four bytes at a time: the first four of a block of each row, then the next four. What makes blocks no whole
/// number of fours is apart, block by block and row by row: the first bytes of a block of 32 elements, the last ones of one of 256.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WordByWord<'a> {
    /// `[blocks, block_bytes / 4, 16]` times four bytes.
    words: &'a [u8],
    /// `[blocks, 16]` times `block_bytes % 4` bytes.
    rest: &'a [u8],
    kind: BlockWords,
}

/// What of a block is in words, and in which order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockWords {
    /// Whole words.
    pub(crate) words: usize,
    /// Bytes that are in none.
    pub(crate) rest: usize,
    /// Where the words begin: behind the rest, or before it.
    pub(crate) first: usize,
    pub(crate) order: WordOrder,
}

/// The order of the words of a block: that in which products read them, so that memory is read in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WordOrder {
    /// As in the file.
    File,
    /// That of Q6_K: scales, then each four words of high bits and the eight of low bits that belong to them.
    Q6K,
}

impl BlockWords {
    /// Of a block of so many elements and bytes.
    #[inline(always)]
    pub(crate) const fn new(elements: usize, bytes: usize, order: WordOrder) -> Self {
        let rest = bytes % 4;
        Self { words: bytes / 4, rest, first: if elements == 32 { rest } else { 0 }, order }
    }

    /// Where the rest begins.
    #[inline(always)]
    pub(crate) const fn rest_at(self) -> usize {
        if self.first > 0 { 0 } else { 4 * self.words }
    }

    /// The place of a word of the file; four words from a multiple of four on stay together.
    #[inline(always)]
    pub(crate) const fn place(self, word: usize) -> usize {
        match self.order {
            WordOrder::File => word,
            // Low bits of 128 columns: words 16·half + 8·behind + 4·part; high ones: 32 + 8·half + 4·part.
            WordOrder::Q6K if word < 32 => {
                let (half, part, behind) = (word / 16, word / 4 % 2, word / 8 % 2);
                8 + 12 * (2 * half + part) + 4 * behind + word % 4
            }
            WordOrder::Q6K if word < 48 => 4 + 12 * ((word - 32) / 4) + word % 4,
            WordOrder::Q6K => word - 48,
        }
    }

    /// The word at a place: of which [`Self::place`] is the place.
    pub(crate) const fn word(self, place: usize) -> usize {
        match self.order {
            WordOrder::File => place,
            WordOrder::Q6K if place < 4 => 48 + place,
            WordOrder::Q6K => {
                let (group, at) = ((place - 4) / 12, (place - 4) % 12);
                match at / 4 {
                    0 => 32 + 4 * group + at,
                    fours => 16 * (group / 2) + 8 * (fours - 1) + 4 * (group % 2) + at % 4,
                }
            }
        }
    }
}

impl<'a> WordByWord<'a> {
    /// Sixteen rows of so many blocks each.
    ///
    /// # Panics
    /// If there are fewer bytes.
    #[inline(always)]
    pub(crate) fn new(data: &'a [u8], blocks: usize, kind: BlockWords) -> Self {
        let (words, rest) = data.split_at(blocks * kind.words * BYTES);
        Self { words, rest: &rest[..blocks * kind.rest * LANES], kind }
    }

    /// Four bytes of each row, N times.
    #[inline(always)]
    fn vectors<const N: usize>(self, block: usize, at: usize) -> &'a [[u8; BYTES]] {
        let start = (block * self.kind.words + self.kind.place((at - self.kind.first) / 4)) * BYTES;
        self.words[start..start + N * BYTES].as_chunks().0
    }

    /// Asks for the rest of the blocks of rows that begin so many bytes behind these: it is needed from their first block on, before what
    /// is asked for in order gets there.
    #[inline(always)]
    pub(crate) fn ask_rest(self, behind: usize) {
        prefetch::<true, u8>(self.rest.as_ptr().wrapping_add(behind), self.rest.len());
    }

    /// The rest of a block of each row.
    #[inline(always)]
    fn rest_of(self, block: usize) -> &'a [u8] {
        let bytes = self.kind.rest * LANES;
        &self.rest[block * bytes..][..bytes]
    }
}

impl SixteenRows for WordByWord<'_> {
    const APART: bool = false;

    #[inline(always)]
    fn from(self, block: usize) -> Self {
        let Self { words, rest, kind } = self;
        let (words, rest) = (&words[block * kind.words * BYTES..], &rest[block * kind.rest * LANES..]);
        Self { words, rest, kind }
    }

    #[inline(always)]
    fn columns<L: ByteLanes>(self, l: L, block: usize, at: usize) -> [L::Bytes; 4] {
        let four = self.vectors::<4>(block, at);
        [l.load_64(&four[0]), l.load_64(&four[1]), l.load_64(&four[2]), l.load_64(&four[3])]
    }

    #[inline(always)]
    fn words(self, block: usize, at: usize) -> [u32; LANES] {
        let mut words = [0; LANES];
        for (word, bytes) in words.iter_mut().zip(self.vectors::<1>(block, at)[0].as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        words
    }

    #[inline(always)]
    fn halves(self, block: usize, _: usize) -> [u32; LANES] {
        let mut halves = [0; LANES];
        for (half, bytes) in halves.iter_mut().zip(self.rest_of(block).as_chunks().0) {
            *half = u16::from_le_bytes(*bytes).into();
        }
        halves
    }

    #[inline(always)]
    fn bytes(self, block: usize, _: usize) -> [u8; LANES] {
        *self.rest_of(block).first_chunk().unwrap_or(&[0; LANES])
    }
}

/// Vector instructions on four bytes of each of sixteen rows.
pub(crate) trait ByteLanes: Lanes {
    /// Four u8 or i8 of each row, row by row.
    type Bytes: Copy;

    fn load_64(self, bytes: &[u8; BYTES]) -> Self::Bytes;
    fn store_64(self, bytes: Self::Bytes, to: &mut [u8; BYTES]);
    /// Sixteen bytes of each row from an offset on, four in each vector.
    fn columns(self, rows: RowByRow<'_>, at: usize) -> [Self::Bytes; 4];
    /// Each byte shifted right and masked; the mask has no bit that another byte's bits are shifted to.
    fn bits(self, a: Self::Bytes, right: u32, mask: u8) -> Self::Bytes;
    /// Of bytes that lose no bits.
    fn shift_64_left<const BITS: u32>(self, a: Self::Bytes) -> Self::Bytes;
    fn or_64(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Entries of a table; indices are below sixteen.
    fn entries_of(self, table: &[i8; 16], indices: Self::Bytes) -> Self::Bytes;
    /// `value` for each of four bits of a row's number from bit `first` on that is set, else 0; `first` is a multiple of four.
    fn where_bits(self, numbers: &[u32; LANES], first: u32, value: u8) -> Self::Bytes;
    /// A row's four bytes as one number.
    fn integers(self, a: Self::Bytes) -> Self::Integers;
    /// One of the four bytes of each number, signed: shifted left by so many bits it is the highest.
    fn signed_byte<const LEFT: u32>(self, a: Self::Integers) -> Self::Integers;
    /// The low and the high half of each number as f16.
    fn two_halves_each(self, numbers: &[u32; LANES]) -> [Self::Floats; 2];
    fn plus(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Signed quants as [`Self::products`] takes them.
    fn signed_quants(self, w: Self::Bytes) -> Self::Bytes;
    /// Σ w·x of each row; x is −127 … 127.
    fn products<const N: usize>(
        self,
        w: &[Self::Bytes; N],
        x: &[[i8; 4]; N],
        quants: Quants,
        start: i32,
    ) -> Self::Integers;
    /// A number's bytes, row by row.
    fn bytes(self, a: Self::Integers) -> Self::Bytes;
    /// sums + scales·(products + start).
    fn plus_scaled(
        self,
        sums: Self::Integers,
        scales: Self::Integers,
        products: Self::Integers,
        start: i32,
    ) -> Self::Integers;
    /// [`Self::signed_byte`] as [`Self::scaled_products`] takes it.
    #[inline(always)]
    fn scale_byte<const LEFT: u32>(self, a: Self::Integers) -> Self::Integers {
        self.signed_byte::<LEFT>(a)
    }
    /// Adds scale·Σ (w − 32)·x of each row, of [`Quants::SIX_BITS`].
    #[inline(always)]
    fn scaled_products(
        self,
        sums: Self::Integers,
        scales: Self::Integers,
        w: &[Self::Bytes; 4],
        x: &[[i8; 4]; 4],
        start: Start,
    ) -> Self::Integers {
        let products = self.products(w, x, Quants::SIX_BITS, 0);
        self.plus_scaled(sums, scales, products, start.whole)
    }
    /// [`Self::scaled_products`] of the same w with M rows of activations.
    #[inline(always)]
    fn scaled_products_of_rows<const M: usize>(
        self,
        mut sums: [Self::Integers; M],
        scales: Self::Integers,
        w: &[Vector<u8, BYTES>; 4],
        x: [&[[i8; 4]; 4]; M],
        starts: [Start; M],
    ) -> [Self::Integers; M] {
        let products = self.products_of_rows(w, x, Quants::SIX_BITS, [0; M]);
        for m in 0..M {
            sums[m] = self.plus_scaled(sums[m], scales, products[m], starts[m].whole);
        }
        sums
    }
    /// How many rows of activations to multiply together: as many as registers hold the sums of; 2, 4 or 8.
    #[inline(always)]
    fn rows_at_once(self, _: Quants) -> usize {
        8
    }
    /// [`Self::products`] of the same w with M rows of activations, with a start of each.
    #[inline(always)]
    fn products_of_rows<const M: usize, const N: usize>(
        self,
        w: &[Vector<u8, BYTES>; N],
        x: [&[[i8; 4]; N]; M],
        quants: Quants,
        starts: [i32; M],
    ) -> [Self::Integers; M] {
        row_by_row(self, w, x, quants, starts)
    }
}

/// [`ByteLanes::products_of_rows`] by [`ByteLanes::products`].
#[inline(always)]
fn row_by_row<L: ByteLanes, const M: usize, const N: usize>(
    l: L,
    w: &[Vector<u8, BYTES>; N],
    x: [&[[i8; 4]; N]; M],
    quants: Quants,
    starts: [i32; M],
) -> [L::Integers; M] {
    let mut loaded = [l.load_64(&w[0].0); N];
    for i in 1..N {
        loaded[i] = l.load_64(&w[i].0);
    }
    let mut products = [l.products(&loaded, x[0], quants, starts[0]); M];
    for m in 1..M {
        products[m] = l.products(&loaded, x[m], quants, starts[m]);
    }
    products
}

impl ByteLanes for Plain {
    type Bytes = [u8; BYTES];

    #[inline(always)]
    fn load_64(self, bytes: &[u8; BYTES]) -> [u8; BYTES] {
        *bytes
    }

    #[inline(always)]
    fn store_64(self, bytes: [u8; BYTES], to: &mut [u8; BYTES]) {
        *to = bytes;
    }

    #[inline(always)]
    fn columns(self, rows: RowByRow<'_>, at: usize) -> [[u8; BYTES]; 4] {
        std::array::from_fn(|column| {
            std::array::from_fn(|i| rows.part::<1>(i / 4, at + 4 * column + i % 4)[0])
        })
    }

    #[inline(always)]
    fn bits(self, a: [u8; BYTES], right: u32, mask: u8) -> [u8; BYTES] {
        a.map(|byte| byte >> right & mask)
    }

    #[inline(always)]
    fn shift_64_left<const BITS: u32>(self, a: [u8; BYTES]) -> [u8; BYTES] {
        a.map(|byte| byte << BITS)
    }

    #[inline(always)]
    fn or_64(self, a: [u8; BYTES], b: [u8; BYTES]) -> [u8; BYTES] {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn entries_of(self, table: &[i8; 16], indices: [u8; BYTES]) -> [u8; BYTES] {
        indices.map(|index| table[usize::from(index)] as u8)
    }

    #[inline(always)]
    fn where_bits(self, numbers: &[u32; LANES], first: u32, value: u8) -> [u8; BYTES] {
        std::array::from_fn(|i| (numbers[i / 4] >> (first + i as u32 % 4) & 1) as u8 * value)
    }

    #[inline(always)]
    fn integers(self, a: [u8; BYTES]) -> [i32; LANES] {
        std::array::from_fn(|i| i32::from_le_bytes(std::array::from_fn(|j| a[4 * i + j])))
    }

    #[inline(always)]
    fn signed_byte<const LEFT: u32>(self, a: [i32; LANES]) -> [i32; LANES] {
        a.map(|number| number << LEFT >> 24)
    }

    #[inline(always)]
    fn two_halves_each(self, numbers: &[u32; LANES]) -> [[f32; LANES]; 2] {
        [
            numbers.map(|number| super::half(number as u16)),
            numbers.map(|number| super::half((number >> 16) as u16)),
        ]
    }

    #[inline(always)]
    fn plus(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(always)]
    fn bytes(self, a: [i32; LANES]) -> [u8; BYTES] {
        bytemuck::cast(a.map(i32::to_le))
    }

    #[inline(always)]
    fn plus_scaled(
        self,
        sums: [i32; LANES],
        scales: [i32; LANES],
        products: [i32; LANES],
        start: i32,
    ) -> [i32; LANES] {
        std::array::from_fn(|i| sums[i].wrapping_add(scales[i].wrapping_mul(products[i].wrapping_add(start))))
    }

    #[inline(always)]
    fn signed_quants(self, w: [u8; BYTES]) -> [u8; BYTES] {
        w
    }

    #[inline(always)]
    fn products<const N: usize>(
        self,
        w: &[[u8; BYTES]; N],
        x: &[[i8; 4]; N],
        quants: Quants,
        _: i32,
    ) -> [i32; LANES] {
        let quant = |byte: u8| if quants.signed { i32::from(byte as i8) } else { i32::from(byte) };
        let mut sums = [0; LANES];
        for (w, x) in w.iter().zip(x) {
            for (i, sum) in sums.iter_mut().enumerate() {
                for j in 0..4 {
                    *sum += quant(w[4 * i + j]) * i32::from(x[j]);
                }
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn floats<L: Lanes>(l: L, x: L::Floats) -> [u32; LANES] {
        let mut to = [0.0; LANES];
        l.store(x, &mut to);
        to.map(f32::to_bits)
    }

    fn stored<L: ByteLanes>(l: L, x: L::Bytes) -> [u8; BYTES] {
        let mut to = [0; BYTES];
        l.store_64(x, &mut to);
        to
    }

    /// Σ w·x, with quants of `data`.
    fn products<L: ByteLanes, const N: usize>(
        l: L,
        quants: Quants,
        data: &[u8],
        x: &[[i8; 4]; N],
    ) -> [u32; LANES] {
        let start = |x: &[[i8; 4]; N]| -128 * x.iter().flatten().map(|&x| i32::from(x)).sum::<i32>();
        let mut w = [l.load_64(&[0; BYTES]); N];
        for (w, bytes) in w.iter_mut().zip(data.as_chunks::<BYTES>().0) {
            let bytes = bytes.map(|byte| match quants.signed {
                true => (i32::from(byte as i8) % (quants.most + 1)) as u8,
                false => byte % (quants.most + 1) as u8,
            });
            *w = l.load_64(&bytes);
            if quants.signed {
                *w = l.signed_quants(*w);
            }
        }
        let stored = w.map(|w| Vector(stored(l, w)));
        let alone = |x| floats(l, l.float(l.products(&w, x, quants, start(x))));
        let others: [[[i8; 4]; N]; 8] =
            std::array::from_fn(|m| x.map(|x| x.map(|x| x / (m as i8 + 1) * [1, -1][m % 2])));
        macro_rules! together {
            ($M:literal) => {{
                let x: [&[[i8; 4]; N]; $M] = std::array::from_fn(|m| &others[m]);
                let products = l.products_of_rows(&stored, x, quants, x.map(start));
                assert_eq!(
                    products.map(|products| floats(l, l.float(products))),
                    x.map(alone),
                    "{} rows",
                    $M
                );
            }};
        }
        together!(1);
        together!(2);
        together!(4);
        together!(8);
        alone(x)
    }

    /// Sums of [`ByteLanes::scaled_products`], with bytes of `data` as quants and scales.
    fn scaled<L: ByteLanes>(l: L, data: &[u8], x: &[[i8; 4]; 4]) -> [u32; LANES] {
        let mut w = [l.load_64(&[0; BYTES]); 4];
        for (w, bytes) in w.iter_mut().zip(data.as_chunks::<BYTES>().0) {
            *w = l.load_64(&bytes.map(|byte| byte % 64));
        }
        let scales = l.integers(l.load_64(data[333..].first_chunk().expect("a vector")));
        let (first, second) = (l.scale_byte::<16>(scales), l.scale_byte::<0>(scales));
        let alone = |x: &[[i8; 4]; 4]| {
            let sums = l.integers(l.load_64(&[0; BYTES]));
            let sums = l.scaled_products(sums, first, &w, x, Start::of(x));
            stored(l, l.bytes(l.scaled_products(sums, second, &w, x, Start::of(x))))
        };
        let vectors = w.map(|w| Vector(stored(l, w)));
        let others: [[[i8; 4]; 4]; 8] =
            std::array::from_fn(|m| x.map(|x| x.map(|x| x / (m as i8 + 1) * [1, -1][m % 2])));
        macro_rules! together {
            ($M:literal) => {{
                let x: [&[[i8; 4]; 4]; $M] = std::array::from_fn(|m| &others[m]);
                let sums = [l.integers(l.load_64(&[0; BYTES])); $M];
                let sums = l.scaled_products_of_rows(sums, first, &vectors, x, x.map(Start::of));
                let sums = l.scaled_products_of_rows(sums, second, &vectors, x, x.map(Start::of));
                assert_eq!(sums.map(|sums| stored(l, l.bytes(sums))), x.map(alone), "{} rows", $M);
            }};
        }
        together!(1);
        together!(2);
        together!(4);
        together!(8);
        bytemuck::cast(alone(x))
    }

    /// Every operation yields the same bits as the plain one.
    fn equals_plain<L: ByteLanes>(l: L, data: &[u8; 1024]) {
        let a: [u8; BYTES] = std::array::from_fn(|i| data[i]);
        let b: [u8; BYTES] = std::array::from_fn(|i| data[64 + i]);
        let numbers: [u32; LANES] =
            std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|j| data[128 + 4 * i + j])));
        let rows = RowByRow::new(data, 61, 40, 40);
        macro_rules! same {
            ($lanes:ident, $of:ident => $made:expr) => {{
                let actual = {
                    let $lanes = l;
                    $of($lanes, $made)
                };
                let $lanes = Plain;
                assert_eq!(actual, $of($lanes, $made), "{}", stringify!($made));
            }};
        }
        same!(p, stored => p.load_64(&a));
        for column in 0..4 {
            same!(p, stored => p.columns(rows, 3)[column]);
            same!(p, stored => p.columns(rows, 24)[column]);
        }
        for right in [0, 1, 4, 6] {
            same!(p, stored => p.bits(p.load_64(&a), right, 3));
        }
        same!(p, stored => p.or_64(p.load_64(&a), p.load_64(&b)));
        same!(p, stored => p.shift_64_left::<4>(p.bits(p.load_64(&a), 0, 15)));
        let table: [i8; 16] = std::array::from_fn(|i| b[3 + i] as i8);
        same!(p, stored => p.entries_of(&table, p.bits(p.load_64(&a), 4, 15)));
        for first in (0..32).step_by(4) {
            same!(p, stored => p.where_bits(&numbers, first, 16));
        }
        same!(p, floats => p.float(p.integers(p.load_64(&a))));
        same!(p, floats => p.float(p.signed_byte::<8>(p.integers(p.load_64(&a)))));
        same!(p, floats => p.float(p.plus(p.integers(p.load_64(&a)), p.integers(p.bits(p.load_64(&b), 2, 1)))));
        let finite = numbers.map(|number| number & 0xbbff_bbff);
        same!(p, floats => p.two_halves_each(&finite)[0]);
        same!(p, floats => p.two_halves_each(&finite)[1]);
        let x: [[i8; 4]; 8] =
            std::array::from_fn(|i| std::array::from_fn(|j| (data[700 + 4 * i + j] as i8).max(-127)));
        let extreme = x.map(|x| x.map(|x| if x < 0 { -127 } else { 127 }));
        for x in [&x, &extreme] {
            for (signed, most) in
                [(false, 3), (false, 15), (false, 31), (false, 63), (true, 12), (true, 127), (true, 128)]
            {
                let quants = Quants { signed, most };
                assert_eq!(products(l, quants, data, x), products(Plain, quants, data, x));
                let x: &[_; 4] = x.first_chunk().expect("four of eight");
                assert_eq!(products(l, quants, data, x), products(Plain, quants, data, x));
            }
            let x: &[_; 4] = x.first_chunk().expect("four of eight");
            for data in [data, &[0; 1024], &[63; 1024]] {
                assert_eq!(scaled(l, data, x), scaled(Plain, data, x));
            }
        }
    }

    #[test]
    fn every_word_of_a_block_has_a_place_of_its_own() {
        for (elements, bytes, order) in [(32, 34, WordOrder::File), (256, 210, WordOrder::Q6K)] {
            let kind = BlockWords::new(elements, bytes, order);
            let mut places: Vec<usize> = (0..kind.words).map(|word| kind.place(word)).collect();
            assert!(places.iter().enumerate().all(|(word, &place)| kind.word(place) == word));
            places.sort_unstable();
            assert!(places.into_iter().eq(0..kind.words));
        }
    }

    proptest! {
        #[test]
        fn vector_instructions_equal_the_plain_ones(seed in prop::array::uniform32(any::<u8>())) {
            let data: [u8; 1024] = std::array::from_fn(|i| {
                seed[i % 32].wrapping_mul(1 + (i / 32 * 2) as u8).wrapping_add((i / 64 * 97) as u8)
            });
            #[cfg(target_arch = "aarch64")]
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                equals_plain(super::super::Neon::<true>, &data);
                if std::arch::is_aarch64_feature_detected!("i8mm") {
                    equals_plain(super::super::Neon::<true, true>, &data);
                }
            }
            #[cfg(target_arch = "x86_64")]
            {
                use super::super::{Avx2, Avx512};
                if let Some(lanes) = Avx2::<false>::try_new() {
                    equals_plain(lanes, &data);
                }
                if let Some(lanes) = Avx2::<true>::try_new() {
                    equals_plain(lanes, &data);
                }
                if let Some(simd) = pulp::x86::V4::try_new()
                    && std::arch::is_x86_feature_detected!("avx512vnni")
                {
                    equals_plain(Avx512::<true>(simd), &data);
                }
            }
        }
    }
}
