// Attention over spans of keys, split along the keys, in f32 with online softmax.
//
// A warp reads keys straight from global memory: `lanes` lanes hold one key, eight dimensions each, so that a warp looks at
// 32 / lanes keys at once (its slots), several times over before it needs the first. Each lane also holds its dimensions of
// the queries and outputs of `entries` entries, where an entry is a row and one of the heads that share a KV head. Products
// of all pairs of entry and key are summed over a key's lanes by halves, which leaves each lane with the scores of few pairs
// and no score twice: exponentials, caps, visibility and statistics are then done once per pair.
//
// Scores are in units of log2 e up to the end: e^{s−m} = 2^{s'−m'} with s' = s · log2 e.
#pragma once

#include "../cuda/portable.cuh"

namespace spans {

constexpr int SEGMENTS = 3;
constexpr int WARPS = 4, THREADS = 32 * WARPS;
// Dimensions of a head that a lane holds.
constexpr int PER_LANE = 8;
// Numbers that describe the softmax of an entry: maximum, sums and weighted sums by segment, and one that is not used.
constexpr int STATE = 8;
// No block takes fewer keys unless there are no more.
constexpr int LEAST_KEYS = 128;
// Positions and windows are no larger, so that their sums and differences fit.
constexpr int MOST_POSITION = 0x3fffffff;

struct Span {
    uint64_t keys, values;
    uint64_t head_stride, key_stride, copy_stride;
    uint32_t len, first_position, segment, grows;
    // The KV heads that have these keys.
    uint32_t first_head, heads;
};

// What attention and the attention received look at.
struct Problem {
    const void* queries;
    const int* positions;
    const Span* spans;
    // Null where every copy sees every span.
    const uint32_t* visible_spans;
    // Null where nothing was decoded.
    const int* decoded;
    // Query heads of a KV head: `group`. Entries of a KV head and copy: rows_per_copy · group.
    uint32_t span_count, rows_per_copy, copies, query_heads, kv_heads, group, entries, head_dim;
    // Keys at positions below `sinks` are seen whatever the window.
    int32_t window, sinks;
    uint32_t queries_in_bf16, unused;
    // Products of scaled queries and keys are scores where `cap` is 0, else cap · tanh of them.
    float query_scale, cap;
};

struct Parameters {
    Problem problem;
    // Σ 2^{s'−m'} v of each row, head and split, and its state.
    float* outputs;
    float* states;
    // Tiles of entries of one KV head and copy; a block has 1 or WARPS of those of a KV head and all copies.
    uint32_t splits, tiles, tiles_per_block, unused;
};

DEVICE float minus_infinity() { return -infinity(); }
DEVICE int smaller(int a, int b) { return a < b ? a : b; }
DEVICE int larger(int a, int b) { return a > b ? a : b; }

// Entry `index` of a KV head and copy as row · query_heads + head.
DEVICE uint64_t row_and_head(const Problem& p, unsigned copy, unsigned kv_head, unsigned index) {
    const unsigned row = copy * p.rows_per_copy + index / p.group;
    return static_cast<uint64_t>(row) * p.query_heads + kv_head * p.group + index % p.group;
}

// Position of the row of an entry.
DEVICE int position_of(const Problem& p, unsigned copy, unsigned index) {
    return p.positions[copy * p.rows_per_copy + index / p.group];
}

// Keys `first` to `end` of a span.
struct Range {
    int first, end;
};

// The keys of a span that a KV head and copy see from any position of `from` to `to`.
DEVICE Range visible_keys(const Problem& p, unsigned index, unsigned kv_head, unsigned copy, int from, int to) {
    const Span* span = p.spans + index;
    const int first_position = static_cast<int>(span->first_position);
    int len = static_cast<int>(span->len);
    if (span->grows && p.decoded) len += *p.decoded;
    // A span that begins with sinks is gone over from its start: what lies between them and the window is masked key by key.
    const int first = p.sinks > first_position ? 0 : larger(from + 1 - p.window - first_position, 0);
    const int end = smaller(to + 1 - first_position, len);
    // Wraps around for heads before the first.
    const bool has_keys = kv_head - span->first_head < span->heads;
    const bool seen = has_keys && end > first && (!p.visible_spans || (p.visible_spans[copy] >> index & 1));
    return seen ? Range{first, end} : Range{0, 0};
}

// None beyond the last span.
DEVICE Range visible_keys_or_none(const Problem& p, unsigned index, unsigned kv_head, unsigned copy, int from, int to) {
    return index < p.span_count ? visible_keys(p, index, kv_head, copy, from, to) : Range{0, 0};
}

// 16 bytes of a row of keys or values; without vectors, element by element, with zeros after the first `left`.
template <bool vectors, typename Key>
DEVICE Vector16 load_elements(const Key* from, int left) {
    if constexpr (vectors) {
        return load_16(from);
    } else {
        constexpr int each = 4 / sizeof(Key);
        Vector16 x;
        for (int i = 0; i < 4; i++) {
            if constexpr (each == 1) {
                x.word[i] = i < left ? bits_of_float(from[i]) : 0;
            } else {
                x.word[i] = 2 * i < left ? from[2 * i].bits : 0;
                if (2 * i + 1 < left) x.word[i] |= static_cast<uint32_t>(from[2 * i + 1].bits) << 16;
            }
        }
        return x;
    }
}
DEVICE void widen(const Vector16 (&raw)[1], float (&x)[PER_LANE]) {
    for (int i = 0; i < 4; i++) x[2 * i] = low_bf16(raw[0].word[i]), x[2 * i + 1] = high_bf16(raw[0].word[i]);
}
DEVICE void widen(const Vector16 (&raw)[2], float (&x)[PER_LANE]) {
    for (int i = 0; i < PER_LANE; i++) x[i] = float_of_bits(raw[i / 4].word[i % 4]);
}

// Sums x over the lanes of a slot, of which 2·mask there are. By halves: of `count` sums a lane keeps one half and leaves the
// other to its partner. With n sums among L lanes, lane l has those from l·n/L on, or number l/(L/n) where n < L.
template <int count, int mask, int size>
DEVICE void sum_by_halves(float (&x)[size], unsigned lane) {
    if constexpr (mask > 0 && count > 1) {
        const bool upper = lane & mask;
        for (int i = 0; i < count / 2; i++) {
            const float mine = upper ? x[i + count / 2] : x[i], theirs = upper ? x[i] : x[i + count / 2];
            x[i] = mine + shuffle_xor(theirs, mask);
        }
        sum_by_halves<count / 2, mask / 2>(x, lane);
    } else if constexpr (mask > 0) {
        x[0] += shuffle_xor(x[0], mask);
        sum_by_halves<1, mask / 2>(x, lane);
    }
}

struct Sum {
    DEVICE float of(float a, float b) { return a + b; }
};
struct Maximum {
    DEVICE float of(float a, float b) { return fmaxf(a, b); }
};

// By how much scores are less against a new maximum. Nothing was summed before the first visible key.
DEVICE float shift(float from, float to) { return from == minus_infinity() ? 0.0f : from - to; }

// What a warp knows of its entries after some keys.
template <typename Key, int lanes, int entries, bool vectors>
struct Walk {
    static constexpr int width = 16 / sizeof(Key), chunks = PER_LANE / width;
    // Keys of a slot whose loads are in flight at once.
    static constexpr int unroll = 4 / chunks, slots = 32 / lanes, keys_at_once = unroll * slots;
    // Pairs of entry and key of a slot: pair = entry · unroll + key. A lane owns `owned` pairs of one entry, or `sharers`
    // lanes own the same.
    static constexpr int pairs = unroll * entries, owned = pairs > lanes ? pairs / lanes : 1;
    static constexpr int sharers = pairs < lanes ? lanes / pairs : 1, lanes_per_entry = lanes / entries;
    float query[entries][PER_LANE], output[entries][PER_LANE];
    // Of this lane's entry; the maximum is that of the warp, the sums are over the lane's own pairs of one span.
    float maximum, sum, weighted;
    // In shared memory, of each thread: the sums by segment over spans that are done with, the maximum of then, and the
    // position of its entry.
    float* kept;

