// The gated delta net on a tree of rows: what its kernels share. Formulas: docs/architecture.md, section 4.
//
// Per value head, with S_p the state (DIM x DIM, k by v) of the node's parent, or the committed one at the root:
//     u = beta (v - a S_p^T k),   o = a S_p^T q + (q k) u,   S = a S_p + k u^T,   a = e^g the node's decay factor
// The committed state after an accepted path is S of its last node, recomputed from k, u and a of the path's nodes by
// the same operations. That commit waits for the first pass of the next step, which has S in registers anyway.
//
// Memory of one layer; `capacity` nodes, as many as the widest pass has rows, or a multiple of ROWS:
//     S     f32 [V_HEADS][DIM][DIM]                 conv  f32 [3][CHANNELS], the last inputs, oldest first
//     k     f32 [2][K_HEADS][capacity][DIM]         inputs f32 [capacity][CHANNELS], of the convolution
//     u     f32 [V_HEADS][capacity][DIM]            decay f32 [2][V_HEADS][capacity], a
// k and decay have two buffers: while a block of gdn_recurrence or gdn_alone still commits from the last step's rows,
// another kernel or block has written this step's. A step writes the half st->parity and finds the last step's rows in
// the other one; accept flips st->parity at its end if the step adds tokens. conv and inputs of plain decoding are read
// by blocks of gdn_alone, and written by gdn_out after it. All else is read and written by the same block.
//
// Before pdl_wait a step's first pass may read S, conv, the last step's rows, and what accept writes of the StepState
// (parity, pending, pending_path, stop): only passes and accept write them, and a step begins a graph or follows a
// copy, so those of the last step have ended. gdn_recurrence and gdn_alone rely on it, and gdn_out where it commits.
//
// Memory of one pass, shared by all layers, ROWS rows:
//     q     f32 [K_HEADS][ROWS][DIM]    v f32 [V_HEADS][ROWS][DIM]    beta f32 [V_HEADS][ROWS]
//     out   f32 [ROWS][V_HEADS][DIM]
//
// Value head h reads key head h % K_HEADS (GGUF's tiled order). Defines: K_HEADS, V_HEADS.

#pragma once

#include "common.cuh"
#include "state.cuh"

constexpr int DIM = 128;   // of a key and of a value head
constexpr int ROWS = 64;   // of a pass
constexpr int CHANNELS = (2 * K_HEADS + V_HEADS) * DIM;
constexpr int PAST = 3;    // earlier inputs that the convolution reads

// Live rows of a pass, none once the turn has stopped: replays that are still queued must leave no trace.
__device__ __forceinline__ int live_rows(const StepState* st, int node0, int rows) {
    const int n = st->n, stop = st->stop;  // one trip to memory, not two
    return stop != RUNNING ? 0 : min(n - node0, rows);
}

// ---- The convolution's state --------------------------------------------------------------------------------------

// The last PAST inputs along the pending path, 4 channels of the t-th; short paths reach into the old state. The whole
// warp calls: `path` holds the first WARP entries of the path, one per lane, so that loading the path need not wait
// for its length.
__device__ __forceinline__ float4 conv_after_path(
    const StepState* st, int path, const float* conv, const float* inputs, int t, int channel
) {
    const int at = st->pending - PAST + t;
    const int early = __shfl_sync(FULL_WARP, path, at & (WARP - 1));
    if (at < 0) return *(const float4*)(conv + (PAST + at) * CHANNELS + channel);
    const int node = at < WARP ? early : st->pending_path[at];
    return *(const float4*)(inputs + (u64)node * CHANNELS + channel);
}

// 4 channels of the convolution's state after the pending path, for a warp that commits them all.
struct ConvState {
    float4 past[PAST];

    __device__ __forceinline__ static ConvState after_path(
        const StepState* st, const float* conv, const float* inputs, int channel
    ) {
        const int path = st->pending_path[lane_id()];
        ConvState state;
#pragma unroll
        for (int t = 0; t < PAST; t++) state.past[t] = conv_after_path(st, path, conv, inputs, t, channel);
        return state;
    }
    __device__ __forceinline__ void store(float* conv, int channel) const {
#pragma unroll
        for (int t = 0; t < PAST; t++) *(float4*)(conv + t * CHANNELS + channel) = past[t];
    }
};
