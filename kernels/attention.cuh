// Flash-decoding over a KV cache: few query rows against many keys, the keys split over blocks.
//
//   split_attention   one block = (row block, kv head, split): online softmax over the split's tiles of TILE keys
//   merge_splits      one row: the splits' partial results in order
//
// The query heads that share a kv head are packed as rows (row = node * GROUP + head within the group), so that the
// tensor cores' 16 rows are filled and a key is read once per row block. Inside a block, warp (r, c) of ROW_WARPS x
// COLUMN_WARPS owns ROW_TILES tiles of 16 rows, and of each the c-th part of the tile's keys in Q K^T, then the c-th
// part of the dimensions in P V; P passes through shared memory in between. Keys and values arrive by cp.async,
// STAGES tiles in a ring.
//
// Bits: tiles are cut at absolute slots, a tile's number alone says which split works on it and when, and every row's
// sums run in tile order. So a row's result depends neither on how many rows ride along nor on how rows are laid over
// warps and blocks; and a chain of drafts sees what the same positions see one by one. COLUMN_WARPS, TILE, CHUNK and
// the number of splits are part of the order: one choice for all widths.
//
// Bound by: bytes of K and V with a long context and few rows; latency under 1k positions; mma from about 48 rows on.
// On an H200, 4 kv heads of 256: 5 us at 200 positions; one row at 32,768 takes 27 us (all of the bandwidth), 16 rows 73.

#pragma once

#include "kv.cuh"

constexpr int WARPS = ROW_WARPS * COLUMN_WARPS;
constexpr int THREADS = WARP * WARPS;
constexpr int ROWS = 16 * ROW_TILES * ROW_WARPS;        // packed rows of a block
constexpr int KEY_TILES = TILE / COLUMN_WARPS / 8;      // mma tiles of keys per warp
constexpr int DIM_TILES = HEAD_DIM / COLUMN_WARPS / 8;  // mma tiles of dimensions per warp
constexpr int TILE_HALVES = TILE * HEAD_DIM;
constexpr int MAX_SPLITS = 64;
constexpr int MERGE_WARPS = 4;
static_assert(TILE % 16 == 0 && TILE <= 64, "a row's view of a tile is one 64-bit word");
static_assert(KEY_TILES == 1 || KEY_TILES % 2 == 0, "keys of a warp: 8, or whole pairs of 8");
static_assert(DIM_TILES >= 2 && DIM_TILES % 2 == 0, "dimensions of a warp come in pairs of 8");
static_assert(STAGES >= 2, "the next tile travels while this one is worked on");

// The tiles of one split. The first CHUNK of every split lie side by side, so that a short context makes few splits
// with enough work each; the later ones go round, so that a long context is spread evenly.
struct SplitTiles {
    int split, splits;

    __device__ __forceinline__ int tile(int step) const {
        return step < CHUNK ? CHUNK * split + step : splits * step + split;
    }
    // The first step whose tile is not below `first`.
    __device__ __forceinline__ int from(int first) const {
        if (CHUNK * (split + 1) > first) return max(0, first - CHUNK * split);
        return max(CHUNK, ceil_div(first - split, splits));
    }
};

// Bits low..high (inclusive, any integers) of a word.
__device__ __forceinline__ u64 bit_range(int low, int high) {
    low = max(low, 0);
    high = min(high, 63);
    return low > high ? 0 : ~0ull >> (63 - (high - low)) << low;
}

