// Joins the splits of attention over spans into outputs and statistics.
#include "spans.cu"

namespace spans {

constexpr double LN_2 = 0.693147180559945309;

struct MergeParameters {
    const float* outputs;
    const float* states;
    void* output;
    // Null where not wanted.
    float* mass;
    float* entropy;
    float* normalisers;
    uint32_t head_dim, splits, output_in_bf16, unused;
};

// A block joins the splits of one row and head.
DEVICE void merge(const MergeParameters& p) {
    constexpr int numbers = 2 * SEGMENTS;
    DYNAMIC_SHARED(double, joined);
    float* maxima = reinterpret_cast<float*>(joined + WARPS * numbers);
    float* outputs = maxima + WARPS;
    float* weights = outputs + WARPS * p.head_dim;
    const int warp = static_cast<int>(warp_index()), lane = static_cast<int>(lane_index());
    const int splits = static_cast<int>(p.splits), head_dim = static_cast<int>(p.head_dim);
    const uint64_t row_and_head = block_x();
    const float* states = p.states + row_and_head * p.splits * STATE;

    float maximum = minus_infinity();
    for (int i = static_cast<int>(thread_index()); i < splits; i += THREADS) maximum = fmaxf(maximum, states[i * STATE]);
    maximum = warp_max(maximum);
    if (lane == 0) maxima[warp] = maximum;
    block_barrier();
    for (int i = 0; i < WARPS; i++) maximum = fmaxf(maximum, maxima[i]);

    double sums[numbers] = {};
    for (int i = static_cast<int>(thread_index()); i < splits; i += THREADS) {
        const float* state = states + i * STATE;
        const bool any = state[0] > minus_infinity();
        const float change = any ? state[0] - maximum : 0.0f, weight = any ? exp2_fast(change) : 0.0f;
        weights[i] = weight;
        for (int g = 0; g < SEGMENTS; g++) {
            const double sum = state[1 + g];
            sums[g] += weight * sum;
            sums[SEGMENTS + g] += weight * (state[1 + SEGMENTS + g] + sum * change);
        }
    }
    for (int i = 0; i < numbers; i++) {
        sums[i] = warp_sum(sums[i]);
        if (lane == 0) joined[warp * numbers + i] = sums[i];
    }
    block_barrier();
    for (int i = 0; i < numbers; i++) {
        sums[i] = 0.0;
        for (int other = 0; other < WARPS; other++) sums[i] += joined[other * numbers + i];
    }
    const double total = sums[0] + sums[1] + sums[2];

    const float* parts = p.outputs + row_and_head * p.splits * p.head_dim;
    float output[PER_LANE] = {};
    for (int i = warp; i < splits; i += WARPS) {
        // What has no score above −∞ has no outputs either.
        if (weights[i] == 0.0f) continue;
        for (int j = 0; j < PER_LANE; j++)
            if (lane + 32 * j < head_dim) output[j] += weights[i] * parts[static_cast<uint64_t>(i) * p.head_dim + lane + 32 * j];
    }
    for (int j = 0; j < PER_LANE; j++)
        if (lane + 32 * j < head_dim) outputs[warp * head_dim + lane + 32 * j] = output[j];
    block_barrier();
    // NaN or infinite where softmax is undefined, and so are the outputs then.
    const float scale = static_cast<float>(1.0 / total);
    for (int d = static_cast<int>(thread_index()); d < head_dim; d += THREADS) {
        float sum = 0.0f;
        for (int i = 0; i < WARPS; i++) sum += outputs[i * head_dim + d];
        const uint64_t at = row_and_head * p.head_dim + d;
        if (p.output_in_bf16) {
            static_cast<Bf16*>(p.output)[at] = to_bf16(sum * scale);
        } else {
            static_cast<float*>(p.output)[at] = sum * scale;
        }
    }

    if (thread_index() > 0) return;
    if (p.normalisers) {
        p.normalisers[row_and_head * 2] = maximum;
        p.normalisers[row_and_head * 2 + 1] = static_cast<float>(total);
    }
    if (!p.mass) return;
    for (int g = 0; g < SEGMENTS; g++) {
        const bool any = sums[g] > 0.0 && total == total;
        // Rounding can leave −1e-8 for a single key.
        const double entropy = any ? log(sums[g]) - sums[SEGMENTS + g] / sums[g] * LN_2 : 0.0;
        p.mass[row_and_head * SEGMENTS + g] = static_cast<float>(sums[g] / total);
        p.entropy[row_and_head * SEGMENTS + g] = any ? static_cast<float>(entropy > 0.0 ? entropy : 0.0) : not_a_number();
    }
}

}  // namespace spans

KERNEL(span_attention_merge, spans::MergeParameters, spans::THREADS) { spans::merge(parameters); }
