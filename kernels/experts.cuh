// A layer of experts: the choices for the rows of a pass, and the list that the products after them work from.
//
// A pair is a row and one of the experts that it takes, rank by rank: pair = rank * ACTS_ROWS + row. The expert that
// all rows take is the last rank, where there is one. Results of a pair are at rank * rows of the pass + row, so they
// are partials like those of a split K: they are added in the order of ranks.
//
// An entry is a few pairs of one expert: the columns of one product. Entries are sorted by expert, pairs by row. Which
// rows share an entry changes no bit: columns of a product are independent.

#pragma once

#include "acts.cuh"
#include "extremes.cuh"
#include "partials.cuh"

constexpr int ENTRY_COLUMNS = 8;

// Whether there is an expert that all rows take, and whether the router scores it: the sigmoid of that score is its
// weight, else its weight is 1.
#ifdef SHARED
constexpr int SHARED_EXPERTS = 1;
#else
constexpr int SHARED_EXPERTS = 0;
#endif
#ifdef UNGATED
constexpr int SHARED_GATES = 0;
#else
constexpr int SHARED_GATES = SHARED_EXPERTS;
#endif
#ifdef EXPERTS
constexpr int SCORES = EXPERTS + SHARED_GATES;  // of a row
#endif

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
    const u8* weights;        // super-tiles of all experts, one after another
    const u8* const* places;  // or null: where each expert's super-tiles are, which may change between steps
    u32 step;                 // bytes from expert to expert
    int format;               // enum Format
    int blocks;               // of 16 rows, of one expert
    int offset;               // of its first row in the output

    __device__ __forceinline__ const u8* of(int expert) const {
        return places ? places[expert] : weights + u64(expert) * step;
    }
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
    u32* used;   // or null: how many rows have taken each of the chosen experts, which the launch adds to
    int stride;  // of the output
};

// Where a pair's results are stored, in rows.
__device__ __forceinline__ int place_of(int pair, int rows) { return pair / ACTS_ROWS * rows + pair % ACTS_ROWS; }

// Sorts a lane's keys, largest first; equal ones keep their order, since only neighbours are swapped.
template <int COUNT> __device__ __forceinline__ void sort_keys(u32 (&key)[COUNT], int (&at)[COUNT]) {
#pragma unroll
    for (int turn = 0; turn < COUNT; ++turn) {
#pragma unroll
        for (int i = turn % 2; i + 1 < COUNT; i += 2) {
            const bool swap = key[i + 1] > key[i];
            const u32 k = key[i];
            const int a = at[i];
            key[i] = swap ? key[i + 1] : k, at[i] = swap ? at[i + 1] : a;
            key[i + 1] = swap ? k : key[i + 1], at[i + 1] = swap ? a : at[i + 1];
        }
    }
}

// Up to this many scores, a lane sorts its keys. More keys and their places would not fit the registers of a thread
// of `route`: they stay unsorted, and each rank reads all of them.
constexpr int MAX_SORTED = 8;

// How a choice is made from scores. Defines, all optional: SIGMOID where shares are sigmoids of scores, not a softmax;
// CHOICE_BIAS where biases count for the choice and not for weights, EXPERT_SCALES where experts have a factor: each adds
// an argument.
struct Choosing {
    float scale;
    const float* bias = nullptr;    // f32 (experts)
    const float* scales = nullptr;  // f32 (experts)

    // What the order of experts follows from.
    __device__ __forceinline__ float rank(float score, int expert) const {
#ifdef SIGMOID
        score = sigmoid(score);
#endif
#ifdef CHOICE_BIAS
        score += bias[expert];
#endif
        return score;
    }
    __device__ __forceinline__ float factor(int expert) const {
#ifdef EXPERT_SCALES
        return scale * scales[expert];
#else
        return scale;
#endif
    }
};
#ifdef CHOICE_BIAS
#define CHOICE_BIAS_PARAMETER , const float* choice_bias
#define GIVEN_BIAS choice_bias
#else
#define CHOICE_BIAS_PARAMETER
#define GIVEN_BIAS nullptr
#endif
#ifdef EXPERT_SCALES
#define EXPERT_SCALES_PARAMETER , const float* expert_scales
#define GIVEN_SCALES expert_scales
#else
#define EXPERT_SCALES_PARAMETER
#define GIVEN_SCALES nullptr
#endif
// Arguments of a kernel that chooses, and what was given.
#define CHOICE_PARAMETERS CHOICE_BIAS_PARAMETER EXPERT_SCALES_PARAMETER
#define CHOOSING Choosing{scale, GIVEN_BIAS, GIVEN_SCALES}

