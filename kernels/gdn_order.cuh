// The order in which a pass of the gated delta net visits a tree: gdn_order writes it and gdn_recurrence follows it.
//
// Depth first. A node's childless children come first: they need its state but do not change it. Then come the others,
// by increasing number of nodes below them. A state is saved only where another child with children follows, so no more
// than log2(nodes) states are kept at a time, each in its `level`.

#pragma once

#include "state.cuh"

struct Visit {
    // LEAF: its output, from the current state. INNER: also its state. REPLAY: a node of an earlier pass;
    // its state alone.
    enum Kind { LEAF = 0, INNER = 1, REPLAY = 2 };
    static constexpr int NO_LEVEL = 255;

    int node, load, keep, kind;  // `load`: the level to load the state from first; `keep`: where it is saved at the end

    __device__ __forceinline__ static Visit of(u32 bits) {
        return {int(bits & 255), int(bits >> 8 & 255), int(bits >> 16 & 255), int(bits >> 24)};
    }
    __device__ __forceinline__ u32 bits() const {
        return u32(node) | u32(load) << 8 | u32(keep) << 16 | u32(kind) << 24;
    }
};
static_assert(MAX_NODES <= 256, "a node is 8 bits");

constexpr int ORDER_INTS = 1 + MAX_NODES;  // the number of visits, then the visits
