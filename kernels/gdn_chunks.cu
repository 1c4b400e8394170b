// The gated delta net over the many rows of a prompt, in chunks of 64: the formulas of gdn.cuh for a chain. All but the
// state is computed for all chunks in parallel:
//     T = (I + diag(beta) (strict D * K K^T))^-1,  W = T diag(beta e^G) K,  U0 = T diag(beta) V,  P = D * Q K^T
// and the rest chunk after chunk, with the state in registers:
//     U = U0 - W S,   O = diag(e^G) Q S + P U,   S = e^{G_64} S + K^T diag(e^{G_64 - G}) U
//
// Q, K, V, W, U, P and the copy of the state used in products are f16, sums and the state itself f32. Rows past the
// last have beta 0, decay 0 and zeros, so they change nothing.
//
// Memory, `rows` a multiple of CHUNK: q, k f16 [K_HEADS][rows][DIM]; v, w f16 [V_HEADS][rows][DIM]; p f16
// [V_HEADS][rows][CHUNK]; decay (G, summed within a chunk), beta f32 [V_HEADS][rows]; out f16 [rows][V_HEADS][DIM].
// Bound by: memory (gdn_rows, 2.4 TB/s with 2,048 rows on an H200), the triangular inverse (gdn_solve), the latency of
// a chunk (gdn_scan, 4.0 us there).
// Defines: K_HEADS, V_HEADS; STAGES of gdn_scan's ring, 1 or 2.

#include "gdn.cuh"
#include "partials.cuh"
#include "tiles.cuh"

constexpr int CHUNK = ROWS;

// Start copying COUNT rows of WIDTH f16 values that are `stride` apart.
template <int COUNT, int WIDTH, int THREADS>
__device__ __forceinline__ void copy_tile(half* tile, const half* from, int stride) {
    constexpr int CHUNKS = WIDTH / 8;
    for (int at = threadIdx.x; at < COUNT * CHUNKS; at += THREADS) {
        const int row = at / CHUNKS, chunk = at % CHUNKS;
        cp_async16(chunk_at<WIDTH>(tile, row, chunk), from + (u64)row * stride + 8 * chunk);
    }
}

// ---- Rows ----------------------------------------------------------------------------------------------------------

constexpr int PREPARE_WARPS = 8;
constexpr int WARP_ROWS = CHUNK / PREPARE_WARPS;

