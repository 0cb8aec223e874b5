// Angles between successive steps of a trajectory: a block for a few successive angles, whose rows it reads once.
#include "cuda/packs.cuh"

struct AnglesParameters {
    // Rows that came before x, as many as `before_rows`.
    const float* before;
    const float* x;
    double* angles;
    uint64_t before_rows;
    uint64_t count;
    uint32_t width;
    // Whether whole packs make a row, and are aligned.
    uint32_t packed;
};
struct SumAnglesParameters {
    const double* angles;
    double* sums;
    uint64_t count;
};

namespace trajectory {

constexpr int THREADS = 256, ANGLES = 4, STEPS = ANGLES + 1, WARPS = THREADS / 32;

// What a thread adds up: squares of the lengths of steps, products of each with the next.
struct Sums {
    double squares[STEPS];
    double products[ANGLES];
};

// The row of that number; beyond the last angle the last row again, which changes nothing that is kept.
DEVICE const float* row_at(const AnglesParameters& p, uint64_t row) {
    const uint64_t last = p.count + 1;
    if (row > last) row = last;
    return row < p.before_rows ? p.before + row * p.width : p.x + (row - p.before_rows) * p.width;
}

DEVICE void load(const float* from, float (&x)[4]) { packs::load(from, x); }
DEVICE void load(const float* from, float (&x)[1]) { x[0] = *from; }

// Columns `column` to `column + size − 1` of the rows from `first` on.
template <int size>
DEVICE void add_columns(const AnglesParameters& p, uint64_t first, unsigned column, Sums& sums) {
    float row[size], next[size], step[size], last_step[size];
    load(row_at(p, first) + column, row);
    UNROLLED for (int i = 0; i < size; i++) last_step[i] = 0.0f;
    UNROLLED for (int s = 0; s < STEPS; s++) {
        load(row_at(p, first + s + 1) + column, next);
        UNROLLED for (int i = 0; i < size; i++) {
            step[i] = next[i] - row[i];
            // Products of f32 are exact in f64.
            const double wide = static_cast<double>(step[i]);
            sums.squares[s] += wide * wide;
            if (s > 0) sums.products[s - 1] += wide * static_cast<double>(last_step[i]);
            row[i] = next[i];
            last_step[i] = step[i];
        }
    }
}

DEVICE double angle(double product, double square, double next_square) {
    // A step of length 0 has no direction and counts as a right angle.
    const double lengths = sqrt(square * next_square);
    const double cosine = lengths == 0.0 ? 0.0 : product / lengths;
    return acos(cosine > 1.0 ? 1.0 : cosine < -1.0 ? -1.0 : cosine);
}

}  // namespace trajectory

KERNEL_RESIDENT(angles, AnglesParameters, 256, 2) {
    using namespace trajectory;
    const AnglesParameters& p = parameters;
    DYNAMIC_SHARED(double, shared);
    const uint64_t first = static_cast<uint64_t>(block_x()) * ANGLES;
    Sums sums = {};
    if (p.packed) {
        for (unsigned column = 4 * thread_index(); column < p.width; column += 4 * THREADS)
            add_columns<4>(p, first, column, sums);
    } else {
        for (unsigned column = thread_index(); column < p.width; column += THREADS)
            add_columns<1>(p, first, column, sums);
    }
    // shared [STEPS + ANGLES, WARPS]
    UNROLLED for (int i = 0; i < STEPS + ANGLES; i++) {
        // Either index is within its array, whichever is used.
        const double square = sums.squares[i < STEPS ? i : 0], product = sums.products[i < STEPS ? 0 : i - STEPS];
        const double sum = warp_sum(i < STEPS ? square : product);
        if (lane_index() == 0) shared[i * WARPS + warp_index()] = sum;
    }
    block_barrier();
    const unsigned index = thread_index();
    if (index >= ANGLES || first + index >= p.count) return;
    double square = 0.0, next_square = 0.0, product = 0.0;
    for (int warp = 0; warp < WARPS; warp++) {
        square += shared[index * WARPS + warp];
        next_square += shared[(index + 1) * WARPS + warp];
        product += shared[(STEPS + index) * WARPS + warp];
    }
    p.angles[first + index] = angle(product, square, next_square);
}

// One block, so that the order of the sum does not depend on timing.
KERNEL(sum_angles, SumAnglesParameters, 256) {
    const SumAnglesParameters& p = parameters;
    DYNAMIC_SHARED(double, shared);
    double sum = 0.0;
    for (uint64_t i = thread_index(); i < p.count; i += block_threads()) sum += p.angles[i];
    sum = warp_sum(sum);
    if (lane_index() == 0) shared[warp_index()] = sum;
    block_barrier();
    if (thread_index() != 0) return;
    double total = 0.0;
    for (unsigned warp = 0; warp < block_threads() / 32; warp++) total += shared[warp];
    p.sums[0] += total;
    p.sums[1] += static_cast<double>(p.count);
}