    DEVICE int slot_lane() { return static_cast<int>(lane_index()) % lanes; }
    DEVICE int slot() { return static_cast<int>(lane_index()) / lanes; }
    DEVICE int dimension(int i) { return ((i / width) * lanes + slot_lane()) * width + i % width; }
    // What the lane of this slot has that owns a pair.
    DEVICE float of_owner(float x, int pair) { return shuffle_among<lanes>(x, pair * sharers / owned); }

    // The position of this lane's entry.
    DEVICE int begin(Walk& w, const Problem& p, unsigned copy, unsigned kv_head, unsigned first_entry, float* kept) {
        if (p.queries_in_bf16) {
            load_queries<Bf16>(w, p, copy, kv_head, first_entry);
        } else {
            load_queries<float>(w, p, copy, kv_head, first_entry);
        }
        for (int entry = 0; entry < entries; entry++)
            for (int i = 0; i < PER_LANE; i++) w.query[entry][i] *= p.query_scale, w.output[entry][i] = 0.0f;
        const unsigned own = first_entry + slot_lane() / lanes_per_entry;
        // Before all keys where there is no such entry.
        const int position = own < p.entries ? position_of(p, copy, own) : -1;
        w.maximum = minus_infinity();
        w.sum = w.weighted = 0.0f;
        w.kept = kept + thread_index();
        for (int i = 0; i <= 2 * SEGMENTS; i++) w.kept[i * THREADS] = i == 0 ? minus_infinity() : 0.0f;
        w.kept[(STATE - 1) * THREADS] = float_of_bits(static_cast<uint32_t>(position));
        return position;
    }

