// Products by the matrices of experts, for the rows that take them (experts_in.cu, experts_out.cu).
//
// A launch goes through the entries of a pass (experts.cuh), which the device itself has written: the grid is constant,
// and its blocks take equal shares of the tasks that there are. A task is WARPS / split blocks of 16 rows of one matrix
// of one entry. `split` warps share the K of a block of rows, each its own tiles, and the first of them adds up what
// the others found, in order. That order depends on the shape of the matrix alone, so a pair has the same bits whatever
// else the pass holds. Tiles, formats and products are matmul.cuh's.
//
// An entry's activations are staged when its first task begins, while that one's weights are under way: for all of K,
// in the columns of the entry.
//
// Defines: see matmul.cuh; WARPS of a block; PER_SM blocks that share a multiprocessor.

#pragma once

#include "experts.cuh"
#define AHEAD_BYTES 96  // what leaves room for finding the way through the list
#include "matmul.cuh"

static_assert(COLUMN_BLOCKS == 1 && COLUMNS <= ENTRY_COLUMNS, "the columns of an entry");

// Which matrix of which entry: what is not kept in registers while tiles stream is found by it again.
struct Run {
    int entry;         // in the list
    int kind, matrix;  // in the launch
};

// What a launch works on.
struct Job {
    const ExpertLaunch& launch;
    const ExpertWork* work;
    const float* weights;  // by pair, or null
    float* out;
    int rows;

    __device__ __forceinline__ const ExpertKind& kind(const Run& run) const { return launch.kind[run.kind]; }
    __device__ __forceinline__ const ExpertMatrix& matrix(const Run& run) const { return kind(run).matrix[run.matrix]; }
    __device__ __forceinline__ const ExpertEntry& entry(const Run& run) const { return work->list()[run.entry]; }
};

// Finished rows of an entry's pairs, times the pair's weight where there are weights.
struct PairSink {
    const Job& job;
    const Run& run;

    __device__ __forceinline__ void operator()(int row0, const Accumulator& acc) const {
        const ExpertEntry& entry = job.entry(run);
        const int lane = lane_id(), row = job.matrix(run).offset + row0 + (lane >> 2), column = 2 * (lane & 3);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            if (column + c >= entry.count) continue;
            const int pair = entry.pair[column + c];
            const float weight = job.weights ? job.weights[pair] : 1.0f;
            float* at = job.out + size_t(place_of(pair, job.rows)) * job.launch.stride + row;
            at[0] = acc[0][c] * weight;
            at[8] = acc[0][2 + c] * weight;
        }
    }
};

// Where the block is, in shared memory: what is not looked at while tiles stream costs no registers.
struct Walk {
    Run run;
    int task, tasks, first;  // of all; of the run, and its first one in the matrix
    int entry, tables;       // whose activations are staged, and the format whose tables are
    Staged form;
};

