// A tile of TILE keys or values in split attention: copied to shared memory in the form of the cache, converted to f16
// where all warps share that work, and multiplied by a warp's rows. attention.cuh says how warps share a tile.

#pragma once

#include "kv.cuh"
#include "tiles.cuh"

constexpr int WARPS = ROW_WARPS * COLUMN_WARPS;
constexpr int THREADS = WARP * WARPS;
constexpr int KEY_TILES = TILE / COLUMN_WARPS / 8;      // mma tiles of keys per warp
constexpr int DIM_TILES = HEAD_DIM / COLUMN_WARPS / 8;  // mma tiles of dimensions per warp
#ifndef COLUMNS
#define COLUMNS COLUMN_WARPS
#endif
constexpr int SHARES = COLUMNS / COLUMN_WARPS;  // columns of the order that a warp computes
#ifndef UNPACK_ONCE
#define UNPACK_ONCE 0
#endif
static_assert(TILE % 16 == 0 && TILE <= 64, "a row's view of a tile is one 64-bit word");
static_assert(KEY_TILES == 1 || KEY_TILES % 2 == 0, "keys of a warp: 8, or whole pairs of 8");
static_assert(DIM_TILES >= 2 && DIM_TILES % 2 == 0, "dimensions of a warp come in pairs of 8");
static_assert(SHARES * COLUMN_WARPS == COLUMNS && KEY_TILES % SHARES == 0, "a warp has whole columns");

// How a part's keys and values are read: the rows that they are in, tiles of them in flight, and f16 tiles beside these:
// none, one that K and V use alternately, or one each.
template <class RowsOf, int FLYING, int UNPACKED> struct Form {
    using Rows = RowsOf;
    using Keys = typename Rows::Keys;
    using Values = typename Rows::Values;
    static constexpr int IN_FLIGHT = FLYING, HALF_TILES = UNPACKED;
    static constexpr bool ONCE = HALF_TILES > 0, APART = HALF_TILES > 1;
    static constexpr bool KEY_HALVES = Keys::HALVES || ONCE, VALUE_HALVES = Values::HALVES || ONCE;
    static constexpr int KEY_BYTES = TILE * Keys::STRIDE, STAGE = KEY_BYTES + TILE * Values::STRIDE;
    static_assert(VALUE_HALVES || DIM_TILES % 4 == 0, "of packed values a warp has whole groups");
    static_assert(IN_FLIGHT >= 1 && (!ONCE || IN_FLIGHT == 1), "what is unpacked frees its place at once");
    static_assert(HALF_TILES <= 2, "K and V are all there is");
    static_assert(!ONCE || (!Keys::HALVES && !Values::HALVES), "halves have nothing to unpack");
};
using StoredForm = Form<KeyValues, STAGES, UNPACK_ONCE>;
#ifdef RECENT
using NewestForm = Form<NewestRows, RECENT_STAGES, 0>;
#else
using NewestForm = StoredForm;
#endif

// Start copying rows of keys, or values, into a stage, row order(i) as the i-th; those from `live` on become zeros,
// wherever they are. Complete after the wait for the cp.async group and a barrier.
template <class Type, class Order>
__device__ __forceinline__ void fetch_rows(u8* stage, const u8* rows, int live, const Order& order) {
    if constexpr (Type::HALVES) {
        const half* const from = reinterpret_cast<const half*>(rows);
        copy_rows<HEAD_DIM, TILE, THREADS>(reinterpret_cast<half*>(stage), from, live, order);
    } else {
        constexpr int CHUNKS = Type::BYTES / 16, COUNT = TILE * CHUNKS;
        const int there = min(live, TILE) * CHUNKS;
        u8* const to = stage + 16 * threadIdx.x;
        const u8* const from = rows + 16 * threadIdx.x;
#pragma unroll
        for (int first = 0; first < COUNT; first += THREADS) {
            const int at = first + threadIdx.x;
            if (COUNT % THREADS && first + THREADS > COUNT && at >= COUNT) break;
            if (order.skips(at / CHUNKS)) continue;
            if constexpr (Order::STRAIGHT && Type::STRIDE == Type::BYTES) {
                cp_async16_or_zero(to + 16 * first, from + 16 * first, at < there);
            } else {
                const int row = at / CHUNKS, chunk = at % CHUNKS;
                const u8* const source = rows + order(row) * Type::BYTES + 16 * chunk;
                cp_async16_or_zero(stage + row * Type::STRIDE + 16 * chunk, source, at < there);
            }
        }
    }
}

