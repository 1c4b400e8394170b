// Plain decoding's pass, one row that is a tree's root: gdn_prepare and gdn_recurrence in one kernel, with the same bits.
// PROTOTYPE, see delta_net.FUSED.
//
// A block has WARPS warps with the state, as in gdn_recurrence, and MAKERS more that compute the row: q, k, the block's
// columns of v, and the gates. q, k and gates are computed by all blocks of a key head. The two groups wait for memory
// side by side (a block may start when the kernel before has already ended) and meet at one barrier. The convolution's
// state and inputs are read by several blocks, so it is gdn_out that writes them, when this kernel has ended.
//
// Defines: those of gdn_state.cuh; SPLIT_K, partials of the projection.

#include "gdn_state.cuh"
#include "partials.cuh"

enum Maker { QUERY, KEY, VALUE, GATES, MAKERS };
constexpr int HELD_PARTS = SPLIT_K < 8 ? SPLIT_K : 8;  // partials that a lane loads together
static_assert(HEADS <= 16, "the gates warp has a lane per gate");

__device__ __forceinline__ float4 multiply_add(float4 x, float4 w, float4 sum) {
    return make_float4(
        fmaf(x.x, w.x, sum.x), fmaf(x.y, w.y, sum.y), fmaf(x.z, w.z, sum.z), fmaf(x.w, w.w, sum.w)
    );
}
__device__ __forceinline__ float multiply(float4 x, float4 y) {
    return __fmaf_rn(x.w, y.w, __fmaf_rn(x.z, y.z, __fmaf_rn(x.y, y.y, __fmul_rn(x.x, y.x))));
}

// 4 channels of q, k or v from the partials: as gdn_prepare does it. Waits for the kernel before.
__device__ __forceinline__ float4 mixed_channels(
    const StepState* st, int& n, const float* partials, int rows, int width, const float* conv_weight,
    const float* conv, const float* inputs, int channel, float numerator
) {
    // All that does not depend on the kernel before, nor on where the state is: a pending path begins at node 0.
    float4 taps[4], old[PAST];
#pragma unroll
    for (int c = 0; c < 4; c++) taps[c] = *(const float4*)(conv_weight + 4 * (channel + c));
#pragma unroll
    for (int t = 0; t < PAST; t++) old[t] = *(const float4*)(conv + t * CHANNELS + channel);
    const float4 newest = *(const float4*)(inputs + channel);
    const int pending = st->pending, path = st->pending_path[lane_id()];
    pdl_wait();
    PartialSpan<SPLIT_K, 4, HELD_PARTS> loaded;
    loaded.load(partials, rows, width, 0, channel);
    n = *(const volatile int*)&st->n;

    const float4 weight[4] = {
        make_float4(taps[0].x, taps[1].x, taps[2].x, taps[3].x), make_float4(taps[0].y, taps[1].y, taps[2].y, taps[3].y),
        make_float4(taps[0].z, taps[1].z, taps[2].z, taps[3].z), make_float4(taps[0].w, taps[1].w, taps[2].w, taps[3].w)
    };
    float4 tap[4];
    if (pending <= 1) {
        tap[0] = pending == 1 ? old[1] : old[0];
        tap[1] = pending == 1 ? old[2] : old[1];
        tap[2] = pending == 1 ? newest : old[2];
    } else {
#pragma unroll
        for (int t = 0; t < PAST; t++) tap[t] = conv_after_path(st, path, conv, inputs, t, channel);
    }
    tap[3] = loaded.sum().at[0];
    float4 mixed = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int t = 0; t < 4; t++) mixed = multiply_add(tap[t], weight[t], mixed);
    mixed = make_float4(silu(mixed.x), silu(mixed.y), silu(mixed.z), silu(mixed.w));
    if (numerator != 0.0f) {
        const float4 square = multiply_add(mixed, mixed, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
        const float squares = square.x + square.y + square.z + square.w;
        const float norm = numerator / sqrtf(warp_sum(squares) + 1e-6f);
        mixed = make_float4(mixed.x * norm, mixed.y * norm, mixed.z * norm, mixed.w * norm);
    }
    return mixed;
}

