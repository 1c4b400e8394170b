// How a row of logits becomes a draw, and what the kernels of a draw hand on to each other.
//
// Three ways, by the knobs alone:
//   LISTED  no more than MOST_LISTED tokens can be drawn: they lie in the blocks of 16 rows with the largest maxima (the
//           head leaves these, logits.cu), so `sample` reads little else.
//   FRONT   all tokens, or a beginning of the order of value (higher first, of equals the lower id) that top_k, top_p or
//           min_p cut off. Whatever they cut, the token that is drawn has no token before it with a higher score: it is on
//           the row's *front*, a dozen of a quarter million tokens. draw_parts finds the front of each part of the
//           vocabulary, draw_weights that of the row, and how many tokens and how much weight lie before each of it.
//   WHOLE   `sample` looks at the whole row, as often as it takes: a large top_k with top_p. Also where a list or a front
//           is too long, or rounding leaves open what is drawn. It knows no rounding: what the others say is what it says.

#pragma once

#include "philox.cuh"
#include "state.cuh"

constexpr int DRAW_THREADS = 256;  // of draw_parts and draw_weights
constexpr int DRAW_PART = 4096;    // tokens of a part
constexpr int PER_THREAD = DRAW_PART / DRAW_THREADS;
constexpr int FRONT_OF_PART = 32;   // tokens on the front of a part, at most
constexpr int FRONT_OF_ROW = 64;    // and of a row, penalised tokens included
constexpr int MOST_LISTED = 512;

// The front of a part. `count` is more than FRONT_OF_PART where that is too little.
struct alignas(16) PartFront {
    int count;
    int broken;  // one of its logits is infinite or not a number
    float best;  // the largest logit
    int unused;
    float value[FRONT_OF_PART];
    int id[FRONT_OF_PART];
};

// The front of a row. `count` is negative where it is too long, or a logit broken.
enum : int { TOO_LONG = -1, BROKEN_ROW = -2 };
struct alignas(16) RowFront {
    double value[FRONT_OF_ROW];  // exact: penalised tokens among them
    int id[FRONT_OF_ROW];
    int count;
    float reference;          // weights are exp((logit - reference) / temperature)
    int unused[2];
};

// What of a part lies before each token of the row's front, penalised tokens left out.
struct alignas(16) PartBefore {
    int count[FRONT_OF_ROW];
    float weight[FRONT_OF_ROW];
    float total;  // weight of the whole part
    float unused[3];
};

enum class Way { LISTED, FRONT, WHOLE };

// top_k as it counts: 1 without a temperature, 0 where it cuts nothing off.
__device__ __forceinline__ int kept_tokens(const StepState* st, int vocab) {
    return st->temperature > 0 ? (st->top_k < vocab ? st->top_k : 0) : 1;
}
__device__ __forceinline__ Way way_of(const StepState* st, int vocab) {
    const int kept = kept_tokens(st, vocab);
    if (kept > 0) return kept <= MOST_LISTED ? Way::LISTED : st->top_p < 1 ? Way::WHOLE : Way::FRONT;
    return Way::FRONT;
}
// The position that the token after `node` would have.
__device__ __forceinline__ u64 drawn_position(const StepState* st, int node) {
    return u64(st->length) + u64(st->depth[node]) + 1;
}

// A score in float: value / temperature + noise. It is off by less than `slack`.
constexpr float LARGEST_RATIO = 1e6f;  // of value and temperature: beyond, floats say too little
__device__ __forceinline__ float slack(float ratio) { return 5e-4f + 1e-6f * fabsf(ratio); }
