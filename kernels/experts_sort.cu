// choose: the experts of every row of a prompt's chunk; sort: the rows of each expert grouped together, in entries of
// at most 64 (experts_rows.cuh); combine: the experts' outputs for a row, added to it.
//
// Defines: EXPERTS, USED, SHARED, UNGATED, ALL and those of Choosing as in router.cu; WIDTH, elements of a row of the output, a multiple of 8.

#include "experts_rows.cuh"
#include "partials.cuh"

constexpr int RANKS = USED + SHARED_EXPERTS;
constexpr int SORT_THREADS = 1024, COMBINE_THREADS = 256;
static_assert(EXPERTS <= SORT_THREADS && USED <= WARP, "an expert per thread, a rank per lane");

// Grid (rows / warps of a block, rounded up). scores f32 [rows][SCORES]; chosen u16 [rows][USED]; weights f32 [rows][RANKS].
extern "C" __global__ void choose(
    const int* count, const float* scores, float scale, u16* chosen, float* weights CHOICE_PARAMETERS
) {
    const int row = blockIdx.x * (blockDim.x / WARP) + warp_id();
    pdl_launch();
    pdl_wait();
    if (row >= *count) return;
    const float* of_row = scores + (u64)row * SCORES;
    choose_experts<EXPERTS, USED, ALL>(of_row, CHOOSING, [&](int rank, int expert, float weight) {
        if (lane_id() != 0) return;
        chosen[row * USED + rank] = u16(expert);
        weights[row * RANKS + rank] = weight;
    });
    if (SHARED_EXPERTS && lane_id() == 0) {
        weights[row * RANKS + USED] = SHARED_GATES ? sigmoid(of_row[EXPERTS]) : 1.0f;
    }
}

// One block of SORT_THREADS. order int [rows * RANKS]: the row at each place; places int [rows][RANKS]: the place of each
// pair. The order of an expert's rows changes no bit.
extern "C" __global__ void __launch_bounds__(SORT_THREADS) sort(
    const int* count, const u16* chosen, ChunkWork* work, int* order, int* places
) {
    __shared__ int next[EXPERTS], before[2][SORT_THREADS / WARP];
    const int thread = threadIdx.x, lane = lane_id(), warp = warp_id();
    pdl_launch();
    if (thread < EXPERTS) next[thread] = 0;
    __syncthreads();
    pdl_wait();
    const int rows = *count, pairs = rows * USED;
    for (int pair = thread; pair < pairs; pair += SORT_THREADS) atomicAdd(&next[chosen[pair]], 1);
    __syncthreads();
    // Rows and entries of the experts before this thread's.
    const int mine = thread < EXPERTS ? next[thread] : 0, entries = ceil_div(mine, CHUNK_COLUMNS);
    int sum[2] = {mine, entries};
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int other = __shfl_up_sync(FULL_WARP, sum[i], step);
            if (lane >= step) sum[i] += other;
        }
    }
    if (lane == WARP - 1) before[0][warp] = sum[0], before[1][warp] = sum[1];
    __syncthreads();
    for (int other = 0; other < warp; ++other) sum[0] += before[0][other], sum[1] += before[1][other];
    const int shared = SHARED_EXPERTS * ceil_div(rows, CHUNK_COLUMNS);
    if (thread < EXPERTS) {
        next[thread] = sum[0] - mine;
        ChunkEntry* entry = work->list() + shared + sum[1] - entries;
        for (int at = 0; at < mine; at += CHUNK_COLUMNS) {
            *entry++ = ChunkEntry{thread, sum[0] - mine + at, min(CHUNK_COLUMNS, mine - at)};
        }
    }
    if (thread == SORT_THREADS - 1) work->shared = shared, work->entries = shared + sum[1];
    __syncthreads();
    for (int pair = thread; pair < pairs; pair += SORT_THREADS) {
        const int place = atomicAdd(&next[chosen[pair]], 1), row = pair / USED;
        order[place] = row;
        places[row * RANKS + pair - row * USED] = place;
    }
    if (SHARED_EXPERTS) {
        for (int row = thread; row < rows; row += SORT_THREADS) {
            order[pairs + row] = row;
            places[row * RANKS + USED] = pairs + row;
        }
        for (int i = thread; i < shared; i += SORT_THREADS) {
            work->list()[i] = ChunkEntry{0, pairs + i * CHUNK_COLUMNS, min(CHUNK_COLUMNS, rows - i * CHUNK_COLUMNS)};
        }
    }
}

// h[row][begin..] f32 of WIDTH += the sum over ranks of weight * factor * y f16 [place][part]: `part` elements from `begin` on.
// Grid (part / (8 * COMBINE_THREADS), rounded up; rows).
extern "C" __global__ void __launch_bounds__(COMBINE_THREADS) combine(
    const int* count, const half* y, const int* places, const float* weights, float factor, float* h, int begin, int part
) {
    const int k = 8 * (blockIdx.x * COMBINE_THREADS + threadIdx.x), row = blockIdx.y;
    pdl_launch();
    pdl_wait();
    if (row >= *count || k >= part) return;
    float sum[8] = {};
#pragma unroll
    for (int rank = 0; rank < RANKS; ++rank) {
        float x[8];
        load_halves(y + (u64)places[row * RANKS + rank] * part + k, x);
        const float weight = weights[row * RANKS + rank] * factor;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] = __fmaf_rn(weight, x[i], sum[i]);
    }
    Span<8> span;
    float x[8];
    float* at = h + (u64)row * WIDTH + begin + k;
    span.load(at);
    span.values(x);
    ((float4*)at)[0] = make_float4(x[0] + sum[0], x[1] + sum[1], x[2] + sum[2], x[3] + sum[3]);
    ((float4*)at)[1] = make_float4(x[4] + sum[4], x[5] + sum[5], x[6] + sum[6], x[7] + sum[7]);
}
