// experts_rows: a prompt's chunk times the matrices of its experts; pairs_swiglu: silu(gate) * up of the result.
//
// A task is 256 rows of one matrix of one entry: a warp has two blocks of 16 rows and all columns of the entry. Weights
// are converted to f16 in registers, rounded once from f32 as `dequant` does; 256 k of the entry's rows are in shared
// memory while the next 256 are copied. Sums are f32 over all of K, in one order; columns are independent.
//
// A fragment's k are in the order of the formats: lane t of a quad has k 4 t .. + 3 of 16, so its f16 values of a
// column are neighbours in shared memory.
//
// Defines: WITH_<name> of the formats.

#include "activation.cuh"
#include "features.cuh"
#include "experts_rows.cuh"
#include "formats/all.cuh"

constexpr int ROWS_WARPS = 8, ROWS_THREADS = ROWS_WARPS * WARP, ROWS_BLOCKS = 2;  // blocks of 16 rows of a warp
constexpr int TASK_BLOCKS = ROWS_WARPS * ROWS_BLOCKS;
constexpr int COLUMN_BYTES = 2 * TILE_K + 32;  // of a column in shared memory: eight columns cover all banks
constexpr int STAGE_BYTES = CHUNK_COLUMNS * COLUMN_BYTES;
constexpr int COLUMN_BLOCKS = CHUNK_COLUMNS / 8;

// 16 k of a block of rows as halves: step `step` of unit u.
template <class F>
__device__ __forceinline__ void halves_of(
    u32 (&a)[4], const typename F::Unit& unit, const typename F::Scales& scales, int u, int step) {
    float v[2][4];
    if constexpr (F::SCALING == Scaling::ROW) {
        halves_at<F>(v, unit, scales, u, step);
    } else {
        const int sub = 2 * u + (step >> 1);
        u32 codes[4];
        F::expand(unit, step >> 1, codes);
        scale_codes(scales, sub, codes);
        weights_at<F>(v, codes, scales, sub, step & 1);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) a[2 * i + r] = pack_half2(v[r][2 * i], v[r][2 * i + 1]);
    }
}

// Start copying k [k0, k0 + TILE_K) of the entry's rows; past the last row or k there are zeros.
__device__ __forceinline__ void stage_rows(
    u8* to, const half* x, int stride, const int* order, const ChunkEntry& entry, int k0, int width) {
    constexpr int CHUNKS = TILE_K / 8;
    const int chunk = threadIdx.x % CHUNKS, k = k0 + 8 * chunk;
#pragma unroll 2
    for (int column = threadIdx.x / CHUNKS; column < CHUNK_COLUMNS; column += ROWS_THREADS / CHUNKS) {
        const bool live = column < entry.count && k < width;
        const int place = entry.first + (live ? column : 0), row = order ? order[place] : place;
        cp_async16_or_zero(to + column * COLUMN_BYTES + 16 * chunk, x + size_t(row) * stride + (live ? k : 0), live);
    }
}

// Arguments of a launch that a task needs.
struct RowsJob {
    const half* x;
    int x_stride;
    const int* order;  // or null: rows are stored in the order of places
    half* out;
    int out_stride, first_block, blocks;      // of each matrix
    float scale;                              // of the upper half of an expert's rows
    const float* bias;                        // f32 [experts][bias_stride], or null
    int bias_stride;
    float bias_factor;                        // of the rows x
};

