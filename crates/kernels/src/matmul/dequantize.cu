// Rows of W as numbers.
#include "chunk.cuh"

struct DequantizeParameters {
    const unsigned char* data;
    // Which rows; null for those from `first` on.
    const uint32_t* ids;
    // f32 or bf16 [count, columns].
    void* output;
    uint64_t row_bytes;
    uint64_t first;
    uint32_t count;
    uint32_t columns;
    uint32_t to_bf16;
};

namespace weights {

// Number in order of the rows wanted.
DEVICE const unsigned char* wanted_row(const DequantizeParameters& p, unsigned number) {
    const uint64_t row = p.ids ? p.ids[number] : p.first + number;
    return p.data + row * p.row_bytes;
}

// Eight numbers to where element `at` of the output is, a multiple of eight.
DEVICE void put_eight(const DequantizeParameters& p, uint64_t at, const float (&w)[8]) {
    if (p.to_bf16 != 0) {
        Vector16 packed;
        UNROLLED for (unsigned i = 0; i < 4; i++) packed.word[i] = pack_bf16(w[2 * i], w[2 * i + 1]);
        store_16_global(static_cast<Bf16*>(p.output) + at, packed);
    } else {
        UNROLLED for (unsigned half = 0; half < 2; half++) {
            Vector16 four;
            UNROLLED for (unsigned i = 0; i < 4; i++) four.word[i] = bits_of_float(w[4 * half + i]);
            store_16_global(static_cast<float*>(p.output) + at + 4 * half, four);
        }
    }
}

// A block for each row.
template <typename T>
DEVICE void widen(const DequantizeParameters& p) {
    const unsigned char* row = wanted_row(p, block_x());
    const T* from = reinterpret_cast<const T*>(row);
    const uint64_t first = block_x() * static_cast<uint64_t>(p.columns);
    if (p.columns % 8 == 0 && misalignment(row) == 0) {
        for (unsigned c = 8 * thread_index(); c < p.columns; c += 8 * block_threads()) {
            constexpr unsigned EACH = 16 / sizeof(T);
            float w[8];
            UNROLLED for (unsigned i = 0; i < 8; i += EACH) {
                const Vector16 packed = load_16_once(from + c + i);
                UNROLLED for (unsigned j = 0; j < EACH; j++) {
                    if constexpr (sizeof(T) == 4) w[i + j] = float_of_bits(packed.word[j]);
                    else w[i + j] = to_float(T{static_cast<uint16_t>(packed.word[j / 2] >> (16 * (j % 2)))});
                }
            }
            put_eight(p, first + c, w);
        }
        return;
    }
    for (unsigned c = thread_index(); c < p.columns; c += block_threads()) {
        const float w = to_float(from[c]);
        if (p.to_bf16 != 0) static_cast<Bf16*>(p.output)[first + c] = to_bf16(w);
        else static_cast<float*>(p.output)[first + c] = w;
    }
}

// A warp for each chunk, through shared memory on the way there, for whole words, and on the way back, for whole lines.
template <typename B>
DEVICE void dequantize(const DequantizeParameters& p) {
    using C = Chunk<B>;
    DYNAMIC_SHARED(unsigned char, shared);
    const unsigned warps = block_threads() / 32, lane = lane_index();
    unsigned char* packed = shared + warp_index() * C::STRIDE;
    float* unpacked = reinterpret_cast<float*>(shared + warps * C::STRIDE) + warp_index() * with_gaps(C::COLUMNS);

    const unsigned chunks = (p.columns + C::COLUMNS - 1) / C::COLUMNS;
    const unsigned item = block_x() * warps + warp_index(), row = item / chunks;
    if (row >= p.count) return;
    const unsigned first = item % chunks * C::COLUMNS, rest = p.columns - first;
    const unsigned columns = rest < C::COLUMNS ? rest : C::COLUMNS;
    const unsigned char* from = wanted_row(p, row) + C::bytes(first);
    const Copies<B, 1> copies = Copies<B, 1>::of([&](unsigned) { return from; });
    Copies<B, 1>::queue(copies, packed, 0, C::bytes(columns));
    copy_async_commit();
    copy_async_wait<0>();
    warp_barrier();

    if (C::has_part(lane, columns)) {
        const Part part = C::load(Bytes{packed, misalignment(from)}, lane, columns);
        UNROLLED for (unsigned run = 0; run < 2; run++)
            UNROLLED for (unsigned i = 0; i < 4; i++) {
                float v[4];
                B::four(part, run, i, v);
                Vector16 w;
                UNROLLED for (unsigned j = 0; j < 4; j++)
                    w.word[j] = bits_of_float(fmaf((v[j] - B::ZERO) * B::UNIT, part.scale[run], part.offset[run]));
                store_16(unpacked + with_gaps(C::column(lane, run) + 4 * i), w);
            }
    }
    warp_barrier();

    const uint64_t to = row * static_cast<uint64_t>(p.columns) + first;
    if (p.to_bf16 == 0) {
        for (unsigned c = 4 * lane; c < columns; c += 128)
            store_16_global(static_cast<float*>(p.output) + to + c, load_16(unpacked + with_gaps(c)));
        return;
    }
    for (unsigned c = 8 * lane; c < columns; c += 256) {
        float w[8];
        UNROLLED for (unsigned half = 0; half < 2; half++) {
            const Vector16 four = load_16(unpacked + with_gaps(c) + 4 * half);
            UNROLLED for (unsigned i = 0; i < 4; i++) w[4 * half + i] = float_of_bits(four.word[i]);
        }
        put_eight(p, to + c, w);
    }
}

}  // namespace weights

KERNEL(dequantize_f32, DequantizeParameters, 256) { weights::widen<float>(parameters); }
KERNEL(dequantize_f16, DequantizeParameters, 256) { weights::widen<F16>(parameters); }
KERNEL(dequantize_bf16, DequantizeParameters, 256) { weights::widen<Bf16>(parameters); }
#define DEQUANTIZE(name, Format) \
    KERNEL(dequantize_##name, DequantizeParameters, 256) { weights::dequantize<weights::Format>(parameters); }
FOR_EACH_BLOCK_FORMAT(DEQUANTIZE)
