// Norms of rows: a warp for each row where rows are short, else a block.

struct NormParameters {
    const void* x;
    const float* scale;
    const float* bias;
    void* output;
    uint64_t rows;
    uint32_t width;
    float epsilon;
    // Whether whole packs make a row, are aligned, and a row fits the registers of its threads.
    uint32_t packed;
    uint32_t warp_for_each;
};

namespace row_norm {

// Numbers of a row that one thread keeps in registers.
constexpr int KEPT = 16;

// The threads of one row.
struct Team {
    unsigned threads, member;
    bool warp;
    float* scratch;
};
DEVICE float sum_of(const Team& team, float x) { return team.warp ? warp_sum(x) : block_sum(x, team.scratch); }

// What numbers of a row are multiplied by.
DEVICE float factor(float squares, const NormParameters& p) {
    return 1.0f / sqrtf(squares / static_cast<float>(p.width) + p.epsilon);
}

// A row in registers, read once.
template <typename X, typename Output, bool centred>
DEVICE void row_in_registers(const NormParameters& p, uint64_t row, const Team& team) {
    constexpr int size = packs::SIZE<X, Output>, count = KEPT / size;
    const uint64_t start = row * p.width;
    const X* x = static_cast<const X*>(p.x);
    // Loads before anything else, so that they are under way together; the scale too, which is not waited for after the sum.
    float numbers[count][size] = {}, scale[count][size] = {};
    UNROLLED for (int k = 0; k < count; k++) {
        const unsigned at = (k * team.threads + team.member) * size;
        if (at >= p.width) continue;
        packs::load(x + start + at, numbers[k]);
        packs::load(p.scale + at, scale[k]);
    }
    if (centred) {
        float sum = 0.0f;
        UNROLLED for (int k = 0; k < count; k++) {
            UNROLLED for (int i = 0; i < size; i++) sum += numbers[k][i];
        }
        const float mean = sum_of(team, sum) / static_cast<float>(p.width);
        UNROLLED for (int k = 0; k < count; k++) {
            const bool within = (k * team.threads + team.member) * size < p.width;
            UNROLLED for (int i = 0; i < size; i++) numbers[k][i] = within ? numbers[k][i] - mean : 0.0f;
        }
    }
    float squares = 0.0f;
    UNROLLED for (int k = 0; k < count; k++) {
        UNROLLED for (int i = 0; i < size; i++) squares += numbers[k][i] * numbers[k][i];
    }
    const float by = factor(sum_of(team, squares), p);
    UNROLLED for (int k = 0; k < count; k++) {
        const unsigned at = (k * team.threads + team.member) * size;
        if (at >= p.width) continue;
        float bias[size] = {};
        if (centred) packs::load(p.bias + at, bias);
        UNROLLED for (int i = 0; i < size; i++) numbers[k][i] = numbers[k][i] * by * scale[k][i] + bias[i];
        packs::store(static_cast<Output*>(p.output) + start + at, numbers[k]);
    }
}

// A row of any width and address, read again for each pass.
template <typename X, typename Output, bool centred>
DEVICE void row_in_memory(const NormParameters& p, uint64_t row, const Team& team) {
    const X* x = static_cast<const X*>(p.x) + row * p.width;
    Output* output = static_cast<Output*>(p.output) + row * p.width;
    float mean = 0.0f, squares = 0.0f;
    if (centred) {
        for (unsigned i = team.member; i < p.width; i += team.threads) mean += to_float(x[i]);
        mean = sum_of(team, mean) / static_cast<float>(p.width);
    }
    for (unsigned i = team.member; i < p.width; i += team.threads) {
        const float number = to_float(x[i]) - mean;
        squares += number * number;
    }
    const float by = factor(sum_of(team, squares), p);
    for (unsigned i = team.member; i < p.width; i += team.threads) {
        const float number = (to_float(x[i]) - mean) * by * p.scale[i];
        output[i] = rounded<Output>(centred ? number + p.bias[i] : number);
    }
}

template <typename X, typename Output, bool centred>
DEVICE void normalize(const NormParameters& p) {
    DYNAMIC_SHARED(float, scratch);
    const unsigned threads = p.warp_for_each ? 32 : block_threads();
    const Team team{threads, thread_index() % threads, p.warp_for_each != 0, scratch};
    const uint64_t row = static_cast<uint64_t>(block_x()) * (block_threads() / threads) + thread_index() / threads;
    // Whole teams, so that no sum waits for them.
    if (row >= p.rows) return;
    if (p.packed) {
        row_in_registers<X, Output, centred>(p, row, team);
    } else {
        row_in_memory<X, Output, centred>(p, row, team);
    }
}

}  // namespace row_norm

#define NORM(name, X, Output, centred) \
    KERNEL(name, NormParameters, 1024) { row_norm::normalize<X, Output, centred>(parameters); }
NORM(rms_norm_f32_f32, float, float, false)
NORM(rms_norm_f32_bf16, float, Bf16, false)
NORM(rms_norm_bf16_f32, Bf16, float, false)
NORM(rms_norm_bf16_bf16, Bf16, Bf16, false)
NORM(layer_norm_f32_f32, float, float, true)
NORM(layer_norm_f32_bf16, float, Bf16, true)
NORM(layer_norm_bf16_f32, Bf16, float, true)
NORM(layer_norm_bf16_bf16, Bf16, Bf16, true)
