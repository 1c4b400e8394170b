// IQ2_XXS, 66 B per 256 weights of a row: w = d / 8 * (1 + 2 scale) * sign * GRID[index], a 4-bit scale per 32, an 8-bit
// index and seven signs per eight weights, of which the number of negative ones is even. IQ2_XS, 74 B: scales per 16, 9-bit
// indices. IQ2_S, 82 B: 10-bit indices and eight signs.
// Share of bandwidth: IQ2_XXS 36 %, IQ2_XS 34 %, IQ2_S 38 % of an H200's 4.4 TB/s at one row of
// 17,408 x 5,120 (`python -m tools.bench.types`).
//
// A grid entry is two registers, of the two lanes of a quad that have its eight weights. Units begin with the low bytes of
// indices by register, [32 lanes / 2][8]. Signs are a word per lane, in the order of grid_table.cuh. In IQ2_XXS and IQ2_XS
// one of eight signs is missing, the last of the odd lane in registers 0..3 and of the even lane in 4..7, and is the parity
// of the others; its four bits hold other things.
//
// IQ2_XXS, 1056 B: d [8][upper, lower] f16; the four free bits of the lanes t of a quad are the scales of sub t / 2,
// upper or lower row. IQ2_XS, 1184 B: d, scales [16 rows][8 B] as in the file; the free bits are the ninth bits of the
// pair's indices. IQ2_S, 1312 B: d and scales as IQ2_XS; unit: indices, signs, [32 / 2] the high pairs of the indices.

#pragma once

#include "formats/grid_table.cuh"
#include "formats/q6_k.cuh"
#include "formats/two_subs.cuh"
#include "iq2_grid.cuh"

// The registers of a lane from its digits and signs: magnitudes, and the same negated.
__device__ __forceinline__ u32 iq2_register(u32 digits, u32 signs, int r) {
    return prmt(0x002b1908u, 0x00d5e7f8u, digits | bits_of_register(signs, r));
}

// All signs of a lane, from the words of its pair.
__device__ __forceinline__ u32 iq2_all_signs(u32 even, u32 odd, int lane) {
    constexpr u32 EVEN = 0x0fffffffu, ODD = 0xffff0fffu;  // what are signs
    u32 parity = (even & EVEN) ^ (odd & ODD);
    parity ^= parity >> 8;
    parity ^= parity >> 4;
    const u32 own = lane & 1 ? odd : even, signs = lane & 1 ? ODD : EVEN;
    return lop3<0xca>(signs, own, parity << 12);  // own where signs are, else the parity
}

// The 4-bit scales of 16 half subs of a row, 8 B of nibbles, as bytes 1 + 2 scale: half sub i is byte i / 2 % 4 of word
// i / 8 * 2 + i % 2.
__device__ __forceinline__ void iq2_scales(u32 (&sub)[4], uint2 nibbles) {
    const u32 words[2] = {nibbles.x, nibbles.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 word = words[i >> 1];
        sub[i] = (i & 1 ? word >> 3 : word << 1) & 0x1e1e1e1eu | 0x01010101u;
    }
}

struct IQ2_XXS : TwoSubs<1> {
    static constexpr int NUMBER = FORMAT_IQ2_XXS, BYTES = 1056;
    using Table = GridTable<256, 8>;
    struct Unit {
        u32 index[2], signs[4];  // signs of the four lanes of the quad
    };

    static __device__ __forceinline__ Table& table() {
        __shared__ Table found;
        return found;
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        const u8* at = tile + 32 + u * 256;
        const uint2 index = ldg_stream8(at + (lane >> 1) * 8);
        unit.index[0] = index.x, unit.index[1] = index.y;
        load_words4(unit.signs, at + 128, lane >> 2);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
        const int lane = lane_id();
        const u32 even = lane & 2 ? unit.signs[2] : unit.signs[0], odd = lane & 2 ? unit.signs[3] : unit.signs[1];
        const u32 signs = iq2_all_signs(even, odd, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            a[i] = iq2_register(table().four(unit.index[sub], i, 0, lane), signs, 4 * sub + i);
        }
    }
};
__device__ __forceinline__ void prepare(IQ2_XXS) { IQ2_XXS::table().fill(IQ2_XXS_GRID); }
__device__ __forceinline__ void take_scales(IQ2_XXS::Scales& scales, const IQ2_XXS::Unit& unit) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        scales.sub[0][s] = int(unit.signs[2 * s] >> 28) * 2 + 1;
        scales.sub[1][s] = int(unit.signs[2 * s + 1] >> 12 & 15) * 2 + 1;
    }
}

