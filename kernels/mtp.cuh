// The pairs of an MTP head's pass, by row. Pair s is token s and the target's hidden after token s - 1; it has slot and
// position s of the head's own cache, and there is none for token 0.
//
// Where `first` is -1, row 0 is the pair that drafts. The rows after it, or all of them from `first` on, are pending pairs
// draft_length.. < length, which only enter the cache. After depth 0 a pass has only row 0, of the token that the depth
// before has drafted and the head's own hidden.

#pragma once

#include "state.cuh"

struct Pairs {
    const StepState* st;
    int first, depth;

    __device__ __forceinline__ bool drafts(int row) const { return first + row < 0; }
    __device__ __forceinline__ int slot(int row) const {
        return drafts(row) ? st->length + depth : st->draft_length + first + row;
    }
    __device__ __forceinline__ bool live(int row) const { return drafts(row) || slot(row) < st->length; }
};
