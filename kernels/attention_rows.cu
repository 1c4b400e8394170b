// Queries, keys and values of many rows that stand side by side, for an attention that a library computes: attn_prepare
// of attention.cu without a tree. Bound by memory: 28 us for 2,048 rows of 24 + 2 x 4 heads of 256 on an H200, which is the
// L2's speed.
// Defines: as attn_prepare's; SPLIT_K is 1.

#include "heads.cuh"

constexpr int PREPARE_WARPS = 4;

// Row i stands at position and slot first + i, with chunk = {rows, first}. Arguments as attn_prepare's; `rows` is how far
// apart the kv heads of q lie. Grid (ceil((heads + 2 kv_heads) / PREPARE_WARPS), rows).
extern "C" __global__ void __launch_bounds__(WARP* PREPARE_WARPS) attn_rows(
    const int* chunk, const float* projected, int rows, int kv_heads, const float* q_norm, const float* k_norm,
    const float* frequency, float eps, float scale, half* q, KvElement* k, KvElement* v, int slots
) {
    pdl_launch();
    const int heads = kv_heads * GROUP, task = blockIdx.x * PREPARE_WARPS + warp_id(), row = blockIdx.y;
    pdl_wait();
    if (task >= heads + 2 * kv_heads || row >= chunk[0]) return;
    const int slot = chunk[1] + row;
    const Projection in = {projected, rows, (QUERY_PARTS * heads + 2 * kv_heads) * HEAD_DIM};
    prepare_head<QUERY_PARTS * HEAD_DIM>(
        in, row, task, kv_heads, slot, slot, q_norm, k_norm, frequency, eps, scale, q, {k, v, slots}
    );
}
