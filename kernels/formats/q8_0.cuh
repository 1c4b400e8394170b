// Q8_0, 34 B per 32 weights of a row: w = d * q, q a signed byte, d a half.
//
// Tile, 4352 B: d [16 rows][8 subs] f16; unit: [2 subs][32 lanes][4 words], the fragments as they are.

#pragma once

#include "formats/format.cuh"

// A half per row and sub: what the types with blocks of 32 share.
struct SubHead {
    uint4 row[2];
};

struct SubScales {
    u32 sub[2][4];  // [row][sub / 2], a half each
    float d[2];
};

__device__ __forceinline__ SubHead sub_load_head(const u8* tile, int lane) {
    const u8* upper = tile + (lane >> 2) * 16;
    return {{ldg_stream16(upper), ldg_stream16(upper + 8 * 16)}};
}

__device__ __forceinline__ void sub_decode(SubScales& scales, const SubHead& head, float factor) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const uint4 h = head.row[r];
        scales.sub[r][0] = h.x, scales.sub[r][1] = h.y, scales.sub[r][2] = h.z, scales.sub[r][3] = h.w;
        scales.d[r] = factor;
    }
}

__device__ __forceinline__ float sub_scale_of(const SubScales& scales, int row, int sub) {
    return half_bits_float(u16(scales.sub[row][sub >> 1] >> (16 * (sub & 1))));
}

struct Q8_0 {
    static constexpr int NUMBER = FORMAT_Q8_0, BYTES = 4352, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::FLOAT_32;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::FULL;
    static constexpr int MAX_PLANE_BITS = 4;
    using Head = SubHead;
    using Scales = SubScales;
    struct Unit {
        u32 word[2][4];
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) { return sub_load_head(tile, lane); }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
        sub_decode(scales, head, 1.0f);
        return scales;
    }
    static __device__ __forceinline__ float sub_scale(const Scales& scales, int row, int sub) {
        return sub_scale_of(scales, row, sub);
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        load_words4(unit.word[0], tile + 256 + u * 1024, lane);
        load_words4(unit.word[1], tile + 256 + u * 1024 + 512, lane);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = unit.word[sub][i];
    }
};
