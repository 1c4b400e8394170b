// What a drafter reads: the captured layers of accepted nodes, kept until they enter its cache.
//
// Row i of the walk becomes row (length before it) - draft_length + i of `pending`. One thread per four floats, grid
// (quads / threads, rows). Bound by latency: a few rows of 100 KB. Share of bandwidth: not measured yet.

#include "state.cuh"

// features f32 [node][width], pending f32 [capacity][width]; width a multiple of 4.
extern "C" __global__ void keep_features(
    const StepState* st, const float* features, float* pending, int width, int capacity
) {
    const int quad = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    pdl_launch();
    pdl_wait();
    const int to = st->length - st->accepted - st->draft_length + row;
    if (4 * quad >= width || row >= st->accepted || to >= capacity) return;
    const float4* const from = reinterpret_cast<const float4*>(features + u64(st->path[row]) * width);
    reinterpret_cast<float4*>(pending + u64(to) * width)[quad] = from[quad];
}

// All that was pending is in the drafter's cache. One thread.
extern "C" __global__ void features_taken(StepState* st) {
    pdl_launch();
    pdl_wait();
    st->draft_length = st->length;
}
