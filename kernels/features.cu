// What a drafter reads: the captured layers of accepted nodes, kept until they enter its cache.
//
// Row i of the walk becomes row (length before it) - draft_length + i of `pending`. One thread per four values, grid
// (quads / threads, rows). Bound by latency: a few rows of 100 KB. Share of bandwidth: not measured yet.

#include "features.cuh"
#include "state.cuh"

// features f32 [node][width], pending f16 [capacity][width] times HEADROOM; width a multiple of 4.
extern "C" __global__ void keep_features(
    const StepState* st, const float* features, half* pending, int width, int capacity
) {
    const int quad = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    pdl_launch();
    pdl_wait();
    const int to = st->length - st->accepted - st->draft_length + row;
    if (4 * quad >= width || row >= st->accepted || to >= capacity) return;
    const float4 x = reinterpret_cast<const float4*>(features + u64(st->path[row]) * width)[quad];
    reinterpret_cast<uint2*>(pending + u64(to) * width)[quad] =
        make_uint2(pack_half2(x.x * HEADROOM, x.y * HEADROOM), pack_half2(x.z * HEADROOM, x.w * HEADROOM));
}

// The same for a drafter that norms every captured layer by itself: times 1 / RMS, and `weight` f32 [taps][hidden].
// pending f16 [capacity][taps * hidden] times HEADROOM; hidden a multiple of 8. Grid (taps, rows).
constexpr int NORM_THREADS = 256;
extern "C" __global__ void __launch_bounds__(NORM_THREADS) keep_normed(
    const StepState* st, const float* features, const float* weight, float eps, half* pending, int hidden, int capacity
) {
    __shared__ float scratch[NORM_THREADS / WARP];
    const int tap = blockIdx.x, taps = gridDim.x, row = blockIdx.y;
    pdl_launch();
    pdl_wait();
    const int to = st->length - st->accepted - st->draft_length + row;
    if (row >= st->accepted || to >= capacity) return;
    const float* const x = features + (u64(st->path[row]) * taps + tap) * hidden;
    float squares = 0.0f;
    for (int k = threadIdx.x; k < hidden; k += NORM_THREADS) squares += x[k] * x[k];
    const float scale = HEADROOM / sqrtf(block_sum<NORM_THREADS>(squares, scratch) / hidden + eps);
    half* const out = pending + (u64(to) * taps + tap) * hidden;
    for (int k = threadIdx.x; k < hidden; k += NORM_THREADS) {
        out[k] = __float2half_rn(x[k] * scale * weight[tap * hidden + k]);
    }
}

// Stores the residual after every accepted node, and its token, at the place of its position: features f32
// [node][width], hidden f32 [slots][width], tokens [slots]; width a multiple of 4. Grid (quads / threads, rows).
extern "C" __global__ void keep_hidden(
    const StepState* st, const float* features, float* hidden, int* tokens, int width, int slots
) {
    const int quad = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    pdl_launch();
    pdl_wait();
    if (4 * quad >= width || row >= st->accepted) return;
    const int node = st->path[row], slot = (st->length - st->accepted + row) % slots;
    reinterpret_cast<float4*>(hidden + u64(slot) * width)[quad] =
        reinterpret_cast<const float4*>(features + u64(node) * width)[quad];
    if (quad == 0) tokens[slot] = st->token[node];
}

// Records that all pending features are in the drafter's cache. One thread.
extern "C" __global__ void features_taken(StepState* st) {
    pdl_launch();
    pdl_wait();
    st->draft_length = st->length;
}
