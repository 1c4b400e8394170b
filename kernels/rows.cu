// Rows of activations for products that a library computes: f16, row-major. The passes of few rows have norm.cu,
// swiglu.cu and gdn_out, which write the order of acts.cuh instead.
//
// The rows below *count are live; grids are those of the largest chunk. Bound by memory: with 2,048 rows on an H200
// rows_norm (WIDTH 5120) moves 3.6 TB/s, rows_swiglu (8704) 4.1, partly from the L2. Defines: WIDTH, elements of a row, a
// multiple of 8; ROWS where normed rows go out as f32 too, ROWS_BY with a weight of their own; UNNORMED where rows are
// only multiplied by HEADROOM; those of activation.cuh; of rows_add NORMED and SCALED.

#include "activation.cuh"
#include "features.cuh"
#include "gated_norm.cuh"
#include "halves.cuh"

constexpr int THREADS = 256;
constexpr int TURNS = ceil_div(WIDTH, 8 * THREADS);

__device__ __forceinline__ void load_eight(const half* from, float (&x)[8]) { load_halves(from, x); }
__device__ __forceinline__ void load_eight(const float* from, float (&x)[8]) {
    Span<8> span;
    span.load(from);
    span.values(x);
}

// RMSNorm of h [rows][WIDTH] into out f16, and into `floats` unless it is null. Grid (rows), block THREADS.
// floats_weight: of `floats`, if it is not `weight`.
template <class T>
__device__ __forceinline__ void norm_rows(
    const int* count, const T* h, const float* weight, float eps, half* out, float* floats = nullptr,
    const float* floats_weight = nullptr
) {
    __shared__ float scratch[THREADS / WARP];
    const int row = blockIdx.x;
    pdl_launch();
    pdl_wait();
    if (row >= *count) return;
    float x[TURNS][8], squares = 0.0f;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = 8 * (threadIdx.x + turn * THREADS);
#pragma unroll
        for (int i = 0; i < 8; i++) x[turn][i] = 0.0f;
        if (k < WIDTH) load_eight(h + (u64)row * WIDTH + k, x[turn]);
#pragma unroll
        for (int i = 0; i < 8; i++) squares += x[turn][i] * x[turn][i];
    }
    const float scale = 1.0f / sqrtf(block_sum<THREADS>(squares, scratch) / WIDTH + eps);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = 8 * (threadIdx.x + turn * THREADS);
        if (k >= WIDTH) continue;
        Span<8> span;
        float by[8];
        if (floats_weight) {
            span.load(floats_weight + k);
            span.values(by);
#pragma unroll
            for (int i = 0; i < 8; i++) by[i] = x[turn][i] * (scale * by[i]);
            span.set(by);
            span.store(floats + (u64)row * WIDTH + k);
        }
#ifndef UNNORMED
        span.load(weight + k);
        span.values(by);
#pragma unroll
        for (int i = 0; i < 8; i++) x[turn][i] *= scale * by[i];
#else
#pragma unroll
        for (int i = 0; i < 8; i++) x[turn][i] *= HEADROOM;
#endif
        store_halves(out + (u64)row * WIDTH + k, x[turn]);
        if (floats && !floats_weight) {
            float4* to = (float4*)(floats + (u64)row * WIDTH + k);
            to[0] = make_float4(x[turn][0], x[turn][1], x[turn][2], x[turn][3]);
            to[1] = make_float4(x[turn][4], x[turn][5], x[turn][6], x[turn][7]);
        }
    }
}

#ifdef ROWS
extern "C" __global__ void __launch_bounds__(THREADS) rows_norm(
    const int* count, const float* h, const float* weight, float eps, half* out, float* floats
#ifdef ROWS_BY
    , const float* floats_weight
#endif
) {
#ifndef ROWS_BY
    const float* const floats_weight = nullptr;
#endif
    norm_rows(count, h, weight, eps, out, floats, floats_weight);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) rows_norm(
    const int* count, const float* h, const float* weight, float eps, half* out
) {
    norm_rows(count, h, weight, eps, out);
}
#endif
extern "C" __global__ void __launch_bounds__(THREADS) rows_norm_f16(
    const int* count, const half* h, const float* weight, float eps, half* out
) {
    norm_rows(count, h, weight, eps, out);
}