// IQ2_XS and IQ2_S: d and a scale per 16.
struct IQ2Sixteen {
    static constexpr Scaling SCALING = Scaling::INTEGER_16;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::FULL;
    static constexpr int MAX_PLANE_BITS = 4, SLOTS = 4;
    struct Head {
        uint2 row[2];
        u32 d;
    };
    using Scales = Q6_K::Scales;

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        const u8 *upper = tile + 32 + (lane >> 2) * 8;
        return {{ldg_stream8(upper), ldg_stream8(upper + 8 * 8)}, ldg_stream4(tile + (lane >> 2) * 4)};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            iq2_scales(scales.sub[r], head.row[r]);
            scales.d[r] = 0.125f * half_bits_float(u16(head.d >> (16 * r)));
        }
        return scales;
    }
    static __device__ __forceinline__ int sub_scale(const Scales& scales, int row, int i) {
        return byte_by_dot(scales.sub[row][(i >> 3) * 2 + (i & 1)], i >> 1 & 3);
    }
};

struct IQ2_XS : IQ2Sixteen {
    static constexpr int NUMBER = FORMAT_IQ2_XS, BYTES = 1184;
    using Table = GridTable<512, 4>;
    struct Unit {
        u32 index[2], signs[2];  // signs of the two lanes of the pair
    };

    static __device__ __forceinline__ Table& table() {
        __shared__ Table found;
        return found;
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        const u8* at = tile + 160 + u * 256 + (lane >> 1) * 8;
        const uint2 index = ldg_stream8(at), signs = ldg_stream8(at + 128);
        unit.index[0] = index.x, unit.index[1] = index.y;
        unit.signs[0] = signs.x, unit.signs[1] = signs.y;
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
        const int lane = lane_id();
        const u32 even = unit.signs[0], odd = unit.signs[1];
        const u32 signs = iq2_all_signs(even, odd, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 ninth = (sub ? even >> (20 + i) : odd >> (4 + i)) & 256u;
            a[i] = iq2_register(table().four(unit.index[sub], i, ninth, lane), signs, 4 * sub + i);
        }
    }
};
__device__ __forceinline__ void prepare(IQ2_XS) { IQ2_XS::table().fill(IQ2_XS_GRID); }

struct IQ2_S : IQ2Sixteen {
    static constexpr int NUMBER = FORMAT_IQ2_S, BYTES = 1312;
    using Table = GridTable<1024, 2>;
    struct Unit {
        u32 index[2], signs, high;  // high: of both pairs of the quad
    };

    static __device__ __forceinline__ Table& table() {
        __shared__ Table found;
        return found;
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        const u8* at = tile + 160 + u * 288;
        const uint2 index = ldg_stream8(at + (lane >> 1) * 8);
        unit.index[0] = index.x, unit.index[1] = index.y;
        unit.signs = ldg_stream4(at + 128 + lane * 4);
        unit.high = ldg_stream4(at + 256 + (lane >> 2) * 4);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
        const int lane = lane_id();
        const u32 high = lane & 2 ? unit.high >> 16 : unit.high;  // of the pair, two bits per register
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = 4 * sub + i;
            const u32 ninth = (r < 4 ? high << (8 - 2 * r) : high >> (2 * r - 8)) & 0x300u;
            a[i] = iq2_register(table().four(unit.index[sub], i, ninth, lane), unit.signs, r);
        }
    }
};
__device__ __forceinline__ void prepare(IQ2_S) { IQ2_S::table().fill(IQ2_S_GRID); }
