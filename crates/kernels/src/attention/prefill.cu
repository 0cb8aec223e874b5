// Attention of many rows at once on tensor cores, without a score matrix, as FlashAttention-2 has it: a block takes a tile of
// query rows of one head and goes through the keys that they see, tile by tile. Scores, weights and sums of values stay in
// registers; keys and values come through shared memory, those of the next tile while this one is worked on. All is in bf16,
// with sums in f32: queries and output [rows, heads, head_dim], keys and values [heads of keys, slots, head_dim].
struct PrefillAttentionParameters {
    const unsigned char* queries;
    const unsigned char* keys;
    const unsigned char* values;
    unsigned char* output;
    // Bytes between two heads of the keys, as of the values.
    uint64_t head_stride;
    int rows;
    // Row r has its own key in slot first_slot + r and sees the `window` slots up to it.
    int first_slot;
    int window;
    // Weights are 2^(factor · (score − largest score)).
    float factor;
    // Where there is a soft cap, a score is tanh(product · cap_factor / (2 · log2 e)); 0 where there is none.
    float cap_factor;
    // Where rows read some keys alone: the tiles of each head and block of rows, two numbers each, from tile_starts[head · blocks
    // + block] to the next start; and the slots that gathered tiles are of.
    const int* tile_starts;
    const int* tiles;
    const int* columns;
};

namespace prefill {

// How far, in powers of two, a score may be above the largest that the sums are relative to before these are scaled anew:
// rarely, since the largest settles early, and far from overflow.
constexpr float SLACK = 8.0f;
// Two ones in bf16.
constexpr uint32_t ONES = 0x3f803f80;

// Rows of `head_dim` numbers in shared memory, in chunks of 16 bytes. The chunks of a row change places within groups of
// `period` by the row, so that one column of eight rows, as ldmatrix reads it, lies in all banks.
template <int head_dim_, int warps, int row_tiles_, int tile_keys_, int step_keys_, int kept_>
struct Layout {
    static constexpr int head_dim = head_dim_;
    static constexpr int threads = 32 * warps;
    // Query rows of a warp in tiles of 16, of a warp and of a block.
    static constexpr int row_tiles = row_tiles_, warp_rows = 16 * row_tiles, rows = warps * warp_rows;
    // Keys that are copied at once and, of these, that are worked on at once.
    static constexpr int tile_keys = tile_keys_, step_keys = step_keys_;
    // Sixteens of dimensions, and in how many of these the queries are kept in registers instead of read for each tile.
    static constexpr int pairs = head_dim / 16, kept = kept_;
    static constexpr int chunks = head_dim / 8, row_bytes = 2 * head_dim;
    static constexpr int tile_bytes = tile_keys * row_bytes, stage_bytes = 2 * tile_bytes;
    // Where the stages of keys and values are: behind the queries, or in their place once these are in registers.
    static constexpr int query_bytes = rows * row_bytes, stages_at = kept < pairs ? query_bytes : 0;
    static constexpr int period = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : 2;

