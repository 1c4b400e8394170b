// Keys or values as halves.

#pragma once

#include "common.cuh"

struct KvF16 {
    static constexpr int BYTES = 2 * HEAD_DIM, WRITTEN = BYTES, STRIDE = BYTES;
    static constexpr bool HALVES = true, ROTATED = false;

    template <int PARTS> static __device__ __forceinline__ void store(u8* row, const float (&x)[PARTS]) {
        store_halves(reinterpret_cast<half*>(row), x);
    }
    // `row` is indexed by element.
    template <class Row, int PARTS>
    static __device__ __forceinline__ void store_halves(const Row& row, const float (&x)[PARTS]) {
#pragma unroll
        for (int j = 0; j < PARTS; j++) row[WARP * j + lane_id()] = __float2half_rn(x[j]);
    }

    static __device__ __forceinline__ void eight(u32 (&to)[4], const u8* row, int group, int part) {
        const uint4 w = *reinterpret_cast<const uint4*>(row + 64 * group + 16 * part);
        to[0] = w.x, to[1] = w.y, to[2] = w.z, to[3] = w.w;
    }
};

// Where element `e` of each 32 of a query is stored if its keys are packed: element 8 i + k where lane i of a quad loads
// the k-th of its 8 elements of a row, in two successive fragments of 16 columns.
__device__ __forceinline__ int interleaved(int e) { return (e & 4) << 2 | (e & 2) << 2 | e >> 3 << 1 | (e & 1); }

// Halves of keys in the order of such queries, so that these serve packed keys and halves.
struct KvInterleaved : KvF16 {
    template <int PARTS> static __device__ __forceinline__ void store(u8* row, const float (&x)[PARTS]) {
        store_halves(reinterpret_cast<half*>(row), x);
    }
    template <class Row, int PARTS>
    static __device__ __forceinline__ void store_halves(const Row& row, const float (&x)[PARTS]) {
#pragma unroll
        for (int j = 0; j < PARTS; j++) row[WARP * j + interleaved(lane_id())] = __float2half_rn(x[j]);
    }

    // In order again.
    static __device__ __forceinline__ void eight(u32 (&to)[4], const u8* row, int group, int part) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[i] = *reinterpret_cast<const u32*>(row + 64 * group + 2 * interleaved(8 * part + 2 * i));
        }
    }
};
