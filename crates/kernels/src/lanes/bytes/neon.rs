//! NEON with products of bytes, and with those of matrices of bytes.

use super::super::LANES;
use super::super::neon::{Neon, each, four_halves, transposed_4};
use super::{BYTES, ByteLanes, Quants, RowByRow, Vector, row_by_row};
use std::arch::aarch64::*;
use std::arch::asm;

impl<const I8MM: bool> ByteLanes for Neon<true, I8MM> {
    /// Four rows each.
    type Bytes = [uint8x16_t; 4];

    #[inline(always)]
    fn load_64(self, bytes: &[u8; BYTES]) -> [uint8x16_t; 4] {
        // SAFETY: sixteen of 64 bytes are loaded at a time.
        unsafe { each!(i => vld1q_u8(bytes.as_ptr().add(16 * i))) }
    }

    #[inline(always)]
    fn store_64(self, bytes: [uint8x16_t; 4], to: &mut [u8; BYTES]) {
        for (i, sixteen) in bytes.into_iter().enumerate() {
            // SAFETY: sixteen of 64 bytes are stored at a time.
            unsafe { vst1q_u8(to.as_mut_ptr().add(16 * i), sixteen) }
        }
    }

    #[inline(always)]
    fn columns(self, rows: RowByRow<'_>, at: usize) -> [[uint8x16_t; 4]; 4] {
        // SAFETY: parts are as long as what is loaded.
        unsafe {
            let parts = each!(four => {
                transposed_4(each!(i => {
                    vreinterpretq_u32_u8(vld1q_u8(rows.part::<16>(4 * four + i, at).as_ptr()))
                }))
            });
            each!(column => each!(four => vreinterpretq_u8_u32(parts[four][column])))
        }
    }

    #[inline(always)]
    fn bits(self, a: [uint8x16_t; 4], right: u32, mask: u8) -> [uint8x16_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe {
            let by = vdupq_n_s8(-(right as i8));
            each!(i => vandq_u8(vshlq_u8(a[i], by), vdupq_n_u8(mask)))
        }
    }