    DEVICE unsigned offset(unsigned row, unsigned chunk) {
        const unsigned swizzle = row / (8 / period) % period;
        return row * row_bytes + (chunk ^ swizzle) * 16;
    }
    // From the offset of chunk 0 or 1 of a row to the one of the chunk 2·pair further. The offset may be within a larger one
    // that is a multiple of 128.
    DEVICE unsigned further(unsigned offset, unsigned pair) {
        return (offset ^ (2 * pair % period * 16)) + 2 * pair / period * period * 16;
    }
};

// The block's rows of queries; zeros beyond the last.
template <class L>
DEVICE void copy_queries(unsigned char* to, const unsigned char* queries, uint64_t stride, int rows) {
    UNROLLED
    for (int pass = 0; pass < L::rows * L::chunks / L::threads; pass++) {
        const unsigned index = pass * L::threads + thread_index(), row = index / L::chunks, chunk = index % L::chunks;
        const bool wanted = static_cast<int>(row) < rows;
        copy_async_16(to + L::offset(row, chunk), queries + (wanted ? row : 0) * stride + chunk * 16, wanted);
    }
}

// A tile of keys and of values from `first` on; zeros beyond `last`, since a weight of 0 does not undo a NaN.
template <class L, bool whole>
DEVICE void copy_tile(unsigned char* to, const unsigned char* keys, const unsigned char* values, int first, int last) {
    constexpr int rows = L::threads / L::chunks / 8 * 8;
    static_assert(rows > 0 && L::tile_keys % rows == 0, "threads copy whole rows, eight or more at once");
    const unsigned thread = thread_index_anew();
    const int row = thread / L::chunks, chunk = thread % L::chunks;
    if (row >= rows) return;
    to += L::offset(row, chunk);
    UNROLLED
    for (int pass = 0; pass < L::tile_keys / rows; pass++) {
        const int key = first + row + pass * rows;
        const bool wanted = whole || key <= last;
        const uint64_t from = static_cast<uint64_t>(wanted ? key : last) * L::row_bytes + chunk * 16;
        copy_async_16(to + pass * rows * L::row_bytes, keys + from, wanted);
        copy_async_16(to + pass * rows * L::row_bytes + L::tile_bytes, values + from, wanted);
    }
}

template <class L>
DEVICE void copy_tile(unsigned char* to, const unsigned char* keys, const unsigned char* values, int first, int last) {
    if (first + L::tile_keys - 1 <= last)
        copy_tile<L, true>(to, keys, values, first, last);
    else
        copy_tile<L, false>(to, keys, values, first, last);
}

// Keys that a block of rows reads: the slots of a tile from `first` on, or, gathered, `count` of the columns from there on. The rows
// of the first half read them where bit 0 of `readers` is set, those of the second half where bit 1 is.
struct ListedTile {
    int first, readers, count;
    bool gathered;
};

DEVICE ListedTile listed_tile(const int* tiles, int index) {
    const int flags = tiles[2 * index + 1];
    return {tiles[2 * index], flags & 3, flags >> 3, (flags & 4) != 0};
}

// A tile of a list; zeros beyond its keys.
template <class L>
DEVICE void copy_listed(unsigned char* to, const unsigned char* keys, const unsigned char* values, const ListedTile& tile,
                        const int* columns, int last) {
    if (!tile.gathered) {
        copy_tile<L>(to, keys, values, tile.first, last);
        return;
    }
    constexpr int rows = L::threads / L::chunks / 8 * 8;
    const unsigned thread = thread_index_anew();
    const int row = thread / L::chunks, chunk = thread % L::chunks;
    if (row >= rows) return;
    to += L::offset(row, chunk);
    UNROLLED
    for (int pass = 0; pass < L::tile_keys / rows; pass++) {
        const int index = row + pass * rows;
        const bool wanted = index < tile.count;
        const int key = columns[tile.first + (wanted ? index : 0)];
        const uint64_t from = static_cast<uint64_t>(key) * L::row_bytes + chunk * 16;
        copy_async_16(to + pass * rows * L::row_bytes, keys + from, wanted);
        copy_async_16(to + pass * rows * L::row_bytes + L::tile_bytes, values + from, wanted);
    }
}

template <class L>
using Queries = uint32_t[L::row_tiles][L::pairs][4];
// Of a warp's rows, as products yield them: scores by eight keys, sums of values by eight dimensions.
template <class L>
using Scores = float[L::row_tiles][L::step_keys / 8][4];
template <class L>
using Sums = float[L::row_tiles][L::head_dim / 8][4];
// By row: of each tile of sixteen a lane has two, eight apart.
template <class L>
using Rows = float[L::row_tiles][2];
// Sums of weights as products of these and ones, which is less work than to add them: in elements 0 and 2; the others repeat
// them, but are not scaled.
template <class L>
using Totals = float[L::row_tiles][4];

// The queries of a warp in sixteen dimensions.
template <class L>
DEVICE void load_queries(uint32_t (&queries)[4], const unsigned char* shared, unsigned lane, int tile, int pair) {
    load_matrices(queries, shared + L::further(lane, pair) + tile * 16 * L::row_bytes);
}

// Queries times keys, by sixteen dimensions and sixteen keys; what is multiplied next is on its way meanwhile.
template <class L>
DEVICE void multiply_keys(Scores<L>& scores, Queries<L>& queries, const unsigned char* shared, unsigned query_lane,
                          unsigned keys) {
    UNROLLED
    for (int tile = 0; tile < L::row_tiles; tile++)
        UNROLLED
        for (int i = 0; i < L::step_keys / 8 * 4; i++) scores[tile][i / 4][i % 4] = 0.0f;

    constexpr int groups = L::step_keys / 16, parts = L::pairs * groups;
    const unsigned lane = keys + L::offset(lane_index() % 8 + lane_index() / 16 * 8, lane_index() / 8 % 2);
    uint32_t matrices[2][4];
    UNROLLED
    for (int tile = 0; tile < L::row_tiles; tile++)
        if (L::kept == 0) load_queries<L>(queries[tile][0], shared, query_lane, tile, 0);
    load_matrices(matrices[0], shared + lane);
    UNROLLED
    for (int part = 0; part < parts; part++) {
        const int group = part % groups, pair = part / groups;
        if (part + 1 < parts) {
            const int next = (part + 1) / groups;
            load_matrices(matrices[(part + 1) % 2],
                          shared + L::further(lane, next) + (part + 1) % groups * 16 * L::row_bytes);
        }
        UNROLLED
        for (int tile = 0; tile < L::row_tiles; tile++) {
            const uint32_t(&b)[4] = matrices[part % 2];
            multiply_16x8x16(scores[tile][2 * group], queries[tile][pair], b[0], b[1]);
            multiply_16x8x16(scores[tile][2 * group + 1], queries[tile][pair], b[2], b[3]);
            if (group == groups / 2 && pair + 1 < L::pairs && pair + 1 >= L::kept)
                load_queries<L>(queries[tile][pair + 1], shared, query_lane, tile, pair + 1);
        }
    }
}

// tanh of what the scores are to become the cap times of.
template <class L>
DEVICE void cap(Scores<L>& scores, float cap_factor) {
    UNROLLED
    for (int tile = 0; tile < L::row_tiles; tile++)
        UNROLLED
        for (int i = 0; i < L::step_keys / 8 * 4; i++) {
            float& x = scores[tile][i / 4][i % 4];
            x = 1.0f - 2.0f * reciprocal_fast(1.0f + exp2_fast(x * cap_factor));
        }
}

// −∞ where a row does not see a key: where the key is not among the `window` ones that end with the row's own. `distance` is
// from the first key to the first row.
template <class L>
DEVICE void mask(Scores<L>& scores, int distance, int window) {
    const int mine = distance + static_cast<int>(lane_index() / 4) - static_cast<int>(lane_index() % 4 * 2);
    UNROLLED
    for (int tile = 0; tile < L::row_tiles; tile++)
        UNROLLED
        for (int i = 0; i < L::step_keys / 8 * 4; i++) {
            const int row = tile * 16 + i % 4 / 2 * 8, key = i / 4 * 8 + i % 2;
            // Of a key that comes later the distance is negative, and as an unsigned number beyond every window.
            const bool seen = static_cast<unsigned>(mine + row - key) < static_cast<unsigned>(window);
            if (!seen) scores[tile][i / 4][i % 4] = -infinity();
        }
}

// −∞ from the key `count` on, for all rows.
template <class L>
DEVICE void mask_beyond(Scores<L>& scores, int count) {
    const int mine = lane_index() % 4 * 2;
    UNROLLED
    for (int tile = 0; tile < L::row_tiles; tile++)
        UNROLLED
        for (int i = 0; i < L::step_keys / 8 * 4; i++)
            if (mine + i / 4 * 8 + i % 2 >= count) scores[tile][i / 4][i % 4] = -infinity();
}

// Has each row's `largest` score keep up with the scores. Where one has grown much, what was summed before is scaled to it.
template <class L>
DEVICE void keep_up(const Scores<L>& scores, Rows<L>& largest, Totals<L>& totals, Sums<L>& sums, float factor) {
    Rows<L> tops;
    bool grown = false;
    UNROLLED
    for (int tile = 0; tile < L::row_tiles; tile++)
        UNROLLED
        for (int half = 0; half < 2; half++) {
            float top = -infinity();
            UNROLLED
            for (int i = 0; i < L::step_keys / 8; i++)
                top = fmaxf(top, fmaxf(scores[tile][i][2 * half], scores[tile][i][2 * half + 1]));
            top = fmaxf(top, shuffle_xor(top, 1));
            top = fmaxf(top, shuffle_xor(top, 2));
            tops[tile][half] = top;
            // Also false where neither is more than −∞, since their difference is NaN.
            grown |= (top - largest[tile][half]) * factor > SLACK;
        }
    if (!warp_any(grown)) return;
    UNROLLED
    for (int tile = 0; tile < L::row_tiles; tile++)
        UNROLLED
        for (int half = 0; half < 2; half++) {
            const float before = largest[tile][half], now = fmaxf(before, tops[tile][half]);
            const float scale = before == now ? 1.0f : exp2_fast((before - now) * factor);
            largest[tile][half] = now;
            totals[tile][2 * half] *= scale;
            UNROLLED
            for (int i = 0; i < L::head_dim / 8; i++) {
                sums[tile][i][2 * half] *= scale;
                sums[tile][i][2 * half + 1] *= scale;
            }
        }
}

// Adds values times weights, which are powers of the scores relative to the largest, in bf16, and the weights to the totals;
// by sixteen keys and sixteen dimensions.
template <class L>
DEVICE void multiply_values(Sums<L>& sums, Totals<L>& totals, const Scores<L>& scores, const Rows<L>& largest, float factor,
                            const unsigned char* shared, unsigned values) {
    constexpr int groups = L::step_keys / 16;
    const unsigned lane = values + L::offset(lane_index() % 16, lane_index() / 16);
    Rows<L> base;
    UNROLLED
    for (int tile = 0; tile < L::row_tiles; tile++)
        UNROLLED
        for (int half = 0; half < 2; half++) {
            // Of a row that has seen no key yet all scores are −∞, and its weights are to be 0.
            const float top = largest[tile][half];
            base[tile][half] = top == -infinity() ? 0.0f : top * factor;
        }
    uint32_t matrices[2][4];
    load_matrices_transposed(matrices[0], shared + lane);
    UNROLLED
    for (int group = 0; group < groups; group++) {
        uint32_t weights[L::row_tiles][4];
        UNROLLED
        for (int tile = 0; tile < L::row_tiles; tile++)
            UNROLLED
            for (int part = 0; part < 4; part++) {
                // As products take them: rows eight apart by turns, then keys.
                const int half = part % 2;
                const float(&pair)[4] = scores[tile][2 * group + part / 2];
                const float first = exp2_fast(pair[2 * half] * factor - base[tile][half]);
                const float second = exp2_fast(pair[2 * half + 1] * factor - base[tile][half]);
                weights[tile][part] = pack_bf16(first, second);
            }
        UNROLLED
        for (int tile = 0; tile < L::row_tiles; tile++) multiply_16x8x16(totals[tile], weights[tile], ONES, ONES);
        UNROLLED
        for (int pair = 0; pair < L::pairs; pair++) {
            const int part = group * L::pairs + pair, next = part + 1;
            if (next < groups * L::pairs)
                load_matrices_transposed(matrices[next % 2], shared + L::further(lane, next % L::pairs) +
                                                                 next / L::pairs * 16 * L::row_bytes);
            const uint32_t(&b)[4] = matrices[part % 2];
            UNROLLED
            for (int tile = 0; tile < L::row_tiles; tile++) {
                multiply_16x8x16(sums[tile][2 * pair], weights[tile], b[0], b[1]);
                multiply_16x8x16(sums[tile][2 * pair + 1], weights[tile], b[2], b[3]);
            }
        }
    }
}

// Means of the values, by way of the warp's own part of shared memory, so that they are written in whole chunks.
template <class L>
DEVICE void write(unsigned char* output, uint64_t stride, int rows, const Sums<L>& sums, const Totals<L>& totals,
                  unsigned char* shared) {
    UNROLLED
    for (int tile = 0; tile < L::row_tiles; tile++)
        UNROLLED
        for (int half = 0; half < 2; half++) {
            const float scale = 1.0f / totals[tile][2 * half];
            const unsigned row = tile * 16 + half * 8 + lane_index() / 4;
            UNROLLED
            for (int i = 0; i < L::head_dim / 8; i++) {
                const uint32_t pair = pack_bf16(sums[tile][i][2 * half] * scale, sums[tile][i][2 * half + 1] * scale);
                *reinterpret_cast<uint32_t*>(shared + L::offset(row, i) + lane_index() % 4 * 4) = pair;
            }
        }
    warp_barrier();
    for (int index = lane_index(); index < L::warp_rows * L::chunks; index += 32) {
        const int row = index / L::chunks, chunk = index % L::chunks;
        if (row < rows) store_16(output + row * stride + chunk * 16, load_16(shared + L::offset(row, chunk)));
    }
}

// `listed`: the rows read the tiles of a list; otherwise all keys up to their own, or the window of them.
template <class L, bool listed>
DEVICE void attend(const PrefillAttentionParameters& p) {
    DYNAMIC_SHARED(unsigned char, shared);
    // Heads that share keys are neighbours in time, and the last rows, which see most keys, come first.
    const unsigned kv_head = block_y(), head = kv_head * grid_x() + block_x();
    const int first_row = (grid_z() - 1 - block_z()) * L::rows;
    const int rows = p.rows - first_row < L::rows ? p.rows - first_row : L::rows;
    const int first_slot = p.first_slot + first_row, last_key = first_slot + rows - 1;
    const int first_key = first_slot + 1 > p.window ? first_slot + 1 - p.window : 0;
    const int warp_row = thread_index_anew() / 32 * L::warp_rows;
    const uint64_t stride = static_cast<uint64_t>(grid_x() * grid_y()) * L::row_bytes;
    const uint64_t start = first_row * stride + static_cast<uint64_t>(head) * L::row_bytes;
    const unsigned char* keys = p.keys + kv_head * p.head_stride;
    const unsigned char* values = p.values + kv_head * p.head_stride;

    // The tiles of the list, or those from first_key to last_key.
    const int list = listed ? head * grid_z() + grid_z() - 1 - block_z() : 0;
    const int first_tile = listed ? p.tile_starts[list] : 0;
    const int tiles = listed ? p.tile_starts[list + 1] - first_tile : (last_key - first_key) / L::tile_keys + 1;
    const auto copy = [&](unsigned char* to, int tile) {
        if (listed)
            copy_listed<L>(to, keys, values, listed_tile(p.tiles, first_tile + tile), p.columns, last_key);
        else
            copy_tile<L>(to, keys, values, first_key + tile * L::tile_keys, last_key);
    };

    copy_queries<L>(shared, p.queries + start, stride, rows);
    copy_async_commit();
    unsigned char* stages = shared + L::stages_at;
    if (L::stages_at > 0) copy(stages, 0);
    copy_async_commit();
    copy_async_wait<1>();
    block_barrier();
    const unsigned query_lane = warp_row * L::row_bytes + L::offset(lane_index() % 16, lane_index() / 16);
    Queries<L> queries;
    UNROLLED
    for (int tile = 0; tile < L::row_tiles; tile++)
        UNROLLED
        for (int pair = 0; pair < L::kept; pair++) load_queries<L>(queries[tile][pair], shared, query_lane, tile, pair);
    if (L::stages_at == 0) {
        block_barrier();
        copy(stages, 0);
        copy_async_commit();
    }

    Sums<L> sums;
    Rows<L> largest;
    Totals<L> totals;
    UNROLLED
    for (int tile = 0; tile < L::row_tiles; tile++) {
        UNROLLED
        for (int i = 0; i < L::head_dim / 8 * 4; i++) sums[tile][i / 4][i % 4] = 0.0f;
        UNROLLED
        for (int half = 0; half < 2; half++) largest[tile][half] = -infinity();
        UNROLLED
        for (int i = 0; i < 4; i++) totals[tile][i] = 0.0f;
    }
    // Slots of the warp's own rows; none where it has no rows.
    const int warp_first = first_slot + warp_row;
    const int warp_end = warp_first + L::warp_rows - 1;
    const int warp_last = warp_row >= rows ? -1 : warp_end < last_key ? warp_end : last_key;
    const int half = warp_row / (L::rows / 2);
    NOT_UNROLLED
    for (int tile = 0; tile < tiles; tile++) {
        // This tile has arrived for all, and none has a use for the one before.
        copy_async_wait<0>();
        block_barrier();
        if (tile + 1 < tiles) copy(stages + (tile + 1) % 2 * L::stage_bytes, tile + 1);
        copy_async_commit();
        int tile_key = first_key + tile * L::tile_keys, gathered = 0;
        if (listed) {
            const ListedTile of_list = listed_tile(p.tiles, first_tile + tile);
            if (!(of_list.readers >> half & 1)) continue;
            // Gathered keys are before all rows.
            tile_key = of_list.gathered ? -L::tile_keys : of_list.first;
            gathered = of_list.gathered ? of_list.count : 0;
        }
        UNROLLED
        for (int step = 0; step < L::tile_keys; step += L::step_keys) {
            const int first = tile_key + step, last = first + L::step_keys - 1;
            if (first > warp_last || last + p.window <= warp_first) continue;
            Scores<L> scores;
            const unsigned keys_at = L::stages_at + tile % 2 * L::stage_bytes + step * L::row_bytes;
            multiply_keys<L>(scores, queries, shared, query_lane, keys_at);
            if (p.cap_factor != 0.0f) cap<L>(scores, p.cap_factor);
            if (last > warp_first || first + p.window <= warp_last) mask<L>(scores, warp_first - first, p.window);
            if (listed && gathered > 0 && gathered < step + L::step_keys) mask_beyond<L>(scores, gathered - step);
            keep_up<L>(scores, largest, totals, sums, p.factor);
            multiply_values<L>(sums, totals, scores, largest, p.factor, shared, keys_at + L::tile_bytes);
        }
    }
    block_barrier();
    write<L>(p.output + start + warp_row * stride, stride, rows - warp_row, sums, totals, shared + warp_row * L::row_bytes);
}

}  // namespace prefill