// Runs of a row that a thread unpacks at a time: they are all loaded to registers before any is stored.
template <class Type> constexpr int LOADS_AT_ONCE = Type::LOADED > 5 ? 1 : 2;
// Groups of a run.
template <class Type> constexpr int SIDE_BY_SIDE = HEAD_DIM / WARP < Type::SHARED ? HEAD_DIM / WARP : Type::SHARED;

// Converts a tile of packed keys to f16, with all threads of the block. Elements of a group are placed so that ldmatrix
// gives a lane the same ones as one read of packed keys: see multiply_packed_keys. A warp takes eight rows at a
// time, in which it has the same runs: between iterations only constants are added. Sixteen lanes read every
// second row, which are in different banks.
template <class Type> __device__ __forceinline__ void unpack_keys(half* tile, const u8* rows) {
    constexpr int EVEN = WARPS & -WARPS, ABREAST = EVEN < Type::RUNS ? EVEN : Type::RUNS, OWN = Type::RUNS / ABREAST;
    constexpr int STEP = 8 * WARPS / ABREAST, TURNS = ceil_div(TILE, STEP), COUNT = TURNS * OWN;
    constexpr int AT_ONCE = LOADS_AT_ONCE<Type>;
    static_assert(Type::RUNS % ABREAST == 0, "warps abreast have equally many runs");
    const int lane = lane_id(), warp = warp_id(), part = lane % 4;
    const int row = warp / ABREAST * 8 + lane / 4 % 4 * 2 + lane / 16, run = warp % ABREAST * OWN;
    const u8* const from = rows + row * Type::STRIDE;
    const u32 to = chunk_offset<HEAD_DIM>(row, 4 * Type::SHARED * run) + 4 * part;
#pragma unroll
    for (int first = 0; first < COUNT; first += AT_ONCE) {
        typename Type::Loaded loaded[AT_ONCE];
#pragma unroll
        for (int i = first; i < first + AT_ONCE && i < COUNT; i++) {
            if (TILE % STEP && i / OWN == TURNS - 1 && row + i / OWN * STEP >= TILE) continue;
            Type::load(loaded[i - first], from + i / OWN * STEP * Type::STRIDE, run + i % OWN, part);
        }
#pragma unroll
        for (int i = first; i < first + AT_ONCE && i < COUNT; i++) {
            if (TILE % STEP && i / OWN == TURNS - 1 && row + i / OWN * STEP >= TILE) continue;
            u32 x[Type::SHARED][4];
            Type::eights(x, loaded[i - first], part);
#pragma unroll
            for (int c = 0; c < 4 * SIDE_BY_SIDE<Type>; c++) {
                const int more = 4 * Type::SHARED * (i % OWN) + c;
                *reinterpret_cast<u32*>(chunk_on(tile, to, more, i / OWN * STEP * 2 * HEAD_DIM)) = x[c / 4][c % 4];
            }
        }
    }
}

// The same for values, in order. A lane has the same run and part of every row that it takes; eight lanes that store
// together have all chunks of a row's 128 bytes, or four of each of two rows that are four apart.
template <class Type> __device__ __forceinline__ void unpack_values(half* tile, const u8* rows) {
    constexpr int BESIDE = 8 / Type::RUNS, PLACES = 8 / BESIDE;  // rows of a warp at a time, such sets in eight rows
    constexpr bool FAR = BESIDE > 1 && WARPS % PLACES == 0;
    constexpr int STEP = WARPS * BESIDE, TURNS = ceil_div(TILE, STEP), AT_ONCE = LOADS_AT_ONCE<Type>;
    static_assert(8 % Type::RUNS == 0, "a warp has whole rows");
    const int lane = lane_id(), warp = warp_id(), part = lane % 4, beside = lane / 4 % BESIDE, run = lane / 4 / BESIDE;
    const int row = FAR ? warp / PLACES * 8 + warp % PLACES * (BESIDE / 2) + beside % 2 * 4 + beside / 2
                        : warp * BESIDE + beside;
    const int chunk = 4 * Type::SHARED * run + part;
    const u8* const from = rows + row * Type::STRIDE;
    const u32 to = chunk_offset<HEAD_DIM>(row, chunk);
#pragma unroll
    for (int first = 0; first < TURNS; first += AT_ONCE) {
        typename Type::Loaded loaded[AT_ONCE];
#pragma unroll
        for (int i = first; i < first + AT_ONCE && i < TURNS; i++) {
            if (TILE % STEP && i == TURNS - 1 && row + i * STEP >= TILE) continue;
            Type::load(loaded[i - first], from + i * STEP * Type::STRIDE, run, part);
        }
#pragma unroll
        for (int i = first; i < first + AT_ONCE && i < TURNS; i++) {
            if (TILE % STEP && i == TURNS - 1 && row + i * STEP >= TILE) continue;
            u32 x[Type::SHARED][4];
            Type::eights(x, loaded[i - first], part);
#pragma unroll
            for (int k = 0; k < SIDE_BY_SIDE<Type>; k++) {
                *reinterpret_cast<uint4*>(row_on<HEAD_DIM, STEP>(tile, to, row, chunk, i, 4 * k)) =
                    make_uint4(x[k][0], x[k][1], x[k][2], x[k][3]);
            }
        }
    }
}

