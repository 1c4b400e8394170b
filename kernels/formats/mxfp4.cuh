// MXFP4, 17 B per 32 weights of a row: w = 2^(e - 128) * VALUE[q], e a byte. VALUE: twice the numbers of E2M1.
// Share of bandwidth: 73 % of an H200's 4.49 TB/s at one row of 17,408 x 5,120 (`python -m tools.bench.types`).
//
// Tile, 2176 B: e [16 rows][8 subs]; units as IQ4_XS.

#pragma once

#include "formats/iq4.cuh"

struct MXFP4 {
    static constexpr int NUMBER = FORMAT_MXFP4, BYTES = 2176, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::FLOAT_32;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::FULL;
    static constexpr int MAX_PLANE_BITS = 4;
    struct Head {
        uint2 row[2];
    };
    struct Scales {
        u32 sub[2][2];  // [row][sub / 4], a byte each
        float d[2];
    };
    using Unit = Q4_K::Unit;

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        const u8* upper = tile + (lane >> 2) * 8;
        return {{ldg_stream8(upper), ldg_stream8(upper + 8 * 8)}};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            scales.sub[r][0] = head.row[r].x, scales.sub[r][1] = head.row[r].y;
            scales.d[r] = 0.5f;
        }
        return scales;
    }
    static __device__ __forceinline__ float sub_scale(const Scales& scales, int row, int sub) {
        // d is a half. The smallest power of all is no normal float and becomes zero, the largest an infinity.
        return __uint_as_float(u32(byte_by_dot(scales.sub[row][sub >> 2], sub & 3)) << 23);
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        load_words4(unit.word, tile + 128 + u * 512, lane);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
        table_expand(unit, sub, {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}, a);
    }
};
