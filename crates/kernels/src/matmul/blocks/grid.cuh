// Eight or four elements at a time are a point of a grid: its number is stored, and the signs of its coordinates apart.
#pragma once

namespace weights {

template <typename Point, unsigned N>
struct Grid {
    Point points[N];
};

// Points from four hexadecimal digits each (see grid_tables.rs): coordinates of BITS bits are numbers of `values`.
template <typename Point, unsigned N, unsigned BITS, unsigned VALUES>
constexpr Grid<Point, N> grid(const char* digits, const unsigned char (&values)[VALUES]) {
    Grid<Point, N> grid = {};
    for (unsigned at = 0; at < N; at++) {
        uint32_t packed = 0;
        for (unsigned i = 0; i < 4; i++) {
            const char digit = digits[4 * at + i];
            packed = packed << 4 | static_cast<uint32_t>(digit < 'a' ? digit - '0' : digit - 'a' + 10);
        }
        for (unsigned i = 0; i < sizeof(Point); i++)
            grid.points[at] |= static_cast<Point>(values[(packed >> (BITS * i)) % VALUES]) << (8 * i);
    }
    return grid;
}

constexpr char IQ2_XXS_DIGITS[] =
#include "digits/iq2_xxs.digits"
    ;
constexpr char IQ2_XS_DIGITS[] =
#include "digits/iq2_xs.digits"
    ;
constexpr char IQ2_S_DIGITS[] =
#include "digits/iq2_s.digits"
    ;
constexpr char IQ3_XXS_DIGITS[] =
#include "digits/iq3_xxs.digits"
    ;
constexpr char IQ3_S_DIGITS[] =
#include "digits/iq3_s.digits"
    ;
constexpr char IQ1_DIGITS[] =
#include "digits/iq1.digits"
    ;

CONSTANT_TABLE Grid<uint64_t, 256> IQ2_XXS_GRID = grid<uint64_t, 256, 2>(IQ2_XXS_DIGITS, {8, 25, 43, 0});
CONSTANT_TABLE Grid<uint64_t, 512> IQ2_XS_GRID = grid<uint64_t, 512, 2>(IQ2_XS_DIGITS, {8, 25, 43, 0});
CONSTANT_TABLE Grid<uint64_t, 1024> IQ2_S_GRID = grid<uint64_t, 1024, 2>(IQ2_S_DIGITS, {8, 25, 43, 0});
CONSTANT_TABLE Grid<uint32_t, 256> IQ3_XXS_GRID =
    grid<uint32_t, 256, 4>(IQ3_XXS_DIGITS, {4, 12, 20, 28, 36, 44, 52, 62});
CONSTANT_TABLE Grid<uint32_t, 512> IQ3_S_GRID = grid<uint32_t, 512, 4>(IQ3_S_DIGITS, {1, 3, 5, 7, 9, 11, 13, 15});
CONSTANT_TABLE Grid<uint64_t, 2048> IQ1_GRID = grid<uint64_t, 2048, 2>(IQ1_DIGITS, {0, 8, 16, 0});

// Eight coordinates in the words 2·(i % 2) and the next of run i / 2.
DEVICE void put(Part& part, unsigned i, uint64_t point) {
    uint32_t(&words)[4] = i < 2 ? part.low : part.high;
    words[2 * (i % 2)] = static_cast<uint32_t>(point);
    words[2 * (i % 2) + 1] = static_cast<uint32_t>(point >> 32);
}

// Magnitudes below 64, with signs, as quants around 64.
template <unsigned BYTES>
struct SignedGrid : Blocks<256, BYTES>, Exact {
    // `negative` has a bit for each of the 32.
    DEVICE void negate(Part& part, uint32_t negative) {
        UNROLLED for (unsigned i = 0; i < 4; i++) {
            part.low[i] = with_signs(part.low[i], negative >> (4 * i) & 15);
            part.high[i] = with_signs(part.high[i], negative >> (16 + 4 * i) & 15);
        }
    }
    DEVICE uint32_t with_signs(uint32_t magnitudes, uint32_t negative) {
        const uint32_t mask = (negative * 0x00204081u & 0x01010101u) * 0xffu;
        return magnitudes + 0x40404040u - ((magnitudes & mask) << 1);
    }
    // Of signs of which seven bits are stored, four times: minus signs are even in number.
    DEVICE uint32_t even_signs(uint32_t sevens) {
        uint32_t signs = 0;
        UNROLLED for (unsigned i = 0; i < 4; i++) {
            const uint32_t seven = sevens >> (7 * i) & 0x7f;
            signs |= (seven | (set_bits(seven) & 1) << 7) << (8 * i);
        }
        return signs;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        centred<64>(run == 0 ? part.low[i] : part.high[i], v);
    }
    // (number + ½)·d for both runs, whose numbers are low and high four bits.
    DEVICE void two_scales(Part& part, uint32_t numbers, float d) {
        part.scale[0] = (byte_as_float(numbers & 15, 0) + 0.5f) * d;
        part.scale[1] = (byte_as_float(numbers >> 4, 0) + 0.5f) * d;
        part.offset[0] = part.offset[1] = 0.0f;
    }
};

struct IQ2XXS : SignedGrid<66> {
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        const uint32_t numbers = word_at<2>(block, 2 + 8 * index), signs = word_at<2>(block, 6 + 8 * index);
        UNROLLED for (unsigned i = 0; i < 4; i++) put(part, i, IQ2_XXS_GRID.points[numbers >> (8 * i) & 255]);
        negate(part, even_signs(signs));
        common_scale(part, (byte_as_float(signs >> 28, 0) + 0.5f) * (half_at(block, 0) * 0.25f), 0.0f);
        return part;
    }
};

