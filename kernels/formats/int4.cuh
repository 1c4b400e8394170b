// Four-bit weights of folders of safetensors, GPTQ's, AutoRound's, AWQ's: w = s * (q - z), q in 0..15, with a scale and a
// whole zero z, 0 to 16, per group of 32, 64 or 128 weights of a row. s is a half or a bf16 and may be negative.
// Share of bandwidth: INT4S_128 78 %, INT4_128 72 % of an H200's (Q4_K then 79 %) at one row of 17,408 x 5,120
// (`python -m tools.bench.types`).
//
// Zeros are subtracted from the codes, four at a time, so products stay exact integers.
//
// Tile, 2048 B and 48 B per group of a row: s [16 rows][groups] 16 bits, z [16 rows][groups] a byte, whose top bit says
// that s is a bf16; units of nibbles as Q4_K.

#pragma once

#include "formats/q4_0.cuh"

template <int GROUPS> struct Int4Scales {
    static constexpr int SCALE_WORDS = GROUPS / 2, ZERO_WORDS = (GROUPS + 3) / 4;
    u32 scale[2][SCALE_WORDS], zero[2][ZERO_WORDS];
    float d[2];

    __device__ __forceinline__ u32 zero_at(int row, int group) const {
        return u32(byte_of(zero[row][group >> 2], group & 3));
    }
    __device__ __forceinline__ float scale_at(int row, int group) const {
        const u32 bits = scale[row][group >> 1] >> (16 * (group & 1)) & 0xffffu;
        return zero_at(row, group) & 0x80u ? __uint_as_float(bits << 16) : half_bits_float(u16(bits));
    }
};

// GROUPS: in a row of a tile.
template <int NUMBER_, int GROUPS> struct Int4 {
    static constexpr int NUMBER = NUMBER_, BYTES = 2048 + 48 * GROUPS, SLOTS = 4;
    static constexpr Scaling SCALING = GROUPS == 8 ? Scaling::FLOAT_32 : Scaling::FLOAT_64;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::FULL;
    static constexpr int MAX_PLANE_BITS = 4;
    using Scales = Int4Scales<GROUPS>;
    using Head = Scales;
    using Unit = Q4_K::Unit;

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        Head head;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = (lane >> 2) + 8 * r;
            const u8 *scales = tile + row * 2 * GROUPS, *zeros = tile + 32 * GROUPS + row * GROUPS;
            if constexpr (GROUPS == 8) {
                const uint4 s = ldg_stream16(scales);
                const uint2 z = ldg_stream8(zeros);
                head.scale[r][0] = s.x, head.scale[r][1] = s.y, head.scale[r][2] = s.z, head.scale[r][3] = s.w;
                head.zero[r][0] = z.x, head.zero[r][1] = z.y;
            } else if constexpr (GROUPS == 4) {
                const uint2 s = ldg_stream8(scales);
                head.scale[r][0] = s.x, head.scale[r][1] = s.y;
                head.zero[r][0] = ldg_stream4(zeros);
            } else {
                head.scale[r][0] = ldg_stream4(scales);
                head.zero[r][0] = *(const u16*)zeros;
            }
        }
        return head;
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales = head;
        scales.d[0] = scales.d[1] = 1.0f;
        return scales;
    }
    // The group of a sub of 32 k.
    static __device__ __forceinline__ int group_of(int sub) { return sub * GROUPS / TILE_SUBS; }
    static __device__ __forceinline__ float sub_scale(const Scales& scales, int row, int i) {
        return scales.scale_at(row, group_of(GROUPS == 8 ? i : 2 * i));
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        load_words4(unit.word, tile + 48 * GROUPS + u * 512, lane);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) { Q4_K::expand(unit, sub, a); }
};

// Minus the zero, in two's complement: with the top bit set meanwhile no byte borrows from the next.
template <int GROUPS>
__device__ __forceinline__ void scale_codes(const Int4Scales<GROUPS>& scales, int sub, u32 (&a)[4]) {
    u32 zero[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) zero[r] = (scales.zero_at(r, sub * GROUPS / TILE_SUBS) & 0x1fu) * 0x01010101u;
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = ((a[i] | 0x80808080u) - zero[i & 1]) ^ 0x80808080u;
}

// The same with groups of 128 and all zeros 8, as most files of AutoRound have it: codes less 8 are numbers of four bits in
// two's complement, put at the top of a byte as those of Q4_0. Products stay integers for 128 k.
//
// Tile, 2176 B: s [16 rows][2] f32, units of nibbles as Q4_K.
struct INT4S_128 : WideHeads {
    static constexpr int NUMBER = FORMAT_INT4S_128, BYTES = 2176, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::TILE;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::HIGH;
    static constexpr int MAX_PLANE_BITS = 4;
    struct Scales {
        float first[2], d[2];
    };
    using Unit = Q4_K::Unit;

    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            scales.first[r] = 1.0f / 16 * __uint_as_float(head.row[r].x);
            scales.d[r] = 1.0f / 16 * __uint_as_float(head.row[r].y);
        }
        return scales;
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        load_words4(unit.word, tile + 128 + u * 512, lane);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) { Q4_0::expand(unit, sub, a); }
};
template <> constexpr bool TWO_SCALES<INT4S_128> = true;

using INT4_32 = Int4<FORMAT_INT4_32, 8>;
using INT4_64 = Int4<FORMAT_INT4_64, 4>;
using INT4_128 = Int4<FORMAT_INT4_128, 2>;
