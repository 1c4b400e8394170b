// The gated delta rule for all rows of a pass from the committed state alone: S is read once, and nothing is written
// per node but U. The pending commit is applied on the way in. Layouts and formulas: gdn.cuh.
//
// One block per (value head, slice of WIDTH columns); a warp owns 8 columns from S to O and never waits for another
// warp but for what all share:
//   1. S to registers, all else to shared memory, in flight together; only the pending path waits for the step's state
//   2. k_i k_j and q_i k_j of related nodes, dealt to the warps in tiles of 4 x 16, while S is on its way
//   3. pending commit, S back to memory
//   4. K S and Q S: a lane holds 16 rows of 2 columns of S, the 8 segments of a row are summed by shuffles
//   5. forward substitution in blocks of 8 nodes; each block's U is at once taken off the rows below and added to O
// A later pass of a large tree first takes off what its rows get from the nodes of earlier passes, BATCH at a time.
//
// Bits: a dot product over DIM is the sum of 8 segments (4 in step 2), each in order, the segments in a fixed tree;
// sums over ancestors run in ascending order, and whoever is no ancestor adds an exact zero. So a row's result depends
// on its ancestors alone: not on the other rows, their number, NODES or SLICES.
//
// Bound by: latency and the state's bytes with one row, fp32 arithmetic from about 16 rows on. 48 value heads on an
// H200, their state in the L2: 3.5 us with one row (1.8 TB/s), 8.3 us with 16, 11.6 us with 24, 35 us with 64. A block
// wants an SM to itself: two on one made a row 1 us slower.
//
// Defines: those of gdn_state.cuh; NODES, rows of the pass.

#include "gdn_state.cuh"

constexpr int BLOCK = NODES == 1 ? 1 : 8;               // nodes solved together
constexpr int SOLVED = ceil_div(NODES, BLOCK) * BLOCK;  // NODES in whole blocks
constexpr int BLOCKS = SOLVED / BLOCK;
constexpr int I_TILE = NODES == 1 ? 1 : 4, J_TILE = NODES == 1 ? 1 : 2;  // of step 2: I_TILE x 8 J_TILE
constexpr int EVEN = (NODES + 1) / 2 * 2;
constexpr int FACTORS = BLOCKS * (BLOCKS + 1) / 2 * BLOCK * BLOCK;  // a lower triangle in blocks of BLOCK x BLOCK
constexpr int FACTOR_FLOATS = FACTORS > NODES * BATCH ? FACTORS : NODES * BATCH;
static_assert(BATCH == 8 || BATCH == 16, "staged rows are whole tiles, and divide a word of a mask");
static_assert(SOLVED <= THREADS, "a thread per node");

// Shared memory, in bytes from its start. backends/cuda/layers/delta_shapes.py computes the same sum.
constexpr int K_AT = 0;                                    // float4 [EVEN][DIM / 4], swizzled
constexpr int Q_AT = K_AT + EVEN * DIM * 4;                // the same
constexpr int BATCH_K_AT = Q_AT + EVEN * DIM * 4;          // float4 [BATCH][DIM / 4], swizzled
constexpr int BATCH_U_AT = BATCH_K_AT + BATCH * DIM * 4;   // float [BATCH][WIDTH]
constexpr int X_AT = BATCH_U_AT + BATCH * WIDTH * 4;       // float [WARPS][U, O][SOLVED][8]
constexpr int SYSTEM_AT = X_AT + 2 * SOLVED * WIDTH * 4;   // float [FACTOR_FLOATS]: beta_i D_ij k_i k_j, j before i
constexpr int READOUT_AT = SYSTEM_AT + FACTOR_FLOATS * 4;  // the same for D_ij q_i k_j, j up to i
constexpr int MASK_AT = READOUT_AT + FACTOR_FLOATS * 4;    // u64 [SOLVED]
constexpr int DECAY_AT = MASK_AT + SOLVED * 8;             // double [SOLVED]
constexpr int BETA_AT = DECAY_AT + SOLVED * 8;             // float [SOLVED]
constexpr int CARRIED_AT = BETA_AT + SOLVED * 4;           // float [SOLVED]: e^G
constexpr int PATH_AT = CARRIED_AT + SOLVED * 4;           // Staged: scale, path, carried
static_assert(PATH_AT >= BATCH_K_AT + 16 * DIM * 4, "tiles of step 2 reach up to 16 rows past K, Q or the staged K");

