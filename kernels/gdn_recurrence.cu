// The gated delta rule for all rows of a pass: the plain recurrence, node by node, the state in registers. Layouts and
// formulas: gdn.cuh. Plain decoding has gdn_single_row; a pass of one row comes here as the last one of a large tree.
//
// A warp owns its columns of one key head's states from load to output, and waits for other warps only for shared
// data:
//   1. load S to registers; the pending path, node by node, as soon as its rows are there; then S is stored back
//   2. meanwhile the rows come to shared memory: in a tree's first pass MAKERS more warps make them from the projection's
//      partials (gdn_makers.cuh), in other passes they are loaded after gdn_prepare
//   3. q_i k_i of every row, divided among the makers, or without them among all warps
//   4. the nodes, in the order of gdn_order: K S and Q S of the parent's state (a lane holds 16 rows of its columns,
//      the sums of a column's 8 segments are added by shuffles), u, o, and where children follow, the node's own state;
//      the next node's K S is added up as the state is written, and an output is finished during the next node
// A state that a second child needs is saved in its level: the first SHARED_LEVELS are in shared memory, the others in
// `levels`, which stays in the L2. Ancestors from earlier passes are replayed with their k, u and a.
//
// Bits: a dot product over DIM is the sum of 8 segments, each in order, the segments in a fixed tree, and a state is
// one multiplication and one fma away from its parent's. So a node's output and state depend only on its path, and are
// those of decoding that path token by token, whatever the other rows, NODES, the order and the shape of the blocks.
//
// Bound by: from 8 rows on, a chain of dependent operations per node (the sums of K S, u, the state), some 410 clocks
// with three columns to a lane and 490 with two on an H100. A layer of the 27B takes 9 us there with 16 rows, 11 with
// 24, 20 to 25 with 64. A block should have an SM to itself.
//
// Defines: those of gdn_state.cuh; NODES, rows of the pass; SHARED_LEVELS; MAKERS, and unless 0 SPLIT_K.

#include "gdn_order.cuh"
#include "gdn_state.cuh"
#if MAKERS
#include "gdn_makers.cuh"
#endif

// Shared memory, in bytes from its start. backends/cuda/layers/delta_shapes.py computes the same sum.
constexpr int K_AT = 0;                               // float4 [NODES][DIM / 4], swizzled
constexpr int Q_AT = K_AT + NODES * DIM * 4;          // the same
constexpr int V_AT = Q_AT + NODES * DIM * 4;          // float [NODES][WIDTH]
constexpr int GATE_AT = V_AT + NODES * WIDTH * 4;     // float2 [NODES][HEADS]: a, beta
constexpr int QK_AT = GATE_AT + HEADS * NODES * 8;    // float [NODES][2]: q_i k_i, 1
constexpr int TURNS_AT = QK_AT + NODES * 8;           // u32 [MAX_NODES + AHEAD]: Turn
// Staged and, from a multiple of 512 on, OLD_BYTES of makers; then float4 [SHARED_LEVELS][4 COLUMNS][THREADS].
constexpr int LEVELS_AT = ceil_div(TURNS_AT + (MAX_NODES + AHEAD) * 4, 16) * 16;

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

// q_i k_i of all rows, divided among SHARES warps, a few rows at a time so that their shuffles overlap. Rows that are not
// live hold arbitrary data. With a single row every warp computes it itself.
template <int SHARES> __device__ __forceinline__ void row_dots(
    float* dots, const float4* k_rows, const float4* q_rows, int share
) {
    constexpr int TURNS = NODES == 1 ? 1 : ceil_div(NODES, SHARES), TOGETHER = TURNS < 8 ? TURNS : 8;
    const int lane = lane_id(), first = NODES == 1 ? 0 : share;
#pragma unroll 1
    for (int turn = 0; turn < TURNS; turn += TOGETHER) {
        float dot[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int row = min(first + (turn + i) * SHARES, NODES - 1);
            dot[i] = multiply(k_rows[swizzled(row, lane)], q_rows[swizzled(row, lane)]);
        }
        warp_sums(dot);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int row = first + (turn + i) * SHARES;
            if (lane < 2 && row < NODES) dots[2 * row + lane] = lane ? 1.0f : dot[i];
        }
    }
}

// A lane's data that all visits share, in shared memory where row 0 has them.
struct Lane {
    Place place;
    int segment;
    const float4 *k_rows, *q_rows;
    const u8 *value[RUNS], *gate[RUNS], *dot;
    const u32* turns;
    float* to[RUNS];                 // where it stores its results of row 0: u in segment 0, o in segment 1
    int to_row;

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

// What a node's results are made of beside its sums. `dot`: q_i k_i, in segment 0 one.
struct Inputs {
    float value[COLUMNS], a[RUNS], beta[RUNS], dot;

