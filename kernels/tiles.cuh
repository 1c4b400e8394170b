// f16 tiles in shared memory, and the fragments of matrix instructions that are read from them.

#pragma once

#include "common.cuh"

// Which chunk of a row is stored in the place of its first one, in a shared tile of rows of WIDTH f16. It puts the 8
// rows that an ldmatrix reads together into different banks.
template <int WIDTH> __device__ __forceinline__ int swizzle_of(int row) {
    constexpr int CHUNKS = WIDTH / 8;
    static_assert(CHUNKS == 2 || CHUNKS == 4 || CHUNKS % 8 == 0, "row width");
    return CHUNKS == 2 ? row >> 2 & 1 : CHUNKS == 4 ? row >> 1 & 3 : row & 7;
}

// Elements 8 chunk.. of a row.
template <int WIDTH>
__device__ __forceinline__ half* chunk_at(half* tile, int row, int chunk) {
    return tile + row * WIDTH + (chunk ^ swizzle_of<WIDTH>(row)) * 8;
}

// The same in bytes from the tile's beginning: a thread computes it once, before a loop.
constexpr int CHUNK_BYTES = 16;
template <int WIDTH> __device__ __forceinline__ u32 chunk_offset(int row, int chunk) {
    return row * 2 * WIDTH + (chunk ^ swizzle_of<WIDTH>(row)) * CHUNK_BYTES;
}
// The other addresses differ by constants: the chunk `more` after the first one, where `more` and the first chunk's
// number have no bit in common, and `bytes` beyond that, such as those of 8 rows.
__device__ __forceinline__ half* chunk_on(half* tile, u32 offset, int more, int bytes) {
    u8* const near = reinterpret_cast<u8*>(tile) + (offset ^ more % 8 * CHUNK_BYTES);
    return reinterpret_cast<half*>(near + more / 8 * 8 * CHUNK_BYTES + bytes);
}
// Chunk `chunk` + `more` of row `row` + STEP i, where `offset` is that of `row` and `chunk`.
template <int WIDTH, int STEP>
__device__ __forceinline__ half* row_on(half* tile, u32 offset, int row, int chunk, int i, int more = 0) {
    if constexpr (WIDTH % 64 == 0 && STEP % 4 == 0) {
        return chunk_on(tile, offset, more ^ (STEP * i & 4), STEP * i * 2 * WIDTH);
    } else {
        return chunk_at<WIDTH>(tile, row + STEP * i, chunk + more);
    }
}

// One row of a tile, element by element.
template <int WIDTH> struct TileRow {
    half* tile;
    int row;
    __device__ __forceinline__ half& operator[](int element) const {
        return chunk_at<WIDTH>(tile, row, element / 8)[element % 8];
    }
};

// Which source row is a tile's row `row`: the same one. A thread then needs one pointer only, to its first row. Rows
// that `skips` names are neither read nor written.
struct InOrder {
    static constexpr bool STRAIGHT = true;
    __device__ __forceinline__ int operator()(int row) const { return row; }
    __device__ __forceinline__ bool skips(int) const { return false; }
};

// Which row of a tile has the `key`-th of some keys: the same one.
struct InPlace {
    static constexpr bool IN_ORDER = true;
    __device__ __forceinline__ int operator()(int key) const { return key; }
};

// Start copying COUNT rows of WIDTH halves into a tile, row i from row order(i); rows from `live` on are not read and
// become zeros.
template <int WIDTH, int COUNT, int THREADS, class Order = InOrder>
__device__ __forceinline__ void copy_rows(half* tile, const half* from, int live, const Order& order = {}) {
    constexpr int CHUNKS = WIDTH / 8, STEP = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0, "a thread copies the same chunk of every STEP-th row");
    constexpr int TURNS = ceil_div(COUNT, STEP);
    const int first = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const u32 at = chunk_offset<WIDTH>(first, chunk);
    from += (Order::STRAIGHT ? first * WIDTH : 0) + chunk * 8;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        const int row = first + STEP * i;
        if (COUNT % STEP && i == TURNS - 1 && row >= COUNT) break;
        if (order.skips(row)) continue;
        const half* const source = from + (Order::STRAIGHT ? STEP * i : order(row)) * WIDTH;
        cp_async16_or_zero(row_on<WIDTH, STEP>(tile, at, first, chunk, i), source, row < live);
    }
}

// A fragment: rows `row`..+15, elements 16 step..+15 of a tile of rows of WIDTH halves.
template <int WIDTH>
__device__ __forceinline__ void row_fragment(u32 (&a)[4], half* tile, int row, int step) {
    ldmatrix_x4(a, chunk_at<WIDTH>(tile, row + lane_id() % 16, 2 * step + lane_id() / 16));
}

// The same by the offset of row `row` and step 0: rows 16 r.. from there.
template <int WIDTH> __device__ __forceinline__ u32 fragment_offset(int row) {
    return chunk_offset<WIDTH>(row + lane_id() % 16, lane_id() / 16);
}
template <int WIDTH>
__device__ __forceinline__ void fragment_on(u32 (&a)[4], half* tile, u32 offset, int r, int step) {
    ldmatrix_x4(a, chunk_on(tile, offset, 2 * step, r * 16 * 2 * WIDTH));
}

// d[0] += a b[0..1], d[1] += a b[2..3].
__device__ __forceinline__ void mma_pair(float (&d0)[4], float (&d1)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    mma_f16_16816(d0, a, low);
    mma_f16_16816(d1, a, high);
}
