//! Which vector instructions kernels run with: the best that the processor has, detected at run time.

#[cfg(target_arch = "x86_64")]
use crate::lanes::{Avx2, Avx512};
use crate::lanes::{Lanes, Plain};
use pulp::{Scalar, Simd, WithSimd};

/// A set of vector instructions that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instructions {
    /// None beyond what the target always has.
    Plain,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, CD, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with products of bf16 pairs.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Instructions {
    /// All that this processor has, plain first and best last.
    pub fn available() -> Vec<Self> {
        let mut available = vec![Self::Plain];
        #[cfg(target_arch = "x86_64")]
        {
            if pulp::x86::V3::is_available() {
                available.push(Self::Avx2);
            }
            if pulp::x86::V4::is_available() {
                available.push(Self::Avx512);
                if std::arch::is_x86_feature_detected!("avx512bf16") {
                    available.push(Self::Avx512Bf16);
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        if pulp::aarch64::Neon::is_available() {
            available.push(Self::Neon);
        }
        available
    }

    /// The best that this processor has.
    pub fn best() -> Self {
        static BEST: std::sync::OnceLock<Instructions> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Self::Plain))
    }

    /// Whether products of bf16 pairs are there.
    pub fn has_bf16(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self == Self::Avx512Bf16;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Runs an operation compiled for these instructions; plainly where the processor lacks them.
    #[inline]
    pub(crate) fn dispatch<Op: Operation>(self, operation: Op) -> Op::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                if let Some(simd) = pulp::x86::V3::try_new() {
                    return Simd::vectorize(simd, With { operation, lanes: Avx2(simd) });
                }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Bf16 => {
                if let Some(simd) = pulp::x86::V4::try_new() {
                    return Simd::vectorize(simd, With { operation, lanes: Avx512(simd) });
                }
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => {
                if let Some(simd) = pulp::aarch64::Neon::try_new() {
                    return Simd::vectorize(simd, With { operation, lanes: Plain });
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