// Warps of 32 rows halve what is read from shared memory for each product, and take nearly all registers: two blocks of four
// warps run at once, three where heads are small. Of 256 dimensions only 16 rows fit; then eight warps make up the 128 rows that
// keep reading of keys from being the bound.
namespace prefill {
using Layout64 = Layout<64, 4, 2, 64, 32, 4>;
using Layout80 = Layout<80, 4, 2, 64, 64, 5>;
using Layout96 = Layout<96, 4, 2, 64, 64, 2>;
using Layout128 = Layout<128, 4, 2, 64, 64, 0>;
using Layout256 = Layout<256, 8, 1, 32, 32, 16>;
}  // namespace prefill

KERNEL_RESIDENT(prefill_attention_bf16_64, PrefillAttentionParameters, 128, 3) {
    prefill::attend<prefill::Layout64, false>(parameters);
}
KERNEL_RESIDENT(prefill_attention_bf16_80, PrefillAttentionParameters, 128, 2) {
    prefill::attend<prefill::Layout80, false>(parameters);
}
KERNEL_RESIDENT(prefill_attention_bf16_96, PrefillAttentionParameters, 128, 2) {
    prefill::attend<prefill::Layout96, false>(parameters);
}
KERNEL_RESIDENT(prefill_attention_bf16_128, PrefillAttentionParameters, 128, 2) {
    prefill::attend<prefill::Layout128, false>(parameters);
}
KERNEL(prefill_attention_bf16_256, PrefillAttentionParameters, 256) {
    prefill::attend<prefill::Layout256, false>(parameters);
}
KERNEL_RESIDENT(sparse_prefill_attention_bf16_64, PrefillAttentionParameters, 128, 3) {
    prefill::attend<prefill::Layout64, true>(parameters);
}
KERNEL_RESIDENT(sparse_prefill_attention_bf16_80, PrefillAttentionParameters, 128, 2) {
    prefill::attend<prefill::Layout80, true>(parameters);
}
KERNEL_RESIDENT(sparse_prefill_attention_bf16_96, PrefillAttentionParameters, 128, 2) {
    prefill::attend<prefill::Layout96, true>(parameters);
}
KERNEL_RESIDENT(sparse_prefill_attention_bf16_128, PrefillAttentionParameters, 128, 2) {
    prefill::attend<prefill::Layout128, true>(parameters);
}
KERNEL(sparse_prefill_attention_bf16_256, PrefillAttentionParameters, 256) {
    prefill::attend<prefill::Layout256, true>(parameters);
}
