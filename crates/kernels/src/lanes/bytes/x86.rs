//! AVX2 with F16C, with and without AVX-VNNI, and AVX-512 with VNNI.

use super::super::{Avx2, Avx512, LANES};
use super::{BYTES, ByteLanes, Quants, RowByRow, Start, Vector};
use std::arch::x86_64::*;

/// One of four bits for each byte of four.
const FOUR_BITS: i32 = 0x0804_0201;

impl ByteLanes for Avx512<true> {
    type Bytes = __m512i;

    #[inline(always)]
    fn load_64(self, bytes: &[u8; BYTES]) -> __m512i {
        // SAFETY: `self` proves AVX-512; `bytes` is as long as what is loaded.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_64(self, bytes: __m512i, to: &mut [u8; BYTES]) {
        // SAFETY: `self` proves AVX-512; `to` is as long as what is stored.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), bytes) }
    }

    #[inline(always)]
    fn columns(self, rows: RowByRow<'_>, at: usize) -> [__m512i; 4] {
        // SAFETY: `self` proves AVX-512; parts are as long as what is loaded.
        unsafe {
            let mut fours = [_mm512_setzero_si512(); 4];
            for (i, four) in fours.iter_mut().enumerate() {
                // Rows i, 4 + i, 8 + i, 12 + i.
                let a = _mm_loadu_si128(rows.part::<16>(i, at).as_ptr().cast());
                let b = _mm_loadu_si128(rows.part::<16>(4 + i, at).as_ptr().cast());
                let c = _mm_loadu_si128(rows.part::<16>(8 + i, at).as_ptr().cast());
                let d = _mm_loadu_si128(rows.part::<16>(12 + i, at).as_ptr().cast());
                let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
                let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
                *four = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            }
            let [a, b, c, d] = fours;
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab, cd),
                _mm512_unpackhi_epi64(ab, cd),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ]
        }
    }

    #[inline(always)]
    fn bits(self, a: __m512i, right: u32, mask: u8) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let shifted = if right == 0 { a } else { _mm512_srl_epi16(a, _mm_cvtsi32_si128(right as i32)) };
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }

    #[inline(always)]
    fn shift_64_left<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_slli_epi16::<BITS>(a) }
    }

    #[inline(always)]
    fn or_64(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn entries_of(self, table: &[i8; 16], indices: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512; `table` is as long as what is loaded.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, indices)
        }
    }

    #[inline(always)]
    fn where_bits(self, numbers: &[u32; LANES], first: u32, value: u8) -> __m512i {
        // SAFETY: `self` proves AVX-512; `numbers` are as long as what is loaded.
        unsafe {
            let numbers = _mm512_loadu_si512(numbers.as_ptr().cast());
            let four = _mm512_srl_epi32(numbers, _mm_cvtsi32_si128(first as i32));
            let byte_of_each =
                _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
            let set =
                _mm512_test_epi8_mask(_mm512_shuffle_epi8(four, byte_of_each), _mm512_set1_epi32(FOUR_BITS));
            _mm512_maskz_set1_epi8(set, value as i8)
        }
    }

    #[inline(always)]
    fn integers(self, a: __m512i) -> __m512i {
        a
    }

    #[inline(always)]
    fn signed_byte<const LEFT: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_srai_epi32::<24>(_mm512_slli_epi32::<LEFT>(a)) }
    }

    #[inline(always)]
    fn two_halves_each(self, numbers: &[u32; LANES]) -> [__m512; 2] {
        // SAFETY: `self` proves AVX-512; `numbers` are as long as what is loaded.
        unsafe {
            let numbers = _mm512_loadu_si512(numbers.as_ptr().cast());
            [
                _mm512_cvtph_ps(_mm512_cvtepi32_epi16(numbers)),
                _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(numbers))),
            ]
        }
    }

    #[inline(always)]
    fn plus(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn bytes(self, a: __m512i) -> __m512i {
        a
    }

    #[inline(always)]
    fn plus_scaled(self, sums: __m512i, scales: __m512i, products: __m512i, start: i32) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let products = _mm512_add_epi32(products, _mm512_set1_epi32(start));
            _mm512_add_epi32(sums, _mm512_mullo_epi32(scales, products))
        }
    }

    /// 128 more, which is unsigned.
    #[inline(always)]
    fn signed_quants(self, w: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_xor_si512(w, _mm512_set1_epi8(-128)) }
    }

    #[inline(always)]
    fn products<const N: usize>(
        self,
        w: &[__m512i; N],
        x: &[[i8; 4]; N],
        quants: Quants,
        start: i32,
    ) -> __m512i {
        // SAFETY: `self` proves AVX-512 and VNNI.
        unsafe {
            let mut sums = if quants.signed { _mm512_set1_epi32(start) } else { _mm512_setzero_si512() };
            for i in 0..N {
                let x = _mm512_set1_epi32(word(x[i]));
                sums = _mm512_dpbusd_epi32(sums, w[i], x);
            }
            sums
        }
    }
}

