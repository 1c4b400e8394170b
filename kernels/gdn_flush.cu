// The pending commits of all layers and nothing else: before a state is looked at, kept or left. Whoever launches
// this sets st->pending to 0 afterwards. It runs whether the turn has stopped or not.
//
// Blocks of one layer: first as gdn_tree's, for the state; then one per head of q, k and v, for the convolution's.
// Bound by the state's bytes. Share of bandwidth: not measured yet. Defines: see gdn_state.cuh.

#include "gdn_state.cuh"

// grid (V_HEADS * SLICES + 2 K_HEADS + V_HEADS, layers), block THREADS. Memory as in gdn.cuh, the layers one behind the
// other.
extern "C" __global__ void __launch_bounds__(THREADS, 1) gdn_flush(
    const StepState* st, float* s, const float* k, const float* u, const double* decay, float* conv,
    const float* inputs, int capacity
) {
    __shared__ float4 staged_k[BATCH * DIM / 4];
    __shared__ __align__(16) float staged_u[BATCH * WIDTH];
    __shared__ float scale[BATCH], carried[1];
    __shared__ int path[BATCH];
    pdl_launch();
    pdl_wait();
    const int pending = st->pending;
    if (pending <= 0) return;
    const u64 layer = blockIdx.y;
    const int head = blockIdx.x / SLICES, last_half = ~st->parity & 1;

    if (head < V_HEADS) {
        float* const state = s + (layer * V_HEADS + head) * DIM * DIM;
        const float* const k_head = k + ((layer * 2 + last_half) * K_HEADS + head % K_HEADS) * capacity * DIM;
        const float* const u_head = u + (layer * V_HEADS + head) * capacity * DIM;
        const double* const decay_head = decay + ((layer * 2 + last_half) * V_HEADS + head) * capacity;
        const Staged staged = {staged_k, staged_u, scale, carried, path};
        StateTile tile;
        tile.load(state);
        if (threadIdx.x < BATCH) path[threadIdx.x] = st->pending_path[threadIdx.x];
        for (int begin = 0; begin < pending; begin += BATCH) {
            const int count = min(BATCH, pending - begin);
            __syncthreads();
            stage_path(staged, st, begin, count, k_head, u_head, decay_head);
            cp_async_wait<0>();
            __syncthreads();
            tile.add_path(staged, count, begin == 0);
        }
        tile.store(state);
    } else if (warp_id() == 0) {
        const int channel = (blockIdx.x - V_HEADS * SLICES) * DIM + 4 * lane_id();
        float* const layer_conv = conv + layer * PAST * CHANNELS;
        const float* const layer_inputs = inputs + layer * capacity * CHANNELS;
        const int early = st->pending_path[lane_id()];
        float4 past[PAST];
#pragma unroll
        for (int t = 0; t < PAST; t++) past[t] = conv_after_path(st, early, layer_conv, layer_inputs, t, channel);
#pragma unroll
        for (int t = 0; t < PAST; t++) *(float4*)(layer_conv + t * CHANNELS + channel) = past[t];
    }
}
