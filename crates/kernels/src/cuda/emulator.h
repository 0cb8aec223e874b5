// The emulator's side of portable.cuh: threads of a block are fibers that run one at a time, in an order drawn at random,
// and change over at barriers and collectives only.
#pragma once

#include <stdint.h>
#include <string.h>

#define DEVICE static inline
#define UNROLLED
#define CONSTANT_TABLE static const

namespace emulator {

struct Thread {
    unsigned index, block_threads, block[3], grid[3];
};
extern thread_local Thread current;

// Registered before main by the KERNEL macro.
struct Kernel {
    Kernel(const char* name, size_t parameter_bytes, unsigned threads, void (*run)(const void*));
};

void* dynamic_shared();
void block_barrier();
void warp_barrier();
// Puts `bytes` (at most 64) of each lane before all: afterwards `lane(i)` is what lane i put. Valid until the next exchange.
void exchange(const void* mine, unsigned bytes);
const void* lane(unsigned index);
// Of what a lane gives to load matrices by.
void check_row_of_matrix(const void* row);
void copy_later(void* to, const void* from, unsigned bytes);
void commit_copies();
void wait_for_copies(unsigned groups);

template <typename T>
T exchanged(const T& mine, unsigned from) {
    exchange(&mine, sizeof(T));
    T theirs;
    memcpy(&theirs, lane(from), sizeof(T));
    return theirs;
}

}  // namespace emulator

#define KERNEL(name, Parameters, threads)                                                                            \
    static void name##_thread(const Parameters& parameters);                                                         \
    static emulator::Kernel name##_kernel(#name, sizeof(Parameters), threads, [](const void* parameters) {           \
        name##_thread(*static_cast<const Parameters*>(parameters));                                                  \
    });                                                                                                              \
    static void name##_thread(const Parameters& parameters)
#define KERNEL_RESIDENT(name, Parameters, threads, blocks) KERNEL(name, Parameters, threads)
#define NOT_UNROLLED
#define DYNAMIC_SHARED(Type, name) Type* name = static_cast<Type*>(emulator::dynamic_shared())

DEVICE unsigned thread_index() { return emulator::current.index; }
DEVICE unsigned thread_index_anew() { return thread_index(); }
DEVICE unsigned block_threads() { return emulator::current.block_threads; }
DEVICE unsigned block_x() { return emulator::current.block[0]; }
DEVICE unsigned block_y() { return emulator::current.block[1]; }
DEVICE unsigned block_z() { return emulator::current.block[2]; }
DEVICE unsigned grid_x() { return emulator::current.grid[0]; }
DEVICE unsigned grid_y() { return emulator::current.grid[1]; }
DEVICE unsigned grid_z() { return emulator::current.grid[2]; }

DEVICE void block_barrier() { emulator::block_barrier(); }
DEVICE void warp_barrier() { emulator::warp_barrier(); }
template <typename T>
static inline T shuffle_xor(T x, int mask) {
    return emulator::exchanged(x, (emulator::current.index % 32) ^ static_cast<unsigned>(mask));
}
template <typename T>
static inline T shuffle(T x, int lane) {
    return emulator::exchanged(x, static_cast<unsigned>(lane) % 32);
}
template <int width>
static inline float shuffle_among(float x, int lane) {
    return shuffle(x, static_cast<int>(emulator::current.index % 32) / width * width + lane);
}
DEVICE bool warp_any(bool x) {
    emulator::exchange(&x, sizeof x);
    bool any = false;
    for (unsigned lane = 0; lane < 32; lane++) any |= *static_cast<const bool*>(emulator::lane(lane));
    return any;
}

