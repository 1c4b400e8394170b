// What ssm_out reads of a head: its output, normed, times silu of its gate.

#pragma once

#include "partials.cuh"

constexpr int NORM_DIM = 128;

// A head over half a warp, 8 elements a lane: RMSNorm with weight w, times silu(z).
__device__ __forceinline__ void gated_norm(float (&x)[8], const float (&z)[8], const float (&w)[8], float eps) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) squares += x[i] * x[i];
#pragma unroll
    for (int offset = 8; offset; offset /= 2) squares += __shfl_xor_sync(FULL_WARP, squares, offset);
    const float scale = 1.0f / sqrtf(squares / NORM_DIM + eps);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= scale * w[i] * silu(z[i]);
}
