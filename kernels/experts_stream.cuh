// Products by the matrices of experts, for the rows that take them (experts_in.cu, experts_out.cu).
//
// A launch processes the entries of a pass (experts.cuh), which the device itself has written. The grid is constant,
// and its thread blocks take equal shares of all blocks of 16 rows. Tiles, formats and products are
// matmul.cuh's.
//
// The K of a block of rows has `split` parts, and its sum is that of the parts in order: this depends only on the shape of the
// matrix, so a pair has the same bits whatever else the pass holds. Where there is little work, `split`
// warps share a block of rows: each leaves the sum of its part in shared memory, and after SLOT_SETS blocks they are
// added. Parts differ by a tile, so a warp takes another one of each block. Else each warp has its own block and takes
// one part after the other, without waiting for other warps.
//
// An entry's activations are staged when its first rows begin, while their weights are being loaded: for all of K, in
// the columns of the entry.
//
// Defines: see matmul.cuh; WARPS of a block; PER_SM blocks that share a multiprocessor; BIASED where all experts have
// biases, which adds an argument.

#pragma once

#include "experts.cuh"
#define AHEAD_BYTES 96  // leaves registers for walking the list
#include "matmul.cuh"

constexpr u32 UNSHARED_FROM = 2;  // from this many blocks of rows per warp of the grid on, none is shared
constexpr int SLOT_SETS = 4;      // turns of shared blocks between two barriers; a power of two
constexpr int SLOTS_BYTES = SLOT_SETS * WARPS * WARP * sizeof(float4);  // of shared memory, before staged activations

// A kernel has BIAS_PARAMETER as its last one, and BIAS is what was given.
#ifdef BIASED
#define BIAS_PARAMETER , const float* bias
#define BIAS bias
#else
#define BIAS_PARAMETER
#define BIAS nullptr
#endif

static_assert(COLUMN_BLOCKS == 1 && COLUMNS <= ENTRY_COLUMNS, "the columns of an entry");

// Which matrix of which entry: all that is not kept in registers while tiles stream is looked up by it.
struct Run {
    int entry;         // in the list
    int kind, matrix;  // in the launch
};

// What a launch works on.
struct Job {
    const ExpertLaunch& launch;
    const ExpertWork* work;
    const float* weights;  // by pair, or with CHOOSES by rank; or null
    float* out;
    int rows;
    const float* bias;     // f32 [experts][stride], with BIASED

    __device__ __forceinline__ float weight(int pair) const {
#ifdef CHOOSES
        pair /= ACTS_ROWS;
#endif
        return weights ? weights[pair] : 1.0f;
    }
    __device__ __forceinline__ const ExpertKind& kind(const Run& run) const { return launch.kind[run.kind]; }
    __device__ __forceinline__ const ExpertMatrix& matrix(const Run& run) const { return kind(run).matrix[run.matrix]; }
    __device__ __forceinline__ const ExpertEntry& entry(const Run& run) const { return work->list()[run.entry]; }
};

// Finished rows of an entry's pairs, with the expert's biases, times the pair's weight where there are weights.
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
            const float weight = job.weight(pair);
            float* at = job.out + size_t(place_of(pair, job.rows)) * job.launch.stride + row;
#ifdef BIASED
            const float* bias = job.bias + size_t(entry.expert) * job.launch.stride + row;
            at[0] = (acc[0][c] + bias[0]) * weight;
            at[8] = (acc[0][2 + c] + bias[8]) * weight;
#else
            at[0] = acc[0][c] * weight;
            at[8] = acc[0][2 + c] * weight;
#endif
        }
    }
};

__device__ __forceinline__ int blocks_of(const ExpertKind& kind) {
    return kind.matrix[0].blocks + (kind.matrices > 1 ? kind.matrix[1].blocks : 0);
}

// The block's place in the list, in shared memory: it costs no registers while tiles stream. Thread 0 calls the functions.
struct Walk {
    Run run;
    bool unshared;           // whether a warp has blocks of 16 rows of its own
    int at, end;             // this thread block's share of the blocks of 16 rows of all entries
    int shared, of_all;      // entries of the expert that all rows take, and their blocks of rows
    int first, blocks;       // of the run, in the matrix
    int tiles_k;             // of the run's matrix
    int split, together;     // parts of its K and warps that share a block of rows: powers of two, as exponents
    int entry, tables;       // whose activations are staged, and the format whose tables are
    Staged form;

