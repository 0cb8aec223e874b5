// How each format is unpacked: floats, and blocks of 32 elements; of 256 in blocks/.
//
// A lane takes a part of 32 elements at once, in two runs of 16 that have a scale each, from shared memory. Quants come four
// at a time as the bytes of a word, which become floats by being put into a mantissa:
//
//     w = UNIT · (v − ZERO) · scale + offset
//
// v is the float that comes of it: the byte itself less CENTRE (EXACT), or ½ + byte/256, which takes an operation less; it
// has only seven bits, and quants fill them from the highest one on, so that little precision is lost to the ½.
//
// Layouts are described in blocks.rs and beside it.
#pragma once

namespace weights {

// Bytes in shared memory: `base` is at a multiple of 16, `at` counts from there.
struct Bytes {
    const unsigned char* base;
    unsigned at;
};

DEVICE uint32_t byte_at(Bytes from, unsigned offset) { return from.base[from.at + offset]; }
// From an even address.
DEVICE uint32_t short_at(Bytes from, unsigned offset) {
    return *reinterpret_cast<const uint16_t*>(from.base + from.at + offset);
}
DEVICE float half_at(Bytes from, unsigned offset) { return to_float(F16{static_cast<uint16_t>(short_at(from, offset))}); }

// Words from an address that is a multiple of ALIGNMENT: where that is less than 4, from the aligned ones around them.
template <unsigned ALIGNMENT, unsigned N>
DEVICE void load_words(Bytes from, unsigned offset, uint32_t (&words)[N]) {
    const unsigned at = from.at + offset;
    if constexpr (ALIGNMENT == 16 && N == 4) {
        const Vector16 all = load_16(from.base + at);
        UNROLLED for (unsigned i = 0; i < N; i++) words[i] = all.word[i];
    } else if constexpr (ALIGNMENT >= 4) {
        UNROLLED for (unsigned i = 0; i < N; i++) words[i] = *reinterpret_cast<const uint32_t*>(from.base + at + 4 * i);
    } else {
        const unsigned char* aligned = from.base + (at & ~3u);
        const unsigned shift = 8 * (at & 3u);
        uint32_t low = *reinterpret_cast<const uint32_t*>(aligned);
        UNROLLED for (unsigned i = 0; i < N; i++) {
            const uint32_t high = *reinterpret_cast<const uint32_t*>(aligned + 4 * i + 4);
            words[i] = funnel_right(low, high, shift);
            low = high;
        }
    }
}
template <unsigned ALIGNMENT>
DEVICE uint32_t word_at(Bytes from, unsigned offset) {
    if constexpr (ALIGNMENT >= 4) return *reinterpret_cast<const uint32_t*>(from.base + from.at + offset);
    else return short_at(from, offset) | short_at(from, offset + 2) << 16;
}

// What a lane has of its 32 elements; formats use what they need of it.
struct Part {
    uint32_t low[4], high[4];
    float scale[2], offset[2];
};

// Four bytes as floats, less CENTRE.
template <unsigned CENTRE>
DEVICE void centred(uint32_t bytes, float (&v)[4]) {
    // Behind the exponent of 2^23, they count ones.
    UNROLLED for (unsigned i = 0; i < 4; i++)
        v[i] = float_of_bits(byte_permute(bytes, 0x4b000000u, 0x7650u | i)) - (8388608.0f + CENTRE);
}
// Four bytes of seven bits as ½ + byte/256.
DEVICE void biased(uint32_t bytes, float (&v)[4]) {
    UNROLLED for (unsigned i = 0; i < 4; i++) v[i] = float_of_bits(byte_permute(bytes, 0x3f000000u, 0x7054u | i << 8));
}
// One byte of a word as a float.
DEVICE float byte_as_float(uint32_t word, unsigned i) {
    return float_of_bits(byte_permute(word, 0x4b000000u, 0x7650u | i)) - 8388608.0f;
}

// Four of the 32 bits in `bits`, those of elements 16·run + 4·i …, as bit 6 of a byte each.
DEVICE uint32_t spread_to_bit_6(uint32_t bits, unsigned run, unsigned i) {
    return (bits >> (16 * run + 4 * i) & 15) * 0x08102040u & 0x40404040u;
}

// Floats: runs of as many as 16 bytes hold, the first of all lanes one after the other, then the second.
template <typename T>
struct Floats {
    static constexpr unsigned ELEMENTS = 1, BYTES = sizeof(T), ALIGNMENT = sizeof(T), RUN = 16 / sizeof(T);
    static constexpr bool HAS_OFFSET = false;
    static constexpr float ZERO = 0.0f, UNIT = 1.0f;

