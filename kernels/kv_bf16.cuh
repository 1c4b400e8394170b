// Keys or values as the upper halves of floats. They are converted to f16 where they are read: their eight bits fit,
// and no key or value exceeds the range of f16.

#pragma once

#include "common.cuh"

struct KvBf16 {
    static constexpr int BYTES = 2 * HEAD_DIM, WRITTEN = BYTES;
    static constexpr int STRIDE = BYTES + 32;  // which rows are read from four banks apart
    static constexpr bool HALVES = false, ROTATED = false;
    static constexpr int SHARED = 1, RUNS = HEAD_DIM / WARP, LOADED = 4;

    template <int PARTS> static __device__ __forceinline__ void store(u8* row, const float (&x)[PARTS]) {
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            const u32 bits = __float_as_uint(x[j]);  // to the nearest, ties to even
            reinterpret_cast<u16*>(row)[WARP * j + lane_id()] = u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        }
    }

    static __device__ __forceinline__ u32 halves(u32 pair) {
        return pack_half2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
    }
    struct Loaded {
        uint4 words;
    };
    static __device__ __forceinline__ void load(Loaded& to, const u8* row, int group, int part) {
        to.words = *reinterpret_cast<const uint4*>(row + 64 * group + 16 * part);
    }
    static __device__ __forceinline__ void eights(u32 (&to)[1][4], const Loaded& from, int) {
        const uint4 w = from.words;
        to[0][0] = halves(w.x), to[0][1] = halves(w.y), to[0][2] = halves(w.z), to[0][3] = halves(w.w);
    }
    static __device__ __forceinline__ void eight(u32 (&to)[4], const u8* row, int group, int part) {
        Loaded loaded;
        u32 x[1][4];
        load(loaded, row, group, part);
        eights(x, loaded, part);
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = x[0][i];
    }
    static __device__ __forceinline__ void four(
        u32 (&to)[4], const u8* first, const u8* second, int group, int part
    ) {
        const uint2 a = *reinterpret_cast<const uint2*>(first + 64 * group + 8 * part);
        const uint2 b = *reinterpret_cast<const uint2*>(second + 64 * group + 8 * part);
        to[0] = halves(prmt(a.x, b.x, 0x5410)), to[1] = halves(prmt(a.x, b.x, 0x7632));
        to[2] = halves(prmt(a.y, b.y, 0x5410)), to[3] = halves(prmt(a.y, b.y, 0x7632));
    }
};
