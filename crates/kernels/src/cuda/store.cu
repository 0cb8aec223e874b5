// Rows picked and added by number; keys and values into their cache; counters of a decode that counts by itself.
#include "packs.cuh"

struct GatherParameters {
    const void* x;
    const uint32_t* ids;
    void* output;
    uint64_t rows;
    uint64_t count;
    // Units of 16, 4 or 2 bytes that make a row.
    uint32_t units;
    uint32_t unused;
};
struct AddWeightedParameters {
    const void* x;
    const uint32_t* ids;
    const float* weights;
    float* output;
    uint64_t rows;
    uint64_t count;
    uint32_t width;
    uint32_t packed;
};
struct AppendParameters {
    const void* from[2];
    void* to[2];
    // Null where nothing was decoded.
    const int32_t* decoded;
    uint64_t first_slot;
    uint64_t rows;
    uint64_t capacity;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t packed;
    // Elements between two rows.
    uint32_t row_stride;
};
struct AdvanceParameters {
    int32_t* positions;
    int32_t* decoded;
    uint64_t rows;
};

namespace store {

DEVICE unsigned column() { return block_x() * block_threads() + thread_index(); }

template <typename Unit>
DEVICE void gather(const GatherParameters& p) {
    if (column() >= p.units) return;
    for (uint64_t row = block_y(); row < p.count; row += grid_y()) {
        const uint64_t id = p.ids[row];
        Unit unit = {};
        if (id < p.rows) unit = static_cast<const Unit*>(p.x)[id * p.units + column()];
        static_cast<Unit*>(p.output)[row * p.units + column()] = unit;
    }
}

template <typename X>
DEVICE void add_weighted(const AddWeightedParameters& p) {
    constexpr int size = packs::SIZE<X, float>;
    const unsigned first = column() * (p.packed ? size : 1);
    if (first >= p.width) return;
    for (uint64_t row = block_y(); row < p.count; row += grid_y()) {
        const uint64_t id = p.ids[row];
        if (id >= p.rows) continue;
        const X* x = static_cast<const X*>(p.x) + row * p.width + first;
        float* output = p.output + id * p.width + first;
        if (p.packed) {
            float numbers[size], sums[size];
            packs::load(x, numbers);
            packs::load(output, sums);
            UNROLLED for (int i = 0; i < size; i++) sums[i] += p.weights[row] * numbers[i];
            packs::store(output, sums);
        } else {
            *output += p.weights[row] * to_float(*x);
        }
    }
}

DEVICE float stored(float x, const float*) { return x; }
// What is too large for bf16 becomes its largest number rather than infinite; NaN stays NaN.
DEVICE float stored(float x, const Bf16*) {
    const float most = float_of_bits(0x7f7f0000u);
    return x > most ? most : x < -most ? -most : x;
}

template <typename From, typename To>
DEVICE void append(const AppendParameters& p) {
    constexpr int size = packs::SIZE<From, To>;
    const bool values = block_z() != 0;
    const From* from = static_cast<const From*>(values ? p.from[1] : p.from[0]);
    To* to = static_cast<To*>(values ? p.to[1] : p.to[0]);
    const unsigned width = p.kv_heads * p.head_dim, first = column() * (p.packed ? size : 1);
    if (first >= width) return;
    const unsigned head = first / p.head_dim, within = first % p.head_dim;
    const int64_t decoded = p.decoded ? *p.decoded : 0;
    for (uint64_t row = block_y(); row < p.rows; row += grid_y()) {
        // A negative one is beyond the capacity too.
        const uint64_t slot = p.first_slot + row + static_cast<uint64_t>(decoded);
        if (slot >= p.capacity) continue;
        const From* x = from + row * p.row_stride + first;
        To* output = to + (head * p.capacity + slot) * p.head_dim + within;
        if (p.packed) {
            float numbers[size];
            packs::load(x, numbers);
            UNROLLED for (int i = 0; i < size; i++) numbers[i] = stored(numbers[i], output);
            packs::store(output, numbers);
        } else {
            *output = rounded<To>(stored(to_float(*x), output));
        }
    }
}

}  // namespace store

KERNEL(gather_rows_16, GatherParameters, 256) { store::gather<Vector16>(parameters); }
KERNEL(gather_rows_4, GatherParameters, 256) { store::gather<uint32_t>(parameters); }
KERNEL(gather_rows_2, GatherParameters, 256) { store::gather<uint16_t>(parameters); }
KERNEL(add_weighted_rows_f32, AddWeightedParameters, 256) { store::add_weighted<float>(parameters); }
KERNEL(add_weighted_rows_bf16, AddWeightedParameters, 256) { store::add_weighted<Bf16>(parameters); }
KERNEL(append_f32_f32, AppendParameters, 256) { store::append<float, float>(parameters); }
KERNEL(append_f32_bf16, AppendParameters, 256) { store::append<float, Bf16>(parameters); }
KERNEL(append_bf16_f32, AppendParameters, 256) { store::append<Bf16, float>(parameters); }
KERNEL(append_bf16_bf16, AppendParameters, 256) { store::append<Bf16, Bf16>(parameters); }

KERNEL(advance_counters, AdvanceParameters, 256) {
    const uint64_t first = store::column(), stride = static_cast<uint64_t>(grid_x()) * block_threads();
    for (uint64_t row = first; row < parameters.rows; row += stride) parameters.positions[row]++;
    if (first == 0) parameters.decoded[0]++;
}