    DEVICE unsigned column(unsigned lane, unsigned run) { return RUN * (lane + 32 * run); }
    // Of a whole chunk at a multiple of 16.
    DEVICE Part load_whole(Bytes chunk, unsigned lane) {
        Part part;
        load_words<16>(chunk, column(lane, 0) * BYTES, part.low);
        load_words<16>(chunk, column(lane, 1) * BYTES, part.high);
        return part;
    }
    // Elements from `columns` on are zero.
    DEVICE Part load(Bytes chunk, unsigned lane, unsigned columns) {
        Part part;
        load_run(chunk, column(lane, 0), columns, part.low);
        load_run(chunk, column(lane, 1), columns, part.high);
        return part;
    }
    DEVICE void load_run(Bytes chunk, unsigned first, unsigned columns, uint32_t (&words)[4]) {
        UNROLLED for (unsigned i = 0; i < 4; i++) {
            words[i] = 0;
            UNROLLED for (unsigned j = 0; j < RUN / 4; j++) {
                const unsigned element = first + i * RUN / 4 + j;
                if (element < columns) words[i] |= bits_at(chunk, element) << (8 * BYTES * j);
            }
        }
    }
    DEVICE uint32_t bits_at(Bytes chunk, unsigned element) {
        if constexpr (sizeof(T) == 4) return word_at<4>(chunk, element * 4);
        else return short_at(chunk, element * 2);
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        const uint32_t(&words)[4] = run == 0 ? part.low : part.high;
        if constexpr (sizeof(T) == 4) {
            UNROLLED for (unsigned j = 0; j < 4; j++) v[j] = float_of_bits(words[j]);
        } else {
            UNROLLED for (unsigned j = 0; j < 4; j++)
                v[j] = to_float(T{static_cast<uint16_t>(words[2 * i + j / 2] >> (16 * (j % 2)))});
        }
    }
};

// What blocks have in common: elements of a part are in order, 16 to a run.
template <unsigned ELEMENTS_, unsigned BYTES_>
struct Blocks {
    static constexpr unsigned ELEMENTS = ELEMENTS_, BYTES = BYTES_, RUN = 16;
    // The largest power of two up to 16 that the length of blocks, thus of rows, is a multiple of.
    static constexpr unsigned ALIGNMENT =
        BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : BYTES % 4 == 0 ? 4 : BYTES % 2 == 0 ? 2 : 1;

