// The gated delta rule for all rows of a pass: the plain recurrence, node by node, the state in registers. Layouts and
// formulas: gdn.cuh.
//
// A warp owns its columns of one key head's states from load to output, and waits for other warps only for shared
// data:
//   1. load S to registers and all else to shared memory, together; only the path's rows need the StepState first
//   2. q_i k_i of every row, divided among the warps
//   3. the pending path, node by node, once S is loaded; then S is stored back to memory
//   4. the nodes, in the order of gdn_order: K S and Q S of the parent's state (a lane holds 16 rows of its columns,
//      the sums of a column's 8 segments are added by shuffles), u, o, and where children follow, the node's own state
// A state that a second child needs is saved in its level: the first SHARED_LEVELS are in shared memory, the others in
// `levels`, which stays in the L2. Ancestors from earlier passes are replayed with their k, u and a.
//
// Bits: a dot product over DIM is the sum of 8 segments, each in order, the segments in a fixed tree, and a state is
// one multiplication and one fma away from its parent's. So a node's output and state depend on its path alone, and are
// those of decoding that path token by token, whatever the other rows, NODES, the order and the shape of the blocks.
//
// Bound by: with one row, the state's bytes; from 8 rows on, a warp's instructions per node (about 100 per column of a
// lane, plus 35) on the scheduler that issues the most of them. A block should have an SM to itself.
//
// Defines: those of gdn_state.cuh; NODES, rows of the pass; SHARED_LEVELS.

#include "gdn_order.cuh"
#include "gdn_state.cuh"

// Shared memory, in bytes from its start. backends/cuda/layers/delta_shapes.py computes the same sum.
constexpr int K_AT = 0;                               // float4 [NODES][DIM / 4], swizzled
constexpr int Q_AT = K_AT + NODES * DIM * 4;          // the same
constexpr int V_AT = Q_AT + NODES * DIM * 4;          // float [NODES][WIDTH]
constexpr int GATE_AT = V_AT + NODES * WIDTH * 4;     // float2 [NODES][HEADS]: a, beta
constexpr int QK_AT = GATE_AT + HEADS * NODES * 8;    // float [NODES]: q_i k_i
constexpr int ORDER_AT = QK_AT + NODES * 4;           // u32 [MAX_NODES]: Visit
constexpr int PATH_AT = ORDER_AT + MAX_NODES * 4;     // int [BATCH]
// Staged, and then float4 [SHARED_LEVELS][4 COLUMNS][THREADS].
constexpr int LEVELS_AT = ceil_div(PATH_AT + BATCH * 4, 16) * 16;

// A saved state: 4 COLUMNS float4 of each thread, `stride` apart.
__device__ __forceinline__ void save_state(const StateTile& tile, float4* level, int stride) {
#pragma unroll
    for (int i = 0; i < 4 * COLUMNS; i++) {
        float part[4];
#pragma unroll
        for (int j = 0; j < 4; j++) part[j] = tile.s[(4 * i + j) / COLUMNS][(4 * i + j) % COLUMNS];
        level[i * stride] = make_float4(part[0], part[1], part[2], part[3]);
    }
}
__device__ __forceinline__ void load_state(StateTile& tile, const float4* level, int stride) {
#pragma unroll
    for (int i = 0; i < 4 * COLUMNS; i++) {
        const float4 four = level[i * stride];
        const float part[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; j++) tile.s[(4 * i + j) / COLUMNS][(4 * i + j) % COLUMNS] = part[j];
    }
}

// q_i k_i of all rows, a few of them at a time so that their shuffles overlap. Rows that are not live hold
// arbitrary data. With a single row every warp computes it itself.
__device__ __forceinline__ void row_dots(float* dots, const float4* k_rows, const float4* q_rows, int warp) {
    constexpr int TURNS = NODES == 1 ? 1 : ceil_div(NODES, WARPS), TOGETHER = TURNS < 4 ? TURNS : 4;
    const int lane = lane_id(), first = NODES == 1 ? 0 : warp;
#pragma unroll 1
    for (int turn = 0; turn < TURNS; turn += TOGETHER) {
        float dot[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int row = min(first + (turn + i) * WARPS, NODES - 1);
            const float4 x = k_rows[swizzled(row, lane)], y = q_rows[swizzled(row, lane)];
            dot[i] = __fmaf_rn(x.w, y.w, __fmaf_rn(x.z, y.z, __fmaf_rn(x.y, y.y, __fmul_rn(x.x, y.x))));
        }
#pragma unroll
        for (int offset = WARP / 2; offset; offset /= 2)
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) dot[i] += __shfl_xor_sync(FULL_WARP, dot[i], offset);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int row = first + (turn + i) * WARPS;
            if (lane == 0 && row < NODES) dots[row] = dot[i];
        }
    }
}

// A lane's data that all visits share.
struct Lane {
    const float4 *k_rows, *q_rows;
    const float* values;   // v_rows from this lane's first column on
    const float2* gates;
    const float* dots;
    Place place;
    float* to[RUNS];       // where this lane stores its results of row 0: u in segment 0, o in segment 1
    int to_row, segment;