    // Zeros where there is no such entry or dimension.
    template <typename Query>
    DEVICE void load_queries(Walk& w, const Problem& p, unsigned copy, unsigned kv_head, unsigned first_entry) {
        for (int entry = 0; entry < entries; entry++) {
            const uint64_t at = row_and_head(p, copy, kv_head, first_entry + entry);
            const Query* row = static_cast<const Query*>(p.queries) + at * p.head_dim;
            for (int i = 0; i < PER_LANE; i++) {
                const bool there = first_entry + entry < p.entries && dimension(i) < static_cast<int>(p.head_dim);
                w.query[entry][i] = there ? to_float(row[dimension(i)]) : 0.0f;
            }
        }
    }

    // Keys or values from `index` on, one every `slots`; beyond the end the last once more.
    DEVICE void load(Vector16 (&raw)[unroll][chunks], const Key* rows, uint32_t stride, int index, int end, int head_dim) {
        for (int u = 0; u < unroll; u++) {
            const uint64_t at = static_cast<uint64_t>(static_cast<uint32_t>(smaller(index + u * slots, end - 1))) * stride;
            for (int c = 0; c < chunks; c++) {
                int column = dimension(c * width);
                // Lanes without a dimension read what they then multiply by zero.
                if (vectors && column >= head_dim) column = 0;
                raw[u][c] = load_elements<vectors>(rows + column + at, head_dim - column);
            }
        }
    }

    // Joins what the lanes of an entry have in all slots.
    template <typename Join>
    DEVICE float over_entry(float x) {
        for (int mask = sharers; mask < lanes_per_entry; mask *= 2) x = Join::of(x, shuffle_xor(x, mask));
        for (int mask = lanes; mask < 32; mask *= 2) x = Join::of(x, shuffle_xor(x, mask));
        return x;
    }

    // Raises the maxima to those of this warp's new scores, of which `largest` is this lane's largest.
    DEVICE void raise(Walk& w, float largest) {
        const float raised = fmaxf(w.maximum, over_entry<Maximum>(largest));
        const float change = shift(w.maximum, raised), factor = exp2_fast(change);
        w.maximum = raised;
        w.weighted = factor * (w.weighted + w.sum * change);
        w.sum *= factor;
        for (int entry = 0; entry < entries; entry++) {
            const float of_entry = of_owner(factor, entry * unroll);
            for (int i = 0; i < PER_LANE; i++) w.output[entry][i] *= of_entry;
        }
    }

    // Adds the sums of a span to those of its segment, and begins them anew.
    DEVICE void keep(Walk& w, uint32_t segment) {
        const float change = shift(w.kept[0], w.maximum), factor = exp2_fast(change);
        w.kept[0] = w.maximum;
        for (uint32_t g = 0; g < SEGMENTS; g++) {
            float& sum = w.kept[(1 + g) * THREADS];
            float& weighted = w.kept[(1 + SEGMENTS + g) * THREADS];
            weighted = factor * (weighted + sum * change) + (g == segment ? w.weighted : 0.0f);
            sum = factor * sum + (g == segment ? w.sum : 0.0f);
        }
        w.sum = w.weighted = 0.0f;
    }

