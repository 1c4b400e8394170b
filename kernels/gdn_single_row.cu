// The pass of plain decoding: one row, a tree's root. What gdn_prepare and gdn_recurrence do for it, in one kernel and
// with the same bits. Layouts and formulas: gdn.cuh.
//
// A block has WARPS warps with the state, cut as in gdn_recurrence, and MAKERS more that make the row: q, k, the
// block's columns of v, and the gates. All blocks of a key head make the same q, k and gates: that is quicker than
// waiting for another kernel. The two groups wait for memory side by side and meet at one barrier. Several blocks read
// the convolution's state and inputs, so gdn_out writes them, after this kernel. Trees: gdn_makers.cuh.
//
// Bound by the state's bytes and the latency of what follows the projection. On an H100 the plain step of the 27B went
// from 6.726 to 6.523 ms with it.
//
// Defines: those of gdn_state.cuh; SPLIT_K, partials of the projection.

#include "gdn_rows.cuh"
#include "gdn_state.cuh"

// A warp for each Role and one for the gates. delta_shapes.py: ROW_WARPS.
constexpr int GATES = VALUE + 1, MAKERS = GATES + 1;
static_assert(HEADS <= 16, "half a warp has a lane per value head");

// ---- The row ------------------------------------------------------------------------------------------------------

// 4 channels of q, k or v, not normed. Waits for the kernel before, and loads n.
__device__ __forceinline__ float4 mixed_channels(
    const StepState* st, int& n, const float* partials, int rows, int width, const float* conv_weight,
    const float* conv, const float* inputs, int channel
) {
    // In plain decoding what is pending is the last step's root or nothing. All that either needs is loaded before it
    // is known which it is; a longer path, after a tree, takes a second trip.
    Taps taps;
    float4 old[PAST], input[PAST + 1];
    taps.load(conv_weight, channel);
#pragma unroll
    for (int t = 0; t < PAST; t++) old[t] = *(const float4*)(conv + t * CHANNELS + channel);
    const float4 root = *(const float4*)(inputs + channel);
    const PendingPath path = PendingPath::load(st);
    pdl_wait();
    PartialSpan<SPLIT_K, 4> loaded;
    loaded.load(partials, rows, width, 0, channel);
    n = load_now(st->n);

    if (path.length <= 1) {
        const bool one = path.length == 1;
        input[0] = one ? old[1] : old[0];
        input[1] = one ? old[2] : old[1];
        input[2] = one ? root : old[2];
    } else {
#pragma unroll
        for (int t = 0; t < PAST; t++) input[t] = path.input(st, conv, inputs, t, channel);
    }
    input[PAST] = loaded.sum().at[0];
    return taps.mix(input);
}

// ---- The state ----------------------------------------------------------------------------------------------------

// The state after the pending path, from rows in memory. One node, as in plain decoding, is quicker without Staged.
__device__ __forceinline__ void commit_path(
    StateTile& tile, const Place& place, const StepState* st, int pending, const float* k_head, const float* u,
    const float* decay, int capacity
) {
    // After a tree: the nodes are taken one by one, but their rows come to the L2 together.
#pragma unroll 1
    for (int i = 1 + threadIdx.x; i < pending; i += THREADS) {
        const int node = st->pending_path[i], first = block_column(), last = first + WIDTH - 1;
        bulk_prefetch(k_head + (u64)node * DIM, DIM * 4);
        bulk_prefetch(u + ((u64)value_head(first) * capacity + node) * DIM, DIM * 4);
        bulk_prefetch(u + ((u64)value_head(last) * capacity + node) * DIM, DIM * 4);
    }
    int node = 0;  // a path begins at the root
#pragma unroll 1
    for (int i = 0; i < pending; i++) {
        float4 key[4];
        float by[COLUMNS], a[RUNS];
#pragma unroll
        for (int part = 0; part < 4; part++) {
            key[part] = *(const float4*)(k_head + (u64)node * DIM + 16 * (lane_id() / 4) + 4 * part);
        }
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            run_load(r, by, u + place.at(r, capacity, node));
            a[r] = decay[(u64)place.head(r) * capacity + node];
        }
        node = st->pending_path[min(i + 1, MAX_NODES - 1)];
        tile.advance(key, by, a);
    }
}

