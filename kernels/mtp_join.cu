// The input of an MTP head: the embedding of a pair's token and the hidden before it, each normed, as acts of eh_proj.
// Row by row; see mtp.cuh. Bound by latency: a few rows.
//
// Defines: FORMAT, the embedding's type as gguf.cuh spells it; WIDTH, the hidden size.

#include "acts.cuh"
#include "gguf.cuh"
#include "mtp.cuh"
#include "partials.cuh"

constexpr int GROUPS = ceil_div(2 * WIDTH, ACTS_GROUP);
constexpr int TURNS = ceil_div(GROUPS, 20);  // with more warps, each has too few registers
constexpr int JOIN_WARPS = ceil_div(GROUPS, TURNS), JOIN_THREADS = WARP * JOIN_WARPS;
static_assert(WIDTH % 8 == 0, "a lane's 8 elements are of one half");

// Acts of eh_proj, [RMS(embedding; enorm) | RMS(RMS(hidden; norm); hnorm)]. `hidden` f32 [slots][WIDTH] is the residual
// after position p at p % slots, `tokens` [slots] likewise. Grid (rows).
extern "C" __global__ void __launch_bounds__(JOIN_THREADS, 1) mtp_join(
    const StepState* st, int first, int depth, const u8* embedding, const int* tokens, const float* hidden, int slots,
    const float* enorm, const float* norm, const float* hnorm, float eps, u8* acts_q8, u8* acts_f16
) {
    __shared__ float scratch[JOIN_WARPS];
    pdl_launch();
    const int row = blockIdx.x;
    const Pairs pairs = {st, first, depth};
    pdl_wait();
    if (!pairs.live(row)) return;
    const int slot = pairs.slot(row);
    const int token = !pairs.drafts(row) ? tokens[slot % slots] : depth ? st->candidate[depth - 1][0] : st->root;
    const float* const before = hidden + (u64)((slot + slots - 1) % slots) * WIDTH;

    float x[TURNS][8], of_token = 0.0f, of_hidden = 0.0f;  // sums of squares
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = (warp_id() + turn * JOIN_WARPS) * ACTS_GROUP + 8 * lane_id();
#pragma unroll
        for (int i = 0; i < 8; i++) x[turn][i] = 0.0f;
        if (k < WIDTH) {
#pragma unroll
            for (int i = 0; i < 8; i++) x[turn][i] = row_value<FORMAT, WIDTH>(embedding, token, k + i);
        } else if (k < 2 * WIDTH) {
            Span<8> span;
            span.load(before + k - WIDTH);
            span.values(x[turn]);
        }
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) sum += x[turn][i] * x[turn][i];
        if (k < WIDTH) of_token += sum;
        else of_hidden += sum;
    }
    Span<8> weight[TURNS], inner[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = (warp_id() + turn * JOIN_WARPS) * ACTS_GROUP + 8 * lane_id();
        weight[turn].zero();
        inner[turn].zero();
        if (k < WIDTH) weight[turn].load(enorm + k);
        else if (k < 2 * WIDTH) weight[turn].load(hnorm + k - WIDTH), inner[turn].load(norm + k - WIDTH);
    }
    auto scale_of = [&](float sum) { return 1.0f / sqrtf(block_sum<JOIN_THREADS>(sum, scratch) / WIDTH + eps); };
    const float token_scale = scale_of(of_token), hidden_scale = scale_of(of_hidden);
    float again = 0.0f;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const bool hidden_half = (warp_id() + turn * JOIN_WARPS) * ACTS_GROUP + 8 * lane_id() >= WIDTH;
        float by[8];
        inner[turn].values(by);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[turn][i] *= hidden_half ? hidden_scale * by[i] : token_scale;
            again += hidden_half ? x[turn][i] * x[turn][i] : 0.0f;
        }
    }
    const float second = scale_of(again);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int group = warp_id() + turn * JOIN_WARPS;
        const bool hidden_half = group * ACTS_GROUP + 8 * lane_id() >= WIDTH;
        float by[8];
        weight[turn].values(by);
#pragma unroll
        for (int i = 0; i < 8; i++) x[turn][i] *= hidden_half ? second * by[i] : by[i];
        if (group < GROUPS) acts_store({acts_q8, acts_f16}, row, group, x[turn]);
    }
}
