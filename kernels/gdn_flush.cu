// Runs the pending commits of all layers and nothing else, before a state is read, saved or discarded. The caller sets
// st->pending to 0 afterwards. It also runs after the turn has stopped.
//
// Blocks of one layer: first as gdn_recurrence's, for the state; then one per head of q, k and v, for the
// convolution's. Bound by the state's bytes. Defines: those of gdn_state.cuh.

#include "gdn_state.cuh"

// grid (K_HEADS * SLICES + 2 K_HEADS + V_HEADS, layers), block THREADS. Memory as in gdn.cuh, the layers one after the
// other.
extern "C" __global__ void __launch_bounds__(THREADS, 1) gdn_flush(
    const StepState* st, float* s, const float* k, const float* u, const float* decay, float* conv,
    const float* inputs, int capacity
) {
    __shared__ __align__(16) u8 rows[Staged::BYTES];
    pdl_launch();
    pdl_wait();
    const int pending = st->pending;
    if (pending <= 0) return;
    const u64 layer = blockIdx.y;
    const int last_half = ~st->parity & 1;

    if (blockIdx.x < K_HEADS * SLICES) {
        float* const states = s + layer * V_HEADS * DIM * DIM;
        const float* const k_head = k + ((layer * 2 + last_half) * K_HEADS + block_key_head()) * capacity * DIM;
        const Place place = Place::of_lane();
        StateTile tile;
        tile.load(states, place);
        const Staged staged = Staged::in(rows);
        const float* const all_u = u + layer * V_HEADS * capacity * DIM;
        const float* const all_decay = decay + (layer * 2 + last_half) * V_HEADS * capacity;
        staged.copy(st, 0, min(BATCH, pending), k_head, all_u, all_decay, capacity);
        cp_async_wait<0>();
        __syncthreads();
        apply_path(tile, place, staged, st, pending, k_head, all_u, all_decay, capacity);
        tile.store(states, place);
    } else if (warp_id() == 0) {
        const int channel = (blockIdx.x - K_HEADS * SLICES) * DIM + 4 * lane_id();
        float* const layer_conv = conv + layer * PAST * CHANNELS;
        const float* const layer_inputs = inputs + layer * capacity * CHANNELS;
        ConvState::after(PendingPath::load(st), st, layer_conv, layer_inputs, channel).store(layer_conv, channel);
    }
}
