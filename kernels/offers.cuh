// What trees are built with: candidates on offer, the best of them, and nodes of a StepState.
//
// One warp builds; all its lanes call all of this, with the same arguments where nothing else is said.

#pragma once

#include "pairs.cuh"

// ---- The best offer -----------------------------------------------------------------------------------------------

constexpr u64 NOTHING = ~0ull;

// Doubles in falling order, as integers in rising order: below NOTHING.
__device__ __forceinline__ u64 falling(double x) {
    const u64 bits = u64(__double_as_longlong(0.0 - x));
    return bits >> 63 ? ~bits : bits | 1ull << 63;
}

__device__ __forceinline__ u32 least_of_warp(u32 v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(FULL_WARP, v);
#else
    return warp_min(v);
#endif
}

// The lanes of `among` with the least number.
__device__ __forceinline__ u32 lanes_of_least(u32 among, u64 number) {
    bool mine = among >> lane_id() & 1;
    const u32 high = mine ? u32(number >> 32) : ~0u, least_high = least_of_warp(high);
    among &= __ballot_sync(FULL_WARP, high == least_high);
    if (!(among & (among - 1))) return among;  // nearly always
    mine = among >> lane_id() & 1;
    const u32 low = mine ? u32(number) : ~0u, least_low = least_of_warp(low);
    return among & __ballot_sync(FULL_WARP, low == least_low);
}

// Offers in any order: the least key is the best, the least tie the best of equal keys. NOTHING is the key of an empty
// slot. `size` is the same in all lanes.
template <int ROOM> struct Offers {
    u64 key[ROOM], tie[ROOM];

    // The slot of the best offer, to every lane; -1 where there is none.
    __device__ __forceinline__ int best(int size) const {
        constexpr int AT_ONCE = 4;  // keys of a lane that are asked for together
        u64 least = NOTHING;
        int slot = -1;
        for (int first = lane_id(); first < size; first += AT_ONCE * WARP) {
            u64 own[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) own[i] = first + i * WARP < size ? key[first + i * WARP] : NOTHING;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int at = first + i * WARP;
                if (own[i] < least || (own[i] == least && own[i] != NOTHING && tie[at] < tie[slot])) {
                    least = own[i], slot = at;
                }
            }
        }
        u32 lanes = lanes_of_least(FULL_WARP, least);
        if (lanes & (lanes - 1)) lanes = lanes_of_least(lanes, slot < 0 ? NOTHING : tie[slot]);
        return __shfl_sync(FULL_WARP, slot, __ffs(int(lanes)) - 1);
    }
};

// ---- Candidates and nodes -----------------------------------------------------------------------------------------

// A candidate below some node: `slot` says which of its position's it is.
struct Choice {
    int token, slot;
    double log_prob;
};

// What is offered below a node: the same at all nodes of a depth, or its own, by its slot.
struct Choices {
    const int (*token)[MAX_WIDTH];  // of each depth
    const float (*log_prob)[MAX_WIDTH];
    const PairTable* given;

    __device__ __forceinline__ const Pairing& pairing(int depth, int rank, int above) const {
        return given->rows[(depth * PAIR_CANDIDATES + above) * MAX_WIDTH + rank];
    }
    __device__ __forceinline__ Choice at(int depth, int rank, int above) const {
        if (!given) return {token[depth][rank], 0, double(log_prob[depth][rank])};
        const Pairing& found = pairing(depth, rank, above);
        return {found.slot < 0 ? -1 : given->ids[depth * PAIR_CANDIDATES + found.slot], found.slot, found.log_prob};
    }
};

// Put a node into the tree; node 0 is the root. All lanes call; lanes 0..3 hold a word of the mask each.
template <class Nodes>
__device__ __forceinline__ void append(
    StepState* st, Nodes& b, int node, int token, int slot, int parent, int depth, double log_prob
) {
    const int lane = lane_id();
    if (lane < 4) {
        const u64 own = lane == node / 64 ? 1ull << node % 64 : 0;
        const u64 mask = own | (parent < 0 ? 0 : b.mask[parent][lane]);
        b.mask[node][lane] = mask;
        st->mask[node][lane] = mask;
    }
    if (lane == 0) {
        const double path = parent < 0 ? 0.0 : b.path[parent] + log_prob;
        b.path[node] = path;
        b.slot[node] = slot;
        st->token[node] = token;
        st->parent[node] = parent;
        st->depth[node] = depth;
        st->log_prob[node] = float(log_prob);
        st->path_log_prob[node] = float(path);
    }
    __syncwarp();
}

// Whether an answer ends with `token`; `stop_id`: a lane's own of the tokens that do.
__device__ __forceinline__ bool ends_answer(int stop_id, int token) {
    return __any_sync(FULL_WARP, token >= 0 && stop_id == token);
}
