// The recurrent state in registers, and its commit: one code for gdn_tree and gdn_flush, so both leave the same bits.
//
// A block holds DIM x WIDTH of one head's state, a warp 8 columns of it, a lane 16 rows of 2 columns:
//     rows 16 * segment .. of columns 8 * warp + 2 * (lane & 3), + 1     with segment = lane / 4
// so that one read of a row of K, spread over the segments, meets all the state that a lane has.
//
// Defines: K_HEADS, V_HEADS; SLICES of a head, one per block; BATCH, rows staged in shared memory at a time.

#pragma once

#include "gdn.cuh"

constexpr int WIDTH = DIM / SLICES;
constexpr int WARPS = WIDTH / 8;
constexpr int THREADS = 32 * WARPS;
static_assert(BATCH % 8 == 0 && BATCH <= THREADS, "a thread per staged row");

__device__ __forceinline__ int slice_column() { return blockIdx.x % SLICES * WIDTH; }

// Where the f4-th float4 of a row of DIM floats stands in shared memory. Both the 8 segments of one row and 8
// neighbouring rows at one f4 come from different banks.
__device__ __forceinline__ int swizzled(int row, int f4) { return row * (DIM / 4) + (f4 ^ (f4 >> 3) ^ (row & 7)); }

// Rows of K and U in shared memory, BATCH of them at a time: of the pending path, or of the nodes of an earlier pass.
struct Staged {
    float4* k;       // [BATCH][DIM / 4], swizzled
    float* u;        // [BATCH][WIDTH]
    float* scale;    // [BATCH]: e^(G_p - G_j)
    float* carried;  // [1]: e^(G_p)
    int* path;       // [BATCH]: the path's first nodes

    __device__ __forceinline__ void copy(int row, int node, const float* k_head, const float* u_head) const {
        const int f4 = lane_id();
        cp_async16(k + swizzled(row, f4), k_head + node * DIM + 4 * f4);
        if (f4 < WIDTH / 4) cp_async16(u + row * WIDTH + 4 * f4, u_head + node * DIM + slice_column() + 4 * f4);
    }
};

// Copy the next `count` rows of the pending path, from the begin-th on, a warp per row. They are there after
// cp_async_wait and a barrier.
__device__ __forceinline__ void stage_path(
    const Staged& staged, const StepState* st, int begin, int count, const float* k_head, const float* u_head,
    const double* decay
) {
    const int pending = st->pending;
    auto node = [&](int at) { return at < BATCH ? staged.path[at] : st->pending_path[at]; };
#pragma unroll
    for (int turn = 0; turn < ceil_div(BATCH, WARPS); turn++) {
        const int row = warp_id() + turn * WARPS;
        if (row < count) staged.copy(row, node(begin + row), k_head, u_head);
    }
    cp_async_commit();
    const double total = decay[node(pending - 1)];
    if (threadIdx.x < count) {
        staged.scale[threadIdx.x] = expf((float)(total - decay[node(begin + threadIdx.x)]));
    }
    if (threadIdx.x == 0) *staged.carried = expf((float)total);
}

struct StateTile {
    float2 s[16];

    __device__ __forceinline__ static int place() {
        return lane_id() / 4 * 16 * DIM + slice_column() + warp_id() * 8 + 2 * (lane_id() & 3);
    }

    __device__ __forceinline__ void load(const float* head) {
        const float* from = head + place();
#pragma unroll
        for (int r = 0; r < 16; r++) s[r] = *(const float2*)(from + r * DIM);
    }

    __device__ __forceinline__ void store(float* head) const {
        float* to = head + place();
#pragma unroll
        for (int r = 0; r < 16; r++) *(float2*)(to + r * DIM) = s[r];
    }

    // Apply the rows of the pending path that are staged, of which the first carries the old state along.
    __device__ __forceinline__ void add_path(const Staged& staged, int count, bool first) {
        if (first) {
#pragma unroll
            for (int r = 0; r < 16; r++) s[r].x *= staged.carried[0], s[r].y *= staged.carried[0];
        }
#pragma unroll 1
        for (int row = 0; row < count; row++) {
            float2 by = *(const float2*)(staged.u + row * WIDTH + warp_id() * 8 + 2 * (lane_id() & 3));
            by.x *= staged.scale[row], by.y *= staged.scale[row];
#pragma unroll
            for (int part = 0; part < 4; part++) {
                const float4 x = staged.k[swizzled(row, lane_id() / 4 * 4 + part)];
                add_product(4 * part + 0, x.x, by);
                add_product(4 * part + 1, x.y, by);
                add_product(4 * part + 2, x.z, by);
                add_product(4 * part + 3, x.w, by);
            }
        }
    }

    __device__ __forceinline__ void add_product(int r, float x, float2 by) {
        s[r].x = fmaf(x, by.x, s[r].x);
        s[r].y = fmaf(x, by.y, s[r].y);
    }

    // One row of this segment (16 values as 4 float4) times the tile, added to two columns' sums.
    __device__ __forceinline__ void multiply(float2& sum, int part, float4 x) const {
        add_term(sum, x.x, s[4 * part + 0]);
        add_term(sum, x.y, s[4 * part + 1]);
        add_term(sum, x.z, s[4 * part + 2]);
        add_term(sum, x.w, s[4 * part + 3]);
    }

    __device__ __forceinline__ static void add_term(float2& sum, float x, float2 by) {
        sum.x = fmaf(x, by.x, sum.x);
        sum.y = fmaf(x, by.y, sum.y);
    }
};
