//! How the elements of a weight matrix are stored: floats and the block types of GGUF.
//!
//! Layouts are those of ggml (`ggml-common.h`); each function below unpacks one block, sixteen elements at a time.

use crate::lanes::{LANES, Lanes, Plain};
use half::{bf16, f16};

/// An element or block type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Elements of a block, and its bytes.
    pub const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q2K => (256, 84),
            Self::Q3K => (256, 110),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
        }
    }

    /// Bytes of `columns` elements, which must be whole blocks.
    pub const fn bytes(self, columns: usize) -> usize {
        let (elements, bytes) = self.block();
        columns / elements * bytes
    }

    /// Whether elements are packed into blocks with common scales.
    pub const fn is_quantized(self) -> bool {
        self.block().0 > 1
    }

    /// Turns whole blocks into f32.
    ///
    /// # Panics
    /// If `output` is not as long as `blocks` say.
    pub fn dequantize(self, blocks: &[u8], output: &mut [f32]) {
        self.dequantize_with(Plain, blocks, output);
    }

    #[inline(always)]
    pub(super) fn dequantize_with<L: Lanes>(self, lanes: L, blocks: &[u8], output: &mut [f32]) {
        assert_eq!(output.len() * self.block().1, blocks.len() * self.block().0, "blocks and elements");
        let (whole, rest) = output.as_chunks_mut::<LANES>();
        let elements = whole.len() * LANES;
        let mut store = Store { lanes, output: whole };
        self.unpack(lanes, blocks, elements, &mut store);
        // Only floats have lengths that are no multiple of sixteen.
        for (y, bytes) in rest.iter_mut().zip(blocks[self.bytes(elements)..].chunks(self.block().1)) {
            *y = self.float(bytes);
        }
    }

    /// Σ w_i·x_i over the elements of whole blocks.
    #[inline(always)]
    pub(super) fn dot<L: Lanes>(self, lanes: L, blocks: &[u8], x: &[f32]) -> f32 {
        let (whole, rest) = x.as_chunks::<LANES>();
        let elements = whole.len() * LANES;
        let mut dot = Dot { lanes, x: whole, sums: [lanes.splat(0.0); 4] };
        self.unpack(lanes, blocks, elements, &mut dot);
        let [a, b, c, d] = dot.sums;
        let sum = lanes.sum(lanes.add(lanes.add(a, b), lanes.add(c, d)));
        let bytes = blocks[self.bytes(elements)..].chunks(self.block().1);
        sum + rest.iter().zip(bytes).map(|(x, bytes)| x * self.float(bytes)).sum::<f32>()
    }

    /// The float of these bytes; 0 for formats that are no floats.
    fn float(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Self::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (Self::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            _ => 0.0,
        }
    }

    /// Hands over the first `elements`, sixteen at a time.
    #[inline(always)]
    fn unpack<L: Lanes>(self, l: L, blocks: &[u8], elements: usize, sink: &mut impl Sink<L>) {
        let blocks = &blocks[..self.bytes(elements)];
        assert!(elements <= sink.groups() * LANES, "room for every element");
        // Not a closure, which would be compiled without the vector instructions of its surroundings.
        macro_rules! each {
            ($bytes:literal, $per_block:literal, $at:ident, $block:ident => $unpack:expr) => {
                for (index, $block) in blocks.as_chunks::<$bytes>().0.iter().enumerate() {
                    let $at = index * $per_block;
                    // SAFETY: block by block there are no more than `elements`, for which there is room.
                    unsafe { $unpack };
                }
            };
        }
        match self {
            Self::F32 => each!(64, 1, at, b => sink.take(at, 0, l.from_f32(b))),
            Self::F16 => each!(32, 1, at, b => sink.take(at, 0, l.from_f16(b))),
            Self::BF16 => each!(32, 1, at, b => sink.take(at, 0, l.from_bf16(b))),
            Self::Q4_0 => each!(18, 2, at, b => q4_0(l, b, at, sink)),
            Self::Q4_1 => each!(20, 2, at, b => q4_1(l, b, at, sink)),
            Self::Q5_0 => each!(22, 2, at, b => q5_0(l, b, at, sink)),
            Self::Q5_1 => each!(24, 2, at, b => q5_1(l, b, at, sink)),
            Self::Q8_0 => each!(34, 2, at, b => q8_0(l, b, at, sink)),
            Self::Q2K => each!(84, 16, at, b => q2_k(l, b, at, sink)),
            Self::Q3K => each!(110, 16, at, b => q3_k(l, b, at, sink)),
            Self::Q4K => each!(144, 16, at, b => q4_k(l, b, at, sink)),
            Self::Q5K => each!(176, 16, at, b => q5_k(l, b, at, sink)),
            Self::Q6K => each!(210, 16, at, b => q6_k(l, b, at, sink)),
        }
    }
}

