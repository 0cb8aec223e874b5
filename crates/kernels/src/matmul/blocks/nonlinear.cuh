// Quants of four bits that are numbers of a table.
#pragma once

namespace weights {

// Entries of a table of 16 bytes for 16 bytes of two numbers each: those of the low four bits, and of the high ones.
DEVICE void look_up(const uint32_t (&table)[4], const uint32_t (&numbers)[4], uint32_t (&low)[4], uint32_t (&high)[4]) {
    UNROLLED for (unsigned i = 0; i < 4; i++) {
        // By their low three bits from both halves of the table; by the highest one from these.
        const uint32_t entry = numbers[i] & 0x77777777u, half = 0x32103210u | (numbers[i] & 0x88888888u) >> 1;
        uint32_t found[2];
        UNROLLED for (unsigned j = 0; j < 2; j++)
            found[j] = byte_permute(byte_permute(table[0], table[1], entry >> (16 * j)),
                                    byte_permute(table[2], table[3], entry >> (16 * j)), half >> (16 * j));
        low[i] = byte_permute(found[0], found[1], 0x6420);
        high[i] = byte_permute(found[0], found[1], 0x7531);
    }
}

// 128 more than `kvalues_iq4nl` of ggml: −127, −104, −83, −65; −49, −35, −22, −10; 1, 13, 25, 38; 53, 69, 89, 113.
struct Values : Exact {
    DEVICE void look_up(const uint32_t (&numbers)[4], Part& part) {
        const uint32_t table[4] = {0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u};
        weights::look_up(table, numbers, part.low, part.high);
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        centred<128>(run == 0 ? part.low[i] : part.high[i], v);
    }
};

struct IQ4NL : Blocks<32, 18>, Values {
    DEVICE Part load(Bytes block, unsigned) {
        Part part;
        uint32_t numbers[4];
        load_words<2>(block, 2, numbers);
        look_up(numbers, part);
        common_scale(part, half_at(block, 0), 0.0f);
        return part;
    }
};

struct IQ4XS : Blocks<256, 136>, Values {
    DEVICE Part load(Bytes block, unsigned index) {
        Part part;
        uint32_t numbers[4];
        load_words<8>(block, 8 + 16 * index, numbers);
        look_up(numbers, part);
        // Six bits: four low ones in four bytes, two high ones in two.
        const uint32_t low = byte_at(block, 4 + index / 2) >> (4 * (index % 2)) & 15;
        const uint32_t high = short_at(block, 2) >> (2 * index) & 3;
        common_scale(part, half_at(block, 0) * (byte_as_float(low | high << 4, 0) - 32.0f), 0.0f);
        return part;
    }
};

// Twice the numbers of a float of four bits (e2m1) are integers: 12 more than these, as quants of five bits.
struct MXFP4 : Blocks<32, 17>, Biased<5, 12, false> {
    DEVICE Part load(Bytes block, unsigned) {
        Part part;
        uint32_t numbers[4];
        load_words<1>(block, 1, numbers);
        // Four times 12, 13, 14, 15; 16, 18, 20, 24; 12, 11, 10, 9; 8, 6, 4, 0.
        const uint32_t table[4] = {0x3c383430u, 0x60504840u, 0x24282c30u, 0x00101820u};
        look_up(table, numbers, part.low, part.high);
        // 2^(exponent − 128): half of what e8m0 means. The two lowest ones are subnormal.
        const uint32_t exponent = byte_at(block, 0);
        common_scale(part, float_of_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23), 0.0f);
        return part;
    }
    DEVICE void four(const Part& part, unsigned run, unsigned i, float (&v)[4]) {
        biased(run == 0 ? part.low[i] : part.high[i], v);
    }
};

}  // namespace weights
