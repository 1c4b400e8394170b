// router: scores of every expert for every row, in f32 from f32 rows; route: the experts that each row of a pass takes,
// and the work that comes of it (experts.cuh).
//
// A score is a sum of WIDTH products in one order, whatever the rows: a lane takes every 128th four of them in order,
// then the lanes of a warp are added up. Nothing less would do: which experts are chosen hangs on the last bits.
//
// Defines: WIDTH, elements of a row, a multiple of 4; TURN, rows that a block of `router` goes through together;
// EXPERTS; of `route` USED, experts of a row; SHARED where there is one that all rows take; ALL where weights are
// shares of the softmax over all scores.

#include "experts.cuh"
#include "partials.cuh"

#ifndef TURN
#define TURN 8
#endif
#ifdef SHARED
constexpr int SHARED_EXPERTS = 1;
#else
constexpr int SHARED_EXPERTS = 0;
#endif

constexpr int SCORES = EXPERTS + SHARED_EXPERTS;  // of a row
constexpr int ROUTER_STEP = 4 * WARP;
constexpr int MOST_HELD = 16;  // fours of a row of weights that a lane holds at a time
constexpr int HELD_FOURS = ceil_div(WIDTH, ROUTER_STEP) < MOST_HELD ? ceil_div(WIDTH, ROUTER_STEP) : MOST_HELD;

static_assert(WIDTH % 4 == 0, "a lane holds 4 elements");

// Grid (SCORES / warps of a block, rounded up; rows / TURN, rounded up). x f32 [rows][WIDTH]; weight f32
// [EXPERTS][WIDTH]; gate f32 (WIDTH), of the shared expert; scores f32 [rows][SCORES]. Row i is node node0 + i. Live
// are the nodes below *count.
extern "C" __global__ void router(
    const float* x, const float* weight, const float* gate, float* scores, int rows, const int* count, int node0
) {
    const int expert = blockIdx.x * (blockDim.x / WARP) + warp_id(), row0 = blockIdx.y * TURN, k0 = 4 * lane_id();
    pdl_launch();
    if (expert >= SCORES) return;
    const float* from = expert < EXPERTS ? weight + (u64)expert * WIDTH : gate;
    Span<4> held[HELD_FOURS];
    float sum[TURN] = {};
#pragma unroll 1
    for (int begin = 0; begin < WIDTH; begin += HELD_FOURS * ROUTER_STEP) {
#pragma unroll
        for (int i = 0; i < HELD_FOURS; ++i) {
            const int k = begin + i * ROUTER_STEP + k0;
            held[i].zero();
            if (k < WIDTH) held[i].load(from + k);
        }
        if (begin == 0) pdl_wait();
#pragma unroll
        for (int r = 0; r < TURN; ++r) {
            if (row0 + r >= rows || node0 + row0 + r >= *count) break;
            const float* row = x + (u64)(row0 + r) * WIDTH;
#pragma unroll
            for (int i = 0; i < HELD_FOURS; ++i) {
                const int k = begin + i * ROUTER_STEP + k0;
                if (k >= WIDTH) break;
                Span<4> part;
                part.load(row + k);
                sum[r] = __fmaf_rn(held[i].at[0].x, part.at[0].x, sum[r]);
                sum[r] = __fmaf_rn(held[i].at[0].y, part.at[0].y, sum[r]);
                sum[r] = __fmaf_rn(held[i].at[0].z, part.at[0].z, sum[r]);
                sum[r] = __fmaf_rn(held[i].at[0].w, part.at[0].w, sum[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < TURN; ++r) {
        const float score = warp_sum(sum[r]);
        if (lane_id() == 0 && row0 + r < rows && node0 + row0 + r < *count) {
            scores[(u64)(row0 + r) * SCORES + expert] = score;
        }
    }
}

#ifdef USED

constexpr int RANKS = USED + SHARED_EXPERTS;
constexpr int ROUTE_THREADS = 1024;
constexpr int ROUTE_WARPS = ROUTE_THREADS / WARP;
static_assert(USED <= WARP && EXPERTS <= ROUTE_THREADS, "a rank per lane, an expert per thread");

// One block of ROUTE_THREADS. scores f32 [rows][SCORES]; work: see experts.cuh; weights f32 [RANKS][ACTS_ROWS], by
// pair.
extern "C" __global__ void __launch_bounds__(ROUTE_THREADS) route(
    const float* scores, float scale, ExpertWork* work, float* weights, int rows, const int* count, int node0
) {
    __shared__ u64 rows_of[EXPERTS];  // a bit per row
    __shared__ u16 chosen[ACTS_ROWS][USED];
    __shared__ int before[ROUTE_WARPS];
    const int thread = threadIdx.x, warp = warp_id(), lane = lane_id();
    pdl_launch();
    if (thread < EXPERTS) rows_of[thread] = 0;
    __syncthreads();
    pdl_wait();
    const int live = max(0, min(rows, *count - node0));
    for (int row = warp; row < live; row += ROUTE_WARPS) {
        const float* of_row = scores + (u64)row * SCORES;
        choose_experts<EXPERTS, USED, ALL>(of_row, scale, [&](int rank, int expert, float weight) {
            if (lane != 0) return;
            chosen[row][rank] = u16(expert);
            weights[rank * ACTS_ROWS + row] = weight;
            atomicOr((unsigned long long*)&rows_of[expert], 1ull << row);
        });
        if (SHARED_EXPERTS && lane == 0) weights[USED * ACTS_ROWS + row] = sigmoid(of_row[EXPERTS]);
    }
    __syncthreads();

    u64 mine = thread < EXPERTS ? rows_of[thread] : 0;
    const int entries = ceil_div(__popcll(mine), ENTRY_COLUMNS);
    const int shared = SHARED_EXPERTS * ceil_div(live, ENTRY_COLUMNS);
    int place = entries;  // behind mine in the list
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const int other = __shfl_up_sync(FULL_WARP, place, step);
        if (lane >= step) place += other;
    }
    if (lane == WARP - 1) before[warp] = place;
    __syncthreads();
    for (int other = 0; other < warp; ++other) place += before[other];
    ExpertEntry* entry = work->list() + shared + place - entries;
    if (thread == ROUTE_THREADS - 1) work->shared = shared, work->entries = shared + place;
    while (mine) {
        entry->expert = u16(thread);
        int columns = 0;
        for (; columns < ENTRY_COLUMNS && mine; ++columns, mine &= mine - 1) {
            const int row = __ffsll((long long)mine) - 1;
            int rank = 0;
            while (chosen[row][rank] != thread) ++rank;
            entry->pair[columns] = u16(rank * ACTS_ROWS + row);
        }
        entry->count = u16(columns);
        ++entry;
    }
    if (thread < shared) {
        ExpertEntry& own = work->list()[thread];
        own.expert = 0;
        own.count = u16(min(ENTRY_COLUMNS, live - thread * ENTRY_COLUMNS));
        for (int i = 0; i < own.count; ++i) own.pair[i] = u16(USED * ACTS_ROWS + thread * ENTRY_COLUMNS + i);
    }
}

#endif
