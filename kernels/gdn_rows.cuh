// What gdn_prepare, gdn_single_row and the makers of gdn_recurrence compute of a row, from its projection to q, k, v and
// gates. All use this code, so that a row has the same bits in plain decoding and in any tree.

#pragma once

#include "gdn.cuh"
#include "partials.cuh"

constexpr float QUERY_LENGTH = 0.08838834764831845f, KEY_LENGTH = 1.0f;  // 1 / sqrt(DIM), 1

__device__ __forceinline__ float4 multiply_add(float4 x, float4 w, float4 sum) {
    return make_float4(
        fmaf(x.x, w.x, sum.x), fmaf(x.y, w.y, sum.y), fmaf(x.z, w.z, sum.z), fmaf(x.w, w.w, sum.w)
    );
}

// The convolution of 4 channels: the weights of each, of the oldest input first.
struct Taps {
    float4 of_channel[4];

    __device__ __forceinline__ void load(const float* conv_weight, int channel) {
#pragma unroll
        for (int c = 0; c < 4; c++) of_channel[c] = *(const float4*)(conv_weight + 4 * (channel + c));
    }
    // SiLU of the weighted sum of a node's inputs, the oldest first.
    __device__ __forceinline__ float4 mix(const float4 (&input)[PAST + 1]) const {
        const float4 (&w)[4] = of_channel;
        const float4 weight[4] = {
            make_float4(w[0].x, w[1].x, w[2].x, w[3].x), make_float4(w[0].y, w[1].y, w[2].y, w[3].y),
            make_float4(w[0].z, w[1].z, w[2].z, w[3].z), make_float4(w[0].w, w[1].w, w[2].w, w[3].w)
        };
        float4 mixed = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int t = 0; t < 4; t++) mixed = multiply_add(input[t], weight[t], mixed);
        return make_float4(silu(mixed.x), silu(mixed.y), silu(mixed.z), silu(mixed.w));
    }
};

// Heads of q or k, 4 channels a lane, brought to `length`.
template <int COUNT> __device__ __forceinline__ void l2_normalize(float4 (&heads)[COUNT], float length) {
    float squares[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const float4 square = multiply_add(heads[i], heads[i], make_float4(0.0f, 0.0f, 0.0f, 0.0f));
        squares[i] = square.x + square.y + square.z + square.w;
    }
    warp_sums(squares);
    float own = squares[0];  // a lane's head: one root and one division do for all
#pragma unroll
    for (int i = 1; i < COUNT; i++) own = lane_id() == i ? squares[i] : own;
    const float norms = length / sqrtf(own + 1e-6f);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const float norm = COUNT == 1 ? norms : __shfl_sync(FULL_WARP, norms, i);
        heads[i] = make_float4(heads[i].x * norm, heads[i].y * norm, heads[i].z * norm, heads[i].w * norm);
    }
}
__device__ __forceinline__ float4 l2_normed(float4 mixed, float length) {
    float4 heads[1] = {mixed};
    l2_normalize(heads, length);
    return heads[0];
}

// A node's a = e^g, from its value of ssm_alpha.
__device__ __forceinline__ float decay_factor(float x, float a, float dt) {
    const float alpha = x + dt;
    const float softplus = alpha > 20.0f ? alpha : log1pf(expf(alpha));
    return expf(a * softplus);
}
