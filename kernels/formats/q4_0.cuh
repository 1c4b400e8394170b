// Q4_0 and Q5_0, 18 and 22 B per 32 weights of a row: w = d * (q - 8) and d * (q - 16), d a half; Q4_1 and Q5_1, 20 and
// 24 B: w = d * q + m.
//
// Tile: d [16 rows][8 subs] f16, for Q4_1 and Q5_1 then m in the same way; units of nibbles as Q4_K, and of fifth bits.
// Q4_0 and Q5_0 hold q - 8 and q - 16 in two's complement, put together at the top of a byte: 16 and 8 times the code,
// which d compensates. The bits of Q5_0 are placed as those of Q6_K: low four at bits 3..6, the lower row's rotated by
// 4; the fifth of register i of the unit gets to bit 7 by a shift by i.

#pragma once

#include "formats/q5_k.cuh"
#include "formats/q8_0.cuh"

struct Q4_0 {
    static constexpr int NUMBER = FORMAT_Q4_0, BYTES = 2304, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::FLOAT_32;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::HIGH;
    static constexpr int MAX_PLANE_BITS = 4;
    using Head = SubHead;
    using Scales = SubScales;
    using Unit = Q4_K::Unit;

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) { return sub_load_head(tile, lane); }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
        sub_decode(scales, head, 1.0f / 16);
        return scales;
    }
    static __device__ __forceinline__ float sub_scale(const Scales& scales, int row, int sub) {
        return sub_scale_of(scales, row, sub);
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        Q4_K::load_unit(unit, tile, u, lane);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 word = unit.word[2 * sub + half];
            a[2 * half] = word << 4 & 0xf0f0f0f0u;
            a[2 * half + 1] = word & 0xf0f0f0f0u;
        }
    }
};

struct Q5_0 {
    static constexpr int NUMBER = FORMAT_Q5_0, BYTES = 2816, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::FLOAT_32;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::HIGH;
    static constexpr int MAX_PLANE_BITS = 3;
    using Head = SubHead;
    using Scales = SubScales;
    using Unit = Q5_K::Unit;

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) { return sub_load_head(tile, lane); }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
        sub_decode(scales, head, 1.0f / 8);
        return scales;
    }
    static __device__ __forceinline__ float sub_scale(const Scales& scales, int row, int sub) {
        return sub_scale_of(scales, row, sub);
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        Q5_K::load_unit(unit, tile, u, lane);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 word = unit.word[2 * sub + (i >> 1)], high = unit.high << (4 * sub + i) & 0x80808080u;
            a[i] = ((i & 1 ? rotate_right4(word) : word) & 0x78787878u) | high;
        }
    }
};

struct SubMinimumHead {
    SubHead scales;
    u32 minimum[2];
};

struct SubMinimumScales : SubScales {
    u32 minimum[2];
    float minimum_scale[2];
};

// NIBBLES: the type with the same codes but without its own d and m.
template <class NIBBLES, int NUMBER_> struct WithMinimum {
    static constexpr int NUMBER = NUMBER_, BYTES = NIBBLES::BYTES + 256, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::FLOAT_32;
    static constexpr bool MINIMUM = true;
    static constexpr Codes CODES = NIBBLES::CODES;
    static constexpr int MAX_PLANE_BITS = NIBBLES::MAX_PLANE_BITS;
    using Head = SubMinimumHead;
    using Scales = SubMinimumScales;
    using Unit = typename NIBBLES::Unit;

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        const u8* minimum = tile + 256 + lane * 4;  // row g, subs 2t and 2t + 1
        return {sub_load_head(tile, lane), {ldg_stream4(minimum), ldg_stream4(minimum + 8 * 16)}};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
        sub_decode(scales, head.scales, 1.0f);
        scales.minimum[0] = head.minimum[0], scales.minimum[1] = head.minimum[1];
        scales.minimum_scale[0] = scales.minimum_scale[1] = 1.0f;
        return scales;
    }
    static __device__ __forceinline__ float sub_scale(const Scales& scales, int row, int sub) {
        return sub_scale_of(scales, row, sub);
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        NIBBLES::load_unit(unit, tile + 256, u, lane);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
        NIBBLES::expand(unit, sub, a);
    }
};

using Q4_1 = WithMinimum<Q4_K, FORMAT_Q4_1>;
using Q5_1 = WithMinimum<Q5_K, FORMAT_Q5_1>;
