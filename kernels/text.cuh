// A sequence's own text as drafts: what followed the same run of tokens before (drafters/text_table.py is the twin, and
// writes what is read here between steps).
//
// `last` has by the length of a run less one and its hash the place of its last token, -1 for none. Slots are shared, and
// the text lacks the steps that are queued: so a place is verified against the text, and what is proposed has
// followed the run for sure. A look-up is three loads one after the other where the longest run is found, five where all
// three have to be looked at, whatever the length of the text.

#pragma once

#include "common.cuh"

constexpr int LONGEST = 12;  // tokens that a match is followed backwards
constexpr int RUNS = 3, SLOT_BITS = 16;
constexpr u32 MULTIPLIER = 0x9E3779B1u;
constexpr int MATCH_CLASSES = 5;
constexpr double LEAST_COPIED = 1e-3;

// backends/cuda/device_text.py mirrors it.
struct TextHead {
    float weights[MATCH_CLASSES][5];  // of successors, by the class of the match: policy/values.py
};

struct TextView {
    const TextHead* head;
    const int* tokens;
    const int* last;  // [RUNS][1 << SLOT_BITS]
};

// A token that followed the same run; `match` is its class, -1 where none did.
struct Successor {
    int token, match;
};

// What follows `tail`, the newest token first, of `size` tokens. All lanes call with the same arguments and get the same.
__device__ __forceinline__ Successor successor_of(const TextView& text, const int* tail, int size) {
    const int lane = lane_id();
    u32 hash = 0;
    int place = -1;
    for (int back = 0; back < RUNS; ++back) {
        hash = (hash + u32(tail[back])) * MULTIPLIER;
        if (lane == back && back < size) place = text.last[back << SLOT_BITS | hash >> (32 - SLOT_BITS)];
    }
    int match = 0;
#pragma unroll
    for (int run = RUNS - 1; run >= 0; --run) {
        const int at = __shfl_sync(FULL_WARP, place, run), longest = min(min(size, LONGEST), at + 1);
        const bool same = lane < longest && text.tokens[at - lane] == tail[lane];
        const u32 differ = ~__ballot_sync(FULL_WARP, same);
        match = differ ? __ffs(int(differ)) - 1 : WARP;
        if (match > run) {
            const int kind = match < 3 ? match - 1 : match < 5 ? 2 : match < 9 ? 3 : 4;
            return {text.tokens[at + 1], kind};
        }
    }
    return {0, -1};
}