    // This segment's part of a row of K or Q.
    __device__ __forceinline__ void fetch(const float4* rows, int row, float4 (&values)[4]) const {
        // swizzled(row, 4 * segment), from which the other parts are one xor away
        const int first = row * (DIM / 4) + (4 * segment ^ segment >> 1 ^ (row & 7));
#pragma unroll
        for (int part = 0; part < 4; part++) values[part] = rows[first ^ part];
    }
};

template <int OFFSET> __device__ __forceinline__ void add_segments(float (&sum)[COLUMNS]) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) sum[c] += __shfl_xor_sync(FULL_WARP, sum[c], OFFSET);
}

// A node of this pass: u and o from its parent's state, and where INNER the state becomes its own. Only K S is waited
// for: all else is computed while its sums are shuffled between lanes.
template <bool INNER> __device__ __forceinline__ void run_node(
    const Lane& lane, StateTile& tile, const float4 (&key)[4], int row
) {
    float4 query[4];
    float ks[COLUMNS] = {}, qs[COLUMNS] = {}, value[COLUMNS], u[COLUMNS], a[RUNS], beta[RUNS];
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const float2 gate = lane.gates[row * HEADS + lane.place.member[r]];
        a[r] = gate.x, beta[r] = gate.y;
        run_load(value + r * PAIR, lane.values + row * WIDTH + r * 4 * PAIR);
    }
    const float dot = lane.dots[row];
#pragma unroll
    for (int part = 0; part < 4; part++) tile.multiply(ks, part, key[part]);
    __syncwarp();  // keeps the compiler from loading Q before this: Q S would then delay the sums of K S
    lane.fetch(lane.q_rows, row, query);
    add_segments<16>(ks);
#pragma unroll
    for (int part = 0; part < 4; part++) tile.multiply(qs, part, query[part]);
    add_segments<8>(ks);
    if constexpr (INNER) tile.decay(0, a), tile.decay(1, a);
    add_segments<4>(ks);
    if constexpr (INNER) tile.decay(2, a), tile.decay(3, a);
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        u[c] = __fmul_rn(beta[c / PAIR], __fmaf_rn(-a[c / PAIR], ks[c], value[c]));
    }
    add_segments<16>(qs);
    if constexpr (INNER) tile.add(0, key[0], u), tile.add(1, key[1], u);
    add_segments<8>(qs);
    if constexpr (INNER) tile.add(2, key[2], u), tile.add(3, key[3], u);
    add_segments<4>(qs);
    float stored[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        const float o = __fmaf_rn(dot, u[c], __fmul_rn(a[c / PAIR], qs[c]));
        stored[c] = lane.segment == 0 ? u[c] : o;
    }
    if (lane.segment < 2) {
#pragma unroll
        for (int r = 0; r < RUNS; r++) run_store(lane.to[r] + row * lane.to_row, stored + r * PAIR);
    }
}

