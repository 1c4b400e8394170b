// Tiles of halves in shared memory, and the fragments of matrix instructions that are read from them.

#pragma once

#include "common.cuh"

// Elements 8 chunk.. of a row in a shared tile of rows of WIDTH halves. The swizzle puts the 8 rows that an ldmatrix
// reads together into different banks.
template <int WIDTH>
__device__ __forceinline__ half* chunk_at(half* tile, int row, int chunk) {
    constexpr int CHUNKS = WIDTH / 8;
    static_assert(CHUNKS == 2 || CHUNKS == 4 || CHUNKS % 8 == 0, "row width");
    const int swizzle = CHUNKS == 2 ? row >> 2 & 1 : CHUNKS == 4 ? row >> 1 & 3 : row & 7;
    return tile + row * WIDTH + (chunk ^ swizzle) * 8;
}

// Which row of its source becomes row `first` + `step` of a tile: the same one. A thread keeps one pointer, to `first`.
struct InOrder {
    static constexpr bool STRAIGHT = true;
    __device__ __forceinline__ int operator()(int row) const { return row; }
};

// Start copying COUNT rows of WIDTH halves into a tile, row i from row order(i); rows from `live` on are not read and
// become zeros.
template <int WIDTH, int COUNT, int THREADS, class Order = InOrder>
__device__ __forceinline__ void copy_rows(half* tile, const half* from, int live, const Order& order = {}) {
    constexpr int CHUNKS = WIDTH / 8, STEP = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0, "a thread copies the same chunk of every STEP-th row");
    const int first = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    from += chunk * 8;
#pragma unroll
    for (int row = 0; row < COUNT; row += STEP) {
        if (COUNT % STEP && first + row >= COUNT) break;
        const half* const source = from + order(first + row) * WIDTH;
        cp_async16_or_zero(chunk_at<WIDTH>(tile, first + row, chunk), source, first + row < live);
    }
}

// A fragment: rows `row`..+15, elements 16 step..+15 of a tile of rows of WIDTH halves.
template <int WIDTH>
__device__ __forceinline__ void row_fragment(u32 (&a)[4], half* tile, int row, int step) {
    ldmatrix_x4(a, chunk_at<WIDTH>(tile, row + lane_id() % 16, 2 * step + lane_id() / 16));
}

// d[0] += a b[0..1], d[1] += a b[2..3].
__device__ __forceinline__ void mma_pair(float (&d0)[4], float (&d1)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    mma_f16_16816(d0, a, low);
    mma_f16_16816(d1, a, high);
}
