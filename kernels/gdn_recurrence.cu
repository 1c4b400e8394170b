// The gated delta rule for all rows of a pass: the plain recurrence, node by node, the state in registers. Layouts and
// formulas: gdn.cuh.
//
// A warp owns its columns of one key head's states from reading them to the outputs and never waits for another warp
// but for what all share:
//   1. S to registers, all else to shared memory, in flight together; only the pending path waits for the step's state
//   2. q_i k_i of every row, dealt to the warps
//   3. the pending path, node by node, and S back to memory
//   4. the nodes, in the order of gdn_order: K S and Q S of the parent's state (a lane holds 16 rows of its columns, the
//      8 segments of a row are summed by shuffles), u, o, and where children follow the node's own state
// A state that a second child needs is put to its level: the first SHARED_LEVELS are in shared memory, the others in
// `levels`, which stays in the L2. Ancestors from earlier passes are replayed with their k, u and a.
//
// Bits: a dot product over DIM is the sum of 8 segments, each in order, the segments in a fixed tree, and a state is one
// multiplication and one fma away from its parent's. So a node's output and state depend on its path alone, and are
// what decoding that path one by one gives: whatever the other rows, NODES, the order or the shape of the blocks.
//
// Bound by: the state's bytes with one row, the latency and issue of a node's ~70 instructions per column of a lane
// from 8 rows on. A block wants an SM to itself.
//
// Defines: those of gdn_state.cuh; NODES, rows of the pass; SHARED_LEVELS.

#include "gdn_order.cuh"
#include "gdn_state.cuh"

// Shared memory, in bytes from its start. backends/cuda/layers/delta_shapes.py computes the same sum.
constexpr int K_AT = 0;                               // float4 [NODES][DIM / 4], swizzled
constexpr int Q_AT = K_AT + NODES * DIM * 4;          // the same
constexpr int V_AT = Q_AT + NODES * DIM * 4;          // float [NODES][WIDTH]
constexpr int GATE_AT = V_AT + NODES * WIDTH * 4;     // float2 [HEADS][NODES]: a, beta
constexpr int QK_AT = GATE_AT + HEADS * NODES * 8;    // float [NODES]: q_i k_i
constexpr int ORDER_AT = QK_AT + NODES * 4;           // u32 [MAX_NODES]: Visit
constexpr int PATH_AT = ORDER_AT + MAX_NODES * 4;     // int [BATCH]
constexpr int LEVELS_AT = ceil_div(PATH_AT + BATCH * 4, 16) * 16;  // float4 [SHARED_LEVELS][4 COLUMNS][THREADS]; Staged before

// A state put aside: 4 COLUMNS float4 of each thread, `stride` apart.
__device__ __forceinline__ void put_aside(const StateTile& tile, float4* level, int stride) {
#pragma unroll
    for (int i = 0; i < 4 * COLUMNS; i++) {
        float part[4];
#pragma unroll
        for (int j = 0; j < 4; j++) part[j] = tile.s[(4 * i + j) / COLUMNS][(4 * i + j) % COLUMNS];
        level[i * stride] = make_float4(part[0], part[1], part[2], part[3]);
    }
}
__device__ __forceinline__ void take_back(StateTile& tile, const float4* level, int stride) {
#pragma unroll
    for (int i = 0; i < 4 * COLUMNS; i++) {
        const float4 four = level[i * stride];
        const float part[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; j++) tile.s[(4 * i + j) / COLUMNS][(4 * i + j) % COLUMNS] = part[j];
    }
}

