// A head that gives logits to some tokens only: those of the cells whose centroids suit the row best. One row.
//
//   scores of centroids -> choose_cells -> cell_logits -> candidates (candidates.cu with TARGETS)
//
// Defines: CELLS; USED, of them; EACH, tokens per cell. choose_cells: SPLIT_K, partials of the scores; ORDER, the type of
// the list of tokens. cell_logits: FORMAT, the matrix's type as gguf.cuh spells it; WIDTH, elements of a row.

#include "gguf.cuh"
#include "partials.cuh"
#include "state.cuh"

constexpr int TOKENS = USED * EACH, CELL_WARPS = 8, CELL_THREADS = WARP * CELL_WARPS, BLOCK = 16;

#ifdef ORDER
// ids [TOKENS]: the tokens of the cells with the best scores, best first; of equal scores the lower cell comes first.
// `scores` f32 [SPLIT_K][width], tokens [CELLS][EACH]. A warp per cell, grid (CELLS / CELL_WARPS, rounded up). Bound by
// latency.
extern "C" __global__ void __launch_bounds__(CELL_THREADS) choose_cells(
    const float* scores, int width, const ORDER* tokens, int* ids
) {
    __shared__ float all[CELLS];
    pdl_launch();
    pdl_wait();
    for (int cell = threadIdx.x; cell < CELLS; cell += CELL_THREADS) {
        all[cell] = partials_sum<SPLIT_K>(scores, 1, width, 0, cell);
    }
    __syncthreads();
    const int own = blockIdx.x * CELL_WARPS + warp_id();
    if (own >= CELLS) return;
    int better = 0;
    for (int cell = lane_id(); cell < CELLS; cell += WARP) {
        better += all[cell] > all[own] || (all[cell] == all[own] && cell < own);
    }
    for (int offset = 16; offset; offset /= 2) better += __shfl_xor_sync(FULL_WARP, better, offset);
    if (better >= USED) return;
    for (int i = lane_id(); i < EACH; i += WARP) ids[better * EACH + i] = int(tokens[own * EACH + i]);
}
#endif

#ifdef FORMAT
// logits [TOKENS] of the row `x` f32 (WIDTH), and as head_logits the maxima and sums of blocks of 16. Two tokens per
// warp, grid (TOKENS / 16, rounded up). Bound by latency: of 4,096 rows of 256, 2 MB as f16.
extern "C" __global__ void __launch_bounds__(CELL_THREADS) cell_logits(
    const StepState* st, const int* ids, const u8* matrix, const float* x, float* logits, float* maxima, float* sums
) {
    __shared__ float found[BLOCK];
    pdl_launch();
    pdl_wait();
#pragma unroll
    for (int turn = 0; turn < BLOCK / CELL_WARPS; turn++) {
        const int at = turn * CELL_WARPS + warp_id(), token = blockIdx.x * BLOCK + at;
        float sum = 0.0f;
        if (token < TOKENS) {
            const int id = ids[token];
            for (int k = lane_id(); k < WIDTH; k += WARP) sum += row_value<FORMAT, WIDTH>(matrix, id, k) * x[k];
        }
        sum = warp_sum(sum);
        if (lane_id() == 0) {
            found[at] = token < TOKENS ? sum : -INFINITE;
            if (token < TOKENS) logits[token] = sum;
        }
    }
    __syncthreads();
    if (warp_id()) return;
    const float own = lane_id() < BLOCK ? found[lane_id()] : -INFINITE;
    const float counted = own == own ? own : INFINITE;  // not a number: it shows
    float best = counted;
    for (int offset = 16; offset; offset /= 2) best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, offset));
    const float sum = warp_sum(counted > -INFINITE ? __expf((counted - best) * st->inv_tree_temperature) : 0.0f);
    if (lane_id() == 0) maxima[blockIdx.x] = best, sums[blockIdx.x] = sum;
}
#endif
