// A sequence's own text as drafts: what followed the same run of tokens before (drafters/ngram_table.py is the twin, and
// writes what is read here between steps).
//
// `last`, indexed by a run's length minus one and its hash, has the place of the run's last token in the text, -1 for
// none. Runs of equal hash share a slot, and the text lacks steps that are still queued. So a place is verified against
// the text: a proposed token has certainly followed the run. A look-up is two dependent loads, however long the text.
// In successor_of one thread does the whole look-up; if it finds a place it loads a few more tokens, which are next to
// those that it has loaded.

#pragma once

#include "common.cuh"

constexpr int LONGEST = 12;  // tokens of a match that are compared, at most
constexpr int RUNS = 3, SLOT_BITS = 16;
constexpr u32 MULTIPLIER = 0x9E3779B1u;
constexpr int COPIED_CLASS = 11;  // the first class of matches, COPIED of policy/values.py
constexpr int MATCH_CLASSES = 5;
constexpr double MIN_COPIED = 1e-3, MIN_LOG = -6.907755278982137, MIN_ODDS = -6.906754778648554;

struct TextView {
    const int* last;    // [RUNS][1 << SLOT_BITS]
    const int* tokens;  // stored right after `last`
};

// A token that followed the same run; `match` is its class, -1 where none did.
struct Successor {
    int token, match;
};

// Whether the lowest `ones` bits are all set.
__device__ __forceinline__ bool begins(u32 bits, int ones) { return (~bits & ((1u << ones) - 1)) == 0; }

// The class of a match of `match` tokens.
__device__ __forceinline__ int class_of(int match) { return match < 3 ? match - 1 : match < 5 ? 2 : match < 9 ? 3 : 4; }

// What follows `size` tokens of which tail(0) is the newest. One thread does a whole look-up.
template <class Tail> __device__ __forceinline__ Successor successor_of(const TextView& text, const Tail& tail, int size) {
    int place[RUNS], token_there[RUNS];
    u32 hash = 0;
#pragma unroll
    for (int run = 0; run < RUNS; ++run) {
        hash = (hash + u32(tail(run))) * MULTIPLIER;
        place[run] = run < size ? text.last[run << SLOT_BITS | hash >> (32 - SLOT_BITS)] : -1;
    }
#pragma unroll
    for (int run = 0; run < RUNS; ++run) token_there[run] = place[run] < 0 ? -1 : text.tokens[place[run]];
#pragma unroll
    for (int run = RUNS - 1; run >= 0; --run) {
        if (token_there[run] < 0 || token_there[run] != tail(0)) continue;
        const int at = place[run], longest = min(min(size, LONGEST), at + 1);
        int match = 1;
        while (match < longest && text.tokens[at - match] == tail(match)) ++match;
        if (match > run) return {text.tokens[at + 1], class_of(match)};
    }
    return {0, -1};
}

// A look-up by a warp, in two parts: the last load is in flight between them. Each run has some lanes: one for what
// followed it, and one for each token that the class of its match depends on, the newest first.
constexpr int FOLLOWED = 9, RUN_LANES = FOLLOWED + 1;
static_assert(RUNS * RUN_LANES <= WARP && FOLLOWED <= LONGEST, "lanes of a look-up");

struct LookUp {
    int place, token_there;  // the place of the lane's run, and the token that the lane loaded near it
    bool counts;      // whether that token is compared

    // Whether there is anything to verify; the same in all lanes.
    __device__ __forceinline__ bool promising() const { return __any_sync(FULL_WARP, place >= 0); }
};

// How far before the token that followed the run a lane's token is: 0 is that token, and those from 1 on are compared.
__device__ __forceinline__ int lane_back() { return lane_id() % RUN_LANES; }

// `newest`: the tail's first RUNS tokens.
__device__ __forceinline__ LookUp look_up(const TextView& text, const int (&newest)[RUNS], int size) {
    const int mine = lane_id() / RUN_LANES, back = lane_back();
    u32 hash = 0, at = 0;
#pragma unroll
    for (int run = 0; run < RUNS; ++run) {
        hash = (hash + u32(newest[run])) * MULTIPLIER;
        if (run <= mine) at = run << SLOT_BITS | hash >> (32 - SLOT_BITS);
    }
    LookUp it;
    it.place = text.last[at];
    if (mine >= size) it.place = -1;
    const bool there = mine < RUNS && it.place >= 0 && back <= min(size, it.place + 1);
    it.token_there = text.tokens[there ? it.place + 1 - back : 0];
    it.counts = there && back > 0;
    return it;
}

// The result, in every lane. `own`: the token at the end of the sequence that the lane compares.
__device__ __forceinline__ Successor verified(const LookUp& it, int own) {
    const u32 same = __ballot_sync(FULL_WARP, it.counts & (it.token_there == own));
    u32 equal = 0;  // from bit 0 on, tokens backwards that are the same
    int from = 0;
#pragma unroll
    for (int run = 0; run < RUNS; ++run) {
        const u32 these = same >> (run * RUN_LANES + 1) & ((1u << FOLLOWED) - 1);
        if (begins(these, run + 1)) equal = these, from = run * RUN_LANES;
    }
    const int match = begins(equal, 2) + begins(equal, 3) + begins(equal, 5) + begins(equal, 9);  // as class_of
    return {__shfl_sync(FULL_WARP, it.token_there, from), equal ? match : -1};
}

// Prefetch the table and the text of `ints` numbers into the L2, from which a step's weights have evicted them. All
// threads of a block call.
__device__ __forceinline__ void prefetch_text(const int* last, int ints) {
    constexpr int PIECE = 1024;
    for (int at = threadIdx.x * PIECE; at < ints; at += blockDim.x * PIECE) bulk_prefetch(last + at, 4 * min(PIECE, ints - at));
}
