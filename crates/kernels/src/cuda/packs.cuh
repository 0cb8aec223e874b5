// Numbers of either type, several at a time: as many as 16 bytes hold of the widest type among them.
#pragma once

namespace packs {

// How many of a type 16 bytes hold.
template <typename T>
constexpr int IN_16_BYTES = 16 / sizeof(T);
template <int a, int b>
constexpr int SMALLER = a < b ? a : b;
// Numbers that move at once where all of these types take part.
template <typename A, typename B = A, typename C = A>
constexpr int SIZE = SMALLER<SMALLER<IN_16_BYTES<A>, IN_16_BYTES<B>>, IN_16_BYTES<C>>;

// From an address aligned to the whole pack, or to 16 bytes where it is longer.
template <int size>
DEVICE void load(const float* from, float (&x)[size]) {
    UNROLLED for (int group = 0; group < size / 4; group++) {
        const Vector16 words = load_16(from + 4 * group);
        UNROLLED for (int i = 0; i < 4; i++) x[4 * group + i] = float_of_bits(words.word[i]);
    }
}
DEVICE void load(const Bf16* from, float (&x)[4]) {
    const Vector8 words = load_8(from);
    UNROLLED for (int i = 0; i < 2; i++) x[2 * i] = low_bf16(words.word[i]), x[2 * i + 1] = high_bf16(words.word[i]);
}
DEVICE void load(const Bf16* from, float (&x)[8]) {
    const Vector16 words = load_16(from);
    UNROLLED for (int i = 0; i < 4; i++) x[2 * i] = low_bf16(words.word[i]), x[2 * i + 1] = high_bf16(words.word[i]);
}

template <int size>
DEVICE void store(float* to, const float (&x)[size]) {
    UNROLLED for (int group = 0; group < size / 4; group++) {
        Vector16 words;
        UNROLLED for (int i = 0; i < 4; i++) words.word[i] = bits_of_float(x[4 * group + i]);
        store_16(to + 4 * group, words);
    }
}
DEVICE void store(Bf16* to, const float (&x)[4]) {
    store_8(to, Vector8{{pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])}});
}
DEVICE void store(Bf16* to, const float (&x)[8]) {
    Vector16 words;
    UNROLLED for (int i = 0; i < 4; i++) words.word[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
    store_16(to, words);
}

}  // namespace packs