    // u, and what stores it or the output: see Between.
    __device__ __forceinline__ void results(
        const float (&ks)[COLUMNS], const float (&qs)[COLUMNS], float (&u)[COLUMNS], float (&own)[COLUMNS],
        float (&rest)[COLUMNS]
    ) const {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            u[c] = node_u(beta[c / 2], a[c / 2], ks[c], value[c]);
            own[c] = __fmul_rn(dot, u[c]);
            rest[c] = __fmul_rn(a[c / 2], qs[c]);
        }
    }
};

// Between two nodes: the next one's key, its query, and the key times its parent's state, a lane's segment of it; and of
// the last one what its output is the sum of: `own`, in segment 0 u itself, and `rest`, still by segments.
struct Between {
    float4 key[4], query[4];
    float ks[COLUMNS], own[COLUMNS], rest[COLUMNS];
    int row;  // of the last one

    __device__ __forceinline__ void multiply(const StateTile& tile) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) ks[c] = 0.0f;
#pragma unroll
        for (int part = 0; part < 4; part++) tile.multiply(ks, part, key[part]);
    }
    __device__ __forceinline__ void finish(const Lane& lane) {
        add_segments<16>(rest);
        add_segments<8>(rest);
        add_segments<4>(rest);
        store(lane);
    }
    __device__ __forceinline__ void store(const Lane& lane) const {
        float stored[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) stored[c] = lane.segment == 0 ? own[c] : own[c] + rest[c];
        if (lane.segment < 2) {
#pragma unroll
            for (int r = 0; r < RUNS; r++) run_store(r, lane.to[r] + row * lane.to_row, stored);
        }
    }
};

// A node of this pass: u and o from its parent's state, and where INNER the state becomes its own.
//
// Nodes wait for each other, so a node should take no longer than its chain: sums of K S over the segments, u, the
// state, K S of the next node. All else fills the gaps.
template <bool INNER> __device__ __forceinline__ void run_node(
    const Lane& lane, StateTile& tile, const float4 (&key)[4], float4 (&next_key)[4], Between& now, int row, int next
) {
    float u[COLUMNS], qs[COLUMNS] = {}, (&ks)[COLUMNS] = now.ks;
    Inputs inputs;
    add_segments<16>(ks);
    add_segments<16>(now.rest);
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const float2 gate = *(const float2*)(lane.gate[r] + row * (HEADS * 8));
        inputs.a[r] = gate.x, inputs.beta[r] = gate.y;
        run_load(r, inputs.value, (const float*)(lane.value[r] + row * (WIDTH * 4)));
    }
    inputs.dot = *(const float*)(lane.dot + row * 8);
    lane.fetch(lane.k_rows, next, next_key);
#pragma unroll
    for (int part = 0; part < 4; part++) tile.multiply(qs, part, now.query[part]);
    add_segments<8>(ks);
    add_segments<8>(now.rest);
    if constexpr (INNER) tile.decay(0, inputs.a), tile.decay(1, inputs.a);
    add_segments<4>(ks);
    add_segments<4>(now.rest);
    now.store(lane);
    now.row = row;
    if constexpr (INNER) tile.decay(2, inputs.a), tile.decay(3, inputs.a);
    lane.fetch(lane.q_rows, next, now.query);
    inputs.results(ks, qs, u, now.own, now.rest);
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) ks[c] = 0.0f;
#pragma unroll
    for (int part = 0; part < 4; part++) {
        if constexpr (INNER) tile.add(part, key[part], u);
        tile.multiply(ks, part, next_key[part]);
    }
}

// Nodes that follow each other on one state, all with children or all without. `turn` and `next` are the turns that
// come up, `at` counts them. Returns the last turn that it ran.
template <bool INNER> __device__ __forceinline__ Turn run_nodes(
    const Lane& lane, StateTile& tile, Between& now, Turn& turn, Turn& next, int& at
) {
    Turn last;
    bool again;
#pragma unroll 1
    do {
        float4 key[4];
#pragma unroll
        for (int part = 0; part < 4; part++) key[part] = now.key[part];
        last = turn, turn = next, next = {lane.turns[at + AHEAD]}, at++;
        run_node<INNER>(lane, tile, key, now.key, now, last.row(), turn.row());
        again = __any_sync(FULL_WARP, last.bits & Turn::AGAIN);
    } while (again);
    return last;
}

