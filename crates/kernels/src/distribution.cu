// Rows of logits, summed up and compared. A block takes a part of a row into its registers, so that the row is read once and
// a single row keeps many blocks busy; a warp for each row then joins the parts. Parts are always as long, so that a row's
// numbers do not depend on the rows beside it.
#include "cuda/packs.cuh"

struct RowSummary {
    double log_normaliser;
    double negative_entropy;
    uint32_t argmax;
    uint32_t finite;
};
struct RowComparison {
    double kl;
    double log_normaliser;
    float token_logit;
    uint32_t argmax;
    uint32_t finite;
    uint32_t unused;
};

// What is kept of a part of a row; sums that are not asked for are left as they are.
struct LogitsPart {
    // Σ e^(x − max).
    double total;
    // Σ e^(x − max)·(x − max), or Σ p·(reference − x).
    double weighted;
    // Σ p of the reference.
    double reference_total;
    float max;
    // Index in the row of the first of the largest; NO_TOKEN where all are passed over.
    uint32_t argmax;
    uint32_t finite;
    uint32_t unused;
};

struct LogitsParameters {
    const float* logits;
    LogitsPart* parts;
    // Of a comparison: logits of the reference rows, their summaries, and which of them is whose.
    const float* reference;
    const RowSummary* summaries;
    const uint32_t* of;
    uint64_t reference_rows;
    // Tokens that are passed over.
    const uint32_t* excluded;
    uint32_t excluded_count;
    uint32_t vocab;
    uint32_t parts_of_row;
    // Whether rows are aligned to packs.
    uint32_t packed;
};
struct JoinParameters {
    const LogitsPart* parts;
    void* output;
    const float* logits;
    const uint32_t* tokens;
    const RowSummary* summaries;
    const uint32_t* of;
    uint64_t reference_rows;
    uint64_t rows;
    uint32_t vocab;
    uint32_t parts_of_row;
};

