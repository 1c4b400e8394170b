// The input of a Gemma assistant: the embedding of the token before as the target scales it, and the state there, as acts
// of pre_projection. One row. Bound by latency.
//
// Defines: FORMAT, the embedding's type as gguf.cuh spells it; WIDTH, the target's hidden size; SCALE, of the embedding;
// SPLIT_K, 0 for a draft's first token: the state is then the target's residual after its last position, normed as for
// its head, else the partials of post_projection.

#include "acts.cuh"
#include "gguf.cuh"
#include "partials.cuh"
#include "state.cuh"

constexpr int GROUPS = ceil_div(2 * WIDTH, ACTS_GROUP);
constexpr int TURNS = ceil_div(GROUPS, 20);  // as mtp_join
constexpr int JOIN_WARPS = ceil_div(GROUPS, TURNS), JOIN_THREADS = WARP * JOIN_WARPS;
static_assert(WIDTH % 8 == 0, "a lane's 8 elements are of one half");

// Acts of pre_projection, [embedding | state]. `state` f32: [slots][WIDTH], the residual after position p at p % slots,
// or [SPLIT_K][WIDTH]. The token is the one drafted at depth - 1, or the root. Grid (1).
extern "C" __global__ void __launch_bounds__(JOIN_THREADS, 1) assistant_join(
    const StepState* st, int depth, const u8* embedding, const float* state, int slots, const float* norm, float eps,
    u8* acts_q8, u8* acts_f16
) {
    __shared__ float scratch[JOIN_WARPS];
    pdl_launch();
    pdl_wait();
    const int token = depth ? st->candidate[depth - 1][0] : st->root;

    float x[TURNS][8], squares = 0.0f;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = (warp_id() + turn * JOIN_WARPS) * ACTS_GROUP + 8 * lane_id();
#pragma unroll
        for (int i = 0; i < 8; i++) x[turn][i] = 0.0f;
        if (k < WIDTH) {
#pragma unroll
            for (int i = 0; i < 8; i++) x[turn][i] = row_value<FORMAT, WIDTH>(embedding, token, k + i) * float(SCALE);
        } else if (k < 2 * WIDTH) {
#if SPLIT_K > 0
            PartialSpan<SPLIT_K, 8> partials;
            partials.load(state, 1, WIDTH, 0, k - WIDTH);
            partials.sum().values(x[turn]);
#else
            Span<8> span;
            span.load(state + (u64)((st->length + slots - 1) % slots) * WIDTH + k - WIDTH);
            span.values(x[turn]);
#pragma unroll
            for (int i = 0; i < 8; i++) squares += x[turn][i] * x[turn][i];
#endif
        }
    }
#if SPLIT_K == 0
    const float scale = 1.0f / sqrtf(block_sum<JOIN_THREADS>(squares, scratch) / WIDTH + eps);
#endif
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int group = warp_id() + turn * JOIN_WARPS;
#if SPLIT_K == 0
        const int k = group * ACTS_GROUP + 8 * lane_id();
        if (k >= WIDTH && k < 2 * WIDTH) {
            Span<8> weight;
            float by[8];
            weight.load(norm + k - WIDTH);
            weight.values(by);
#pragma unroll
            for (int i = 0; i < 8; i++) x[turn][i] *= scale * by[i];
        }
#endif
        if (group < GROUPS) acts_store({acts_q8, acts_f16}, 0, group, x[turn]);
    }
}