// The fragments of a warp's rows of queries. Those of one tile of rows stay in registers where they fit next to the
// sums: in a block of few threads that has a multiprocessor to itself, unless warps that do not attend are CROWDED into
// it, or a kernel has two forms of tiles. Others are read wherever they are needed.
template <int TILES> struct Queries {
#if defined(NEAR) && !defined(CROWDED) && !defined(RECENT)
    static constexpr bool IN_REGISTERS = TILES == 1 && THREADS <= 256 && DIM_TILES <= 8;
#else
    static constexpr bool IN_REGISTERS = false;
#endif
    half* tile;
    u32 at;
    u32 fragments[IN_REGISTERS ? HEAD_DIM / 16 : 1][4];

    __device__ __forceinline__ Queries(half* tile, int row) : tile(tile), at(fragment_offset<HEAD_DIM>(row)) {}

    // Call once they are in shared memory.
    __device__ __forceinline__ void read() {
        if constexpr (IN_REGISTERS) {
#pragma unroll
            for (int step = 0; step < HEAD_DIM / 16; step++) fragment_on<HEAD_DIM>(fragments[step], tile, at, 0, step);
        }
    }
    __device__ __forceinline__ void fragment(u32 (&a)[4], int r, int step) const {
        if constexpr (IN_REGISTERS) {
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = fragments[step][i];
        } else {
            fragment_on<HEAD_DIM>(a, tile, at, r, step);
        }
    }
};

// scores = Q K^T for the warp's rows and packed keys (from `key`). Elements 8 i.. of a group of keys are one
// read of lane i of four; queries are stored in the matching order.
template <class Type, int TILES>
__device__ __forceinline__ void multiply_packed_keys(
    float (&scores)[TILES][KEY_TILES][4], const Queries<TILES>& q, const u8* k, int key
) {
    const int quad = lane_id() / 4, part = lane_id() % 4;
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int t = 0; t < KEY_TILES; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) scores[r][t][e] = 0.0f;

#pragma unroll
    for (int group = 0; group < HEAD_DIM / WARP; group++) {
        u32 b[KEY_TILES][4];
#pragma unroll
        for (int t = 0; t < KEY_TILES; t++) {
            Type::eight(b[t], k + (key + 8 * t + quad) * Type::STRIDE, group, part);
        }
#pragma unroll
        for (int r = 0; r < TILES; r++) {
            u32 a[2][4];
            q.fragment(a[0], r, 2 * group);
            q.fragment(a[1], r, 2 * group + 1);
#pragma unroll
            for (int t = 0; t < KEY_TILES; t++) {
                const u32 low[2] = {b[t][0], b[t][1]}, high[2] = {b[t][2], b[t][3]};
                mma_f16_16816(scores[r][t], a[0], low);
                mma_f16_16816(scores[r][t], a[1], high);
            }
        }
    }
}

// Steps of P V at a time: with two tiles, all at once would spill where many warps share the registers.
template <int TILES> constexpr int VALUE_STEPS = ROW_WARPS > 1 && TILES == 2 ? 2 : ceil_div(TILE, 16);

