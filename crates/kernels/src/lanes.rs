//! Sixteen numbers at a time: what unpacking weights needs beyond `pulp`, which has no widening of bytes.

mod bytes;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

pub(crate) use bytes::{
    BYTES, BlockWords, ByteLanes, Quants, RowByRow, SixteenRows, Start, Vector, WordByWord, WordOrder,
};

/// Numbers in a group.
pub(crate) const LANES: usize = 16;

/// Vector instructions on groups of sixteen numbers.
pub(crate) trait Lanes: Copy {
    /// Sixteen f32.
    type Floats: Copy;
    /// Sixteen i32.
    type Integers: Copy;
    /// Thirty-two i16.
    type Words: Copy;

    /// Rows of activations whose sums fit the registers beside weights that are being unpacked: a power of two, eight at most.
    const ROWS: usize;
    /// Vectors of sixteen numbers that registers hold.
    const REGISTERS: usize;
    /// Whether a·b + c is one instruction.
    const FUSED: bool;

    fn unsigned(self, bytes: &[u8; LANES]) -> Self::Integers;
    fn signed(self, bytes: &[u8; LANES]) -> Self::Integers;
    fn and(self, a: Self::Integers, b: u8) -> Self::Integers;
    fn or(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;
    fn shift_right<const BITS: u32>(self, a: Self::Integers) -> Self::Integers;
    fn shift_left<const BITS: u32>(self, a: Self::Integers) -> Self::Integers;
    /// `value` where a bit is set, else 0; the lowest bit is the first number's.
    fn where_set(self, bits: u16, value: u8) -> Self::Integers;
    fn float(self, a: Self::Integers) -> Self::Floats;
    /// Signed bytes, eight at a time, times −1 where a bit is set; no such one is −128.
    fn negated(self, bytes: [u64; 2], negative: u16) -> Self::Integers;
    /// Entries of a table at the low four bits of each byte, then at the high ones.
    fn entries(self, table: &[i8; 16], packed: &[u8; LANES]) -> [Self::Integers; 2];
    /// The same, as words.
    fn entry_words(self, table: &[i8; 16], packed: &[u8; LANES]) -> Self::Words;

    fn unsigned_words(self, bytes: &[u8; 2 * LANES]) -> Self::Words;
    /// Signed bytes, eight at a time, times −1 where a bit is set; no such one is −128.
    fn negated_words(self, bytes: [u64; 4], negative: u32) -> Self::Words;
    fn load_words(self, words: &[i16; 2 * LANES]) -> Self::Words;
    fn store_words(self, words: Self::Words, to: &mut [i16; 2 * LANES]);
    fn and_words(self, a: Self::Words, b: u8) -> Self::Words;
    fn or_words(self, a: Self::Words, b: Self::Words) -> Self::Words;
    fn shift_words_right<const BITS: u32>(self, a: Self::Words) -> Self::Words;
    fn shift_words_left<const BITS: u32>(self, a: Self::Words) -> Self::Words;
    /// a_2i·b_2i + a_2i+1·b_2i+1.
    fn pair_products(self, a: Self::Words, b: Self::Words) -> Self::Integers;

    fn splat(self, x: f32) -> Self::Floats;
    /// Eight times each.
    fn splat_two(self, x: f32, y: f32) -> Self::Floats;
    fn load(self, x: &[f32; LANES]) -> Self::Floats;
    fn store(self, x: Self::Floats, to: &mut [f32; LANES]);
    fn widen_f16(self, bytes: &[u8; 2 * LANES]) -> Self::Floats;
    fn widen_bf16(self, bytes: &[u8; 2 * LANES]) -> Self::Floats;
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> Self::Floats;
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// a·b + c, rounded once where the processor can.
    fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    fn sum(self, a: Self::Floats) -> f32;
    /// The largest number; none is NaN.
    fn largest(self, a: Self::Floats) -> f32;
    /// The sum of each, all in the same order.
    fn sums(self, a: [Self::Floats; 4]) -> [f32; 4];
    /// Two f16: the first one sixteen times, and both.
    fn two_halves(self, bytes: &[u8; 4]) -> (Self::Floats, [f32; 2]);
    /// The columns of sixteen rows.
    fn transposed(self, rows: [Self::Floats; LANES]) -> [Self::Floats; LANES];

    /// Stores the columns of sixteen rows, `from` and `to` in rows of so many numbers.
    ///
    /// # Panics
    /// If sixteen rows of sixteen are not there.
    #[inline(always)]
    fn transpose(self, from: &[f32], from_stride: usize, to: &mut [f32], to_stride: usize) {
        let mut rows = [self.splat(0.0); LANES];
        for (index, row) in rows.iter_mut().enumerate() {
            *row = self.load(sixteen(from, index * from_stride));
        }
        for (index, column) in self.transposed(rows).into_iter().enumerate() {
            self.store(column, sixteen_mut(to, index * to_stride));
        }
    }
}

/// The sixteen numbers from an index on.
#[inline(always)]
fn sixteen(numbers: &[f32], index: usize) -> &[f32; LANES] {
    numbers[index..].first_chunk().expect("sixteen numbers in a row")
}

/// [`sixteen`], to be written.
#[inline(always)]
fn sixteen_mut(numbers: &mut [f32], index: usize) -> &mut [f32; LANES] {
    numbers[index..].first_chunk_mut().expect("sixteen numbers in a row")
}

/// Loops over arrays, for any processor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain;

impl Lanes for Plain {
    type Floats = [f32; LANES];
    type Integers = [i32; LANES];
    type Words = [i16; 2 * LANES];