// grid (K_HEADS * SLICES), block THREADS + 32 MAKERS. Arguments: those of gdn_prepare and of gdn_recurrence.
extern "C" __global__ void __launch_bounds__(THREADS + 32 * MAKERS, 1) gdn_alone(
    const StepState* st, const float* partials, int rows, int width, int alpha_at, int beta_at,
    const float* conv_weight, const float* ssm_a, const float* ssm_dt, const float* conv, const float* inputs, float* s,
    float* k, float* u, float* decay, float* out, int capacity
) {
    __shared__ float4 made[GATES][32];   // q, k, the block's columns of v
    __shared__ float gates[2][HEADS];    // a, beta
    const int lane = lane_id(), maker = uniform(warp_id()) - WARPS, segment = lane / 4, key_head = block_key_head();
    StateTile tile;
    float4 mixed;     // of makers
    float gate = 0.0f;
    pdl_launch();
    // A step's first pass begins a graph or follows a copy, so no kernel is still writing the state, the last step's
    // rows, or what accept writes of the StepState: the commit need not wait.
    const int half = st->parity & 1, stop = *(const volatile int*)&st->stop;
    int n;  // loaded by every warp as soon as it may be: volatile, or the compiler does it last
    if (maker < 0) {
        const Place place = Place::of_lane();
        const int pending = st->pending;
        tile.load(s, place);
        if (stop == RUNNING && pending > 0) {
            const float* const last_k = k + (u64)((half ^ 1) * K_HEADS + key_head) * capacity * DIM;
            const float* const last_decay = decay + (u64)(half ^ 1) * V_HEADS * capacity;
            int node = 0;  // a path begins at the root
#pragma unroll 1
            for (int i = 0; i < pending; i++) {
                float4 key[4];
                float by[COLUMNS], a[RUNS];
#pragma unroll
                for (int part = 0; part < 4; part++) {
                    key[part] = *(const float4*)(last_k + (u64)node * DIM + 16 * segment + 4 * part);
                }
#pragma unroll
                for (int r = 0; r < RUNS; r++) {
                    run_load(r, by, u + place.at(r, capacity, node));
                    a[r] = last_decay[(u64)place.head(r) * capacity + node];
                }
                node = st->pending_path[min(i + 1, MAX_NODES - 1)];
                tile.advance(key, by, a);
            }
            tile.store(s, place);
        }
        pdl_wait();
        n = *(const volatile int*)&st->n;
    } else if (maker < GATES) {
        const int column = block_column() + (4 * lane < WIDTH ? 4 * lane : 0);
        const int channel = maker == VALUE ? (2 * K_HEADS + value_head(column)) * DIM + column % DIM
                                           : (maker * K_HEADS + key_head) * DIM + 4 * lane;
        const float numerator = maker == QUERY ? 0.08838834764831845f : maker == KEY ? 1.0f : 0.0f;  // 1 / sqrt(DIM)
        mixed = mixed_channels(st, n, partials, rows, width, conv_weight, conv, inputs, channel, numerator);
        made[maker][lane] = mixed;
    } else {
        const int member = min(lane & 15, HEADS - 1), head = key_head + member * K_HEADS;
        const float a = ssm_a[head], dt = ssm_dt[head];
        pdl_wait();
        n = *(const volatile int*)&st->n;
        const float x = partials_sum<SPLIT_K>(partials, rows, width, 0, (lane < 16 ? alpha_at : beta_at) + head);
        const float alpha = x + dt;
        const float softplus = alpha > 20.0f ? alpha : log1pf(expf(alpha));
        gate = lane < 16 ? expf(a * softplus) : sigmoid(x);
        if ((lane & 15) < HEADS) gates[lane / 16][member] = gate;
    }
    __syncthreads();  // the row is made
    if (stop != RUNNING || n <= 0) return;
    if (maker >= 0) {
        if (maker == KEY && block_column() == 0) {
            *(float4*)(k + (u64)(half * K_HEADS + key_head) * capacity * DIM + 4 * lane) = mixed;
        }
        const int begins = lane * DIM - block_column();  // the block with a head's first column writes its factor
        if (maker == GATES && lane < HEADS && begins >= 0 && begins < WIDTH) {
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
    // The sums over segments and lanes: each in the order of gdn_recurrence, all of them at once. a Q S is rounded
    // before it is added up.
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
        const float by = __fmul_rn(beta[c / 2], __fmaf_rn(-a[c / 2], ks[c], value[c]));
        stored[c] = segment == 0 ? by : __fmul_rn(dot, by) + rest[c];
    }
    if (segment < 2) {
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            float* const to = segment == 0 ? u + place.at(r, capacity, 0) : out + place.head(r) * DIM + place.column[r];
            run_store(r, to, stored);
        }
    }
}