// The run of a walk. All threads of the block call.
template <class F, class Input>
__device__ __forceinline__ void stream_tasks(const Job& job, const Input& input, u8* shared, Walk& walk) {
    using M = Meeting<F>;
    constexpr int SLOTS_BYTES = 2 * WARPS * WARP * sizeof(float4);
    u8* const staged = shared + SLOTS_BYTES;
    const Run& run = walk.run;
    const int lane = lane_id(), tasks = walk.tasks;
    const auto split = [&] { return job.kind(run).split; };
    const auto part = [&] { return warp_id() & (split() - 1); };
    const auto side_by_side = [&] { return WARPS / split(); };
    const auto tiles_k = [&] { return job.kind(run).tiles_k; };
    int block = walk.first * side_by_side() + warp_id() / split();  // of 16 rows, mine
    const int end = min((walk.first + tasks) * side_by_side(), job.matrix(run).blocks);
    const int k0 = tiles_k() * part() / split(), k1 = tiles_k() * (part() + 1) / split();
    const u8* tile = job.matrix(run).weights + job.entry(run).expert * job.matrix(run).step +
                     (size_t(block) * tiles_k() + k0) * F::BYTES;

    Ahead<F> ahead;
    if (block < end) ahead.begin(tile, lane);
    constexpr Staged FORM = M::F16_ACTS ? Staged::F16 : Staged::Q8;
    const bool fresh = walk.entry != run.entry || walk.form != FORM, tables = walk.tables != F::NUMBER;
    if (fresh) {
        input.template stage<F>(staged, job.kind(run), job.entry(run));
        cp_async_commit();
        cp_async_wait<0>();
    }
    if (tables) prepare(F{});
    __syncthreads();
    if (threadIdx.x == 0) walk.entry = run.entry, walk.form = FORM, walk.tables = F::NUMBER;

#pragma unroll 1
    for (int i = 0; i < tasks; ++i, block += side_by_side()) {
        Accumulator acc = {};
        if (block < end) {
            const bool last = block + side_by_side() >= end;
#pragma unroll 1
            for (int k = k0; k < k1; ++k) {
                const u8* acts = staged + k * M::STAGE;
                if (k + 1 == k1 && last) {
                    multiply_tile<F, false>(ahead, tile, tile, acts, lane, acc);
                } else {
                    const u8* next = tile + (k + 1 < k1 ? 1 : side_by_side() * tiles_k() - (k1 - k0 - 1)) * F::BYTES;
                    multiply_tile<F, true>(ahead, tile, next, acts, lane, acc);
                    tile = next;
                }
            }
        }
        if (split() > 1) {
            // Two sets of slots: what is read now is not written before the barrier after the next.
            float4* slot = (float4*)shared + ((i & 1) * WARPS + warp_id()) * WARP + lane;
            if (part() > 0) *slot = make_float4(acc[0][0], acc[0][1], acc[0][2], acc[0][3]);
            __syncthreads();
            if (part() > 0) continue;
#pragma unroll 1
            for (int other = 1; other < split(); ++other) {
                const float4 v = slot[other * WARP];
                acc[0][0] += v.x, acc[0][1] += v.y, acc[0][2] += v.z, acc[0][3] += v.w;
            }
        }
        if (block < end) deliver<F>(PairSink{job, run}, block * TILE_ROWS, acc);
    }
}

template <class Input> struct StreamTasks {
    const Job& job;
    const Input& input;
    u8* shared;
    Walk& walk;
    int format;

    template <class F> __device__ __forceinline__ void operator()() const {
        if (format == F::NUMBER) stream_tasks<F>(job, input, shared, walk);
    }
};

__device__ __forceinline__ int tasks_of(const ExpertKind& kind) {
    return kind.matrix[0].tasks + (kind.matrices > 1 ? kind.matrix[1].tasks : 0);
}

// The thread block's share of all tasks.
template <class Input>
__device__ __forceinline__ void stream_experts(const Job& job, const Input& input, u8* shared) {
    __shared__ Walk walk;
    const auto of_all = [&] { return job.work->shared * tasks_of(job.launch.kind[1]); };
    const auto share = [&](int block) {
        const int total = of_all() + (job.work->entries - job.work->shared) * tasks_of(job.launch.kind[0]);
        return int(u32(total) * u32(block) / gridDim.x);
    };
    if (threadIdx.x == 0) {
        walk.task = share(blockIdx.x), walk.tasks = 0;
        walk.entry = walk.tables = -1, walk.form = Staged::NONE;
    }
#pragma unroll 1
    for (;;) {
        __syncthreads();  // the run before is done with: nobody reads what it staged
        if (threadIdx.x == 0) {
            const int task = walk.task += walk.tasks;
            Run run;
            run.kind = task < of_all();
            const ExpertKind& kind = job.launch.kind[run.kind];
            const int local = run.kind ? task : task - of_all(), each = tasks_of(kind), index = local / each;
            const int at = local - index * each;
            run.matrix = at >= kind.matrix[0].tasks;
            run.entry = (run.kind ? 0 : job.work->shared) + index;
            walk.run = run;
            walk.first = run.matrix ? at - kind.matrix[0].tasks : at;
            walk.tasks = min(share(blockIdx.x + 1) - task, kind.matrix[run.matrix].tasks - walk.first);
        }
        __syncthreads();
        if (walk.tasks <= 0) break;
        for_each_format(StreamTasks<Input>{job, input, shared, walk, job.matrix(walk.run).format});
    }
}
