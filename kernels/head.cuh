// The output of head_argmax for a row of logits: the best of every thread block, [row][part]. merge_draws (tree.cu)
// reads it.

#pragma once

#include "state.cuh"

// The best logit of a part, ties to the lower id.
struct alignas(8) BestPart {
    float value;
    int id;
};

// Which tokens may be drawn. SUPPRESSED: a bit for each that may not, in `suppressed` [vocab / 32, rounded up to blocks
// of 16 rows]; kernels have SUPPRESSED_PARAMETER as their last one, and SUPPRESSED_GIVEN is what was given.
#ifdef SUPPRESSED
struct Allowed {
    const u32* bits;
    __device__ __forceinline__ bool operator()(int token) const { return !(bits[token / 32] >> token % 32 & 1); }
};
#define SUPPRESSED_PARAMETER , const u32* suppressed
#define SUPPRESSED_GIVEN suppressed
#else
struct Allowed {
    __device__ __forceinline__ Allowed(const u32*) {}
    __device__ __forceinline__ bool operator()(int) const { return true; }
};
#define SUPPRESSED_PARAMETER
#define SUPPRESSED_GIVEN nullptr
#endif

// Whether (value, id) comes before (other, other_id): higher first, ties to the lower id.
__device__ __forceinline__ bool better(float value, int id, float other, int other_id) {
    return value > other || (value == other && id < other_id);
}
