// Which positions rows read most, of probabilities that received.cu left.
#include "../cuda/portable.cuh"

namespace reads {

constexpr int WARPS = 4, THREADS = 32 * WARPS;

struct MeanParameters {
    // [rows, heads, count] and [rows, count].
    const float* probabilities;
    float* means;
    uint32_t count, heads;
    float factor;
    uint32_t unused;
};

// What is listed of a position; a list ends with the first that has no attention.
struct Read {
    uint32_t position;
    float attention;
};

struct ListParameters {
    // [lists, count] and [lists, most].
    const float* attention;
    Read* reads;
    // Positions `first` to `end` may be listed, so many of them that have `least`, which is above 0.
    uint32_t count, first, end, most;
    float least;
    uint32_t unused;
};

// A position that may come next in a list: the strongest does, of equal ones the first position.
struct Candidate {
    float attention;
    int position;
};
DEVICE Candidate stronger(Candidate a, Candidate b) {
    const bool second = b.attention > a.attention || (b.attention == a.attention && b.position < a.position);
    return second ? b : a;
}

}  // namespace reads

// A thread for each row and position: sums in the order of the heads.
KERNEL(mean_over_heads, reads::MeanParameters, reads::THREADS) {
    const reads::MeanParameters& p = parameters;
    const unsigned position = block_x() * reads::THREADS + thread_index();
    if (position >= p.count) return;
    const float* column = p.probabilities + uint64_t{block_y()} * p.heads * p.count + position;
    float sum = 0.0f;
    for (unsigned head = 0; head < p.heads; head++) sum += column[uint64_t{head} * p.count];
    p.means[uint64_t{block_y()} * p.count + position] = sum * p.factor;
}

// A block for each list, which goes over the row once for each read: the strongest of those behind the last one.
KERNEL(strongest_reads, reads::ListParameters, reads::THREADS) {
    using reads::Candidate;
    const reads::ListParameters& p = parameters;
    DYNAMIC_SHARED(Candidate, of_warps);
    const float* row = p.attention + uint64_t{block_x()} * p.count;
    reads::Read* list = p.reads + uint64_t{block_x()} * p.most;
    const int nowhere = 0x7fffffff;
    Candidate last = {infinity(), -1};
    for (unsigned i = 0; i < p.most; i++) {
        Candidate best = {0.0f, nowhere};
        // Once nothing is strong enough, nothing behind it is.
        if (last.position != nowhere) {
            for (unsigned at = p.first + thread_index(); at < p.end; at += reads::THREADS) {
                const Candidate here = {row[at], static_cast<int>(at)};
                const bool behind = here.attention < last.attention || (here.attention == last.attention && here.position > last.position);
                // Not so for NaN.
                if (here.attention >= p.least && behind) best = reads::stronger(best, here);
            }
        }
        UNROLLED for (int mask = 16; mask > 0; mask /= 2)
            best = reads::stronger(best, Candidate{shuffle_xor(best.attention, mask), shuffle_xor(best.position, mask)});
        block_barrier();
        if (lane_index() == 0) of_warps[warp_index()] = best;
        block_barrier();
        UNROLLED for (int warp = 0; warp < reads::WARPS; warp++) best = reads::stronger(best, of_warps[warp]);
        if (thread_index() == 0) list[i] = reads::Read{static_cast<uint32_t>(best.position), best.attention};
        last = best;
    }
}
