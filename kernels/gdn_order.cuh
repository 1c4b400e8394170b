// The order in which a pass of the gated delta net visits a tree: gdn_order writes it and gdn_recurrence follows it.
//
// Depth first. A node's childless children come first: they need its state but do not change it. Then come the others,
// by increasing number of nodes below them. A state is saved only where another child with children follows, so no more
// than log2(nodes) states are kept at a time, each in its `level`.

#pragma once

#include "state.cuh"

// A visit, in one word. Bits 0 to 7: the node. 8 to 11: the level to load the state from first; 12 to 15: the level
// where it is saved at the end; NONE where there is none. 16 to 17: the kind. 18: AGAIN, the next visit is of the same
// kind and follows without a level in between. 19: LAST. 24 up: the row of the pass, any where it is replayed.
struct Turn {
    // LEAF: its output, from the current state. INNER: also its state. REPLAY: only the state of
    // a node of an earlier pass.
    enum Kind { LEAF = 0, INNER = 1, REPLAY = 2 };
    static constexpr u32 NONE = 15, AGAIN = 1 << 18, LAST = 1 << 19;
    u32 bits;

    __device__ __forceinline__ static Turn of(int node, u32 load, u32 keep, Kind kind, int row) {
        return {u32(node) | load << 8 | keep << 12 | u32(kind) << 16 | u32(row) << 24};
    }
    // The same with the bits that depend on the visit that follows.
    __device__ __forceinline__ Turn before(Turn next) const {
        const bool again = kind() != REPLAY && next.kind() == kind() && next.load() == NONE && keep() == NONE;
        return {bits | (again ? AGAIN : 0)};
    }
    __device__ __forceinline__ int node() const { return bits & 255; }
    __device__ __forceinline__ int row() const { return bits >> 24; }
    __device__ __forceinline__ u32 load() const { return bits >> 8 & 15; }
    __device__ __forceinline__ u32 keep() const { return bits >> 12 & 15; }
    __device__ __forceinline__ int kind() const { return bits >> 16 & 3; }
};
static_assert(MAX_NODES <= 256, "a node, and a row, are 8 bits");

constexpr int AHEAD = 2;  // turns that are read before it is known that they exist; those after the last are zero
constexpr int ORDER_INTS = MAX_NODES + AHEAD;
