// Q5_K, 176 B per 256 weights of a row: Q4_K with a fifth bit.
//
// Tile, 2816 B: header as Q4_K; unit: [32 lanes][4 words] of nibbles as Q4_K, then [32 lanes] a word of fifth bits,
// bit 4 * sub + 2 * half + lower of byte i.

#pragma once

#include "formats/q4_k.cuh"

struct Q5_K {
    static constexpr int NUMBER = FORMAT_Q5_K, BYTES = 2816, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::INTEGER_32;
    static constexpr bool MINIMUM = true;
    static constexpr Codes CODES = Codes::LOW;
    static constexpr int MAX_PLANE_BITS = 3;
    using Head = KHead;
    using Scales = KScales;
    struct Unit {
        u32 word[4], high;
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) { return k_load_head(tile, lane); }
    static __device__ __forceinline__ Scales decode(const Head& head, int lane) { return k_decode(head, lane); }
    static __device__ __forceinline__ int sub_scale(const Scales& scales, int row, int sub) {
        return byte_of(scales.sub[row][sub >> 2], sub & 3);
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        load_words4(unit.word, tile + 256 + u * 640, lane);
        unit.high = ldg_stream4(tile + 256 + u * 640 + 512 + lane * 4);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 word = unit.word[2 * sub + (i >> 1)];
            const int bit = 4 * sub + i;
            const u32 high = bit < 4 ? unit.high << (4 - bit) : unit.high >> (bit - 4);
            a[i] = ((i & 1 ? word >> 4 : word) & 0x0f0f0f0fu) | (high & 0x10101010u);
        }
    }
};