    const ROWS: usize = 2;
    const REGISTERS: usize = 4;
    const FUSED: bool = false;

    #[inline(always)]
    fn unsigned(self, bytes: &[u8; LANES]) -> [i32; LANES] {
        bytes.map(i32::from)
    }

    #[inline(always)]
    fn signed(self, bytes: &[u8; LANES]) -> [i32; LANES] {
        bytes.map(|byte| i32::from(byte as i8))
    }

    #[inline(always)]
    fn and(self, a: [i32; LANES], b: u8) -> [i32; LANES] {
        a.map(|x| x & i32::from(b))
    }

    #[inline(always)]
    fn or(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, a: [i32; LANES]) -> [i32; LANES] {
        a.map(|x| x >> BITS)
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: [i32; LANES]) -> [i32; LANES] {
        a.map(|x| x << BITS)
    }

    #[inline(always)]
    fn where_set(self, bits: u16, value: u8) -> [i32; LANES] {
        std::array::from_fn(|i| i32::from(bits >> i & 1) * i32::from(value))
    }

    #[inline(always)]
    fn float(self, a: [i32; LANES]) -> [f32; LANES] {
        a.map(|x| x as f32)
    }

    #[inline(always)]
    fn negated(self, bytes: [u64; 2], negative: u16) -> [i32; LANES] {
        std::array::from_fn(|i| {
            let number = i32::from((bytes[i / 8] >> (i % 8 * 8)) as i8);
            if negative >> i & 1 == 0 { number } else { -number }
        })
    }

    #[inline(always)]
    fn entries(self, table: &[i8; 16], packed: &[u8; LANES]) -> [[i32; LANES]; 2] {
        let entry = |at: u8| i32::from(table[usize::from(at & 15)]);
        [packed.map(entry), packed.map(|byte| entry(byte >> 4))]
    }

    #[inline(always)]
    fn entry_words(self, table: &[i8; 16], packed: &[u8; LANES]) -> [i16; 2 * LANES] {
        std::array::from_fn(|i| i16::from(table[usize::from(packed[i % LANES] >> (i / LANES * 4) & 15)]))
    }

    #[inline(always)]
    fn unsigned_words(self, bytes: &[u8; 2 * LANES]) -> [i16; 2 * LANES] {
        bytes.map(i16::from)
    }

    #[inline(always)]
    fn negated_words(self, bytes: [u64; 4], negative: u32) -> [i16; 2 * LANES] {
        std::array::from_fn(|i| {
            let number = i16::from((bytes[i / 8] >> (i % 8 * 8)) as i8);
            if negative >> i & 1 == 0 { number } else { -number }
        })
    }

    #[inline(always)]
    fn load_words(self, words: &[i16; 2 * LANES]) -> [i16; 2 * LANES] {
        *words
    }

    #[inline(always)]
    fn store_words(self, words: [i16; 2 * LANES], to: &mut [i16; 2 * LANES]) {
        *to = words;
    }

    #[inline(always)]
    fn and_words(self, a: [i16; 2 * LANES], b: u8) -> [i16; 2 * LANES] {
        a.map(|x| x & i16::from(b))
    }

    #[inline(always)]
    fn or_words(self, a: [i16; 2 * LANES], b: [i16; 2 * LANES]) -> [i16; 2 * LANES] {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn shift_words_right<const BITS: u32>(self, a: [i16; 2 * LANES]) -> [i16; 2 * LANES] {
        a.map(|x| (x as u16 >> BITS) as i16)
    }

    #[inline(always)]
    fn shift_words_left<const BITS: u32>(self, a: [i16; 2 * LANES]) -> [i16; 2 * LANES] {
        a.map(|x| x << BITS)
    }

    #[inline(always)]
    fn pair_products(self, a: [i16; 2 * LANES], b: [i16; 2 * LANES]) -> [i32; LANES] {
        let product = |i: usize| i32::from(a[i]) * i32::from(b[i]);
        std::array::from_fn(|i| product(2 * i) + product(2 * i + 1))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; LANES] {
        [x; LANES]
    }

    #[inline(always)]
    fn splat_two(self, x: f32, y: f32) -> [f32; LANES] {
        std::array::from_fn(|i| if i < LANES / 2 { x } else { y })
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> [f32; LANES] {
        *x
    }

    #[inline(always)]
    fn store(self, x: [f32; LANES], to: &mut [f32; LANES]) {
        *to = x;
    }

    #[inline(always)]
    fn widen_f16(self, bytes: &[u8; 2 * LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| half(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])))
    }

