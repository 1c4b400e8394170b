// The gated delta net's kernels around the recurrence: their inputs and outputs. Layouts and formulas: gdn.cuh.
// Defines: K_HEADS, V_HEADS; NODES, rows of the pass; SPLIT_K, partials of the projection; COMMITS_CONV, see gdn_out.

#include "acts.cuh"
#include "gated_norm.cuh"
#include "gdn_rows.cuh"

constexpr int PREPARE_WARPS = 8;
static_assert(NODES <= 32 * PREPARE_WARPS, "a thread per row");
constexpr int TURNS = ceil_div(NODES, PREPARE_WARPS);  // nodes per warp
constexpr int LOADED = TURNS < 4 ? TURNS : 4;          // how many of those are loaded together

// Computes Q, K, V, beta and a from the projection's partials: the pending commit of the convolution's state, the
// convolution along the parents, SiLU, l2 norms, gates.
//
// One block per head of q, k or v (DIM channels); a warp takes every 8th node, a lane 4 channels. A block owns its
// channels from the partials to the state, so blocks exchange nothing. The block of a value head also
// computes its beta and its decay factors. It runs in passes that are not the first of their tree, and in others whose
// blocks of gdn_recurrence have no space for makers. Bound by latency: what does not depend on the step's state is loaded
// before the state is known. In a step of the 27B on an H200: 5.5 us with 16 rows, 8 us with 64.
//
// grid (2 K_HEADS + V_HEADS), block 256. partials f32 [SPLIT_K][rows][width], rows NODES at least, whose columns are
// CHANNELS of attn_qkv first; ssm_alpha and ssm_beta begin at alpha_at and beta_at. conv_weight (CHANNELS, 4), tap 0
// the oldest.
extern "C" __global__ void __launch_bounds__(32 * PREPARE_WARPS, 1) gdn_prepare(
    const StepState* st, int node0, const float* partials, int rows, int width, int alpha_at, int beta_at,
    const float* conv_weight, const float* ssm_a, const float* ssm_dt, float* conv, float* inputs, float* q, float* k,
    float* v, float* beta, float* decay, int capacity
) {
    __shared__ float4 x[NODES][32];
    __shared__ float4 past[PAST][32];
    __shared__ int parents[NODES];
    const int lane = lane_id(), warp = warp_id(), chunk = blockIdx.x, channel = chunk * DIM + 4 * lane;
    const int value_head = chunk - 2 * K_HEADS;
    Taps taps;
    pdl_launch();
    taps.load(conv_weight, channel);
    const float a = value_head >= 0 ? ssm_a[value_head] : 0.0f, dt = value_head >= 0 ? ssm_dt[value_head] : 0.0f;
    pdl_wait();

    const PendingPath path = PendingPath::load(st);
    const int own = threadIdx.x;  // the row whose gates this thread computes
    float factor = 0.0f;
    if (own < NODES) {
        parents[own] = st->parent[node0 + own];
        if (value_head >= 0) {
            factor = decay_factor(partials_sum<SPLIT_K>(partials, rows, width, own, alpha_at + value_head), a, dt);
            beta[value_head * ROWS + own] =
                sigmoid(partials_sum<SPLIT_K>(partials, rows, width, own, beta_at + value_head));
        }
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn += LOADED) {
        PartialSpan<SPLIT_K, 4> loaded[LOADED];
#pragma unroll
        for (int i = 0; i < LOADED; i++) {
            const int node = warp + (turn + i) * PREPARE_WARPS;
            if (node < NODES) loaded[i].load(partials, rows, width, node, channel);
        }
#pragma unroll
        for (int i = 0; i < LOADED; i++) {
            const int node = warp + (turn + i) * PREPARE_WARPS;
            if (node < NODES) x[node][lane] = loaded[i].sum().at[0];
        }
    }
    const int live = live_rows(st, node0, NODES), half = st->parity & 1;
    if (live <= 0) return;
    const bool commits = node0 == 0 && path.length > 0;
    if (warp < PAST) {
        past[warp][lane] = commits ? path.input(st, conv, inputs, warp, channel)
                                   : *(const float4*)(conv + warp * CHANNELS + channel);
    }
    __syncthreads();  // the last pass's inputs and the old state have been read: this pass may overwrite them

    if (value_head >= 0 && own < live) decay[(u64)(half * V_HEADS + value_head) * capacity + node0 + own] = factor;
    if (commits && warp < PAST) *(float4*)(conv + warp * CHANNELS + channel) = past[warp][lane];
#pragma unroll 1
    for (int node = warp; node < live; node += PREPARE_WARPS) {
        float4 input = x[node][lane];
        *(float4*)(inputs + (u64)(node0 + node) * CHANNELS + channel) = input;
        float4 along[PAST + 1];  // the inputs along the parents
        along[PAST] = input;
        int at = node0 + node;
#pragma unroll
        for (int t = PAST - 1; t >= 0; t--) {
            // Past the root the walk continues through the state, newest input first.
            at = at >= node0 ? parents[at - node0] : at >= 0 ? st->parent[at] : at - 1;
            along[t] = at >= node0 ? x[at - node0][lane]
                       : at >= 0   ? *(const float4*)(inputs + (u64)at * CHANNELS + channel)
                                   : past[PAST + at][lane];
        }
        float4 mixed = taps.mix(along);
        float* to = v + (value_head * ROWS + node) * DIM;
        if (value_head < 0) {
            const bool is_query = chunk < K_HEADS;
            mixed = l2_normed(mixed, is_query ? QUERY_LENGTH : KEY_LENGTH);
            to = is_query ? q + (chunk * ROWS + node) * DIM
                          : k + ((u64)(half * K_HEADS + chunk - K_HEADS) * capacity + node0 + node) * DIM;
        }
        *(float4*)(to + 4 * lane) = mixed;
    }
}

