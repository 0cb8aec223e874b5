//! Which vector instructions kernels run with: the best that the processor has, detected at run time.

#[cfg(target_arch = "aarch64")]
use crate::lanes::Neon;
#[cfg(target_arch = "x86_64")]
use crate::lanes::{Avx2, Avx512};
use crate::lanes::{ByteLanes, Lanes, Plain};
use pulp::{Scalar, Simd, WithSimd};
use std::sync::OnceLock;

/// A set of vector instructions that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instructions {
    /// None beyond what the target always has.
    Plain,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same with products of bytes (AVX-VNNI).
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni,
    /// AVX-512 F, BW, CD, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with products of bytes (VNNI).
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// AVX-512 with products of bytes and of bf16 pairs.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// The same with products of bf16 on tiles (AMX).
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// NEON with products of bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDotprod,
    /// The same with products of small matrices of bytes (I8MM).
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
}

static BEST: OnceLock<Instructions> = OnceLock::new();

impl Instructions {
    /// All that this processor has, plain first and best last.
    // Some processors have no others.
    #[allow(unused_mut)]
    pub fn available() -> Vec<Self> {
        let mut available = vec![Self::Plain];
        #[cfg(target_arch = "x86_64")]
        {
            available.extend(Avx2::<false>::try_new().map(|_| Self::Avx2));
            available.extend(Avx2::<true>::try_new().map(|_| Self::Avx2Vnni));
            if pulp::x86::V4::is_available() {
                available.push(Self::Avx512);
                if std::arch::is_x86_feature_detected!("avx512vnni") {
                    available.push(Self::Avx512Vnni);
                    // Every processor that multiplies bf16 multiplies bytes.
                    if std::arch::is_x86_feature_detected!("avx512bf16") {
                        available.push(Self::Avx512Bf16);
                        if crate::amx::are_available() {
                            available.push(Self::Amx);
                        }
                    }
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        if pulp::aarch64::Neon::is_available() {
            available.push(Self::Neon);
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                available.push(Self::NeonDotprod);
                if std::arch::is_aarch64_feature_detected!("i8mm") {
                    available.push(Self::NeonI8mm);
                }
            }
        }
        available
    }

    /// The best that this processor has, or what [`Self::choose`] has chosen.
    pub fn best() -> Self {
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Self::Plain))
    }

    /// Makes these what kernels run with from now on; only before the first one has run.
    pub fn choose(self) {
        let _ = BEST.set(self);
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Vnni => "avx2vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => "avx512bf16",
            #[cfg(target_arch = "x86_64")]
            Self::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => "neondotprod",
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => "neoni8mm",
        }
    }

    /// Whether products of bf16 are there, of pairs or on tiles.
    pub fn has_bf16(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self, Self::Avx512Bf16 | Self::Amx);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether products of bf16 on tiles are there.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_amx(self) -> bool {
        self == Self::Amx
    }

    /// [`Self::dispatch`] of an operation on bytes; AVX-512 without products of bytes has no advantage over AVX2.
    #[inline]
    pub(crate) fn dispatch_bytes<Op: ByteOperation>(self, operation: Op) -> Op::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni | Self::Avx512Bf16 | Self::Amx
                if std::arch::is_x86_feature_detected!("avx512vnni") =>
            {
                if let Some(simd) = pulp::x86::V4::try_new() {
                    // SAFETY: the processor has AVX-512 and VNNI.
                    return unsafe { with_vnni(simd, operation) };
                }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Vnni => {
                if let Some(lanes) = Avx2::<true>::try_new() {
                    // SAFETY: `lanes` proves these instructions.
                    return unsafe { with_avx_vnni(lanes.simd(), WithBytes { operation, lanes }) };
                }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::Avx512 => {
                if let Some(lanes) = Avx2::<false>::try_new() {
                    // SAFETY: as above.
                    return unsafe { with_avx2(lanes.simd(), WithBytes { operation, lanes }) };
                }
            }
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm
                if std::arch::is_aarch64_feature_detected!("dotprod")
                    && std::arch::is_aarch64_feature_detected!("i8mm") =>
            {
                // SAFETY: the processor has products of bytes and of matrices of them.
                return unsafe { with_i8mm(operation) };
            }
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod if std::arch::is_aarch64_feature_detected!("dotprod") => {
                // SAFETY: the processor has products of bytes.
                return unsafe { with_dotprod(operation) };
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => {
                if let Some(simd) = pulp::aarch64::Neon::try_new() {
                    return Simd::vectorize(simd, WithBytes { operation, lanes: Plain });
                }
            }
            _ => {}
        }
        Simd::vectorize(Scalar, WithBytes { operation, lanes: Plain })
    }

    /// Runs an operation compiled for these instructions; plainly where the processor lacks them.
    #[inline]
    pub(crate) fn dispatch<Op: Operation>(self, operation: Op) -> Op::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::Avx2Vnni => {
                if let Some(lanes) = Avx2::<false>::try_new() {
                    // SAFETY: `lanes` proves these instructions.
                    return unsafe { with_avx2(lanes.simd(), With { operation, lanes }) };
                }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Vnni | Self::Avx512Bf16 | Self::Amx => {
                if let Some(simd) = pulp::x86::V4::try_new() {
                    return Simd::vectorize(simd, With { operation, lanes: Avx512::<false>(simd) });
                }
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon | Self::NeonDotprod | Self::NeonI8mm => {
                if let Some(simd) = pulp::aarch64::Neon::try_new() {
                    return Simd::vectorize(simd, With { operation, lanes: Neon::<false> });
                }
            }
            Self::Plain => {}
        }
        Simd::vectorize(Scalar, With { operation, lanes: Plain })
    }
}