/// Where unpacked elements go.
trait Sink<L: Lanes> {
    /// Groups of sixteen that there is room for.
    fn groups(&self) -> usize;

    /// Group `first + within`; `within` is known when compiling, which lets sums stay in registers.
    ///
    /// # Safety
    /// The group is one of [`Sink::groups`].
    unsafe fn take(&mut self, first: usize, within: usize, values: L::Floats);
}

struct Store<'a, L> {
    lanes: L,
    output: &'a mut [[f32; LANES]],
}

impl<L: Lanes> Sink<L> for Store<'_, L> {
    #[inline(always)]
    fn groups(&self) -> usize {
        self.output.len()
    }

    #[inline(always)]
    unsafe fn take(&mut self, first: usize, within: usize, values: L::Floats) {
        // SAFETY: the caller's promise.
        self.lanes.store(values, unsafe { self.output.get_unchecked_mut(first + within) });
    }
}

struct Dot<'a, L: Lanes> {
    lanes: L,
    x: &'a [[f32; LANES]],
    sums: [L::Floats; 4],
}

impl<L: Lanes> Sink<L> for Dot<'_, L> {
    #[inline(always)]
    fn groups(&self) -> usize {
        self.x.len()
    }

    #[inline(always)]
    unsafe fn take(&mut self, first: usize, within: usize, values: L::Floats) {
        // SAFETY: the caller's promise.
        let x = self.lanes.load(unsafe { self.x.get_unchecked(first + within) });
        self.sums[within % 4] = self.lanes.multiply_add(values, x, self.sums[within % 4]);
    }
}

// SAFETY of every block below: `at` is the first group of a block, and all of its groups are among the sink's.

/// The N bytes at an offset.
#[inline(always)]
fn bytes<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    // Offsets are constants within blocks of known size: there always are N bytes.
    match block[at..].first_chunk() {
        Some(bytes) => bytes,
        None => &[0; N],
    }
}

/// The f16 at an offset.
#[inline(always)]
fn half<L: Lanes>(l: L, block: &[u8], at: usize) -> f32 {
    l.half(u16::from_le_bytes(*bytes(block, at)))
}

/// q·d + m
#[inline(always)]
fn scaled<L: Lanes>(l: L, q: L::Integers, d: L::Floats, m: L::Floats) -> L::Floats {
    l.multiply_add(l.float(q), d, m)
}

/// 32 elements of four bits: low ones first.
#[inline(always)]
fn nibbles<L: Lanes>(l: L, packed: &[u8; 16]) -> [L::Integers; 2] {
    let both = l.unsigned(packed);
    [l.and(both, 15), l.shift_right::<4>(both)]
}

/// The same with a fifth bit for each.
#[inline(always)]
fn five_bits<L: Lanes>(l: L, packed: &[u8; 16], high: u32) -> [L::Integers; 2] {
    let [low, upper] = nibbles(l, packed);
    [l.or(low, l.where_set(high as u16, 16)), l.or(upper, l.where_set((high >> 16) as u16, 16))]
}

#[inline(always)]
unsafe fn take_two<L: Lanes>(
    l: L,
    q: [L::Integers; 2],
    [d, m]: [f32; 2],
    at: usize,
    within: usize,
    sink: &mut impl Sink<L>,
) {
    let (d, m) = (l.splat(d), l.splat(m));
    // SAFETY: the caller's promise.
    unsafe {
        sink.take(at, within, scaled(l, q[0], d, m));
        sink.take(at, within + 1, scaled(l, q[1], d, m));
    }
}