// grid (K_HEADS * SLICES), block THREADS + 32 MAKERS. Arguments: those of gdn_prepare and of gdn_recurrence.
extern "C" __global__ void __launch_bounds__(THREADS + 32 * MAKERS, 1) gdn_single_row(
    const StepState* st, const float* partials, int rows, int width, int alpha_at, int beta_at,
    const float* conv_weight, const float* ssm_a, const float* ssm_dt, const float* conv, const float* inputs, float* s,
    float* k, float* u, float* decay, float* out, int capacity
) {
    __shared__ float4 made[GATES][32];   // q, k, the block's columns of v
    __shared__ float gates[2][HEADS];    // a, beta
    const int lane = lane_id(), maker = uniform(warp_id()) - WARPS, segment = lane / 4, key_head = block_key_head();
    StateTile tile;
    float4 mixed;        // of a maker
    float gate = 0.0f;   // of the last one
    pdl_launch();
    // What is read before pdl_wait: gdn.cuh says why it may be.
    const int half = st->parity & 1, stop = load_now(st->stop);
    int n;
    if (maker < 0) {
        const Place place = Place::of_lane();
        const int pending = st->pending;
        tile.load(s, place);
        if (stop == RUNNING && pending > 0) {
            const float* const last_k = k + (u64)((half ^ 1) * K_HEADS + key_head) * capacity * DIM;
            const float* const last_decay = decay + (u64)(half ^ 1) * V_HEADS * capacity;
            commit_path(tile, place, st, pending, last_k, u, last_decay, capacity);
            tile.store(s, place);
        }
        pdl_wait();
        n = load_now(st->n);
    } else if (maker < GATES) {
        const int channel = block_channel(maker, maker == VALUE && 4 * lane >= WIDTH ? 0 : lane);
        mixed = mixed_channels(st, n, partials, rows, width, conv_weight, conv, inputs, channel);
        if (maker != VALUE) mixed = l2_normed(mixed, maker == QUERY ? QUERY_LENGTH : KEY_LENGTH);
        made[maker][lane] = mixed;
    } else {
        const int member = min(lane & 15, HEADS - 1), head = key_head + member * K_HEADS;
        const float a = ssm_a[head], dt = ssm_dt[head];
        pdl_wait();
        n = load_now(st->n);
        const float x = partials_sum<SPLIT_K>(partials, rows, width, 0, (lane < 16 ? alpha_at : beta_at) + head);
        gate = lane < 16 ? decay_factor(x, a, dt) : sigmoid(x);
        if ((lane & 15) < HEADS) gates[lane / 16][member] = gate;
    }
    __syncthreads();  // the row is made
    if (stop != RUNNING || n <= 0) return;
    if (maker >= 0) {
        if (maker == KEY && stores_keys()) {
            *(float4*)(k + (u64)(half * K_HEADS + key_head) * capacity * DIM + 4 * lane) = mixed;
        }
        if (maker == GATES && lane < HEADS && stores_decay(lane)) {
            decay[(u64)(half * V_HEADS + key_head + lane * K_HEADS) * capacity] = gate;
        }
        return;
    }

    const Place place = Place::of_lane();
    float ks[COLUMNS] = {}, qs[COLUMNS] = {}, value[COLUMNS], a[RUNS], beta[RUNS];
    float4 key[4], query[4];
#pragma unroll
    for (int part = 0; part < 4; part++) {
        key[part] = made[KEY][4 * segment + part], query[part] = made[QUERY][4 * segment + part];
    }
    const float4 x = made[KEY][lane], y = made[QUERY][lane];
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        a[r] = gates[0][place.member[r]], beta[r] = gates[1][place.member[r]];
        run_load(r, value, (const float*)made[VALUE] + place.within[r]);
    }
#pragma unroll
    for (int part = 0; part < 4; part++) tile.multiply(ks, part, key[part]);
#pragma unroll
    for (int part = 0; part < 4; part++) tile.multiply(qs, part, query[part]);
    // From here on gdn_recurrence's operations, the sums over the segments all at once. a Q S is rounded before it is
    // added up.
    float rest[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) rest[c] = __fmul_rn(a[c / 2], qs[c]);
    const float dot = warp_sum(multiply(x, y));
#pragma unroll
    for (int offset = 16; offset >= 4; offset /= 2) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            ks[c] += __shfl_xor_sync(FULL_WARP, ks[c], offset);
            rest[c] += __shfl_xor_sync(FULL_WARP, rest[c], offset);
        }
    }
    float stored[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        const float own = node_u(beta[c / 2], a[c / 2], ks[c], value[c]);
        stored[c] = segment == 0 ? own : __fmul_rn(dot, own) + rest[c];
    }
    if (segment < 2) {
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            float* const to = segment == 0 ? u + place.at(r, capacity, 0) : out + place.head(r) * DIM + place.column[r];
            run_store(r, to, stored);
        }
    }
}
