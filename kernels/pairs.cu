// Scores of a draft block's candidates given the token above them, for all positions at once. A pair's score is a sum
// over RANK products of three numbers: of the token above, of the position's hidden and of the candidate. Divided by
// the tree's temperature, it is added to the candidate's log-probability. The candidates' total probability stays as it
// was.
//
// Bound by latency: a few kilobytes of each codebook.
//
// Defines: ABOVE and BELOW, types of the codebooks as gguf.cuh spells them; RANK; SPLIT_K, partials of the hidden's
// projection.

#include "pairing.cuh"
#include "partials.cuh"

// Grid (depths, parents), a warp per candidate. hidden f32 [SPLIT_K][rows][stride], row first_row + d is depth d's;
// marginal f32 [depths][PAIR_CANDIDATES].
extern "C" __global__ void __launch_bounds__(PAIR_THREADS) pair_scores(
    const StepState* st, const int* ids, const float* marginal, const float* hidden, int rows, int stride, int first_row,
    const u8* above, const u8* below, Pairing* out
) {
    __shared__ float gate[RANK], scores[PAIR_CANDIDATES];
    pdl_launch();
    pdl_wait();
    const int depth = blockIdx.x, parent = blockIdx.y, mine = warp_id();
    if (st->stop || depth >= st->draft_depth || (depth == 0 && parent > 0)) return;
    const int token = depth ? ids[(depth - 1) * PAIR_CANDIDATES + parent] : st->root;
    if (token < 0) return;
    for (int at = threadIdx.x; at < RANK; at += PAIR_THREADS) {
        gate[at] = row_value<ABOVE, RANK>(above, token, at) * partials_sum<SPLIT_K>(hidden, rows, stride, first_row + depth, at);
    }
    __syncthreads();
    const int* const candidates = ids + depth * PAIR_CANDIDATES;
    marginal += depth * PAIR_CANDIDATES;
    if (candidates[mine] >= 0) {
        const float pair = gated<BELOW, RANK>(gate, below, candidates[mine]);
        if (lane_id() == 0) scores[mine] = marginal[mine] + pair * st->inv_tree_temperature + noise_of(st, depth, candidates[mine]);
    } else if (lane_id() == 0) {
        scores[mine] = -INFINITE;
    }
    __syncthreads();
    if (mine > 0) return;
    Paired(scores, marginal, candidates).store(out + (depth * PAIR_CANDIDATES + parent) * MAX_WIDTH);
}
