// The attention of a drafter that drafts one token after the other, between its matmuls. Pairs of an MTP head enter its
// cache, and the drafting pair attends to all before it. A Gemma assistant's token attends to the target's keys: it has
// only queries (BORROWED), at the position of the first token of its draft.
//
//   mtp_join -> eh_proj -> norm -> q, k, v -> mtp_prepare -> mtp_split -> mtp_combine -> attn_output -> feed-forward
//   assistant_join -> pre_projection -> norm -> q -> mtp_prepare -> mtp_split -> ...
//
// Rows of a pass: mtp.cuh. Bound by latency. Defines: as attention.cu's, without NEAR.

#include "combine.cuh"
#include "mtp.cuh"

constexpr int PREPARE_WARPS = 4;

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
    if (task >= heads + MADE_PARTS * kv_heads || (task < heads && !pairs.drafts(row)) || !pairs.live(row)) return;
    const Projection in = {partials, rows, projected(kv_heads)};
    const int slot = pairs.slot(row);
    prepare_head<QUERY_PARTS * HEAD_DIM>(
        in, row, task, kv_heads, slot, slot, q_norm, k_norm, frequency, eps, scale, q, {k, v, slots}
    );
}

// Positions first.. < keys, of which a part is a split.
struct ChainView {
    int first, keys, step0;
    SplitTiles tiles;

    __device__ ChainView(int first, int keys, SplitTiles tiles)
        : first(first), keys(keys), step0(tiles.from(first / TILE)), tiles(tiles) {}
    __device__ int tile(int step) const { return tiles.tile(step); }
    __device__ InOrder order(int) const { return {}; }
    __device__ InPlace placed(int) const { return {}; }
    __device__ bool open(int begin) const { return begin >= first && begin + TILE <= keys; }
    __device__ u64 visible(int, int begin) const { return bit_range(first - begin, keys - 1 - begin); }
    __device__ bool stores(int) const { return true; }
};

// Partial attention of one split, of row 0 of a pass of `rows` rows: see attend. It sees positions first.. < length +
// more, of these the last `most`, where that is not 0. Grid (row blocks, kv heads, splits).
extern "C" __global__ void __launch_bounds__(THREADS, 1) mtp_split(
    const StepState* st, int more, int first, int most, int rows, const half* q, u8* k, u8* v, int slots, float* out,
    float2* stats
) {
    pdl_launch();
    SHARED_DYNAMIC(shared);
    pdl_wait();
    const int split = blockIdx.z, keys = st->length + more;
    const ChainView view(most ? max(first, keys - most) : first, keys, {split, int(gridDim.z)});
    attend<ROW_TILES>(view, packed_rows(rows, 1), split, CopiedQueries{q}, {k, v, slots}, shared, out, stats);
}

// combine.cuh, of row 0 and its splits. Grid (groups of 256 activations).
extern "C" __global__ void __launch_bounds__(WARP* MERGE_WARPS) mtp_combine(
    const float* out, const float2* stats, int splits, const float* partials, int rows, int kv_heads, u8* acts_q8,
    u8* acts_f16
) {
    pdl_launch();
    const GatedGroup group(blockIdx.x, kv_heads);
    const auto parts = [&] { return splits; };
    pdl_wait();
    group.combine(parts, 0, rows, kv_heads, out, stats, partials, {acts_q8, acts_f16});
}
