// Candidates of a tree, and the search for the best offer. An offer is a token that may be added below a node.
//
// One warp builds a tree; all its lanes call these functions, with the same arguments unless stated otherwise.

#pragma once

#include "extremes.cuh"
#include "pairs.cuh"

// ---- The best offer -----------------------------------------------------------------------------------------------

constexpr u64 NOTHING = ~0ull;

// A key by which larger doubles come first in ascending integer order, always below NOTHING. `x` must not be -0, whose
// key would differ from that of 0.
__device__ __forceinline__ u64 falling(double x) {
    const u64 bits = u64(__double_as_longlong(x));
    return bits >> 63 ? bits : bits ^ ~0ull >> 1;
}

// The lanes of `among` that have the least `number`.
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
template <int CAPACITY> struct Offers {
    u64 key[CAPACITY], tie[CAPACITY];

    // The slot of the best offer, in every lane; -1 if there is none.
    __device__ __forceinline__ int best(int size) const {
        constexpr int AT_ONCE = 4;  // keys of a lane that are loaded together
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

// The best of some offers: the least key, and of equal ones the lowest slot. Key NOTHING: there is none.
struct __align__(16) Found {
    u64 key;
    int slot;
};
__device__ __forceinline__ Found better_of(const Found& a, const Found& b) {
    const bool second = (b.key < a.key) | ((b.key == a.key) & (b.slot < a.slot));
    return {second ? b.key : a.key, second ? b.slot : a.slot};
}

// Offers whose slots are never reused, so that of equal keys the lowest slot is the oldest. Call `clear` before use.
template <int CAPACITY> struct OffersInTurn {
    static constexpr int AT_ONCE = 4 * WARP;  // keys that are loaded together, without a check whether they exist
    u64 key[ceil_div(CAPACITY, AT_ONCE) * AT_ONCE];

    // All threads of the block call; a barrier must follow before the first offer.
    __device__ __forceinline__ void clear() {
        for (int slot = threadIdx.x; slot < ceil_div(CAPACITY, AT_ONCE) * AT_ONCE; slot += blockDim.x) key[slot] = NOTHING;
    }

    // The best of the first `size` slots, in every lane.
    __device__ __forceinline__ Found best(int size) const {
        Found least = least_of_lane(0);
#pragma unroll 1
        for (int from = AT_ONCE; from < size; from += AT_ONCE) least = sooner(least, least_of_lane(from));
        const u32 high = least_of_warp(u32(least.key >> 32));
        const u32 low = least_of_warp(u32(least.key >> 32) == high ? u32(least.key) : ~0u);
        const u64 key = u64(high) << 32 | low;
        return {key, int(least_of_warp(least.key == key ? u32(least.slot) : ~0u))};
    }

private:
    // The better of two, given that `a` has the lower slot.
    __device__ __forceinline__ static Found sooner(const Found& a, const Found& b) {
        const bool second = b.key < a.key;
        return {second ? b.key : a.key, second ? b.slot : a.slot};
    }
    __device__ __forceinline__ Found least_of_lane(int from) const {
        const int first = from + lane_id();
        Found own[4];
#pragma unroll
        for (int i = 0; i < 4; i++) own[i] = {key[first + i * WARP], first + i * WARP};
        return sooner(sooner(own[0], own[1]), sooner(own[2], own[3]));
    }
};

// ---- Candidates ---------------------------------------------------------------------------------------------------

// A candidate below some node: `slot` is its number among its position's candidates.
struct Choice {
    int token, slot;
    double log_prob;
};

// The candidates below a node: the same for all nodes of a depth or, with `given`, the node's own, found by its slot.
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

// Whether an answer ends with `token`. `stop_id`: each lane has one of the stop tokens.
__device__ __forceinline__ bool ends_answer(int stop_id, int token) {
    return __any_sync(FULL_WARP, token >= 0 && stop_id == token);
}