// Convolution, SiLU, l2 norms and gates, of gridDim.x heads from `head0` on, counted over q, k and v. A block has one
// of them and one chunk; a warp has 8 consecutive rows, a lane 4 channels. qkv f32 [rows][gridDim.x * DIM]; gates f32
// [rows][alpha of each head, beta of each head]. Grid (heads, chunks), block 256.
extern "C" __global__ void __launch_bounds__(32 * PREPARE_WARPS) gdn_rows(
    const int* count, int head0, const float* qkv, const float* gates, const float* conv_weight, const float* ssm_a,
    const float* ssm_dt, const float* conv, half* q, half* k, half* v, float* decay, float* beta, int rows
) {
    const int lane = lane_id(), head = head0 + blockIdx.x, first = blockIdx.y * CHUNK, channel = head * DIM + 4 * lane;
    const int row0 = first + warp_id() * WARP_ROWS, value_head = head - 2 * K_HEADS;
    pdl_launch();
    pdl_wait();
    const int n = *count;
    if (first >= n) return;

    float x[PAST + WARP_ROWS][4], weight[4][4];
#pragma unroll
    for (int i = 0; i < PAST + WARP_ROWS; i++) {
        const int row = row0 + i - PAST;
        Span<4> input;
        input.zero();
        if (row < 0) input.load(conv + (PAST + row) * CHANNELS + channel);
        else if (row < n) input.load(qkv + ((u64)row * gridDim.x + blockIdx.x) * DIM + 4 * lane);
        input.values(x[i]);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        Span<4> taps;
        taps.load(conv_weight + 4 * (channel + c));
        taps.values(weight[c]);
    }
    half* const to = value_head >= 0 ? v + ((u64)value_head * rows + row0) * DIM
                     : head < K_HEADS ? q + ((u64)head * rows + row0) * DIM
                                      : k + ((u64)(head - K_HEADS) * rows + row0) * DIM;
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i++) {
        float mixed[4], squares = 0.0f;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            mixed[c] = 0.0f;
#pragma unroll
            for (int t = 0; t < 4; t++) mixed[c] = fmaf(x[i + t][c], weight[c][t], mixed[c]);
            mixed[c] = row0 + i < n ? silu(mixed[c]) : 0.0f;
            squares += mixed[c] * mixed[c];
        }
        if (value_head < 0) {
            const float numerator = head < K_HEADS ? 0.08838834764831845f : 1.0f;  // 1 / sqrt(DIM)
            const float norm = numerator / sqrtf(warp_sum(squares) + 1e-6f);
#pragma unroll
            for (int c = 0; c < 4; c++) mixed[c] *= norm;
        }
        *(uint2*)(to + i * DIM + 4 * lane) = make_uint2(pack_half2(mixed[0], mixed[1]), pack_half2(mixed[2], mixed[3]));
    }

    if (value_head < 0 || warp_id() > 0) return;
    const float a = ssm_a[value_head], dt = ssm_dt[value_head];
    double step[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = first + 2 * lane + i;
        float rate = 0.0f;
        step[i] = 0.0;
        if (row < n) {
            const float alpha = gates[(u64)row * 2 * V_HEADS + value_head] + dt;
            step[i] = a * (alpha > 20.0f ? alpha : log1pf(expf(alpha)));
            rate = sigmoid(gates[(u64)row * 2 * V_HEADS + V_HEADS + value_head]);
        }
        beta[(u64)value_head * rows + row] = rate;
    }
    double total = step[0] + step[1];
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
        const double before = __shfl_up_sync(FULL_WARP, total, offset);
        if (lane >= offset) total += before;
    }
    float* const totals = decay + (u64)value_head * rows + first + 2 * lane;
    totals[0] = (float)(total - step[1]);
    totals[1] = (float)total;
}

// ---- Chunks in parallel --------------------------------------------------------------------------------------------

constexpr int SOLVE_THREADS = 128;
constexpr int SYSTEM_STRIDE = CHUNK + 4;

