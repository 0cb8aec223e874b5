//! Sixty-four bytes at a time: two groups of 32 quants, and their products with activations of eight bits. Sums of products are
//! whole numbers, the same with any instructions.

#[cfg(target_arch = "x86_64")]
mod x86;

use super::{LANES, Lanes, Plain};

/// Bytes of a group of vectors: four for each of [`LANES`] sums.
pub(crate) const BYTES: usize = 4 * LANES;

/// Vector instructions on groups of 64 bytes.
pub(crate) trait ByteLanes: Lanes {
    /// Sixty-four u8 or i8.
    type Bytes: Copy;

    fn load_64(self, bytes: &[u8; BYTES]) -> Self::Bytes;
    fn store_64(self, bytes: Self::Bytes, to: &mut [u8; BYTES]);
    fn two_of_32(self, a: &[u8; 32], b: &[u8; 32]) -> Self::Bytes;
    /// The low four bits of each byte of a, the high ones, those of b.
    fn nibbles_of_16(self, a: &[u8; 16], b: &[u8; 16]) -> Self::Bytes;
    /// Each byte shifted right, by so many bits for the first 32 results and so many for the last 32, and masked; the mask has no bit
    /// that another byte's bits are shifted to.
    fn bits_of_32(self, packed: &[u8; 32], right: [u32; 2], mask: u8) -> Self::Bytes;
    /// Entries of a table; indices are below sixteen.
    fn entries_of(self, table: &[i8; 16], indices: Self::Bytes) -> Self::Bytes;
    fn and_64(self, a: Self::Bytes, mask: u8) -> Self::Bytes;
    fn or_64(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Of bytes that lose no bits.
    fn shift_64_left<const BITS: u32>(self, a: Self::Bytes) -> Self::Bytes;
    /// The high four bits of each byte.
    fn high_nibbles(self, a: Self::Bytes) -> Self::Bytes;
    /// `value` where a bit is set, else 0; the lowest bit is the first byte's.
    fn bytes_where_set(self, bits: u64, value: u8) -> Self::Bytes;
    /// Σ w·x over each four: w is 0 … 127, x is −127 … 127.
    fn byte_products(self, w: Self::Bytes, x: Self::Bytes) -> Self::Integers;
    /// The same of signed w. `start` is −128·Σ x over each four.
    fn signed_byte_products(self, w: Self::Bytes, x: Self::Bytes, start: &[i32; LANES]) -> Self::Integers;
    /// Of 8 or 16 numbers those that belong to a quarter of 256 elements, each as often as sums of four elements have it.
    fn spread(self, of: &[f32; LANES], numbers: usize, quarter: usize) -> Self::Floats;
    /// The even ones and the odd ones, eight zeros behind each.
    fn alternating(self, a: Self::Floats) -> [Self::Floats; 2];
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
    fn two_of_32(self, a: &[u8; 32], b: &[u8; 32]) -> [u8; BYTES] {
        std::array::from_fn(|i| if i < 32 { a[i] } else { b[i - 32] })
    }

    #[inline(always)]
    fn nibbles_of_16(self, a: &[u8; 16], b: &[u8; 16]) -> [u8; BYTES] {
        std::array::from_fn(|i| (if i < 32 { a } else { b })[i % 16] >> (i / 16 % 2 * 4) & 15)
    }

    #[inline(always)]
    fn bits_of_32(self, packed: &[u8; 32], right: [u32; 2], mask: u8) -> [u8; BYTES] {
        std::array::from_fn(|i| packed[i % 32] >> right[i / 32] & mask)
    }

    #[inline(always)]
    fn entries_of(self, table: &[i8; 16], indices: [u8; BYTES]) -> [u8; BYTES] {
        indices.map(|index| table[usize::from(index)] as u8)
    }

    #[inline(always)]
    fn and_64(self, a: [u8; BYTES], mask: u8) -> [u8; BYTES] {
        a.map(|byte| byte & mask)
    }

    #[inline(always)]
    fn or_64(self, a: [u8; BYTES], b: [u8; BYTES]) -> [u8; BYTES] {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn shift_64_left<const BITS: u32>(self, a: [u8; BYTES]) -> [u8; BYTES] {
        a.map(|byte| byte << BITS)
    }

    #[inline(always)]
    fn high_nibbles(self, a: [u8; BYTES]) -> [u8; BYTES] {
        a.map(|byte| byte >> 4)
    }

    #[inline(always)]
    fn bytes_where_set(self, bits: u64, value: u8) -> [u8; BYTES] {
        std::array::from_fn(|i| (bits >> i & 1) as u8 * value)
    }

    #[inline(always)]
    fn byte_products(self, w: [u8; BYTES], x: [u8; BYTES]) -> [i32; LANES] {
        let product = |i: usize| i32::from(w[i]) * i32::from(x[i] as i8);
        std::array::from_fn(|i| (4 * i..4 * i + 4).map(product).sum())
    }

    #[inline(always)]
    fn signed_byte_products(self, w: [u8; BYTES], x: [u8; BYTES], _: &[i32; LANES]) -> [i32; LANES] {
        let product = |i: usize| i32::from(w[i] as i8) * i32::from(x[i] as i8);
        std::array::from_fn(|i| (4 * i..4 * i + 4).map(product).sum())
    }

    #[inline(always)]
    fn spread(self, of: &[f32; LANES], numbers: usize, quarter: usize) -> [f32; LANES] {
        std::array::from_fn(|i| of[(quarter * LANES + i) * numbers / (4 * LANES)])
    }

    #[inline(always)]
    fn alternating(self, a: [f32; LANES]) -> [[f32; LANES]; 2] {
        let every_other = |first: usize| std::array::from_fn(|i| if i < 8 { a[2 * i + first] } else { 0.0 });
        [every_other(0), every_other(1)]
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

    /// Every operation yields the same bits as the plain one.
    fn equals_plain<L: ByteLanes>(l: L, a: [u8; 64], b: [u8; 64], bits: u64) {
        let part = |of: &[u8; 64], at: usize| -> [u8; 16] { std::array::from_fn(|i| of[at + i]) };
        let half = |of: &[u8; 64], at: usize| -> [u8; 32] { std::array::from_fn(|i| of[at + i]) };
        macro_rules! same {
            ($lanes:ident => $made:expr) => {{
                let actual = {
                    let $lanes = l;
                    stored($lanes, $made)
                };
                let $lanes = Plain;
                assert_eq!(actual, stored($lanes, $made), "{}", stringify!($made));
            }};
        }
        same!(p => p.load_64(&a));
        same!(p => p.two_of_32(&half(&a, 0), &half(&b, 32)));
        same!(p => p.nibbles_of_16(&part(&a, 0), &part(&b, 16)));
        same!(p => p.bits_of_32(&half(&a, 7), [0, 4], 15));
        same!(p => p.bits_of_32(&half(&a, 7), [6, 1], 3));
        same!(p => p.and_64(p.load_64(&a), 0x5a));
        same!(p => p.or_64(p.load_64(&a), p.load_64(&b)));
        same!(p => p.shift_64_left::<4>(p.and_64(p.load_64(&a), 15)));
        same!(p => p.high_nibbles(p.load_64(&a)));
        same!(p => p.bytes_where_set(bits, 16));
        let table = part(&b, 3).map(|byte| byte as i8);
        same!(p => p.entries_of(&table, p.and_64(p.load_64(&a), 15)));
        let x = b.map(|byte| if byte == 128 { 127 } else { byte });
        let start: [i32; LANES] =
            std::array::from_fn(|i| -128 * (0..4).map(|j| i32::from(x[4 * i + j] as i8)).sum::<i32>());
        let products = |of: [u32; LANES], plain: [u32; LANES]| assert_eq!(of, plain);
        products(
            floats(l, l.float(l.byte_products(l.and_64(l.load_64(&a), 127), l.load_64(&x)))),
            floats(Plain, Plain.float(Plain.byte_products(Plain.and_64(a, 127), x))),
        );
        products(
            floats(l, l.float(l.signed_byte_products(l.load_64(&a), l.load_64(&x), &start))),
            floats(Plain, Plain.float(Plain.signed_byte_products(a, x, &start))),
        );
        let numbers: [f32; LANES] = std::array::from_fn(|i| f32::from(a[i]) - 100.0);
        for of in [8, 16] {
            for quarter in 0..4 {
                let spread = l.spread(&numbers, of, quarter);
                assert_eq!(
                    floats(l, spread),
                    Plain.spread(&numbers, of, quarter).map(f32::to_bits),
                    "{of} {quarter}"
                );
            }
        }
        for (actual, expected) in l.alternating(l.load(&numbers)).into_iter().zip(Plain.alternating(numbers))
        {
            assert_eq!(floats(l, actual), expected.map(f32::to_bits));
        }
    }

    #[cfg(target_arch = "x86_64")]
    proptest! {
        #[test]
        fn vector_instructions_equal_the_plain_ones(
            a in prop::array::uniform32(any::<u8>()),
            b in prop::array::uniform32(any::<u8>()),
            bits in any::<u64>(),
        ) {
            use super::super::Avx2;
            let a: [u8; 64] = std::array::from_fn(|i| a[i % 32].wrapping_add((i / 32 * 97) as u8));
            let b: [u8; 64] = std::array::from_fn(|i| b[i % 32].wrapping_mul(1 + (i / 32 * 2) as u8));
            if let Some(simd) = pulp::x86::V3::try_new() {
                equals_plain(Avx2::<false>(simd), a, b, bits);
            }
            if let Some(simd) = pulp::x86::V4::try_new()
                && std::arch::is_x86_feature_detected!("avx512vnni")
            {
                equals_plain(Avx2::<true>(*simd), a, b, bits);
            }
        }
    }
}
