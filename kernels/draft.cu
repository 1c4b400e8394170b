// The drafter's kernels between its matmuls, except norms and SwiGLU.
//
// Context, once per committed position:  draft_gather -> fc -> norm -> k, v of all layers -> draft_update
// Block, once per step and layer:        q, k, v -> draft_prepare -> draft_split -> draft_combine -> attn_output
//
// A layer's keys and values are as in kv.cuh, in a ring: positions [0, length) are context, of which a layer with a
// window holds the last ones; a block's own rows are stored after it at positions length.. until the next block
// overwrites them. All HEAD_DIM dimensions are rotated. Row i of a block has position length + i. What a layer sees:
// models/dflash.py. The attention is attention.cuh's.
//
// Defines: as attention.cu's, with ROTARY equal to HEAD_DIM. With HEAD_GATES also UNGATED: a number per query head
// follows the values, which adds an argument to draft_combine.

#define KV_RING

#include "acts.cuh"
#include "attention.cuh"
#include "combine.cuh"
#include "features.cuh"
#include "heads.cuh"
#include "state.cuh"

constexpr int PREPARE_WARPS = 4;

// Columns of [attn_q | attn_k | attn_v], and of gates.
__device__ __forceinline__ int block_width(int kv_heads) {
#ifdef HEAD_GATES
    return projected(kv_heads);
#else
    return (GROUP + 2) * kv_heads * HEAD_DIM;
#endif
}

// What the rows of a block see: context and block, with `causal` only up to themselves, with `window` only that near,
// and of the context at most the last draft_window positions (a knob; 0: all). A part is a split.
struct BlockView {
    int length, live, keys, window, first, step0;
    bool causal;
    SplitTiles tiles;

    __device__ BlockView(const StepState* st, int block, int window, bool causal, SplitTiles tiles)
        : length(st->length), live(block), keys(length + block), window(window), first(0), causal(causal), tiles(tiles) {
        if (st->draft_window) first = max(first, length - st->draft_window);
        if (window) first = max(first, length - window + 1);
        step0 = tiles.from(first / TILE);
    }

    __device__ int tile(int step) const { return tiles.tile(step); }
    __device__ InOrder order(int) const { return {}; }
    __device__ InPlace placed(int) const { return {}; }

    __device__ bool open(int begin) const {
        const bool behind = begin >= first && (!window || length + live - 1 - begin < window);
        const bool ahead = causal || !window || begin + TILE <= length + window;
        return behind && ahead && begin + TILE <= (causal ? length + 1 : keys);
    }

    __device__ u64 visible(int row, int begin) const {
        const int low = window ? max(first, length + row - window + 1) : first;
        const int high = causal ? length + row : window ? min(keys, length + row + window) - 1 : keys - 1;
        return bit_range(low - begin, high - begin);
    }

    __device__ bool stores(int) const { return true; }
};

// Whether row `row` of the pending ones is live: there is one per position in [draft_length, length).
__device__ __forceinline__ bool is_pending(const StepState* st, int row) { return row < st->length - st->draft_length; }

// Acts of fc: row i is the features of position draft_length + row0 + i, row row0 + i of `features` f16 [row][width],
// which holds them times HEADROOM. Grid (groups of 256 / warps of a block, rounded up; rows); width a multiple of 8.
extern "C" __global__ void draft_gather(
    const StepState* st, int row0, const half* features, int width, u8* acts_q8, u8* acts_f16
) {
    pdl_launch();
    const int row = blockIdx.y, group = blockIdx.x * (blockDim.x / WARP) + warp_id();
    const int column = group * ACTS_GROUP + 8 * lane_id();
    pdl_wait();
    if (group * ACTS_GROUP >= width || !is_pending(st, row0 + row)) return;

    uint4 eight = make_uint4(0, 0, 0, 0);
    if (column < width) eight = *reinterpret_cast<const uint4*>(features + u64(row0 + row) * width + column);
    const u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
    float x[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 pair = unpack_half2(pairs[i]);
        x[2 * i] = pair.x * FROM_HEADROOM, x[2 * i + 1] = pair.y * FROM_HEADROOM;
    }
    acts_store({acts_q8, acts_f16}, row, group, x);
}

