// Full attention of the target, between its matmuls: attn_prepare -> attn_split -> attn_combine.
//
// Rows are nodes node0.. of the tree in `st`; node i stands at position length + depth[i], its key and value in slot
// length + i. Heads are HEAD_DIM wide; query head h reads kv head h / GROUP. The work is attention.cuh's.
//
// Defines: HEAD_DIM; ROTARY, dimensions rotated; GROUP, query heads per kv head; SPLIT_K, split-K partials of a matmul;
// UNGATED where queries have no gates; for attn_split ROW_TILES, ROW_WARPS, COLUMN_WARPS, TILE, CHUNK, STAGES
// (backends/cuda/layers/split_attention.py chooses them); of the cache, kv.cuh's.

#include "acts.cuh"
#include "attention.cuh"
#include "heads.cuh"
#include "state.cuh"

constexpr int PREPARE_WARPS = 4;

// What a pass over nodes node0.. of a tree sees: all committed slots, its ancestors and itself.
struct TreeView {
    const StepState* st;
    int node0, length, live, keys;
    static constexpr int first = 0;

    __device__ TreeView(const StepState* st, int node0, int rows)
        : st(st), node0(node0), length(st->length), live(min(st->n - node0, rows)), keys(length + node0 + live) {}

    __device__ bool open(int begin) const { return begin + TILE <= length; }

    __device__ u64 visible(int row, int begin) const {
        const u64* mask = st->mask[node0 + row];
        const int node = begin - length;  // that bit 0 stands for
        if (node < 0) return bit_range(0, -node - 1) | (node > -64 ? mask[0] << -node : 0);
        const int word = node / 64, shift = node % 64;
        u64 bits = word < 4 ? mask[word] >> shift : 0;
        if (shift && word < 3) bits |= mask[word + 1] << (64 - shift);
        return bits;
    }
};

// Columns of [attn_q | attn_k | attn_v].
__device__ __forceinline__ int projected(int kv_heads) { return (QUERY_PARTS * GROUP + 2) * kv_heads * HEAD_DIM; }

// Sums the partials of [attn_q | attn_k | attn_v] (per query head: query, then its gate), norms and rotates queries and
// keys, writes q f16 [kv heads][rows * GROUP][HEAD_DIM] times `scale` (log2(e) / sqrt(HEAD_DIM)), and keys and values
// into slots length + node. Grid (ceil(tasks / PREPARE_WARPS), rows) with a warp per task = head to write.
// Latency-bound: rows * 32 KB in, half of it out.
extern "C" __global__ void __launch_bounds__(WARP* PREPARE_WARPS) attn_prepare(
    const StepState* st, int node0, const float* partials, int rows, int kv_heads, const float* q_norm,
    const float* k_norm, const float* frequency, float eps, float scale, half* q, KvElement* k, KvElement* v, int slots
) {
    pdl_launch();
    const int heads = kv_heads * GROUP, task = blockIdx.x * PREPARE_WARPS + warp_id(), row = blockIdx.y;
    pdl_wait();
    if (task >= heads + 2 * kv_heads || node0 + row >= st->n) return;
    const Projection in = {partials, rows, projected(kv_heads)};
    const int position = st->length + st->depth[node0 + row], slot = st->length + node0 + row;
    prepare_head<QUERY_PARTS * HEAD_DIM>(
        in, row, task, kv_heads, position, slot, q_norm, k_norm, frequency, eps, scale, q, {k, v, slots}
    );
}

// Partial attention of one split: see split_attention.
extern "C" __global__ void __launch_bounds__(THREADS) attn_split(
    const StepState* st, int node0, int rows, const half* q, KvElement* k, KvElement* v, int slots, float* out,
    float2* stats
) {
    pdl_launch();
    pdl_wait();
    split_attention(TreeView(st, node0, rows), q, {k, v, slots}, rows * GROUP, out, stats);
}

// Merges the splits, multiplies by the sigmoid of the gate, where there is one, and stores the acts of attn_output. Grid
// (groups of 256 activations, rows). Latency-bound; reads splits * 1 KB per group.
extern "C" __global__ void __launch_bounds__(WARP* MERGE_WARPS, 6) attn_combine(
    const StepState* st, int node0, const float* out, const float2* stats, int splits, const float* partials, int rows,
    int kv_heads, u8* acts_q8, u8* acts_f16
) {
    pdl_launch();
    const int row = blockIdx.y, group = blockIdx.x, element = group * ACTS_GROUP + 8 * lane_id();
    const bool padding = element >= kv_heads * GROUP * HEAD_DIM;
    pdl_wait();
    if (node0 + row >= st->n) return;

    PartialSpan<SPLIT_K, 8> gates;
    gates.zero();
    if (QUERY_PARTS == 2 && warp_id() == 0 && !padding) {
        const int column = (2 * (element / HEAD_DIM) + 1) * HEAD_DIM + element % HEAD_DIM;
        gates.load(partials, rows, projected(kv_heads), row, column);
    }
    float x[8], gate[8];
    merge_splits(x, out, stats, splits, row, rows, kv_heads, padding ? 0 : element);
    if (warp_id()) return;
    gates.sum().values(gate);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float open = QUERY_PARTS == 2 ? sigmoid(gate[i]) : 1.0f;
        x[i] = padding ? 0.0f : x[i] * open;
    }
    acts_store({acts_q8, acts_f16}, row, group, x);
}