    // Where in its block a run of a part begins.
    DEVICE unsigned column(unsigned part, unsigned run) { return 32 * part + 16 * run; }
    DEVICE void common_scale(Part& part, float scale, float offset) {
        part.scale[0] = part.scale[1] = scale;
        part.offset[0] = part.offset[1] = offset;
    }
};

// Quants of BITS bits; ZERO_QUANT is what stands for 0, but for the offset.
template <unsigned BITS, unsigned ZERO_QUANT, bool OFFSET>
struct Biased {
    static constexpr bool HAS_OFFSET = OFFSET;
    static constexpr float UNIT = static_cast<float>(2u << BITS), ZERO = 0.5f + ZERO_QUANT / UNIT;
};
// Quants that become floats exactly.
struct Exact {
    static constexpr bool HAS_OFFSET = false;
    static constexpr float UNIT = 1.0f, ZERO = 0.0f;
};

// Low or high four bits of each byte, as bits 3 … 6.
DEVICE uint32_t nibbles(uint32_t word, unsigned run) { return (run == 0 ? word << 3 : word >> 1) & 0x78787878u; }
// The same as bits 2 … 5, below a fifth one.
DEVICE uint32_t lower_nibbles(uint32_t word, unsigned run) { return (run == 0 ? word << 2 : word >> 2) & 0x3c3c3c3cu; }

struct Q4_0 : Blocks<32, 18>, Biased<4, 8, false> {
    DEVICE Part load(Bytes block, unsigned) {
        Part part;
        load_words<2>(block, 2, part.low);
        common_scale(part, half_at(block, 0), 0.0f);
        return part;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) { biased(nibbles(part.low[i], run), v); }
};

struct Q4_1 : Blocks<32, 20>, Biased<4, 0, true> {
    DEVICE Part load(Bytes block, unsigned) {
        Part part;
        load_words<4>(block, 4, part.low);
        common_scale(part, half_at(block, 0), half_at(block, 2));
        return part;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) { biased(nibbles(part.low[i], run), v); }
};

struct Q5_0 : Blocks<32, 22>, Biased<5, 16, false> {
    DEVICE Part load(Bytes block, unsigned) {
        Part part;
        load_words<2>(block, 6, part.low);
        part.high[0] = word_at<2>(block, 2);
        common_scale(part, half_at(block, 0), 0.0f);
        return part;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        biased(lower_nibbles(part.low[i], run) | spread_to_bit_6(part.high[0], run, i), v);
    }
};

struct Q5_1 : Blocks<32, 24>, Biased<5, 0, true> {
    DEVICE Part load(Bytes block, unsigned) {
        Part part;
        load_words<4>(block, 8, part.low);
        part.high[0] = word_at<4>(block, 4);
        common_scale(part, half_at(block, 0), half_at(block, 2));
        return part;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        biased(lower_nibbles(part.low[i], run) | spread_to_bit_6(part.high[0], run, i), v);
    }
};

// Signed bytes, two runs of them.
struct SignedBytes : Exact {
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        centred<128>((run == 0 ? part.low[i] : part.high[i]) ^ 0x80808080u, v);
    }
};

struct Q8_0 : Blocks<32, 34>, SignedBytes {
    DEVICE Part load(Bytes block, unsigned) {
        Part part;
        load_words<2>(block, 2, part.low);
        load_words<2>(block, 18, part.high);
        common_scale(part, half_at(block, 0), 0.0f);
        return part;
    }
};

struct Q8_1 : Blocks<32, 36>, SignedBytes {
    DEVICE Part load(Bytes block, unsigned) {
        Part part;
        load_words<4>(block, 4, part.low);
        load_words<4>(block, 20, part.high);
        common_scale(part, half_at(block, 0), 0.0f);
        return part;
    }
};

}  // namespace weights

#include "blocks/grid.cuh"
#include "blocks/k.cuh"
#include "blocks/nonlinear.cuh"
#include "blocks/ternary.cuh"

// X(name of kernels, type) for each.
#define FOR_EACH_BLOCK_FORMAT(X)                                                                                        \
    X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0) X(q5_1, Q5_1) X(q8_0, Q8_0) X(q8_1, Q8_1) X(iq4_nl, IQ4NL) X(mxfp4, MXFP4) \
    X(q2_k, Q2K) X(q3_k, Q3K) X(q4_k, Q4K) X(q5_k, Q5K) X(q6_k, Q6K) X(q8_k, Q8K) X(iq4_xs, IQ4XS)                      \
    X(iq3_xxs, IQ3XXS) X(iq3_s, IQ3S) X(iq2_xxs, IQ2XXS) X(iq2_xs, IQ2XS) X(iq2_s, IQ2S) X(iq1_s, IQ1S) X(iq1_m, IQ1M)   \
    X(tq1_0, TQ1_0) X(tq2_0, TQ2_0)
#define FOR_EACH_FORMAT(X) \
    X(f32, Floats<float>) X(f16, Floats<F16>) X(bf16, Floats<Bf16>) FOR_EACH_BLOCK_FORMAT(X)
