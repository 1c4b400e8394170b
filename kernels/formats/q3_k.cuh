// Q3_K, 110 B per 256 weights of a row: w = d * (scale - 32) * (q - 4), q in 0..7, 6-bit scales per 16.
//
// Tile, 1760 B: low nibbles of the scales [16 rows][8 B], their high pairs [16][4 B], d [8][upper, lower] f16; unit:
// [32 lanes][2 words] of the codes' high pairs, then [32 lanes] a word of low bits. Codes are q - 4 in two's complement,
// put together at the top of a byte: 32 (q - 4). The high pair of register i of a sub gets there by a shift by 2 i, the
// low bit of register r of the unit by one that brings bit (5 - r) mod 8 to bit 5. Scales are made as the codes of Q6_K
// are, 4 (scale - 32): half sub i has the low nibble of byte i mod 4 in word i / 8, low half first; its pair is i / 4.

#pragma once

#include "formats/q6_k.cuh"

struct Q3_K {
    static constexpr int NUMBER = FORMAT_Q3_K, BYTES = 1760, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::INTEGER_16;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::HIGH;
    static constexpr int MAX_PLANE_BITS = 4;
    struct Head {
        uint2 low[2];
        u32 high[2], d;
    };
    using Scales = Q6_K::Scales;
    struct Unit {
        u32 pairs[2], low;
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        const int g = lane >> 2;
        const u8 *low = tile + g * 8, *high = tile + 128 + g * 4;
        return {{ldg_stream8(low), ldg_stream8(low + 8 * 8)}, {ldg_stream4(high), ldg_stream4(high + 8 * 4)},
                ldg_stream4(tile + 192 + g * 4)};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const u32 low[2] = {head.low[r].x, head.low[r].y};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 nibbles = i & 1 ? low[i >> 1] >> 2 : low[i >> 1] << 2;
                scales.sub[r][i] = (nibbles & 0x3c3c3c3cu) | (head.high[r] << (2 * i) & 0xc0c0c0c0u);
            }
            scales.d[r] = (1.0f / 128) * half_bits_float(u16(head.d >> (16 * r)));
        }
        return scales;
    }
    static __device__ __forceinline__ int sub_scale(const Scales& scales, int row, int half_sub) {
        return Q6_K::sub_scale(scales, row, half_sub);
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        const u8* at = tile + 224 + u * 384;
        const uint2 pairs = ldg_stream8(at + lane * 8);
        unit.pairs[0] = pairs.x, unit.pairs[1] = pairs.y;
        unit.low = ldg_stream4(at + 256 + lane * 4);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = 4 * sub + i;
            const u32 low = r < 6 ? unit.low << r : unit.low >> (8 - r);
            a[i] = (unit.pairs[sub] << (2 * i) & 0xc0c0c0c0u) | (low & 0x20202020u);
        }
    }
};