/// What is compiled once for each set of instructions.
pub(crate) trait Operation {
    type Output;
    fn run<S: Simd, L: Lanes>(self, simd: S, lanes: L) -> Self::Output;
}

/// The same, of products of bytes.
pub(crate) trait ByteOperation {
    type Output;
    fn run<L: ByteLanes>(self, lanes: L) -> Self::Output;
}

/// Runs an operation compiled for AVX-512 and VNNI.
///
/// # Safety
/// The processor has VNNI and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(
    enable = "sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi1,bmi2,f16c,fma,lzcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni"
)]
unsafe fn with_vnni<Op: ByteOperation>(simd: pulp::x86::V4, operation: Op) -> Op::Output {
    operation.run(Avx512::<true>(simd))
}

/// Runs an operation compiled for AVX2 and F16C, which pulp's own `vectorize` leaves out: there, each conversion of f16 would be a call.
///
/// # Safety
/// The processor has F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi1,bmi2,f16c,fma,lzcnt")]
unsafe fn with_avx2<W: WithSimd>(simd: pulp::x86::V3, operation: W) -> W::Output {
    operation.with_simd(simd)
}

/// The same with AVX-VNNI.
///
/// # Safety
/// The processor has F16C and AVX-VNNI.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi1,bmi2,f16c,fma,lzcnt,avxvnni")]
unsafe fn with_avx_vnni<W: WithSimd>(simd: pulp::x86::V3, operation: W) -> W::Output {
    operation.with_simd(simd)
}

/// Runs an operation compiled for NEON with products of bytes.
///
/// # Safety
/// The processor has these.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
unsafe fn with_dotprod<Op: ByteOperation>(operation: Op) -> Op::Output {
    operation.run(Neon::<true>)
}

/// The same with products of matrices of bytes.
///
/// # Safety
/// The processor has these.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn with_i8mm<Op: ByteOperation>(operation: Op) -> Op::Output {
    operation.run(Neon::<true, true>)
}

struct With<Op, L> {
    operation: Op,
    lanes: L,
}

impl<Op: Operation, L: Lanes> WithSimd for With<Op, L> {
    type Output = Op::Output;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Op::Output {
        self.operation.run(simd, self.lanes)
    }
}

struct WithBytes<Op, L> {
    operation: Op,
    lanes: L,
}

impl<Op: ByteOperation, L: ByteLanes> WithSimd for WithBytes<Op, L> {
    type Output = Op::Output;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Op::Output {
        self.operation.run(self.lanes)
    }
}
