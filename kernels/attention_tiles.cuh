// A tile of TILE keys or values in split attention: brought to shared memory as it is kept, made halves of where all warps
// share that work, and multiplied by what a warp has of the rows. attention.cuh says how warps lie over a tile.

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
constexpr int SHARES = COLUMNS / COLUMN_WARPS;  // columns of the order that a warp does
#ifdef UNPACK_ONCE
constexpr bool ONCE = true;
#else
constexpr bool ONCE = false;
#endif
constexpr bool KEY_HALVES = KeyType::HALVES || ONCE, VALUE_HALVES = ValueType::HALVES || ONCE;
constexpr int KEY_BYTES = TILE * KeyType::STRIDE, VALUE_BYTES = TILE * ValueType::STRIDE;  // of a stage
static_assert(TILE % 16 == 0 && TILE <= 64, "a row's view of a tile is one 64-bit word");
static_assert(KEY_TILES == 1 || KEY_TILES % 2 == 0, "keys of a warp: 8, or whole pairs of 8");
static_assert(DIM_TILES >= 2 && DIM_TILES % 2 == 0, "dimensions of a warp come in pairs of 8");
static_assert(SHARES * COLUMN_WARPS == COLUMNS && KEY_TILES % SHARES == 0, "a warp has whole columns");
static_assert(VALUE_HALVES || DIM_TILES % 4 == 0, "of packed values a warp has whole groups");
static_assert(STAGES >= 1 && (!ONCE || STAGES == 1), "what is unpacked makes room at once");
static_assert(!ONCE || (!KeyType::HALVES && !ValueType::HALVES), "halves have nothing to unpack");

// Start bringing rows of keys, or values, into a stage, row order(i) as the i-th; those from `live` on become zeros and
// may be anywhere. There after the wait for the cp.async group and a barrier.
template <class Type, class Order>
__device__ __forceinline__ void fetch_rows(u8* stage, const u8* rows, int live, const Order& order) {
    if constexpr (Type::HALVES) {
        const half* const from = reinterpret_cast<const half*>(rows);
        copy_rows<HEAD_DIM, TILE, THREADS>(reinterpret_cast<half*>(stage), from, live, order);
    } else {
        constexpr int CHUNKS = Type::BYTES / 16, COUNT = TILE * CHUNKS;
        const int there = min(live, TILE) * CHUNKS;
#pragma unroll
        for (int first = 0; first < COUNT; first += THREADS) {
            const int at = first + threadIdx.x;
            if (COUNT % THREADS && at >= COUNT) break;
            if constexpr (Order::STRAIGHT && Type::STRIDE == Type::BYTES) {
                cp_async16_or_zero(stage + 16 * at, rows + 16 * at, at < there);
            } else {
                const int row = at / CHUNKS, chunk = at % CHUNKS;
                const u8* const source = rows + order(row) * Type::BYTES + 16 * chunk;
                cp_async16_or_zero(stage + row * Type::STRIDE + 16 * chunk, source, at < there);
            }
        }
    }
}

