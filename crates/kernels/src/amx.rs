//! Products of bf16 on tiles (AMX): one instruction multiplies sixteen rows of 32 columns with 32 rows of sixteen columns, and adds
//! the products to sums in f32. Numbers below the smallest normal one are taken as 0.
//!
//! A row of a tile is a [`Line`], of pairs of bf16 or of sums. Rust has no stable functions for these instructions; they are written as assembly.

use crate::line::{Line, NUMBERS};
use std::arch::asm;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Rows of a tile.
pub(crate) const ROWS: usize = 16;
/// Columns of both factors that are multiplied at a time.
pub(crate) const DEPTH: usize = 2 * NUMBERS;
/// The product has a multiple of as many columns: two tiles.
pub(crate) const WIDTH: usize = 2 * NUMBERS;

/// Parts of an f32: three bf16 whose sum it is.
pub(crate) const PARTS: usize = 3;
/// Columns of a product of parts.
pub(crate) const WIDTH_OF_PARTS: usize = 4 * NUMBERS;

/// Whether the processor multiplies tiles of bf16, beside all of AVX-512 that [`crate::Instructions`] knows, and the system lets it.
pub(crate) fn are_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| processor_has_amx() && system_grants_tiles())
}

fn processor_has_amx() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    let features = if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx };
    features & (BF16 | TILES) == BF16 | TILES
}