    // Goes over keys `range` of a span, of which a block's other warps take their share.
    DEVICE void pass(Walk& w, const Problem& p, const Span& span, unsigned copy, unsigned kv_head, Range range, int key_warp,
                     int key_warps) {
        const int step = key_warps * keys_at_once, head_dim = static_cast<int>(p.head_dim);
        int base = range.first + key_warp * keys_at_once;
        if (!warp_any(base < range.end)) return;
        const uint64_t start = (kv_head - span.first_head) * span.head_stride + copy * span.copy_stride;
        const uint32_t stride = static_cast<uint32_t>(span.key_stride);
        const Key* keys = in_global_memory(reinterpret_cast<const Key*>(span.keys)) + start;
        const Key* values = in_global_memory(reinterpret_cast<const Key*>(span.values)) + start;
        Vector16 raw_keys[unroll][chunks], raw_values[unroll][chunks];
        load(raw_keys, keys, stride, base + slot(), range.end, head_dim);
        load(raw_values, values, stride, base + slot(), range.end, head_dim);
        // The key of this lane's first pair.
        const int own_key = slot() + slot_lane() * owned / sharers % unroll * slots;
        // How far the entry sees.
        const int last = static_cast<int>(bits_of_float(w.kept[(STATE - 1) * THREADS]) - span.first_position);
        const int sinks = p.sinks - static_cast<int>(span.first_position);

        NOT_UNROLLED
        for (; warp_any(base < range.end); base += step) {
            float scores[pairs];
            for (int u = 0; u < unroll; u++) {
                float key[PER_LANE];
                widen(raw_keys[u], key);
                for (int entry = 0; entry < entries; entry++) {
                    float& score = scores[entry * unroll + u];
                    score = 0.0f;
                    for (int i = 0; i < PER_LANE; i++) score += w.query[entry][i] * key[i];
                }
            }
            // What comes next is on its way while this is worked on.
            if (warp_any(base + step < range.end)) load(raw_keys, keys, stride, base + step + slot(), range.end, head_dim);
            sum_by_halves<pairs, lanes / 2>(scores, lane_index());

            float largest = minus_infinity();
            for (int r = 0; r < owned; r++) {
                const int index = base + own_key + r * slots, behind = last - index;
                if (p.cap > 0.0f) scores[r] = p.cap * tanhf(scores[r]);
                const bool past_window = behind >= p.window && index >= sinks;
                if (index >= range.end || behind < 0 || past_window) scores[r] = minus_infinity();
                largest = fmaxf(largest, scores[r]);
            }
            if (warp_any(largest > w.maximum)) raise(w, largest);
            const float reference = w.maximum == minus_infinity() ? 0.0f : w.maximum;
            for (int r = 0; r < owned; r++) {
                float shifted = scores[r] - reference;
                // Keeps 0 · (−∞) out of the weighted sum.
                shifted = shifted < -200.0f ? -200.0f : shifted;
                scores[r] = exp2_fast(shifted);
                w.sum += scores[r];
                w.weighted += scores[r] * shifted;
            }
            for (int u = 0; u < unroll; u++) {
                float value[PER_LANE];
                widen(raw_values[u], value);
                for (int entry = 0; entry < entries; entry++) {
                    const int pair = entry * unroll + u;
                    const float probability = of_owner(scores[pair % owned], pair);
                    for (int i = 0; i < PER_LANE; i++) w.output[entry][i] += probability * value[i];
                }
            }
            load(raw_values, values, stride, base + step + slot(), range.end, head_dim);
        }
        keep(w, span.segment);
    }

    // Numbers of an entry in shared memory: outputs, then the state.
    static constexpr int shared_row = PER_LANE * lanes + STATE;