// A tile of packed keys, or values, as one of halves, by all threads of the block. Elements of a group of keys stand where
// ldmatrix gives a lane those that one read of packed keys gives it: see multiply_packed_keys.
template <class Type> __device__ __forceinline__ void unpack_keys(half* tile, const u8* rows) {
    constexpr int COUNT = TILE * HEAD_DIM / 8;
#pragma unroll 2
    for (int at = threadIdx.x; at < COUNT; at += THREADS) {
        const int part = at % 4, row = at / 4 % TILE, group = at / (4 * TILE);
        u32 x[4];
        Type::eight(x, rows + row * Type::STRIDE, group, part);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            *reinterpret_cast<u32*>(chunk_at<HEAD_DIM>(tile, row, 4 * group + i) + 2 * part) = x[i];
        }
    }
}
template <class Type> __device__ __forceinline__ void unpack_values(half* tile, const u8* rows) {
    constexpr int CHUNKS = HEAD_DIM / 8, COUNT = TILE * CHUNKS;
#pragma unroll 2
    for (int at = threadIdx.x; at < COUNT; at += THREADS) {
        const int row = at / CHUNKS, chunk = at % CHUNKS;
        u32 x[4];
        Type::eight(x, rows + row * Type::STRIDE, chunk / 4, chunk % 4);
        *reinterpret_cast<uint4*>(chunk_at<HEAD_DIM>(tile, row, chunk)) = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

// scores = Q K^T for the warp's rows (from `row`) and packed keys (from `key`). Elements 8 i.. of a group of keys are one
// read of lane i of four; queries have theirs where the fragments then expect them.
template <class Type, int TILES>
__device__ __forceinline__ void multiply_packed_keys(
    float (&scores)[TILES][KEY_TILES][4], half* q, const u8* k, int row, int key
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
            row_fragment<HEAD_DIM>(a[0], q, row + 16 * r, 2 * group);
            row_fragment<HEAD_DIM>(a[1], q, row + 16 * r, 2 * group + 1);
#pragma unroll
            for (int t = 0; t < KEY_TILES; t++) {
                const u32 low[2] = {b[t][0], b[t][1]}, high[2] = {b[t][2], b[t][3]};
                mma_f16_16816(scores[r][t], a[0], low);
                mma_f16_16816(scores[r][t], a[1], high);
            }
        }
    }
}

// Steps of P V at a time: with two tiles, all of them would spill where many warps share the registers.
template <int TILES> constexpr int VALUE_STEPS = ROW_WARPS > 1 && TILES == 2 ? 2 : ceil_div(TILE, 16);

// sums += P V for the warp's rows and the groups from dimension `dim` on, of packed values. Column n of tile i of four is
// element 4 n + i of their group.
template <class Type, int TILES>
__device__ __forceinline__ void multiply_packed_values(
    float (&sums)[TILES][DIM_TILES][4], half* p, const u8* v, int row, int dim
) {
    const int quad = lane_id() / 4, pair = lane_id() % 4;
#pragma unroll VALUE_STEPS<TILES>
    for (int step = 0; step < TILE / 16; step++) {
        u32 a[TILES][4];
#pragma unroll
        for (int r = 0; r < TILES; r++) row_fragment<TILE>(a[r], p, row + 16 * r, step);
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

// scores = Q K^T for the warp's rows (from `row`) and keys (from `key`).
template <int TILES>
__device__ __forceinline__ void multiply_keys(
    float (&scores)[TILES][KEY_TILES][4], half* q, half* k, int row, int key
) {
    const int lane = lane_id();
#pragma unroll
    for (int r = 0; r < TILES; r++)
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
            for (int r = 0; r < TILES; r++) {
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
            u32 a[TILES][4];
#pragma unroll
            for (int r = 0; r < TILES; r++) row_fragment<HEAD_DIM>(a[r], q, row + 16 * r, step);
#pragma unroll
            for (int t = 0; t < KEY_TILES; t += 2) {
                u32 b[4];
                const int at = key + 8 * t + lane % 8 + lane / 16 * 8;
                ldmatrix_x4(b, chunk_at<HEAD_DIM>(k, at, 2 * step + lane / 8 % 2));
#pragma unroll
                for (int r = 0; r < TILES; r++) mma_pair(scores[r][t], scores[r][t + 1], a[r], b);
            }
        }
    }
}

// sums += P V for the warp's rows and dimensions (from `dim`).
template <int TILES>
__device__ __forceinline__ void multiply_values(
    float (&sums)[TILES][DIM_TILES][4], half* p, half* v, int row, int dim
) {
    const int lane = lane_id();
#pragma unroll VALUE_STEPS<TILES>
    for (int step = 0; step < TILE / 16; step++) {
        u32 a[TILES][4];
#pragma unroll
        for (int r = 0; r < TILES; r++) row_fragment<TILE>(a[r], p, row + 16 * r, step);
#pragma unroll
        for (int t = 0; t < DIM_TILES; t += 2) {
            u32 b[4];
            ldmatrix_x4_trans(b, chunk_at<HEAD_DIM>(v, 16 * step + lane % 16, dim / 8 + t + lane / 16));
#pragma unroll
            for (int r = 0; r < TILES; r++) mma_pair(sums[r][t], sums[r][t + 1], a[r], b);
        }
    }
}
