// The dynamic convolutions before and after a sub-layer of a drafted block. Tap t of row i multiplies row i - t; rows
// before the block count as zero. A coefficient is the sum of a constant per tap and channel, and of a value that
// conv_proj computes for each row from the sub-layer's normalised input; CHANNELS neighbouring channels share that
// value.
//
//   norm -> conv_proj -> conv_before -> sub-layer -> conv_after
//
// Bound by latency: there are few rows. Defines: WIDTH, a multiple of 8; TAPS; CHANNELS; SPLIT_K, the partials of
// conv_proj for conv_before, of the sub-layer's output for conv_after.

#include "acts.cuh"
#include "partials.cuh"

constexpr int GROUPS = WIDTH / CHANNELS;
static_assert(WIDTH % 8 == 0 && WIDTH % CHANNELS == 0, "lanes hold 8 channels, groups are whole");

// Coefficients of one tap for 8 channels from k on: base[k] of WIDTH constants, plus given(group).
template <class Given> __device__ __forceinline__ void coefficients(float (&to)[8], const float* base, int k, Given given) {
    Span<8> fixed;
    fixed.load(base + k);
    fixed.values(to);
    if constexpr (CHANNELS % 8 == 0) {
        const float all = given(k / CHANNELS);
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] += all;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] += given((k + i) / CHANNELS);
    }
}

// A sub-layer's input as acts, from normalised rows f32 [block][WIDTH]. `given`, conv_proj's output, f32
// [SPLIT_K][rows][stride], has columns [before, after][TAPS][GROUPS]; those for conv_after are added up and stored in
// `later` f32 [block][TAPS][GROUPS]. Grid (groups of 256 channels, rows), one warp.
extern "C" __global__ void __launch_bounds__(WARP) conv_before(
    const float* normed, const float* given, int rows, int stride, const float* base, float* later, u8* acts_q8,
    u8* acts_f16
) {
    pdl_launch();
    const int row = blockIdx.y, group = blockIdx.x, k = group * ACTS_GROUP + 8 * lane_id();
    auto sum = [&](int column) { return partials_sum<SPLIT_K>(given, rows, stride, row, column); };
    pdl_wait();
    float x[8] = {};
    if (k < WIDTH) {
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            if (row < tap) break;
            Span<8> from;
            float in[8], by[8];
            from.load(normed + (u64)(row - tap) * WIDTH + k);
            from.values(in);
            coefficients(by, base + tap * WIDTH, k, [&](int at) { return sum(tap * GROUPS + at); });
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] += by[i] * in[i];
        }
    }
    for (int at = group * WARP + lane_id(); at < TAPS * GROUPS; at += gridDim.x * WARP) {
        later[(u64)row * TAPS * GROUPS + at] = sum(TAPS * GROUPS + at);
    }
    acts_store({acts_q8, acts_f16}, row, group, x);
}

// h f32 [block][WIDTH] += the convolution of the sub-layer's output, f32 [SPLIT_K][rows][WIDTH]. `base`: the constants
// of this convolution. Grid as conv_before's.
extern "C" __global__ void __launch_bounds__(WARP) conv_after(
    float* h, const float* output, int rows, const float* base, const float* later
) {
    pdl_launch();
    const int row = blockIdx.y, k = blockIdx.x * ACTS_GROUP + 8 * lane_id();
    pdl_wait();
    if (k >= WIDTH) return;
    Span<8> sum;
    float x[8];
    sum.load(h + (u64)row * WIDTH + k);
    sum.values(x);
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
        if (row < tap) break;
        PartialSpan<SPLIT_K, 8> from;
        float in[8], by[8];
        from.load(output, rows, WIDTH, row - tap, k);
        from.sum().values(in);
        coefficients(by, base + tap * WIDTH, k, [&](int at) { return later[((u64)row * TAPS + tap) * GROUPS + at]; });
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] += by[i] * in[i];
    }
    float4* const to = (float4*)(h + (u64)row * WIDTH + k);
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[1] = make_float4(x[4], x[5], x[6], x[7]);
}
