// A sequence's own text as drafts: what followed the same run of tokens before (drafters/text_table.py is the twin, and
// writes what is read here between steps).
//
// `last` has by the length of a run less one and its hash the place of its last token, -1 for none. Slots are shared, and
// the text lacks the steps that are queued: so a place is verified against the text, and what is proposed has
// followed the run for sure. A look-up is two loads one after the other, and a few more of the same line where
// something is found, however long the text.

#pragma once

#include "common.cuh"

constexpr int LONGEST = 12;  // tokens that a match is followed backwards
constexpr int RUNS = 3, SLOT_BITS = 16;
constexpr u32 MULTIPLIER = 0x9E3779B1u;
constexpr int COPIED_CLASS = 11;  // of policy/values.py, where the classes of matches begin
constexpr double LEAST_COPIED = 1e-3, LEAST_LOG = -6.907755278982137, LEAST_ODDS = -6.906754778648554;

struct TextView {
    const int* last;    // [RUNS][1 << SLOT_BITS]
    const int* tokens;  // right behind it
};

// A token that followed the same run; `match` is its class, -1 where none did.
struct Successor {
    int token, match;
};

// What follows `size` tokens of which tail(0) is the newest. A thread looks up by itself.
template <class Tail> __device__ __forceinline__ Successor successor_of(const TextView& text, const Tail& tail, int size) {
    int place[RUNS], said[RUNS];
    u32 hash = 0;
#pragma unroll
    for (int run = 0; run < RUNS; ++run) {
        hash = (hash + u32(tail(run))) * MULTIPLIER;
        place[run] = run < size ? text.last[run << SLOT_BITS | hash >> (32 - SLOT_BITS)] : -1;
    }
#pragma unroll
    for (int run = 0; run < RUNS; ++run) said[run] = place[run] < 0 ? -1 : text.tokens[place[run]];
#pragma unroll
    for (int run = RUNS - 1; run >= 0; --run) {
        if (said[run] < 0 || said[run] != tail(0)) continue;
        const int at = place[run], longest = min(min(size, LONGEST), at + 1);
        int match = 1;
        while (match < longest && text.tokens[at - match] == tail(match)) ++match;
        if (match > run) return {text.tokens[at + 1], match < 3 ? match - 1 : match < 5 ? 2 : match < 9 ? 3 : 4};
    }
    return {0, -1};
}

// Bring the table and the text of `ints` numbers into the L2, which the weights of a step have emptied. All threads of a
// block call.
__device__ __forceinline__ void come_closer(const int* last, int ints) {
    constexpr int PIECE = 1024;
    for (int at = threadIdx.x * PIECE; at < ints; at += blockDim.x * PIECE) bulk_prefetch(last + at, 4 * min(PIECE, ints - at));
}