    // The share, and its first run. Of the work only the numbers of entries are read.
    __device__ __forceinline__ void begin(const Job& job) {
        const int of_shared = job.work->shared, of_chosen = job.work->entries - of_shared;
        shared = of_shared, of_all = of_shared * blocks_of(job.launch.kind[1]);
        const u32 total = of_all + of_chosen * blocks_of(job.launch.kind[0]);
        unshared = total >= UNSHARED_FROM * WARPS * gridDim.x;
        // Thread blocks that share a multiprocessor take neighbouring shares, which together are even.
        const u32 processors = gridDim.x / PER_SM;
        u32 turn = 0;
#pragma unroll
        for (u32 i = 1; i < PER_SM; ++i) turn += blockIdx.x >= i * processors;
        const u32 me = (blockIdx.x - turn * processors) * PER_SM + turn;
        if (unshared || !within_matrices(job, of_chosen, total, me)) {
            const auto cut = [&](u32 block) {
                const u32 to = total * block / gridDim.x;
                return int(unshared && block < gridDim.x ? to / WARPS * WARPS : to);
            };
            at = cut(me), end = cut(me + 1);
        }
        blocks = 0, entry = tables = -1, form = Staged::NONE;
        next(job);
    }

    // The run after this one: without blocks where the share ends.
    __device__ __forceinline__ void next(const Job& job) {
        at += blocks;
        run.kind = at < of_all;
        const ExpertKind& kind = job.launch.kind[run.kind];
        const int local = run.kind ? at : at - of_all, each = blocks_of(kind), index = local / each;
        const int inside = local - index * each;
        run.matrix = inside >= kind.matrix[0].blocks;
        run.entry = (run.kind ? 0 : shared) + index;
        first = run.matrix ? inside - kind.matrix[0].blocks : inside;
        blocks = min(end - at, kind.matrix[run.matrix].blocks - first);
        tiles_k = kind.tiles_k, split = __ffs(kind.split) - 1, together = unshared ? 0 : split;
    }

private:
    // Where it makes shares hardly less even, each is in one matrix of one entry: a thread block that goes on to another
    // one waits for its first weights again, and the others wait for it.
    __device__ __forceinline__ bool within_matrices(const Job& job, int of_chosen, u32 total, u32 me) {
        u32 from = 0, begin = 0;  // thread blocks and blocks of rows before the kind's
        at = end = 0;
#pragma unroll
        for (int k = 1; k >= 0; --k) {
            const ExpertKind& kind = job.launch.kind[k];
            const u32 entries = k ? shared : of_chosen, size = kind.matrix[0].blocks, parts = entries * kind.matrices;
            if (parts == 0) continue;
            const u32 each = gridDim.x * size / total;  // thread blocks of a matrix
            if (size * kind.matrices != blocks_of(kind)) return false;
            if (each == 0 || ceil_div(size, each) > total / gridDim.x + 1) return false;
            if (me >= from && me < from + parts * each) {
                const u32 matrix = (me - from) / each, part = me - from - matrix * each, zero = begin + matrix * size;
                at = zero + size * part / each, end = zero + size * (part + 1) / each;
            }
            from += parts * each, begin += parts * size;
        }
        return true;
    }
};