DEVICE float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
DEVICE uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
DEVICE float to_float(Bf16 x) { return float_of_bits(static_cast<uint32_t>(x.bits) << 16); }
DEVICE Bf16 to_bf16(float x) {
    const uint32_t bits = bits_of_float(x);
    if (x != x) return Bf16{0x7fff};
    return Bf16{static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
DEVICE float to_float(F16 x) {
    const uint32_t sign = (x.bits & 0x8000u) << 16, exponent = (x.bits >> 10) & 31, fraction = x.bits & 1023;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return float_of_bits(sign | bits_of_float(static_cast<float>(fraction) * 5.9604644775390625e-8f));
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}
DEVICE F16 to_f16(float x) {
    const uint32_t bits = bits_of_float(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return F16{static_cast<uint16_t>(sign | 0x7fff)};
    if (size >= 0x477ff000u) return F16{static_cast<uint16_t>(sign | 0x7c00)};
    if (size < 0x38800000u) {
        // Subnormal: the nearest multiple of 2^-24, ties to even, as the addition rounds.
        const float shifted = float_of_bits(size) + 0.5f;
        return F16{static_cast<uint16_t>(sign | (bits_of_float(shifted) - 0x3f000000u))};
    }
    return F16{static_cast<uint16_t>(sign | ((size - 0x38000000u + 0xfff + ((size >> 13) & 1)) >> 13))};
}
DEVICE uint32_t pack_bf16(float low, float high) {
    return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}
DEVICE float exp2_fast(float x) { return exp2f(x); }
DEVICE float reciprocal_fast(float x) { return 1.0f / x; }

// Through memory, since a compiler for some CPUs fuses what it can.
DEVICE float rounded_product(float x, float y) {
    volatile float product = x * y;
    return product;
}

DEVICE Vector8 load_8(const void* from) { return *static_cast<const Vector8*>(from); }
DEVICE void store_8(void* to, Vector8 x) { *static_cast<Vector8*>(to) = x; }
DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
    uint32_t chosen = 0;
    for (unsigned i = 0; i < 4; i++)
        chosen |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
    return chosen;
}
DEVICE uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t shift) {
    return static_cast<uint32_t>((low | static_cast<uint64_t>(high) << 32) >> (shift < 32 ? shift : 32));
}
DEVICE unsigned set_bits(uint32_t x) { return static_cast<unsigned>(__builtin_popcount(x)); }

template <typename T>
static inline const T* in_global_memory(const T* pointer) {
    return pointer;
}
DEVICE Vector16 load_16(const void* from) {
    // Through the type, so that an address that is not aligned is a trap.
    return *static_cast<const Vector16*>(from);
}
DEVICE Vector16 load_16_once(const void* from) { return load_16(from); }
DEVICE void store_16(void* to, Vector16 x) { *static_cast<Vector16*>(to) = x; }
DEVICE void store_16_global(void* to, Vector16 x) { store_16(to, x); }

DEVICE void copy_async_16(void* to, const void* from, bool wanted) { emulator::copy_later(to, from, wanted ? 16 : 0); }
DEVICE void copy_async_16_partly(void* to, const void* from, unsigned bytes) { emulator::copy_later(to, from, bytes); }
DEVICE void copy_async_commit() { emulator::commit_copies(); }
template <int groups>
static inline void copy_async_wait() {
    emulator::wait_for_copies(groups);
}

DEVICE void load_matrices(uint32_t (&words)[4], const void* row) {
    emulator::check_row_of_matrix(row);
    emulator::exchange(&row, sizeof row);
    const unsigned lane = emulator::current.index % 32;
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        const char* address;
        memcpy(&address, emulator::lane(matrix * 8 + lane / 4), sizeof address);
        memcpy(&words[matrix], address + 4 * (lane % 4), 4);
    }
}
DEVICE void load_matrices_transposed(uint32_t (&words)[4], const void* row) {
    emulator::check_row_of_matrix(row);
    emulator::exchange(&row, sizeof row);
    const unsigned lane = emulator::current.index % 32;
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        uint16_t halves[2];
        for (unsigned half = 0; half < 2; half++) {
            const char* address;
            memcpy(&address, emulator::lane(matrix * 8 + 2 * (lane % 4) + half), sizeof address);
            memcpy(&halves[half], address + 2 * (lane / 4), 2);
        }
        words[matrix] = halves[0] | static_cast<uint32_t>(halves[1]) << 16;
    }
}
DEVICE void multiply_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    emulator::exchange(mine, sizeof mine);
    const unsigned lane = emulator::current.index % 32, group = lane / 4, within = lane % 4;
    // Element (row, k) of a is in word row / 8 + 2·(k / 8) of lane 4·(row % 8) + k % 8 / 2; (k, column) of b in word
    // 4 + k / 8 of lane 4·column + k % 8 / 2.
    const auto half = [](unsigned from, unsigned word, unsigned k) {
        uint32_t words[6];
        memcpy(words, emulator::lane(from), sizeof words);
        return float_of_bits(k % 2 ? words[word] & 0xffff0000u : words[word] << 16);
    };
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = group + 8 * (i / 2), column = 2 * within + i % 2;
        float sum = 0.0f;
        for (unsigned k = 0; k < 16; k++) {
            const float x = half(4 * (row % 8) + k % 8 / 2, row / 8 + 2 * (k / 8), k);
            sum += x * half(4 * column + k % 8 / 2, 4 + k / 8, k);
        }
        d[i] += sum;
    }
}
