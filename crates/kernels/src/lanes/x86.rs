//! AVX2 and AVX-512. A value of each type is proof that the processor has its instructions.

use super::{LANES, Lanes};
use std::arch::x86_64::*;

/// AVX-512 F, BW, CD, DQ and VL: one register for sixteen numbers. Whoever makes one with `VNNI` has made sure of that, too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512<const VNNI: bool = false>(pub(crate) pulp::x86::V4);

impl<const VNNI: bool> Lanes for Avx512<VNNI> {
    type Floats = __m512;
    type Integers = __m512i;
    type Words = __m512i;

    const ROWS: usize = 8;
    const REGISTERS: usize = 32;
    const FUSED: bool = true;

    #[inline(always)]
    fn unsigned(self, bytes: &[u8; LANES]) -> __m512i {
        // SAFETY: `self` proves AVX-512; `bytes` is as long as what is loaded.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast())) }
    }

    #[inline(always)]
    fn signed(self, bytes: &[u8; LANES]) -> __m512i {
        // SAFETY: `self` proves AVX-512; `bytes` is as long as what is loaded.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.as_ptr().cast())) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: u8) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_and_si512(a, _mm512_set1_epi32(i32::from(b))) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_srli_epi32::<BITS>(a) }
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_slli_epi32::<BITS>(a) }
    }

    #[inline(always)]
    fn where_set(self, bits: u16, value: u8) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_maskz_set1_epi32(bits, i32::from(value)) }
    }

    #[inline(always)]
    fn float(self, a: __m512i) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn negated(self, bytes: [u64; 2], negative: u16) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let integers = _mm512_cvtepi8_epi32(_mm_set_epi64x(bytes[1] as i64, bytes[0] as i64));
            _mm512_mask_sub_epi32(integers, negative, _mm512_setzero_si512(), integers)
        }
    }

    #[inline(always)]
    fn entries(self, table: &[i8; 16], packed: &[u8; LANES]) -> [__m512i; 2] {
        // SAFETY: `self` proves AVX-512.
        unsafe { looked_up(table, packed).map(|bytes| _mm512_cvtepi8_epi32(bytes)) }
    }

    #[inline(always)]
    fn entry_words(self, table: &[i8; 16], packed: &[u8; LANES]) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let [low, high] = looked_up(table, packed);
            _mm512_cvtepi8_epi16(_mm256_set_m128i(high, low))
        }
    }

    #[inline(always)]
    fn unsigned_words(self, bytes: &[u8; 2 * LANES]) -> __m512i {
        // SAFETY: `self` proves AVX-512; `bytes` is as long as what is loaded.
        unsafe { _mm512_cvtepu8_epi16(_mm256_loadu_si256(bytes.as_ptr().cast())) }
    }

    #[inline(always)]
    fn negated_words(self, bytes: [u64; 4], negative: u32) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let [low, high] = sixteens(bytes);
            let words = _mm512_cvtepi8_epi16(_mm256_set_m128i(high, low));
            _mm512_mask_sub_epi16(words, negative, _mm512_setzero_si512(), words)
        }
    }

    #[inline(always)]
    fn load_words(self, words: &[i16; 2 * LANES]) -> __m512i {
        // SAFETY: `self` proves AVX-512; `words` is as long as what is loaded.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_words(self, words: __m512i, to: &mut [i16; 2 * LANES]) {
        // SAFETY: `self` proves AVX-512; `to` is as long as what is stored.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), words) }
    }

    #[inline(always)]
    fn and_words(self, a: __m512i, b: u8) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_and_si512(a, _mm512_set1_epi16(i16::from(b))) }
    }

    #[inline(always)]
    fn or_words(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn shift_words_right<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_srli_epi16::<BITS>(a) }
    }

    #[inline(always)]
    fn shift_words_left<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_slli_epi16::<BITS>(a) }
    }

    #[inline(always)]
    fn pair_products(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_madd_epi16(a, b) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn splat_two(self, x: f32, y: f32) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(x), _mm512_set1_ps(y)) }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512; `x` is as long as what is loaded.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, x: __m512, to: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX-512; `to` is as long as what is stored.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn widen_f16(self, bytes: &[u8; 2 * LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512; `bytes` is as long as what is loaded.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().cast())) }
    }

    #[inline(always)]
    fn widen_bf16(self, bytes: &[u8; 2 * LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512; `bytes` is as long as what is loaded.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512; `bytes` is as long as what is loaded.
        unsafe { _mm512_loadu_ps(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn multiply(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn multiply_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_reduce_add_ps(a) }
    }

    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_reduce_max_ps(a) }
    }

    #[inline(always)]
    fn sums(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        // SAFETY: `self` proves AVX-512; `to` is as long as what is stored.
        unsafe {
            // Quarters of a, b, c and d, next to each other in each 128 bits.
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
            let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
            let four = _mm512_add_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
            let two = _mm512_add_ps(four, _mm512_shuffle_f32x4::<0b01_00_11_10>(four, four));
            let one = _mm512_add_ps(two, _mm512_shuffle_f32x4::<0b10_11_00_01>(two, two));
            let mut to = [0.0; 4];
            _mm_storeu_ps(to.as_mut_ptr(), _mm512_castps512_ps128(one));
            to
        }
    }

    #[inline(always)]
    fn two_halves(self, bytes: &[u8; 4]) -> (__m512, [f32; 2]) {
        // SAFETY: `self` proves AVX-512, and every processor that has it has F16C.
        unsafe {
            let (two, both) = two_halves(bytes);
            (_mm512_broadcastss_ps(two), both)
        }
    }

    #[inline(always)]
    fn transposed(self, rows: [__m512; LANES]) -> [__m512; LANES] {
        let mut fours = rows;
        let mut columns = rows;
        // SAFETY: `self` proves AVX-512.
        unsafe {
            // Within each 128 bits, four rows at a time.
            for first in (0..LANES).step_by(4) {
                let [a, b, c, d] = [rows[first], rows[first + 1], rows[first + 2], rows[first + 3]];
                let ab = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
                let cd = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
                fours[first] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
                fours[first + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
                let ab = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
                let cd = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
                fours[first + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
                fours[first + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
            }
            // The 128 bits themselves.
            for column in 0..4 {
                let [a, b, c, d] = [fours[column], fours[4 + column], fours[8 + column], fours[12 + column]];
                let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
                let odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
                let even_below = _mm512_shuffle_f32x4::<0b10_00_10_00>(c, d);
                let odd_below = _mm512_shuffle_f32x4::<0b11_01_11_01>(c, d);
                columns[column] = _mm512_shuffle_f32x4::<0b10_00_10_00>(even, even_below);
                columns[4 + column] = _mm512_shuffle_f32x4::<0b10_00_10_00>(odd, odd_below);
                columns[8 + column] = _mm512_shuffle_f32x4::<0b11_01_11_01>(even, even_below);
                columns[12 + column] = _mm512_shuffle_f32x4::<0b11_01_11_01>(odd, odd_below);
            }
        }
        columns
    }
}

/// AVX2, FMA and F16C: two registers for sixteen numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool = false>(pulp::x86::V3);

impl<const VNNI: bool> Avx2<VNNI> {
    /// Where the processor has these instructions, and AVX-VNNI where that is asked for.
    pub(crate) fn try_new() -> Option<Self> {
        // Every processor with AVX2 has F16C, but AVX2 does not prove it.
        let has_all = std::arch::is_x86_feature_detected!("f16c")
            && (!VNNI || std::arch::is_x86_feature_detected!("avxvnni"));
        pulp::x86::V3::try_new().filter(|_| has_all).map(Self)
    }

    pub(crate) fn simd(self) -> pulp::x86::V3 {
        self.0
    }
}

impl<const VNNI: bool> Lanes for Avx2<VNNI> {
    type Floats = [__m256; 2];
    type Integers = [__m256i; 2];
    type Words = [__m256i; 2];

    const ROWS: usize = 2;
    const REGISTERS: usize = 8;
    const FUSED: bool = true;

    #[inline(always)]
    fn unsigned(self, bytes: &[u8; LANES]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2; `bytes` is as long as what is loaded.
        unsafe {
            [
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.as_ptr().cast())),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.as_ptr().add(8).cast())),
            ]
        }
    }

    #[inline(always)]
    fn signed(self, bytes: &[u8; LANES]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2; `bytes` is as long as what is loaded.
        unsafe {
            [
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes.as_ptr().cast())),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes.as_ptr().add(8).cast())),
            ]
        }
    }

    #[inline(always)]
    fn and(self, a: [__m256i; 2], b: u8) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            [
                _mm256_and_si256(a[0], _mm256_set1_epi32(i32::from(b))),
                _mm256_and_si256(a[1], _mm256_set1_epi32(i32::from(b))),
            ]
        }
    }

    #[inline(always)]
    fn or(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, a: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            [
                _mm256_srl_epi32(a[0], _mm_cvtsi32_si128(BITS as i32)),
                _mm256_srl_epi32(a[1], _mm_cvtsi32_si128(BITS as i32)),
            ]
        }
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            [
                _mm256_sll_epi32(a[0], _mm_cvtsi32_si128(BITS as i32)),
                _mm256_sll_epi32(a[1], _mm_cvtsi32_si128(BITS as i32)),
            ]
        }
    }

    #[inline(always)]
    fn where_set(self, bits: u16, value: u8) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let places = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let set = [
                _mm256_and_si256(_mm256_set1_epi32(i32::from(bits)), places),
                _mm256_and_si256(_mm256_set1_epi32(i32::from(bits >> 8)), places),
            ];
            let value = _mm256_set1_epi32(i32::from(value));
            [
                _mm256_and_si256(_mm256_cmpeq_epi32(set[0], places), value),
                _mm256_and_si256(_mm256_cmpeq_epi32(set[1], places), value),
            ]
        }
    }

    #[inline(always)]
    fn float(self, a: [__m256i; 2]) -> [__m256; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])] }
    }

    #[inline(always)]
    fn negated(self, bytes: [u64; 2], negative: u16) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let bytes = negated(_mm_set_epi64x(bytes[1] as i64, bytes[0] as i64), negative);
            [_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes))]
        }
    }

    #[inline(always)]
    fn entries(self, table: &[i8; 16], packed: &[u8; LANES]) -> [[__m256i; 2]; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            looked_up(table, packed).map(|bytes| {
                [_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes))]
            })
        }
    }

    #[inline(always)]
    fn entry_words(self, table: &[i8; 16], packed: &[u8; LANES]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe { looked_up(table, packed).map(|bytes| _mm256_cvtepi8_epi16(bytes)) }
    }

    #[inline(always)]
    fn unsigned_words(self, bytes: &[u8; 2 * LANES]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2; `bytes` is as long as what is loaded.
        unsafe {
            [
                _mm256_cvtepu8_epi16(_mm_loadu_si128(bytes.as_ptr().cast())),
                _mm256_cvtepu8_epi16(_mm_loadu_si128(bytes.as_ptr().add(16).cast())),
            ]
        }
    }

    #[inline(always)]
    fn negated_words(self, bytes: [u64; 4], negative: u32) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let [low, high] = sixteens(bytes);
            [
                _mm256_cvtepi8_epi16(negated(low, negative as u16)),
                _mm256_cvtepi8_epi16(negated(high, (negative >> 16) as u16)),
            ]
        }
    }

    #[inline(always)]
    fn load_words(self, words: &[i16; 2 * LANES]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2; `words` is as long as what is loaded.
        unsafe {
            [_mm256_loadu_si256(words.as_ptr().cast()), _mm256_loadu_si256(words.as_ptr().add(16).cast())]
        }
    }

    #[inline(always)]
    fn store_words(self, words: [__m256i; 2], to: &mut [i16; 2 * LANES]) {
        // SAFETY: `self` proves AVX2; `to` is as long as what is stored.
        unsafe {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), words[0]);
            _mm256_storeu_si256(to.as_mut_ptr().add(16).cast(), words[1]);
        }
    }

    #[inline(always)]
    fn and_words(self, a: [__m256i; 2], b: u8) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let mask = _mm256_set1_epi16(i16::from(b));
            [_mm256_and_si256(a[0], mask), _mm256_and_si256(a[1], mask)]
        }
    }

    #[inline(always)]
    fn or_words(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn shift_words_right<const BITS: u32>(self, a: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let by = _mm_cvtsi32_si128(BITS as i32);
            [_mm256_srl_epi16(a[0], by), _mm256_srl_epi16(a[1], by)]
        }
    }

    #[inline(always)]
    fn shift_words_left<const BITS: u32>(self, a: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let by = _mm_cvtsi32_si128(BITS as i32);
            [_mm256_sll_epi16(a[0], by), _mm256_sll_epi16(a[1], by)]
        }
    }

    #[inline(always)]
    fn pair_products(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_madd_epi16(a[0], b[0]), _mm256_madd_epi16(a[1], b[1])] }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> [__m256; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    fn splat_two(self, x: f32, y: f32) -> [__m256; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_set1_ps(x), _mm256_set1_ps(y)] }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> [__m256; 2] {
        // SAFETY: `self` proves AVX2; `x` is as long as what is loaded.
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }

    #[inline(always)]
    fn store(self, x: [__m256; 2], to: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX2; `to` is as long as what is stored.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), x[1]);
        }
    }

    #[inline(always)]
    fn widen_f16(self, bytes: &[u8; 2 * LANES]) -> [__m256; 2] {
        // SAFETY: `self` proves F16C; `bytes` is as long as what is loaded.
        unsafe { [0, 16].map(|at| _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().add(at).cast()))) }
    }

    #[inline(always)]
    fn widen_bf16(self, bytes: &[u8; 2 * LANES]) -> [__m256; 2] {
        // SAFETY: `self` proves AVX2; `bytes` is as long as what is loaded.
        unsafe { [eight_bf16(bytes.as_ptr()), eight_bf16(bytes.as_ptr().add(16))] }
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> [__m256; 2] {
        // SAFETY: `self` proves AVX2; `bytes` is as long as what is loaded.
        unsafe { [_mm256_loadu_ps(bytes.as_ptr().cast()), _mm256_loadu_ps(bytes.as_ptr().add(32).cast())] }
    }

    #[inline(always)]
    fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn multiply(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn multiply_add(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn sum(self, a: [__m256; 2]) -> f32 {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let eight = _mm256_add_ps(a[0], a[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn largest(self, a: [__m256; 2]) -> f32 {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let eight = _mm256_max_ps(a[0], a[1]);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn sums(self, a: [[__m256; 2]; 4]) -> [f32; 4] {
        // SAFETY: `self` proves AVX2; `to` is as long as what is stored.
        unsafe {
            let [a, b, c, d] = a.map(|a| _mm256_add_ps(a[0], a[1]));
            let eight = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let mut to = [0.0; 4];
            _mm_storeu_ps(to.as_mut_ptr(), four);
            to
        }
    }

    #[inline(always)]
    fn two_halves(self, bytes: &[u8; 4]) -> ([__m256; 2], [f32; 2]) {
        // SAFETY: `self` proves AVX2 and F16C.
        unsafe {
            let (two, both) = two_halves(bytes);
            ([_mm256_broadcastss_ps(two); 2], both)
        }
    }

    #[inline(always)]
    fn transposed(self, rows: [[__m256; 2]; LANES]) -> [[__m256; 2]; LANES] {
        let mut columns = rows;
        for (first_row, half_row) in [(0, 0), (8, 1)] {
            for (half, first_column) in [(0, 0), (1, 8)] {
                let mut eight = [rows[first_row][half]; 8];
                for row in 1..8 {
                    eight[row] = rows[first_row + row][half];
                }
                // SAFETY: `self` proves AVX2.
                let transposed = unsafe { eight_transposed(eight) };
                for column in 0..8 {
                    columns[first_column + column][half_row] = transposed[column];
                }
            }
        }
        columns
    }

    /// Eight rows of eight at a time: registers hold no more.
    #[inline(always)]
    fn transpose(self, from: &[f32], from_stride: usize, to: &mut [f32], to_stride: usize) {
        for (row, column) in [(0, 0), (8, 0), (0, 8), (8, 8)] {
            let eight_rows = |stride: usize| stride.saturating_mul(7).saturating_add(8);
            let from = &from[row * from_stride + column..][..eight_rows(from_stride)];
            let to = &mut to[column * to_stride + row..][..eight_rows(to_stride)];
            // SAFETY: `self` proves AVX2; both slices have eight rows of eight.
            unsafe {
                let mut eight = [_mm256_setzero_ps(); 8];
                for (index, row) in eight.iter_mut().enumerate() {
                    *row = _mm256_loadu_ps(from.as_ptr().add(index * from_stride));
                }
                for (index, column) in eight_transposed(eight).into_iter().enumerate() {
                    _mm256_storeu_ps(to.as_mut_ptr().add(index * to_stride), column);
                }
            }
        }
    }
}

/// Two f16, in the first two lanes and as numbers. Both are loaded though often one is wanted: inserting a single f16 into a register that
/// holds a sum would make each block wait for the one before.
///
/// # Safety
/// F16C.
#[inline(always)]
unsafe fn two_halves(bytes: &[u8; 4]) -> (__m128, [f32; 2]) {
    // SAFETY: the caller has F16C.
    unsafe {
        let two = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes(*bytes)));
        (two, [_mm_cvtss_f32(two), _mm_cvtss_f32(_mm_movehdup_ps(two))])
    }
}

/// The columns of eight rows.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn eight_transposed(rows: [__m256; 8]) -> [__m256; 8] {
    let mut fours = rows;
    let mut columns = rows;
    // SAFETY: the caller has AVX2.
    unsafe {
        for first in [0, 4] {
            let [a, b, c, d] = [rows[first], rows[first + 1], rows[first + 2], rows[first + 3]];
            let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
            fours[first] = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
            fours[first + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd);
            let (ab, cd) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
            fours[first + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
            fours[first + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd);
        }
        for column in 0..4 {
            columns[column] = _mm256_permute2f128_ps::<0x20>(fours[column], fours[4 + column]);
            columns[4 + column] = _mm256_permute2f128_ps::<0x31>(fours[column], fours[4 + column]);
        }
    }
    columns
}

/// # Safety
/// SSE2.
#[inline(always)]
unsafe fn sixteens(eights: [u64; 4]) -> [__m128i; 2] {
    let [a, b, c, d] = eights.map(|eight| eight as i64);
    // SAFETY: the caller has SSE2.
    unsafe { [_mm_set_epi64x(b, a), _mm_set_epi64x(d, c)] }
}

/// Bytes times −1 where a bit is set; −128 stays.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn negated(bytes: __m128i, negative: u16) -> __m128i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let places = _mm_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
        let eight_times_each = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        let spread = _mm_shuffle_epi8(_mm_set1_epi16(negative as i16), eight_times_each);
        let is_negative = _mm_cmpeq_epi8(_mm_and_si128(spread, places), places);
        _mm_sub_epi8(_mm_xor_si128(bytes, is_negative), is_negative)
    }
}

/// Entries of a table at the low and at the high four bits of each byte.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn looked_up(table: &[i8; 16], packed: &[u8; LANES]) -> [__m128i; 2] {
    // SAFETY: the caller has AVX2; both arrays have the sixteen bytes that are loaded.
    unsafe {
        let (table, packed) =
            (_mm_loadu_si128(table.as_ptr().cast()), _mm_loadu_si128(packed.as_ptr().cast()));
        let four_bits = _mm_set1_epi8(15);
        let low = _mm_and_si128(packed, four_bits);
        let high = _mm_and_si128(_mm_srli_epi16::<4>(packed), four_bits);
        [_mm_shuffle_epi8(table, low), _mm_shuffle_epi8(table, high)]
    }
}

/// # Safety
/// AVX2; sixteen bytes.
#[inline(always)]
unsafe fn eight_bf16(bytes: *const u8) -> __m256 {
    // SAFETY: the caller has AVX2 and gives sixteen bytes.
    unsafe {
        let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
    }
}