template <class F>
__device__ __forceinline__ void multiply_rows(
    const RowsJob& job, const ExpertKind& kind, const ExpertMatrix& matrix, const ChunkEntry& entry, int panel, u8* shared) {
    using Unit = typename F::Unit;
    constexpr bool AHEAD = sizeof(Unit) <= 32;  // f16 units already fill the registers
    const int lane = lane_id(), g = lane >> 2, t = lane & 3, tiles_k = kind.tiles_k;
    const int last = min(job.first_block + job.blocks, matrix.blocks) - 1;
    const int block = job.first_block + panel * TASK_BLOCKS + warp_id() * ROWS_BLOCKS;
    const int live_blocks = ceil_div(entry.count, 8);
    const u8* tile[ROWS_BLOCKS];
#pragma unroll
    for (int i = 0; i < ROWS_BLOCKS; ++i) {
        tile[i] = matrix.of(entry.expert) + size_t(min(block + i, last)) * tiles_k * F::BYTES;
    }
    prepare(F{});
    stage_rows(shared, job.x, job.x_stride, job.order, entry, 0, kind.width);
    cp_async_commit();
    float acc[ROWS_BLOCKS][COLUMN_BLOCKS][4] = {};
    Unit unit[ROWS_BLOCKS];
    if constexpr (AHEAD) {
#pragma unroll
        for (int i = 0; i < ROWS_BLOCKS; ++i) F::load_unit(unit[i], tile[i], 0, lane);
    }
#pragma unroll 1
    for (int k = 0; k < tiles_k; ++k) {
        if (k + 1 < tiles_k) {
            u8* other = shared + ((k + 1) & 1) * STAGE_BYTES;
            stage_rows(other, job.x, job.x_stride, job.order, entry, (k + 1) * TILE_K, kind.width);
        }
        cp_async_commit();
        typename F::Scales scales[ROWS_BLOCKS];
#pragma unroll
        for (int i = 0; i < ROWS_BLOCKS; ++i) scales[i] = F::decode(F::load_head(tile[i], lane), lane);
        cp_async_wait<1>();
        __syncthreads();
        const u8* staged = shared + (k & 1) * STAGE_BYTES + g * COLUMN_BYTES + 8 * t;
#pragma unroll
        for (int u = 0; u < TILE_UNITS; ++u) {
            Unit next[ROWS_BLOCKS];
#pragma unroll
            for (int i = 0; i < ROWS_BLOCKS; ++i) {
                if constexpr (AHEAD) {
                    // After the last tile the same one is requested again, and not used.
                    const u8* from = u + 1 < TILE_UNITS || k + 1 == tiles_k ? tile[i] : tile[i] + F::BYTES;
                    F::load_unit(next[i], from, (u + 1) % TILE_UNITS, lane);
                } else {
                    F::load_unit(unit[i], tile[i], u, lane);
                }
                take_scales(scales[i], unit[i]);
            }
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                u32 a[ROWS_BLOCKS][4];
#pragma unroll
                for (int i = 0; i < ROWS_BLOCKS; ++i) halves_of<F>(a[i], unit[i], scales[i], u, step);
#pragma unroll
                for (int b = 0; b < COLUMN_BLOCKS; ++b) {
                    if (b >= live_blocks) break;
                    const uint2 words = *(const uint2*)(staged + 8 * b * COLUMN_BYTES + 2 * (64 * u + 16 * step));
#pragma unroll
                    for (int i = 0; i < ROWS_BLOCKS; ++i) mma_f16_16816(acc[i][b], a[i], {words.x, words.y});
                }
            }
            if constexpr (AHEAD) {
#pragma unroll
                for (int i = 0; i < ROWS_BLOCKS; ++i) unit[i] = next[i];
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS_BLOCKS; ++i) tile[i] += F::BYTES;
        __syncthreads();  // the next iteration writes where this one read
    }
    const int half_of = (kind.matrix[0].blocks + (kind.matrices > 1 ? kind.matrix[1].blocks : 0)) * TILE_ROWS / 2;
#pragma unroll
    for (int i = 0; i < ROWS_BLOCKS; ++i) {
        if (block + i > last) break;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = matrix.offset + (block + i - job.first_block) * TILE_ROWS + g + 8 * r;
            const float scale = row >= half_of ? job.scale : 1.0f;
#ifdef BIASED
            const int whole = matrix.offset + (block + i) * TILE_ROWS + g + 8 * r;  // the row among the expert's
            const float bias = job.bias_factor * job.bias[size_t(entry.expert) * job.bias_stride + whole];
#else
            const float bias = 0.0f;
#endif
#pragma unroll
            for (int b = 0; b < COLUMN_BLOCKS; ++b) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const int column = 8 * b + 2 * t + c;
                    if (column >= entry.count) continue;
                    job.out[size_t(entry.first + column) * job.out_stride + row] =
                        __float2half_rn((acc[i][b][2 * r + c] + bias) * scale);
                }
            }
        }
    }
}

