// y = x·Wᵀ for few rows x, straight from the blocks of W, whose way from memory sets the pace.
//
// There are as many blocks as multiprocessors; each has x in shared memory once. Each of its warps takes a group of rows of W
// after another, chunk by chunk: while it multiplies one, the next ones are on their way to shared memory. Where groups are
// few, several warps share one.
#include "../elementwise/activation.cuh"
#include "chunk.cuh"

struct RowMatrix {
    const unsigned char* data;
    // [rows], or null.
    const float* bias;
    // [rows of x, rows], or null.
    const float* add;
    // [rows of x, rows], or null: the output is multiplied by its activation.
    const float* gate;
    // [rows of x, rows].
    float* output;
    uint32_t rows;
    // Of a few rows each, the last one perhaps less.
    uint32_t groups;
};
struct MultiplyRowsParameters {
    // All with rows of the same bytes. Where `gated`, the first is the gate of the second.
    RowMatrix matrices[3];
    const float* x;
    // From a row of W to the next.
    uint64_t row_bytes;
    // From a row of x to the next.
    uint32_t x_stride;
    uint32_t columns;
    uint32_t rows;
    // 0: x/(1 + e^−x); 1: x·Φ(x); 2: its approximation by tanh.
    uint32_t activation;
    uint32_t gated;
    // Whether x can be read 16 bytes at a time.
    uint32_t x_aligned;
    // So many warps of a block share the chunks of a group; 1 unless each of them has one group at most.
    uint32_t team;
};

