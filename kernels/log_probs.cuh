// What a step reports of the target's own distribution after each node: log_probs.cu and sample.cu write it to pinned
// memory, [slots][nodes], in the slot of the step's ring slot (ring.cuh). backends/cuda/headers.py reads the structs.

#pragma once

#include "state.cuh"

constexpr int MAX_TOP = 20;

struct NodeLogProbs {
    float log_prob;        // of the token that was drawn
    int count;             // entries below
    int id[MAX_TOP];       // the likeliest tokens, the best first
    float value[MAX_TOP];  // their log-probabilities
};

// The softmax of a row of logits: a token's log-probability is (logit - best) - log_total. Both parts are never positive.
struct RowTotal {
    float best;
    float log_total;
};

__device__ __forceinline__ float log_prob_of(const RowTotal& row, float logit) {
    return (logit - row.best) - row.log_total;
}

// A node's entry in the slot of the step that runs.
__device__ __forceinline__ NodeLogProbs& log_probs_of(const StepState* st, NodeLogProbs* slots, int count, int nodes, int node) {
    return slots[size_t(st->steps % count) * nodes + node];
}
