// Queries, keys and values of many consecutive rows, for an attention that a library computes: attn_prepare
// of attention.cu without a tree. Bound by memory: 28 us for 2,048 rows of 24 + 2 x 4 heads of 256 on an H200, the
// bandwidth of the L2.
// Packed keys and values are converted to f16 for it (attn_unpack_keys, attn_unpack_values); with RECENT the newest ones
// are copied from their halves (attn_newest_keys, attn_newest_values).
// Defines: as attn_prepare's; SPLIT_K is 1.

#include "heads.cuh"

constexpr int PREPARE_WARPS = 4;

// Row i has position and slot first + i, with chunk = {rows, first}. Arguments as attn_prepare's; `rows` is the
// distance between the kv heads of q. Grid (ceil((heads + 2 kv_heads) / PREPARE_WARPS), rows).
extern "C" __global__ void __launch_bounds__(WARP* PREPARE_WARPS) attn_rows(
    const int* chunk, const float* projected, int rows, int kv_heads, const float* q_norm, const float* k_norm,
    const float* frequency, float eps, float scale, half* q, u8* k, u8* v, int slots RECENT_PARAMETER BIAS_PARAMETER
) {
    pdl_launch();
    const int heads = kv_heads * GROUP, task = blockIdx.x * PREPARE_WARPS + warp_id(), row = blockIdx.y;
    pdl_wait();
    if (task >= heads + MADE_PARTS * kv_heads || row >= chunk[0]) return;
    const int slot = chunk[1] + row;
    const Projection in = {projected, rows, head_gates(kv_heads), BIAS};
    prepare_head<QUERY_PARTS * HEAD_DIM, KvF16>(
        in, row, task, kv_heads, slot, slot, q_norm, k_norm, frequency, eps, scale, q, {k, v, slots RECENT_GIVEN}
    );
}

// The rows from..from + first + rows of `kv_heads` heads, [kv heads][slots] of a type, as halves
// [kv heads][slots][HEAD_DIM] from row `to` on, with chunk = {rows, first, from, to}. Any grid; a warp per row, a lane per
// eight numbers. Bound by memory.
template <class Type>
__device__ __forceinline__ void unpack(const int* chunk, const u8* rows, int kv_heads, int slots, half* out) {
    pdl_launch();
    pdl_wait();
    const int count = chunk[0] + chunk[1], from = chunk[2], to = chunk[3];
    for (int at = blockIdx.x * PREPARE_WARPS + warp_id(); at < kv_heads * count; at += gridDim.x * PREPARE_WARPS) {
        const u64 row = u64(at / count) * slots + at % count;
        for (int eight = lane_id(); eight < HEAD_DIM / 8; eight += WARP) {
            u32 x[4];
            Type::eight(x, rows + (row + from) * Type::BYTES, eight / 4, eight % 4);
            reinterpret_cast<uint4*>(out + (row + to) * HEAD_DIM)[eight] = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}
extern "C" __global__ void __launch_bounds__(WARP* PREPARE_WARPS) attn_unpack_keys(
    const int* chunk, const u8* rows, int kv_heads, int slots, half* out
) {
    unpack<KeyType>(chunk, rows, kv_heads, slots, out);
}
extern "C" __global__ void __launch_bounds__(WARP* PREPARE_WARPS) attn_unpack_values(
    const int* chunk, const u8* rows, int kv_heads, int slots, half* out
) {
    unpack<ValueType>(chunk, rows, kv_heads, slots, out);
}
#ifdef RECENT
extern "C" __global__ void __launch_bounds__(WARP* PREPARE_WARPS) attn_newest_keys(
    const int* chunk, const u8* rows, int kv_heads, int slots, half* out
) {
    unpack<NewestRows::Keys>(chunk, rows, kv_heads, slots, out);
}
extern "C" __global__ void __launch_bounds__(WARP* PREPARE_WARPS) attn_newest_values(
    const int* chunk, const u8* rows, int kv_heads, int slots, half* out
) {
    unpack<NewestRows::Values>(chunk, rows, kv_heads, slots, out);
}
#endif