namespace distribution {

constexpr int THREADS = 256, KEPT = 32, PACK = 4;
constexpr uint32_t PART = THREADS * KEPT, NO_TOKEN = 0xffffffffu;

// Where in its row the k-th number is that a thread of this block keeps.
struct Place {
    uint32_t start, vocab;
    bool packed;
};
DEVICE uint32_t index_of(const Place& place, int k) {
    if (place.packed) return place.start + (k / PACK * THREADS + thread_index()) * PACK + k % PACK;
    return place.start + k * THREADS + thread_index();
}
// The other way round, for a place within the part: −1 where another thread keeps it.
DEVICE int kept_as(const Place& place, uint32_t offset) {
    const uint32_t thread = place.packed ? offset / PACK % THREADS : offset % THREADS;
    const uint32_t k = place.packed ? offset / (PACK * THREADS) * PACK + offset % PACK : offset / THREADS;
    return thread == thread_index() ? static_cast<int>(k) : -1;
}
// The part of a row that this thread keeps; −∞ beyond the row. All loads are under way before any is waited for.
DEVICE void load_part(const float* row, const Place& place, float (&x)[KEPT]) {
    UNROLLED for (int k = 0; k < KEPT; k++) x[k] = -infinity();
    if (place.packed) {
        UNROLLED for (int group = 0; group < KEPT / PACK; group++) {
            const uint32_t index = index_of(place, group * PACK);
            float pack[PACK] = {-infinity(), -infinity(), -infinity(), -infinity()};
            if (index < place.vocab) packs::load(row + index, pack);
            UNROLLED for (int i = 0; i < PACK; i++) x[group * PACK + i] = pack[i];
        }
    } else {
        UNROLLED for (int k = 0; k < KEPT; k++) {
            const uint32_t index = index_of(place, k);
            if (index < place.vocab) x[k] = row[index];
        }
    }
}

// So far below the maximum nothing weighs. The bound keeps 0·(−∞) out of sums, and −∞ − (−∞), which fmaxf passes over.
constexpr float FAR_BELOW = -200.0f;

DEVICE double block_total(double x, double* scratch) {
    x = warp_sum(x);
    if (lane_index() == 0) scratch[warp_index()] = x;
    block_barrier();
    double total = 0.0;
    for (int warp = 0; warp < THREADS / 32; warp++) total += scratch[warp];
    return total;
}
DEVICE float block_max(float x, float* scratch) {
    x = warp_max(x);
    if (lane_index() == 0) scratch[warp_index()] = x;
    block_barrier();
    for (int warp = 0; warp < THREADS / 32; warp++) x = fmaxf(x, scratch[warp]);
    return x;
}
// Also of what is no token: the largest of all.
DEVICE uint32_t warp_first(uint32_t token) {
    for (int mask = 16; mask > 0; mask /= 2) {
        const uint32_t other = static_cast<uint32_t>(shuffle_xor(static_cast<int>(token), mask));
        token = other < token ? other : token;
    }
    return token;
}
DEVICE uint32_t block_first(uint32_t token, uint32_t* scratch) {
    token = warp_first(token);
    if (lane_index() == 0) scratch[warp_index()] = token;
    block_barrier();
    for (int warp = 0; warp < THREADS / 32; warp++) token = scratch[warp] < token ? scratch[warp] : token;
    return token;
}

// Of each reduction, once in a kernel.
struct Scratch {
    double totals[3][THREADS / 32];
    float max[THREADS / 32];
    uint32_t first[THREADS / 32];
    uint32_t clean[THREADS / 32];
};

// The largest of a block's numbers, its first place, and whether all are finite. What is passed over becomes NaN.
DEVICE void find_largest(const LogitsParameters& p, const Place& place, float (&x)[KEPT], LogitsPart& part,
                         Scratch* scratch) {
    uint32_t clean = 1;
    // Beyond the row there is −∞.
    UNROLLED for (int k = 0; k < KEPT; k++) clean = x[k] - x[k] != 0.0f && index_of(place, k) < place.vocab ? 0 : clean;
    // What is passed over is neither the largest nor equal to it.
    for (uint32_t i = 0; i < p.excluded_count; i++) {
        const uint32_t token = p.excluded[i];
        if (token < place.start || token - place.start >= PART) continue;
        const int own = kept_as(place, token - place.start);
        UNROLLED for (int k = 0; k < KEPT; k++) x[k] = k == own ? not_a_number() : x[k];
    }
    float max = -infinity();
    UNROLLED for (int k = 0; k < KEPT; k++) max = fmaxf(max, x[k]);
    part.max = block_max(max, scratch->max);
    // The first place of this thread, and its index once it is known, rather than an index for each number.
    int own = KEPT;
    UNROLLED for (int k = KEPT - 1; k >= 0; k--) own = x[k] == part.max ? k : own;
    uint32_t first = own < KEPT ? index_of(place, own) : NO_TOKEN;
    // Beyond the row there is −∞.
    first = first < place.vocab ? first : NO_TOKEN;
    part.argmax = block_first(first, scratch->first);
    part.finite = block_first(clean, scratch->clean);
}

// Σ e^(x − max) of this thread's numbers, and Σ e^(x − max)·(x − max): four at a time in f32.
DEVICE void add_weights(const float (&x)[KEPT], float max, double& total, double& weighted) {
    UNROLLED for (int group = 0; group < KEPT / PACK; group++) {
        float sum = 0.0f, weighted_sum = 0.0f;
        UNROLLED for (int i = 0; i < PACK; i++) {
            const float shifted = fmaxf(x[group * PACK + i] - max, FAR_BELOW), weight = expf(shifted);
            sum += weight;
            weighted_sum += weight * shifted;
        }
        total += static_cast<double>(sum);
        weighted += static_cast<double>(weighted_sum);
    }
}

// Σ p and Σ p·(reference − x) of this thread's numbers, with p = e^(reference − shift). Differences are summed rather than
// subtracted as sums, so that rows that are nearly equal differ by next to nothing.
DEVICE void add_differences(const float (&x)[KEPT], const float (&reference)[KEPT], float shift, double& total,
                            double& weighted) {
    UNROLLED for (int group = 0; group < KEPT / PACK; group++) {
        float sum = 0.0f, weighted_sum = 0.0f;
        UNROLLED for (int i = 0; i < PACK; i++) {
            const float number = reference[group * PACK + i], weight = expf(number - shift);
            sum += weight;
            // What weighs nothing differs by nothing, even by infinitely much.
            weighted_sum += weight == 0.0f ? 0.0f : weight * (number - x[group * PACK + i]);
        }
        total += static_cast<double>(sum);
        weighted += static_cast<double>(weighted_sum);
    }
}

enum class Wanted { Summary, Comparison, Argmax };

template <Wanted wanted>
DEVICE void read_part(const LogitsParameters& p) {
    DYNAMIC_SHARED(Scratch, scratch);
    const uint64_t row = block_x() / p.parts_of_row;
    const Place place{block_x() % p.parts_of_row * PART, p.vocab, p.packed != 0};
    float x[KEPT], reference[wanted == Wanted::Comparison ? KEPT : 1];
    load_part(p.logits + row * p.vocab, place, x);
    float shift = 0.0f;
    if constexpr (wanted == Wanted::Comparison) {
        const uint64_t of = p.of[row];
        // Of a reference that there is none of comes NaN in the end, whatever the numbers here.
        const uint64_t valid = of < p.reference_rows ? of : 0;
        load_part(p.reference + valid * p.vocab, place, reference);
        shift = static_cast<float>(p.summaries[valid].log_normaliser);
    }
    LogitsPart part = {};
    find_largest(p, place, x, part, scratch);
    if constexpr (wanted != Wanted::Argmax) {
        double total = 0.0, weighted = 0.0, reference_total = 0.0;
        add_weights(x, part.max, total, weighted);
        part.total = block_total(total, scratch->totals[0]);
        if constexpr (wanted == Wanted::Comparison) {
            weighted = 0.0;
            add_differences(x, reference, shift, reference_total, weighted);
            part.reference_total = block_total(reference_total, scratch->totals[1]);
        }
        part.weighted = block_total(weighted, scratch->totals[2]);
    }
    if (thread_index() == 0) p.parts[block_x()] = part;
}

// The parts of a row as one, for every lane of its warp.
template <Wanted wanted>
DEVICE LogitsPart joined(const LogitsPart* parts, uint32_t count) {
    LogitsPart whole = {};
    float max = -infinity();
    uint32_t clean = 1;
    for (uint32_t i = lane_index(); i < count; i += 32) {
        max = fmaxf(max, parts[i].max);
        clean = parts[i].finite ? clean : 0;
    }
    whole.max = warp_max(max);
    whole.finite = warp_first(clean);
    double total = 0.0, weighted = 0.0, reference_total = 0.0;
    uint32_t first = NO_TOKEN;
    for (uint32_t i = lane_index(); i < count; i += 32) {
        const LogitsPart& part = parts[i];
        if (part.max == whole.max && part.argmax < first) first = part.argmax;
        if (wanted == Wanted::Argmax) continue;
        // Parts of nothing but −∞ have no weight, nor a distance to the maximum.
        const double below = part.max == -infinity() ? 0.0 : static_cast<double>(part.max) - whole.max;
        const double share = part.max == whole.max ? 1.0 : exp(below);
        total += part.total * share;
        weighted += wanted == Wanted::Summary ? share * (part.weighted + part.total * below) : part.weighted;
        reference_total += part.reference_total;
    }
    whole.argmax = warp_first(first);
    if (wanted != Wanted::Argmax) {
        whole.total = warp_sum(total);
        whole.weighted = warp_sum(weighted);
        whole.reference_total = warp_sum(reference_total);
    }
    return whole;
}

}  // namespace distribution

