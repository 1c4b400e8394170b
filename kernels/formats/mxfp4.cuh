// MXFP4, 17 B per 32 weights of a row: w = 2^(e - 128) * VALUE[q], e a byte. VALUE: twice the numbers of E2M1.
// Share of bandwidth: 73 % of an H200's 4.49 TB/s at one row of 17,408 x 5,120 (`python -m tools.bench.types`).
//
// Tile, 2176 B, laid out as IQ4_XS: e [16 rows][8 subs], then its units.

#pragma once

#include "formats/iq4.cuh"

struct MXFP4 {
    static constexpr int NUMBER = FORMAT_MXFP4, BYTES = 2176, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::FLOAT_32;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::FULL;
    static constexpr int MAX_PLANE_BITS = 4;
    using Head = IQ4_XS::Head;
    struct Scales {
        u32 sub[2][2];  // [row][sub / 4], a byte each
        float d[2];
    };
    using Unit = IQ4_XS::Unit;

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        return IQ4_XS::load_head(tile, lane);
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
        IQ4_XS::load_unit(unit, tile, u, lane);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
        table_expand(unit, sub, {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}, a);
    }
};