    DEVICE void finish(Walk& w, float* rows) {
        keep(w, SEGMENTS);
        float sums[2 * SEGMENTS];
        for (int i = 0; i < 2 * SEGMENTS; i++) sums[i] = over_entry<Sum>(w.kept[(1 + i) * THREADS]);
        for (int entry = 0; entry < entries; entry++)
            for (int i = 0; i < PER_LANE; i++)
                for (int mask = lanes; mask < 32; mask *= 2) w.output[entry][i] += shuffle_xor(w.output[entry][i], mask);
        if (slot() > 0) return;
        for (int entry = 0; entry < entries; entry++)
            for (int i = 0; i < PER_LANE; i += 4) {
                Vector16 four;
                for (int j = 0; j < 4; j++) four.word[j] = bits_of_float(w.output[entry][i + j]);
                store_16(rows + entry * shared_row + dimension(i), four);
            }
        if (slot_lane() % lanes_per_entry > 0) return;
        float* state = rows + slot_lane() / lanes_per_entry * shared_row + PER_LANE * lanes;
        state[0] = w.maximum;
        for (int i = 0; i < 2 * SEGMENTS; i++) state[1 + i] = sums[i];
    }
};

// A tile of a KV head.
struct Tile {
    unsigned copy, first_entry;
};
DEVICE Tile tile_of(const Parameters& parameters, unsigned index, unsigned entries) {
    return Tile{index / parameters.tiles, index % parameters.tiles * entries};
}

// Joins what the warps of a block found, which lies in `rows`, into the split's result.
template <typename W, int entries>
DEVICE void join_warps(const Parameters& parameters, const float* rows, unsigned kv_head, unsigned first_tile) {
    const Problem& p = parameters.problem;
    const int tiles = static_cast<int>(parameters.tiles_per_block), key_warps = WARPS / tiles;
    NOT_UNROLLED
    for (int i = static_cast<int>(warp_index()); i < tiles * entries; i += WARPS) {
        const Tile tile = tile_of(parameters, first_tile + i / entries, entries);
        const unsigned index = tile.first_entry + i % entries;
        if (tile.copy >= p.copies || index >= p.entries) continue;
        const float* from = rows + (i / entries * key_warps * entries + i % entries) * W::shared_row;
        const int apart = entries * W::shared_row, state = W::shared_row - STATE;
        float maximum = minus_infinity(), factor[WARPS];
        for (int k = 0; k < WARPS; k++)
            if (k < key_warps) maximum = fmaxf(maximum, from[k * apart + state]);
        for (int k = 0; k < WARPS; k++) {
            const float own = k < key_warps ? from[k * apart + state] : minus_infinity();
            // Without a score above −∞ there are only zeros and, where scores are NaN, NaN.
            factor[k] = own == minus_infinity() ? 1.0f : exp2_fast(own - maximum);
        }
        const uint64_t part = row_and_head(p, tile.copy, kv_head, index) * parameters.splits + block_y();
        const int lane = static_cast<int>(lane_index());
        if (lane <= 2 * SEGMENTS) {
            float joined = 0.0f;
            for (int k = 0; k < WARPS; k++) {
                if (k >= key_warps) continue;
                const float* numbers = from + k * apart + state;
                const float change = shift(numbers[0], maximum);
                joined += factor[k] * (lane > SEGMENTS ? numbers[lane] + numbers[lane - SEGMENTS] * change : numbers[lane]);
            }
            parameters.states[part * STATE + lane] = lane == 0 ? maximum : joined;
        }
        // Without a score above −∞, nobody reads the outputs.
        if (maximum == minus_infinity()) continue;
        NOT_UNROLLED
        for (int d = lane; d < static_cast<int>(p.head_dim); d += 32) {
            float joined = 0.0f;
            for (int k = 0; k < WARPS; k++)
                if (k < key_warps) joined += factor[k] * from[k * apart + d];
            parameters.outputs[part * p.head_dim + d] = joined;
        }
    }
}

// Block x: tiles of entries of all copies, so that blocks that run at once share keys; y: split; z: KV head. The warps of a
// block either have a tile each, and find keys in the L1 cache that another has read, or share out the keys of one.
template <typename Key, int lanes, int entries, bool vectors>
DEVICE void attend(const Parameters& parameters) {
    using W = Walk<Key, lanes, entries, vectors>;
    const Problem& p = parameters.problem;
    DYNAMIC_SHARED(float, shared);
    const unsigned tiles_per_block = parameters.tiles_per_block, first_tile = block_x() * tiles_per_block;
    const unsigned kv_head = block_z();
    const int key_warps = WARPS / static_cast<int>(tiles_per_block), warp = static_cast<int>(warp_index());
    Tile tile = tile_of(parameters, first_tile + warp / key_warps, entries);
    // Beyond the last tile there are no entries.
    if (tile.copy >= p.copies) tile = Tile{0, p.entries};
    const unsigned copy = tile.copy;

    W walk;
    const int position = W::begin(walk, p, copy, kv_head, tile.first_entry, shared + WARPS * entries * W::shared_row);
    const int to = warp_max(position);
    const int from = MOST_POSITION - warp_max(position < 0 ? 0 : MOST_POSITION - position);
    // This lane's of 32 spans.
    Range mine = visible_keys_or_none(p, lane_index(), kv_head, copy, from, to);
    int total = mine.end - mine.first;
    NOT_UNROLLED
    for (unsigned first = 32; first < p.span_count; first += 32) {
        const Range range = visible_keys_or_none(p, first + lane_index(), kv_head, copy, from, to);
        total += range.end - range.first;
    }
    total = warp_sum(total);

    // This split's part of the visible keys of all spans, one after the other.
    const int step = key_warps * W::keys_at_once, splits = static_cast<int>(parameters.splits);
    const int share = larger((total + splits - 1) / splits, smaller(LEAST_KEYS, total));
    const int64_t keys = (static_cast<int64_t>(share) + step - 1) / step * step, ahead = keys * block_y();
    // Keys still to skip, and still to take.
    int skip = ahead < total ? static_cast<int>(ahead) : total, left = total - skip;
    if (left > keys) left = static_cast<int>(keys);
    // Loops end alike in all lanes; it is asked so that the compiler knows.
    NOT_UNROLLED
    for (unsigned first = 0; warp_any(left > 0); first += 32) {
        if (first > 0) mine = visible_keys_or_none(p, first + lane_index(), kv_head, copy, from, to);
        NOT_UNROLLED
        for (int i = 0; i < 32 && warp_any(left > 0); i++) {
            const Range range{shuffle(mine.first, i) + skip, shuffle(mine.end, i)};
            skip = larger(range.first - range.end, 0);
            if (!warp_any(range.first < range.end)) continue;
            const Range part{range.first, smaller(range.end, range.first + left)};
            left -= part.end - part.first;
            W::pass(walk, p, p.spans[first + i], copy, kv_head, part, warp % key_warps, key_warps);
        }
    }
    W::finish(walk, shared + warp * entries * W::shared_row);
    block_barrier();
    join_warps<W, entries>(parameters, shared, kv_head, first_tile);
}

}  // namespace spans