// Chooses the BEST largest of COUNT scores of a row, of equal ones the lower expert: lane r gets the expert of rank r.
// The whole warp calls.
template <int COUNT, int BEST>
__device__ __forceinline__ int expert_of_rank(const float* scores, const Choosing& choosing) {
    constexpr int EACH = ceil_div(COUNT, WARP);  // a lane's: neighbours, so a lower lane has lower experts
    constexpr bool SORTED = EACH <= MAX_SORTED;
    const int lane = lane_id();
    u32 key[EACH];
    int at[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int expert = lane * EACH + i;
        key[i] = expert < COUNT ? ordered(choosing.rank(scores[expert], expert)) : 0, at[i] = i;
    }
    if constexpr (SORTED) sort_keys(key, at);
    int expert_of = 0;  // lane r: of rank r
#pragma unroll 1
    for (int rank = 0; rank < BEST; ++rank) {
        u32 mine = key[0];
        int place = SORTED ? at[0] : 0;
        if constexpr (!SORTED) {
#pragma unroll
            for (int i = 1; i < EACH; ++i) {
                if (key[i] > mine) mine = key[i], place = i;
            }
        }
        const u32 of_all = largest_of_warp(mine);
        const int from = __ffs(__ballot_sync(FULL_WARP, mine == of_all)) - 1;
        const int expert = __shfl_sync(FULL_WARP, lane * EACH + place, from);
        if (lane == rank) expert_of = expert;
        if (lane == from) {
            if constexpr (SORTED) {
#pragma unroll
                for (int i = 0; i + 1 < EACH; ++i) key[i] = key[i + 1], at[i] = at[i + 1];
                key[EACH - 1] = 0;
            } else {
#pragma unroll
                for (int i = 0; i < EACH; ++i) key[i] = i == place ? 0 : key[i];
            }
        }
    }
    return expert_of;
}

// The weight of the lane's rank, whose expert is `expert`: its share of the softmax over the chosen scores, or with
// OF_ALL over all, times the factor; with SIGMOID the sigmoid of its score, over the sum of these unless OF_ALL. The
// whole warp calls.
template <int COUNT, int BEST, bool OF_ALL>
__device__ __forceinline__ float weight_of_rank(const float* scores, const Choosing& choosing, int expert) {
    const int lane = lane_id();
    const float score = lane < BEST ? scores[expert] : 0.0f;
#ifdef SIGMOID
    const float share = lane < BEST ? sigmoid(score) : 0.0f;
    float sum = 1.0f;
    if constexpr (!OF_ALL) {
        sum = 0.0f;
        for (int rank = 0; rank < BEST; ++rank) sum += __shfl_sync(FULL_WARP, share, rank);
    }
#else
    constexpr int EACH = ceil_div(COUNT, WARP);
    const float most = __shfl_sync(FULL_WARP, score, 0);
    float sum = 0.0f;
    const float share = lane < BEST ? expf(score - most) : 0.0f;
    if constexpr (OF_ALL) {
#pragma unroll 1
        for (int i = lane * EACH; i < min(COUNT, (lane + 1) * EACH); ++i) sum += expf(scores[i] - most);
        sum = warp_sum(sum);
    } else {
        for (int rank = 0; rank < BEST; ++rank) sum += __shfl_sync(FULL_WARP, share, rank);
    }
#endif
    return share / sum * choosing.factor(expert);
}

// What a lane gets of a row: the expert of its rank, and that expert's weight.
struct Choice {
    int expert;
    float weight;
};

template <int COUNT, int BEST, bool OF_ALL>
__device__ __forceinline__ Choice choice_of_row(const float* scores, const Choosing& choosing) {
    const int expert = expert_of_rank<COUNT, BEST>(scores, choosing);
    return {expert, weight_of_rank<COUNT, BEST, OF_ALL>(scores, choosing, expert)};
}

// The same, but every lane gets every rank: chosen(rank, expert, weight).
template <int COUNT, int BEST, bool OF_ALL, class Chosen>
__device__ __forceinline__ void choose_experts(const float* scores, const Choosing& choosing, Chosen&& chosen) {
    const Choice mine = choice_of_row<COUNT, BEST, OF_ALL>(scores, choosing);
    for (int rank = 0; rank < BEST; ++rank) {
        chosen(rank, __shfl_sync(FULL_WARP, mine.expert, rank), __shfl_sync(FULL_WARP, mine.weight, rank));
    }
}
