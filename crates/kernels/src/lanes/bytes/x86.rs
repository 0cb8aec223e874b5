//! AVX2, and VNNI in registers of AVX2.

use super::super::{Avx2, LANES, Lanes};
use super::{BYTES, ByteLanes};
use std::arch::x86_64::*;

impl<const VNNI: bool> ByteLanes for Avx2<VNNI> {
    type Bytes = [__m256i; 2];

    #[inline(always)]
    fn load_64(self, bytes: &[u8; BYTES]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2; `bytes` is as long as what is loaded.
        unsafe {
            [_mm256_loadu_si256(bytes.as_ptr().cast()), _mm256_loadu_si256(bytes.as_ptr().add(32).cast())]
        }
    }

    #[inline(always)]
    fn store_64(self, bytes: [__m256i; 2], to: &mut [u8; BYTES]) {
        // SAFETY: `self` proves AVX2; `to` is as long as what is stored.
        unsafe {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes[0]);
            _mm256_storeu_si256(to.as_mut_ptr().add(32).cast(), bytes[1]);
        }
    }

    #[inline(always)]
    fn two_of_32(self, a: &[u8; 32], b: &[u8; 32]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2; both are as long as what is loaded.
        unsafe { [_mm256_loadu_si256(a.as_ptr().cast()), _mm256_loadu_si256(b.as_ptr().cast())] }
    }

    #[inline(always)]
    fn nibbles_of_16(self, a: &[u8; 16], b: &[u8; 16]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2; both are as long as what is loaded.
        unsafe {
            let [a, b] = [a, b].map(|packed| _mm_loadu_si128(packed.as_ptr().cast()));
            let four_bits = _mm256_set1_epi8(15);
            [
                _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(a), a), four_bits),
                _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(b), b), four_bits),
            ]
        }
    }

    #[inline(always)]
    fn bits_of_32(self, packed: &[u8; 32], right: [u32; 2], mask: u8) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2; `packed` is as long as what is loaded.
        unsafe {
            let packed = _mm256_loadu_si256(packed.as_ptr().cast());
            let mask = _mm256_set1_epi8(mask as i8);
            [
                _mm256_and_si256(_mm256_srl_epi16(packed, _mm_cvtsi32_si128(right[0] as i32)), mask),
                _mm256_and_si256(_mm256_srl_epi16(packed, _mm_cvtsi32_si128(right[1] as i32)), mask),
            ]
        }
    }

    #[inline(always)]
    fn entries_of(self, table: &[i8; 16], indices: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2; `table` is as long as what is loaded.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, indices[0]), _mm256_shuffle_epi8(table, indices[1])]
        }
    }

    #[inline(always)]
    fn and_64(self, a: [__m256i; 2], mask: u8) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let mask = _mm256_set1_epi8(mask as i8);
            [_mm256_and_si256(a[0], mask), _mm256_and_si256(a[1], mask)]
        }
    }

    #[inline(always)]
    fn or_64(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn shift_64_left<const BITS: u32>(self, a: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let by = _mm_cvtsi32_si128(BITS as i32);
            [_mm256_sll_epi32(a[0], by), _mm256_sll_epi32(a[1], by)]
        }
    }

    #[inline(always)]
    fn high_nibbles(self, a: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let four_bits = _mm256_set1_epi8(15);
            [
                _mm256_and_si256(_mm256_srli_epi16::<4>(a[0]), four_bits),
                _mm256_and_si256(_mm256_srli_epi16::<4>(a[1]), four_bits),
            ]
        }
    }

    #[inline(always)]
    fn bytes_where_set(self, bits: u64, value: u8) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let places = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
            let eight_times_each = _mm256_setr_epi8(
                0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3,
                3,
            );
            let [low, high] = [bits as u32, (bits >> 32) as u32].map(|bits| _mm256_set1_epi32(bits as i32));
            let value = _mm256_set1_epi8(value as i8);
            let [low, high] = [
                _mm256_and_si256(_mm256_shuffle_epi8(low, eight_times_each), places),
                _mm256_and_si256(_mm256_shuffle_epi8(high, eight_times_each), places),
            ];
            [
                _mm256_and_si256(_mm256_cmpeq_epi8(low, places), value),
                _mm256_and_si256(_mm256_cmpeq_epi8(high, places), value),
            ]
        }
    }

    #[inline(always)]
    fn byte_products(self, w: [__m256i; 2], x: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2, with VNNI where it says so.
        unsafe {
            if VNNI {
                let zeros = _mm256_setzero_si256();
                return [_mm256_dpbusd_epi32(zeros, w[0], x[0]), _mm256_dpbusd_epi32(zeros, w[1], x[1])];
            }
            let ones = _mm256_set1_epi16(1);
            [
                _mm256_madd_epi16(_mm256_maddubs_epi16(w[0], x[0]), ones),
                _mm256_madd_epi16(_mm256_maddubs_epi16(w[1], x[1]), ones),
            ]
        }
    }

    #[inline(always)]
    fn signed_byte_products(self, w: [__m256i; 2], x: [__m256i; 2], start: &[i32; LANES]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2, with VNNI where it says so; `start` is as long as what is loaded.
        unsafe {
            if VNNI {
                // Σ (w + 128)·x − 128·Σ x.
                let start = [
                    _mm256_loadu_si256(start.as_ptr().cast()),
                    _mm256_loadu_si256(start.as_ptr().add(8).cast()),
                ];
                let highest = _mm256_set1_epi8(-128);
                return [
                    _mm256_dpbusd_epi32(start[0], _mm256_xor_si256(w[0], highest), x[0]),
                    _mm256_dpbusd_epi32(start[1], _mm256_xor_si256(w[1], highest), x[1]),
                ];
            }
            let magnitudes = [_mm256_abs_epi8(w[0]), _mm256_abs_epi8(w[1])];
            self.byte_products(magnitudes, [_mm256_sign_epi8(x[0], w[0]), _mm256_sign_epi8(x[1], w[1])])
        }
    }

    #[inline(always)]
    fn spread(self, of: &[f32; LANES], numbers: usize, quarter: usize) -> [__m256; 2] {
        if numbers == 8 {
            return self.splat_two(of[2 * quarter], of[2 * quarter + 1]);
        }
        let a = (quarter % 2 * 4) as i32;
        let (b, c, d) = (a + 1, a + 2, a + 3);
        // SAFETY: `self` proves AVX2; eight of sixteen numbers are loaded.
        unsafe {
            let of = _mm256_loadu_ps(of.as_ptr().add(quarter / 2 * 8));
            [
                _mm256_permutevar8x32_ps(of, _mm256_setr_epi32(a, a, a, a, b, b, b, b)),
                _mm256_permutevar8x32_ps(of, _mm256_setr_epi32(c, c, c, c, d, d, d, d)),
            ]
        }
    }

    #[inline(always)]
    fn alternating(self, a: [__m256; 2]) -> [[__m256; 2]; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(a[0], a[1]));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(a[0], a[1]));
            let zeros = _mm256_setzero_ps();
            [
                [_mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(even)), zeros],
                [_mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(odd)), zeros],
            ]
        }
    }
}
