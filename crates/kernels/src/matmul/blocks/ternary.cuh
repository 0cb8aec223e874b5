// Weights that are −1, 0 or 1 times a scale.
#pragma once

namespace weights {

// Digits of base 3 of four bytes, which are their numbers as fractions of 3⁵, in units of 1/256; the first where `power` is
// 1, the next where it is 3, and so on.
DEVICE uint32_t digits(uint32_t packed, uint32_t power) {
    uint32_t both[2];
    UNROLLED for (unsigned i = 0; i < 2; i++) {
        // Two bytes at a time, with room to multiply.
        const uint32_t rest = (packed >> (8 * i) & 0x00ff00ffu) * power & 0x00ff00ffu;
        both[i] = rest * 3 >> 8 & 0x00030003u;
    }
    return both[0] | both[1] << 8;
}

DEVICE uint32_t power_of_3(unsigned exponent) {
    return exponent == 0 ? 1 : exponent == 1 ? 3 : exponent == 2 ? 9 : exponent == 3 ? 27 : 81;
}

struct TQ1_0 : Blocks<256, 54>, Biased<2, 1, false> {
    // The first digits of 32 bytes, then their second ones and so on; likewise of 16 bytes; then four of four bytes.
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        const bool first = index < 5, last = index == 7;
        load_words<2>(block, first ? 0 : 32, part.low);
        load_words<2>(block, first ? 16 : 32, part.high);
        const uint32_t four = word_at<2>(block, 48);
        const uint32_t low = power_of_3(first ? index : 2 * index - 10), high = power_of_3(first ? index : 2 * index - 9);
        UNROLLED for (unsigned i = 0; i < 4; i++) {
            part.low[i] = digits(part.low[i], low);
            part.high[i] = last ? digits(four, power_of_3(i)) : digits(part.high[i], high);
        }
        common_scale(part, half_at(block, 52), 0.0f);
        return part;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        biased((run == 0 ? part.low[i] : part.high[i]) << 5, v);
    }
};

struct TQ2_0 : Blocks<256, 66>, Biased<2, 1, false> {
    DEVICE unsigned column(unsigned part, unsigned run) { return TwoBits::column(part, run); }
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        TwoBits::load<2>(block, 0, index, part.low);
        common_scale(part, half_at(block, 64), 0.0f);
        return part;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        biased((run == 0 ? part.low[i] << 5 : part.low[i] << 3) & 0x60606060u, v);
    }
};

}  // namespace weights
