// router: scores of every expert for every row, in f32 from f32 rows; route: the experts that each row of a pass takes,
// and the resulting work list (experts.cuh).
//
// A score is a sum of WIDTH products in one order, whatever the rows: a lane takes every 128th four of them in order,
// then the lanes of a warp are added up. This is necessary: the choice of experts depends on the last bits.
//
// Defines: WIDTH, elements of a row, a multiple of 4; TURN, rows that a block of `router` goes through together;
// EXPERTS; of `route` USED, experts of a row; SHARED where there is one that all rows take, UNGATED where the router does
// not score it; those of Choosing (experts.cuh); ALL where weights are
// shares of the softmax over all scores; BIASED where a score has a bias, which adds an argument to `router`.

#include "experts.cuh"
#include "partials.cuh"

#ifndef TURN
#define TURN 8
#endif

constexpr int ROUTER_STEP = 4 * WARP;
constexpr int MAX_FOURS = 24;  // fours of a row of weights that a lane loads at a time
constexpr int ALL_FOURS = ceil_div(WIDTH, ROUTER_STEP), FOURS = ceil_div(ALL_FOURS, ceil_div(ALL_FOURS, MAX_FOURS));

static_assert(WIDTH % 4 == 0, "a lane holds 4 elements");

// Grid (SCORES / warps of a block, rounded up; rows / TURN, rounded up). x f32 [rows][WIDTH]; weight f32
// [EXPERTS][WIDTH]; gate f32 (WIDTH), of the shared expert; scores f32 [rows][SCORES]. Row i is node node0 + i. Live
// are the nodes below *count.
extern "C" __global__ void router(
    const float* x, const float* weight, const float* gate, float* scores, int rows, const int* count, int node0
#ifdef BIASED
    , const float* bias
#endif
) {
    const int expert = blockIdx.x * (blockDim.x / WARP) + warp_id(), row0 = blockIdx.y * TURN, k0 = 4 * lane_id();
    pdl_launch();
    if (expert >= SCORES) return;
    const float* from = expert < EXPERTS ? weight + (u64)expert * WIDTH : gate;
    Span<4> weights[FOURS];
    float sum[TURN] = {};
    int last = 0;  // of the rows that are live
#pragma unroll 1
    for (int begin = 0; begin < WIDTH; begin += FOURS * ROUTER_STEP) {
#pragma unroll
        for (int i = 0; i < FOURS; ++i) {
            const int k = begin + i * ROUTER_STEP + k0;
            weights[i].zero();
            if (k < WIDTH) weights[i].load(from + k);
        }
        issue_loads();
        if (begin == 0) {
            pdl_wait();
            last = min(rows, *count - node0) - 1;
            if (row0 > last) return;
        }
        // Rows in parallel: their loads overlap, and their sums do not wait for each other. Past a row's end are zeros,
        // not a branch, which no load would pass.
#pragma unroll
        for (int i = 0; i < FOURS; ++i) {
            const int k = begin + i * ROUTER_STEP + k0;
            Span<4> part[TURN];
#pragma unroll
            for (int r = 0; r < TURN; ++r) {
                part[r].zero();
                if (k < WIDTH) part[r].load(x + (u64)min(row0 + r, last) * WIDTH + k);
            }
#pragma unroll
            for (int r = 0; r < TURN; ++r) {
                sum[r] = __fmaf_rn(weights[i].at[0].x, part[r].at[0].x, sum[r]);
                sum[r] = __fmaf_rn(weights[i].at[0].y, part[r].at[0].y, sum[r]);
                sum[r] = __fmaf_rn(weights[i].at[0].z, part[r].at[0].z, sum[r]);
                sum[r] = __fmaf_rn(weights[i].at[0].w, part[r].at[0].w, sum[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < TURN; ++r) {
        float score = warp_sum(sum[r]);
#ifdef BIASED
        if (expert < EXPERTS) score += bias[expert];
#endif
        if (lane_id() == 0 && row0 + r <= last) scores[(u64)(row0 + r) * SCORES + expert] = score;
    }
}

#ifdef USED

constexpr int RANKS = USED + SHARED_EXPERTS;
constexpr int ROUTE_THREADS = 1024;
constexpr int ROUTE_WARPS = ROUTE_THREADS / WARP, EXPERT_WARPS = ceil_div(EXPERTS, WARP);
static_assert(USED <= WARP && EXPERTS <= ROUTE_THREADS, "a rank per lane, an expert per thread");

// One block of ROUTE_THREADS. scores f32 [rows][SCORES]; work: see experts.cuh; weights f32 [RANKS][ACTS_ROWS], by
// pair.
extern "C" __global__ void __launch_bounds__(ROUTE_THREADS) route(
    const float* scores, float scale, ExpertWork* work, float* weights, int rows, const int* count,
    int node0 CHOICE_PARAMETERS
) {
    __shared__ u64 rows_of[EXPERTS];  // a bit per row
    __shared__ int begin[EXPERTS];    // its first entry
    __shared__ u16 chosen[USED * ACTS_ROWS];
    __shared__ int before[EXPERT_WARPS];
    const int thread = threadIdx.x, warp = warp_id(), lane = lane_id();
    pdl_launch();
    if (thread < EXPERTS) rows_of[thread] = 0;
    __syncthreads();
    pdl_wait();
    const int live = max(0, min(rows, *count - node0));
    for (int row = warp; row < live; row += ROUTE_WARPS) {
        const float* of_row = scores + (u64)row * SCORES;
        const float gate = SHARED_GATES && lane == 0 ? of_row[EXPERTS] : 0.0f;
        const Choice mine = choice_of_row<EXPERTS, USED, ALL>(of_row, CHOOSING);
        if (lane < USED) {
            const int pair = lane * ACTS_ROWS + row;
            chosen[pair] = u16(mine.expert);
            weights[pair] = mine.weight;
            atomicOr((unsigned*)&rows_of[mine.expert] + row / 32, 1u << row % 32);
        }
        if (SHARED_EXPERTS && lane == 0) weights[USED * ACTS_ROWS + row] = SHARED_GATES ? sigmoid(gate) : 1.0f;
    }
    __syncthreads();

    // Each expert computes the place of its entries, and each pair its place in one of them.
    const int shared = SHARED_EXPERTS * ceil_div(live, ENTRY_COLUMNS);
    const int taken = thread < EXPERTS ? __popcll(rows_of[thread]) : 0, entries = ceil_div(taken, ENTRY_COLUMNS);
    int place = entries;  // after this one in the list
    if (warp < EXPERT_WARPS) {
#pragma unroll
        for (int step = 1; step < WARP; step *= 2) {
            const int other = __shfl_up_sync(FULL_WARP, place, step);
            if (lane >= step) place += other;
        }
        if (lane == WARP - 1) before[warp] = place;
    }
    __syncthreads();
    if (warp < EXPERT_WARPS) {
#pragma unroll
        for (int other = 0; other < EXPERT_WARPS; ++other) place += other < warp ? before[other] : 0;
        place += shared;
        if (thread == EXPERT_WARPS * WARP - 1) work->shared = shared, work->entries = place;
        if (thread < EXPERTS) begin[thread] = place - entries;
        for (int i = 0; i < entries; ++i) {
            ExpertEntry& entry = work->list()[place - entries + i];
            entry.expert = u16(thread), entry.count = u16(min(ENTRY_COLUMNS, taken - i * ENTRY_COLUMNS));
        }
    }
    __syncthreads();
    for (int pair = thread; pair < USED * ACTS_ROWS; pair += ROUTE_THREADS) {
        const int row = pair % ACTS_ROWS;
        if (row >= live) continue;
        const int expert = chosen[pair], index = __popcll(rows_of[expert] & ((1ull << row) - 1));
        work->list()[begin[expert] + index / ENTRY_COLUMNS].pair[index % ENTRY_COLUMNS] = u16(pair);
    }
    if (thread < shared) {
        ExpertEntry& own = work->list()[thread];
        own.expert = 0;
        own.count = u16(min(ENTRY_COLUMNS, live - thread * ENTRY_COLUMNS));
        for (int i = 0; i < own.count; ++i) own.pair[i] = u16(USED * ACTS_ROWS + thread * ENTRY_COLUMNS + i);
    }
}

#endif
