//! NEON, which every 64-bit ARM processor has: four registers for sixteen numbers.

use super::{LANES, Lanes};
use std::arch::aarch64::*;

/// What is made for each of four registers, written out: a closure would be a function of its own.
macro_rules! each {
    ($i:ident => $made:expr) => {
        [
            {
                let $i = 0usize;
                $made
            },
            {
                let $i = 1usize;
                $made
            },
            {
                let $i = 2usize;
                $made
            },
            {
                let $i = 3usize;
                $made
            },
        ]
    };
}
pub(super) use each;

/// NEON. Whoever makes one with `DOTPROD` has made sure that the processor has products of bytes (`sdot`), too, and with `I8MM` those of
/// matrices of two rows of eight bytes (`smmla`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon<const DOTPROD: bool = false, const I8MM: bool = false>;

impl<const DOTPROD: bool, const I8MM: bool> Lanes for Neon<DOTPROD, I8MM> {
    type Floats = [float32x4_t; 4];
    type Integers = [int32x4_t; 4];
    type Words = [int16x8_t; 4];

    const ROWS: usize = 2;
    const REGISTERS: usize = 8;
    const FUSED: bool = true;

    #[inline(always)]
    fn unsigned(self, bytes: &[u8; LANES]) -> [int32x4_t; 4] {
        // SAFETY: `bytes` is as long as what is loaded.
        unsafe {
            let bytes = vld1q_u8(bytes.as_ptr());
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                vreinterpretq_s32_u32(vmovl_high_u16(low)),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                vreinterpretq_s32_u32(vmovl_high_u16(high)),
            ]
        }
    }

    #[inline(always)]
    fn signed(self, bytes: &[u8; LANES]) -> [int32x4_t; 4] {
        // SAFETY: `bytes` is as long as what is loaded.
        unsafe { widened(vreinterpretq_s8_u8(vld1q_u8(bytes.as_ptr()))) }
    }

    #[inline(always)]
    fn and(self, a: [int32x4_t; 4], b: u8) -> [int32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vandq_s32(a[i], vdupq_n_s32(b.into()))) }
    }

    #[inline(always)]
    fn or(self, a: [int32x4_t; 4], b: [int32x4_t; 4]) -> [int32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vorrq_s32(a[i], b[i])) }
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, a: [int32x4_t; 4]) -> [int32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe {
            let by = vdupq_n_s32(-(BITS as i32));
            each!(i => vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a[i]), by)))
        }
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: [int32x4_t; 4]) -> [int32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vshlq_s32(a[i], vdupq_n_s32(BITS as i32))) }
    }

    #[inline(always)]
    fn where_set(self, bits: u16, value: u8) -> [int32x4_t; 4] {
        const PLACES: [u32; LANES] = {
            let mut places = [0; LANES];
            let mut i = 0;
            while i < LANES {
                places[i] = 1 << i;
                i += 1;
            }
            places
        };
        // SAFETY: four of sixteen places are loaded at a time.
        unsafe {
            let (bits, value) = (vdupq_n_u32(bits.into()), vdupq_n_u32(value.into()));
            each!(i => {
                let set = vtstq_u32(bits, vld1q_u32(PLACES.as_ptr().add(4 * i)));
                vreinterpretq_s32_u32(vandq_u32(set, value))
            })
        }
    }

    #[inline(always)]
    fn float(self, a: [int32x4_t; 4]) -> [float32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vcvtq_f32_s32(a[i])) }
    }

    #[inline(always)]
    fn negated(self, bytes: [u64; 2], negative: u16) -> [int32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { widened(negated(bytes, negative)) }
    }

    #[inline(always)]
    fn entries(self, table: &[i8; 16], packed: &[u8; LANES]) -> [[int32x4_t; 4]; 2] {
        // SAFETY: the processor has NEON.
        unsafe {
            let [low, high] = looked_up(table, packed);
            [widened(low), widened(high)]
        }
    }

    #[inline(always)]
    fn entry_words(self, table: &[i8; 16], packed: &[u8; LANES]) -> [int16x8_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { words(looked_up(table, packed)) }
    }

    #[inline(always)]
    fn unsigned_words(self, bytes: &[u8; 2 * LANES]) -> [int16x8_t; 4] {
        // SAFETY: eight of 32 bytes are loaded at a time.
        unsafe { each!(i => vreinterpretq_s16_u16(vmovl_u8(vld1_u8(bytes.as_ptr().add(8 * i))))) }
    }

    #[inline(always)]
    fn negated_words(self, [a, b, c, d]: [u64; 4], negative: u32) -> [int16x8_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { words([negated([a, b], negative as u16), negated([c, d], (negative >> 16) as u16)]) }
    }

    #[inline(always)]
    fn load_words(self, words: &[i16; 2 * LANES]) -> [int16x8_t; 4] {
        // SAFETY: eight of 32 words are loaded at a time.
        unsafe { each!(i => vld1q_s16(words.as_ptr().add(8 * i))) }
    }

    #[inline(always)]
    fn store_words(self, words: [int16x8_t; 4], to: &mut [i16; 2 * LANES]) {
        for (i, eight) in words.into_iter().enumerate() {
            // SAFETY: eight of 32 words are stored at a time.
            unsafe { vst1q_s16(to.as_mut_ptr().add(8 * i), eight) }
        }
    }

    #[inline(always)]
    fn and_words(self, a: [int16x8_t; 4], b: u8) -> [int16x8_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vandq_s16(a[i], vdupq_n_s16(b.into()))) }
    }

    #[inline(always)]
    fn or_words(self, a: [int16x8_t; 4], b: [int16x8_t; 4]) -> [int16x8_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vorrq_s16(a[i], b[i])) }
    }

    #[inline(always)]
    fn shift_words_right<const BITS: u32>(self, a: [int16x8_t; 4]) -> [int16x8_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe {
            let by = vdupq_n_s16(-(BITS as i16));
            each!(i => vreinterpretq_s16_u16(vshlq_u16(vreinterpretq_u16_s16(a[i]), by)))
        }
    }

    #[inline(always)]
    fn shift_words_left<const BITS: u32>(self, a: [int16x8_t; 4]) -> [int16x8_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vshlq_s16(a[i], vdupq_n_s16(BITS as i16))) }
    }

    #[inline(always)]
    fn pair_products(self, a: [int16x8_t; 4], b: [int16x8_t; 4]) -> [int32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe {
            each!(i => {
                let low = vmull_s16(vget_low_s16(a[i]), vget_low_s16(b[i]));
                vpaddq_s32(low, vmull_high_s16(a[i], b[i]))
            })
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> [float32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { [vdupq_n_f32(x); 4] }
    }

    #[inline(always)]
    fn splat_two(self, x: f32, y: f32) -> [float32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe {
            let (x, y) = (vdupq_n_f32(x), vdupq_n_f32(y));
            [x, x, y, y]
        }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> [float32x4_t; 4] {
        // SAFETY: four of sixteen numbers are loaded at a time.
        unsafe { each!(i => vld1q_f32(x.as_ptr().add(4 * i))) }
    }

    #[inline(always)]
    fn store(self, x: [float32x4_t; 4], to: &mut [f32; LANES]) {
        for (i, four) in x.into_iter().enumerate() {
            // SAFETY: four of sixteen numbers are stored at a time.
            unsafe { vst1q_f32(to.as_mut_ptr().add(4 * i), four) }
        }
    }

    #[inline(always)]
    fn widen_f16(self, bytes: &[u8; 2 * LANES]) -> [float32x4_t; 4] {
        // SAFETY: eight of 32 bytes are loaded at a time.
        unsafe { each!(i => four_halves(vreinterpret_u16_u8(vld1_u8(bytes.as_ptr().add(8 * i))))) }
    }

    #[inline(always)]
    fn widen_bf16(self, bytes: &[u8; 2 * LANES]) -> [float32x4_t; 4] {
        // SAFETY: eight of 32 bytes are loaded at a time.
        unsafe {
            each!(i => {
                let bits = vreinterpret_u16_u8(vld1_u8(bytes.as_ptr().add(8 * i)));
                vreinterpretq_f32_u32(vshll_n_u16::<16>(bits))
            })
        }
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> [float32x4_t; 4] {
        // SAFETY: sixteen of 64 bytes are loaded at a time.
        unsafe { each!(i => vreinterpretq_f32_u8(vld1q_u8(bytes.as_ptr().add(16 * i)))) }
    }

    #[inline(always)]
    fn add(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vaddq_f32(a[i], b[i])) }
    }

    #[inline(always)]
    fn multiply(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vmulq_f32(a[i], b[i])) }
    }

    #[inline(always)]
    fn multiply_add(self, a: [float32x4_t; 4], b: [float32x4_t; 4], c: [float32x4_t; 4]) -> [float32x4_t; 4] {
        // SAFETY: the processor has NEON.
        unsafe { each!(i => vfmaq_f32(c[i], a[i], b[i])) }
    }

    #[inline(always)]
    fn sum(self, a: [float32x4_t; 4]) -> f32 {
        // SAFETY: the processor has NEON.
        unsafe { vaddvq_f32(four(a)) }
    }

    #[inline(always)]
    fn largest(self, a: [float32x4_t; 4]) -> f32 {
        // SAFETY: the processor has NEON.
        unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[1]), vmaxq_f32(a[2], a[3]))) }
    }

    #[inline(always)]
    fn sums(self, a: [[float32x4_t; 4]; 4]) -> [f32; 4] {
        let mut to = [0.0; 4];
        // SAFETY: `to` is as long as what is stored.
        unsafe {
            let [a, b, c, d] = each!(i => four(a[i]));
            vst1q_f32(to.as_mut_ptr(), vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
        }
        to
    }

    #[inline(always)]
    fn two_halves(self, bytes: &[u8; 4]) -> ([float32x4_t; 4], [f32; 2]) {
        // SAFETY: the processor has NEON.
        unsafe {
            let two = four_halves(vcreate_u16(u32::from_le_bytes(*bytes).into()));
            ([vdupq_laneq_f32::<0>(two); 4], [vgetq_lane_f32::<0>(two), vgetq_lane_f32::<1>(two)])
        }
    }

    #[inline(always)]
    fn transposed(self, rows: [[float32x4_t; 4]; LANES]) -> [[float32x4_t; 4]; LANES] {
        let mut columns = rows;
        for four_rows in 0..4 {
            for four_columns in 0..4 {
                let part = each!(i => rows[4 * four_rows + i][four_columns]);
                // SAFETY: the processor has NEON.
                unsafe {
                    let part = transposed_4(each!(i => vreinterpretq_u32_f32(part[i])));
                    for i in 0..4 {
                        columns[4 * four_columns + i][four_rows] = vreinterpretq_f32_u32(part[i]);
                    }
                }
            }
        }
        columns
    }
}