#[inline(always)]
unsafe fn q4_0<L: Lanes>(l: L, block: &[u8; 18], at: usize, sink: &mut impl Sink<L>) {
    let d = half(l, block, 0);
    unsafe { take_two(l, nibbles(l, bytes(block, 2)), [d, -8.0 * d], at, 0, sink) };
}

#[inline(always)]
unsafe fn q4_1<L: Lanes>(l: L, block: &[u8; 20], at: usize, sink: &mut impl Sink<L>) {
    unsafe { take_two(l, nibbles(l, bytes(block, 4)), [half(l, block, 0), half(l, block, 2)], at, 0, sink) };
}

#[inline(always)]
unsafe fn q5_0<L: Lanes>(l: L, block: &[u8; 22], at: usize, sink: &mut impl Sink<L>) {
    let d = half(l, block, 0);
    let quants = five_bits(l, bytes(block, 6), u32::from_le_bytes(*bytes(block, 2)));
    unsafe { take_two(l, quants, [d, -16.0 * d], at, 0, sink) };
}

#[inline(always)]
unsafe fn q5_1<L: Lanes>(l: L, block: &[u8; 24], at: usize, sink: &mut impl Sink<L>) {
    let quants = five_bits(l, bytes(block, 8), u32::from_le_bytes(*bytes(block, 4)));
    unsafe { take_two(l, quants, [half(l, block, 0), half(l, block, 2)], at, 0, sink) };
}

#[inline(always)]
unsafe fn q8_0<L: Lanes>(l: L, block: &[u8; 34], at: usize, sink: &mut impl Sink<L>) {
    let d = l.splat(half(l, block, 0));
    for part in 0..2 {
        unsafe { sink.take(at, part, l.multiply(l.float(l.signed(bytes(block, 2 + 16 * part))), d)) };
    }
}

/// Two bits of each byte.
#[inline(always)]
fn two_bits<L: Lanes>(l: L, packed: &[u8; 16], pair: usize) -> L::Integers {
    let q = l.unsigned(packed);
    let shifted = match pair {
        0 => q,
        1 => l.shift_right::<2>(q),
        2 => l.shift_right::<4>(q),
        _ => l.shift_right::<6>(q),
    };
    l.and(shifted, 3)
}

#[inline(always)]
unsafe fn q2_k<L: Lanes>(l: L, block: &[u8; 84], at: usize, sink: &mut impl Sink<L>) {
    let (d, minimum) = (half(l, block, 80), half(l, block, 82));
    for group in 0..16 {
        // Eight groups of 16 share 32 bytes: two groups for each pair of bits.
        let start = 16 + group / 8 * 32 + group % 2 * 16;
        let quants = two_bits(l, bytes(block, start), group % 8 / 2);
        let (scale, offset) = (d * f32::from(block[group] & 15), minimum * f32::from(block[group] >> 4));
        unsafe { sink.take(at, group, scaled(l, quants, l.splat(scale), l.splat(-offset))) };
    }
}

#[inline(always)]
unsafe fn q3_k<L: Lanes>(l: L, block: &[u8; 110], at: usize, sink: &mut impl Sink<L>) {
    let (d, packed) = (half(l, block, 108), &block[96..108]);
    for group in 0..16 {
        let half_block = group / 8;
        let low = if group < 8 { packed[group] & 15 } else { packed[group - 8] >> 4 };
        let upper = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = d * (i32::from(low | upper << 4) - 32) as f32;
        let quants = two_bits(l, bytes(block, 32 + half_block * 32 + group % 2 * 16), group % 8 / 2);
        // One bit of each of 32 bytes: a third bit for each element.
        let high = bytes::<16>(block, group % 2 * 16);
        let bit = 1u8 << (half_block * 4 + group % 8 / 2);
        let mut bits = 0;
        for (i, byte) in high.iter().enumerate() {
            bits |= u16::from(byte & bit != 0) << i;
        }
        let quants = l.or(quants, l.where_set(bits, 4));
        unsafe { sink.take(at, group, scaled(l, quants, l.splat(scale), l.splat(-4.0 * scale))) };
    }
}