// grid (K_HEADS * SLICES), block THREADS. s, u, k, decay, q, v, beta, out: see gdn.cuh; order: of gdn_order, which the
// pass of a single row that is a tree's root does without; levels: float4 [levels past the shared ones][4 COLUMNS]
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

    const int lane = lane_id(), warp = warp_id(), segment = lane / 4, key_head = block_key_head();
    const Place place = Place::of_lane();
    StateTile tile;
    pdl_launch();
    // A step's first pass begins a graph or follows a copy, so nobody is still writing the state: it need not wait.
    if (node0 == 0) tile.load(s, place);
    pdl_wait();
    if (node0 > 0) tile.load(s, place);
    const int half = st->parity & 1, pending = node0 == 0 ? st->pending : 0;
    const int live = live_rows(st, node0, NODES);
    const float* const k_head = k + (u64)(half * K_HEADS + key_head) * capacity * DIM;
    const float* const all_decay = decay + (u64)half * V_HEADS * capacity;
    // Rows that are not live hold anything: no visit leads to them.
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
    for (int i = threadIdx.x; i < HEADS * NODES; i += THREADS) {
        const int head = value_head(i / NODES * DIM), row = i % NODES;
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
    __syncthreads();  // the path is there
    if (pending > 0) {
        const int last = half ^ 1;
        commit_path(
            tile, place, Staged::in(shared + LEVELS_AT), st, path, pending,
            k + (u64)(last * K_HEADS + key_head) * capacity * DIM, u, decay + (u64)last * V_HEADS * capacity, capacity
        );
        tile.store(s, place);
    }
    cp_async_wait<0>();
    __syncthreads();  // the rows are there, and the staged ones are done with
    for (int row = NODES == 1 ? 0 : warp; row < live; row += WARPS) {  // of one row every warp makes its own
        const float4 x = k_rows[swizzled(row, lane)], y = q_rows[swizzled(row, lane)];
        const float dot = warp_sum(fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, x.x * y.x))));
        if (lane == 0) dots[row] = dot;
    }
    if constexpr (NODES == 1) __syncwarp();
    else __syncthreads();

    // A node's row of K, this segment's part, and of Q for rows of this pass. They are asked for one visit ahead.
    float4 key[4], query[4];
    auto fetch = [&](const Visit& visit, float4 (&to)[4]) {
        const int row = visit.node - node0;
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const int f4 = 4 * segment + part;
            if (visit.kind == Visit::REPLAY) {
                to[part] = *(const float4*)(k_head + visit.node * DIM + 4 * f4);
            } else {
                to[part] = k_rows[swizzled(row, f4)];
                query[part] = q_rows[swizzled(row, f4)];
            }
        }
    };
    Visit now = Visit::of(visits[0]);
    fetch(now, key);
#pragma unroll 1
    for (int at = 0; at < count; at++) {
        const Visit next = Visit::of(visits[min(at + 1, count - 1)]);
        if (now.load != Visit::NO_LEVEL) {
            if (now.load < SHARED_LEVELS) take_back(tile, near_levels + now.load * 4 * COLUMNS * THREADS, THREADS);
            else {
                const int stride = gridDim.x * THREADS;
                take_back(tile, far_levels + (now.load - SHARED_LEVELS) * 4 * COLUMNS * stride, stride);
            }
        }
        float by[COLUMNS], a[RUNS];
        float4 next_key[4];
        if (now.kind == Visit::REPLAY) {
#pragma unroll
            for (int r = 0; r < RUNS; r++) {
                run_load(by + r * PAIR, u + place.at(r, capacity, now.node));
                a[r] = all_decay[(u64)place.head(r) * capacity + now.node];
            }
            fetch(next, next_key);
        } else {
            const int row = now.node - node0;
            float ks[COLUMNS] = {}, qs[COLUMNS] = {}, value[COLUMNS], o[COLUMNS];
#pragma unroll
            for (int part = 0; part < 4; part++) {
                tile.multiply(ks, part, key[part]);
                tile.multiply(qs, part, query[part]);
            }
            fetch(next, next_key);
#pragma unroll
            for (int offset = 16; offset >= 4; offset /= 2)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    ks[c] += __shfl_xor_sync(FULL_WARP, ks[c], offset);
                    qs[c] += __shfl_xor_sync(FULL_WARP, qs[c], offset);
                }
            const float dot = dots[row];
#pragma unroll
            for (int r = 0; r < RUNS; r++) {
                const float2 gate = gates[place.member[r] * NODES + row];
                const int column = (warp * RUNS + r) * 4 * PAIR + PAIR * (lane & 3);
                run_load(value + r * PAIR, v_rows + row * WIDTH + column);
                a[r] = gate.x;
#pragma unroll
                for (int c = r * PAIR; c < (r + 1) * PAIR; c++) {
                    by[c] = __fmul_rn(gate.y, __fmaf_rn(-gate.x, ks[c], value[c]));
                    o[c] = __fmaf_rn(dot, by[c], __fmul_rn(gate.x, qs[c]));
                }
                if (segment == 0) {
                    run_store(u + place.at(r, capacity, now.node), by + r * PAIR);
                    run_store(out + ((u64)row * V_HEADS + place.head(r)) * DIM + place.column[r], o + r * PAIR);
                }
            }
        }
        if (now.kind != Visit::LEAF) tile.advance(key, by, a);
        if (now.keep != Visit::NO_LEVEL) {
            if (now.keep < SHARED_LEVELS) put_aside(tile, near_levels + now.keep * 4 * COLUMNS * THREADS, THREADS);
            else {
                const int stride = gridDim.x * THREADS;
                put_aside(tile, far_levels + (now.keep - SHARED_LEVELS) * 4 * COLUMNS * stride, stride);
            }
        }
        now = next;
#pragma unroll
        for (int part = 0; part < 4; part++) key[part] = next_key[part];
    }
}