/// The columns of four rows of four numbers.
///
/// # Safety
/// NEON.
#[inline(always)]
pub(super) unsafe fn transposed_4([a, b, c, d]: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
    // SAFETY: the caller has NEON.
    unsafe {
        let even = vreinterpretq_u64_u32(vtrn1q_u32(a, b));
        let odd = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
        let even_below = vreinterpretq_u64_u32(vtrn1q_u32(c, d));
        let odd_below = vreinterpretq_u64_u32(vtrn2q_u32(c, d));
        [
            vreinterpretq_u32_u64(vtrn1q_u64(even, even_below)),
            vreinterpretq_u32_u64(vtrn1q_u64(odd, odd_below)),
            vreinterpretq_u32_u64(vtrn2q_u64(even, even_below)),
            vreinterpretq_u32_u64(vtrn2q_u64(odd, odd_below)),
        ]
    }
}

/// Four sums of each fourth number.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn four([a, b, c, d]: [float32x4_t; 4]) -> float32x4_t {
    // SAFETY: the caller has NEON.
    unsafe { vaddq_f32(vaddq_f32(a, b), vaddq_f32(c, d)) }
}

/// Four f16, given by their bits.
///
/// # Safety
/// NEON.
#[inline(always)]
pub(super) unsafe fn four_halves(bits: uint16x4_t) -> float32x4_t {
    // SAFETY: the caller has NEON.
    unsafe { vcvt_f32_f16(vreinterpret_f16_u16(bits)) }
}

