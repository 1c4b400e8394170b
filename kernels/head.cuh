// What the head's matmul leaves of a row of logits, one part per block of rows: enough to merge into the best tokens.
// Parts lie [row][part]; merge_draws and merge_candidates (tree.cu) read them.

#pragma once

#include "state.cuh"

// Verify rows: the best logit of a part, ties to the lower id.
struct alignas(8) BestPart {
    float value;
    int id;
};

// Draft rows: the part's best tokens and its share of the softmax denominator.
struct alignas(16) TopPart {
    float value[MAX_WIDTH];  // logits, best first, ties to the lower id; a part of fewer tokens ends in -inf
    int id[MAX_WIDTH];
    float most;              // the largest logit times inv_tree_temperature
    float sum;               // of exp(logit * inv_tree_temperature - most)
    float unused[2];
};

// Whether (value, id) comes before (other, other_id): higher first, ties to the lower id.
__device__ __forceinline__ bool better(float value, int id, float other, int other_id) {
    return value > other || (value == other && id < other_id);
}
