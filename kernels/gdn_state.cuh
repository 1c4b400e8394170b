// The recurrent state in registers and its one step, S := a S + k u^T. Every node of gdn_recurrence and gdn_single_row,
// their commits and gdn_flush use this same code, so that all of them give the same bits.
//
// The columns of a key head's value heads, HEADS * DIM of them, are numbered one head after the other; column c is of
// value head key_head + c / DIM * K_HEADS. A block holds WIDTH of them, a warp 4 COLUMNS, a lane 16 rows of COLUMNS:
//     rows 16 * segment .. with segment = lane / 4, columns in RUNS runs of two neighbours, the last of an odd number
//     of columns single; run r of all warps is one range of the block's columns
// so that one read of a row of K, spread over the segments, serves all the state that a lane has. How the columns are
// assigned to lanes, warps and blocks does not change a bit: no sum crosses columns.
//
// Defines: K_HEADS, V_HEADS; COLUMNS of a lane, WARPS of a block.

#pragma once

#include "gdn.cuh"

constexpr int HEADS = V_HEADS / K_HEADS;          // value heads of a key head
constexpr int PAIRS = COLUMNS / 2;                // runs of two neighbouring columns
constexpr int RUNS = ceil_div(COLUMNS, 2);        // a warp's lanes have 4 or 8 columns of one head in a run
constexpr int WIDTH = 4 * COLUMNS * WARPS;        // columns of a block
constexpr int SLICES = HEADS * DIM / WIDTH;       // blocks of a key head
constexpr int THREADS = 32 * WARPS;
constexpr int BATCH = 16;                         // rows of the pending path that are staged together
static_assert(V_HEADS % K_HEADS == 0 && HEADS * DIM % WIDTH == 0, "blocks hold whole parts of one key head");
static_assert(WIDTH <= 128, "a lane copies 4 columns of a row");
static_assert(PAIRS == 0 || WIDTH % 8 == 0, "a run lies in one head");

__device__ __forceinline__ int block_key_head() { return blockIdx.x / SLICES; }
__device__ __forceinline__ int block_column() { return blockIdx.x % SLICES * WIDTH; }
// Of a column of the block's key head.
__device__ __forceinline__ int value_head(int column) { return block_key_head() + column / DIM * K_HEADS; }

// Of a block that makes rows, see gdn_rows.cuh: the f4-th float4 of its row of q, of k, or of its columns of v, as the
// first of 4 channels of the convolution.
enum Role { QUERY, KEY, VALUE };
__device__ __forceinline__ int block_channel(int role, int f4) {
    const int column = block_column() + 4 * f4;
    return role == VALUE ? (2 * K_HEADS + value_head(column)) * DIM + column % DIM
                         : (role * K_HEADS + block_key_head()) * DIM + 4 * f4;
}
// What all blocks of a key head make is stored by one: k by the first, a value head's decay by that of its first column.
__device__ __forceinline__ bool stores_keys() { return block_column() == 0; }
__device__ __forceinline__ bool stores_decay(int member) {
    const int begins = member * DIM - block_column();
    return begins >= 0 && begins < WIDTH;
}

// A barrier of the warps with the state. Kernels have others beside them.
__device__ __forceinline__ void state_barrier() { warps_barrier<1, THREADS>(); }

// A value that is the same in all lanes. The shuffle tells the compiler so, which then expects no divergence.
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(FULL_WARP, v, 0); }

// Where the f4-th float4 of a row of DIM floats is in shared memory. Reads of the 8 segments of one row, and of 8
// neighbouring rows at one f4, are free of bank conflicts.
__device__ __forceinline__ int swizzled(int row, int f4) { return row * (DIM / 4) + (f4 ^ (f4 >> 3) ^ (row & 7)); }

// A lane's columns by runs: the first one's place in the block (`within`), `member` of the key head's value heads and
// `column` in it.
struct Place {
    int within[RUNS], member[RUNS], column[RUNS];

    __device__ __forceinline__ static Place of_lane() {
        Place place;
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            const int width = r < PAIRS ? 2 : 1, first = r * 8 * WARPS + warp_id() * 4 * width;
            place.within[r] = first + width * (lane_id() & 3);
            place.member[r] = (block_column() + first) / DIM;
            place.column[r] = (block_column() + first) % DIM + width * (lane_id() & 3);
        }
        return place;
    }
    __device__ __forceinline__ int head(int r) const { return block_key_head() + member[r] * K_HEADS; }
    // Where run r of row `row` begins in an array [V_HEADS][rows][DIM].
    __device__ __forceinline__ u64 at(int r, int rows, int row) const {
        return ((u64)head(r) * rows + row) * DIM + column[r];
    }
};

// Run r of all columns of a lane.
__device__ __forceinline__ void run_load(int r, float* to, const float* from) {
    if (r < PAIRS) {
        const float2 two = *(const float2*)from;
        to[2 * r] = two.x, to[2 * r + 1] = two.y;
    } else {
        to[2 * r] = *from;
    }
}
__device__ __forceinline__ void run_store(int r, float* to, const float* from) {
    if (r < PAIRS) *(float2*)to = make_float2(from[2 * r], from[2 * r + 1]);
    else *to = from[2 * r];
}

struct StateTile {
    float s[16][COLUMNS];

    // `states`: [V_HEADS][DIM][DIM]
    __device__ __forceinline__ void load(const float* states, const Place& place) {
#pragma unroll
        for (int row = 0; row < 16; row++)
#pragma unroll
            for (int r = 0; r < RUNS; r++) {
                run_load(r, s[row], states + place.at(r, DIM, lane_id() / 4 * 16) + row * DIM);
            }
    }