struct MultiplyRows {
    const RowsJob& job;
    const ExpertKind& kind;
    const ExpertMatrix& matrix;
    const ChunkEntry& entry;
    int panel;
    u8* shared;

    template <class F> __device__ __forceinline__ void operator()() const {
        if (matrix.format == F::NUMBER) multiply_rows<F>(job, kind, matrix, entry, panel, shared);
    }
};

__device__ __forceinline__ int panels_of(const ExpertMatrix& matrix, const RowsJob& job) {
    return ceil_div(min(job.first_block + job.blocks, matrix.blocks) - job.first_block, TASK_BLOCKS);
}

// Blocks of 16 rows [first_block, first_block + blocks) of each matrix. `scale`: of rows of up, 1 elsewhere. x f16 [..][x_stride]; out f16 [place][out_stride].
// Shared memory: 2 * STAGE_BYTES. With BIASED: `bias` f32 [experts][launch.stride], `bias_factor` what x was multiplied by.
extern "C" __global__ void __launch_bounds__(ROWS_THREADS, 1) experts_rows(
    const ExpertLaunch launch, const ChunkWork* work, const half* x, int x_stride, const int* order, half* out,
    int out_stride, int first_block, int blocks, float scale
#ifdef BIASED
    , const float* bias, float bias_factor
#endif
) {
    SHARED_DYNAMIC(shared);
    pdl_launch();
    pdl_wait();
#ifndef BIASED
    const float* const bias = nullptr;
    const float bias_factor = 1.0f;
#endif
    const RowsJob job{x, x_stride, order, out, out_stride, first_block, blocks, scale, bias, launch.stride, bias_factor};
    if (launch.used && blockIdx.x == 0) {
        for (int i = work->shared + threadIdx.x; i < work->entries; i += ROWS_THREADS) {
            atomicAdd(launch.used + work->list()[i].expert, u32(work->list()[i].count));
        }
    }
    int each[2];
#pragma unroll
    for (int kind = 0; kind < 2; ++kind) {
        const ExpertKind& of = launch.kind[kind];
        each[kind] = of.matrices > 0 ? panels_of(of.matrix[0], job) : 0;
        if (of.matrices > 1) each[kind] += panels_of(of.matrix[1], job);
    }
    const int of_all = work->shared * each[1], total = of_all + (work->entries - work->shared) * each[0];
#pragma unroll 1
    for (int task = blockIdx.x; task < total; task += gridDim.x) {
        const int index = task < of_all, local = index ? task : task - of_all, entry = local / each[index];
        const ExpertKind& kind = launch.kind[index];
        int panel = local - entry * each[index];
        const int second = panel >= panels_of(kind.matrix[0], job);
        if (second) panel -= panels_of(kind.matrix[0], job);
        const ChunkEntry found = work->list()[(index ? 0 : work->shared) + entry];
        for_each_format(MultiplyRows{job, kind, kind.matrix[second], found, panel, shared});
    }
}

// rows f16 [place][stride]: gate, and `width` further up, become silu(gate) * up in place of gate; those of the expert
// that all rows take, after `routed` * *count places, are `shared` wide. Grid (stride / 2 / (8 * ROWS_THREADS), rounded
// up; places).
extern "C" __global__ void __launch_bounds__(ROWS_THREADS) pairs_swiglu(
    const int* count, half* rows, int stride, int routed, int ranks, int width, int shared
) {
    const int k = 8 * (blockIdx.x * ROWS_THREADS + threadIdx.x), place = blockIdx.y;
    pdl_launch();
    pdl_wait();
    const int own = place < routed * *count ? width : shared;
    if (place >= ranks * *count || k >= own) return;
    half* at = rows + size_t(place) * stride + k;
    float x[8], by[8];
    load_halves(at, x);
    load_halves(at + own, by);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = activated(x[i], by[i], HEADROOM);
    store_halves(at, x);
}
