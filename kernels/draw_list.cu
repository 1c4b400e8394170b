// The first kernel of a draw (draw.cuh), for each row of a pass: hides penalised tokens and lists the first tokens of the
// order. Of a row that is drawn WHOLE it only hides tokens.
//
// grid = rows of the pass. Bound by latency: two trips to the L2, for state and block maxima, which stay in registers, and
// for the tokens of the chosen blocks; eight barriers; shared atomics. 12 us for 24 rows of 248,320 tokens on an H200.

#include "draw_list.cuh"
#include "penalties.cuh"

// Compute the penalised values of the newest tokens, and hide their logits in the row. `tokens`: HISTORY ids, shared.
__device__ __forceinline__ int penalise(const StepState* st, int node, float* logits, int* tokens, RowTokens& out) {
    const int window = penalty_window(st, node, tokens);
    for (int i = threadIdx.x; i < window; i += LIST_THREADS) {
        const float logit = logits[tokens[i]];
        const Penalised mine = Penalised::of(st, tokens, window, i, logit);
        out.penalised[i] = mine.token, out.penalised_value[i] = mine.value, out.logit[i] = logit;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < window; i += LIST_THREADS) logits[tokens[i]] = -INFINITE;
    __syncthreads();
    return window;
}

// `logits` [rows][stride], of which the first `vocab` columns are tokens; `maxima` [rows][vocab / 16, rounded up] of
// blocks of 16 tokens, infinite where a block contains NaN.
extern "C" __global__ void __launch_bounds__(LIST_THREADS, 1) draw_list(
    const StepState* st, float* logits, int vocab, int stride, int node0, const float* maxima, RowTokens* rows) {
    __shared__ __align__(8) ListShared s;
    __shared__ int tokens[HISTORY];
    pdl_launch();
    pdl_wait();
    const int row = blockIdx.x, node = node0 + row, blocks = ceil_div(vocab, 16);
    Maxima of_row(maxima + u64(row) * blocks, blocks);
    const bool dead = load_now(st->stop) | (node >= load_now(st->n));
    const bool penalised = penalises(st);
    const Method method = method_of(st, vocab);
    issue_loads();  // all of these in one trip
    if (dead) return;
    clear_counts(s);
    RowTokens& out = rows[row];
    logits += u64(row) * stride;
    const int window = penalised ? penalise(st, node, logits, tokens, out) : 0;
    if (threadIdx.x == 0) out.window = window, out.added = 0;
    if (method == Method::WHOLE) return;
    const Noise noise(st, node);
    // One block more per penalised token: then at least `rank` maxima are of tokens without a penalty.
    const int rank = method == Method::LISTED ? drawn_among(st, vocab) + window : min(ANCHORS, ceil_div(vocab, 128));
    int count = list_tokens(logits, of_row, vocab, u32(rank), s);
    const bool front = method == Method::FRONT;
    const float inverse = 1.0f / st->temperature;
    float best = -INFINITE, enough = -INFINITE;
#pragma unroll
    for (int i = 0; i < LIST; i += LIST_THREADS) {
        const int at = i + threadIdx.x;
        if (at >= count) break;
        const float value = s.value[at], ratio = value * inverse;
        const int id = s.id[at];
        out.value[at] = value, out.id[at] = id;
        if (!front) continue;
        best = fmaxf(best, value);
        enough = fmaxf(enough, ratio + noise(id) - slack(ratio));
    }
    if (front && count >= 0) {
        best = score_of(largest_of_warp(ordered(best))), enough = score_of(largest_of_warp(ordered(enough)));
        if (lane_id() == 0) s.extremes[0][warp_id()] = ordered(best), s.extremes[1][warp_id()] = ordered(enough);
        __syncthreads();
        best = score_of(largest_of_warp(s.extremes[0][lane_id()]));
        enough = score_of(largest_of_warp(s.extremes[1][lane_id()]));
        if (!(fabsf(best * inverse) < LARGEST_RATIO)) count = TOO_LONG;
        if (threadIdx.x == 0) out.best = best, out.enough = enough;
    }
    if (threadIdx.x == 0) out.count = count;
}
