// IQ4_NL, 18 B per 32 weights of a row: w = d * VALUE[q]; IQ4_XS, 136 B per 256: w = d * (scale - 32) * VALUE[q] with
// 6-bit scales per 32. VALUE: sixteen signed bytes, denser around zero.
//
// Units: [32 lanes][4 words], word 2 * sub + half: nibbles 0..3 are k 16 * half + 4 t .. + 3 of the upper row, 4..7 of
// the lower one, so that the word itself selects bytes of the table. IQ4_NL, 2304 B: header d [16 rows][8 subs] f16.
// IQ4_XS, 2176 B: header [16][8 B]: d; two bytes of the scales' high pairs, byte i = subs i, i + 2, i + 4, i + 6 from the
// top; four bytes of low nibbles, byte i = sub i (low) and i + 4 (high). Scales come out as 4 (scale - 32).

#pragma once

#include "formats/q4_k.cuh"
#include "formats/q8_0.cuh"

// Sixteen signed bytes, the first in the lowest bits.
struct CodeTable {
    u32 word[4];
};

__device__ __forceinline__ void table_expand(const Q4_K::Unit& unit, int sub, const CodeTable& table, u32 (&a)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const u32 word = unit.word[2 * sub + half];
        // Either half of the table by the low three bits, then one of the two results by the fourth.
        const u32 index = word & 0x77777777u, upper_half = (word >> 1 & 0x44444444u) | 0x32103210u;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const u32 by_index = r ? upper_half_by_dot(index) : index;
            const u32 lower = prmt(table.word[0], table.word[1], by_index);
            const u32 upper = prmt(table.word[2], table.word[3], by_index);
            a[2 * half + r] = prmt(lower, upper, r ? upper_half_by_dot(upper_half) : upper_half);
        }
    }
}

__device__ __forceinline__ void iq4_expand(const Q4_K::Unit& unit, int sub, u32 (&a)[4]) {
    table_expand(unit, sub, {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}, a);
}

struct IQ4_NL {
    static constexpr int NUMBER = FORMAT_IQ4_NL, BYTES = 2304, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::FLOAT_32;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::FULL;
    static constexpr int MAX_PLANE_BITS = 4;
    using Head = SubHead;
    using Scales = SubScales;
    using Unit = Q4_K::Unit;

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
        Q4_K::load_unit(unit, tile, u, lane);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) { iq4_expand(unit, sub, a); }
};

struct IQ4_XS : WideHeads {
    static constexpr int NUMBER = FORMAT_IQ4_XS, BYTES = 2176, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::INTEGER_32;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::FULL;
    static constexpr int MAX_PLANE_BITS = 2;
    struct Scales {
        u32 sub[2][2];  // [row][sub / 4], a signed byte each
        float d[2];
    };
    using Unit = Q4_K::Unit;

    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const uint2 h = head.row[r];
            // Subs 0..3 need the first and second pair of the two bytes, subs 4..7 the third and fourth.
            const u32 twice = prmt(h.x, 0, 0x3232u), pairs = prmt(twice, twice << 2, 0x7610u);
            scales.sub[r][0] = (h.y << 2 & 0x3c3c3c3cu) | (pairs & 0xc0c0c0c0u);
            scales.sub[r][1] = (h.y >> 2 & 0x3c3c3c3cu) | (pairs << 4 & 0xc0c0c0c0u);
            scales.d[r] = 0.25f * half_bits_float(u16(h.x));
        }
        return scales;
    }
    static __device__ __forceinline__ int sub_scale(const Scales& scales, int row, int sub) {
        return signed_byte_of(scales.sub[row][sub >> 2], sub & 3);
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        load_words4(unit.word, tile + 128 + u * 512, lane);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) { iq4_expand(unit, sub, a); }
};