// W, P, and U0 in place of V. A warp has 16 rows of all of them; of the triangular inverse it has 16 columns, two lanes
// each. Grid (chunks, V_HEADS), block 128; shared: two tiles of DIM, two squares of f32 [CHUNK][SYSTEM_STRIDE], G,
// beta.
extern "C" __global__ void __launch_bounds__(SOLVE_THREADS) gdn_solve(
    const int* count, const half* q, const half* k, half* v, const float* decay, const float* beta, half* w, half* p,
    int rows
) {
    SHARED_DYNAMIC(shared);
    half* const keys = (half*)shared;
    half* const other = keys + CHUNK * DIM;  // queries, then values
    float* const system = (float*)(other + CHUNK * DIM);
    float* const inverse = system + CHUNK * SYSTEM_STRIDE;
    float* const total = inverse + CHUNK * SYSTEM_STRIDE;
    float* const rate = total + CHUNK;
    const int lane = lane_id(), warp = warp_id(), first = blockIdx.x * CHUNK, head = blockIdx.y;
    const int key_head = head % K_HEADS, row0 = 16 * warp, quad = lane / 4, pair = 2 * (lane % 4);
    pdl_launch();
    pdl_wait();
    if (first >= *count) return;

    const u64 key_at = ((u64)key_head * rows + first) * DIM, value_at = ((u64)head * rows + first) * DIM;
    copy_tile<CHUNK, DIM, SOLVE_THREADS>(keys, k + key_at, DIM);
    copy_tile<CHUNK, DIM, SOLVE_THREADS>(other, q + key_at, DIM);
    cp_async_commit();
    if (threadIdx.x < CHUNK) {
        total[threadIdx.x] = decay[(u64)head * rows + first + threadIdx.x];
        rate[threadIdx.x] = beta[(u64)head * rows + first + threadIdx.x];
    }
    cp_async_wait<0>();
    __syncthreads();

    // K K^T and Q K^T, 16 columns at a time and none above the diagonal.
#pragma unroll 1
    for (int column0 = 0; column0 < CHUNK; column0 += 16) {
        float kk[2][4] = {}, qk[2][4] = {};
        if (column0 <= row0) {
#pragma unroll
            for (int step = 0; step < DIM / 16; step++) {
                u32 a[4], b[4];
                ldmatrix_x4(b, chunk_at<DIM>(keys, column0 + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
                row_fragment<DIM>(a, keys, row0, step);
                mma_pair(kk[0], kk[1], a, b);
                row_fragment<DIM>(a, other, row0, step);
                mma_pair(qk[0], qk[1], a, b);
            }
        }
#pragma unroll
        for (int tile = 0; tile < 2; tile++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int i = row0 + quad + 8 * h, j = column0 + 8 * tile + pair;
                float seen[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float gone = j + e <= i ? expf(total[i] - total[j + e]) : 0.0f;
                    system[i * SYSTEM_STRIDE + j + e] = j + e < i ? rate[i] * gone * kk[tile][2 * h + e] : 0.0f;
                    seen[e] = gone * qk[tile][2 * h + e];
                }
                *(u32*)(p + ((u64)head * rows + first + i) * CHUNK + j) = pack_half2(seen[0], seen[1]);
            }
    }
    __syncthreads();  // the system is written, and the queries are no longer needed
    copy_tile<CHUNK, DIM, SOLVE_THREADS>(other, v + value_at, DIM);
    cp_async_commit();

    // Column by column: T_i = e_i - sum over k < i of A_ik T_k; rows above the warp's first column are zero.
    {
        const int column = row0 + lane / 2, odd = lane % 2;
        for (int i = 0; i < row0; i++) inverse[i * SYSTEM_STRIDE + column] = 0.0f;
#pragma unroll 1
        for (int i = row0; i < CHUNK; i++) {
            float sums[2] = {};
#pragma unroll 4
            for (int at = row0 + odd; at < i; at += 4) {
                sums[0] = fmaf(system[i * SYSTEM_STRIDE + at], inverse[at * SYSTEM_STRIDE + column], sums[0]);
                if (at + 2 < i) {
                    const int next = at + 2;
                    sums[1] = fmaf(system[i * SYSTEM_STRIDE + next], inverse[next * SYSTEM_STRIDE + column], sums[1]);
                }
            }
            float sum = sums[0] + sums[1];
            sum += __shfl_xor_sync(FULL_WARP, sum, 1);
            if (!odd) inverse[i * SYSTEM_STRIDE + column] = (i == column ? 1.0f : 0.0f) - sum;
            __syncwarp();
        }
    }
    cp_async_wait<0>();
    __syncthreads();

#pragma unroll 1
    for (int side = 0; side < 2; side++) {
        half* const tile = side ? other : keys;
        float sums[DIM / 8][4] = {};
#pragma unroll 1
        for (int step = 0; step <= warp; step++) {
            u32 a[4], b[4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const int i = row0 + quad + 8 * (r & 1), j = 16 * step + pair + 8 * (r >> 1);
                float x[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    x[e] = inverse[i * SYSTEM_STRIDE + j + e] * rate[j + e] * (side ? 1.0f : expf(total[j + e]));
                }
                a[r] = pack_half2(x[0], x[1]);
            }
#pragma unroll
            for (int t = 0; t < DIM / 8; t += 2) {
                ldmatrix_x4_trans(b, chunk_at<DIM>(tile, 16 * step + lane % 16, t + lane / 16));
                mma_pair(sums[t], sums[t + 1], a, b);
            }
        }
        half* const out = (side ? v : w) + value_at;
#pragma unroll
        for (int t = 0; t < DIM / 8; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                *(u32*)(out + (row0 + quad + 8 * h) * DIM + 8 * t + pair) = pack_half2(sums[t][2 * h], sums[t][2 * h + 1]);
            }
    }
}

// ---- Chunk after chunk ---------------------------------------------------------------------------------------------

constexpr int SCAN_THREADS = 256;
constexpr int SLICE = 64;  // columns of a head's state in one block
constexpr int STAGE_HALVES = 3 * CHUNK * DIM + CHUNK * CHUNK + CHUNK * SLICE + 2 * CHUNK;

// What is loaded for one chunk: W, Q, K, P, the slice of U0, and G.
struct Stage {
    half *w, *q, *k, *p, *u;
    float* total;
    __device__ __forceinline__ Stage(half* at)
        : w(at), q(w + CHUNK * DIM), k(q + CHUNK * DIM), p(k + CHUNK * DIM), u(p + CHUNK * CHUNK),
          total((float*)(u + CHUNK * SLICE)) {}
};

// O of all chunks, and the state after the last. A warp has 16 rows of the state, and 16 x 32 of U and O. s f32
// [V_HEADS][DIM][DIM]. Grid (V_HEADS * DIM / SLICE), block 256; shared: STAGES stages, the state's copy [DIM][SLICE], U
// twice.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) gdn_scan(
    const int* count, const half* q, const half* k, const half* v, const half* w, const half* p, const float* decay,
    float* s, half* out, int rows
) {
    SHARED_DYNAMIC(shared);
    half* const ring = (half*)shared;
    half* const copy = ring + STAGES * STAGE_HALVES;
    half* const u_tile = copy + DIM * SLICE;
    half* const late = u_tile + CHUNK * SLICE;  // U times e^{G_64 - G}
    const int lane = lane_id(), warp = warp_id(), quad = lane / 4, pair = 2 * (lane % 4);
    const int head = blockIdx.x / (DIM / SLICE), column0 = blockIdx.x % (DIM / SLICE) * SLICE, key_head = head % K_HEADS;
    const int row0 = warp % 4 * 16, tile0 = warp / 4 * 4;  // of U and O: rows, and 4 tiles of 8 columns
    pdl_launch();
    pdl_wait();
    const int n = *count, chunks = ceil_div(n, CHUNK);

    auto fetch = [&](int chunk) {
        if (chunk < chunks) {
            const Stage stage(ring + chunk % STAGES * STAGE_HALVES);
            const u64 at = (u64)head * rows + chunk * CHUNK, key_at = (u64)key_head * rows + chunk * CHUNK;
            copy_tile<CHUNK, DIM, SCAN_THREADS>(stage.w, w + at * DIM, DIM);
            copy_tile<CHUNK, DIM, SCAN_THREADS>(stage.q, q + key_at * DIM, DIM);
            copy_tile<CHUNK, DIM, SCAN_THREADS>(stage.k, k + key_at * DIM, DIM);
            copy_tile<CHUNK, CHUNK, SCAN_THREADS>(stage.p, p + at * CHUNK, CHUNK);
            copy_tile<CHUNK, SLICE, SCAN_THREADS>(stage.u, v + at * DIM + column0, DIM);
            if (threadIdx.x < CHUNK / 4) cp_async16(stage.total + 4 * threadIdx.x, decay + at + 4 * threadIdx.x);
        }
        cp_async_commit();
    };
    fetch(0);
    float* const home = s + (u64)head * DIM * DIM + (16 * warp + quad) * DIM + column0 + pair;
    float state[SLICE / 8][4];
#pragma unroll
    for (int t = 0; t < SLICE / 8; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 two = *(const float2*)(home + 8 * h * DIM + 8 * t);
            state[t][2 * h] = two.x, state[t][2 * h + 1] = two.y;
        }

#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk++) {
        const Stage stage(ring + chunk % STAGES * STAGE_HALVES);
#pragma unroll
        for (int t = 0; t < SLICE / 8; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                half* const to = chunk_at<SLICE>(copy, 16 * warp + quad + 8 * h, t) + pair;
                *(u32*)to = pack_half2(state[t][2 * h], state[t][2 * h + 1]);
            }
        cp_async_wait<0>();
        __syncthreads();  // the chunk and the state are written; all warps are done with the previous chunk
        if (STAGES > 1) fetch(chunk + 1);

        float known[4][4] = {}, o[4][4] = {};  // W S, Q S
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
            u32 a[2][4], b[2][4];
            row_fragment<DIM>(a[0], stage.w, row0, step);
            row_fragment<DIM>(a[1], stage.q, row0, step);
#pragma unroll
            for (int t = 0; t < 2; t++) {
                ldmatrix_x4_trans(b[t], chunk_at<SLICE>(copy, 16 * step + lane % 16, tile0 + 2 * t + lane / 16));
            }
#pragma unroll
            for (int t = 0; t < 2; t++) {
                mma_pair(known[2 * t], known[2 * t + 1], a[0], b[t]);
                mma_pair(o[2 * t], o[2 * t + 1], a[1], b[t]);
            }
        }
        const float last = stage.total[CHUNK - 1];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = row0 + quad + 8 * h;
            const float total = stage.total[row], carried = expf(total), left = expf(last - total);
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const float2 own = unpack_half2(*(const u32*)(chunk_at<SLICE>(stage.u, row, tile0 + t) + pair));
                const float x = own.x - known[t][2 * h], y = own.y - known[t][2 * h + 1];
                *(u32*)(chunk_at<SLICE>(u_tile, row, tile0 + t) + pair) = pack_half2(x, y);
                *(u32*)(chunk_at<SLICE>(late, row, tile0 + t) + pair) = pack_half2(left * x, left * y);
                o[t][2 * h] *= carried, o[t][2 * h + 1] *= carried;
            }
        }
        __syncthreads();  // U is written

        // The state first, since the next chunk waits for it.
        const float chunk_decay = expf(last);