KERNEL_RESIDENT(summarize_parts, LogitsParameters, 256, 3) {
    distribution::read_part<distribution::Wanted::Summary>(parameters);
}
KERNEL_RESIDENT(compare_parts, LogitsParameters, 256, 2) {
    distribution::read_part<distribution::Wanted::Comparison>(parameters);
}
KERNEL_RESIDENT(argmax_parts, LogitsParameters, 256, 3) {
    distribution::read_part<distribution::Wanted::Argmax>(parameters);
}

KERNEL(summarize_rows, JoinParameters, 128) {
    using namespace distribution;
    const JoinParameters& p = parameters;
    const uint64_t row = static_cast<uint64_t>(block_x()) * (block_threads() / 32) + warp_index();
    if (row >= p.rows) return;
    const LogitsPart whole = joined<Wanted::Summary>(p.parts + row * p.parts_of_row, p.parts_of_row);
    if (lane_index() != 0) return;
    const double log_total = log(whole.total);
    RowSummary summary;
    summary.log_normaliser = static_cast<double>(whole.max) + log_total;
    // Σ p (x − max) − ln Σ e^(x − max).
    summary.negative_entropy = whole.weighted / whole.total - log_total;
    summary.argmax = whole.argmax == NO_TOKEN ? 0 : whole.argmax;
    summary.finite = whole.finite;
    static_cast<RowSummary*>(p.output)[row] = summary;
}

KERNEL(compare_rows, JoinParameters, 128) {
    using namespace distribution;
    const JoinParameters& p = parameters;
    const uint64_t row = static_cast<uint64_t>(block_x()) * (block_threads() / 32) + warp_index();
    if (row >= p.rows) return;
    const LogitsPart whole = joined<Wanted::Comparison>(p.parts + row * p.parts_of_row, p.parts_of_row);
    if (lane_index() != 0) return;
    const uint64_t of = p.of[row], token = p.tokens[row];
    RowComparison comparison = {};
    comparison.log_normaliser = static_cast<double>(whole.max) + log(whole.total);
    double normaliser = static_cast<double>(not_a_number());
    if (of < p.reference_rows) normaliser = p.summaries[of].log_normaliser;
    const double kl = whole.weighted / whole.reference_total + (comparison.log_normaliser - normaliser);
    // Rounding can leave −1e-8 where the two are equal; a divergence is never negative. NaN stays NaN.
    comparison.kl = kl < 0.0 ? 0.0 : kl;
    comparison.token_logit = token < p.vocab ? p.logits[row * p.vocab + token] : not_a_number();
    comparison.argmax = whole.argmax == NO_TOKEN ? 0 : whole.argmax;
    comparison.finite = whole.finite;
    static_cast<RowComparison*>(p.output)[row] = comparison;
}

KERNEL(argmax_rows, JoinParameters, 128) {
    using namespace distribution;
    const JoinParameters& p = parameters;
    const uint64_t row = static_cast<uint64_t>(block_x()) * (block_threads() / 32) + warp_index();
    if (row >= p.rows) return;
    const LogitsPart whole = joined<Wanted::Argmax>(p.parts + row * p.parts_of_row, p.parts_of_row);
    if (lane_index() != 0) return;
    uint32_t* output = static_cast<uint32_t*>(p.output) + 2 * row;
    output[0] = whole.argmax;
    output[1] = whole.finite;
}
