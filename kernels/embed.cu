// Token rows of the embedding matrix as f32; the matrix keeps the block format of its GGUF file.
//
// One thread per element: the matrix is too large to be worth another copy and a step reads a few rows of it. Bound by
// latency. Share of bandwidth: not measured yet.
//
// Defines: FORMAT, the matrix's type as gguf.cuh spells it; WIDTH, elements of a row; SCALE, their factor.

#include "gguf.cuh"

#ifndef SCALE
#define SCALE 1
#endif

// grid (WIDTH / threads, rounded up; rows). h f32 [rows][WIDTH]. Row i is tokens[node0 + i], live below *count. With
// `fill` >= 0 only row 0 comes from `tokens`, all others are that token: a drafter's block of masks after a root.
extern "C" __global__ void embed(
    float* h, const u8* matrix, const int* tokens, int fill, const int* count, int node0
) {
    const int k = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    pdl_launch();
    pdl_wait();
    if (k >= WIDTH || node0 + row >= *count) return;
    const int token = fill >= 0 && row > 0 ? fill : tokens[node0 + row];
    h[(u64)row * WIDTH + k] = row_value<FORMAT, WIDTH>(matrix, token, k) * float(SCALE);
}
