// The output of a matmul: split-K partials, f32 [COUNT][rows][width], one per part of K. The value is their sum, in
// order.

#pragma once

#include "common.cuh"

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// N neighbours as float4: loaded at once, added or read later. Kernels of few rows wait for memory and little
// else, so everything that a thread needs is loaded before anything is used.
template <int N> struct Span {
    float4 at[N / 4];

    __device__ __forceinline__ void load(const float* from) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) at[i] = ((const float4*)from)[i];
    }
    __device__ __forceinline__ void zero() {
#pragma unroll
        for (int i = 0; i < N / 4; i++) at[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    __device__ __forceinline__ void store(float* to) const {
#pragma unroll
        for (int i = 0; i < N / 4; i++) ((float4*)to)[i] = at[i];
    }
    __device__ __forceinline__ void set(const float (&x)[N]) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) at[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    }
    __device__ __forceinline__ void add(const Span& other) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) at[i] = at[i] + other.at[i];
    }
    __device__ __forceinline__ void values(float (&x)[N]) const {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            x[4 * i] = at[i].x, x[4 * i + 1] = at[i].y, x[4 * i + 2] = at[i].z, x[4 * i + 3] = at[i].w;
        }
    }
};

// N neighbours of one row in all partials, PREFETCHED of them loaded early and the rest when they are added up. The column and
// the partials' width are multiples of 4.
template <int COUNT, int N, int PREFETCHED = 8> struct PartialSpan {
    static constexpr int EARLY = COUNT < PREFETCHED ? COUNT : PREFETCHED;
    Span<N> partial[EARLY];
    const float* rest;
    u64 step;

    __device__ __forceinline__ void load(const float* partials, int rows, int width, int row, int column) {
        rest = partials + (u64)row * width + column;
        step = (u64)rows * width;
        load_next<EARLY>(partial);
    }
    __device__ __forceinline__ void zero() {
        rest = nullptr;
#pragma unroll
        for (int p = 0; p < EARLY; p++) partial[p].zero();
    }
    __device__ __forceinline__ Span<N> sum() {
        Span<N> total = partial[0];
        add_all<EARLY, 1>(total, partial);
        if (COUNT > EARLY && rest) {
            constexpr int LATE = COUNT - EARLY;
            for (int p = 0; p < LATE / EARLY; p++) {
                load_next<EARLY>(partial);
                add_all<EARLY, 0>(total, partial);
            }
            load_next<LATE % EARLY>(partial);
            add_all<LATE % EARLY, 0>(total, partial);
        }
        return total;
    }

private:
    template <int HOW_MANY> __device__ __forceinline__ void load_next(Span<N> (&to)[EARLY]) {
#pragma unroll
        for (int p = 0; p < HOW_MANY; p++, rest += step) to[p].load(rest);
    }
    template <int END, int BEGIN>
    __device__ __forceinline__ static void add_all(Span<N>& total, const Span<N> (&from)[EARLY]) {
#pragma unroll
        for (int p = BEGIN; p < END; p++) total.add(from[p]);
    }
};

// One value.
template <int COUNT> struct PartialValue {
    float part[COUNT];

    __device__ __forceinline__ void load(const float* partials, int rows, int width, int row, int column) {
        const float* from = partials + (u64)row * width + column;
#pragma unroll
        for (int p = 0; p < COUNT; p++, from += (u64)rows * width) part[p] = *from;
    }
    __device__ __forceinline__ float sum() const {
        float total = part[0];
#pragma unroll
        for (int p = 1; p < COUNT; p++) total += part[p];
        return total;
    }
};
template <int COUNT> __device__ __forceinline__ float partials_sum(
    const float* partials, int rows, int width, int row, int column
) {
    PartialValue<COUNT> value;
    value.load(partials, rows, width, row, column);
    return value.sum();
}

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }
