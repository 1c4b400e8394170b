// The experts of a pass of one row, chosen by every thread block itself: that is quicker than waiting for another kernel.
//
// Defines: those of `route` in router.cu.

#pragma once

#include "experts.cuh"

// The row's work list, as `route` would write it, and the weights by rank.
struct OneRow {
    ExpertWork work;
    ExpertEntry entry[USED + SHARED_EXPERTS];
    float weight[USED + SHARED_EXPERTS];
    float score[SCORES];

    // The list but for the experts. Thread 0 calls.
    __device__ __forceinline__ void begin() {
        work.shared = SHARED_EXPERTS, work.entries = USED + SHARED_EXPERTS;
        if (SHARED_EXPERTS) entry[0] = ExpertEntry{0, 1, {USED * ACTS_ROWS}};
#pragma unroll
        for (int rank = 0; rank < USED; ++rank) entry[SHARED_EXPERTS + rank] = ExpertEntry{0, 1, {u16(rank * ACTS_ROWS)}};
    }

    // scores f32 (SCORES), which may have been written since this kernel began. All threads of the block call.
    template <bool WEIGHTS> __device__ __forceinline__ void choose(const float* scores, const Choosing& choosing) {
        const int lane = lane_id();
        for (int i = threadIdx.x; i < SCORES; i += blockDim.x) score[i] = load_l2(scores + i);
        __syncthreads();
        if (warp_id() == 0) {
            const int expert = expert_of_rank<EXPERTS, USED>(score, choosing);
            if (lane < USED) entry[SHARED_EXPERTS + lane].expert = u16(expert);
            if constexpr (WEIGHTS) {
                const float own = weight_of_rank<EXPERTS, USED, ALL>(score, choosing, expert);
                if (lane < USED) weight[lane] = own;
                if (SHARED_EXPERTS && lane == 0) weight[USED] = SHARED_GATES ? sigmoid(score[EXPERTS]) : 1.0f;
            }
        }
        __syncthreads();
    }
};
