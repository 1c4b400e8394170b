// Turns scores of candidates below one token into rows of the table of pairs.cuh. All heads that give scores share it.
//
// A thread block is a token of the position before, a warp of it a candidate.

#pragma once

#include "draft_noise.cuh"
#include "gguf.cuh"
#include "pairs.cuh"

constexpr int PAIR_THREADS = WARP * PAIR_CANDIDATES;
constexpr double SMALLEST = 1e-4;  // policy/values.py

// `gate` [LENGTH] times row `row` of a codebook, to every lane of the calling warp.
template <class Format, int LENGTH> __device__ __forceinline__ float gated(const float* gate, const u8* codebook, int row) {
    float sum = 0.0f;
    for (int at = lane_id(); at < LENGTH; at += WARP) sum += gate[at] * row_value<Format, LENGTH>(codebook, row, at);
    return warp_sum(sum);
}

// A candidate below a token, one per lane of a warp; lanes from PAIR_CANDIDATES on have none.
struct Paired {
    int slot, rank;
    bool there;
    float log_prob;

    // Candidate `lane` has token ids[lane], -1 for none, and the log-probability marginal[lane] where the token above
    // is not known. The candidates' total probability stays that of `marginal`. Ties go to the lower id.
    __device__ __forceinline__ Paired(const float* scores, const float* marginal, const int* ids) : slot(lane_id()), rank(0) {
        const bool real = slot < PAIR_CANDIDATES;
        const float score = real ? scores[slot] : -INFINITE, base = real ? marginal[slot] : -INFINITE;
        const int id = real ? ids[slot] : -1;
        log_prob = score - log_sum(score) + log_sum(id < 0 ? -INFINITE : base);
        for (int other = 0; other < PAIR_CANDIDATES; ++other) {
            const float its = __shfl_sync(FULL_WARP, score, other);
            const int its_id = __shfl_sync(FULL_WARP, id, other);
            rank += its > score || (its == score && (its_id < id || (its_id == id && other < slot)));
        }
        there = real && id >= 0 && score > -INFINITE;
    }

    __device__ __forceinline__ void store(Pairing* best) const {
        if (slot >= PAIR_CANDIDATES || rank >= MAX_WIDTH) return;
        const double p = exp(double(log_prob)), clamped = fmin(fmax(p, SMALLEST), 1 - SMALLEST);
        best[rank] = {log_prob, float(p), float(log(clamped / (1 - clamped))), there ? slot : -1};
    }
};