/// Four activations as one number, which fills a vector.
#[inline(always)]
fn word([a, b, c, d]: [i8; 4]) -> i32 {
    i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8])
}

/// f16 that [`_mm256_packus_epi32`] has packed.
///
/// # Safety
/// AVX2 and F16C.
#[inline(always)]
unsafe fn sixteen_halves(packed: __m256i) -> [__m256; 2] {
    // SAFETY: the caller has AVX2 and F16C.
    unsafe {
        let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
        [
            _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)),
        ]
    }
}

/// Adds to each sum the products of four unsigned bytes of `w` with four signed bytes of `x`. In tests, a processor without the
/// instruction computes the same sums by others.
///
/// # Safety
/// AVX-VNNI; in tests AVX2.
#[inline(always)]
unsafe fn plus_products(sums: __m256i, w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller has what is used.
    unsafe {
        #[cfg(test)]
        if !std::arch::is_x86_feature_detected!("avxvnni") {
            let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(w), _mm256_srai_epi16::<8>(x));
            let even = _mm256_and_si256(w, _mm256_set1_epi16(0xff));
            let even = _mm256_madd_epi16(even, _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)));
            return _mm256_add_epi32(sums, _mm256_add_epi32(even, odd));
        }
        _mm256_dpbusd_avx_epi32(sums, w, x)
    }
}

impl<const VNNI: bool> ByteLanes for Avx2<VNNI> {
    /// Eight rows each.
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

