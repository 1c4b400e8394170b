// Scores of a draft block's candidates by the token above them, all at once: the product of three rows of RANK numbers, the
// token above, the position's own hidden and the candidate, is added to the candidate's log-probability. What all candidates
// of a position have together stays what the marginal gives them.
//
// Bound by latency: a few kilobytes of each codebook.
//
// Defines: ABOVE and BELOW, types of the codebooks as gguf.cuh spells them; RANK; SPLIT_K, partials of the hidden's
// projection.

#include "gguf.cuh"
#include "pairs.cuh"
#include "partials.cuh"

constexpr double SMALLEST = 1e-4;  // policy/values.py

template <class Format> __device__ __forceinline__ float number(const u8* codebook, int token, int at) {
    constexpr u64 ROW_BYTES = (u64)RANK / Format::BLOCK * Format::SIZE;
    return Format::value(codebook + token * ROW_BYTES + (u64)(at / Format::BLOCK) * Format::SIZE, at % Format::BLOCK);
}

// The log of the sum of exponentials of the first PAIR_CANDIDATES lanes' values.
__device__ __forceinline__ float log_sum(float value) {
    const float most = warp_max(value);
    return most + logf(warp_sum(value > -INFINITE ? expf(value - most) : 0.0f));
}

// Grid (depths, parents), a warp per candidate. hidden f32 [SPLIT_K][rows][stride], row first_row + d is depth d's; marginal
// f32 [depths][PAIR_CANDIDATES].
extern "C" __global__ void __launch_bounds__(WARP* PAIR_CANDIDATES) pair_scores(
    const StepState* st, const int* ids, const float* marginal, const float* hidden, int rows, int stride, int first_row,
    const u8* above, const u8* below, Pairing* out
) {
    __shared__ float gate[RANK], scores[PAIR_CANDIDATES];
    pdl_launch();
    pdl_wait();
    const int depth = blockIdx.x, parent = blockIdx.y, mine = warp_id(), lane = lane_id();
    if (st->stop || depth >= st->draft_depth || (depth == 0 && parent > 0)) return;
    const int token = depth ? ids[(depth - 1) * PAIR_CANDIDATES + parent] : st->root;
    if (token < 0) return;
    for (int at = threadIdx.x; at < RANK; at += WARP * PAIR_CANDIDATES) {
        gate[at] = number<ABOVE>(above, token, at) * partials_sum<SPLIT_K>(hidden, rows, stride, first_row + depth, at);
    }
    __syncthreads();
    const int candidate = ids[depth * PAIR_CANDIDATES + mine];
    float sum = 0.0f;
    for (int at = lane; at < RANK && candidate >= 0; at += WARP) sum += gate[at] * number<BELOW>(below, candidate, at);
    sum = warp_sum(sum);
    if (lane == 0) {
        scores[mine] = candidate < 0 ? -INFINITE
                                     : marginal[depth * PAIR_CANDIDATES + mine] + sum * st->inv_tree_temperature;
    }
    __syncthreads();
    if (mine > 0) return;

    const bool real = lane < PAIR_CANDIDATES;
    const float score = real ? scores[lane] : -INFINITE;
    const float base = real ? marginal[depth * PAIR_CANDIDATES + lane] : -INFINITE;
    const int id = real ? ids[depth * PAIR_CANDIDATES + lane] : -1;
    const float log_prob = score - log_sum(score) + log_sum(id < 0 ? -INFINITE : base);
    int rank = 0;
    for (int other = 0; other < PAIR_CANDIDATES; ++other) {
        const float its = __shfl_sync(FULL_WARP, score, other);
        const int its_id = __shfl_sync(FULL_WARP, id, other);
        rank += its > score || (its == score && (its_id < id || (its_id == id && other < lane)));
    }
    if (!real || rank >= MAX_WIDTH) return;
    const double p = exp(double(log_prob)), kept = fmin(fmax(p, SMALLEST), 1 - SMALLEST);
    const bool there = id >= 0 && score > -INFINITE;
    out[(depth * PAIR_CANDIDATES + parent) * MAX_WIDTH + rank] =
        {log_prob, float(p), float(log(kept / (1 - kept))), there ? lane : -1};
}
