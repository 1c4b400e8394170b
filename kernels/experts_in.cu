// experts_in: gate and up of the chosen experts, for the rows that take them.
//
// Activations are gathered by address: column c of a product is row pair[c] of what the norm wrote. Weights are found
// through the list, so none is read before the rows are routed. Later kernels may begin when those before have ended.
// Bound by memory in wide passes, by latency in passes of one row (docs/notes/steps.md, "One row of experts").
// Defines: see experts_stream.cuh; CHOOSES where the row of a pass of one is routed here (experts_one_row.cuh).

#include "experts_stream.cuh"
#ifdef CHOOSES
#include "experts_one_row.cuh"
#endif

// Rows of activations of a pass, as the norm wrote them.
struct GatheredRows {
    const u8 *q8, *f16;

    // Rows of the entry's pairs as the columns of a block, [k][STAGE].
    template <class F>
    __device__ __forceinline__ void stage(u8* staged, const ExpertKind& kind, const ExpertEntry& entry) const {
        using M = Meeting<F>;
        constexpr int BLOCKS = ACTS_ROWS / 8, GROUP = (M::F16_ACTS ? 1 : 2) * BLOCKS * M::BLOCK;
        constexpr int VALUES = M::F16_ACTS ? 32 : 16;  // pieces of 16 B of a row
        const int lane = lane_id(), columns = entry.count;
#pragma unroll 1
        for (int i = warp_id(); i < kind.tiles_k * columns; i += WARPS) {
            const int k = i / columns, c = i - k * columns, row = entry.pair[c] % ACTS_ROWS, r = row & 7;
            const u8* from = (M::F16_ACTS ? f16 : q8) + size_t(k) * GROUP + (row >> 3) * M::BLOCK;
            u8* to = staged + k * M::STAGE;
            const int unit = (lane >> 2) * 512 + (lane & 3) * 16;
            if (lane < VALUES) cp_async16(to + unit + c * 64, from + unit + r * 64);
            constexpr int SUMS = M::F16_ACTS ? ACTS_F16_SUMS : ACTS_Q8_SUMS;
            if (lane == 0) cp_async16(to + SUMS + 16 * c, from + SUMS + 16 * r);
            if (lane == 1) *(float*)(to + M::SCALES + 4 * c) = *(const float*)(from + M::SCALES + 4 * r);
            if constexpr (M::F16_ACTS) {
                if (lane == 2) cp_async16(to + ACTS_F16_SUMS_LOW + 16 * c, from + ACTS_F16_SUMS_LOW + 16 * r);
            } else if constexpr (M::SECOND > 0) {
                const u8* second = from + BLOCKS * M::BLOCK;
                u8* other = to + ACTS_Q8_SECONDS;
                if constexpr (PLANE_BITS > 0) {
                    if (lane < VALUES) cp_async16(other + unit + c * 64, second + unit + r * 64);
                    if (lane == 2) cp_async16(other + SUMS + 16 * c, second + SUMS + 16 * r);
                } else {
                    if (lane == 2) *(float*)(other + 4 * c) = *(const float*)(second + M::SCALES + 4 * r);
                }
            }
        }
    }
};

#ifdef CHOOSES

// Fills the tables of the walk's first run, and stages its activations before its weights are known. A barrier must follow.
struct StageFirst {
    const Job& job;
    const GatheredRows& input;
    u8* shared;
    Walk& walk;

    template <class F> __device__ __forceinline__ void operator()() const {
        const Run& run = walk.run;
        if (walk.blocks <= 0 || job.matrix(run).format != F::NUMBER) return;
        prepare(F{});
        pdl_wait();
        input.template stage<F>(shared + SLOTS_BYTES, job.kind(run), job.entry(run));
        if (threadIdx.x > 0) return;
        walk.entry = run.entry, walk.form = Meeting<F>::F16_ACTS ? Staged::F16 : Staged::Q8, walk.tables = F::NUMBER;
    }
};

// As below, for a pass of one row, which is live where node0 < *count: scores f32 (EXPERTS, then the shared expert's),
// and `scale`, as in router.cu.
extern "C" __global__ void __launch_bounds__(MATMUL_THREADS, PER_SM) experts_in(
    const ExpertLaunch launch, const u8* acts_q8, const u8* acts_f16, float* out, int rows, const float* scores,
    float scale, const int* count, int node0 BIAS_PARAMETER CHOICE_PARAMETERS) {
    SHARED_DYNAMIC(shared);
    __shared__ OneRow row;
    __shared__ Walk walk;
    const Job job{launch, &row.work, nullptr, out, rows, BIAS};
    const GatheredRows input{acts_q8, acts_f16};
    if (threadIdx.x == 0) row.begin(), walk.begin(job);
    __syncthreads();
    for_each_format(StageFirst{job, input, shared, walk});
    pdl_wait();
    pdl_launch();
    if (node0 >= *count) return;
    row.choose<false>(scores, CHOOSING);
    stream_experts(job, input, shared, walk);
}

#else

// acts_q8/f16: activations of up to 64 rows; a form that no matrix needs may be null. out f32 [pair's place]
// [launch.stride]. Shared memory: 2,048 B per warp, then tiles_k * bytes of a staged tile.
extern "C" __global__ void __launch_bounds__(MATMUL_THREADS, PER_SM) experts_in(
    const ExpertLaunch launch, const ExpertWork* work, const u8* acts_q8, const u8* acts_f16, float* out,
    int rows BIAS_PARAMETER) {
    SHARED_DYNAMIC(shared);
    pdl_wait();
    pdl_launch();
    stream_experts(Job{launch, work, nullptr, out, rows, BIAS}, GatheredRows{acts_q8, acts_f16}, shared);
}

#endif
