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

// All that was pending is in the drafter's cache. One thread.
extern "C" __global__ void features_taken(StepState* st) {
    pdl_launch();
    pdl_wait();
    st->draft_length = st->length;
}
