// Q2_K, 84 B per 256 weights of a row: w = d * scale * q - dmin * minimum, q in 0..3, 4-bit scales and minima per 16.
// Share of bandwidth: 50 % of an H200's 4.49 TB/s at one row of 17,408 x 5,120 (`python -m tools.bench.types`).
//
// Scales are multiplied into the codes, four at a time: 3 * 15 fits a byte. Minima are multiplied by the activations as
// codes are, so both sums go on over the whole tile.
//
// Tile, 1344 B: scales [16 rows][16 B], the minimum in the high half of a byte, d and dmin [16] f16; unit: [32 lanes][2
// words], word `sub`: of register i of the sub bits 6 - 2 i of each byte.

#pragma once

#include "formats/format.cuh"

struct Q2_K {
    static constexpr int NUMBER = FORMAT_Q2_K, BYTES = 1344, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::TILE;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::LOW;
    static constexpr int MAX_PLANE_BITS = 2;
    struct Head {
        uint4 row[2];
        u32 d[2];
    };
    struct Scales {
        u32 sub[2][4], minimum[2][4];  // [row][unit], a byte per half sub; the minimum in its high half
        float d[2], minimum_scale[2];
    };
    struct Unit {
        u32 pairs[2];
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        const int g = lane >> 2;
        const u8 *upper = tile + g * 16, *d = tile + 256 + g * 4;
        return {{ldg_stream16(upper), ldg_stream16(upper + 8 * 16)}, {ldg_stream4(d), ldg_stream4(d + 8 * 4)}};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const uint4 h = head.row[r];
            const u32 words[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scales.sub[r][i] = words[i] & 0x0f0f0f0fu;
                scales.minimum[r][i] = words[i];
            }
            scales.d[r] = half_bits_float(u16(head.d[r]));
            scales.minimum_scale[r] = -half_bits_float(u16(head.d[r] >> 16));
        }
        return scales;
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        const uint2 pairs = ldg_stream8(tile + 320 + u * 256 + lane * 8);
        unit.pairs[0] = pairs.x, unit.pairs[1] = pairs.y;
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = unit.pairs[sub] >> (6 - 2 * i) & 0x03030303u;
    }
    // Which byte of a word has the 16 weights of register i of a sub.
    static __device__ __forceinline__ int byte_at(int sub, int i) { return 2 * (sub & 1) + (i >> 1); }
    static __device__ __forceinline__ u32 minima_of_unit(u32 word) { return word >> 4 & 0x0f0f0f0fu; }
    static __device__ __forceinline__ void minima(const Scales& scales, int sub, u32 (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            a[i] = prmt(minima_of_unit(scales.minimum[i & 1][sub >> 1]), 0, 0x1111u * byte_at(sub, i));
        }
    }
};
template <> constexpr bool LOWERED<Q2_K> = true;
__device__ __forceinline__ void scale_codes(const Q2_K::Scales& scales, int sub, u32 (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] *= byte_by_dot(scales.sub[i & 1][sub >> 1], Q2_K::byte_at(sub, i));
}