// sums += P V for the warp's rows and the groups from dimension `dim` on, of packed values. Column n of tile i of four is
// element 4 n + i of their group.
template <class Type, int TILES>
__device__ __forceinline__ void multiply_packed_values(
    float (&sums)[TILES][DIM_TILES][4], half* p, const u8* v, int row, int dim
) {
    const int quad = lane_id() / 4, pair = lane_id() % 4;
    const u32 p_at = fragment_offset<TILE>(row);
#pragma unroll VALUE_STEPS<TILES>
    for (int step = 0; step < TILE / 16; step++) {
        u32 a[TILES][4];
#pragma unroll
        for (int r = 0; r < TILES; r++) fragment_on<TILE>(a[r], p, p_at, r, step);
        const u8* const rows = v + (16 * step + 2 * pair) * Type::STRIDE;
        constexpr int ODD = Type::STRIDE, LATER = 8 * Type::STRIDE;
#pragma unroll
        for (int t = 0; t < DIM_TILES; t += 4) {
            const int group = dim / WARP + t / 4;
            u32 low[4], high[4];
            Type::four(low, rows, rows + ODD, group, quad);
            Type::four(high, rows + LATER, rows + LATER + ODD, group, quad);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 b[2] = {low[i], high[i]};
#pragma unroll
                for (int r = 0; r < TILES; r++) mma_f16_16816(sums[r][t + i], a[r], b);
            }
        }
    }
}

// scores = Q K^T for the warp's rows and keys (from `key`), which are in rows placed(key).. of the tile.
template <int TILES, class Placed>
__device__ __forceinline__ void multiply_keys(
    float (&scores)[TILES][KEY_TILES][4], const Queries<TILES>& q, half* k, int key, const Placed& placed
) {
    const int lane = lane_id();
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int t = 0; t < KEY_TILES; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) scores[r][t][e] = 0.0f;

    if constexpr (KEY_TILES == 1) {  // an ldmatrix brings 8 keys x 32 elements
        const u32 k_at = chunk_offset<HEAD_DIM>(placed(key + lane % 8), lane / 8);
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step += 2) {
            u32 b[4];
            ldmatrix_x4(b, chunk_on(k, k_at, 2 * step, 0));
            const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
#pragma unroll
            for (int r = 0; r < TILES; r++) {
                u32 a[4];
                q.fragment(a, r, step);
                mma_f16_16816(scores[r][0], a, low);
                q.fragment(a, r, step + 1);
                mma_f16_16816(scores[r][0], a, high);
            }
        }
    } else {  // 16 keys x 16 elements
        constexpr int PLACES = Placed::IN_ORDER ? 1 : KEY_TILES / 2;
        u32 k_at[PLACES];
#pragma unroll
        for (int i = 0; i < PLACES; i++) {
            k_at[i] = chunk_offset<HEAD_DIM>(placed(key + 16 * i + lane % 8 + lane / 16 * 8), lane / 8 % 2);
        }
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step++) {
            u32 a[TILES][4];
#pragma unroll
            for (int r = 0; r < TILES; r++) q.fragment(a[r], r, step);
#pragma unroll
            for (int t = 0; t < KEY_TILES; t += 2) {
                u32 b[4];
                ldmatrix_x4(b, chunk_on(k, k_at[t / 2 % PLACES], 2 * step, Placed::IN_ORDER ? 8 * t * 2 * HEAD_DIM : 0));
#pragma unroll
                for (int r = 0; r < TILES; r++) mma_pair(scores[r][t], scores[r][t + 1], a[r], b);
            }
        }
    }
}

// sums += P V for the warp's rows and dimensions (from `dim`).
template <int TILES, class Placed>
__device__ __forceinline__ void multiply_values(
    float (&sums)[TILES][DIM_TILES][4], half* p, half* v, int row, int dim, const Placed& placed
) {
    static_assert((DIM_TILES & (DIM_TILES - 1)) == 0, "a warp's chunks are reached by XOR");
    const int lane = lane_id();
    const u32 p_at = fragment_offset<TILE>(row), in_order = chunk_offset<HEAD_DIM>(lane % 16, dim / 8 + lane / 16);
#pragma unroll VALUE_STEPS<TILES>
    for (int step = 0; step < TILE / 16; step++) {
        u32 a[TILES][4];
#pragma unroll
        for (int r = 0; r < TILES; r++) fragment_on<TILE>(a[r], p, p_at, r, step);
        u32 v_at = in_order;
        if (!Placed::IN_ORDER) v_at = chunk_offset<HEAD_DIM>(placed(16 * step + lane % 16), dim / 8 + lane / 16);
        const int bytes = Placed::IN_ORDER ? step * 16 * 2 * HEAD_DIM : 0;
#pragma unroll
        for (int t = 0; t < DIM_TILES; t += 2) {
            u32 b[4];
            ldmatrix_x4_trans(b, chunk_on(v, v_at, t, bytes));
#pragma unroll
            for (int r = 0; r < TILES; r++) mma_pair(sums[r][t], sums[r][t + 1], a[r], b);
        }
    }
}
