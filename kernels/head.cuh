// The output of head_argmax for a row of logits: the best of every thread block, [row][part]. merge_draws (tree.cu)
// reads it.

#pragma once

#include "state.cuh"

// The best logit of a part, ties to the lower id.
struct alignas(8) BestPart {
    float value;
    int id;
};

// Whether (value, id) comes before (other, other_id): higher first, ties to the lower id.
__device__ __forceinline__ bool better(float value, int id, float other, int other_id) {
    return value > other || (value == other && id < other_id);
}
