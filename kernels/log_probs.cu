// The target's own log-probabilities after each node, from its logits before any knob, mask or penalty: the total of a
// row's softmax, which `sample` needs for the token that it draws, and the `top` likeliest tokens.
//
// grid = rows of the pass. The total is that of the maxima and sums of blocks of 16 tokens (logits.cu); the likeliest
// tokens are among those of the `top` blocks with the largest maxima, as in draw_list.cu, so little else of a row is read.
// A row with too many equal tokens is searched whole, once per token.
//
// Bound by latency: 124 KB of maxima and sums per row of 248,320 tokens in one SM, three barriers without a top; with one
// what draw_list needs besides. For 24 rows of 248,320 tokens a sampled step takes 13 to 21 us more on an H200.

#include "draw_list.cuh"
#include "head.cuh"
#include "log_probs.cuh"

// The `top` first tokens of a whole row into `found`; return their number. All threads of a block call it.
__device__ int search_row(const float* logits, int vocab, int top, const RowTotal& total, NodeLogProbs& found, u64* scratch) {
    u64 last = ~0ull;
    int count = 0;
    for (; count < top; ++count) {
        u64 best = 0;  // a token as an integer of the same order, higher first, ties to the lower id
        for (int id = threadIdx.x; id < vocab; id += LIST_THREADS) {
            const u64 key = u64(ordered(logits[id] + 0.0f)) << 32 | u32(~id);  // -0 and 0 are equals
            if (key < last) best = max(best, key);
        }
        last = block_max<LIST_THREADS>(best, scratch);
        const float value = score_of(u32(last >> 32));
        if (last == 0 || !(value > -INFINITE)) break;
        if (threadIdx.x == 0) found.id[count] = ~int(u32(last)), found.value[count] = log_prob_of(total, value);
    }
    return count;
}

// `logits` [rows][stride], of which the first `vocab` columns are tokens; `maxima` and `sums` [rows][vocab / 16, rounded
// up] as head_logits writes them, UNSCALED; totals [rows]; `slots`: `count` of `nodes` entries, in pinned memory.
extern "C" __global__ void __launch_bounds__(LIST_THREADS, 1) log_probs(
    const StepState* st, const float* logits, int vocab, int stride, int node0, const float* maxima, const float* sums,
    int top, RowTotal* totals, NodeLogProbs* slots, int count, int nodes) {
    __shared__ __align__(8) ListShared s;
    __shared__ __align__(8) NodeLogProbs found;
    __shared__ u64 scratch[LIST_WARPS];
    pdl_launch();
    pdl_wait();
    const int row = blockIdx.x, node = node0 + row, blocks = ceil_div(vocab, 16);
    Maxima of_row(maxima + u64(row) * blocks, blocks);
    sums += u64(row) * blocks;
    float sum[Maxima::PER_THREAD];
#pragma unroll
    for (int i = 0; i < Maxima::PER_THREAD; ++i) {
        const int block = i * LIST_THREADS + threadIdx.x;
        sum[i] = block < blocks ? sums[block] : 0.0f;
    }
    const bool dead = load_now(st->stop) | (node >= load_now(st->n));
    issue_loads();  // all of these in one trip
    if (dead) return;
    clear_counts(s);
    logits += u64(row) * stride;

    // A row that is broken has a total that is no number; nothing of its step is kept.
    float* const of_warps = reinterpret_cast<float*>(scratch);
    const float best = block_max<LIST_THREADS>(of_row.largest(), of_warps);
    float mine = 0.0f;
#pragma unroll
    for (int i = 0; i < Maxima::PER_THREAD; ++i) mine += sum[i] * __expf(of_row.own[i] - best);
#pragma unroll 1
    for (int i = Maxima::PER_THREAD * LIST_THREADS + threadIdx.x; i < blocks; i += LIST_THREADS) {
        mine += sums[i] * __expf(of_row.all[i] - best);
    }
    const RowTotal total = {best, logf(block_sum<LIST_THREADS>(mine, of_warps))};
    if (threadIdx.x == 0) totals[row] = total;

    int many = 0;
    if (top > 0 && best < INFINITE) {
        const int listed = list_tokens(logits, of_row, vocab, u32(top), s);
        for (int at = threadIdx.x; at < listed; at += LIST_THREADS) {
            const float value = s.value[at];
            const int id = s.id[at];
            int rank = 0;
            for (int i = 0; i < listed && rank < top; ++i) rank += better(s.value[i], s.id[i], value, id);
            if (rank < top) found.id[rank] = id, found.value[rank] = log_prob_of(total, value);
        }
        many = listed >= 0 ? min(listed, top) : search_row(logits, vocab, top, total, found, scratch);
        __syncthreads();
    }
    // Neighbours write neighbours: these words cross the bus.
    NodeLogProbs& out = log_probs_of(st, slots, count, nodes, node);
    if (threadIdx.x < many) out.id[threadIdx.x] = found.id[threadIdx.x], out.value[threadIdx.x] = found.value[threadIdx.x];
    if (threadIdx.x == 0) out.count = many;
}
