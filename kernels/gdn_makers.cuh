// The makers of gdn_recurrence: warps that make the rows of a first pass while the others load the state. Each block
// makes all rows of its key head's q and k, its columns of v, and the gates of the key head's value heads. Blocks of one
// key head make the same q, k and gates: that is quicker than waiting for another kernel.
//
// A maker has a share of the rows of q, of k or of v; a lane has 4 channels, the same in all of its rows:
//   1. add up the projection's partials, all rows' inputs of the convolution, into the place where the results will be
//   2. the convolution along the parents, SiLU and l2 norms, from the last rows to the first, some rows at a time. The
//      results replace their inputs: what is left to do reads rows of smaller numbers only
// and a thread has its share of the gates. Bound by the L2: a block reads all partials of its channels. On an H200 a layer of
// the 27B takes 2 to 3.4 us less than with gdn_prepare up to 16 rows, 0.6 with 24; from 32 on it would take more.
//
// Defines: those of gdn_state.cuh; NODES, rows of the pass; MAKERS, at least 3; SPLIT_K, partials of the projection.

#pragma once

#include "gdn_rows.cuh"
#include "gdn_state.cuh"

constexpr int V_MAKERS = MAKERS % 2 ? 1 : 2, HEAD_MAKERS = MAKERS - V_MAKERS;  // of v; of q and k, half of them each
constexpr int V_LINE = WIDTH / 4, V_LINES = WARP / V_LINE;  // float4 of a row of v; rows of v that fill a warp
constexpr int OLD_BYTES = PAST * (VALUE * WARP + V_LINE) * 16;  // of the convolution's state
// What the registers of a thread allow: partials that are loaded together, of as many rows, and rows that are mixed
// together.
constexpr int FITTING = WARPS + MAKERS > 12 ? 12 : 24;
constexpr int PREFETCHED = SPLIT_K < 8 ? SPLIT_K : 8, LOADED = FITTING / PREFETCHED, MIXED = FITTING < 24 ? 6 : 8;
static_assert(HEAD_MAKERS > 0 && NODES <= WARP, "a lane holds a row's parent");

// What a row is made of. partials: f32 [SPLIT_K][rows][width]; see gdn_prepare.
struct Projected {
    const float* partials;
    int rows, width, alpha_at, beta_at;
    const float *conv_weight, *ssm_a, *ssm_dt, *conv, *inputs;
};

// What the blocks of a key head make alike is stored by one of them for the next step's commit, in this step's half.
struct Stored {
    float *k, *decay;  // of the key head; of all value heads
    int capacity;
};

// a or beta of a row and a value head: of all rows and heads first a, then beta, one to a thread.
struct Gate {
    static constexpr int EACH = NODES * HEADS, TURNS = ceil_div(2 * EACH, 32 * MAKERS);
    int number;  // 2 * EACH and more: none
    float a, dt, x;

    __device__ __forceinline__ Gate(const Projected& from, int number) : number(number) {
        a = from.ssm_a[head()], dt = from.ssm_dt[head()];
    }
    __device__ __forceinline__ bool is_beta() const { return number >= EACH; }
    __device__ __forceinline__ int row() const { return number % EACH / HEADS; }
    __device__ __forceinline__ int member() const { return number % EACH % HEADS; }
    __device__ __forceinline__ int head() const { return block_key_head() + member() * K_HEADS; }
    __device__ __forceinline__ PartialValue<SPLIT_K> load(const Projected& from) const {
        PartialValue<SPLIT_K> loaded;
        const int column = (is_beta() ? from.beta_at : from.alpha_at) + head();
        loaded.load(from.partials, from.rows, from.width, row(), column);
        return loaded;
    }
    __device__ __forceinline__ void store(float2* gates, const Stored& stored, int live) const {
        if (number >= 2 * EACH) return;
        const float value = is_beta() ? sigmoid(x) : decay_factor(x, a, dt);
        ((float*)(gates + row() * HEADS + member()))[is_beta()] = value;
        if (is_beta() || row() >= live || !stores_decay(member())) return;
        stored.decay[(u64)head() * stored.capacity + row()] = value;
    }
};