    // Indices: with iterators single rows took a third longer.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    fn columns(self, rows: RowByRow<'_>, at: usize) -> [[__m256i; 2]; 4] {
        // SAFETY: `self` proves AVX2; parts are as long as what is loaded.
        unsafe {
            let mut columns = [[_mm256_setzero_si256(); 2]; 4];
            for half in 0..2 {
                let mut fours = [_mm256_setzero_si256(); 4];
                for i in 0..4 {
                    // Rows i and 4 + i of eight.
                    let a = _mm_loadu_si128(rows.part::<16>(8 * half + i, at).as_ptr().cast());
                    let b = _mm_loadu_si128(rows.part::<16>(8 * half + 4 + i, at).as_ptr().cast());
                    fours[i] = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
                }
                let [a, b, c, d] = fours;
                let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
                let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
                columns[0][half] = _mm256_unpacklo_epi64(ab, cd);
                columns[1][half] = _mm256_unpackhi_epi64(ab, cd);
                columns[2][half] = _mm256_unpacklo_epi64(ab_high, cd_high);
                columns[3][half] = _mm256_unpackhi_epi64(ab_high, cd_high);
            }
            columns
        }
    }

    #[inline(always)]
    fn bits(self, a: [__m256i; 2], right: u32, mask: u8) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let mask = _mm256_set1_epi8(mask as i8);
            if right == 0 {
                return [_mm256_and_si256(a[0], mask), _mm256_and_si256(a[1], mask)];
            }
            let by = _mm_cvtsi32_si128(right as i32);
            [
                _mm256_and_si256(_mm256_srl_epi16(a[0], by), mask),
                _mm256_and_si256(_mm256_srl_epi16(a[1], by), mask),
            ]
        }
    }

    #[inline(always)]
    fn shift_64_left<const BITS: u32>(self, a: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let by = _mm_cvtsi32_si128(BITS as i32);
            [_mm256_sll_epi16(a[0], by), _mm256_sll_epi16(a[1], by)]
        }
    }

    #[inline(always)]
    fn or_64(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
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
    fn where_bits(self, numbers: &[u32; LANES], first: u32, value: u8) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2; `numbers` are as long as what is loaded.
        unsafe {
            let by = _mm_cvtsi32_si128(first as i32);
            let places = _mm256_set1_epi32(FOUR_BITS);
            let byte_of_each =
                _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
            let value = _mm256_set1_epi8(value as i8);
            let mut bytes = [_mm256_setzero_si256(); 2];
            for (half, bytes) in bytes.iter_mut().enumerate() {
                let numbers = _mm256_loadu_si256(numbers.as_ptr().add(8 * half).cast());
                let four = _mm256_shuffle_epi8(_mm256_srl_epi32(numbers, by), byte_of_each);
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(four, places), places);
                *bytes = _mm256_and_si256(set, value);
            }
            bytes
        }
    }

    #[inline(always)]
    fn integers(self, a: [__m256i; 2]) -> [__m256i; 2] {
        a
    }

    #[inline(always)]
    fn signed_byte<const LEFT: u32>(self, a: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let by = _mm_cvtsi32_si128(LEFT as i32);
            [
                _mm256_srai_epi32::<24>(_mm256_sll_epi32(a[0], by)),
                _mm256_srai_epi32::<24>(_mm256_sll_epi32(a[1], by)),
            ]
        }
    }

    #[inline(always)]
    fn two_halves_each(self, numbers: &[u32; LANES]) -> [[__m256; 2]; 2] {
        // SAFETY: `self` proves AVX2, with F16C; `numbers` are as long as what is loaded.
        unsafe {
            let a = _mm256_loadu_si256(numbers.as_ptr().cast());
            let b = _mm256_loadu_si256(numbers.as_ptr().add(8).cast());
            let low = _mm256_set1_epi32(0xffff);
            let low = _mm256_packus_epi32(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
            let high = _mm256_packus_epi32(_mm256_srli_epi32::<16>(a), _mm256_srli_epi32::<16>(b));
            [sixteen_halves(low), sixteen_halves(high)]
        }
    }

    #[inline(always)]
    fn plus(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn bytes(self, a: [__m256i; 2]) -> [__m256i; 2] {
        a
    }

    #[inline(always)]
    fn plus_scaled(
        self,
        sums: [__m256i; 2],
        scales: [__m256i; 2],
        products: [__m256i; 2],
        start: i32,
    ) -> [__m256i; 2] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let start = _mm256_set1_epi32(start);
            let scaled = |i: usize| _mm256_mullo_epi32(scales[i], _mm256_add_epi32(products[i], start));
            [_mm256_add_epi32(sums[0], scaled(0)), _mm256_add_epi32(sums[1], scaled(1))]
        }
    }

    /// Without VNNI twice, as numbers of sixteen bits: one for each two products.
    #[inline(always)]
    fn scale_byte<const LEFT: u32>(self, a: [__m256i; 2]) -> [__m256i; 2] {
        if VNNI {
            return self.signed_byte::<LEFT>(a);
        }
        // SAFETY: `self` proves AVX2.
        unsafe {
            // The byte goes into the upper one of each number, and zeros below it.
            let of_row = |row: i32| {
                let byte = 4 * row + 3 - LEFT as i32 / 8;
                byte << 8 | byte << 24 | 0x0080_0080
            };
            let upper = _mm256_setr_epi32(
                of_row(0),
                of_row(1),
                of_row(2),
                of_row(3),
                of_row(0),
                of_row(1),
                of_row(2),
                of_row(3),
            );
            let number = |a| _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(a, upper));
            [number(a[0]), number(a[1])]
        }
    }

    #[inline(always)]
    fn scaled_products(
        self,
        sums: [__m256i; 2],
        scales: [__m256i; 2],
        w: &[[__m256i; 2]; 4],
        x: &[[i8; 4]; 4],
        start: Start,
    ) -> [__m256i; 2] {
        if VNNI {
            let products = self.products(w, x, Quants::SIX_BITS, 0);
            return self.plus_scaled(sums, scales, products, start.whole);
        }
        self.few_scaled([sums], scales, |i| w[i], [x], [start])[0]
    }

    #[inline(always)]
    fn scaled_products_of_rows<const M: usize>(
        self,
        mut sums: [[__m256i; 2]; M],
        scales: [__m256i; 2],
        w: &[Vector<u8, BYTES>; 4],
        x: [&[[i8; 4]; 4]; M],
        starts: [Start; M],
    ) -> [[__m256i; 2]; M] {
        if VNNI {
            let products = self.products_of_rows(w, x, Quants::SIX_BITS, [0; M]);
            for m in 0..M {
                sums[m] = self.plus_scaled(sums[m], scales, products[m], starts[m].whole);
            }
            return sums;
        }
        self.few_scaled(sums, scales, |i| self.load_64(&w[i].0), x, starts)
    }

    /// With VNNI 128 more, which is unsigned.
    #[inline(always)]
    fn signed_quants(self, w: [__m256i; 2]) -> [__m256i; 2] {
        if !VNNI {
            return w;
        }
        // SAFETY: `self` proves AVX2.
        unsafe {
            let more = _mm256_set1_epi8(-128);
            [_mm256_xor_si256(w[0], more), _mm256_xor_si256(w[1], more)]
        }
    }

    #[inline(always)]
    fn products<const N: usize>(
        self,
        w: &[[__m256i; 2]; N],
        x: &[[i8; 4]; N],
        quants: Quants,
        start: i32,
    ) -> [__m256i; 2] {
        self.few_rows(|i| w[i], &[x], quants, &[start])[0]
    }

    #[inline(always)]
    fn rows_at_once(self, quants: Quants) -> usize {
        // As many as registers hold the sums of, in 32 bits and where need be in sixteen.
        if !VNNI && (2..4).contains(&pairs_at_once(quants)) { 2 } else { 4 }
    }

    #[inline(always)]
    fn products_of_rows<const M: usize, const N: usize>(
        self,
        w: &[Vector<u8, BYTES>; N],
        x: [&[[i8; 4]; N]; M],
        quants: Quants,
        starts: [i32; M],
    ) -> [[__m256i; 2]; M] {
        self.few_rows(|i| self.load_64(&w[i].0), &x, quants, &starts)
    }
}

