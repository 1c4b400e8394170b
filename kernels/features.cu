// What a drafter is fed with: the tapped hidden states of accepted nodes, kept until it takes them in.
//
// Row i of the walk becomes row (length before it) - absorbed + i of `waiting`. One thread per four floats, grid (quads /
// threads, rows). Bound by latency: a few rows of 100 KB. Share of bandwidth: not measured yet.

#include "state.cuh"

// features f32 [node][width], waiting f32 [capacity][width]; width a multiple of 4.
extern "C" __global__ void keep_features(
    const StepState* st, const float* features, float* waiting, int width, int capacity
) {
    const int quad = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    pdl_launch();
    pdl_wait();
    const int to = st->length - st->accepted - st->absorbed + row;
    if (4 * quad >= width || row >= st->accepted || to >= capacity) return;
    const float4* const from = reinterpret_cast<const float4*>(features + u64(st->path[row]) * width);
    reinterpret_cast<float4*>(waiting + u64(to) * width)[quad] = from[quad];
}

// The drafter has taken in all that waited. One thread.
extern "C" __global__ void features_taken(StepState* st) {
    pdl_launch();
    pdl_wait();
    st->absorbed = st->length;
}