// Rows of q, k or v in shared memory, and the convolution's state after the pending path, [PAST] rows that are read past
// the root, the oldest first. A slot is what all channels of a row have in common.
template <bool IS_V> struct RowPlaces {
    float4* rows;
    int old, mine;  // where the state begins, after `rows`; this lane's float4, swizzled but in v

    __device__ __forceinline__ RowPlaces(float4* rows, const float4* old, int f4)
        : rows(rows), old(int(old - rows)), mine(IS_V ? f4 : f4 ^ f4 >> 3) {}
    __device__ __forceinline__ u32 slot(int node) const {
        constexpr int LINE = IS_V ? V_LINE : WARP;
        return node < 0 ? old + (PAST + node) * LINE : IS_V ? node * LINE : node * LINE ^ (node & 7);
    }
    __device__ __forceinline__ float4& at(u32 slot) const { return rows[IS_V ? slot + mine : slot ^ mine]; }
};

// Slots of a row, a lane's, and of the last PAST along its parents. Past the root the walk continues through the
// convolution's state, newest input first: -1, -2, -3.
template <bool IS_V> struct Walks {
    u32 near, far;  // 16 bits each: row and parent; the two before

    // Loads the parents; those of rows that are not live are arbitrary.
    __device__ __forceinline__ explicit Walks(const StepState* st) : near(u32(load_now(st->parent[lane_id()]))) {}

    // What the lane of `row` has. The whole warp calls; lanes may ask for different rows.
    __device__ __forceinline__ static u32 of(u32 word, int row) {
        return __shfl_sync(FULL_WARP, word, row & (WARP - 1));
    }
    __device__ __forceinline__ void walk(const RowPlaces<IS_V>& places) {
        const u32 parents = near;
        int at[PAST + 1] = {lane_id(), int(parents)};
#pragma unroll
        for (int step = 2; step <= PAST; step++) {
            const int parent = int(of(parents, at[step - 1]));
            at[step] = at[step - 1] >= 0 ? parent : at[step - 1] - 1;
        }
        near = (places.slot(at[0]) & 0xffff) | places.slot(at[1]) << 16;
        far = (places.slot(at[2]) & 0xffff) | places.slot(at[3]) << 16;
    }
    // The inputs of a row's convolution, the oldest first.
    __device__ __forceinline__ void along(
        const RowPlaces<IS_V>& places, int row, float4 (&input)[PAST + 1]
    ) const {
        const u32 two = of(near, row), before = of(far, row);
        input[3] = places.at(two & 0xffff), input[2] = places.at(two >> 16);
        input[1] = places.at(before & 0xffff), input[0] = places.at(before >> 16);
    }
};
static_assert(PAST == 3, "a row's slots are two words");

