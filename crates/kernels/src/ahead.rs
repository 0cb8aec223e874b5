//! Memory that is asked for ahead of its use.

use std::hint::black_box;

/// How many bytes ahead of a read memory is asked for, where it is read in its order.
pub(crate) const SOON: usize = 8 << 10;

const CACHE_LINE: usize = 64;

/// Whether the processor reads further ahead by itself, in several places at the same time, than it does on request: AMD's. One row of
/// activations times float weights in memory takes a tenth to a quarter less time then if rows in three places are read in turn
/// without requests (EPYC with AVX2, two threads). Each place is read on in its order, since the processor finds a new one only after a
/// few reads. Quants that are unpacked are slower so: too few reads are under way at the same time.
pub(crate) fn by_itself() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid;
        use std::sync::LazyLock;
        static IS_AMD: LazyLock<bool> = LazyLock::new(|| {
            let vendor = __cpuid(0);
            [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
        });
        *IS_AMD
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Asks for bytes, into the L2 cache if they are used `FAR` from now. Where there is no memory, nothing happens.
#[inline(always)]
pub(crate) fn prefetch<const FAR: bool, T>(start: *const T, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..bytes).step_by(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        let line = start.cast::<i8>().wrapping_add(at);
        // SAFETY: every x86-64 processor has SSE; a prefetch reads nothing that the program sees, and no address is wrong.
        unsafe {
            if FAR {
                _mm_prefetch::<_MM_HINT_T1>(line);
            } else {
                _mm_prefetch::<_MM_HINT_T0>(line);
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}

/// Memory that is read some time later, in its order.
pub(crate) struct Ahead(*const u8);

impl Ahead {
    /// From so many bytes behind `data`'s start on; what lies behind its end is no error.
    #[inline(always)]
    pub(crate) fn new(data: &[u8], behind: usize) -> Self {
        Self(data.as_ptr().wrapping_add(behind))
    }

    /// Asks for the next bytes: for each cache line once, and for one at a time. With an unrolled loop, products of one row with
    /// weights in memory are slower by a fifth (Xeon with AMX, two threads); with no requests, by up to two thirds.
    #[inline(always)]
    pub(crate) fn ask(&mut self, bytes: usize) {
        let end = self.0.wrapping_add(bytes);
        if cfg!(target_arch = "x86_64") {
            // The compiler does not know this number, and so does not unroll the loop.
            let step = black_box(CACHE_LINE);
            let mut line = self.0.map_addr(|address| address.next_multiple_of(CACHE_LINE));
            while line < end {
                prefetch::<true, u8>(line, 1);
                line = line.wrapping_add(step);
            }
        }
        self.0 = end;
    }
}
