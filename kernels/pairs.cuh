// How likely the candidates of a draft position are below each candidate of the position before, where a drafter scores a
// token by the one above it. A position has PAIR_CANDIDATES of them; below each parent the best MAX_WIDTH count.

#pragma once

#include "state.cuh"

constexpr int PAIR_CANDIDATES = 16;

// One candidate below one parent. `slot`: which candidate of its position it is, -1 where there is none. `odds`: the log of
// p / (1 - p), p clipped as in policy/values.py.
struct Pairing {
    float log_prob, p, odds;
    int slot;
};

// ids [depths][PAIR_CANDIDATES], -1 where there is none; rows [depths][parents][MAX_WIDTH], best first. The parent's number
// is its slot at the depth before; that of the root is 0.
struct PairTable {
    const int* ids;
    const Pairing* rows;
};