// Entry (i, j) of a lower triangle of blocks.
__device__ __forceinline__ int factor(int i, int j) {
    const int row = i / BLOCK, column = j / BLOCK;
    return ((row * (row + 1) / 2 + column) * BLOCK + i % BLOCK) * BLOCK + j % BLOCK;
}

// Entries (i, first) .. (i, first + BLOCK - 1), `first` a multiple of BLOCK.
struct Factors {
    float at[BLOCK];

    static __device__ __forceinline__ Factors of(const float* triangle, int i, int first) {
        const float* const from = triangle + factor(i, first);
        Factors f;
        if constexpr (BLOCK == 1) {
            f.at[0] = *from;
        } else {
#pragma unroll
            for (int j = 0; j < BLOCK; j += 4) {
                const float4 four = *(const float4*)(from + j);
                f.at[j] = four.x, f.at[j + 1] = four.y, f.at[j + 2] = four.z, f.at[j + 3] = four.w;
            }
        }
        return f;
    }
};

// The dot products of rows I_TILE row_tile.. of K and of Q with 8 J_TILE rows of `other`, from `first` on, a multiple
// of 8. In a lane with p = lane / 8: row I_TILE row_tile + p (or the only one) against row first + 8 t + lane % 8.
// Rows past the last one are whatever memory holds: what comes of them is for the caller to leave out.
__device__ __forceinline__ void dot_products(
    const float4* k, const float4* q, const float4* other, int row_tile, int first, float (&kk)[J_TILE],
    float (&qk)[J_TILE]
) {
    const int part = lane_id() / 8;  // of the row: 32 elements
    // swizzled(row, 8 part + step), where what varies is known to the compiler: at[x ^ y] of the row
    const int left0 = I_TILE * row_tile * (DIM / 4) + 8 * part, left_mix = part ^ (I_TILE * row_tile & 7);
    const int right0 = (first + lane_id() % 8) * (DIM / 4) + 8 * part, right_mix = part ^ lane_id() % 8;
    float sum[2][I_TILE][J_TILE] = {};
#pragma unroll 2
    for (int step = 0; step < 8; step++) {
        float4 right[J_TILE];
#pragma unroll
        for (int t = 0; t < J_TILE; t++) right[t] = other[right0 + 8 * t * (DIM / 4) + (right_mix ^ step)];
#pragma unroll
        for (int i = 0; i < I_TILE; i++) {
            const int at = left0 + i * (DIM / 4) + (left_mix ^ (step ^ i));
            const float4 left[2] = {k[at], q[at]};
#pragma unroll
            for (int side = 0; side < 2; side++)
#pragma unroll
                for (int t = 0; t < J_TILE; t++) {
                    float& to = sum[side][i][t];
                    to = fmaf(left[side].x, right[t].x, to);
                    to = fmaf(left[side].y, right[t].y, to);
                    to = fmaf(left[side].z, right[t].z, to);
                    to = fmaf(left[side].w, right[t].w, to);
                }
        }
    }
#pragma unroll
    for (int side = 0; side < 2; side++)
#pragma unroll
        for (int t = 0; t < J_TILE; t++) {
            float total;
            if constexpr (I_TILE == 1) {
                total = sum[side][0][t];
                total += __shfl_xor_sync(FULL_WARP, total, 16);
                total += __shfl_xor_sync(FULL_WARP, total, 8);
            } else {
                // Each exchange adds two parts and halves the rows: the lanes of part p end with row p.
                const bool upper = part & 2, odd = part & 1;
                float pair[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float low = sum[side][i][t], high = sum[side][i + 2][t];
                    pair[i] = (upper ? high : low) + __shfl_xor_sync(FULL_WARP, upper ? low : high, 16);
                }
                total = (odd ? pair[1] : pair[0]) + __shfl_xor_sync(FULL_WARP, odd ? pair[0] : pair[1], 8);
            }
            (side ? qk : kk)[t] = total;
        }
}