/// How many products of two pairs sixteen bits hold the sum of.
#[inline(always)]
const fn pairs_at_once(quants: Quants) -> usize {
    (i16::MAX as i32 / (2 * 127 * quants.most)) as usize
}

/// The same sums. The compiler knows nothing of them, and so adds to them in the order that is written, in as many registers.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(mut sums: __m256i) -> __m256i {
    // SAFETY: nothing is executed.
    unsafe {
        std::arch::asm!("/* {0} */", inout(ymm_reg) sums, options(nomem, nostack, preserves_flags));
    }
    sums
}

impl<const VNNI: bool> Avx2<VNNI> {
    /// [`ByteLanes::scaled_products`] with M rows without VNNI. Sixteen bits hold the sum of eight products: (w − 32)·x is at most 32·127.
    #[inline(always)]
    fn few_scaled<const M: usize>(
        self,
        mut sums: [[__m256i; 2]; M],
        scales: [__m256i; 2],
        w: impl Fn(usize) -> [__m256i; 2],
        x: [&[[i8; 4]; 4]; M],
        starts: [Start; M],
    ) -> [[__m256i; 2]; M] {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let mut few = [[_mm256_setzero_si256(); 2]; M];
            for m in 0..M {
                few[m] = [_mm256_set1_epi32(bytemuck::cast(starts[m].pairs)); 2];
            }
            for i in 0..4 {
                let w = w(i);
                for m in 0..M {
                    let x = _mm256_set1_epi32(word(x[m][i]));
                    for half in 0..2 {
                        let products = _mm256_maddubs_epi16(w[half], x);
                        few[m][half] = _mm256_add_epi16(few[m][half], products);
                    }
                }
            }
            for m in 0..M {
                for half in 0..2 {
                    let scaled = _mm256_madd_epi16(few[m][half], scales[half]);
                    sums[m][half] = _mm256_add_epi32(sums[m][half], scaled);
                }
            }
            sums
        }
    }

    /// The products with M rows, each vector of w loaded once for them.
    #[inline(always)]
    fn few_rows<const M: usize, const N: usize>(
        self,
        w: impl Fn(usize) -> [__m256i; 2],
        x: &[&[[i8; 4]; N]; M],
        quants: Quants,
        starts: &[i32; M],
    ) -> [[__m256i; 2]; M] {
        // SAFETY: `self` proves AVX2, and with `VNNI` AVX-VNNI; where tests have none, they have AVX2.
        unsafe {
            let mut sums = [[_mm256_setzero_si256(); 2]; M];
            if VNNI {
                for m in 0..M {
                    sums[m] = [_mm256_set1_epi32(if quants.signed { starts[m] } else { 0 }); 2];
                }
                for i in 0..N {
                    let w = w(i);
                    for m in 0..M {
                        let x = _mm256_set1_epi32(word(x[m][i]));
                        sums[m][0] = plus_products(sums[m][0], w[0], x);
                        sums[m][1] = plus_products(sums[m][1], w[1], x);
                    }
                }
                return sums;
            }
            let (ones, at_once) = (_mm256_set1_epi16(1), pairs_at_once(quants));
            let mut few = sums;
            for i in 0..N {
                let w = w(i);
                for m in 0..M {
                    let x = _mm256_set1_epi32(word(x[m][i]));
                    for half in 0..2 {
                        let w = w[half];
                        let products = match quants.signed {
                            // |w|·(x with the sign of w).
                            true => _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)),
                            false => _mm256_maddubs_epi16(w, x),
                        };
                        let first = i % at_once == 0;
                        if first {
                            few[m][half] = products;
                        } else {
                            few[m][half] = _mm256_add_epi16(few[m][half], products);
                            if at_once >= N {
                                few[m][half] = in_order(few[m][half]);
                            }
                        }
                        if i % at_once + 1 == at_once || i + 1 == N {
                            let pairs = _mm256_madd_epi16(few[m][half], ones);
                            sums[m][half] = _mm256_add_epi32(sums[m][half], pairs);
                        }
                    }
                }
            }
            sums
        }
    }
}
