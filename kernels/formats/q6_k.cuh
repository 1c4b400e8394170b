// Q6_K, 210 B per 256 weights of a row: w = d * scale * (q - 32), q in 0..63, signed 8-bit scales per 16.
//
// Tile, 3360 B: scales [16 rows][16], d [8][upper, lower] f16; unit: [32 lanes][4 words] of low bits, then
// [32 lanes][2 words] of high bits. Codes are q - 32 in two's complement, put together in the top six bits of a byte:
// that is 4 (q - 32), and d / 4 compensates. So the low four bits of the upper row are at bits 2..5 of their byte
// and those of the lower row get there by a rotation by 4; the high two bits of register i of a sub by a shift by 2 i.

#pragma once

#include "formats/format.cuh"

struct Q6_K {
    static constexpr int NUMBER = FORMAT_Q6_K, BYTES = 3360, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::INTEGER_16;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::HIGH;
    static constexpr int MAX_PLANE_BITS = 2;
    struct Head {
        uint4 row[2];
        u32 d;
    };
    struct Scales {
        u32 sub[2][4];  // [row][half sub / 4], a signed byte each
        float d[2];
    };
    struct Unit {
        u32 word[4], high[2];
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        const u8* upper = tile + (lane >> 2) * 16;
        return {{ldg_stream16(upper), ldg_stream16(upper + 8 * 16)}, ldg_stream4(tile + 256 + (lane >> 2) * 4)};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const uint4 h = head.row[r];
            scales.sub[r][0] = h.x, scales.sub[r][1] = h.y, scales.sub[r][2] = h.z, scales.sub[r][3] = h.w;
            scales.d[r] = 0.25f * half_bits_float(u16(head.d >> (16 * r)));
        }
        return scales;
    }
    static __device__ __forceinline__ int sub_scale(const Scales& scales, int row, int half_sub) {
        return signed_byte_of(scales.sub[row][half_sub >> 2], half_sub & 3);
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        const u8* at = tile + 288 + u * 768;
        load_words4(unit.word, at, lane);
        const uint2 high = ldg_stream8(at + 512 + lane * 8);
        unit.high[0] = high.x, unit.high[1] = high.y;
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 word = unit.word[2 * sub + (i >> 1)], high = unit.high[sub] << (2 * i) & 0xc0c0c0c0u;
            a[i] = ((i & 1 ? rotate_right4(word) : word) & 0x3c3c3c3cu) | high;
        }
    }
};
