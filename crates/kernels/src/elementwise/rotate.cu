// Rotary embedding: a block for each row and tensor, whose angles are worked out once for all heads.

struct RotateParameters {
    const void* x[2];
    void* output[2];
    const int32_t* positions;
    const float* frequencies;
    uint32_t heads[2];
    uint32_t head_dim;
    uint32_t half;
    float magnitude;
    // Whether whole packs make half of what is turned, and are aligned.
    uint32_t packed;
};

namespace rotation {

// Turns the pairs (i, i + half) of one head for `size` successive i.
template <typename T, int size>
DEVICE void turn(const T* x, T* output, const float* cosine, const float* sine, unsigned half) {
    float x0[size], x1[size], cosines[size], sines[size], y0[size], y1[size];
    packs::load(x, x0);
    packs::load(x + half, x1);
    packs::load(cosine, cosines);
    packs::load(sine, sines);
    UNROLLED for (int i = 0; i < size; i++) {
        y0[i] = x0[i] * cosines[i] - x1[i] * sines[i];
        y1[i] = x0[i] * sines[i] + x1[i] * cosines[i];
    }
    packs::store(output, y0);
    packs::store(output + half, y1);
}
template <typename T>
DEVICE void turn_one(const T* x, T* output, float cosine, float sine, unsigned half) {
    const float x0 = to_float(x[0]), x1 = to_float(x[half]);
    output[0] = rounded<T>(x0 * cosine - x1 * sine);
    output[half] = rounded<T>(x0 * sine + x1 * cosine);
}

template <typename T>
DEVICE void rotate(const RotateParameters& p) {
    constexpr int size = packs::SIZE<T>;
    DYNAMIC_SHARED(float, cosines);
    // At a multiple of 16 bytes too.
    float* sines = cosines + (p.half + 3) / 4 * 4;
    const uint64_t row = block_x();
    const bool second = block_y() != 0;
    const unsigned heads = second ? p.heads[1] : p.heads[0];
    const uint64_t start = row * heads * p.head_dim;
    const T* x = static_cast<const T*>(second ? p.x[1] : p.x[0]) + start;
    T* output = static_cast<T*>(second ? p.output[1] : p.output[0]) + start;

    const float position = static_cast<float>(p.positions[row]);
    for (unsigned i = thread_index(); i < p.half; i += block_threads()) {
        float sine, cosine;
        sincosf(rounded_product(position, p.frequencies[i]), &sine, &cosine);
        cosines[i] = cosine * p.magnitude;
        sines[i] = sine * p.magnitude;
    }
    block_barrier();

    const unsigned step = p.packed ? size : 1, steps = p.half / step;
    for (unsigned item = thread_index(); item < heads * steps; item += block_threads()) {
        const unsigned i = item % steps * step, at = item / steps * p.head_dim + i;
        if (p.packed) {
            turn<T, size>(x + at, output + at, cosines + i, sines + i, p.half);
        } else {
            turn_one(x + at, output + at, cosines[i], sines[i], p.half);
        }
    }
    const unsigned rest = p.head_dim - 2 * p.half;
    if (x == output) return;
    for (unsigned item = thread_index(); item < heads * rest; item += block_threads()) {
        const unsigned at = item / rest * p.head_dim + 2 * p.half + item % rest;
        output[at] = x[at];
    }
}

}  // namespace rotation

KERNEL_RESIDENT(rotate_f32, RotateParameters, 256, 6) { rotation::rotate<float>(parameters); }
KERNEL_RESIDENT(rotate_bf16, RotateParameters, 256, 6) { rotation::rotate<Bf16>(parameters); }