struct IQ2XS : SignedGrid<74> {
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        uint32_t sevens = 0;
        UNROLLED for (unsigned i = 0; i < 4; i++) {
            const uint32_t both = short_at(block, 2 + 8 * index + 2 * i);
            put(part, i, IQ2_XS_GRID.points[both & 511]);
            sevens |= both >> 9 << (7 * i);
        }
        negate(part, even_signs(sevens));
        two_scales(part, byte_at(block, 66 + index), half_at(block, 0) * 0.25f);
        return part;
    }
};

struct IQ2S : SignedGrid<82> {
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        const uint32_t numbers = word_at<2>(block, 2 + 4 * index), high = byte_at(block, 66 + index);
        UNROLLED for (unsigned i = 0; i < 4; i++)
            put(part, i, IQ2_S_GRID.points[(numbers >> (8 * i) & 255) | (high >> (2 * i) & 3) << 8]);
        negate(part, word_at<2>(block, 34 + 4 * index));
        two_scales(part, byte_at(block, 74 + index), half_at(block, 0) * 0.25f);
        return part;
    }
};

struct IQ3XXS : SignedGrid<98> {
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        const uint32_t first = word_at<2>(block, 2 + 8 * index), second = word_at<2>(block, 6 + 8 * index);
        UNROLLED for (unsigned i = 0; i < 4; i++) {
            part.low[i] = IQ3_XXS_GRID.points[first >> (8 * i) & 255];
            part.high[i] = IQ3_XXS_GRID.points[second >> (8 * i) & 255];
        }
        const uint32_t signs = word_at<2>(block, 66 + 4 * index);
        negate(part, even_signs(signs));
        common_scale(part, (byte_as_float(signs >> 28, 0) + 0.5f) * (half_at(block, 0) * 0.5f), 0.0f);
        return part;
    }
};

struct IQ3S : SignedGrid<110> {
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        const uint32_t first = word_at<2>(block, 2 + 8 * index), second = word_at<2>(block, 6 + 8 * index);
        const uint32_t high = byte_at(block, 66 + index);
        UNROLLED for (unsigned i = 0; i < 4; i++) {
            part.low[i] = IQ3_S_GRID.points[(first >> (8 * i) & 255) | (high >> i & 1) << 8];
            part.high[i] = IQ3_S_GRID.points[(second >> (8 * i) & 255) | (high >> (4 + i) & 1) << 8];
        }
        negate(part, word_at<2>(block, 74 + 4 * index));
        const uint32_t number = byte_at(block, 106 + index / 2) >> (4 * (index % 2)) & 15;
        common_scale(part, (byte_as_float(number, 0) + 0.5f) * (half_at(block, 0) * 2.0f), 0.0f);
        return part;
    }
};

// Coordinates are −1, 0 and 1, all moved by ±⅛: as quants, eight times that and 9 more. Scales are odd multiples.
template <unsigned BYTES>
struct MovedGrid : Blocks<256, BYTES>, Exact {
    DEVICE uint64_t moved(uint32_t number, bool down) {
        return IQ1_GRID.points[number] + (down ? 0 : 0x0202020202020202u);
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        centred<9>(run == 0 ? part.low[i] : part.high[i], v);
    }
};

struct IQ1S : MovedGrid<50> {
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        const uint32_t numbers = word_at<2>(block, 2 + 4 * index), high = short_at(block, 34 + 2 * index);
        UNROLLED for (unsigned i = 0; i < 4; i++)
            put(part, i, moved((numbers >> (8 * i) & 255) | (high >> (3 * i) & 7) << 8, (high & 0x8000) != 0));
        common_scale(part, (byte_as_float(high >> 12 & 7, 0) + 0.5f) * (half_at(block, 0) * 0.25f), 0.0f);
        return part;
    }
};

struct IQ1M : MovedGrid<56> {
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        const uint32_t numbers = word_at<4>(block, 4 * index), high = short_at(block, 32 + 2 * index);
        UNROLLED for (unsigned i = 0; i < 4; i++)
            put(part, i, moved((numbers >> (8 * i) & 255) | (high >> (4 * i) & 7) << 8, (high >> (4 * i) & 8) != 0));
        // Four times four scales of three bits, and four bits of the block's scale, an f16, above them.
        uint32_t scale = 0;
        UNROLLED for (unsigned i = 0; i < 4; i++) scale |= short_at(block, 48 + 2 * i) >> 12 << (4 * i);
        const float d = to_float(F16{static_cast<uint16_t>(scale)}) * 0.25f;
        const uint32_t two = short_at(block, 48 + index / 2 * 2) >> (6 * (index % 2));
        part.scale[0] = (byte_as_float(two & 7, 0) + 0.5f) * d;
        part.scale[1] = (byte_as_float(two >> 3 & 7, 0) + 0.5f) * d;
        part.offset[0] = part.offset[1] = 0.0f;
        return part;
    }
};

}  // namespace weights