// The state after the pending path, from what the last step left. `shared`: space for Staged.
__device__ __forceinline__ void commit(
    StateTile& tile, const Place& place, const StepState* st, float* s, const float* k, const float* u,
    const float* decay, int capacity, u8* shared
) {
    const int last_half = ~st->parity & 1, pending = st->pending, stop = st->stop;
    if (stop != RUNNING || pending <= 0) return;
    const float* const last_k = k + (u64)(last_half * K_HEADS + block_key_head()) * capacity * DIM;
    const float* const last_decay = decay + (u64)last_half * V_HEADS * capacity;
    const Staged staged = Staged::in(shared);
    staged.copy(st, 0, min(BATCH, pending), last_k, u, last_decay, capacity);
    cp_async_wait<0>();
    state_barrier();
    apply_path(tile, place, staged, st, pending, last_k, u, last_decay, capacity);
    tile.store(s, place);
}

// Rows that gdn_prepare has made, to shared memory. Rows that are not live hold arbitrary data: no visit reads them.
// k_head, all_decay: from the pass's first node on.
__device__ __forceinline__ void copy_rows(
    const float* k_head, const float* q, const float* v, const float* all_decay, const float* beta, float4* k_rows,
    float4* q_rows, float* v_rows, float2* gates, int capacity
) {
    const int lane = lane_id();
#pragma unroll
    for (int turn = 0; turn < ceil_div(NODES, WARPS); turn++) {
        const int row = warp_id() + turn * WARPS;
        if (NODES % WARPS && row >= NODES) continue;
        cp_async16(k_rows + swizzled(row, lane), k_head + row * DIM + 4 * lane);
        cp_async16(q_rows + swizzled(row, lane), q + (block_key_head() * ROWS + row) * DIM + 4 * lane);
    }
    constexpr int CHUNKS = NODES * WIDTH / 4;
#pragma unroll
    for (int turn = 0; turn < ceil_div(CHUNKS, THREADS); turn++) {
        const int i = threadIdx.x + turn * THREADS, row = i / (WIDTH / 4);
        const int column = block_column() + 4 * (i % (WIDTH / 4));
        if (CHUNKS % THREADS && i >= CHUNKS) continue;
        cp_async16(v_rows + 4 * i, v + ((u64)value_head(column) * ROWS + row) * DIM + column % DIM);
    }
    cp_async_commit();
    for (int i = threadIdx.x; i < NODES * HEADS; i += THREADS) {
        const int head = value_head(i % HEADS * DIM), row = i / HEADS;
        gates[i] = make_float2(all_decay[(u64)head * capacity + row], beta[head * ROWS + row]);
    }
}

// The barriers where all warps of a block meet: the rows are there; their dot products are.
__device__ __forceinline__ void block_barrier() { __syncthreads(); }

// grid (K_HEADS * SLICES), block THREADS + 32 MAKERS. s, u, k, decay, out: see gdn.cuh; order: from gdn_order;
// levels: float4 [levels past the shared ones][4 COLUMNS][THREADS of all blocks]. With MAKERS the pass is that of node 0
// on, the other arguments are those of gdn_prepare, and gdn_out has to do COMMITS_CONV. Without, gdn_prepare has made q,
// k, v, beta and decay of the nodes node0.., node0 a multiple of 64; only the pass of node0 = 0 commits.
extern "C" __global__ void __launch_bounds__(THREADS + 32 * MAKERS, 1) gdn_recurrence(
    const StepState* st, const u32* order, float* s, float* k, float* u, float* decay, float* out, float4* levels,
    int capacity,
#if MAKERS
    const float* partials, int rows, int width, int alpha_at, int beta_at, const float* conv_weight, const float* ssm_a,
    const float* ssm_dt, const float* conv, const float* inputs
#else
    int node0, const float* q, const float* v, const float* beta
#endif
) {
    SHARED_DYNAMIC(shared);
    float4* const k_rows = (float4*)(shared + K_AT);
    float4* const q_rows = (float4*)(shared + Q_AT);
    float* const v_rows = (float*)(shared + V_AT);
    float2* const gates = (float2*)(shared + GATE_AT);
    float* const dots = (float*)(shared + QK_AT);
    u32* const turns = (u32*)(shared + TURNS_AT);
    float4* const near_levels = (float4*)(shared + LEVELS_AT) + threadIdx.x;
    float4* const far_levels = levels + blockIdx.x * THREADS + threadIdx.x;

    const int lane = lane_id(), warp = uniform(warp_id()), segment = lane / 4, key_head = block_key_head();
    pdl_launch();
    const int half = st->parity & 1;
    float* const k_head = k + (u64)(half * K_HEADS + key_head) * capacity * DIM;
    float* const all_decay = decay + (u64)half * V_HEADS * capacity;
#if MAKERS
    constexpr int node0 = 0;
    if (warp >= WARPS) {
        const Stored stored{k_head, all_decay, capacity};
        const Projected from{partials, rows, width, alpha_at, beta_at, conv_weight, ssm_a, ssm_dt, conv, inputs};
        float4* const old = (float4*)(shared + ceil_div(LEVELS_AT + Staged::BYTES, 512) * 512);
        if (make_block_rows(st, from, warp - WARPS, q_rows, k_rows, v_rows, gates, old, stored) <= 0) return;
        block_barrier();
        row_dots<MAKERS>(dots, k_rows, q_rows, warp - WARPS);
        block_barrier();
        return;
    }
#endif
    const Place place = Place::of_lane();
    StateTile tile;
    if (node0 > 0) pdl_wait();
    tile.load(s, place);
    if (node0 == 0) {
        commit(tile, place, st, s, k, u, decay, capacity, shared + LEVELS_AT);
        pdl_wait();
    }
    const int live = live_rows(st, node0, NODES);
    Lane mine{place, segment, k_rows, q_rows};
    mine.dot = (u8*)(dots + (segment == 0)), mine.turns = turns;
    mine.to_row = segment == 0 ? DIM : V_HEADS * DIM;
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        mine.value[r] = (u8*)(v_rows + place.within[r]), mine.gate[r] = (u8*)(gates + place.member[r]);
        mine.to[r] = segment == 0 ? u + place.at(r, capacity, node0) : out + place.head(r) * DIM + place.column[r];
    }
    Between now{};
