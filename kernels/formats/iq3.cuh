// IQ3_S, 110 B per 256 weights of a row: w = d * (1 + 2 scale) * sign * GRID[index], a 4-bit scale per 32, a 9-bit index
// per four weights. IQ3_XXS, 98 B: w = d / 4 * (1 + 2 scale) * sign * GRID[index] with 8-bit indices and seven signs per
// eight weights, of which the number of negative ones is even.
//
// A grid entry is one register of a fragment. The grids are in shared memory, four bytes an entry, in COPIES that are divided
// among the lanes, so that fewer of them meet in a bank.
//
// IQ3_S, 1760 B: scales [16 rows][4 B] (byte i: sub i low, i + 4 high), d [8][upper, lower] f16; unit: [32 lanes][8] low
// bytes of the indices by register, [32 lanes] a word of signs (bit r of byte i: value i of register r), [32 lanes] a
// byte of the indices' high bits.
// IQ3_XXS, 1568 B: d as IQ3_S; unit: [32 lanes][8] indices, [32 lanes] a word of signs as IQ3_S. One of the eight signs that
// two lanes share is missing, value 3 of the odd lane in registers 0..3 and of the even lane in 4..7, and is the parity of
// the others; its four bits in lane t of a quad are the scale of sub t / 2, upper or lower row.

#pragma once

#include "formats/format.cuh"
#include "formats/two_subs.cuh"
#include "iq3_grid.cuh"

template <int COUNT_, int COPIES> struct WordTable {
    static constexpr int COUNT = COUNT_;
    u32 word[COUNT * COPIES];

    // GRID's entries spread to bytes, by all threads of the block.
    __device__ __forceinline__ void fill(const u16 (&grid)[COUNT], int step, int top) {
        for (int i = threadIdx.x; i < COUNT; i += blockDim.x) {
            u32 bytes = 0;
#pragma unroll
            for (int j = 0; j < 4; ++j) bytes |= u32(iq3_grid_value(grid[i], j, step, top)) << (8 * j);
#pragma unroll
            for (int copy = 0; copy < COPIES; ++copy) word[i * COPIES + copy] = bytes;
        }
    }
    // The entry of byte i of `low` and of `high`, a multiple of 256.
    __device__ __forceinline__ u32 four(u32 low, int i, u32 high, int lane) const {
        return look_up_shared4(word + lane % COPIES, low, u32(4 * COPIES) << (8 * i), high * (4 * COPIES));
    }
};

// Bytes of `word` negated where bit 7 of a byte of `signs` is set. None is zero, so there is no carry.
__device__ __forceinline__ u32 negate_bytes(u32 word, u32 signs) {
    const u32 mask = prmt(signs, 0, 0xba98u);
    return (word ^ mask) + (mask & 0x01010101u);
}

struct IQ3_S {
    static constexpr int NUMBER = FORMAT_IQ3_S, BYTES = 1760, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::INTEGER_32;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::FULL;
    static constexpr int MAX_PLANE_BITS = 4;
    struct Head {
        u32 row[2], d;
    };
    struct Scales {
        u32 sub[2][2];  // [row][sub / 4], a byte each
        float d[2];
    };
    struct Unit {
        u32 index[2], signs, high;  // high: of the whole quad
    };

    using Table = WordTable<512, 4>;
    static __device__ __forceinline__ Table& table() {
        __shared__ Table found;
        return found;
    }
    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        const u8* upper = tile + (lane >> 2) * 4;
        return {{ldg_stream4(upper), ldg_stream4(upper + 8 * 4)}, ldg_stream4(upper + 64)};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            scales.sub[r][0] = (head.row[r] << 1 & 0x1e1e1e1eu) | 0x01010101u;
            scales.sub[r][1] = (head.row[r] >> 3 & 0x1e1e1e1eu) | 0x01010101u;
            scales.d[r] = half_bits_float(u16(head.d >> (16 * r)));
        }
        return scales;
    }
    static __device__ __forceinline__ int sub_scale(const Scales& scales, int row, int sub) {
        return byte_of(scales.sub[row][sub >> 2], sub & 3);
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        const u8* at = tile + 96 + u * 416;
        const uint2 index = ldg_stream8(at + lane * 8);
        unit.index[0] = index.x, unit.index[1] = index.y;
        unit.signs = ldg_stream4(at + 256 + lane * 4);
        unit.high = ldg_stream4(at + 384 + (lane & ~3));
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
        const int lane = lane_id();
        const u32 high = unit.high >> (8 * (lane & 3));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = 4 * sub + i;
            a[i] = negate_bytes(table().four(unit.index[sub], i, high << (8 - r) & 256u, lane), unit.signs << (7 - r));
        }
    }
};
__device__ __forceinline__ void prepare(IQ3_S) { IQ3_S::table().fill(IQ3_S_GRID, 2, 15); }

struct IQ3_XXS : TwoSubs<2> {
    static constexpr int NUMBER = FORMAT_IQ3_XXS, BYTES = 1568;
    struct Unit {
        u32 index[2], signs[4];
    };

    using Table = WordTable<256, 8>;
    static __device__ __forceinline__ Table& table() {
        __shared__ Table found;
        return found;
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        const u8* at = tile + 32 + u * 384;
        const uint2 index = ldg_stream8(at + lane * 8);
        unit.index[0] = index.x, unit.index[1] = index.y;
        load_words4(unit.signs, at + 256, lane >> 2);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
        const int lane = lane_id();
        const u32 even = lane & 2 ? unit.signs[2] : unit.signs[0], odd = lane & 2 ? unit.signs[3] : unit.signs[1];
        const u32 own = lane & 1 ? odd : even, other = lane & 1 ? even : odd;
        const u32 missing = lane & 1 ? 0x0f000000u : 0xf0000000u;
        u32 parity = (own & ~missing) ^ (other & (missing | 0x00ffffffu));
        parity ^= parity >> 16;
        parity ^= parity >> 8;
        const u32 signs = (own & ~missing) | (parity << 24 & missing);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            a[i] = negate_bytes(table().four(unit.index[sub], i, 0, lane), signs << (7 - 4 * sub - i));
        }
    }
};
__device__ __forceinline__ void prepare(IQ3_XXS) { IQ3_XXS::table().fill(IQ3_XXS_GRID, 8, 62); }
__device__ __forceinline__ void take_scales(IQ3_XXS::Scales& scales, const IQ3_XXS::Unit& unit) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        scales.sub[0][s] = int(unit.signs[2 * s] >> 28) * 2 + 1;
        scales.sub[1][s] = int(unit.signs[2 * s + 1] >> 24 & 15) * 2 + 1;
    }
}
