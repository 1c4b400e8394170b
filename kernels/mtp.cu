// The attention of an MTP head, between its matmuls: pairs enter the cache, and the one that drafts looks at all before it.
//
//   mtp_join -> eh_proj -> norm -> q, k, v -> mtp_prepare -> mtp_split -> mtp_combine -> attn_output -> feed-forward
//
// Rows of a pass: mtp.cuh. Bound by latency. Defines: as attention.cu's, without NEAR.

#include "acts.cuh"
#include "attention.cuh"
#include "heads.cuh"
#include "mtp.cuh"

constexpr int PREPARE_WARPS = 4;

__device__ __forceinline__ int projected(int kv_heads) { return (QUERY_PARTS * GROUP + 2) * kv_heads * HEAD_DIM; }

// attn_prepare of attention.cu for pairs: keys and values of all rows, queries of row 0 where it drafts. Grid
// (ceil((heads + 2 kv_heads) / PREPARE_WARPS), rows).
extern "C" __global__ void __launch_bounds__(WARP* PREPARE_WARPS) mtp_prepare(
    const StepState* st, int first, int depth, const float* partials, int rows, int kv_heads, const float* q_norm,
    const float* k_norm, const float* frequency, float eps, float scale, half* q, u8* k, u8* v, int slots
) {
    pdl_launch();
    const int heads = kv_heads * GROUP, task = blockIdx.x * PREPARE_WARPS + warp_id(), row = blockIdx.y;
    const Pairs pairs = {st, first, depth};
    pdl_wait();
    if (task >= heads + 2 * kv_heads || (task < heads && !pairs.drafts(row)) || !pairs.live(row)) return;
    const Projection in = {partials, rows, projected(kv_heads)};
    const int slot = pairs.slot(row);
    prepare_head<QUERY_PARTS * HEAD_DIM>(
        in, row, task, kv_heads, slot, slot, q_norm, k_norm, frequency, eps, scale, q, {k, v, slots}
    );
}

// Pairs 1.. < keys, of which a part is a split.
struct PairView {
    int keys;
    SplitTiles tiles;
    static constexpr int step0 = 0;

    __device__ int tile(int step) const { return tiles.tile(step); }
    __device__ InOrder order(int) const { return {}; }
    __device__ bool open(int begin) const { return begin > 0 && begin + TILE <= keys; }
    __device__ u64 visible(int, int begin) const { return bit_range(1 - begin, keys - 1 - begin); }
    __device__ bool stores(int) const { return true; }
};

// Partial attention of one split, of row 0 of a pass of `rows` rows: see attend. Grid (row blocks, kv heads, splits).
extern "C" __global__ void __launch_bounds__(THREADS, 1) mtp_split(
    const StepState* st, int depth, int rows, const half* q, u8* k, u8* v, int slots, float* out,
    float2* stats
) {
    pdl_launch();
    SHARED_DYNAMIC(shared);
    pdl_wait();
    const int split = blockIdx.z;
    const PairView view = {st->length + depth + 1, {split, int(gridDim.z)}};
    attend<ROW_TILES>(view, packed_rows(rows, 1), split, q, {k, v, slots}, shared, out, stats);
}

// Merges the splits of row 0, multiplies by the sigmoid of the gate, where there is one, and stores the acts of
// attn_output. Grid (groups of 256 activations).
extern "C" __global__ void __launch_bounds__(WARP* MERGE_WARPS) mtp_combine(
    const float* out, const float2* stats, int splits, const float* partials, int rows, int kv_heads, u8* acts_q8,
    u8* acts_f16
) {
    pdl_launch();
    const int group = blockIdx.x, element = group * ACTS_GROUP + 8 * lane_id();
    const bool padding = element >= kv_heads * GROUP * HEAD_DIM;
    pdl_wait();
    PartialSpan<SPLIT_K, 8> gates;
    gates.zero();
    if (QUERY_PARTS == 2 && warp_id() == 0 && !padding) {
        const int column = (2 * (element / HEAD_DIM) + 1) * HEAD_DIM + element % HEAD_DIM;
        gates.load(partials, rows, projected(kv_heads), 0, column);
    }
    float x[8], gate[8];
    merge_parts(x, out, stats, splits, 0, rows, kv_heads, padding ? 0 : element);
    if (warp_id()) return;
    gates.sum().values(gate);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float open = QUERY_PARTS == 2 ? sigmoid(gate[i]) : 1.0f;
        x[i] = padding ? 0.0f : x[i] * open;
    }
    acts_store({acts_q8, acts_f16}, 0, group, x);
}
