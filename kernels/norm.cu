// h += the partials of the last matmul; h to a row of captured layers where there is one; RMSNorm of h, as activations
// for the next matmul.
//
// A row is spread over a cluster of CLUSTER blocks (one where there are no clusters), one warp per 256 elements: a lane
// loads its 8 elements of h, of the first PREFETCHED partials and of the weight before it adds anything, and the blocks
// exchange their sums of squares, so a row costs about one trip to the L2. Squares are summed per group and the groups
// in order, whatever the cluster, a warp's iterations and the other rows are.
//
// Bound by latency: on an H200, 5120 elements and 4 or 8 partials, 2.9 us in one block and 2.0 us in five. One SM takes
// 2 us to read what 8 partials hold of a row.
//
// Defines: WIDTH, elements of a row, a multiple of 8; SPLIT_K, partials to add, 0 for none; CLUSTER, blocks of a row;
// FRESH where the partials are the whole sum and h is not read; ROWS where the normed rows go out as f32 too. Of what is
// added, in this order: BIASED, a bias; JOINED, the partials of a second branch, whose sum is added, where FIRST_NORMED and
// SECOND_NORMED say that a branch has a norm of its own; NORMED, a norm of the sum. SCALED: the new h is multiplied. ROWS_BY:
// the f32 rows have a weight of their own. Each adds an argument. UNNORMED where activations are those of h itself.

#include "acts.cuh"
#include "partials.cuh"

#ifndef CLUSTER
#define CLUSTER 1
#endif
#if CLUSTER > 1
#define CLUSTER_OF_A_ROW __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_OF_A_ROW
#endif

constexpr int GROUPS = ceil_div(WIDTH, ACTS_GROUP);
constexpr int SHARE = ceil_div(GROUPS, CLUSTER);  // groups of a block
constexpr int WARPS = SHARE < 32 ? SHARE : 32;
constexpr int THREADS = 32 * WARPS;
constexpr int TURNS = ceil_div(SHARE, WARPS);
constexpr int STEP = CLUSTER * WARPS;  // groups of a turn
// Partials that there are registers for: of a narrow row as many as a row of experts has.
constexpr int PREFETCHED = TURNS > 1 ? 2 : WARPS > 20 ? 4 : WARPS <= 8 && SPLIT_K <= 12 ? 12 : 8;
static_assert(WIDTH % 8 == 0, "a lane holds 8 elements");

// grid (CLUSTER * rows), block THREADS. h f32 [rows][WIDTH]; partials f32 [SPLIT_K][rows][WIDTH]; weight (WIDTH);
// captured f32 [node][captured_stride], or null; row i is node node0 + i. Live are the nodes below *count. normed f32
// [rows][WIDTH].
extern "C" __global__ void CLUSTER_OF_A_ROW __launch_bounds__(THREADS, 1) rms_norm(
    float* h, const float* partials, int rows, const float* weight, float eps, u8* acts_q8, u8* acts_f16,
    float* captured, int captured_stride, const int* count, int node0
#ifdef ROWS
    , float* normed
#endif
#ifdef ROWS_BY
    , const float* rows_weight
#endif
#ifdef BIASED
    , const float* bias
#endif
#ifdef JOINED
    , const float* joined
#endif
#ifdef FIRST_NORMED
    , const float* first_weight
#endif
#ifdef SECOND_NORMED
    , const float* second_weight
#endif
#ifdef NORMED
    , const float* branch_weight
#endif
#ifdef SCALED
    , const float* factor
#endif
) {
    __shared__ float sums[4][TURNS * STEP];  // of the whole row, by group: of h, of the sum, of either branch
    const int row = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER, group0 = rank * WARPS + warp_id();
    const int k0 = group0 * ACTS_GROUP + 8 * lane_id();
    Span<8> x[TURNS], w[TURNS];
#if SPLIT_K > 0
    PartialSpan<SPLIT_K, 8, PREFETCHED> added[TURNS];
#endif
    pdl_launch();
#if CLUSTER > 1
    cluster_arrive();
#endif
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = k0 + turn * STEP * ACTS_GROUP;
        w[turn].zero();
#ifndef UNNORMED
        if (k < WIDTH) w[turn].load(weight + k);
#endif
    }
#ifdef BIASED
    Span<8> biases[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = k0 + turn * STEP * ACTS_GROUP;
        biases[turn].zero();
        if (k < WIDTH) biases[turn].load(bias + k);
    }
#endif
    const auto load_weight = [&](Span<8>(&by)[TURNS], const float* from) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int k = k0 + turn * STEP * ACTS_GROUP;
            by[turn].zero();
            if (k < WIDTH) by[turn].load(from + k);
        }
    };
#ifdef FIRST_NORMED
    Span<8> first_by[TURNS];
    load_weight(first_by, first_weight);
#endif
#ifdef SECOND_NORMED
    Span<8> second_by[TURNS];
    load_weight(second_by, second_weight);
#endif
#ifdef NORMED
    Span<8> branch_by[TURNS];
    load_weight(branch_by, branch_weight);
