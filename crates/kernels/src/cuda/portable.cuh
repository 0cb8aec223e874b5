// What kernels may use: CUDA's own meaning under nvcc, the emulator's under a C++ compiler.
//
// Rules that let one source run on both:
// - One parameter, a plain struct, mirrored in Rust; blocks are one-dimensional, a multiple of 32 threads.
// - Shared memory is dynamic only (DYNAMIC_SHARED), with its size given at launch.
// - Collectives (barrier, shuffle, mma, ldmatrix) are called by whole blocks or whole warps.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

// Numbers in 16 bits, kept as bits.
struct Bf16 {
    uint16_t bits;
};
struct F16 {
    uint16_t bits;
};
// 16 bytes that move at once.
struct alignas(16) Vector16 {
    uint32_t word[4];
};
// 8 bytes that move at once.
struct alignas(8) Vector8 {
    uint32_t word[2];
};

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define DEVICE static __device__ __forceinline__
#define CONSTANT_TABLE static __device__ const
#define KERNEL(name, Parameters, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Parameters parameters)
// With at least so many blocks resident on a multiprocessor, which bounds the registers of a thread.
#define KERNEL_RESIDENT(name, Parameters, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Parameters parameters)
// Before a loop that is to be unrolled, and before one that is to stay a loop.
#define UNROLLED _Pragma("unroll")
#define NOT_UNROLLED _Pragma("unroll 1")
#define DYNAMIC_SHARED(Type, name)                                   \
    extern __shared__ __align__(128) unsigned char shared_memory[]; \
    Type* name = reinterpret_cast<Type*>(shared_memory)

DEVICE unsigned thread_index() { return threadIdx.x; }
// The same, read where it stands: what is computed from it takes no register of a loop around.
DEVICE unsigned thread_index_anew() {
    unsigned index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}
DEVICE unsigned block_threads() { return blockDim.x; }
DEVICE unsigned block_x() { return blockIdx.x; }
DEVICE unsigned block_y() { return blockIdx.y; }
DEVICE unsigned block_z() { return blockIdx.z; }
DEVICE unsigned grid_x() { return gridDim.x; }
DEVICE unsigned grid_y() { return gridDim.y; }
DEVICE unsigned grid_z() { return gridDim.z; }

DEVICE void block_barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }
DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE int shuffle_xor(int x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE double shuffle_xor(double x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEVICE int shuffle(int x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
// From a lane of this one's own `width` lanes.
template <int width>
DEVICE float shuffle_among(float x, int lane) {
    return __shfl_sync(0xffffffffu, x, lane, width);
}
// Whether x holds in any lane.
DEVICE bool warp_any(bool x) { return __any_sync(0xffffffffu, x); }

DEVICE float to_float(Bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
DEVICE Bf16 to_bf16(float x) { return Bf16{__bfloat16_as_ushort(__float2bfloat16_rn(x))}; }
DEVICE float to_float(F16 x) { return __half2float(__ushort_as_half(x.bits)); }
DEVICE F16 to_f16(float x) { return F16{__half_as_ushort(__float2half_rn(x))}; }
// Two numbers in bf16, the first in the low half.
DEVICE uint32_t pack_bf16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
DEVICE float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
DEVICE uint32_t bits_of_float(float x) { return __float_as_uint(x); }

// 2^x and e^x, to about 2 ulp.
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// x·y rounded by itself, never as a part of a fused multiply-add.
DEVICE float rounded_product(float x, float y) { return __fmul_rn(x, y); }
// 1/x, to 1 ulp.
DEVICE float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE Vector8 load_8(const void* from) {
    const uint2 x = *static_cast<const uint2*>(from);
    return Vector8{{x.x, x.y}};
}
DEVICE void store_8(void* to, Vector8 x) { *static_cast<uint2*>(to) = make_uint2(x.word[0], x.word[1]); }
// A pointer that was itself read from memory, which the compiler would else take for one to any memory.
template <typename T>
DEVICE const T* in_global_memory(const T* pointer) {
    __builtin_assume(__isGlobal(pointer));
    return pointer;
}
DEVICE Vector16 load_16(const void* from) {
    const uint4 x = *static_cast<const uint4*>(from);
    return Vector16{{x.x, x.y, x.z, x.w}};
}
// Of data that is read once: kept out of the L1 cache.
DEVICE Vector16 load_16_once(const void* from) {
    Vector16 x;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
        : "l"(from));
    return x;
}
DEVICE void store_16(void* to, Vector16 x) {
    *static_cast<uint4*>(to) = make_uint4(x.word[0], x.word[1], x.word[2], x.word[3]);
}

// To global memory: one instruction even where the compiler cannot see the alignment, and would store words.
DEVICE void store_16_global(void* to, Vector16 x) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.word[0]), "r"(x.word[1]), "r"(x.word[2]),
                 "r"(x.word[3])
                 : "memory");
}