// This warp's rows of q or k, or where IS_V of v, and this thread's gates. WARPS_OF warps share the rows, `warp` is this
// one's number; a lane's rows are STEP apart, and its first one has `first` others behind it. Returns how many rows are
// live; none: nothing was made.
template <bool IS_V, int WARPS_OF, int STEP> __device__ __forceinline__ int make_rows(
    const StepState* st, const Projected& from, int role, int warp, int first, int f4, const RowPlaces<IS_V>& places,
    int thread, float2* gates, const Stored& stored
) {
    constexpr int COUNT = ceil_div(NODES, STEP), AHEAD_OF = COUNT < LOADED ? COUNT : LOADED;
    constexpr int AT_ONCE = ceil_div(COUNT, ceil_div(COUNT, MIXED));
    const int channel = block_channel(role, f4);
    auto row_of = [&](int i) { return NODES - 1 - first - i * STEP; };
    auto exists = [&](int i) { return NODES % STEP == 0 || row_of(i) >= 0; };
    auto barrier = [] { warps_barrier<IS_V ? 2 : 3, 32 * WARPS_OF * (IS_V ? 1 : 2)>(); };

    // What is read before pdl_wait: gdn.cuh says why it may be.
    Taps taps;
    taps.load(from.conv_weight, channel);
    Gate gate(from, thread);
    const PendingPath path = PendingPath::load(st);
    pdl_wait();
    const PartialValue<SPLIT_K> gate_parts = gate.load(from);
    Walks<IS_V> walks(st);
    const int live = live_rows(st, 0, NODES);
    PartialSpan<SPLIT_K, 4> loaded[AHEAD_OF];
    auto load = [&](int i) {  // the row is opaque, as the compiler would hold the addresses of all rows
        loaded[i % AHEAD_OF].load(from.partials, from.rows, from.width, max(int(opaque(u32(row_of(i)))), 0), channel);
    };
#pragma unroll
    for (int i = 0; i < AHEAD_OF; i++) load(i);
    issue_loads();  // those that follow wait for the path
#pragma unroll
    for (int t = 0; t < PAST; t++) {
        if (t % WARPS_OF == warp) places.at(places.slot(t - PAST)) = path.input(st, from.conv, from.inputs, t, channel);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const float4 input = loaded[i % AHEAD_OF].sum().at[0];
        if (exists(i)) places.at(places.slot(row_of(i))) = input;
        if (i + AHEAD_OF < COUNT) load(i + AHEAD_OF);
    }
    if (live <= 0) return 0;
    gate.x = gate_parts.sum();
    walks.walk(places);
    barrier();  // all inputs are there

#pragma unroll 1
    for (int begin = 0; begin < COUNT; begin += AT_ONCE) {
        float4 mixed[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int row = max(min(row_of(begin + i), live - 1), 0);
            float4 input[PAST + 1];
            walks.along(places, row, input);
            mixed[i] = taps.mix(input);
        }
        if constexpr (!IS_V) l2_normalize(mixed, role == QUERY ? QUERY_LENGTH : KEY_LENGTH);
        barrier();  // the inputs of these rows have been read
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int row = row_of(begin + i);
            if (row < 0) continue;
            places.at(places.slot(row)) = mixed[i];
            if (role == KEY && row < live && stores_keys()) *(float4*)(stored.k + row * DIM + 4 * f4) = mixed[i];
        }
    }
    gate.store(gates, stored, live);
#pragma unroll 1
    for (int turn = 1; turn < Gate::TURNS; turn++) {
        Gate next(from, thread + turn * 32 * MAKERS);
        next.x = next.load(from).sum();
        next.store(gates, stored, live);
    }
    return live;
}

// All rows of the block, by its makers; `maker`: this warp's number among them. The rows are there after the block's next
// barrier: q and k swizzled, v [NODES][WIDTH], gates [NODES][HEADS]. old: space for OLD_BYTES that is free by then, a
// multiple of 512 bytes after q and k, which are.
// Returns how many rows are live.
__device__ __forceinline__ int make_block_rows(
    const StepState* st, const Projected& from, int maker, float4* q, float4* k, float* v, float2* gates, float4* old,
    const Stored& stored
) {
    const int lane = lane_id(), thread = 32 * maker + lane;
    if (maker < HEAD_MAKERS) {
        const int role = maker % 2 ? KEY : QUERY, warp = maker / 2;
        const RowPlaces<false> places(role == KEY ? k : q, old + role * PAST * WARP, lane);
        return make_rows<false, HEAD_MAKERS / 2, HEAD_MAKERS / 2>(
            st, from, role, warp, warp, lane, places, thread, gates, stored
        );
    }
    // Lanes that have no line of their own do what others do.
    const int warp = maker - HEAD_MAKERS, line = min(lane / V_LINE, V_LINES - 1), f4 = lane % V_LINE;
    const RowPlaces<true> places((float4*)v, old + VALUE * PAST * WARP, f4);
    return make_rows<true, V_MAKERS, V_MAKERS * V_LINES>(
        st, from, VALUE, warp, warp * V_LINES + line, f4, places, thread, gates, stored
    );
}