// h += branch f32 [rows][WIDTH], with NORMED under an RMSNorm with weight (WIDTH), then with SCALED times factor (1);
// branch becomes zeros. Grid (rows), block THREADS.
extern "C" __global__ void __launch_bounds__(THREADS) rows_add(
    const int* count, float* h, float* branch, float eps
#ifdef NORMED
    , const float* weight
#endif
#ifdef SCALED
    , const float* factor
#endif
) {
    const int row = blockIdx.x;
    pdl_launch();
    pdl_wait();
    if (row >= *count) return;
    float x[TURNS][8];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = 8 * (threadIdx.x + turn * THREADS);
#pragma unroll
        for (int i = 0; i < 8; i++) x[turn][i] = 0.0f;
        if (k >= WIDTH) continue;
        load_eight(branch + (u64)row * WIDTH + k, x[turn]);
        Span<8> zeros;
        zeros.zero();
        zeros.store(branch + (u64)row * WIDTH + k);
    }
#ifdef NORMED
    __shared__ float scratch[THREADS / WARP];
    float squares = 0.0f;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (int i = 0; i < 8; i++) squares += x[turn][i] * x[turn][i];
    const float scale = 1.0f / sqrtf(block_sum<THREADS>(squares, scratch) / WIDTH + eps);
#endif
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = 8 * (threadIdx.x + turn * THREADS);
        if (k >= WIDTH) continue;
#ifdef NORMED
        float by[8];
        load_eight(weight + k, by);
#pragma unroll
        for (int i = 0; i < 8; i++) x[turn][i] *= scale * by[i];
#endif
        float sum[8];
        load_eight(h + (u64)row * WIDTH + k, sum);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] += x[turn][i];
#ifdef SCALED
            sum[i] *= *factor;
#endif
        }
        Span<8> out;
        out.set(sum);
        out.store(h + (u64)row * WIDTH + k);
    }
}

// gate = silu(gate) * up, or as activation.cuh has it, with `up` and the result times HEADROOM; in place, f16
// [rows][WIDTH] each. Grid (WIDTH / (8 THREADS), rounded up; rows).
extern "C" __global__ void __launch_bounds__(THREADS) rows_swiglu(const int* count, half* gate, const half* up) {
    const int k = 8 * (blockIdx.x * THREADS + threadIdx.x), row = blockIdx.y;
    pdl_launch();
    pdl_wait();
    if (row >= *count || k >= WIDTH) return;
    float x[8], by[8];
    load_halves(gate + (u64)row * WIDTH + k, x);
    load_halves(up + (u64)row * WIDTH + k, by);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = activated(x[i], by[i], HEADROOM);
    store_halves(gate + (u64)row * WIDTH + k, x);
}

// gate = RMSNorm of each head of 128 in `heads`, times silu(gate), in place, f16 [rows][WIDTH] each; weight (128). Half a
// warp holds a head. Grid as rows_swiglu's.
extern "C" __global__ void __launch_bounds__(THREADS) rows_gated_norm(
    const int* count, const half* heads, half* gate, const float* weight, float eps
) {
    const int k = 8 * (blockIdx.x * THREADS + threadIdx.x), row = blockIdx.y;
    pdl_launch();
    pdl_wait();
    if (row >= *count) return;
    float x[8] = {}, z[8] = {}, w[8];
    if (k < WIDTH) {
        load_halves(heads + (u64)row * WIDTH + k, x);
        load_halves(gate + (u64)row * WIDTH + k, z);
    }
    Span<8> span;
    span.load(weight + k % NORM_DIM);
    span.values(w);
    gated_norm(x, z, w, eps);
    if (k < WIDTH) store_halves(gate + (u64)row * WIDTH + k, x);
}