// scores = Q K^T for the warp's rows (from `row`) and keys (from `key`).
__device__ __forceinline__ void multiply_keys(
    float (&scores)[ROW_TILES][KEY_TILES][4], half* q, half* k, int row, int key
) {
    const int lane = lane_id();
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int t = 0; t < KEY_TILES; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) scores[r][t][e] = 0.0f;

    if constexpr (KEY_TILES == 1) {  // an ldmatrix brings 8 keys x 32 elements
#pragma unroll 2
        for (int step = 0; step < HEAD_DIM / 16; step += 2) {
            u32 b[4];
            ldmatrix_x4(b, chunk_at<HEAD_DIM>(k, key + lane % 8, 2 * step + lane / 8));
            const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                u32 a[4];
                row_fragment<HEAD_DIM>(a, q, row + 16 * r, step);
                mma_f16_16816(scores[r][0], a, low);
                row_fragment<HEAD_DIM>(a, q, row + 16 * r, step + 1);
                mma_f16_16816(scores[r][0], a, high);
            }
        }
    } else {  // 16 keys x 16 elements
#pragma unroll 4
        for (int step = 0; step < HEAD_DIM / 16; step++) {
            u32 a[ROW_TILES][4];
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) row_fragment<HEAD_DIM>(a[r], q, row + 16 * r, step);
#pragma unroll
            for (int t = 0; t < KEY_TILES; t += 2) {
                u32 b[4];
                const int at = key + 8 * t + lane % 8 + lane / 16 * 8;
                ldmatrix_x4(b, chunk_at<HEAD_DIM>(k, at, 2 * step + lane / 8 % 2));
#pragma unroll
                for (int r = 0; r < ROW_TILES; r++) mma_pair(scores[r][t], scores[r][t + 1], a[r], b);
            }
        }
    }
}

// sums += P V for the warp's rows and dimensions (from `dim`).
__device__ __forceinline__ void multiply_values(
    float (&sums)[ROW_TILES][DIM_TILES][4], half* p, half* v, int row, int dim
) {
    const int lane = lane_id();
#pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        u32 a[ROW_TILES][4];
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) row_fragment<TILE>(a[r], p, row + 16 * r, step);
#pragma unroll
        for (int t = 0; t < DIM_TILES; t += 2) {
            u32 b[4];
            ldmatrix_x4_trans(b, chunk_at<HEAD_DIM>(v, 16 * step + lane % 16, dim / 8 + t + lane / 16));
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) mma_pair(sums[r][t], sums[r][t + 1], a[r], b);
        }
    }
}

// Partial results of one split: `out` f32 [splits][kv heads][stride][HEAD_DIM], not yet divided by the weights, and
// `stats` [splits][kv heads][stride]: the row's largest score (base 2) and its sum of weights, minus infinity and 0
// where the row saw nothing; `out` is then not written.
//
// q f16 [kv heads][stride][HEAD_DIM], already times log2(e) / sqrt(HEAD_DIM); stride = GROUP * rows of the pass.
// The cache is kv.cuh's; what lies past the live slots may be anything. `view` says who sees what:
//   live, first, keys    rows of the pass; slots that any row sees lie in [first, keys)
//   open(begin)          every row sees all of the tile that begins there
//   visible(row, begin)  bit i: the row sees slot begin + i
// Grid (row blocks, kv heads, splits), THREADS threads, shared: see backends/cuda/layers/split_attention.py.
template <class View>
__device__ __forceinline__ void split_attention(
    const View& view, const half* q, const KeyValues& cache, int stride, float* out, float2* stats
) {
    SHARED_DYNAMIC(shared);
    const int lane = lane_id(), quad = lane / 4;
    const int row_warp = warp_id() / COLUMN_WARPS, column_warp = warp_id() % COLUMN_WARPS;
    const int kv_head = blockIdx.y;
    const int row0 = blockIdx.x * ROWS, live = view.live * GROUP - row0;
    const u64 result0 = (u64(blockIdx.z) * gridDim.y + kv_head) * stride + row0;
    const SplitTiles tiles = {int(blockIdx.z), int(gridDim.z)};
    const int step0 = tiles.from(view.first / TILE);
    if (tiles.tile(step0) * TILE >= view.keys) {
        const float2 nothing = make_float2(-INFINITE, 0.0f);
        for (int at = threadIdx.x; at < min(live, ROWS); at += THREADS) stats[result0 + at] = nothing;
        return;
    }
    if (live <= 0) return;

    half* const q_tile = reinterpret_cast<half*>(shared);
    half* const p_tile = q_tile + ROWS * HEAD_DIM;
    half* const ring = p_tile + ROWS * TILE;                                  // [STAGES][K, V][TILE][HEAD_DIM]
    float* const exchange = reinterpret_cast<float*>(ring + 2 * STAGES * TILE_HALVES);  // [COLUMN_WARPS][ROWS]

    auto stage = [&](int step) { return ring + (step - step0) % STAGES * 2 * TILE_HALVES; };
    // Two groups of copies per step, K's and V's, empty past the end: the waits below count groups.
    auto fetch = [&](int step) {
        const int begin = tiles.tile(step) * TILE, wanted = view.keys - begin;
        const u64 from = cache.row(kv_head, begin);
        if (wanted > 0) kv_fetch<TILE, THREADS>(stage(step), cache.k + from, wanted);
        cp_async_commit();
        if (wanted > 0) kv_fetch<TILE, THREADS>(stage(step) + TILE_HALVES, cache.v + from, wanted);
        cp_async_commit();
    };
    copy_rows<HEAD_DIM, ROWS, THREADS>(q_tile, q + (u64(kv_head) * stride + row0) * HEAD_DIM, live);
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ahead++) fetch(step0 + ahead);

    // Of each tile of 16 rows this thread has rows `quad` and quad + 8.
    const int row = 16 * ROW_TILES * row_warp, key = 8 * KEY_TILES * column_warp, dim = 8 * DIM_TILES * column_warp;
    float best[ROW_TILES][2], weight[ROW_TILES][2], sums[ROW_TILES][DIM_TILES][4];
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        best[r][0] = best[r][1] = -INFINITE;
        weight[r][0] = weight[r][1] = 0.0f;