#ifdef COMMITS_CONV
constexpr int OUT_GROUPS = ceil_div(V_HEADS * DIM, ACTS_GROUP);
constexpr int INPUT_ROWS = NODES < 4 ? NODES : 4;             // rows of one head of q, k or v that a warp stores
constexpr int INPUT_SHARES = ceil_div(NODES, INPUT_ROWS);     // delta_shapes.py: committing_grid

// What gdn_single_row and the makers of gdn_recurrence leave to do: the pending commit of the convolution's state, and the
// rows' inputs, which may replace inputs that the commit reads. A warp takes the channels of one head of q, k or v in
// every INPUT_SHARES-th row. The first share's warp commits, and has those rows too that the commit reads: no warp waits
// for another. What it reads before pdl_wait: gdn.cuh says why it may.
__device__ __forceinline__ void commit_conv(
    const StepState* st, const float* partials, int rows, int width, float* conv, float* inputs, int chunk, int share
) {
    const int channel = chunk * DIM + 4 * lane_id();
    const PendingPath path = PendingPath::load(st);
    pdl_wait();
    PartialSpan<SPLIT_K, 4> loaded[INPUT_ROWS];
#pragma unroll
    for (int i = 0; i < INPUT_ROWS; i++) {
        loaded[i].load(partials, rows, width, min(share + i * INPUT_SHARES, NODES - 1), channel);
    }
    const int live = live_rows(st, 0, NODES);
    int read[PAST];  // nodes whose inputs the commit reads, negative: none
#pragma unroll
    for (int t = 0; t < PAST; t++) read[t] = path.node(st, t);
    ConvState state;
    if (share == 0) state = ConvState::after(path, st, conv, inputs, channel);
    if (live <= 0) return;
    if (share == 0 && path.length > 0) state.store(conv, channel);
    auto store = [&](int row, PartialSpan<SPLIT_K, 4>& from) {
        if (row < live) *(float4*)(inputs + (u64)row * CHANNELS + channel) = from.sum().at[0];
    };
#pragma unroll
    for (int i = 0; i < INPUT_ROWS; i++) {
        const int row = share + i * INPUT_SHARES;
        const bool is_read = row == read[0] || row == read[1] || row == read[2];
        if (share == 0 || !is_read) store(row, loaded[i]);
    }
#pragma unroll
    for (int t = 0; t < PAST; t++) {
        if (share > 0 || read[t] < 0 || read[t] % INPUT_SHARES == 0) continue;
        PartialSpan<SPLIT_K, 4>& span = loaded[0];
        span.load(partials, rows, width, min(read[t], NODES - 1), channel);
        store(read[t], span);
    }
}
#endif

// Converts the heads' outputs to activations for ssm_out: RMSNorm over each head times silu(z). A warp takes two heads
// (256 elements) of a row. Bound by latency: 1.3 us by itself with one row, 3.7 us with 64, most of it hidden in a step.
//
// grid (groups / warps of a block, rounded up; rows). attn_gate begins at column gate_at of the partials. COMMITS_CONV:
// after gdn_single_row or makers, in blocks of one warp: first those that do commit_conv, then the groups of all rows.
extern "C" __global__ void gdn_out(
    const float* out, const float* partials, int rows, int width, int gate_at, const float* ssm_norm, float eps,
    u8* acts_q8, u8* acts_f16, const int* count, int node0
#ifdef COMMITS_CONV
    , const StepState* st, float* conv, float* inputs
#endif
) {
    static_assert(DIM == NORM_DIM);
    Span<8> head, norm;
    PartialSpan<SPLIT_K, 8> gate;
    pdl_launch();
#ifdef COMMITS_CONV
    const int shares = INPUT_SHARES * CHANNELS / DIM, job = int(blockIdx.x) - shares;
    if (job < 0) {
        const int chunk = blockIdx.x / INPUT_SHARES, share = blockIdx.x % INPUT_SHARES;
        return commit_conv(st, partials, rows, width, conv, inputs, chunk, share);
    }
    const int group = job % OUT_GROUPS, row = job / OUT_GROUPS;
#else
    const int group = blockIdx.x * (blockDim.x / WARP) + warp_id(), row = blockIdx.y;
#endif
    const int k = group * ACTS_GROUP + 8 * lane_id();
    norm.load(ssm_norm + 8 * lane_id() % DIM);
    pdl_wait();
    if (group * ACTS_GROUP >= V_HEADS * DIM) return;
    head.zero();
    gate.zero();
    if (k < V_HEADS * DIM) {
        head.load(out + (u64)row * V_HEADS * DIM + k);
        gate.load(partials, rows, width, row, gate_at + k);
    }
    if (node0 + row >= *count) return;
    float x[8], z[8], w[8];
    head.values(x);
    norm.values(w);
    gate.sum().values(z);
    gated_norm(x, z, w, eps);
    acts_store({acts_q8, acts_f16}, row, group, x);
}
