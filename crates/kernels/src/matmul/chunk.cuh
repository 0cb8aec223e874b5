// What a warp unpacks at once: a chunk of a row of W, copied to shared memory as it is, 16 bytes at a time whatever the
// alignment of its blocks.
#pragma once

namespace weights {

template <typename B>
struct Chunk {
    static constexpr bool FLOATS = B::ELEMENTS == 1;
    static constexpr unsigned COLUMNS = FLOATS ? 64 * B::RUN : 1024, BYTES = COLUMNS / B::ELEMENTS * B::BYTES;
    // 16 bytes each; one more where the first one begins before the chunk.
    static constexpr unsigned PIECES = B::ALIGNMENT == 16 ? BYTES / 16 : (BYTES + 30) / 16, STRIDE = 16 * PIECES;
    // Parts of a block.
    static constexpr unsigned PARTS = FLOATS ? 1 : B::ELEMENTS / 32;

    // Where in the chunk a run of this lane begins.
    DEVICE unsigned column(unsigned lane, unsigned run) {
        if constexpr (FLOATS) return B::column(lane, run);
        else return lane / PARTS * B::ELEMENTS + B::column(lane % PARTS, run);
    }
    // Whether this lane has any of the chunk's first `columns`.
    DEVICE bool has_part(unsigned lane, unsigned columns) {
        return FLOATS ? column(lane, 0) < columns : lane / PARTS * B::ELEMENTS < columns;
    }
    DEVICE Part load(Bytes chunk, unsigned lane, unsigned columns) {
        if constexpr (FLOATS) return B::load(chunk, lane, columns);
        else return B::load(Bytes{chunk.base, chunk.at + lane / PARTS * B::BYTES}, lane % PARTS);
    }
    // Of all columns of a chunk of floats at a multiple of 16.
    DEVICE Part load_whole(Bytes chunk, unsigned lane) {
        if constexpr (FLOATS) return B::load_whole(chunk, lane);
        else return load(chunk, lane, COLUMNS);
    }
    // Bytes of the first `columns`.
    DEVICE unsigned bytes(unsigned columns) { return columns / B::ELEMENTS * B::BYTES; }
};

// Rows of W that a warp multiplies at once: x is read from shared memory once for all of them.
constexpr unsigned ROWS = 4;

DEVICE unsigned misalignment(const unsigned char* address) {
    return static_cast<unsigned>(reinterpret_cast<uintptr_t>(address) % 16);
}

// This lane's share of copies of chunks of ROWS rows: 16 bytes each.
template <typename B, unsigned ROWS>
struct Copies {
    using C = Chunk<B>;
    static constexpr unsigned PIECES = ROWS * C::PIECES, COUNT = (PIECES + 31) / 32;
    const unsigned char* from[COUNT];

    // `row(r)` is where row r begins.
    template <typename Row>
    DEVICE Copies of(Row row) {
        Copies copies;
        UNROLLED for (unsigned i = 0; i < COUNT; i++) {
            const unsigned piece = lane_index() + 32 * i;
            copies.from[i] = row(piece / C::PIECES) + 16 * (piece % C::PIECES);
        }
        return copies;
    }
    // Queues those of whole chunks at `offset` of each row; what is at an address a comes to a multiple of STRIDE, by row,
    // and a % 16 of `to`. Up to 30 bytes behind the chunks are read as well.
    DEVICE void queue_whole(const Copies& copies, unsigned char* to, unsigned offset) {
        UNROLLED for (unsigned i = 0; i < COUNT; i++) {
            const unsigned piece = lane_index() + 32 * i;
            const unsigned char* from = copies.from[i] + offset;
            if (PIECES % 32 == 0 || piece < PIECES) copy_async_16(to + 16 * piece, from - misalignment(from), true);
        }
    }
    // The same of the first `bytes` of chunks, and nothing behind them, where a buffer may end.
    DEVICE void queue(const Copies& copies, unsigned char* to, unsigned offset, unsigned bytes) {
        UNROLLED for (unsigned i = 0; i < COUNT; i++) {
            const unsigned piece = lane_index() + 32 * i;
            const unsigned char* from = copies.from[i] + offset;
            const int rest = static_cast<int>(misalignment(from) + bytes) - static_cast<int>(16 * (piece % C::PIECES));
            if ((PIECES % 32 == 0 || piece < PIECES) && rest > 0)
                copy_async_16_partly(to + 16 * piece, from - misalignment(from), rest < 16 ? rest : 16);
        }
    }
};

// Where column c of a row of f32 is in shared memory: with a gap behind every 32, so that lanes find their runs in
// different banks.
DEVICE unsigned with_gaps(unsigned c) { return c + c / 32 * 4; }

}  // namespace weights