    __device__ __forceinline__ void store(float* states, const Place& place) const {
#pragma unroll
        for (int row = 0; row < 16; row++)
#pragma unroll
            for (int r = 0; r < RUNS; r++) {
                run_store(r, states + place.at(r, DIM, lane_id() / 4 * 16) + row * DIM, s[row]);
            }
    }

    // S := a S + k u^T, a node's state from its parent's, in two steps, since the first does not depend on u. Each call
    // does 4 rows. k: this segment's values; a: by runs.
    __device__ __forceinline__ void decay(int part, const float (&a)[RUNS]) {
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) s[4 * part + j][c] = __fmul_rn(a[c / 2], s[4 * part + j][c]);
    }
    __device__ __forceinline__ void add(int part, float4 k, const float (&u)[COLUMNS]) {
        const float of[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) s[4 * part + j][c] = __fmaf_rn(of[j], u[c], s[4 * part + j][c]);
    }
    __device__ __forceinline__ void advance(
        const float4 (&k)[4], const float (&u)[COLUMNS], const float (&a)[RUNS]
    ) {
#pragma unroll
        for (int part = 0; part < 4; part++) decay(part, a), add(part, k[part], u);
    }

    // This segment's 4 values of `part` times the tile, added to the columns' sums.
    __device__ __forceinline__ void multiply(float (&sum)[COLUMNS], int part, float4 x) const {
        const float of[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sum[c] = __fmaf_rn(of[j], s[4 * part + j][c], sum[c]);
    }
};

// A lane's part of q_i k_i.
__device__ __forceinline__ float multiply(float4 x, float4 y) {
    return __fmaf_rn(x.w, y.w, __fmaf_rn(x.z, y.z, __fmaf_rn(x.y, y.y, __fmul_rn(x.x, y.x))));
}

// A node's u in one column, `ks` being its K S.
__device__ __forceinline__ float node_u(float beta, float a, float ks, float value) {
    return __fmul_rn(beta, __fmaf_rn(-a, ks, value));
}

// Rows of the pending path in shared memory, BATCH of them at a time.
struct Staged {
    float4* k;  // [BATCH][DIM / 4], swizzled
    float* u;   // [BATCH][WIDTH]
    float* a;   // [HEADS][BATCH]

    static constexpr int BYTES = BATCH * (DIM + WIDTH + HEADS) * 4;

    __device__ __forceinline__ static Staged in(u8* shared) {
        float4* const k = (float4*)shared;
        float* const u = (float*)(k + BATCH * DIM / 4);
        return {k, u, u + BATCH * WIDTH};
    }

    // Copy the next `count` rows of the pending path from the begin-th on, a warp per row. k: of the block's key head; u,
    // decay: of all value heads. The rows are there after cp_async_wait and a barrier.
    __device__ __forceinline__ void copy(
        const StepState* st, int begin, int count, const float* k_head, const float* all_u, const float* decay,
        int capacity
    ) const {
        constexpr int TURNS = ceil_div(BATCH, WARPS);
        static_assert(MAX_NODES % BATCH == 0, "a batch of the path can be read whatever its length");
        const int lane = lane_id(), column = block_column() + 4 * lane;
        int node[TURNS];  // loaded together, and with the length of the path
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            node[turn] = st->pending_path[begin + min(warp_id() + turn * WARPS, BATCH - 1)];
        }
        const int factor_row = threadIdx.x % BATCH, factor_node = st->pending_path[begin + factor_row];
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int row = warp_id() + turn * WARPS;
            if (row >= count) continue;
            cp_async16(k + swizzled(row, lane), k_head + (u64)node[turn] * DIM + 4 * lane);
            if (4 * lane < WIDTH) {
                const u64 at = ((u64)value_head(column) * capacity + node[turn]) * DIM + column % DIM;
                cp_async16(u + row * WIDTH + 4 * lane, all_u + at);
            }
        }
        cp_async_commit();
        static_assert(THREADS % BATCH == 0, "a thread's factors are all of one row");
        for (int i = threadIdx.x; i < HEADS * BATCH; i += THREADS) {
            if (factor_row < count) a[i] = decay[(u64)value_head(i / BATCH * DIM) * capacity + factor_node];
        }
    }

    // The state after these rows, the path's nodes in order.
    __device__ __forceinline__ void apply(StateTile& tile, const Place& place, int count) const {
#pragma unroll 1
        for (int row = 0; row < count; row++) {
            float4 key[4];
            float by[COLUMNS], factor[RUNS];
#pragma unroll
            for (int part = 0; part < 4; part++) key[part] = k[swizzled(row, lane_id() / 4 * 4 + part)];
#pragma unroll
            for (int r = 0; r < RUNS; r++) {
                run_load(r, by, u + row * WIDTH + place.within[r]);
                factor[r] = a[place.member[r] * BATCH + row];
            }
            tile.advance(key, by, factor);
        }
    }
};

// The state after the pending path, row by row. All warps with the state call it; the path's first BATCH rows are staged
// already. `staged` is free again after the next barrier.
__device__ __forceinline__ void apply_path(
    StateTile& tile, const Place& place, const Staged& staged, const StepState* st, int pending, const float* k_head,
    const float* all_u, const float* decay, int capacity
) {
    for (int begin = 0; begin < pending; begin += BATCH) {
        const int count = min(BATCH, pending - begin);
        if (begin > 0) {
            state_barrier();  // the rows before these have been applied
            staged.copy(st, begin, count, k_head, all_u, decay, capacity);
            cp_async_wait<0>();
            state_barrier();
        }
        staged.apply(tile, place, count);
    }
}
