// Drafts that see the noise of the target's draws: src/dflash_core/drafters/draw_noise.py is the Python twin.

#pragma once

#include "philox.cuh"
#include "state.cuh"

// What the score of a token at draft position `depth` gets of its draw's noise.
__device__ __forceinline__ float noise_of(const StepState* st, int depth, int token) {
    const float share = st->draft_noise;
    return share > 0.0f ? share * gumbel_about(philox(st->seed, u64(st->length) + depth + 1, u32(token))) : 0.0f;
}

// The log of the sum of exponentials of all lanes' values.
__device__ __forceinline__ float log_sum(float value) {
    const float most = warp_max(value);
    return most + logf(warp_sum(value > -INFINITE ? expf(value - most) : 0.0f));
}

// A lane's candidate at draft position `depth`, one of those with a `place` below MAX_WIDTH, gets its score's place and
// log-probability in place of its own. The candidates' total probability stays as it was. All lanes call.
__device__ __forceinline__ void rerank(const StepState* st, int depth, int token, bool there, int& place, float& log_prob) {
    const bool mine = there && place < MAX_WIDTH;
    const float own = mine ? log_prob : -INFINITE, score = mine ? own + noise_of(st, depth, token) : -INFINITE;
    const float total = log_sum(own) - log_sum(score);
    int better = 0;
    for (int lane = 0; lane < WARP; ++lane) {
        const float its = __shfl_sync(FULL_WARP, score, lane);
        const int its_place = __shfl_sync(FULL_WARP, place, lane);
        better += its > score || (its == score && its_place < place);
    }
    if (place < MAX_WIDTH) place = better;
    if (mine) log_prob = score + total;
}
