// The gated delta net on a tree of rows: what its kernels share. Formulas: docs/delta-net.md.
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
// k and decay have two buffers: while a block of gdn_recurrence or gdn_single_row still commits from the last step's rows,
// another kernel or block has written this step's. A step writes the half st->parity and finds the last step's rows in
// the other one; accept flips st->parity at its end if the step adds tokens. Where a block of gdn_recurrence or gdn_single_row
// makes rows, others read the same conv and inputs, of the last step: gdn_out writes this step's after them. In other
// passes a block of gdn_prepare does both for its channels. S and u are read and written by the same block.
//
// Before pdl_wait a step's first pass may read S, conv, the last step's rows, and what accept writes of the StepState
// (parity, pending, pending_path, stop): only passes and accept write them, and a step begins a graph or follows a
// copy, so those of the last step have ended. gdn_recurrence and gdn_single_row rely on it, and gdn_out where it commits. The
// tree and n are of this step: they and the projection's partials are read after pdl_wait.
//
// Memory of one pass, shared by all layers, ROWS rows:
//     q     f32 [K_HEADS][ROWS][DIM]    v f32 [V_HEADS][ROWS][DIM]    beta f32 [V_HEADS][ROWS], from gdn_prepare
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
    const int n = load_now(st->n), stop = load_now(st->stop);  // one trip to memory, not two
    return stop != RUNNING ? 0 : min(n - node0, rows);
}

// ---- The convolution's state --------------------------------------------------------------------------------------

// What is known early of the pending path: its length and, one per lane, its first WARP entries, so that loading an entry
// need not wait for the length.
struct PendingPath {
    int length, early;

    __device__ __forceinline__ static PendingPath load(const StepState* st) {
        return {load_now(st->pending), load_now(st->pending_path[lane_id()])};
    }
    // The node of the t-th of the last PAST inputs along the path; a short path reaches into the old state, whose inputs
    // are -1, the newest, to -PAST. The whole warp calls.
    __device__ __forceinline__ int node(const StepState* st, int t) const {
        const int at = length - PAST + t, found = __shfl_sync(FULL_WARP, early, at & (WARP - 1));
        return at < 0 ? at : at < WARP ? found : st->pending_path[at];
    }
    // That input, 4 channels.
    __device__ __forceinline__ float4 input(
        const StepState* st, const float* conv, const float* inputs, int t, int channel
    ) const {
        const int at = node(st, t);
        return *(const float4*)((at < 0 ? conv + (PAST + at) * CHANNELS : inputs + (u64)at * CHANNELS) + channel);
    }
};

// 4 channels of the convolution's state after the pending path.
struct ConvState {
    float4 past[PAST];

    __device__ __forceinline__ static ConvState after(
        PendingPath path, const StepState* st, const float* conv, const float* inputs, int channel
    ) {
        ConvState state;
#pragma unroll
        for (int t = 0; t < PAST; t++) state.past[t] = path.input(st, conv, inputs, t, channel);
        return state;
    }
    __device__ __forceinline__ void store(float* conv, int channel) const {
#pragma unroll
        for (int t = 0; t < PAST; t++) *(float4*)(conv + t * CHANNELS + channel) = past[t];
    }
};
