// Two branches of a layer that are added to the residual stream together: each one's partials are added up and normed, and
// the sum of both becomes one partial for the next norm (norm.cu). A thread block per row. Bound by latency.
//
// Defines: WIDTH, elements of a row, a multiple of 8; FIRST, SECOND, partials of either; NORMED_FIRST and NORMED_SECOND
// where it has a norm of its own.

#include "partials.cuh"

constexpr int THREADS = 256;
constexpr int TURNS = ceil_div(WIDTH, 8 * THREADS);

// A branch of a row: x becomes its elements, zeros past the row's end.
template <int COUNT, bool NORMED>
__device__ __forceinline__ void load_branch(
    float (&x)[TURNS][8], const float* partials, int rows, int row, const float* weight, float eps, float* scratch
) {
    float squares = 0.0f;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = 8 * (threadIdx.x + turn * THREADS);
        PartialSpan<COUNT, 8> span;
        span.zero();
        if (k < WIDTH) span.load(partials, rows, WIDTH, row, k);
        span.sum().values(x[turn]);
#pragma unroll
        for (int i = 0; i < 8; i++) squares += x[turn][i] * x[turn][i];
    }
    if constexpr (NORMED) {
        const float scale = 1.0f / sqrtf(block_sum<THREADS>(squares, scratch) / WIDTH + eps);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int k = 8 * (threadIdx.x + turn * THREADS);
            Span<8> span;
            float by[8];
            span.zero();
            if (k < WIDTH) span.load(weight + k);
            span.values(by);
#pragma unroll
            for (int i = 0; i < 8; i++) x[turn][i] *= scale * by[i];
        }
    }
}

#ifdef NORMED_FIRST
constexpr bool FIRST_NORMED = true;
#else
constexpr bool FIRST_NORMED = false;
#endif
#ifdef NORMED_SECOND
constexpr bool SECOND_NORMED = true;
#else
constexpr bool SECOND_NORMED = false;
#endif

// first f32 [FIRST][rows][WIDTH], second likewise; weights (WIDTH) or null; the sum is stored as the first of `first`.
// Grid (rows). Row i is node node0 + i. Live are the nodes below *count.
extern "C" __global__ void __launch_bounds__(THREADS) join_branches(
    float* first, const float* second, int rows, const float* first_weight, const float* second_weight, float eps,
    const int* count, int node0
) {
    __shared__ float scratch[THREADS / WARP];
    const int row = blockIdx.x;
    pdl_launch();
    pdl_wait();
    if (node0 + row >= *count) return;
    float x[TURNS][8], more[TURNS][8];
    load_branch<FIRST, FIRST_NORMED>(x, first, rows, row, first_weight, eps, scratch);
    load_branch<SECOND, SECOND_NORMED>(more, second, rows, row, second_weight, eps, scratch);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int k = 8 * (threadIdx.x + turn * THREADS);
        if (k >= WIDTH) continue;
#pragma unroll
        for (int i = 0; i < 8; i++) x[turn][i] += more[turn][i];
        Span<8> sum;
        sum.set(x[turn]);
        sum.store(first + (u64)row * WIDTH + k);
    }
}
