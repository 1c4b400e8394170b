// TQ2_0, 66 B per 256 weights of a row, and Q2_0, 18 B per 64: w = d * (q - 1), q in 0..3, d a half. TQ1_0, 54 B per 256:
// the same with q in 0..2, five to a byte.
// Share of bandwidth: TQ1_0 39 %, TQ2_0 54 %, Q2_0 56 % of an H200's 4.49 TB/s at one row of
// 17,408 x 5,120 (`python -m tools.bench.types`).
//
// TQ2_0 and Q2_0 hold 1 - q in two's complement in the top two bits of a byte, so 64 times that, which d compensates with
// its sign: 2 is no number of two such bits, -2 is one. Unit: [32 lanes][2 words] as the high pairs of Q3_K. TQ2_0, 1056 B:
// d [8][upper, lower] f16. Q2_0, 1152 B: d [16 rows][4 units].
//
// TQ1_0, 864 B: d as TQ2_0. A lane's 32 codes of a unit are 30 in six bytes and two of two bits; a byte is ceil(n * 256 / 243)
// for the number n whose five base-3 digits are codes, the first one the highest: times 3, its carry is the next code. Unit:
// [32 lanes] a word, step j of which is register j; [32] two bytes, whose steps 0 and 1, 2 and 3 are registers 5 and 6 (byte,
// step: 0 0, 1 0, 0 1, 1 1); their step 4 and the nibble of [32 lanes][4 bits] are register 7.

#pragma once

#include "formats/format.cuh"

struct RowScales {
    float d[2];
};

struct TQ2_0 {
    static constexpr int NUMBER = FORMAT_TQ2_0, BYTES = 1056, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::TILE;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::HIGH;
    static constexpr int MAX_PLANE_BITS = 4;
    struct Head {
        u32 d;
    };
    using Scales = RowScales;
    struct Unit {
        u32 pairs[2];
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        return {ldg_stream4(tile + (lane >> 2) * 4)};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        return {{-1.0f / 64 * half_bits_float(u16(head.d)), -1.0f / 64 * half_bits_float(u16(head.d >> 16))}};
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        const uint2 pairs = ldg_stream8(tile + 32 + u * 256 + lane * 8);
        unit.pairs[0] = pairs.x, unit.pairs[1] = pairs.y;
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = unit.pairs[sub] << (2 * i) & 0xc0c0c0c0u;
    }
};

struct Q2_0 : WideHeads {
    static constexpr int NUMBER = FORMAT_Q2_0, BYTES = 1152, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::FLOAT_64;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::HIGH;
    static constexpr int MAX_PLANE_BITS = 4;
    struct Scales {
        u32 unit[2][2];  // [row][unit / 2], a half each
        float d[2];
    };
    using Unit = TQ2_0::Unit;

    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            scales.unit[r][0] = head.row[r].x, scales.unit[r][1] = head.row[r].y;
            scales.d[r] = -1.0f / 64;
        }
        return scales;
    }
    static __device__ __forceinline__ float sub_scale(const Scales& scales, int row, int u) {
        return half_bits_float(u16(scales.unit[row][u >> 1] >> (16 * (u & 1))));
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        TQ2_0::load_unit(unit, tile + 96, u, lane);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
        TQ2_0::expand(unit, sub, a);
    }
};

struct TQ1_0 {
    static constexpr int NUMBER = FORMAT_TQ1_0, BYTES = 864, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::TILE;
    static constexpr bool MINIMUM = true;
    static constexpr Codes CODES = Codes::LOW;
    static constexpr int MAX_PLANE_BITS = 4;
    using Head = TQ2_0::Head;
    struct Scales {
        float d[2], minimum_scale[2];
        u32 minimum[2];
    };
    struct Unit {
        u32 five, three, two;  // three: of the pair of lanes; two: of eight lanes
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) { return TQ2_0::load_head(tile, lane); }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            scales.d[r] = half_bits_float(u16(head.d >> (16 * r)));
            scales.minimum_scale[r] = -scales.d[r];
            scales.minimum[r] = 0x3c003c00u;  // 1 of every sub
        }
        return scales;
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        const u8* at = tile + 32 + u * 208;
        unit.five = ldg_stream4(at + lane * 4);
        unit.three = ldg_stream4(at + 128 + (lane >> 1) * 4);
        unit.two = ldg_stream4(at + 192 + (lane >> 3) * 4);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
        // Two bytes n in a word each: n * 3^5 fits 16 bits, so nothing is masked. The high bytes of n * 3^j are the number
        // of the first j digits, and three times those of j - 1 leave the last digit: bytes that never borrow.
        u32 found[8], before = 0;
        u32 first = prmt(unit.five, 0, 0x4140u), second = prmt(unit.five, 0, 0x4342u);
#pragma unroll
        for (int j = 0; j < 5; ++j) {
            first *= 3, second *= 3;
            const u32 digits = prmt(first, second, 0x7531u);
            found[j] = digits - 3 * before;
            before = digits;
        }
        const int lane = lane_id();
        const u32 bytes = prmt(unit.three, 0, lane & 1 ? 0x4342u : 0x4140u);
        const u32 two = prmt(bytes * 3, bytes * 9, 0x7531u), four = prmt(bytes * 27, bytes * 81, 0x7531u);
        found[5] = two * (1 - (3 << 16));
        found[6] = four * (1 - (3 << 16)) - 3 * upper_half_by_dot(two);
        const u32 pairs = (unit.two >> (4 * (lane & 7)) & 15u) * 0x400100u & 0x03000300u;
        found[7] = prmt(bytes * 243, pairs, 0x7531u) - 3 * upper_half_by_dot(four);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = found[4 * sub + i];
    }
};