// grid (K_HEADS * SLICES), block THREADS. s, u, k, decay, q, v, beta, out: see gdn.cuh; order: from gdn_order, not
// needed by the pass of a single row that is a tree's root; levels: float4 [levels past the shared ones][4 COLUMNS]
// [threads of the grid]. A pass takes the nodes node0.., node0 a multiple of 64; only the pass of node0 = 0 commits.
extern "C" __global__ void __launch_bounds__(THREADS, 1) gdn_recurrence(
    const StepState* st, int node0, const u32* order, float* s, const float* k, float* u, const float* decay,
    const float* q, const float* v, const float* beta, float* out, float4* levels, int capacity
) {
    SHARED_DYNAMIC(shared);
    float4* const k_rows = (float4*)(shared + K_AT);
    float4* const q_rows = (float4*)(shared + Q_AT);
    float* const v_rows = (float*)(shared + V_AT);
    float2* const gates = (float2*)(shared + GATE_AT);
    float* const dots = (float*)(shared + QK_AT);
    u32* const visits = (u32*)(shared + ORDER_AT);
    int* const path = (int*)(shared + PATH_AT);
    float4* const near_levels = (float4*)(shared + LEVELS_AT) + threadIdx.x;
    float4* const far_levels = levels + blockIdx.x * THREADS + threadIdx.x;

    const int lane = lane_id(), warp = uniform(warp_id()), segment = lane / 4, key_head = block_key_head();
    const Place place = Place::of_lane();
    StateTile tile;
    pdl_launch();
    // A step's first pass begins a graph or follows a copy, so no kernel is still writing the state: it need not wait.
    if (node0 == 0) tile.load(s, place);
    pdl_wait();
    if (node0 > 0) tile.load(s, place);
    const int half = st->parity & 1, pending = node0 == 0 ? st->pending : 0;
    const int live = live_rows(st, node0, NODES);
    const float* const k_head = k + (u64)(half * K_HEADS + key_head) * capacity * DIM;
    const float* const all_decay = decay + (u64)half * V_HEADS * capacity;
    // Rows that are not live hold arbitrary data: no visit reads them.
#pragma unroll
    for (int turn = 0; turn < ceil_div(NODES, WARPS); turn++) {
        const int row = warp + turn * WARPS, column = block_column() + 4 * lane;
        if (row >= NODES) continue;
        cp_async16(k_rows + swizzled(row, lane), k_head + (node0 + row) * DIM + 4 * lane);
        cp_async16(q_rows + swizzled(row, lane), q + (key_head * ROWS + row) * DIM + 4 * lane);
        if (4 * lane < WIDTH) {
            const float* const from = v + ((u64)value_head(column) * ROWS + row) * DIM + column % DIM;
            cp_async16(v_rows + row * WIDTH + 4 * lane, from);
        }
    }
    cp_async_commit();
    for (int i = threadIdx.x; i < BATCH; i += THREADS) path[i] = st->pending_path[i];
    for (int i = threadIdx.x; i < NODES * HEADS; i += THREADS) {
        const int head = value_head(i % HEADS * DIM), row = i / HEADS;
        gates[i] = make_float2(all_decay[(u64)head * capacity + node0 + row], beta[head * ROWS + row]);
    }
    const bool alone = NODES == 1 && node0 == 0;
    int count = 1;
    if (alone) {
        if (threadIdx.x == 0) visits[0] = Visit{0, Visit::NO_LEVEL, Visit::NO_LEVEL, Visit::LEAF}.bits();
    } else {
        count = (int)order[0];
        for (int i = threadIdx.x; i < node0 + NODES; i += THREADS) visits[i] = order[1 + i];
    }
    if (live <= 0) return;
    __syncthreads();  // the path is loaded
    const Staged staged = Staged::in(shared + LEVELS_AT);
    const float* const last_k = k + (u64)((half ^ 1) * K_HEADS + key_head) * capacity * DIM;
    const float* const last_decay = decay + (u64)(half ^ 1) * V_HEADS * capacity;
    if (pending > 0) staged.copy(st, path, 0, min(BATCH, pending), last_k, u, last_decay, capacity);
    cp_async_wait<0>();
    __syncthreads();  // all rows are loaded
    row_dots(dots, k_rows, q_rows, warp);
    if (pending > 0) {
        apply_path(tile, place, staged, st, path, pending, last_k, u, last_decay, capacity);
        tile.store(s, place);
    }
    if constexpr (NODES == 1) __syncwarp();
    else __syncthreads();  // the dot products are written, and the staged rows are no longer needed

    Lane mine{k_rows, q_rows, v_rows + warp * 4 * COLUMNS + PAIR * (lane & 3), gates, dots, place};
    mine.segment = segment;
    mine.to_row = segment == 0 ? DIM : V_HEADS * DIM;
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        mine.to[r] = segment == 0 ? u + place.at(r, capacity, node0) : out + place.head(r) * DIM + place.column[r];
    }
    // The rows of a node are loaded at the end of the previous visit; those of replayed nodes come from global memory.
    float4 key[4];
    u32 bits = visits[0];
    if (Visit::of(bits).kind != Visit::REPLAY) mine.fetch(k_rows, Visit::of(bits).node - node0, key);
#pragma unroll 1
    for (int at = 0; at < count; at++) {
        const Visit now = Visit::of(bits);
        bits = visits[min(at + 1, count - 1)];
        if (__builtin_expect(now.load != Visit::NO_LEVEL, 0)) {
            if (now.load < SHARED_LEVELS) load_state(tile, near_levels + now.load * 4 * COLUMNS * THREADS, THREADS);
            else {
                const int stride = gridDim.x * THREADS;
                load_state(tile, far_levels + (now.load - SHARED_LEVELS) * 4 * COLUMNS * stride, stride);
            }
        }
        if (__builtin_expect(now.kind == Visit::INNER, 1)) {
            run_node<true>(mine, tile, key, now.node - node0);
        } else if (now.kind == Visit::LEAF) {
            run_node<false>(mine, tile, key, now.node - node0);
        } else {
            float by[COLUMNS], a[RUNS];
#pragma unroll
            for (int part = 0; part < 4; part++) {
                key[part] = *(const float4*)(k_head + now.node * DIM + 4 * (4 * segment + part));
            }
#pragma unroll
            for (int r = 0; r < RUNS; r++) {
                run_load(by + r * PAIR, u + place.at(r, capacity, now.node));
                a[r] = all_decay[(u64)place.head(r) * capacity + now.node];
            }
            tile.advance(key, by, a);
        }
        const Visit next = Visit::of(bits);
        if (__builtin_expect(next.kind != Visit::REPLAY, 1)) mine.fetch(k_rows, next.node - node0, key);
        if (__builtin_expect(now.keep != Visit::NO_LEVEL, 0)) {
            if (now.keep < SHARED_LEVELS) save_state(tile, near_levels + now.keep * 4 * COLUMNS * THREADS, THREADS);
            else {
                const int stride = gridDim.x * THREADS;
                save_state(tile, far_levels + (now.keep - SHARED_LEVELS) * 4 * COLUMNS * stride, stride);
            }
        }
    }
}