#endif
#ifdef SCALED
    const float scaled_by = *factor;
#endif
    pdl_wait();
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = k0 + turn * STEP * ACTS_GROUP;
        x[turn].zero();
#ifndef FRESH
        if (k < WIDTH) x[turn].load(h + (u64)row * WIDTH + k);
#endif
#if SPLIT_K > 0
        added[turn].zero();
        if (k < WIDTH) added[turn].load(partials, rows, WIDTH, row, k);
#endif
    }
#ifdef JOINED
    PartialSpan<JOINED, 8, PREFETCHED> other[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = k0 + turn * STEP * ACTS_GROUP;
        other[turn].zero();
        if (k < WIDTH) other[turn].load(joined, rows, WIDTH, row, k);
    }
#endif
    const bool live = node0 + row < *count;
#if CLUSTER > 1
    cluster_wait();  // all blocks of the row have begun, so their shared memory is valid
#endif
    if (!live) return;

    // The row's sums of squares: each block sends those of its groups to all; after `meet` each has the whole.
    const auto send_squares = [&](const float (&values)[TURNS][8], float* to) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            float squares = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; i++) squares += values[turn][i] * values[turn][i];
            squares = warp_sum(squares);
            float* sum = to + group0 + turn * STEP;
#if CLUSTER > 1
            if (lane_id() < CLUSTER) cluster_store(sum, lane_id(), squares);
#else
            if (lane_id() == 0) *sum = squares;
#endif
        }
    };
    const auto meet = [] {
#if CLUSTER > 1
        cluster_arrive();
        cluster_wait();
#else
        __syncthreads();
#endif
    };
    const auto scale_from = [&](const float* from) {
        float total = from[0];
#pragma unroll
        for (int i = 1; i < TURNS * STEP; i++) total += from[i];
        return 1.0f / sqrtf(total / WIDTH + eps);
    };
    const auto multiply = [&](float (&values)[TURNS][8], float own, const Span<8>(&weight)[TURNS]) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            float by[8];
            weight[turn].values(by);
#pragma unroll
            for (int i = 0; i < 8; i++) values[turn][i] *= own * by[i];
        }
    };

    float values[TURNS][8];
#if SPLIT_K > 0
    Span<8> sum[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        sum[turn] = added[turn].sum();
#ifdef BIASED
        sum[turn].add(biases[turn]);
#endif
        sum[turn].values(values[turn]);
    }
#ifdef JOINED
    float more[TURNS][8];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) other[turn].sum().values(more[turn]);
#ifdef FIRST_NORMED
    send_squares(values, sums[2]);
#endif
#ifdef SECOND_NORMED
    send_squares(more, sums[3]);
#endif
#if defined(FIRST_NORMED) || defined(SECOND_NORMED)
    meet();
#endif
#ifdef FIRST_NORMED
    multiply(values, scale_from(sums[2]), first_by);
#endif
#ifdef SECOND_NORMED
    multiply(more, scale_from(sums[3]), second_by);
#endif
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
#pragma unroll
        for (int i = 0; i < 8; i++) values[turn][i] += more[turn][i];
    }
#endif
#ifdef NORMED
    send_squares(values, sums[1]);
    meet();
    multiply(values, scale_from(sums[1]), branch_by);
#endif
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) sum[turn].set(values[turn]);
#endif
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
#if SPLIT_K > 0
        x[turn].add(sum[turn]);
#endif
        x[turn].values(values[turn]);
#ifdef SCALED
#pragma unroll
        for (int i = 0; i < 8; i++) values[turn][i] *= scaled_by;
        x[turn].set(values[turn]);
#endif
    }
    send_squares(values, sums[0]);
    meet();
    const float scale = scale_from(sums[0]);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int group = group0 + turn * STEP, k = k0 + turn * STEP * ACTS_GROUP;
        if (group >= GROUPS) break;
        if (k < WIDTH) {
            if (SPLIT_K > 0) x[turn].store(h + (u64)row * WIDTH + k);
            if (captured) x[turn].store(captured + (u64)(node0 + row) * captured_stride + k);
        }
#ifdef ROWS_BY
        if (k < WIDTH) {
            Span<8> span;
            float rows_by[8], own[8];
            span.load(rows_weight + k);
            span.values(rows_by);
#pragma unroll
            for (int i = 0; i < 8; i++) own[i] = values[turn][i] * (scale * rows_by[i]);
            span.set(own);
            span.store(normed + (u64)row * WIDTH + k);
        }
#endif
#ifndef UNNORMED
        float by[8];
        w[turn].values(by);
#pragma unroll
        for (int i = 0; i < 8; i++) values[turn][i] *= scale * by[i];
#endif
#if defined(ROWS) && !defined(ROWS_BY)
        if (k < WIDTH) {
            float4* to = (float4*)(normed + (u64)row * WIDTH + k);
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                to[i / 4] = make_float4(values[turn][i], values[turn][i + 1], values[turn][i + 2], values[turn][i + 3]);
            }
        }
#endif
        acts_store({acts_q8, acts_f16}, row, group, values[turn]);
    }
}