// Bytes of eight, those of `a` first, by the low three bits of each of the selector's four low digits.
DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }
// The low word of `high`:`low` moved right by 0 … 32 bits.
DEVICE uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t shift) { return __funnelshift_rc(low, high, shift); }
DEVICE unsigned set_bits(uint32_t x) { return static_cast<unsigned>(__popc(x)); }

DEVICE uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
// 16 bytes of global memory into shared memory, on their own; zeros where not wanted (`from` must be a valid address all
// the same).
DEVICE void copy_async_16(void* to, const void* from, bool wanted) {
    const int bytes = wanted ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}
// The first `bytes` of 16, and zeros for the rest.
DEVICE void copy_async_16_partly(void* to, const void* from, unsigned bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last `groups` committed groups of this thread have arrived; others see them after a barrier.
template <int groups>
DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// Four 8×8 matrices of 16-bit numbers from shared memory: lane i gives the address of row i % 8 of matrix i / 8; in word j
// a lane gets columns 2·(lane % 4) and the next of row lane / 4 of matrix j.
DEVICE void load_matrices(uint32_t (&words)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row)));
}
// The same of the transposed matrices.
DEVICE void load_matrices_transposed(uint32_t (&words)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row)));
}
// d[16, 8] += a[16, 16] · b[16, 8] in bf16 with f32 sums. With g = lane / 4, t = lane % 4: a holds rows g, g+8, g, g+8 at
// columns 2t, 2t, 2t+8, 2t+8 (and the next); b rows 2t and 2t+8 (and the next) at column g; d rows g, g, g+8, g+8 at
// columns 2t, 2t+1, 2t, 2t+1.
DEVICE void multiply_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else

#include "emulator.h"

#endif

// Infinity without a header's macro.
DEVICE float infinity() { return float_of_bits(0x7f800000u); }
DEVICE float not_a_number() { return float_of_bits(0x7fc00000u); }

DEVICE float to_float(float x) { return x; }
// The low and the high number of two in bf16.
DEVICE float low_bf16(uint32_t packed) { return float_of_bits(packed << 16); }
DEVICE float high_bf16(uint32_t packed) { return float_of_bits(packed & 0xffff0000u); }

template <typename T>
struct Rounding;
template <>
struct Rounding<float> {
    DEVICE float of(float x) { return x; }
};
template <>
struct Rounding<Bf16> {
    DEVICE Bf16 of(float x) { return to_bf16(x); }
};
template <>
struct Rounding<F16> {
    DEVICE F16 of(float x) { return to_f16(x); }
};
// x in type T.
template <typename T>
DEVICE T rounded(float x) {
    return Rounding<T>::of(x);
}

DEVICE unsigned lane_index() { return thread_index() % 32; }
DEVICE unsigned warp_index() { return thread_index() / 32; }

DEVICE float warp_sum(float x) {
    for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}
DEVICE double warp_sum(double x) {
    for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}
DEVICE float warp_max(float x) {
    for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}
DEVICE int warp_sum(int x) {
    for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}
DEVICE int warp_max(int x) {
    for (int mask = 16; mask > 0; mask /= 2) {
        const int other = shuffle_xor(x, mask);
        x = other > x ? other : x;
    }
    return x;
}

// Sum over a block of whole warps, for every thread; `scratch` has 32 floats of shared memory and may be used again at once.
DEVICE float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    if (lane_index() == 0) scratch[warp_index()] = x;
    block_barrier();
    float total = 0.0f;
    for (unsigned warp = 0; warp < block_threads() / 32; warp++) total += scratch[warp];
    block_barrier();
    return total;
}
