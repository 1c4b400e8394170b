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