// Context keys and values of `layers` layers with caches of one type: sums the partials of [attn_k | attn_v] of the
// first, of the second, .., in rows of CONTEXT_LAYERS layers where these are not all; norms keys with k_norm
// [layers][HEAD_DIM], rotates them to position draft_length + row0 + row, writes `caches` [layers]. A row whose slot a
// later row of the same launch may take is left out. Grid (ceil(layers * 2 * kv_heads / PREPARE_WARPS), rows).
extern "C" __global__ void __launch_bounds__(WARP* PREPARE_WARPS) draft_update(
    const StepState* st, int row0, const float* partials, int rows, int layers, int kv_heads, const float* k_norm,
    const float* frequency, float eps, const KeyValues* caches
) {
    pdl_launch();
    const int task = blockIdx.x * PREPARE_WARPS + warp_id(), row = blockIdx.y;
    const int layer = min(task / (2 * kv_heads), layers - 1), kv_head = task % kv_heads;
    const KeyValues cache = caches[layer];  // addresses, written long before
    pdl_wait();
    if (task >= layers * 2 * kv_heads || !is_pending(st, row0 + row)) return;

    const int position = st->draft_length + row0 + row;
    if (position + cache.slots < st->length) return;
#ifdef CONTEXT_LAYERS
    const int all = CONTEXT_LAYERS;
#else
    const int all = layers;
#endif
    Head head({partials, rows, all * 2 * kv_heads * HEAD_DIM}, row, task * HEAD_DIM);
    if (task / kv_heads % 2) {
        store_value(cache, head, kv_head, position);
    } else {
        head.place(HeadNorm(k_norm + layer * HEAD_DIM), Rotation(position, frequency), eps);
        store_key(cache, head, kv_head, position);
    }
}

// The block's queries, keys and values: attn_prepare without gates, from partials of [attn_q | attn_k | attn_v].
extern "C" __global__ void __launch_bounds__(WARP* PREPARE_WARPS) draft_prepare(
    const StepState* st, int block, const float* partials, int rows, int kv_heads, const float* q_norm,
    const float* k_norm, const float* frequency, float eps, float scale, half* q, u8* k, u8* v, int slots
) {
    pdl_launch();
    const int heads = kv_heads * GROUP, task = blockIdx.x * PREPARE_WARPS + warp_id(), row = blockIdx.y;
    pdl_wait();
    if (task >= heads + 2 * kv_heads || row >= block) return;
    const Projection in = {partials, rows, block_width(kv_heads)};
    const int position = st->length + row;
    prepare_head<HEAD_DIM>(
        in, row, task, kv_heads, position, position, q_norm, k_norm, frequency, eps, scale, q, {k, v, slots}
    );
}

// Partial attention of one split: see attend. Grid (row blocks, kv heads, splits); `window` is the layer's sliding
// window or 0.
extern "C" __global__ void __launch_bounds__(THREADS, 1) draft_split(
    const StepState* st, int block, int rows, int window, int causal, const half* q, u8* k, u8* v,
    int slots, float* out, float2* stats
) {
    pdl_launch();
    SHARED_DYNAMIC(shared);
    pdl_wait();
    const int split = blockIdx.z;
    const BlockView view(st, block, window, causal, {split, int(gridDim.z)});
    attend<ROW_TILES>(view, packed_rows(rows, block), split, CopiedQueries{q}, {k, v, slots}, shared, out, stats);
}

// Merges the splits and stores the acts of attn_output. Grid (groups of 256 activations, rows).
extern "C" __global__ void __launch_bounds__(WARP* MERGE_WARPS) draft_combine(
    int block, const float* out, const float2* stats, int splits, int rows, int kv_heads, u8* acts_q8, u8* acts_f16
#ifdef HEAD_GATES
    , const float* partials
#endif
) {
    pdl_launch();
#ifdef HEAD_GATES
    const GatedGroup gated(blockIdx.x, kv_heads);
    const auto parts = [&] { return splits; };
    pdl_wait();
    if (int(blockIdx.y) >= block) return;
    gated.combine(parts, blockIdx.y, rows, kv_heads, out, stats, partials, {acts_q8, acts_f16});
#else
    const int row = blockIdx.y, group = blockIdx.x, element = group * ACTS_GROUP + 8 * lane_id();
    const bool padding = element >= kv_heads * GROUP * HEAD_DIM;
    pdl_wait();
    if (row >= block) return;

    float x[8];
    merge_parts(x, out, stats, splits, row, rows, kv_heads, padding ? 0 : element);
    if (warp_id()) return;
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = padding ? 0.0f : x[i];
    acts_store({acts_q8, acts_f16}, row, group, x);
#endif
}