    #[inline(always)]
    fn widen_bf16(self, bytes: &[u8; 2 * LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| f32::from_le_bytes([0, 0, bytes[2 * i], bytes[2 * i + 1]]))
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| {
            f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
        })
    }

    #[inline(always)]
    fn add(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn multiply(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn multiply_add(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn sum(self, a: [f32; LANES]) -> f32 {
        a.iter().sum()
    }

    #[inline(always)]
    fn largest(self, a: [f32; LANES]) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    fn sums(self, a: [[f32; LANES]; 4]) -> [f32; 4] {
        a.map(|a| self.sum(a))
    }

    #[inline(always)]
    fn two_halves(self, bytes: &[u8; 4]) -> ([f32; LANES], [f32; 2]) {
        let two = [[bytes[0], bytes[1]], [bytes[2], bytes[3]]].map(|bytes| half(u16::from_le_bytes(bytes)));
        ([two[0]; LANES], two)
    }

    #[inline(always)]
    fn transposed(self, rows: [[f32; LANES]; LANES]) -> [[f32; LANES]; LANES] {
        std::array::from_fn(|column| rows.map(|row| row[column]))
    }
}

/// The f16 of these bits, by arithmetic that needs no instructions of its own.
#[inline(always)]
pub(crate) fn half(bits: u16) -> f32 {
    let bits = u32::from(bits);
    // The exponent is moved by 112 through a product, which is right for subnormal numbers as well.
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((254 - 15) << 23);
    // What was infinite or NaN stays so.
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_equal_the_librarys() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            let actual = half(bits);
            assert!(
                actual == expected || (actual.is_nan() && expected.is_nan()),
                "{bits:x}: {actual} {expected}"
            );
        }
    }

    /// Every operation of another set of instructions yields the same bits as the plain one.
    fn equals_plain<L: Lanes>(lanes: L) {
        let floats = |x: L::Floats| {
            let mut to = [0.0; LANES];
            lanes.store(x, &mut to);
            to.map(f32::to_bits)
        };
        let bits = |x: [f32; LANES]| x.map(f32::to_bits);
        for seed in 0..200u32 {
            let byte = |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 13) as u8;
            let bytes: [u8; LANES] = std::array::from_fn(|i| byte(i as u32));
            let twice: [u8; 2 * LANES] = std::array::from_fn(|i| byte(i as u32 + 40));
            let four: [u8; 4 * LANES] =
                std::array::from_fn(|i| if i % 4 == 3 { 0x3e } else { byte(i as u32 + 80) });
            let (u, s) = (lanes.unsigned(&bytes), lanes.signed(&bytes));
            let (pu, ps) = (Plain.unsigned(&bytes), Plain.signed(&bytes));
            assert_eq!(floats(lanes.float(s)), bits(Plain.float(ps)));
            assert_eq!(floats(lanes.float(lanes.and(u, 37))), bits(Plain.float(Plain.and(pu, 37))));
            let (set, pset) =
                (lanes.where_set((seed * 331) as u16, 64), Plain.where_set((seed * 331) as u16, 64));
            assert_eq!(floats(lanes.float(lanes.or(u, set))), bits(Plain.float(Plain.or(pu, pset))));
            assert_eq!(
                floats(lanes.float(lanes.shift_left::<2>(lanes.shift_right::<3>(u)))),
                bits(Plain.float(Plain.shift_left::<2>(Plain.shift_right::<3>(pu))))
            );
            assert_eq!(floats(lanes.widen_bf16(&twice)), bits(Plain.widen_bf16(&twice)));
            let words: [i16; 2 * LANES] =
                std::array::from_fn(|i| (i as i16 - 11).wrapping_mul(seed as i16 * 37));
            let (w, pw) = (lanes.unsigned_words(&twice), Plain.unsigned_words(&twice));
            let w = lanes.or_words(
                lanes.and_words(lanes.shift_words_right::<2>(w), 23),
                lanes.shift_words_left::<3>(w),
            );
            let pw = Plain.or_words(
                Plain.and_words(Plain.shift_words_right::<2>(pw), 23),
                Plain.shift_words_left::<3>(pw),
            );
            assert_eq!(
                floats(lanes.float(lanes.pair_products(w, lanes.load_words(&words)))),
                bits(Plain.float(Plain.pair_products(pw, words)))
            );
            let eights: [u64; 4] = std::array::from_fn(|at| {
                twice[8 * at..][..8]
                    .iter()
                    .fold(0, |eight, &byte| eight << 8 | u64::from(byte.max(1) - u8::from(byte == 128)))
            });
            let negative = seed.wrapping_mul(0x9e37_79b9);
            let w = lanes.negated_words(eights, negative);
            assert_eq!(
                floats(lanes.float(lanes.pair_products(w, lanes.load_words(&words)))),
                bits(Plain.float(Plain.pair_products(Plain.negated_words(eights, negative), words)))
            );
            let (first, low) = ([eights[0], eights[1]], negative as u16);
            assert_eq!(
                floats(lanes.float(lanes.negated(first, low))),
                bits(Plain.float(Plain.negated(first, low)))
            );
            let table = bytes.map(|byte| byte as i8);
            let packed: [u8; LANES] = std::array::from_fn(|i| twice[i]);
            for (actual, expected) in
                lanes.entries(&table, &packed).into_iter().zip(Plain.entries(&table, &packed))
            {
                assert_eq!(floats(lanes.float(actual)), bits(Plain.float(expected)));
            }
            let w = lanes.entry_words(&table, &packed);
            assert_eq!(
                floats(lanes.float(lanes.pair_products(w, lanes.load_words(&words)))),
                bits(Plain.float(Plain.pair_products(Plain.entry_words(&table, &packed), words)))
            );
            assert_eq!(floats(lanes.splat_two(1.5, -2.0)), bits(Plain.splat_two(1.5, -2.0)));
            let halves = twice.map(|byte| byte & 0xbf);
            assert_eq!(floats(lanes.widen_f16(&halves)), bits(Plain.widen_f16(&halves)));
            let first = [halves[0], halves[1], halves[2], halves[3]];
            let ((d, both), (pd, pboth)) = (lanes.two_halves(&first), Plain.two_halves(&first));
            assert_eq!((floats(d), both), (bits(pd), pboth));
            let (a, pa) = (lanes.load_bytes(&four), Plain.load_bytes(&four));
            assert_eq!(floats(a), bits(pa));
            let (b, pb) = (lanes.float(s), Plain.float(ps));
            assert_eq!(floats(lanes.add(a, b)), bits(Plain.add(pa, pb)));
            assert_eq!(floats(lanes.multiply(a, b)), bits(Plain.multiply(pa, pb)));
            let fused: [f32; LANES] = std::array::from_fn(|i| pa[i].mul_add(pb[i], 3.5));
            assert_eq!(floats(lanes.multiply_add(a, lanes.load(&pb), lanes.splat(3.5))), bits(fused));
            assert!((lanes.sum(b) - Plain.sum(pb)).abs() < 1e-3);
            let sums = lanes.sums([b, lanes.add(b, b), lanes.splat(2.0), b]);
            let sum = Plain.sum(pb);
            for (actual, expected) in sums.into_iter().zip([sum, 2.0 * sum, 32.0, sum]) {
                assert!((actual - expected).abs() < 2e-3, "{sums:?}");
            }
            assert_eq!(sums[0].to_bits(), sums[3].to_bits());
            let rows: [[f32; LANES]; LANES] = std::array::from_fn(|row| pb.map(|x| x + (100 * row) as f32));
            let columns = lanes.transposed(rows.map(|row| lanes.load(&row)));
            for (actual, expected) in columns.into_iter().zip(Plain.transposed(rows)) {
                assert_eq!(floats(actual), bits(expected));
            }
            const STRIDES: [usize; 2] = [LANES + 3, LANES + 5];
            let from: Vec<f32> = (0..LANES * STRIDES[0]).map(|i| i as f32).collect();
            let mut to = [f32::NAN; LANES * STRIDES[1]];
            lanes.transpose(&from, STRIDES[0], &mut to, STRIDES[1]);
            for (index, number) in to.into_iter().enumerate() {
                let (column, row) = (index / STRIDES[1], index % STRIDES[1]);
                let written = row < LANES;
                assert!(if written { number == from[row * STRIDES[0] + column] } else { number.is_nan() });
            }
        }
    }

    #[test]
    fn vector_instructions_equal_the_plain_ones() {
        #[cfg(target_arch = "aarch64")]
        equals_plain(Neon::<false>);
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(lanes) = Avx2::<false>::try_new() {
                equals_plain(lanes);
            }
            if let Some(simd) = pulp::x86::V4::try_new() {
                equals_plain(Avx512::<false>(simd));
            }
        }
    }
}