#pragma unroll 1
    for (int i = threadIdx.x; i < node0 + NODES + AHEAD; i += THREADS) turns[i] = order[i];
#if !MAKERS
    copy_rows(k_head + node0 * DIM, q, v, all_decay + node0, beta, k_rows, q_rows, v_rows, gates, capacity);
#endif
    if (live <= 0) return;
    cp_async_wait<0>();
    block_barrier();
    if constexpr (MAKERS == 0) row_dots<WARPS>(dots, k_rows, q_rows, warp);

    Turn turn{turns[0]}, next{turns[1]}, last;
    now.row = turn.row();  // before the first node something is stored in its place
    auto prepare = [&] {
        mine.fetch(mine.k_rows, turn.row(), now.key);
        mine.fetch(mine.q_rows, turn.row(), now.query);
        now.multiply(tile);
    };
    prepare();
    if constexpr (NODES == 1) __syncwarp();
    else block_barrier();
    int at = 0;
#pragma unroll 1
    do {
        if (__builtin_expect(turn.load() != Turn::NONE, 0)) {
            if (turn.load() < SHARED_LEVELS) {
                load_state(tile, near_levels + turn.load() * 4 * COLUMNS * THREADS, THREADS);
            } else {
                const int stride = gridDim.x * THREADS;
                load_state(tile, far_levels + (turn.load() - SHARED_LEVELS) * 4 * COLUMNS * stride, stride);
            }
            now.multiply(tile);
        }
        if (turn.kind() == Turn::INNER) {
            last = run_nodes<true>(mine, tile, now, turn, next, at);
        } else if (MAKERS || turn.kind() == Turn::LEAF) {  // makers' passes replay nothing
            last = run_nodes<false>(mine, tile, now, turn, next, at);
        } else {
            last = turn, turn = next, next = {turns[at + AHEAD]}, at++;
            float4 key[4];
            float by[COLUMNS], a[RUNS];
#pragma unroll
            for (int part = 0; part < 4; part++) {
                key[part] = *(const float4*)(k_head + last.node() * DIM + 4 * (4 * segment + part));
            }
#pragma unroll
            for (int r = 0; r < RUNS; r++) {
                run_load(r, by, u + place.at(r, capacity, last.node()));
                a[r] = all_decay[(u64)place.head(r) * capacity + last.node()];
            }
            tile.advance(key, by, a);
            prepare();
        }
        if (__builtin_expect(last.keep() != Turn::NONE, 0)) {
            if (last.keep() < SHARED_LEVELS) {
                save_state(tile, near_levels + last.keep() * 4 * COLUMNS * THREADS, THREADS);
            } else {
                const int stride = gridDim.x * THREADS;
                save_state(tile, far_levels + (last.keep() - SHARED_LEVELS) * 4 * COLUMNS * stride, stride);
            }
        }
    } while (!(last.bits & Turn::LAST));
    now.finish(mine);
}