#define SPAN_ATTENTION(name, Key, lanes, entries, vectors, resident)                  \
    KERNEL_RESIDENT(span_attention_##name, spans::Parameters, spans::THREADS, resident) { \
        spans::attend<Key, lanes, entries, vectors>(parameters);                      \
    }
#define SPAN_ATTENTION_ENTRIES(name, Key, lanes)                  \
    SPAN_ATTENTION(name##_lanes_##lanes##_entries_1, Key, lanes, 1, true, 3) \
    SPAN_ATTENTION(name##_lanes_##lanes##_entries_2, Key, lanes, 2, true, 3) \
    SPAN_ATTENTION(name##_lanes_##lanes##_entries_4, Key, lanes, 4, true, 3) \
    SPAN_ATTENTION(name##_lanes_##lanes##_entries_8, Key, lanes, 8, true, 2)

SPAN_ATTENTION_ENTRIES(f32, float, 8)
SPAN_ATTENTION_ENTRIES(f32, float, 16)
SPAN_ATTENTION_ENTRIES(f32, float, 32)
SPAN_ATTENTION_ENTRIES(bf16, Bf16, 8)
SPAN_ATTENTION_ENTRIES(bf16, Bf16, 16)
SPAN_ATTENTION_ENTRIES(bf16, Bf16, 32)
// Heads that are no multiple of 16 bytes, of any size.
SPAN_ATTENTION(f32_any, float, 32, 2, false, 2)
SPAN_ATTENTION(bf16_any, Bf16, 32, 2, false, 2)