    #[inline(always)]
    fn shift_64_left<const BITS: u32>(self, a: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vshlq_u8(a[i], vdupq_n_s8(BITS as i8))) }
    }

    #[inline(always)]
    fn or_64(self, a: [uint8x16_t; 4], b: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vorrq_u8(a[i], b[i])) }
    }

    #[inline(always)]
    fn entries_of(self, table: &[i8; 16], indices: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        // SAFETY: `table` is as long as what is loaded.
        unsafe {
            let table = vreinterpretq_u8_s8(vld1q_s8(table.as_ptr()));
            each!(i => vqtbl1q_u8(table, indices[i]))
        }
    }

    #[inline(always)]
    fn where_bits(self, numbers: &[u32; LANES], first: u32, value: u8) -> [uint8x16_t; 4] {
        const BYTE_OF_EACH: [u8; 16] = [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12];
        // SAFETY: four of sixteen numbers are loaded at a time.
        unsafe {
            let by = vdupq_n_s32(-(first as i32));
            let byte_of_each = vld1q_u8(BYTE_OF_EACH.as_ptr());
            // One of four bits for each byte of four.
            let places = vreinterpretq_u8_u32(vdupq_n_u32(0x0804_0201));
            each!(i => {
                let numbers = vshlq_u32(vld1q_u32(numbers.as_ptr().add(4 * i)), by);
                let four = vqtbl1q_u8(vreinterpretq_u8_u32(numbers), byte_of_each);
                vandq_u8(vtstq_u8(four, places), vdupq_n_u8(value))
            })
        }
    }

    #[inline(always)]
    fn integers(self, a: [uint8x16_t; 4]) -> [int32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vreinterpretq_s32_u8(a[i])) }
    }

    #[inline(always)]
    fn signed_byte<const LEFT: u32>(self, a: [int32x4_t; 4]) -> [int32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vshrq_n_s32::<24>(vshlq_s32(a[i], vdupq_n_s32(LEFT as i32)))) }
    }

    #[inline(always)]
    fn two_halves_each(self, numbers: &[u32; LANES]) -> [[float32x4_t; 4]; 2] {
        // SAFETY: four of sixteen numbers are loaded at a time.
        unsafe {
            let numbers = each!(i => vld1q_u32(numbers.as_ptr().add(4 * i)));
            [
                each!(i => four_halves(vmovn_u32(numbers[i]))),
                each!(i => four_halves(vshrn_n_u32::<16>(numbers[i]))),
            ]
        }
    }

    #[inline(always)]
    fn plus(self, a: [int32x4_t; 4], b: [int32x4_t; 4]) -> [int32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vaddq_s32(a[i], b[i])) }
    }

    #[inline(always)]
    fn bytes(self, a: [int32x4_t; 4]) -> [uint8x16_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vreinterpretq_u8_s32(a[i])) }
    }

    #[inline(always)]
    fn plus_scaled(
        self,
        sums: [int32x4_t; 4],
        scales: [int32x4_t; 4],
        products: [int32x4_t; 4],
        start: i32,
    ) -> [int32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vmlaq_s32(sums[i], scales[i], vaddq_s32(products[i], vdupq_n_s32(start)))) }
    }

    #[inline(always)]
    fn signed_quants(self, w: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        w
    }

    /// Quants that are unsigned are at most 63, and the same as signed bytes.
    #[inline(always)]
    fn products<const N: usize>(
        self,
        w: &[[uint8x16_t; 4]; N],
        x: &[[i8; 4]; N],
        _: Quants,
        _: i32,
    ) -> [int32x4_t; 4] {
        const { assert!(N.is_multiple_of(4), "activations fill registers") };
        // SAFETY: `self` proves products of bytes; sixteen activations are loaded where there are as many.
        unsafe {
            let mut sums = [vdupq_n_s32(0); 4];
            for first in (0..N).step_by(4) {
                let x = vld1q_s8(x.as_ptr().add(first).cast());
                for four in 0..4 {
                    sums[four] = sdot::<0>(sums[four], w[first][four], x);
                    sums[four] = sdot::<1>(sums[four], w[first + 1][four], x);
                    sums[four] = sdot::<2>(sums[four], w[first + 2][four], x);
                    sums[four] = sdot::<3>(sums[four], w[first + 3][four], x);
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn products_of_rows<const M: usize, const N: usize>(
        self,
        w: &[Vector<u8, BYTES>; N],
        x: [&[[i8; 4]; N]; M],
        quants: Quants,
        starts: [i32; M],
    ) -> [[int32x4_t; 4]; M] {
        if I8MM && M > 1 {
            // SAFETY: `self` proves products of matrices.
            return unsafe { products_of_matrices(w, x) };
        }
        row_by_row(self, w, x, quants, starts)
    }
}

/// Σ w·x of each row of w with M rows of activations, an even number of at most eight: two rows of each and eight columns at a time.
///
/// # Safety
/// The processor has products of matrices.
#[inline]
#[target_feature(enable = "neon,i8mm")]
unsafe fn products_of_matrices<const M: usize, const N: usize>(
    w: &[Vector<u8, BYTES>; N],
    x: [&[[i8; 4]; N]; M],
) -> [[int32x4_t; 4]; M] {
    const { assert!(M <= 8 && N <= 8 && N.is_multiple_of(2), "activations and sums fill registers") };
    // SAFETY: eight of 4·N activations and sixteen of 64 bytes are loaded at a time.
    unsafe {
        let mut pairs = [[vdupq_n_s8(0); 4]; 4];
        for two in 0..M / 2 {
            for eight in 0..N / 2 {
                let first = vld1_s8(x[2 * two].as_ptr().add(2 * eight).cast());
                let second = vld1_s8(x[2 * two + 1].as_ptr().add(2 * eight).cast());
                pairs[two][eight] = vcombine_s8(first, second);
            }
        }
        let mut products = [[vdupq_n_s32(0); 4]; M];
        for four in 0..4 {
            // Of each two rows of w; of each two of x the products of the first row of w, then of the second.
            let mut sums = [[vdupq_n_s32(0); 4]; 2];
            for eight in 0..N / 2 {
                let low = vreinterpretq_u32_u8(vld1q_u8(w[2 * eight].0.as_ptr().add(16 * four)));
                let high = vreinterpretq_u32_u8(vld1q_u8(w[2 * eight + 1].0.as_ptr().add(16 * four)));
                let rows = [vzip1q_u32(low, high), vzip2q_u32(low, high)];
                for two in 0..M / 2 {
                    sums[0][two] = smmla(sums[0][two], rows[0], pairs[two][eight]);
                    sums[1][two] = smmla(sums[1][two], rows[1], pairs[two][eight]);
                }
            }
            for two in 0..M / 2 {
                products[2 * two][four] = vuzp1q_s32(sums[0][two], sums[1][two]);
                products[2 * two + 1][four] = vuzp2q_s32(sums[0][two], sums[1][two]);
            }
        }
        products
    }
}

/// Adds the products of two rows of eight signed bytes with two others. The library's function for it is not stable yet.
///
/// # Safety
/// The processor has products of matrices.
#[inline]
#[target_feature(enable = "neon,i8mm")]
unsafe fn smmla(mut sums: int32x4_t, w: uint32x4_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller has the instruction, which touches nothing but these registers.
    unsafe {
        asm!(
            "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums,
            in(vreg) w,
            in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Adds the products of four signed bytes of each number with the four at a place of x. The library's function for it is not
/// stable yet.
///
/// # Safety
/// The processor has products of bytes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn sdot<const PLACE: usize>(mut sums: int32x4_t, w: uint8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller has the instruction, which touches nothing but these registers.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]",
            inout(vreg) sums,
            in(vreg) w,
            in(vreg) x,
            const PLACE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