// grid (V_HEADS * SLICES), block THREADS. s, u, k, decay, q, v, beta, out: see gdn.cuh. A pass takes the nodes node0..,
// node0 a multiple of 64; only the pass of node0 = 0 commits.
extern "C" __global__ void __launch_bounds__(THREADS, 1) gdn_tree(
    const StepState* st, int node0, float* s, const float* k, float* u, const double* decay, const float* q,
    const float* v, const float* beta, float* out, int capacity
) {
    SHARED_DYNAMIC(shared);
    float4* const k_rows = (float4*)(shared + K_AT);
    float4* const q_rows = (float4*)(shared + Q_AT);
    float* const system = (float*)(shared + SYSTEM_AT);
    float* const readout = (float*)(shared + READOUT_AT);
    u64* const mask = (u64*)(shared + MASK_AT);
    double* const total = (double*)(shared + DECAY_AT);
    float* const betas = (float*)(shared + BETA_AT);
    float* const carried = (float*)(shared + CARRIED_AT);

    float* const scales = (float*)(shared + PATH_AT);
    const Staged staged = {
        (float4*)(shared + BATCH_K_AT), (float*)(shared + BATCH_U_AT), scales, scales + 2 * BATCH,
        (int*)(scales + BATCH)
    };

    const int lane = lane_id(), warp = warp_id();
    const int head = blockIdx.x / SLICES, column0 = slice_column(), key_head = head % K_HEADS;
    float* const x_u = (float*)(shared + X_AT) + warp * 2 * SOLVED * 8;  // this warp's columns of U and O
    float* const x_o = x_u + SOLVED * 8;
    float* const state = s + (u64)head * DIM * DIM;
    StateTile tile;
    pdl_launch();
    // A step's first pass begins a graph or follows a copy, so nobody is still writing the state: it need not wait.
    if (node0 == 0) tile.load(state);
    pdl_wait();
    if (node0 > 0) tile.load(state);
    const int half = st->parity & 1, pending = node0 == 0 ? st->pending : 0;
    const int live = live_rows(st, node0, NODES);
    const float* const k_head = k + (u64)(half * K_HEADS + key_head) * capacity * DIM;
    float* const u_head = u + (u64)head * capacity * DIM;
    const double* const decay_head = decay + (u64)(half * V_HEADS + head) * capacity;
    // Rows that are not live hold anything; what comes of them is left out below.
#pragma unroll
    for (int turn = 0; turn < ceil_div(NODES, WARPS); turn++) {
        const int row = warp + turn * WARPS;
        if (row >= NODES) continue;
        cp_async16(q_rows + swizzled(row, lane), q + (key_head * ROWS + row) * DIM + 4 * lane);
        if (lane < WIDTH / 4) {
            float* const to = (float*)(shared + X_AT) + (lane / 2 * 2 * SOLVED + row) * 8 + lane % 2 * 4;
            cp_async16(to, v + (head * ROWS + row) * DIM + column0 + 4 * lane);
            *(float4*)(to + SOLVED * 8) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
#pragma unroll
    for (int turn = 0; turn < ceil_div(NODES, WARPS); turn++) {
        const int row = warp + turn * WARPS;
        if (row < NODES) cp_async16(k_rows + swizzled(row, lane), k_head + (node0 + row) * DIM + 4 * lane);
    }
    cp_async_commit();
    if (threadIdx.x < BATCH) staged.path[threadIdx.x] = st->pending_path[threadIdx.x];
    if (threadIdx.x < SOLVED) {
        const int i = threadIdx.x, node = node0 + min(i, NODES - 1);
        const u64 ancestors = st->mask[node][node0 / 64];
        const double log_decay = decay_head[node];
        const float rate = beta[head * ROWS + min(i, NODES - 1)];
        mask[i] = i < live ? ancestors : 0;
        total[i] = log_decay;
        betas[i] = rate;
        carried[i] = expf((float)log_decay);
    }
    if (live <= 0) return;
    const float* const last_k = k + (u64)((half ^ 1) * K_HEADS + key_head) * capacity * DIM;
    const double* const last_decay = decay + (u64)((half ^ 1) * V_HEADS + head) * capacity;
    __syncthreads();  // the path is there
    if (pending > 0) stage_path(staged, st, 0, min(BATCH, pending), last_k, u_head, last_decay);
    cp_async_wait<0>();
    __syncthreads();

    // Step 0, of later passes: X loses, and O gains, what comes from the nodes of earlier passes.
    for (int first = 0; first < node0; first += BATCH) {
        bool related = false;
#pragma unroll 1
        for (int i = threadIdx.x; i < live; i += THREADS) {
            related |= (st->mask[node0 + i][first / 64] >> (first % 64) & ((1u << BATCH) - 1)) != 0;
        }
        if (!__syncthreads_or(related)) continue;
        for (int row = warp; row < BATCH; row += WARPS) staged.copy(row, first + row, k_head, u_head);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        for (int row_tile = warp; row_tile * I_TILE < live; row_tile += WARPS) {
#pragma unroll 1
            for (int at = 0; at < BATCH; at += 8 * J_TILE) {
                float kk[J_TILE], qk[J_TILE];
                dot_products(k_rows, q_rows, staged.k, row_tile, at, kk, qk);
                const int i = I_TILE * row_tile + (I_TILE == 1 ? 0 : lane / 8);
#pragma unroll
                for (int t = 0; t < J_TILE; t++) {
                    const int j = at + 8 * t + lane % 8, node = first + j;
                    if (i >= live || j >= BATCH) continue;
                    const bool is_ancestor = st->mask[node0 + i][node / 64] >> (node % 64) & 1;
                    const float gone = is_ancestor ? expf((float)(total[i] - decay_head[node])) : 0.0f;
                    system[i * BATCH + j] = is_ancestor ? gone * kk[t] : 0.0f;
                    readout[i * BATCH + j] = is_ancestor ? gone * qk[t] : 0.0f;
                }
            }
        }
        __syncthreads();
#pragma unroll 1
        for (int i = lane / 8; i < live; i += 4) {
            float x = x_u[i * 8 + lane % 8], o = x_o[i * 8 + lane % 8];
            for (int j = 0; j < BATCH; j++) {
                const float by = staged.u[j * WIDTH + warp * 8 + lane % 8];
                x = fmaf(-system[i * BATCH + j], by, x);
                o = fmaf(readout[i * BATCH + j], by, o);
            }
            x_u[i * 8 + lane % 8] = x;
            x_o[i * 8 + lane % 8] = o;
        }
        __syncthreads();
    }

    // Step 2.
    int task = 0;
#pragma unroll 1
    for (int row_tile = 0; row_tile * I_TILE < ceil_div(live, BLOCK) * BLOCK; row_tile++) {
#pragma unroll 1
        for (int first = 0; first < I_TILE * (row_tile + 1); first += 8 * J_TILE) {
            if (task++ % WARPS != warp) continue;
            float kk[J_TILE], qk[J_TILE];
            dot_products(k_rows, q_rows, k_rows, row_tile, first, kk, qk);
            const int i = I_TILE * row_tile + (I_TILE == 1 ? 0 : lane / 8);
#pragma unroll
            for (int t = 0; t < J_TILE; t++) {
                const int j = first + 8 * t + lane % 8;
                if (j / BLOCK > i / BLOCK) continue;
                const bool is_ancestor = mask[i] >> j & 1;
                const float gone = is_ancestor ? expf((float)(total[i] - total[j])) : 0.0f;
                system[factor(i, j)] = is_ancestor ? betas[i] * gone * kk[t] : 0.0f;
                readout[factor(i, j)] = is_ancestor ? gone * qk[t] : 0.0f;
            }
        }
    }

    // Step 3.
    if (pending > 0) {
        for (int begin = 0; begin < pending; begin += BATCH) {
            const int count = min(BATCH, pending - begin);
            if (begin > 0) {
                __syncthreads();
                stage_path(staged, st, begin, count, last_k, u_head, last_decay);
                cp_async_wait<0>();
                __syncthreads();
            }
            tile.add_path(staged, count, begin == 0);
        }
        tile.store(state);
    }

    // Step 4: two nodes at a time, so 8 sums per lane (node, K or Q, column), of which the lane of segment n keeps the
    // n-th.
    const int segment = lane / 4;
#pragma unroll 1
    for (int first = 0; first < live; first += 2) {
        float2 sum[2][2] = {};
        const int row0 = first * (DIM / 4) + 4 * (segment & 6), mix = 4 * (segment & 1) ^ segment >> 1 ^ (first & 7);
#pragma unroll
        for (int part = 0; part < 4; part++)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const int at = row0 + n * (DIM / 4) + (mix ^ (part ^ n));  // swizzled(first + n, 4 segment + part)
                tile.multiply(sum[n][0], part, k_rows[at]);
                tile.multiply(sum[n][1], part, q_rows[at]);
            }
        const bool second = segment & 4, query = segment & 2, right = segment & 1;
        float2 node[2];
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const float2 keep = second ? sum[1][side] : sum[0][side], give = second ? sum[0][side] : sum[1][side];
            node[side].x = keep.x + __shfl_xor_sync(FULL_WARP, give.x, 16);
            node[side].y = keep.y + __shfl_xor_sync(FULL_WARP, give.y, 16);
        }
        const float2 keep = query ? node[1] : node[0], give = query ? node[0] : node[1];
        const float x = keep.x + __shfl_xor_sync(FULL_WARP, give.x, 8);
        const float y = keep.y + __shfl_xor_sync(FULL_WARP, give.y, 8);
        const float product = (right ? y : x) + __shfl_xor_sync(FULL_WARP, right ? x : y, 4);

        const int row = first + second;
        if (row < live) {
            float* const to = (query ? x_o : x_u) + row * 8 + 2 * (lane & 3) + right;
            *to = query ? fmaf(carried[row], product, *to) : betas[row] * (*to - carried[row] * product);
        }
    }
    __syncthreads();  // the factors of step 2 are there

    // Step 5: lane = (row mod 4, column); all four of a column solve the same block.
    const int column = lane % 8, member = lane / 8;
#pragma unroll 1
    for (int first = 0; first < live; first += BLOCK) {
        float solution[BLOCK];
#pragma unroll
        for (int t = 0; t < BLOCK; t++) solution[t] = first + t < live ? x_u[(first + t) * 8 + column] : 0.0f;
#pragma unroll
        for (int t = 0; t < BLOCK; t++) {
            const Factors known = Factors::of(system, first + t, first);
#pragma unroll
            for (int j = 0; j < t; j++) solution[t] = fmaf(-known.at[j], solution[j], solution[t]);
            if (first + t < live && member == t % 4) {
                u_head[(u64)(node0 + first + t) * DIM + column0 + warp * 8 + column] = solution[t];
            }
        }
#pragma unroll 2
        for (int i = first + member; i < live; i += 4) {
            const Factors seen = Factors::of(readout, i, first);
            float o = x_o[i * 8 + column];
#pragma unroll
            for (int j = 0; j < BLOCK; j++) o = fmaf(seen.at[j], solution[j], o);
            if (i < first + BLOCK) {
                out[(i * V_HEADS + head) * DIM + column0 + warp * 8 + column] = o;
                continue;
            }
            x_o[i * 8 + column] = o;
            const Factors known = Factors::of(system, i, first);
            float x = x_u[i * 8 + column];
#pragma unroll
            for (int j = 0; j < BLOCK; j++) x = fmaf(-known.at[j], solution[j], x);
            x_u[i * 8 + column] = x;
        }
        __syncwarp();
    }
}
