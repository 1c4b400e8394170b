// A layer of experts: what was chosen for the rows of a pass, and how the products that follow find their work.
//
// A pair is a row and one of the experts that it takes, rank by rank: pair = rank * ACTS_ROWS + row. The expert that
// all rows take is the last rank, where there is one. Results of a pair lie at rank * rows of the pass + row, so they
// are partials like those of a split K: whoever adds them up takes them in the order of ranks.
//
// An entry is a few pairs of one expert: the columns of one product. Entries are sorted by expert, pairs by row. Which
// rows share an entry changes no bit: columns of a product do not touch each other.

#pragma once

#include "acts.cuh"

constexpr int ENTRY_COLUMNS = 8;

struct ExpertEntry {
    u16 expert, count;
    u16 pair[ENTRY_COLUMNS];
};

// `shared` entries of the expert that all rows take come first, `entries` are all.
struct ExpertWork {
    int shared, entries;

    __device__ __forceinline__ const ExpertEntry* list() const { return (const ExpertEntry*)(this + 1); }
    __device__ __forceinline__ ExpertEntry* list() { return (ExpertEntry*)(this + 1); }
};

// One of the matrices of a kind of experts.
struct ExpertMatrix {
    const u8* weights;  // super-tiles of all experts, one after another
    u64 step;           // bytes from expert to expert
    int format;         // enum Format
    int blocks;         // of 16 rows, of one expert
    int offset;         // of its first row in the output
    int padding;
};

// Experts that are chosen, or the one that all rows take.
struct ExpertKind {
    ExpertMatrix matrix[2];
    int matrices;
    int tiles_k;
    int split;  // warps that share the K of a block of rows; divides WARPS
    int width;  // elements of K
};

struct ExpertLaunch {
    ExpertKind kind[2];
    int stride;  // of the output
};

// Where a pair's results lie, in rows.
__device__ __forceinline__ int place_of(int pair, int rows) { return pair / ACTS_ROWS * rows + pair % ACTS_ROWS; }

__device__ __forceinline__ u32 largest_of_warp(u32 v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(FULL_WARP, v);
#else
    return warp_max(v);
#endif
}

// A score as an integer of the same order; of a NaN the largest of all, so that it is chosen and shows in the result.
// Nothing becomes 0.
__device__ __forceinline__ u32 ordered(float score) {
    const u32 bits = __float_as_uint(score);
    return score != score ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Chooses the BEST best of COUNT scores of a row, of equal ones the lower expert: chosen(rank, expert, weight). The
// whole warp calls; every lane is told of each. Weights are shares of the softmax over the chosen scores, or with
// OF_ALL over all, times `scale`.
template <int COUNT, int BEST, bool OF_ALL, class Chosen>
__device__ __forceinline__ void choose_experts(const float* scores, float scale, Chosen&& chosen) {
    constexpr int EACH = ceil_div(COUNT, WARP);  // a lane's: neighbours, so a lower lane has lower experts
    const int lane = lane_id();
    float score[EACH];
    u32 key[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int expert = lane * EACH + i;
        score[i] = expert < COUNT ? scores[expert] : -INFINITE;
        key[i] = expert < COUNT ? ordered(score[i]) : 0;
    }
    int expert_of = 0;        // lane r: of rank r
    float score_of = 0.0f;
    float most = 0.0f;
#pragma unroll 1
    for (int rank = 0; rank < BEST; ++rank) {
        u32 best = key[0];
        int at = 0;
        float value = score[0];
#pragma unroll
        for (int i = 1; i < EACH; ++i) {
            if (key[i] > best) best = key[i], at = i, value = score[i];
        }
        const u32 of_all = largest_of_warp(best);
        const int from = __ffs(__ballot_sync(FULL_WARP, best == of_all)) - 1;
        const int expert = __shfl_sync(FULL_WARP, lane * EACH + at, from);
        value = __shfl_sync(FULL_WARP, value, from);
        if (lane == from) {
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                if (i == at) key[i] = 0;
            }
        }
        if (rank == 0) most = value;
        if (lane == rank) expert_of = expert, score_of = value;
    }
    float sum = 0.0f;
    const float share = lane < BEST ? expf(score_of - most) : 0.0f;
    if (OF_ALL) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) sum += expf(score[i] - most);
        sum = warp_sum(sum);
    } else {
        for (int rank = 0; rank < BEST; ++rank) sum += __shfl_sync(FULL_WARP, share, rank);
    }
    const float weight = share / sum * scale;
    for (int rank = 0; rank < BEST; ++rank) {
        chosen(rank, __shfl_sync(FULL_WARP, expert_of, rank), __shfl_sync(FULL_WARP, weight, rank));
    }
}