/// # Safety
/// NEON.
#[inline(always)]
unsafe fn words([low, high]: [int8x16_t; 2]) -> [int16x8_t; 4] {
    // SAFETY: the caller has NEON.
    unsafe {
        [vmovl_s8(vget_low_s8(low)), vmovl_high_s8(low), vmovl_s8(vget_low_s8(high)), vmovl_high_s8(high)]
    }
}

/// # Safety
/// NEON.
#[inline(always)]
unsafe fn widened(bytes: int8x16_t) -> [int32x4_t; 4] {
    // SAFETY: the caller has NEON.
    unsafe {
        let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
        [
            vmovl_s16(vget_low_s16(low)),
            vmovl_high_s16(low),
            vmovl_s16(vget_low_s16(high)),
            vmovl_high_s16(high),
        ]
    }
}

/// Bytes times −1 where a bit is set; −128 stays.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn negated(bytes: [u64; 2], negative: u16) -> int8x16_t {
    // SAFETY: the caller has NEON.
    unsafe {
        let bytes = vreinterpretq_s8_u64(vcombine_u64(vcreate_u64(bytes[0]), vcreate_u64(bytes[1])));
        let spread = vcombine_u8(vdup_n_u8(negative as u8), vdup_n_u8((negative >> 8) as u8));
        let places = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        let is_negative = vreinterpretq_s8_u8(vtstq_u8(spread, places));
        vsubq_s8(veorq_s8(bytes, is_negative), is_negative)
    }
}

/// Entries of a table at the low and at the high four bits of each byte.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn looked_up(table: &[i8; 16], packed: &[u8; LANES]) -> [int8x16_t; 2] {
    // SAFETY: the caller has NEON; both arrays have the sixteen bytes that are loaded.
    unsafe {
        let (table, packed) = (vld1q_s8(table.as_ptr()), vld1q_u8(packed.as_ptr()));
        [vqtbl1q_s8(table, vandq_u8(packed, vdupq_n_u8(15))), vqtbl1q_s8(table, vshrq_n_u8::<4>(packed))]
    }
}
