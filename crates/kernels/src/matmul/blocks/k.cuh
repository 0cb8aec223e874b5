// K-quants: groups of 16 or 32 with scales of their own, which have a scale in common.
#pragma once

namespace weights {

// Where two bits of each of 16 bytes are: a run each for two of the four pairs of bits, by `part`.
struct TwoBits {
    DEVICE unsigned column(unsigned part, unsigned run) { return 128 * (part / 4) + 16 * (part % 2) + 32 * pair(part, run); }
    DEVICE unsigned pair(unsigned part, unsigned run) { return 2 * (part / 2 % 2) + run; }
    // The 16 bytes of a part, moved so that its pairs are the lowest ones.
    template <unsigned ALIGNMENT>
    DEVICE void load(Bytes block, unsigned first, unsigned part, uint32_t (&words)[4]) {
        load_words<ALIGNMENT>(block, first + 32 * (part / 4) + 16 * (part % 2), words);
        UNROLLED for (unsigned i = 0; i < 4; i++) words[i] >>= 2 * pair(part, 0);
    }
};

struct Q2K : Blocks<256, 84>, Biased<2, 0, true> {
    DEVICE unsigned column(unsigned part, unsigned run) { return TwoBits::column(part, run); }
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        TwoBits::load<4>(block, 16, index, part.low);
        const float d = half_at(block, 80), minimum = half_at(block, 82);
        UNROLLED for (unsigned run = 0; run < 2; run++) {
            const uint32_t both = byte_at(block, column(index, run) / 16);
            part.scale[run] = d * byte_as_float(both & 15, 0);
            part.offset[run] = -minimum * byte_as_float(both >> 4, 0);
        }
        return part;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        biased((run == 0 ? part.low[i] << 5 : part.low[i] << 3) & 0x60606060u, v);
    }
};

struct Q3K : Blocks<256, 110>, Biased<3, 4, false> {
    DEVICE unsigned column(unsigned part, unsigned run) { return TwoBits::column(part, run); }
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        TwoBits::load<2>(block, 32, index, part.low);
        // One bit of each of 32 bytes: a third bit for each element.
        load_words<2>(block, 16 * (index % 2), part.high);
        UNROLLED for (unsigned i = 0; i < 4; i++) part.high[i] >>= 4 * (index / 4) + TwoBits::pair(index, 0);
        const float d = half_at(block, 108);
        UNROLLED for (unsigned run = 0; run < 2; run++) {
            // Six bits: four low ones in eight bytes, two high ones in four.
            const unsigned group = column(index, run) / 16;
            const uint32_t low = byte_at(block, 96 + group % 8) >> (4 * (group / 8)) & 15;
            const uint32_t high = byte_at(block, 104 + group % 4) >> (2 * (group / 4)) & 3;
            part.scale[run] = d * (byte_as_float(low | high << 4, 0) - 32.0f);
            part.offset[run] = 0.0f;
        }
        return part;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        const uint32_t low = (run == 0 ? part.low[i] << 4 : part.low[i] << 2) & 0x30303030u;
        const uint32_t third = (run == 0 ? part.high[i] << 6 : part.high[i] << 5) & 0x40404040u;
        biased(low | third, v);
    }
};

// Q4_K and Q5_K: low four bits of 32 bytes are a group, high ones the next; a part is half of both.
struct Nibbles256 {
    DEVICE unsigned column(unsigned part, unsigned run) { return 64 * (part / 2) + 16 * (part % 2) + 32 * run; }
    // Scales and offsets of both groups: six bits each, packed into twelve bytes.
    DEVICE void scales(Bytes block, unsigned index, Part& part) {
        uint32_t words[4];
        load_words<16>(block, 0, words);
        // Two groups of four at a time: the first two pairs whole, the others from four low bits and two high ones.
        const unsigned shift = 16 * (index / 2 % 2);
        const uint32_t first = words[1] >> shift, second = words[2] >> shift, third = words[3] >> shift;
        const bool whole = index < 4;
        const uint32_t scales = whole ? first & 0x3f3fu : (third & 0x0f0fu) | (first >> 2 & 0x3030u);
        const uint32_t minima = whole ? second & 0x3f3fu : (third >> 4 & 0x0f0fu) | (second >> 2 & 0x3030u);
        const float d = to_float(F16{static_cast<uint16_t>(words[0])});
        const float minimum = to_float(F16{static_cast<uint16_t>(words[0] >> 16)});
        UNROLLED for (unsigned run = 0; run < 2; run++) {
            part.scale[run] = d * byte_as_float(scales, run);
            part.offset[run] = -minimum * byte_as_float(minima, run);
        }
    }
};

struct Q4K : Blocks<256, 144>, Biased<4, 0, true> {
    DEVICE unsigned column(unsigned part, unsigned run) { return Nibbles256::column(part, run); }
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        load_words<16>(block, 16 + 16 * index, part.low);
        Nibbles256::scales(block, index, part);
        return part;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) { biased(nibbles(part.low[i], run), v); }
};

struct Q5K : Blocks<256, 176>, Biased<5, 0, true> {
    DEVICE unsigned column(unsigned part, unsigned run) { return Nibbles256::column(part, run); }
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        load_words<16>(block, 48 + 16 * index, part.low);
        // A fifth bit for each element: a byte has one for each group.
        load_words<16>(block, 16 + 16 * (index % 2), part.high);
        UNROLLED for (unsigned i = 0; i < 4; i++) part.high[i] >>= 2 * (index / 2);
        Nibbles256::scales(block, index, part);
        return part;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        const uint32_t fifth = (run == 0 ? part.high[i] << 6 : part.high[i] << 5) & 0x40404040u;
        biased(lower_nibbles(part.low[i], run) | fifth, v);
    }
};

struct Q6K : Blocks<256, 210>, Biased<6, 32, false> {
    // Four quarters of 32 elements in each half: low bits in 64 bytes, high ones in 32.
    DEVICE unsigned column(unsigned part, unsigned run) { return 128 * (part / 4) + 16 * (part % 4) + 64 * run; }
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        load_words<2>(block, 16 * index, part.low);
        load_words<2>(block, 128 + 32 * (index / 4) + 16 * (index % 2), part.high);
        UNROLLED for (unsigned i = 0; i < 4; i++) part.high[i] >>= 2 * (index / 2 % 2);
        const float d = half_at(block, 208);
        UNROLLED for (unsigned run = 0; run < 2; run++) {
            const uint32_t scale = byte_at(block, 192 + column(index, run) / 16);
            part.scale[run] = d * (byte_as_float(scale ^ 0x80u, 0) - 128.0f);
            part.offset[run] = 0.0f;
        }
        return part;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        const uint32_t low = (run == 0 ? part.low[i] << 1 : part.low[i] >> 3) & 0x1e1e1e1eu;
        const uint32_t high = (run == 0 ? part.high[i] << 5 : part.high[i] << 1) & 0x60606060u;
        biased(low | high, v);
    }
};

struct Q8K : Blocks<256, 292>, SignedBytes {
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        load_words<4>(block, 4 + 32 * index, part.low);
        load_words<4>(block, 20 + 32 * index, part.high);
        common_scale(part, float_of_bits(word_at<4>(block, 0)), 0.0f);
        return part;
    }
};

}  // namespace weights
