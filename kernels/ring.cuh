// How finished steps reach the host: slots in pinned memory that the accept kernel fills, one per step.
//
// The host polls `ready`, which is written last; it holds the step's number within the turn, from 1. Only live entries
// of an array are written. backends/cuda/headers.py reads the struct from here.

#pragma once

#include "state.cuh"

// Times of a step, from the device's one nanosecond clock. kv_commit ends after the slot is written, so a slot brings
// the end of the step before it.
enum Stamp { STEP_BEGIN = 0, TREE_BEGIN, VERIFY_BEGIN, ACCEPT_BEGIN, ACCEPT_END, COMMIT_END, STAMPS = 8 };

struct RingSlot {
    u64 stamp[STAMPS];           // of this step; COMMIT_END of the step before
    int ready;
    int stop;                    // enum Stop
    int length;                  // committed positions after this step
    int answered;                // tokens of the answer after this step
    int tokens;                  // how many this step added to the answer
    int accepted;                // nodes on the walk, the root included; may be more than `tokens`, where a stop cuts
    int bonus;                   // what the target drew where the walk left the tree
    int n;                       // nodes of the tree
    int by_value;                // whether the tree was built by learned value
    int built;                   // then: nodes that were built, n of them live; their values are below
    int draft_depth, width;      // live part of the candidates
    int token[MAX_NODES];        // what this step added
    int path[MAX_NODES];         // the walk, the root first
    int tree_token[MAX_NODES];
    int tree_parent[MAX_NODES];
    int tree_depth[MAX_NODES];
    float tree_log_prob[MAX_NODES];
    float tree_path_log_prob[MAX_NODES];
    float tree_value[MAX_NODES];
    int candidate[MAX_DEPTH][MAX_WIDTH];
    float candidate_log_prob[MAX_DEPTH][MAX_WIDTH];
};

// One thread records the time of a stage. `stamps`: device memory of STAMPS values, kept from step to step.
__device__ __forceinline__ void stamp(u64* stamps, Stamp stage) {
    if (threadIdx.x == 0 && blockIdx.x == 0) stamps[stage] = global_timer();
}