#pragma unroll
        for (int t = 0; t < DIM_TILES; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[r][t][e] = 0.0f;
    }

    for (int step = step0; tiles.tile(step) * TILE < view.keys; step++) {
        const int begin = tiles.tile(step) * TILE;
        cp_async_wait<2 * STAGES - 3>();
        __syncthreads();  // K is here, and everyone is done with the stage that is fetched next
        fetch(step + STAGES - 1);

        float scores[ROW_TILES][KEY_TILES][4];
        multiply_keys(scores, q_tile, stage(step), row, key);
        const bool open = view.open(begin);
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int at = row + 16 * r + 8 * h + quad;
                if (!open && at < live) {
                    const u64 seen = view.visible((row0 + at) / GROUP, begin) >> (key + 2 * (lane % 4));
#pragma unroll
                    for (int t = 0; t < KEY_TILES; t++) {
                        if (!(seen >> 8 * t & 1)) scores[r][t][2 * h] = -INFINITE;
                        if (!(seen >> 8 * t & 2)) scores[r][t][2 * h + 1] = -INFINITE;
                    }
                }
                float top = -INFINITE;
#pragma unroll
                for (int t = 0; t < KEY_TILES; t++) {
                    top = fmaxf(top, fmaxf(scores[r][t][2 * h], scores[r][t][2 * h + 1]));
                }
                top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
                top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
                if (lane % 4 == 0) exchange[column_warp * ROWS + at] = top;
            }
        __syncthreads();

#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int at = row + 16 * r + 8 * h + quad;
                float top = best[r][h];
#pragma unroll
                for (int c = 0; c < COLUMN_WARPS; c++) top = fmaxf(top, exchange[c * ROWS + at]);
                // A row that has seen nothing yet stays at zero: never minus infinity less minus infinity.
                const float base = top == -INFINITE ? 0.0f : top;
                const float carry = exp2f(best[r][h] - base);
                best[r][h] = top;
                weight[r][h] *= carry;
#pragma unroll
                for (int t = 0; t < KEY_TILES; t++) {
                    const float left = exp2f(scores[r][t][2 * h] - base), right = exp2f(scores[r][t][2 * h + 1] - base);
                    weight[r][h] += left + right;
                    half* const to = chunk_at<TILE>(p_tile, at, key / 8 + t) + 2 * (lane % 4);
                    *reinterpret_cast<u32*>(to) = pack_half2(left, right);
                }
