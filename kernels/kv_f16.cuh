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