namespace weights {

// Chunks of a warp in shared memory, by their bytes: all but one on their way.
template <typename B>
constexpr unsigned STAGES = Chunk<B>::BYTES <= 960 ? 4 : 3;

// Sums over the lanes of a warp; lane i gets that of number i / (32/N).
template <unsigned N, int MASK = 16>
DEVICE float lane_sums(const float (&x)[N]) {
    if constexpr (N == 1) {
        float sum = x[0];
        UNROLLED for (int mask = MASK; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
        return sum;
    } else {
        // Each lane goes on with half of the numbers and leaves the others to its partner.
        const bool upper = (lane_index() & MASK) != 0;
        float kept[N / 2];
        UNROLLED for (unsigned i = 0; i < N / 2; i++)
            kept[i] = (upper ? x[N / 2 + i] : x[i]) + shuffle_xor(upper ? x[i] : x[N / 2 + i], MASK);
        return lane_sums<N / 2, MASK / 2>(kept);
    }
}

// Rows of W that are multiplied at once, which `matrix` and the group within it say.
struct Group {
    unsigned matrix, index;
};
DEVICE Group find_group(const MultiplyRowsParameters& p, unsigned group) {
    unsigned matrix = 0;
    if (p.gated == 0) {
        while (group >= p.matrices[matrix].groups) group -= p.matrices[matrix++].groups;
    }
    return Group{matrix, group};
}

// Row r of a group: where it is gated, half of them are of the gate. Beyond the last row there is the last one again.
DEVICE const unsigned char* row_of(const MultiplyRowsParameters& p, Group group, unsigned r) {
    unsigned matrix = group.matrix, row = group.index * ROWS + r;
    if (p.gated != 0) {
        matrix = r / (ROWS / 2);
        row = group.index * (ROWS / 2) + r % (ROWS / 2);
    }
    const unsigned last = p.matrices[matrix].rows - 1;
    return p.matrices[matrix].data + (row < last ? row : last) * p.row_bytes;
}

// x in shared memory, and the sums of each 16 columns of it, since w = quant·scale + offset is summed by parts.
struct SharedX {
    float* numbers;
    float* sums;
    // From a row to the next.
    unsigned stride, sums_stride;
};

// Queues copies of x: with gaps, and with zeros up to whole chunks.
DEVICE void copy_x(const MultiplyRowsParameters& p, unsigned columns, SharedX x) {
    for (unsigned row = 0; row < p.rows; row++) {
        const float* from = p.x + static_cast<uint64_t>(row) * p.x_stride;
        float* to = x.numbers + row * x.stride;
        for (unsigned c = 4 * thread_index(); c < columns; c += 4 * block_threads()) {
            if (p.x_aligned != 0) {
                const bool wanted = c < p.columns;
                copy_async_16(to + with_gaps(c), wanted ? from + c : from, wanted);
                continue;
            }
            Vector16 four = {};
            UNROLLED for (unsigned i = 0; i < 4; i++)
                if (c + i < p.columns) four.word[i] = bits_of_float(from[c + i]);
            store_16(to + with_gaps(c), four);
        }
    }
    copy_async_commit();
}
DEVICE void sum_x(const MultiplyRowsParameters& p, unsigned columns, SharedX x) {
    for (unsigned row = 0; row < p.rows; row++)
        for (unsigned i = thread_index(); i < columns / 16; i += block_threads()) {
            float sum = 0.0f;
            UNROLLED for (unsigned j = 0; j < 4; j++) {
                const Vector16 four = load_16(x.numbers + row * x.stride + with_gaps(16 * i) + 4 * j);
                UNROLLED for (unsigned k = 0; k < 4; k++) sum += float_of_bits(four.word[k]);
            }
            x.sums[row * x.sums_stride + i] = sum;
        }
}

// Whether sums of x are needed.
template <typename B>
constexpr bool WITH_SUMS = B::ZERO != 0.0f || B::HAS_OFFSET;

// Adds the products of this lane's parts of a chunk that begins at column `first`: sums[r·ROWS_OF_X + row].
template <typename B, unsigned ROWS_OF_X>
DEVICE void add_products(const Part (&parts)[ROWS], SharedX x, unsigned first, unsigned rows,
                         float (&sums)[ROWS * ROWS_OF_X]) {
    UNROLLED for (unsigned run = 0; run < 2; run++) {
        const unsigned column = Chunk<B>::column(lane_index(), run);
        const float* run_x = x.numbers + with_gaps(first) + with_gaps(column);
        float products[ROWS * ROWS_OF_X] = {};
        UNROLLED for (unsigned i = 0; i < B::RUN / 4; i++) {
            float v[ROWS][4];
            UNROLLED for (unsigned r = 0; r < ROWS; r++) B::four(parts[r], run, i, v[r]);
            UNROLLED for (unsigned row = 0; row < ROWS_OF_X; row++) {
                if (ROWS_OF_X > 1 && row >= rows) continue;
                const Vector16 four = load_16(run_x + row * x.stride + 4 * i);
                UNROLLED for (unsigned j = 0; j < 4; j++)
                    UNROLLED for (unsigned r = 0; r < ROWS; r++)
                        products[r * ROWS_OF_X + row] += v[r][j] * float_of_bits(four.word[j]);
            }
        }
        UNROLLED for (unsigned row = 0; row < ROWS_OF_X; row++) {
            if (ROWS_OF_X > 1 && row >= rows) continue;
            float x_sum = 0.0f;
            if constexpr (WITH_SUMS<B>) x_sum = x.sums[row * x.sums_stride + first / 16 + column / 16];
            UNROLLED for (unsigned r = 0; r < ROWS; r++) {
                float& sum = sums[r * ROWS_OF_X + row];
                float product = products[r * ROWS_OF_X + row];
                if constexpr (Chunk<B>::FLOATS) {
                    sum += product;
                } else {
                    if constexpr (B::ZERO != 0.0f) product -= B::ZERO * x_sum;
                    sum += parts[r].scale[run] * product;
                    if constexpr (B::HAS_OFFSET) sum += parts[r].offset[run] * (1.0f / B::UNIT) * x_sum;
                }
            }
        }
    }
}

// Sums of a group to where they belong.
template <unsigned ROWS_OF_X>
DEVICE void put_sums(const MultiplyRowsParameters& p, Group group, float sum) {
    constexpr unsigned LANES = 32 / (ROWS * ROWS_OF_X);
    const unsigned number = lane_index() / LANES, r = number / ROWS_OF_X, x_row = number % ROWS_OF_X;
    // Of the second half of the rows, for the first half.
    const float up = shuffle_xor(sum, 16);
    const bool wanted = lane_index() % LANES == 0 && x_row < p.rows;
    if (p.gated != 0) {
        const RowMatrix& matrix = p.matrices[1];
        const unsigned row = group.index * (ROWS / 2) + r;
        if (wanted && r < ROWS / 2 && row < matrix.rows)
            matrix.output[static_cast<uint64_t>(x_row) * matrix.rows + row] = activation::of(p.activation, sum) * up;
        return;
    }
    const RowMatrix& matrix = p.matrices[group.matrix];
    const unsigned row = group.index * ROWS + r;
    if (!wanted || row >= matrix.rows) return;
    const uint64_t at = static_cast<uint64_t>(x_row) * matrix.rows + row;
    if (matrix.bias) sum += matrix.bias[row];
    if (matrix.add) sum += matrix.add[at];
    if (matrix.gate) sum *= activation::of(p.activation, matrix.gate[at]);
    matrix.output[at] = sum;
}

template <typename B, unsigned ROWS_OF_X>
DEVICE void multiply_rows(const MultiplyRowsParameters& p) {
    using C = Chunk<B>;
    constexpr unsigned STAGE = ROWS * C::STRIDE, STAGES = weights::STAGES<B>;
    DYNAMIC_SHARED(unsigned char, shared);
    const unsigned warps = block_threads() / 32, lane = lane_index();
    unsigned char* stages = shared + warp_index() * STAGES * STAGE;
    const unsigned chunks = (p.columns + C::COLUMNS - 1) / C::COLUMNS, columns = chunks * C::COLUMNS;
    float* numbers = reinterpret_cast<float*>(shared + warps * STAGES * STAGE);
    const SharedX x = {numbers, numbers + p.rows * with_gaps(columns), with_gaps(columns), columns / 16};
    float* team_sums = x.sums + p.rows * x.sums_stride;
    const unsigned groups = p.matrices[0].groups + p.matrices[1].groups + p.matrices[2].groups;
    const unsigned member = warp_index() % p.team;
    const unsigned first = block_x() + grid_x() * (warp_index() / p.team), step = grid_x() * (warps / p.team);

    copy_x(p, columns, x);
    // The chunk that is copied next, which may be of a later group.
    unsigned next_group = first, next_chunk = member;
    // Whether there are rows behind those of that group, each as long as a whole chunk where there are any such.
    bool more_rows = false;
    Copies<B, ROWS> copies;
    const auto copy_next = [&](unsigned slot) {
        if (next_group < groups) {
            if (next_chunk == member) {
                const Group group = find_group(p, next_group);
                copies = Copies<B, ROWS>::of([&](unsigned r) { return row_of(p, group, r); });
                more_rows = group.index + 1 < p.matrices[group.matrix].groups;
            }
            unsigned char* to = stages + slot * STAGE;
            const unsigned rest = p.columns - next_chunk * C::COLUMNS, offset = next_chunk * C::BYTES;
            if (rest >= C::COLUMNS && (more_rows || B::ALIGNMENT == 16)) Copies<B, ROWS>::queue_whole(copies, to, offset);
            else Copies<B, ROWS>::queue(copies, to, offset, C::bytes(rest < C::COLUMNS ? rest : C::COLUMNS));
            next_chunk += p.team;
            if (next_chunk >= chunks) next_chunk = member, next_group += step;
        }
        // Empty where there are no more, so that the last groups of copies always are those of the same chunks.
        copy_async_commit();
    };
    NOT_UNROLLED for (unsigned slot = 0; slot < STAGES - 1; slot++) copy_next(slot);
    // For x; chunks are still on their way.
    copy_async_wait<STAGES - 1>();
    block_barrier();
    if constexpr (WITH_SUMS<B>) {
        sum_x(p, columns, x);
        block_barrier();
    }

    unsigned slot = 0;
    const auto multiply_group = [&](Group group) {
        unsigned misaligned[ROWS];
        bool aligned = true;
        UNROLLED for (unsigned r = 0; r < ROWS; r++) {
            misaligned[r] = B::ALIGNMENT == 16 ? 0 : misalignment(row_of(p, group, r));
            aligned = aligned && misaligned[r] == 0;
        }
        float sums[ROWS * ROWS_OF_X] = {};
        for (unsigned chunk = member; chunk < chunks; chunk += p.team) {
            copy_async_wait<STAGES - 2>();
            // All have what they copied, and are done with the chunk before, whose place is taken next.
            warp_barrier();
            copy_next((slot + STAGES - 1) % STAGES);
            const unsigned rest = p.columns - chunk * C::COLUMNS;
            if (C::has_part(lane, rest)) {
                Part parts[ROWS];
                const auto row_chunk = [&](unsigned r) {
                    return Bytes{stages, slot * STAGE + r * C::STRIDE + (misaligned[r] + chunk * (C::BYTES % 16)) % 16};
                };
                if (C::FLOATS && aligned && rest >= C::COLUMNS) {
                    UNROLLED for (unsigned r = 0; r < ROWS; r++) parts[r] = C::load_whole(row_chunk(r), lane);
                } else {
                    UNROLLED for (unsigned r = 0; r < ROWS; r++) parts[r] = C::load(row_chunk(r), lane, rest);
                }
                add_products<B, ROWS_OF_X>(parts, x, chunk * C::COLUMNS, p.rows, sums);
            }
            slot = (slot + 1) % STAGES;
        }
        return lane_sums(sums) * B::UNIT;
    };
    unsigned index = first;
    // Once for all warps where they share groups, since they wait for each other.
    do {
        const bool present = index < groups;
        const Group group = find_group(p, present ? index : 0);
        float sum = present ? multiply_group(group) : 0.0f;
        if (p.team > 1) {
            team_sums[thread_index()] = sum;
            block_barrier();
            if (member == 0)
                for (unsigned other = 1; other < p.team; other++) sum += team_sums[thread_index() + 32 * other];
        }
        if (present && member == 0) put_sums<ROWS_OF_X>(p, group, sum);
        index += step;
    } while (index < groups);
}

}  // namespace weights

// One block to a multiprocessor: shared memory is full with it.
#define MULTIPLY_ROWS(name, Format)                                                      \
    KERNEL_RESIDENT(multiply_one_row_##name, MultiplyRowsParameters, 512, 1) {           \
        weights::multiply_rows<weights::Format, 1>(parameters);                          \
    }                                                                                    \
    KERNEL_RESIDENT(multiply_few_rows_##name, MultiplyRowsParameters, 384, 1) {          \
        weights::multiply_rows<weights::Format, 4>(parameters);                          \
    }
FOR_EACH_FORMAT(MULTIPLY_ROWS)
