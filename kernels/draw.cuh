// How a token is drawn from a row of logits, and what the kernels of a draw pass to each other.
//
// Three methods; only the knobs decide which one is tried:
//   LISTED  greedy, or top_k up to MAX_LISTED: all tokens that can be drawn are in the blocks of 16 tokens with the
//           largest maxima (the head writes these, logits.cu), so draw_list reads little else.
//   FRONT   all tokens, or the first ones in order of value (higher first; of equal values, lower id first) that top_k,
//           top_p or min_p keep. Wherever these cut, no token before the drawn one in that order has a higher score. The
//           tokens of which this is true are the row's *front*: about a dozen of a quarter million. draw_list lists the
//           first tokens of the order, draw_scan adds all others that score higher than all of these, draw_front
//           computes the front of both, and draw_weights sums the number or the weight of the tokens before each token
//           of the front.
//   WHOLE   `sample` reads the whole row, as often as necessary: a large top_k with top_p. Also where a list or a front
//           is too long, or rounding leaves the draw undecided. Its comparisons are exact. The other methods give the same
//           draw, or fall back to this one.

#pragma once

#include "philox.cuh"
#include "state.cuh"

constexpr int DRAW_PART = 4096;    // tokens per thread block of draw_scan and draw_weights
constexpr int MAX_LISTED = 512;   // top_k up to which tokens are LISTED
constexpr int LIST = 2048;         // tokens of a list, at most; draw_scan adds at most as many again
// Most blocks of 16 tokens whose maxima decide where the list of FRONT ends. What draw_scan adds to N tokens of a flat row of
// 248,320 is distributed exponentially with a mean of 248,320 / N: with 256 blocks every ninth row would be TOO_LONG.
constexpr int ANCHORS = 1024;
constexpr int FRONT_OF_ROW = 64;   // tokens of a front, at most

// Stored in place of a count. TOO_LONG: too many tokens; BROKEN_ROW: the row's largest logit is infinite, or one is NaN.
enum : int { TOO_LONG = -1, BROKEN_ROW = -2 };

// What draw_list and draw_scan find in a row. During the scan, logits of penalised tokens are -inf.
struct alignas(16) RowTokens {
    double penalised_value[HISTORY];  // by entry of the window of penalties
    int penalised[HISTORY];           // ids, or -1 for a repeat of another entry
    float logit[HISTORY];             // unpenalised
    float value[LIST];
    int id[LIST];
    float added_value[LIST];
    int added_id[LIST];
    int window;                       // entries of penalised tokens
    int count;                        // listed
    int added;                        // tokens that draw_scan found; those beyond LIST are not stored
    float best;                       // the largest logit of the list; weights are exp((logit - best) / temperature)
    float enough;                     // the highest score of the list is certainly at least this
    int unused[3];
};

// A row's front: see FRONT.
struct alignas(16) RowFront {
    double value[FRONT_OF_ROW];  // exact, penalised tokens included
    int id[FRONT_OF_ROW];
    int count;
    int unused[3];
};

// Of the tokens of one part (DRAW_PART tokens) that precede each token of the row's front, not counting penalised tokens:
// with top_p their weight, else their number.
struct alignas(16) PartBefore {
    int count[FRONT_OF_ROW];
    float weight[FRONT_OF_ROW];
    float total;  // weight of the whole part
    float unused[3];
};

enum class Method { LISTED, FRONT, WHOLE };

// The effective top_k: 1 without a temperature, 0 where it cuts nothing off.
__device__ __forceinline__ int drawn_among(const StepState* st, int vocab) {
    return st->temperature > 0 ? (st->top_k < vocab ? st->top_k : 0) : 1;
}
__device__ __forceinline__ Method method_of(const StepState* st, int vocab) {
    const int kept = drawn_among(st, vocab);
    if (kept > 0) return kept <= MAX_LISTED ? Method::LISTED : st->top_p < 1 ? Method::WHOLE : Method::FRONT;
    return Method::FRONT;
}
__device__ __forceinline__ bool by_count(const StepState* st, int vocab) { return drawn_among(st, vocab) > 0; }
__device__ __forceinline__ bool by_weight(const StepState* st) { return st->top_p < 1; }
// The position that the token after `node` would have.
__device__ __forceinline__ u64 drawn_position(const StepState* st, int node) {
    return u64(st->length) + u64(st->depth[node]) + 1;
}

// A score in f32, value / temperature + noise, differs from the exact one by less than `slack`.
constexpr float LARGEST_RATIO = 1e6f;  // of value and temperature: beyond it, f32 is too imprecise
__device__ __forceinline__ float slack(float ratio) { return 5e-4f + 1e-6f * fabsf(ratio); }

constexpr int BINS = 2048;

// The sum of `mine` over the lanes up to this one.
template <class T> __device__ __forceinline__ T sum_up_to(T mine) {
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
        const T below = __shfl_up_sync(FULL_WARP, mine, offset);
        if (lane_id() >= offset) mine += below;
    }
    return mine;
}

// The sum of `mine` over the block's threads before this one; `total`: over all threads. `scratch`: scratch space, one
// value per warp.
template <int BLOCK, class T> __device__ __forceinline__ T block_sum_before(T mine, T& total, T* scratch) {
    const T upto = sum_up_to(mine);
    if (lane_id() == WARP - 1) scratch[warp_id()] = upto;
    __syncthreads();
    T before = upto - mine;
    total = 0;
    for (int warp = 0; warp < BLOCK / WARP; ++warp) {
        if (warp < warp_id()) before += scratch[warp];
        total += scratch[warp];
    }
    __syncthreads();
    return before;
}