// The run of a walk. All threads of the block call.
template <class F, class Input>
__device__ __forceinline__ void stream_run(const Job& job, const Input& input, u8* shared, Walk& walk) {
    using M = Meeting<F>;
    u8* const staged = shared + SLOTS_BYTES;
    const Run& run = walk.run;
    const int lane = lane_id(), warp = warp_id();
    // In registers: each was a chain of five loads and shifts in each turn.
    const int tiles_k = walk.tiles_k, split = walk.split, together = walk.together, side_by_side = WARPS >> together;
    const auto part_begin = [&](int part) { return tiles_k * part >> split; };
    const auto part_of = [&](int turn) { return (warp + turn) & ((1 << together) - 1); };
    const u8* const weights = job.matrix(run).of(job.entry(run).expert);
    const auto tile_at = [&](int block, int k) { return weights + (size_t(block) * tiles_k + k) * F::BYTES; };
    int block = walk.first + (warp >> together);  // of 16 rows, this warp's
    const int end = walk.first + walk.blocks;
    const u8* tile = tile_at(block, part_begin(part_of(0)));

    Ahead<F> ahead;
    if (block < end) ahead.begin(tile, lane);
    constexpr Staged FORM = M::F16_ACTS ? Staged::F16 : Staged::Q8;
    const bool fresh = walk.entry != run.entry || walk.form != FORM, tables = walk.tables != F::NUMBER;
    if (fresh) input.template stage<F>(staged, job.kind(run), job.entry(run));
    cp_async_commit();
    cp_async_wait<0>();
    if (tables) prepare(F{});
    __syncthreads();
    if (threadIdx.x == 0) walk.entry = run.entry, walk.form = FORM, walk.tables = F::NUMBER;

    const auto finish = [&](int of, const float (&total)[4]) {
        deliver<F>(PairSink{job, run}, of * TILE_ROWS, {{total[0], total[1], total[2], total[3]}});
    };
    float4* const slots = (float4*)shared + lane;
#pragma unroll 1
    for (int turn = 0; turn * side_by_side < walk.blocks; ++turn, block += side_by_side) {
        float total[4] = {-0.0f, -0.0f, -0.0f, -0.0f};  // zero: adding it changes nothing
        const int first = part_of(turn);
        if (block < end) {
            Accumulator acc = {};
            int part = first, border = part_begin(part + 1);
            const int stop = together > 0 ? border : tiles_k;
            const bool last = block + side_by_side >= end;
            const u8* const after = tile_at(block + side_by_side, part_begin(part_of(turn + 1)));
#pragma unroll 1
            for (int k = part_begin(part); k < stop; ++k) {
                const u8* acts = staged + k * M::STAGE;
                const u8* next = k + 1 < stop ? tile + F::BYTES : after;
                multiply_tile<F>(ahead, tile, k + 1 < stop || !last, next, acts, lane, Added{acc});
                tile = next;
                if (k + 1 == border) {
                    border = part_begin(++part + 1);
#pragma unroll
                    for (int i = 0; i < 4; ++i) total[i] += acc[0][i], acc[0][i] = 0.0f;
                }
            }
            if (together == 0) finish(block, total);
        }
        if (together == 0) continue;
        const int set = turn & (SLOT_SETS - 1), group = warp & -(1 << together);  // the first warp that shares the block
        slots[(set * WARPS + group + first) * WARP] = make_float4(total[0], total[1], total[2], total[3]);
        if (set + 1 < SLOT_SETS && (turn + 1) * side_by_side < walk.blocks) continue;
        __syncthreads();
        const int begin = walk.first + (turn - set) * side_by_side;
#pragma unroll 1
        for (int of = begin + warp; of < min(end, begin + (set + 1) * side_by_side); of += WARPS) {
            const float4* from = slots + ((of - begin) << together) * WARP;
            float sum[4] = {-0.0f, -0.0f, -0.0f, -0.0f};
#pragma unroll 1
            for (int one = 0; one < 1 << together; ++one) {
                const float4 v = from[one * WARP];
                sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
            }
            finish(of, sum);
        }
        __syncthreads();
    }
}

template <class Input> struct StreamRun {
    const Job& job;
    const Input& input;
    u8* shared;
    Walk& walk;
    int format;

    template <class F> __device__ __forceinline__ void operator()() const {
        if (format == F::NUMBER) stream_run<F>(job, input, shared, walk);
    }
};

// The thread block's share of all blocks of rows, which `walk` has begun; a barrier has followed.
template <class Input>
__device__ __forceinline__ void stream_experts(const Job& job, const Input& input, u8* shared, Walk& walk) {
    if (job.launch.used && blockIdx.x == 0) {
        const int first = job.work->shared, count = job.work->entries;
        for (int i = first + threadIdx.x; i < count; i += WARPS * WARP) {
            const ExpertEntry& entry = job.work->list()[i];
            atomicAdd(job.launch.used + entry.expert, u32(entry.count));
        }
    }
#pragma unroll 1
    while (walk.blocks > 0) {
        for_each_format(StreamRun<Input>{job, input, shared, walk, job.matrix(walk.run).format});
        __syncthreads();  // the run is complete: its staged activations are no longer read
        if (threadIdx.x == 0) walk.next(job);
        __syncthreads();
    }
}

// The same from the beginning, for all threads of the block.
template <class Input> __device__ __forceinline__ void stream_experts(const Job& job, const Input& input, u8* shared) {
    __shared__ Walk walk;
    if (threadIdx.x == 0) walk.begin(job);
    __syncthreads();
    stream_experts(job, input, shared, walk);
}
