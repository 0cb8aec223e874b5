//! Grids of the IQ1, IQ2 and IQ3 types: which points of four or eight coordinates have numbers.
//!
//! They are data of the file format, from ggml's `ggml-common.h` as `gguf/quants.py` of the gguf package 0.19 packs it (MIT
//! licence, © The ggml authors): four hexadecimal digits for each point, which are eight times two bits or four times four
//! bits, the first coordinate in the lowest ones. The digits are files of one string each, which is one in C++ as well.

/// Points whose `N` coordinates are `values` of the digits.
const fn eights<const N: usize>(digits: &str, values: [u8; 3]) -> [u64; N] {
    let mut points = [0; N];
    let mut at = 0;
    while at < N {
        let packed = number(digits.as_bytes(), at);
        let mut i = 0;
        while i < 8 {
            points[at] |= (values[(packed >> (2 * i) & 3) as usize] as u64) << (8 * i);
            i += 1;
        }
        at += 1;
    }
    points
}

/// The same of four coordinates.
const fn fours<const N: usize>(digits: &str, values: [u8; 8]) -> [u32; N] {
    let mut points = [0; N];
    let mut at = 0;
    while at < N {
        let packed = number(digits.as_bytes(), at);
        let mut i = 0;
        while i < 4 {
            points[at] |= (values[(packed >> (4 * i) & 15) as usize] as u32) << (8 * i);
            i += 1;
        }
        at += 1;
    }
    points
}

/// Four hexadecimal digits.
const fn number(digits: &[u8], at: usize) -> u32 {
    let mut number = 0;
    let mut i = 0;
    while i < 4 {
        let digit = digits[4 * at + i];
        number = number << 4 | (if digit < b'a' { digit - b'0' } else { digit - b'a' + 10 }) as u32;
        i += 1;
    }
    number
}

/// Magnitudes of IQ2_XXS.
pub(super) static IQ2_XXS: [u64; 256] = eights(IQ2_XXS_DIGITS, [8, 25, 43]);

/// Magnitudes of IQ2_XS.
pub(super) static IQ2_XS: [u64; 512] = eights(IQ2_XS_DIGITS, [8, 25, 43]);

/// Magnitudes of IQ2_S.
pub(super) static IQ2_S: [u64; 1024] = eights(IQ2_S_DIGITS, [8, 25, 43]);

/// Magnitudes of IQ3_XXS.
pub(super) static IQ3_XXS: [u32; 256] = fours(IQ3_XXS_DIGITS, [4, 12, 20, 28, 36, 44, 52, 62]);

/// Magnitudes of IQ3_S.
pub(super) static IQ3_S: [u32; 512] = fours(IQ3_S_DIGITS, [1, 3, 5, 7, 9, 11, 13, 15]);

/// Points of IQ1_S and IQ1_M: −1, 0 and 1 are 0, 8 and 16.
pub(super) static IQ1: [u64; 2048] = eights(IQ1_DIGITS, [0, 8, 16]);

const IQ2_XXS_DIGITS: &str = include!("digits/iq2_xxs.digits");
const IQ2_XS_DIGITS: &str = include!("digits/iq2_xs.digits");
const IQ2_S_DIGITS: &str = include!("digits/iq2_s.digits");
const IQ3_XXS_DIGITS: &str = include!("digits/iq3_xxs.digits");
const IQ3_S_DIGITS: &str = include!("digits/iq3_s.digits");
const IQ1_DIGITS: &str = include!("digits/iq1.digits");