/// Asks Linux for the state of the tiles, which a process has to do once, and which fails where the system does not keep it. Other
/// systems are not asked.
fn system_grants_tiles() -> bool {
    #[cfg(target_os = "linux")]
    {
        const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
        const TILE_DATA: libc::c_ulong = 18;
        // SAFETY: asks for a permission, and reads and writes no memory.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// What the tiles of this thread are set to: all of sixteen rows of 64 bytes. Dropped, the thread has no tiles any more.
pub(crate) struct Amx {
    of_thread: PhantomData<*const ()>,
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Setting {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Amx {
    /// Sets the tiles of this thread.
    ///
    /// # Panics
    /// If the processor has none.
    pub(crate) fn new() -> Self {
        assert!(are_available(), "tiles of bf16");
        let mut setting =
            Setting { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        setting.row_bytes[..8].fill(size_of::<Line>() as u16);
        setting.rows[..8].fill(ROWS as u8);
        // SAFETY: the processor has tiles; the setting is one of theirs, and Rust uses none of them.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const setting, options(nostack, preserves_flags, readonly))
        };
        Self { of_thread: PhantomData }
    }

    /// Sums `[16·blocks, columns]` of `a · b` over `steps` steps of [`DEPTH`] columns of `a`, `[blocks, of, ROWS]` lines of pairs, from
    /// the one on that it begins with; `b` is `[16·steps, columns]` pairs. They are added to what is in the first rows, if any, and
    /// written to the second ones, anywhere in memory.
    ///
    /// # Panics
    /// If sizes do not agree; columns are a multiple of [`WIDTH`].
    ///
    /// # Safety
    /// Both are `16·blocks` rows of `columns` numbers, and nobody else reads or writes them.
    pub(crate) unsafe fn multiply_to(
        &self,
        columns: usize,
        (steps, of): (usize, usize),
        a: &[Line],
        b: &[Line],
        blocks: usize,
        (from, to): (Option<Rows>, Rows),
    ) {
        let lines = columns / NUMBERS;
        assert!(columns.is_multiple_of(WIDTH), "columns");
        assert!(steps > 0 && b.len() >= steps * NUMBERS * lines, "b");
        assert!(steps <= of && (blocks == 0 || a.len() >= ((blocks - 1) * of + steps) * ROWS), "a");
        let mut line = 0;
        while line < lines {
            let tiles = if line + 4 <= lines { 4 } else { 2 };
            for block in 0..blocks {
                // SAFETY: the tiles are set; sizes are checked above, and those of the sums are the caller's promise.
                unsafe {
                    let at = |rows: Rows| Rows {
                        start: rows.start.add(block * ROWS * rows.stride + line * NUMBERS),
                        ..rows
                    };
                    let a = a.as_ptr().add(block * of * ROWS);
                    let b = b.as_ptr().add(line);
                    match tiles {
                        4 => four_tiles(steps, lines, a, b, from.map(at), at(to)),
                        _ => two_tiles(steps, lines, a, b, from.map(at), at(to)),
                    }
                }
            }
            line += tiles;
        }
    }

    /// [`Self::multiply_to`] in f32, of [`WIDTH_OF_PARTS`] columns: `a` is `[blocks, of, PARTS, ROWS]` lines of pairs of parts, `b`
    /// `[steps, PARTS, 16, WIDTH_OF_PARTS]` pairs. Of nine products of two parts, the three smallest are left out: together at most
    /// 2⁻²⁵ of the product.
    ///
    /// # Safety
    /// As [`Self::multiply_to`].
    pub(crate) unsafe fn multiply_parts_to(
        &self,
        (steps, of): (usize, usize),
        a: &[Line],
        b: &[Line],
        blocks: usize,
        (from, to): (Option<Rows>, Rows),
    ) {
        assert!(steps > 0 && b.len() >= steps * PARTS * NUMBERS * WIDTH_OF_PARTS / NUMBERS, "b");
        assert!(steps <= of && (blocks == 0 || a.len() >= ((blocks - 1) * of + steps) * PARTS * ROWS), "a");
        for block in 0..blocks {
            // SAFETY: the tiles are set; sizes are checked above, and those of the sums are the caller's promise.
            unsafe {
                let at = |rows: Rows| rows.at_row(block * ROWS);
                four_tiles_of_parts(
                    steps,
                    a.as_ptr().add(block * of * PARTS * ROWS),
                    b.as_ptr(),
                    from.map(at),
                    at(to),
                );
            }
        }
    }
}

/// Rows of f32 in memory.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) start: *mut f32,
    /// Numbers between the beginnings of two rows.
    pub(crate) stride: usize,
}

impl Rows {
    /// Those from a row on.
    ///
    /// # Safety
    /// There are as many.
    pub(crate) unsafe fn at_row(self, row: usize) -> Self {
        // SAFETY: the caller's promise.
        Self { start: unsafe { self.start.add(row * self.stride) }, ..self }
    }
}

impl Drop for Amx {
    fn drop(&mut self) {
        // SAFETY: the processor has tiles, or there would be no `Amx`.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

/// A tile of rows times four of columns, all of whose sums are in tiles; lines of `b` are `lines` apart.
///
/// # Safety
/// The tiles are set; `a` has `steps` tiles, `b` as many times sixteen rows of at least four lines, the sums sixteen rows of as much.
unsafe fn four_tiles(
    steps: usize,
    lines: usize,
    a: *const Line,
    b: *const Line,
    from: Option<Rows>,
    to: Rows,
) {
    let from = from.unwrap_or(Rows { start: std::ptr::null_mut(), stride: 0 });
    // SAFETY: the caller's promise; Rust uses no tiles.
    unsafe {
        asm!(
            "test {from}, {from}",
            "jz 3f",
            "tileloadd tmm0, [{from} + {from_row}]",
            "tileloadd tmm1, [{from} + {from_row} + 64]",
            "tileloadd tmm2, [{from} + {from_row} + 128]",
            "tileloadd tmm3, [{from} + {from_row} + 192]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a} + {line}]",
            "tileloadd tmm5, [{b} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "tileloadd tmm6, [{b} + {row} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {row} + 128]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tileloadd tmm5, [{b} + {row} + 192]",
            "tdpbf16ps tmm3, tmm4, tmm5",
            "add {a}, 1024",
            "add {b}, {tile}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{to} + {to_row}], tmm0",
            "tilestored [{to} + {to_row} + 64], tmm1",
            "tilestored [{to} + {to_row} + 128], tmm2",
            "tilestored [{to} + {to_row} + 192], tmm3",
            steps = inout(reg) steps => _,
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            from = in(reg) from.start,
            from_row = in(reg) from.stride * size_of::<f32>(),
            to = in(reg) to.start,
            to_row = in(reg) to.stride * size_of::<f32>(),
            row = in(reg) lines * size_of::<Line>(),
            tile = in(reg) ROWS * lines * size_of::<Line>(),
            line = in(reg) size_of::<Line>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// [`four_tiles`] of parts: the smallest products come first. Those that follow each other go to different sums.
///
/// # Safety
/// As [`four_tiles`], with [`PARTS`] tiles in `a` for each step, and as many times sixteen rows of four lines in `b`.
unsafe fn four_tiles_of_parts(steps: usize, a: *const Line, b: *const Line, from: Option<Rows>, to: Rows) {
    /// The products of the part of `a` in a tile and one of `b`, so many bytes behind the first one. Tiles of `b` take turns, so that
    /// loads need not wait for products.
    macro_rules! products {
        ($at:literal, $b0:literal, $b1:literal, $b2:literal) => {
            concat!(
                "tileloadd ",
                $b0,
                ", [{b} + {row} + ",
                $at,
                "]\n",
                "tileloadd ",
                $b1,
                ", [{b} + {row} + ",
                $at,
                " + 64]\n",
                "tdpbf16ps tmm0, tmm4, ",
                $b0,
                "\n",
                "tileloadd ",
                $b2,
                ", [{b} + {row} + ",
                $at,
                " + 128]\n",
                "tdpbf16ps tmm1, tmm4, ",
                $b1,
                "\n",
                "tileloadd ",
                $b0,
                ", [{b} + {row} + ",
                $at,
                " + 192]\n",
                "tdpbf16ps tmm2, tmm4, ",
                $b2,
                "\n",
                "tdpbf16ps tmm3, tmm4, ",
                $b0,
            )
        };
    }
    let from = from.unwrap_or(Rows { start: std::ptr::null_mut(), stride: 0 });
    // SAFETY: the caller's promise; Rust uses no tiles.
    unsafe {
        asm!(
            "test {from}, {from}",
            "jz 3f",
            "tileloadd tmm0, [{from} + {from_row}]",
            "tileloadd tmm1, [{from} + {from_row} + 64]",
            "tileloadd tmm2, [{from} + {from_row} + 128]",
            "tileloadd tmm3, [{from} + {from_row} + 192]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a} + {line} + 2048]",
            products!("0", "tmm5", "tmm6", "tmm7"),
            "tileloadd tmm4, [{a} + {line} + 1024]",
            products!("4096", "tmm6", "tmm7", "tmm5"),
            products!("0", "tmm7", "tmm5", "tmm6"),
            "tileloadd tmm4, [{a} + {line}]",
            products!("8192", "tmm5", "tmm6", "tmm7"),
            products!("4096", "tmm6", "tmm7", "tmm5"),
            products!("0", "tmm7", "tmm5", "tmm6"),
            "add {a}, 3072",
            "add {b}, 12288",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{to} + {to_row}], tmm0",
            "tilestored [{to} + {to_row} + 64], tmm1",
            "tilestored [{to} + {to_row} + 128], tmm2",
            "tilestored [{to} + {to_row} + 192], tmm3",
            steps = inout(reg) steps => _,
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            from = in(reg) from.start,
            from_row = in(reg) from.stride * size_of::<f32>(),
            to = in(reg) to.start,
            to_row = in(reg) to.stride * size_of::<f32>(),
            row = in(reg) WIDTH_OF_PARTS * size_of::<f32>(),
            line = in(reg) size_of::<Line>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// A tile of rows times two of columns.
///
/// # Safety
/// As [`four_tiles`], of two lines.
unsafe fn two_tiles(
    steps: usize,
    lines: usize,
    a: *const Line,
    b: *const Line,
    from: Option<Rows>,
    to: Rows,
) {
    let from = from.unwrap_or(Rows { start: std::ptr::null_mut(), stride: 0 });
    // SAFETY: the caller's promise; Rust uses no tiles.
    unsafe {
        asm!(
            "test {from}, {from}",
            "jz 3f",
            "tileloadd tmm0, [{from} + {from_row}]",
            "tileloadd tmm1, [{from} + {from_row} + 64]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm4, [{a} + {line}]",
            "tileloadd tmm6, [{b} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {row} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {a}, 1024",
            "add {b}, {tile}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{to} + {to_row}], tmm0",
            "tilestored [{to} + {to_row} + 64], tmm1",
            steps = inout(reg) steps => _,
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            from = in(reg) from.start,
            from_row = in(reg) from.stride * size_of::<f32>(),
            to = in(reg) to.start,
            to_row = in(reg) to.stride * size_of::<f32>(),
            row = in(reg) lines * size_of::<Line>(),
            tile = in(reg) ROWS * lines * size_of::<Line>(),
            line = in(reg) size_of::<Line>(),
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// 32 numbers as pairs of the nearest bf16.
///
/// # Safety
/// AVX-512 F and BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn line_of(x: &[f32; DEPTH]) -> Line {
    use std::arch::x86_64::{__m512bh, _mm512_cvtne2ps_pbh, _mm512_loadu_ps};
    // SAFETY: both halves are within; a vector of pairs is as long as a line.
    unsafe {
        let x = x.as_ptr();
        let pairs = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x.add(NUMBERS)), _mm512_loadu_ps(x));
        std::mem::transmute::<__m512bh, Line>(pairs)
    }
}

/// 32 numbers as pairs of their parts, the largest first, and whether all of these are finite.
///
/// # Safety
/// AVX-512 F and BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn parts_of(x: &[f32; DEPTH]) -> ([Line; PARTS], bool) {
    use std::arch::x86_64::*;
    // SAFETY: both halves are within; a vector of pairs is as long as a line.
    unsafe {
        let x = x.as_ptr();
        let (mut low, mut high) = (_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(NUMBERS)));
        let mut parts = [Line::default(); PARTS];
        for part in &mut parts {
            let pairs = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            *part = std::mem::transmute::<__m512i, Line>(pairs);
            let of_low = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(pairs)));
            let of_high =
                _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(pairs)));
            low = _mm512_sub_ps(low, _mm512_castsi512_ps(of_low));
            high = _mm512_sub_ps(high, _mm512_castsi512_ps(of_high));
        }
        // A number less its parts is 0, or NaN.
        (parts, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(low, high) == 0)
    }
}

/// Rows `[rows, columns]` as `a` of [`Amx::multiply_parts_to`], `[⌈rows / 16⌉, ⌈columns / 32⌉, PARTS, ROWS]`; what is not there is 0.
/// Whether all parts are finite: if not, products of them are not those of the numbers.
///
/// # Safety
/// AVX-512 F and BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) unsafe fn split_rows(x: &[f32], columns: usize, to: &mut [Line]) -> bool {
    let mut all_finite = true;
    let steps = columns.div_ceil(DEPTH);
    for (block, x) in to.chunks_exact_mut(steps * PARTS * ROWS).zip(x.chunks(ROWS * columns)) {
        if x.len() < ROWS * columns {
            block.fill(Line::default());
        }
        for (row, x) in x.chunks_exact(columns).enumerate() {
            for (step, x) in x.chunks(DEPTH).enumerate() {
                let mut numbers = [0.0; DEPTH];
                numbers[..x.len()].copy_from_slice(x);
                // SAFETY: the caller has the instructions.
                let (parts, finite) = unsafe { parts_of(&numbers) };
                all_finite &= finite;
                for (part, line) in parts.into_iter().enumerate() {
                    block[(step * PARTS + part) * ROWS + row] = line;
                }
            }
        }
    }
    all_finite
}

/// Rows `[rows, columns]` as `a` of [`Amx::multiply_to`], `[⌈rows / 16⌉, ⌈columns / 32⌉, ROWS]`; what is not there is 0. Every line is
/// written.
///
/// # Safety
/// AVX-512 F and BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) unsafe fn round_rows(x: &[f32], columns: usize, to: &mut [MaybeUninit<Line>]) {
    let steps = columns.div_ceil(DEPTH);
    for (block, x) in to.chunks_exact_mut(steps * ROWS).zip(x.chunks(ROWS * columns)) {
        if x.len() < ROWS * columns {
            block.fill(MaybeUninit::new(Line::default()));
        }
        for (row, x) in x.chunks_exact(columns).enumerate() {
            let (whole, rest) = x.as_chunks::<DEPTH>();
            for (step, x) in whole.iter().enumerate() {
                // SAFETY: the caller has the instructions.
                block[step * ROWS + row].write(unsafe { line_of(x) });
            }
            if !rest.is_empty() {
                let mut last = [0.0; DEPTH];
                last[..rest.len()].copy_from_slice(rest);
                // SAFETY: as above.
                block[whole.len() * ROWS + row].write(unsafe { line_of(&last) });
            }
        }
    }
}

/// [`WIDTH_OF_PARTS`] columns of rows `[rows, columns]`, from the `first` on, as `b` of [`Amx::multiply_parts_to`]: pairs of rows that
/// follow each other. What is not there is 0. Whether all parts are finite.
///
/// # Safety
/// AVX-512 F and BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) unsafe fn split_pairs_of_rows(x: &[f32], columns: usize, first: usize, to: &mut [Line]) -> bool {
    const LINES: usize = WIDTH_OF_PARTS / NUMBERS;
    let mut all_finite = true;
    let mut rows = x.chunks(2 * columns);
    for step in to.chunks_exact_mut(PARTS * NUMBERS * LINES) {
        for pair in 0..NUMBERS {
            let two = rows.next().unwrap_or_default();
            for line in 0..LINES {
                let of_row = |row: usize| {
                    let at = row * columns + first + line * NUMBERS;
                    two.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
                };
                // SAFETY: the caller has the instructions.
                let (parts, finite) = unsafe { parts_of_two(&of_row(0), &of_row(1)) };
                all_finite &= finite;
                for (part, pairs) in parts.into_iter().enumerate() {
                    step[(part * NUMBERS + pair) * LINES + line] = pairs;
                }
            }
        }
    }
    all_finite
}

/// Sixteen pairs of parts, each of a number of both, the largest first, and whether all are finite.
///
/// # Safety
/// AVX-512 F and BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn parts_of_two(first: &[f32; NUMBERS], second: &[f32; NUMBERS]) -> ([Line; PARTS], bool) {
    use std::arch::x86_64::*;
    // SAFETY: the numbers are as long as what is loaded, and a vector as long as a line.
    unsafe {
        let (mut first, mut second) = (_mm512_loadu_ps(first.as_ptr()), _mm512_loadu_ps(second.as_ptr()));
        let mut parts = [Line::default(); PARTS];
        for part in &mut parts {
            let low = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(first));
            let high = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(second));
            let low = _mm512_cvtepu16_epi32(low);
            let high = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(high));
            *part = std::mem::transmute::<__m512i, Line>(_mm512_or_si512(low, high));
            first = _mm512_sub_ps(first, _mm512_castsi512_ps(_mm512_slli_epi32::<16>(low)));
            second = _mm512_sub_ps(second, _mm512_castsi512_ps(high));
        }
        (parts, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(first, second) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(i: usize) -> f32 {
        // Eight bits each, so that bf16 has them and f32 their products.
        ((i * 37 % 101) as f32 - 50.0) / 64.0
    }

    fn multiply<const ADD: bool>(
        amx: &Amx,
        columns: usize,
        steps: (usize, usize),
        a: &[Line],
        b: &[Line],
        sums: &mut [Line],
    ) {
        let blocks = sums.len() * NUMBERS / (ROWS * columns);
        let rows = Rows { start: sums.as_mut_ptr().cast(), stride: columns };
        // SAFETY: there are so many rows.
        unsafe { amx.multiply_to(columns, steps, a, b, blocks, (ADD.then_some(rows), rows)) };
    }

    #[test]
    fn sums_are_those_of_plain_products() {
        if !are_available() {
            return;
        }
        let amx = Amx::new();
        for (rows, columns, depth) in [(16, 32, 32), (1, 32, 5), (33, 64, 70), (48, 96, 128), (7, 32, 256)] {
            let (blocks, steps, lines) = (rows_of(rows), usize::div_ceil(depth, DEPTH), columns / NUMBERS);
            let a: Vec<f32> = (0..rows * depth).map(number).collect();
            let packed = rounded(&a, depth, blocks * steps * ROWS);
            let b = |k: usize, n: usize| if k < depth { number(7 * k + 3 * n) } else { 0.0 };
            let pairs: Vec<Line> = (0..steps * NUMBERS * lines)
                .map(|line| {
                    let (pair, first) = (line / lines, line % lines * NUMBERS);
                    Line(std::array::from_fn(|n| {
                        let bits = |k| b(k, first + n).to_bits() >> 16;
                        f32::from_bits(bits(2 * pair) | bits(2 * pair + 1) << 16)
                    }))
                })
                .collect();
            let one = Line([1.0; NUMBERS]);
            let mut sums = vec![one; blocks * ROWS * lines];
            multiply::<true>(&amx, columns, (steps, steps), &packed, &pairs, &mut sums);
            for row in 0..rows {
                for n in 0..columns {
                    let expected: f32 = 1.0 + (0..depth).map(|k| a[row * depth + k] * b(k, n)).sum::<f32>();
                    let sum = sums[row * lines + n / NUMBERS].0[n % NUMBERS];
                    assert!(
                        (sum - expected).abs() < 1e-3,
                        "{rows}×{columns}×{depth} {row},{n}: {sum} {expected}"
                    );
                }
            }
        }
    }

    fn rounded(a: &[f32], columns: usize, lines: usize) -> Vec<Line> {
        let mut packed = vec![MaybeUninit::new(Line([f32::NAN; NUMBERS])); lines];
        // SAFETY: a processor with tiles has AVX-512 BF16.
        unsafe { round_rows(a, columns, &mut packed) };
        // SAFETY: there was a line in each place before.
        packed.into_iter().map(|line| unsafe { line.assume_init() }).collect()
    }

    fn rows_of(rows: usize) -> usize {
        rows.div_ceil(ROWS)
    }

    #[test]
    fn an_f32_is_the_sum_of_its_parts() {
        if !are_available() {
            return;
        }
        let mut x: [f32; DEPTH] = std::array::from_fn(|i| (i as f32 * 0.7).sin() * 10f32.powi(i as i32 - 16));
        // SAFETY: a processor with tiles has AVX-512 BF16.
        let (parts, finite) = unsafe { parts_of(&x) };
        assert!(finite);
        for (i, x) in x.into_iter().enumerate() {
            let of_part = |part: &Line| {
                let bits = part.0[i / 2].to_bits();
                f32::from_bits(if i % 2 == 0 { bits << 16 } else { bits & 0xffff_0000 })
            };
            let [first, second, third] = [&parts[0], &parts[1], &parts[2]].map(of_part);
            assert_eq!(third + second + first, x, "{first} {second} {third}");
        }
        for (at, number) in [(3, f32::INFINITY), (17, f32::NEG_INFINITY), (31, f32::NAN), (0, f32::MAX)] {
            let before = std::mem::replace(&mut x[at], number);
            // SAFETY: as above.
            assert!(!unsafe { parts_of(&x) }.1, "{number}");
            x[at] = before;
        }
    }

    #[test]
    fn the_parts_of_a_sum_are_the_sum() {
        if !are_available() {
            return;
        }
        let a: Vec<f32> = (0..20 * 96).map(number).collect();
        let packed = rounded(&a, 96, 2 * 3 * ROWS);
        let b: Vec<Line> = (0..48 * 2).map(|i| Line([f32::from_bits(0x3f80_3f80 + i); NUMBERS])).collect();
        let (mut whole, mut parts) = (vec![Line([7.0; NUMBERS]); 64], vec![Line([7.0; NUMBERS]); 64]);
        let amx = Amx::new();
        multiply::<false>(&amx, 32, (3, 3), &packed, &b, &mut whole);
        multiply::<false>(&amx, 32, (1, 3), &packed, &b, &mut parts);
        multiply::<true>(&amx, 32, (2, 3), &packed[ROWS..], &b[32..], &mut parts);
        assert_eq!(whole, parts);
    }
}
