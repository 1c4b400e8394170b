// The tokens that penalties count: the newest HISTORY tokens of the answer and the path to a node after it.

#pragma once

#include "state.cuh"

__device__ __forceinline__ bool penalises(const StepState* st) {
    return st->repetition_penalty != 1 || st->frequency_penalty != 0 || st->presence_penalty != 0;
}

// Write these tokens to `tokens` [HISTORY], in order and with repeats; return their number. All threads of a block call
// it, and it ends with a barrier.
__device__ __forceinline__ int penalty_window(const StepState* st, int node, int* tokens) {
    const int answered = st->answered, length = answered + st->depth[node];
    const int window = min(length, HISTORY), first = length - window;
    for (int i = threadIdx.x; i < window; i += blockDim.x) {
        if (first + i < answered) tokens[i] = st->history[(first + i) % HISTORY];
    }
    for (int other = threadIdx.x; other < MAX_NODES; other += blockDim.x) {
        if (other == 0 || other > node || !(st->mask[node][other / 64] >> other % 64 & 1)) continue;
        const int at = answered + st->depth[other] - 1 - first;
        if (at >= 0) tokens[at] = st->token[other];
    }
    __syncthreads();
    return window;
}

// An entry of a window: its token, or -1 where an earlier entry has the same one, and its penalised logit in double.
struct Penalised {
    int token;
    double value;

    __device__ __forceinline__ static Penalised of(
        const StepState* st, const int* tokens, int window, int entry, float logit) {
        const int token = tokens[entry];
        int times = 0, earlier = 0;
        for (int i = 0; i < window; ++i) {
            const bool same = tokens[i] == token;
            times += same;
            earlier += same && i < entry;
        }
        const double raw = logit, factor = st->repetition_penalty, frequency = st->frequency_penalty;
        const double scaled = raw > 0 ? __ddiv_rn(raw, factor) : __dmul_rn(raw, factor);
        const double value = __dsub_rn(
            __dsub_rn(scaled, __dmul_rn(frequency, double(times))), double(st->presence_penalty));
        return {earlier ? -1 : token, value};
    }
};
