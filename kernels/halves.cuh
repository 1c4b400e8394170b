// Eight neighbours of an f16 row, in one load or store of 16 B.

#pragma once

#include "common.cuh"

__device__ __forceinline__ void store_halves(half* to, const float (&x)[8]) {
    *(uint4*)to = make_uint4(pack_half2(x[0], x[1]), pack_half2(x[2], x[3]), pack_half2(x[4], x[5]), pack_half2(x[6], x[7]));
}

__device__ __forceinline__ void load_halves(const half* from, float (&x)[8]) {
    const uint4 pairs = *(const uint4*)from;
    const u32 pair[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = unpack_half2(pair[i]);
        x[2 * i] = two.x, x[2 * i + 1] = two.y;
    }
}
