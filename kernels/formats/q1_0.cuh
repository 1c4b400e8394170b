// Q1_0, 18 B per 128 weights of a row: w = d or -d, d a half.
// Share of bandwidth: 33 % of an H200's 4.4 TB/s at one row of 17,408 x 5,120 (`python -m tools.bench.types`).
//
// Tile, 576 B: d [16 rows][2] f16; unit: [32 lanes] a word, bit r of byte i: whether value i of register r is negative.
// Codes are 64 for negative weights and -64 for others, which d compensates: so a bit is masked, then shifted and added by
// one multiplication by a negative power of two, where a positive one would become a shift by the unit that is in demand.

#pragma once

#include "formats/format.cuh"

struct Q1_0 {
    static constexpr int NUMBER = FORMAT_Q1_0, BYTES = 576, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::FLOAT_64;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::HIGH;
    static constexpr int MAX_PLANE_BITS = 4;
    struct Head {
        u32 row[2];
    };
    struct Scales {
        u32 both[2];  // a half per 128 k
        float d[2];
    };
    struct Unit {
        u32 signs;
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        const u8* upper = tile + (lane >> 2) * 4;
        return {{ldg_stream4(upper), ldg_stream4(upper + 8 * 4)}};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        return {{head.row[0], head.row[1]}, {-1.0f / 64, -1.0f / 64}};
    }
    static __device__ __forceinline__ float sub_scale(const Scales& scales, int row, int u) {
        return half_bits_float(u16(scales.both[row] >> (16 * (u >> 1))));
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        unit.signs = ldg_stream4(tile + 64 + u * 128 + lane * 4);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int shift = 7 - 4 * sub - i;
            a[i] = multiply_add(unit.signs & 0x80808080u >> shift, 0u - (1u << shift), 0xc0c0c0c0u);
        }
    }
};