#pragma unroll
                for (int t = 0; t < DIM_TILES; t++) {
                    sums[r][t][2 * h] *= carry;
                    sums[r][t][2 * h + 1] *= carry;
                }
            }
        cp_async_wait<2 * STAGES - 2>();
        __syncthreads();  // P and V are here
        multiply_values(sums, p_tile, stage(step) + TILE_HALVES, row, dim);
    }

    // A thread's weights are those of its own keys: add up the four lanes of a row, then the column warps.
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float total = weight[r][h];
            total += __shfl_xor_sync(FULL_WARP, total, 1);
            total += __shfl_xor_sync(FULL_WARP, total, 2);
            if (lane % 4 == 0) exchange[column_warp * ROWS + row + 16 * r + 8 * h + quad] = total;
        }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = row + 16 * r + 8 * h + quad;
            if (at >= live) continue;
            if (column_warp == 0 && lane % 4 == 0) {
                float total = 0.0f;
#pragma unroll
                for (int c = 0; c < COLUMN_WARPS; c++) total += exchange[c * ROWS + at];
                stats[result0 + at] = make_float2(best[r][h], total);
            }
            float* const to = out + (result0 + at) * HEAD_DIM + dim + 2 * (lane % 4);
#pragma unroll
            for (int t = 0; t < DIM_TILES; t++) {
                *reinterpret_cast<float2*>(to + 8 * t) = make_float2(sums[r][t][2 * h], sums[r][t][2 * h + 1]);
            }
        }
}

// Elements `element`..+7 of a row's attention, heads side by side, from the partial results of all splits: warp w adds
// up splits w, w + MERGE_WARPS, .., then the first warp adds up the warps and alone gets the result. All warps call,
// with `element` of the lane. A split that the row saw nothing of is left out and its memory not read: how many splits
// other rows keep busy changes nothing.
__device__ __forceinline__ void merge_splits(
    float (&x)[8], const float* out, const float2* stats, int splits, int row, int rows, int kv_heads, int element
) {
    __shared__ float tops[MERGE_WARPS][WARP], totals[MERGE_WARPS][WARP], parts[MERGE_WARPS][8][WARP];
    constexpr int TURNS = MAX_SPLITS / MERGE_WARPS, HELD = 4;  // parts in flight: more would take too many registers
    const int lane = lane_id(), warp = warp_id(), head = element / HEAD_DIM;
    const u64 step = u64(kv_heads) * rows * GROUP;  // packed rows of a split
    const u64 packed = (u64(head / GROUP) * rows + row) * GROUP + head % GROUP;
    auto statistics = [&](int split) {
        return split < splits ? stats[split * step + packed] : make_float2(-INFINITE, 0.0f);
    };

    // All statistics are asked for at once, then the parts that count, HELD at a time.
    float top = -INFINITE, total = 0.0f;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) top = fmaxf(top, statistics(turn * MERGE_WARPS + warp).x);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = 0.0f;
#pragma unroll 1
    for (int first = warp; first < splits; first += HELD * MERGE_WARPS) {
        float2 stat[HELD];
        float4 part[HELD][2];
#pragma unroll
        for (int i = 0; i < HELD; i++) stat[i] = statistics(first + i * MERGE_WARPS);
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const u64 at = (first + i * MERGE_WARPS) * step + packed;
            const float4* from = reinterpret_cast<const float4*>(out + at * HEAD_DIM + element % HEAD_DIM);
            const bool seen = stat[i].x > -INFINITE;
            part[i][0] = seen ? from[0] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            part[i][1] = seen ? from[1] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const float4 a = part[i][0], b = part[i][1];
            const float values[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            const float weight = stat[i].x > -INFINITE ? exp2f(stat[i].x - top) : 0.0f;
            total += weight * stat[i].y;
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] += weight * values[j];
        }
    }
    tops[warp][lane] = top;
    totals[warp][lane] = total;
#pragma unroll
    for (int i = 0; i < 8; i++) parts[warp][i][lane] = x[i];
    __syncthreads();
    if (warp) return;

#pragma unroll
    for (int w = 0; w < MERGE_WARPS; w++) top = fmaxf(top, tops[w][lane]);
    total = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = 0.0f;
#pragma unroll
    for (int w = 0; w < MERGE_WARPS; w++) {
        const float weight = exp2f(tops[w][lane] - top);  // 0 for a warp whose splits the row saw nothing of
        total += weight * totals[w][lane];
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] += weight * parts[w][i][lane];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] /= total;
}
