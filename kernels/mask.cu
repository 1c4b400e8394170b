// What a constraint rules out of a pass's logits: those ids become -inf, and the maxima of their blocks follow. The kernels
// of a draw then need not know of it.
//
// grid = (parts of a row, rows of the pass), a thread per block of 16 tokens. `masks` is pinned host memory, a row of
// `words` per node of the tree, so they cross the bus here and nowhere else: 31 KB a row at 248,320 tokens.
//
// Bound by the bus for the masks, and by memory for the logits that are ruled out, of which most rows have nearly all.

#include "state.cuh"

constexpr int MASK_THREADS = 256;
constexpr int TOGETHER = 16;  // tokens of a block, as head_logits writes their maxima

extern "C" __global__ void __launch_bounds__(MASK_THREADS) mask_logits(
    const StepState* st, float* logits, float* maxima, const u16* masks, int words, int vocab, int stride, int node0) {
    pdl_launch();
    const int block = blockIdx.x * MASK_THREADS + threadIdx.x, blocks = ceil_div(vocab, TOGETHER);
    const int row = blockIdx.y, node = node0 + row;
    pdl_wait();
    if (st->stop || node >= st->n || block >= blocks) return;
    const u32 allowed = masks[size_t(node) * 2 * words + block];
    if (allowed == 0xffff) return;
    float* const mine = logits + size_t(row) * stride + block * TOGETHER;
    float& most = maxima[size_t(row) * blocks + block];
    float best = -INFINITE;
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
        if (allowed >> i & 1) {
            if (block * TOGETHER + i < vocab) best = fmaxf(best, mine[i]);
        } else {
            mine[i] = -INFINITE;
        }
    }
    // A block with a logit that is not finite stays one, so that its row is refused as without a constraint.
    if (most < INFINITE) most = best;
}