#pragma unroll
        for (int t = 0; t < SLICE / 8; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) state[t][e] *= chunk_decay;
#pragma unroll
        for (int step = 0; step < CHUNK / 16; step++) {
            u32 a[4], b[4];
            ldmatrix_x4_trans(a, chunk_at<DIM>(stage.k, 16 * step + lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
#pragma unroll
            for (int t = 0; t < SLICE / 8; t += 2) {
                ldmatrix_x4_trans(b, chunk_at<SLICE>(late, 16 * step + lane % 16, t + lane / 16));
                mma_pair(state[t], state[t + 1], a, b);
            }
        }
#pragma unroll
        for (int step = 0; step < CHUNK / 16; step++) {
            if (16 * step > row0) continue;
            u32 a[4], b[4];
            row_fragment<CHUNK>(a, stage.p, row0, step);
#pragma unroll
            for (int t = 0; t < 4; t += 2) {
                ldmatrix_x4_trans(b, chunk_at<SLICE>(u_tile, 16 * step + lane % 16, tile0 + t + lane / 16));
                mma_pair(o[t], o[t + 1], a, b);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = chunk * CHUNK + row0 + quad + 8 * h;
            half* const to = out + ((u64)row * V_HEADS + head) * DIM + column0 + 8 * tile0 + pair;
#pragma unroll
            for (int t = 0; t < 4; t++) *(u32*)(to + 8 * t) = pack_half2(o[t][2 * h], o[t][2 * h + 1]);
        }
        if (STAGES == 1) {
            __syncthreads();
            fetch(chunk + 1);
        }
    }
#pragma unroll
    for (int t = 0; t < SLICE / 8; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            *(float2*)(home + 8 * h * DIM + 8 * t) = make_float2(state[t][2 * h], state[t][2 * h + 1]);
        }
}
