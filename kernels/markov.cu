// The Markov head of DSpark: a bias over the draft vocabulary that depends on the previous token, w2 times that token's
// row of w1, and the confidence head next to it.
//
//   markov_bias    once per position, in order: candidates.cu chooses from its output the token before the next
//                  position
//   markov_scores  once: all candidates below all those of the previous position, as pairs.cu does for a selector
//
// markov_bias reads all of w2, so it is bound by memory; markov_scores by latency. Shares of bandwidth: not measured
// yet.
//
// Defines: ABOVE and BELOW, types of w1 and w2 as gguf.cuh spells them; RANK. For markov_scores WIDTH, the hidden size,
// and CONFIDENCE, inputs of the confidence head: WIDTH, WIDTH + RANK, or 0 where there is none.

#include "pairing.cuh"

constexpr int BIAS_WARPS = 8, BLOCK = 16, EACH = ceil_div(RANK, WARP);

// The factor of a token's row of w1: `scale` is null where the file has none.
__device__ __forceinline__ float factor(const float* scale) { return scale ? *scale : 1.0f; }

// The scores `logits` of draft position `position` with the bias, as head_logits leaves logits: `biased` [vocab], and
// the maximum of every 16 of them. path[p] is the best token of position p. Grid: ceil(vocab / 128), a warp per 16
// tokens.
extern "C" __global__ void __launch_bounds__(WARP* BIAS_WARPS) markov_bias(
    const StepState* st, const float* logits, const u8* above, const u8* below, const float* scale, const int* path,
    int vocab, int position, float* biased, float* maxima
) {
    pdl_launch();
    pdl_wait();
    const int lane = lane_id(), block = blockIdx.x * BIAS_WARPS + warp_id();
    if (st->stop || position >= st->draft_depth || !st->by_parent || block * BLOCK >= vocab) return;
    const int token = position ? path[position - 1] : st->root;
    float gate[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int at = lane + i * WARP;
        gate[i] = at < RANK && token >= 0 ? row_value<ABOVE, RANK>(above, token, at) * factor(scale) : 0.0f;
    }
    float mine = 0.0f;
#pragma unroll 4
    for (int row = 0; row < BLOCK; ++row) {
        const int id = min(block * BLOCK + row, vocab - 1);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = lane + i * WARP;
            if (at < RANK) sum += gate[i] * row_value<BELOW, RANK>(below, id, at);
        }
        sum = warp_sum(sum);
        if (lane == row) mine = sum;
    }
    const int id = block * BLOCK + lane;
    const bool live = lane < BLOCK && id < vocab;
    const float value = live ? logits[id] + mine : -INFINITE;
    if (live) biased[id] = value;
    const float most = warp_max(value == value ? value : INFINITE);
    if (lane == 0) maxima[block] = most;
}

// As pair_scores of pairs.cu. rows [depths][PAIR_CANDIDATES] is w2's row of each candidate; normed f32 [depths][WIDTH]
// the positions' final normed hiddens; confidence [CONFIDENCE] and offset (null for none) are the confidence head.
// Where there is one, the best candidate below a token gets the probability that this head computes. The others'
// probabilities are scaled to the rest, but by no larger factor than the best one's, so that it stays the best.
extern "C" __global__ void __launch_bounds__(PAIR_THREADS) markov_scores(
    const StepState* st, const int* ids, const int* rows, const float* marginal, const float* scale, const float* normed,
    const float* confidence, const float* offset, const u8* above, const u8* below, Pairing* out
) {
    __shared__ float gate[RANK], scores[PAIR_CANDIDATES], scratch[PAIR_CANDIDATES];
    pdl_launch();
    pdl_wait();
    const int depth = blockIdx.x, parent = blockIdx.y, mine = warp_id();
    if (st->stop || depth >= st->draft_depth || !st->by_parent || (depth == 0 && parent > 0)) return;
    const int token = depth ? ids[(depth - 1) * PAIR_CANDIDATES + parent] : st->root;
    if (token < 0) return;
    float logit = 0.0f;
    for (int at = threadIdx.x; at < RANK; at += PAIR_THREADS) {
        const float number = row_value<ABOVE, RANK>(above, token, at);
        gate[at] = number * factor(scale);
        if (CONFIDENCE > WIDTH) logit += number * confidence[WIDTH + at];
    }
    for (int k = threadIdx.x; CONFIDENCE && k < WIDTH; k += PAIR_THREADS) {
        logit += normed[u64(depth) * WIDTH + k] * confidence[k];
    }
    logit = block_sum<PAIR_THREADS>(logit, scratch);
    const int* const candidates = ids + depth * PAIR_CANDIDATES;
    marginal += depth * PAIR_CANDIDATES;
    if (candidates[mine] >= 0) {
        const float pair = gated<BELOW, RANK>(gate, below, rows[depth * PAIR_CANDIDATES + mine]);
        if (lane_id() == 0) scores[mine] = marginal[mine] + pair * st->inv_tree_temperature + noise_of(st, depth, candidates[mine]);
    } else if (lane_id() == 0) {
        scores[mine] = -INFINITE;
    }
    __syncthreads();
    if (mine > 0) return;
    Paired paired(scores, marginal, candidates);
    if (CONFIDENCE) {
        const double accepted = 1 / (1 + exp(-double(logit + (offset ? *offset : 0.0f))));
        const double p = paired.there ? exp(double(paired.log_prob)) : 0.0, best = warp_max(p);
        const double rest = 1 - best, share = rest > 0 ? (1 - accepted) / rest : 0.0;
        const double adjusted = paired.rank == 0 ? accepted : p * fmin(share, accepted / best);
        paired.log_prob = float(log(adjusted));
        paired.there = paired.there && adjusted > 0;
    }
    paired.store(out + (depth * PAIR_CANDIDATES + parent) * MAX_WIDTH);
}