/// Scales and negative minima of the eight groups of a Q4_K or Q5_K block: six bits each, packed into twelve bytes.
#[inline(always)]
fn scales_and_minima<L: Lanes>(l: L, block: &[u8]) -> [[f32; 2]; 8] {
    let (d, minimum) = (half(l, block, 0), half(l, block, 2));
    let word = |at: usize| u32::from_le_bytes(*bytes(block, at));
    let (low, middle, high) = (word(4), word(8), word(12));
    // Four bytes at a time: groups 0 … 3 whole, groups 4 … 7 from four low bits and two high ones.
    let scales = [low & 0x3f3f_3f3f, high & 0x0f0f_0f0f | (low >> 6 & 0x0303_0303) << 4];
    let minima = [middle & 0x3f3f_3f3f, high >> 4 & 0x0f0f_0f0f | (middle >> 6 & 0x0303_0303) << 4];
    let mut unpacked = [[0.0; 2]; 8];
    for (group, [scale, offset]) in unpacked.iter_mut().enumerate() {
        let shift = 8 * (group % 4);
        *scale = d * (scales[group / 4] >> shift & 255) as f32;
        *offset = -minimum * (minima[group / 4] >> shift & 255) as f32;
    }
    unpacked
}

#[inline(always)]
unsafe fn q4_k<L: Lanes>(l: L, block: &[u8; 144], at: usize, sink: &mut impl Sink<L>) {
    let scales = scales_and_minima(l, block);
    for pair in 0..4 {
        let start = 16 + 32 * pair;
        let [a, b] = [nibbles(l, bytes(block, start)), nibbles(l, bytes(block, start + 16))];
        unsafe { take_two(l, [a[0], b[0]], scales[2 * pair], at, 4 * pair, sink) };
        unsafe { take_two(l, [a[1], b[1]], scales[2 * pair + 1], at, 4 * pair + 2, sink) };
    }
}

#[inline(always)]
unsafe fn q5_k<L: Lanes>(l: L, block: &[u8; 176], at: usize, sink: &mut impl Sink<L>) {
    let scales = scales_and_minima(l, block);
    let mut high = [l.unsigned(bytes(block, 16)), l.unsigned(bytes(block, 32))];
    for pair in 0..4 {
        let start = 48 + 32 * pair;
        let [a, b] = [nibbles(l, bytes(block, start)), nibbles(l, bytes(block, start + 16))];
        let (mut first, mut second) = ([a[0], b[0]], [a[1], b[1]]);
        for part in 0..2 {
            first[part] = l.or(first[part], l.shift_left::<4>(l.and(high[part], 1)));
            second[part] = l.or(second[part], l.shift_left::<3>(l.and(high[part], 2)));
            high[part] = l.shift_right::<2>(high[part]);
        }
        unsafe { take_two(l, first, scales[2 * pair], at, 4 * pair, sink) };
        unsafe { take_two(l, second, scales[2 * pair + 1], at, 4 * pair + 2, sink) };
    }
}

#[inline(always)]
unsafe fn q6_k<L: Lanes>(l: L, block: &[u8; 210], at: usize, sink: &mut impl Sink<L>) {
    let d = half(l, block, 208);
    for half_block in 0..2 {
        for part in 0..2 {
            let start = 64 * half_block + 16 * part;
            let [a, b] = [nibbles(l, bytes(block, start)), nibbles(l, bytes(block, start + 32))];
            let high = l.unsigned(bytes(block, 128 + 32 * half_block + 16 * part));
            // Bits 0–1, 2–3, 4–5 and 6–7, moved to bits 4–5.
            let high = [
                l.and(l.shift_left::<4>(high), 48),
                l.and(l.shift_left::<2>(high), 48),
                l.and(high, 48),
                l.and(l.shift_right::<2>(high), 48),
            ];
            let low = [a[0], b[0], a[1], b[1]];
            for quarter in 0..4 {
                let scale = d * f32::from(block[192 + 8 * half_block + 2 * quarter + part] as i8);
                let values =
                    scaled(l, l.or(low[quarter], high[quarter]), l.splat(scale), l.splat(-32.0 * scale));
                unsafe { sink.take(at, 8 * half_block + 2 * quarter + part, values) };
            }
        }
    }
}
