// Attention that key positions receive: a block owns a tile of positions and goes over all rows and heads, so that sums
// have one order and nothing needs atomics. Scores are computed again, as products of tiles in shared memory.
#include "spans.cu"

namespace received {

// Positions and entries of a tile, dimensions that are in shared memory at once.
constexpr int POSITIONS = 64, ENTRIES = 64, DIMENSIONS = 32;
// Of which a thread has so many.
constexpr int OWN_POSITIONS = 4, OWN_ENTRIES = 8;
constexpr int POSITION_THREADS = POSITIONS / OWN_POSITIONS, ENTRY_THREADS = ENTRIES / OWN_ENTRIES;
constexpr int THREADS = POSITION_THREADS * ENTRY_THREADS;
// Numbers of a row of a tile, in whole vectors.
constexpr int PITCH = POSITIONS + 4;

struct Parameters {
    spans::Problem problem;
    // Maximum and Σ 2^{s'−maximum} of each row and head.
    const float* normalisers;
    float* sum;
    float* max;
    // Where each probability goes, [rows, query_heads, count], zeros before; or null.
    float* probabilities;
    uint32_t count, unused;
};

struct Tiles {
    // [dimension][position] and [dimension][entry].
    float keys[DIMENSIONS * PITCH], queries[DIMENSIONS * PITCH];
    // Of each entry; beyond the last the position is −1, which sees nothing.
    float maximum[ENTRIES], scale[ENTRIES];
    int position[ENTRIES];
    // Row · query_heads + head; of any row beyond the last.
    uint32_t row_and_head[ENTRIES];
    int last[THREADS / 32], first[THREADS / 32];
};

// The smallest and the largest position of a copy's rows, for every thread.
DEVICE void positions_of_copy(const spans::Problem& p, Tiles& tiles, unsigned copy, int& from, int& to) {
    int last = -1, ahead = 0;
    for (unsigned row = thread_index(); row < p.rows_per_copy; row += THREADS) {
        const int position = p.positions[static_cast<uint64_t>(copy) * p.rows_per_copy + row];
        last = spans::larger(last, position), ahead = spans::larger(ahead, spans::MOST_POSITION - position);
    }
    last = warp_max(last), ahead = warp_max(ahead);
    block_barrier();
    if (lane_index() == 0) tiles.last[warp_index()] = last, tiles.first[warp_index()] = ahead;
    block_barrier();
    for (int i = 0; i < THREADS / 32; i++)
        last = spans::larger(last, tiles.last[i]), ahead = spans::larger(ahead, tiles.first[i]);
    to = last, from = spans::MOST_POSITION - ahead;
}

// Whether any entry of the tile sees any position from `start` on; puts the entries into shared memory.
DEVICE bool begin_entries(const Parameters& parameters, Tiles& tiles, unsigned copy, unsigned kv_head, unsigned first_entry,
                          int start) {
    const spans::Problem& p = parameters.problem;
    block_barrier();
    for (unsigned i = thread_index(); i < ENTRIES; i += THREADS) {
        const bool there = first_entry + i < p.entries;
        const uint64_t at = there ? spans::row_and_head(p, copy, kv_head, first_entry + i) : 0;
        tiles.row_and_head[i] = static_cast<uint32_t>(at);
        const float total = there ? parameters.normalisers[at * 2 + 1] : 0.0f;
        tiles.position[i] = there ? spans::position_of(p, copy, first_entry + i) : -1;
        tiles.maximum[i] = there ? parameters.normalisers[at * 2] : 0.0f;
        // NaN or infinite where softmax is undefined: what such a row sees receives NaN.
        tiles.scale[i] = there ? 1.0f / total : 0.0f;
    }
    block_barrier();
    bool any = false;
    for (unsigned i = lane_index(); i < ENTRIES; i += 32) {
        const int position = tiles.position[i];
        any |= position >= start && (position - (start + POSITIONS - 1) < p.window || start < p.sinks);
    }
    return warp_any(any);
}

// Dimensions from `start` on of the rows of a tile into shared memory, times `factor`: of row i those at `row_of(i)`. A warp takes four rows at eight dimensions at once, which fall into different banks.
template <typename T, typename RowOf>
DEVICE void fill(float* tile, int start, int head_dim, float factor, RowOf row_of) {
    constexpr int ROWS = POSITIONS / (THREADS / 8), STEPS = DIMENSIONS / 8;
    const int thread = static_cast<int>(thread_index());
    const int first_row = thread % 4 + 4 * (thread / 32), first_dimension = thread % 32 / 4;
    float numbers[ROWS][STEPS];
    for (int r = 0; r < ROWS; r++) {
        const T* row = row_of(first_row + r * (THREADS / 8));
        for (int j = 0; j < STEPS; j++) {
            const int dimension = start + first_dimension + 8 * j;
            numbers[r][j] = dimension < head_dim ? to_float(row[dimension]) * factor : 0.0f;
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < STEPS; j++)
            tile[(first_dimension + 8 * j) * PITCH + first_row + r * (THREADS / 8)] = numbers[r][j];
}
static_assert(POSITIONS == ENTRIES, "tiles of one shape");

// Scores, before a cap, of this thread's positions and entries.
template <typename Key>
DEVICE void multiply(const spans::Problem& p, Tiles& tiles, const Key* keys, uint32_t stride, int first_key, spans::Range range,
                     float (&scores)[OWN_ENTRIES][OWN_POSITIONS]) {
    const int head_dim = static_cast<int>(p.head_dim), thread = static_cast<int>(thread_index());
    // Where there is no such key, another, which nobody sees here.
    const auto key = [&](int i) {
        const int index = spans::larger(spans::smaller(first_key + i, range.end - 1), range.first);
        return keys + static_cast<uint64_t>(static_cast<uint32_t>(index)) * stride;
    };
    const auto at = [&](int i) { return static_cast<uint64_t>(tiles.row_and_head[i]) * p.head_dim; };
    const auto query_in_bf16 = [&](int i) { return static_cast<const Bf16*>(p.queries) + at(i); };
    const auto query_in_f32 = [&](int i) { return static_cast<const float*>(p.queries) + at(i); };
    for (int e = 0; e < OWN_ENTRIES; e++)
        for (int k = 0; k < OWN_POSITIONS; k++) scores[e][k] = 0.0f;
    NOT_UNROLLED
    for (int start = 0; start < head_dim; start += DIMENSIONS) {
        block_barrier();
        fill<Key>(tiles.keys, start, head_dim, 1.0f, key);
        if (p.queries_in_bf16) {
            fill<Bf16>(tiles.queries, start, head_dim, p.query_scale, query_in_bf16);
        } else {
            fill<float>(tiles.queries, start, head_dim, p.query_scale, query_in_f32);
        }
        block_barrier();
        const float* key_row = tiles.keys + thread % POSITION_THREADS * OWN_POSITIONS;
        const float* query_row = tiles.queries + thread / POSITION_THREADS * OWN_ENTRIES;
        for (int d = 0; d < DIMENSIONS; d++) {
            const Vector16 four_keys = load_16(key_row + d * PITCH);
            const Vector16 queries[2] = {load_16(query_row + d * PITCH), load_16(query_row + d * PITCH + 4)};
            for (int e = 0; e < OWN_ENTRIES; e++)
                for (int k = 0; k < OWN_POSITIONS; k++)
                    scores[e][k] += float_of_bits(queries[e / 4].word[e % 4]) * float_of_bits(four_keys.word[k]);
        }
    }
}

// Leaves the probabilities of this thread's entries and positions where they are wanted; those that are not seen are zeros already.
DEVICE void keep(const Parameters& parameters, const Tiles& tiles, unsigned first_entry, int start,
                 const float (&probabilities)[OWN_ENTRIES][OWN_POSITIONS]) {
    const int thread = static_cast<int>(thread_index());
    const int position = start + thread % POSITION_THREADS * OWN_POSITIONS, entry = thread / POSITION_THREADS * OWN_ENTRIES;
    for (int e = 0; e < OWN_ENTRIES; e++) {
        float* row = parameters.probabilities + static_cast<uint64_t>(tiles.row_and_head[entry + e]) * parameters.count + position;
        if (first_entry + entry + e >= parameters.problem.entries) continue;
        for (int k = 0; k < OWN_POSITIONS; k++)
            if (probabilities[e][k] != 0.0f && position + k < static_cast<int>(parameters.count)) row[k] = probabilities[e][k];
    }
}

template <typename Key>
DEVICE void receive(const Parameters& parameters) {
    const spans::Problem& p = parameters.problem;
    DYNAMIC_SHARED(Tiles, shared);
    Tiles& tiles = *shared;
    const int start = static_cast<int>(block_x()) * POSITIONS, thread = static_cast<int>(thread_index());
    const int own_position = thread % POSITION_THREADS * OWN_POSITIONS, own_entry = thread / POSITION_THREADS * OWN_ENTRIES;
    float sum[OWN_POSITIONS] = {}, max[OWN_POSITIONS] = {};

    for (unsigned copy = 0; copy < p.copies; copy++) {
        int from, to;
        positions_of_copy(p, tiles, copy, from, to);
        for (unsigned index = 0; index < p.span_count; index++) {
            const spans::Span& span = p.spans[index];
            const spans::Range range = spans::visible_keys(p, index, span.first_head, copy, from, to);
            // The key at the tile's first position.
            const int first_key = start - static_cast<int>(span.first_position);
            if (range.first >= range.end || first_key >= range.end || first_key + POSITIONS <= range.first) continue;
            for (unsigned kv_head = span.first_head; kv_head < span.first_head + span.heads; kv_head++) {
                const Key* keys = in_global_memory(reinterpret_cast<const Key*>(span.keys)) + (kv_head - span.first_head) * span.head_stride + copy * span.copy_stride;
                for (unsigned first_entry = 0; first_entry < p.entries; first_entry += ENTRIES) {
                    if (!begin_entries(parameters, tiles, copy, kv_head, first_entry, start)) continue;
                    float scores[OWN_ENTRIES][OWN_POSITIONS];
                    multiply(p, tiles, keys, static_cast<uint32_t>(span.key_stride), first_key, range, scores);
                    if (p.cap > 0.0f) {
                        for (int e = 0; e < OWN_ENTRIES; e++)
                            for (int k = 0; k < OWN_POSITIONS; k++) scores[e][k] = p.cap * tanhf(scores[e][k]);
                    }
                    for (int e = 0; e < OWN_ENTRIES; e++) {
                        const float maximum = tiles.maximum[own_entry + e], scale = tiles.scale[own_entry + e];
                        for (int k = 0; k < OWN_POSITIONS; k++) {
                            const int key = first_key + own_position + k;
                            const int at = start + own_position + k, behind = tiles.position[own_entry + e] - at;
                            const bool in_window = behind < p.window || at < p.sinks;
                            const bool seen = key >= range.first && key < range.end && behind >= 0 && in_window;
                            const float probability = seen ? exp2_fast(scores[e][k] - maximum) * scale : 0.0f;
                            sum[k] += probability;
                            max[k] = fmaxf(max[k], probability);
                            scores[e][k] = probability;
                        }
                    }
                    if (parameters.probabilities) keep(parameters, tiles, first_entry, start, scores);
                }
            }
        }
    }
    // Over the threads that share positions, in their order.
    block_barrier();
    for (int k = 0; k < OWN_POSITIONS; k++) {
        const int at = thread / POSITION_THREADS * PITCH + own_position + k;
        tiles.keys[at] = sum[k], tiles.queries[at] = max[k];
    }
    block_barrier();
    if (thread >= POSITIONS || start + thread >= static_cast<int>(parameters.count)) return;
    float total = 0.0f, largest = 0.0f;
    for (int i = 0; i < ENTRY_THREADS; i++) {
        total += tiles.keys[i * PITCH + thread];
        largest = fmaxf(largest, tiles.queries[i * PITCH + thread]);
    }
    const float sum_now = parameters.sum[start + thread] + total;
    parameters.sum[start + thread] = sum_now;
    // fmaxf passes over NaN.
    parameters.max[start + thread] = sum_now == sum_now ? fmaxf(parameters.max[start + thread], largest) : not_a_number();
}

}  // namespace received

KERNEL_RESIDENT(span_attention_received_f32, received::Parameters, received::THREADS, 4) { received::receive<float>(parameters); }
KERNEL_RESIDENT(span_attention_received_bf16, received::Parameters, received::THREADS, 4) { received::receive<Bf16>(parameters); }
