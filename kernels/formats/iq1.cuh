// IQ1_S, 50 B per 256 weights of a row: w = d * (1 + 2 scale) * (GRID[index] + delta), a 3-bit scale and a sign of
// delta = 1 / 8 per 32, an 11-bit index per eight weights. IQ1_M, 56 B: scales per 16, a sign of delta per eight; the bits
// of d are spread over the scales.
// Share of bandwidth: IQ1_S 25 %, IQ1_M 25 % of an H200's 4.4 TB/s at one row of
// 17,408 x 5,120 (`python -m tools.bench.types`).
//
// Codes are 8 (GRID + delta), so 8 GRID + 1 or - 1, in the top five bits of a byte. Units begin with the low bytes of
// indices as those of IQ2 (iq2.cuh).
//
// IQ1_S, 800 B: d [8][upper, lower] f16; unit: indices, then [8 g][2 subs][upper, lower] the file's 16 bits: four times
// three high bits, scale, sign. IQ1_M, 896 B: scales [16 rows][8 B] as in the file; unit: indices, then [32 lanes / 2] a
// word of nibbles by register: three high bits, sign.

#pragma once

#include "formats/grid_table.cuh"
#include "iq1_grid.cuh"

// What IQ1_S and IQ1_M share; the table is the same.
struct IQ1 {
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::HIGH;
    static constexpr int MAX_PLANE_BITS = 3, SLOTS = 4;
    using Table = GridTable<4096, 1>;  // the upper half for a delta of - 1 / 8

    static __device__ __forceinline__ Table& table() {
        __shared__ Table found;
        return found;
    }
    // 8 times the codes of an entry's digits: bytes 0..2 of the first word are those with +, of the second those with -.
    static __device__ __forceinline__ u32 codes(u32 digits) { return prmt(0x004808c8u, 0x0038f8b8u, digits); }
};

struct IQ1_S : IQ1 {
    static constexpr int NUMBER = FORMAT_IQ1_S, BYTES = 800;
    static constexpr Scaling SCALING = Scaling::INTEGER_32;
    struct Head {
        u32 d;
    };
    struct Scales {
        int sub[2][2];  // [row][sub of the unit]
        float d[2];
    };
    struct Unit {
        u32 index[2], high[2];  // high: of the whole quad, [sub], the upper row's in the low half
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        return {ldg_stream4(tile + (lane >> 2) * 4)};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales = {};
#pragma unroll
        for (int r = 0; r < 2; ++r) scales.d[r] = 1.0f / 64 * half_bits_float(u16(head.d >> (16 * r)));
        return scales;
    }
    static __device__ __forceinline__ int sub_scale(const Scales& scales, int row, int sub) {
        return scales.sub[row][sub & 1];
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        const u8* at = tile + 32 + u * 192;
        const uint2 index = ldg_stream8(at + (lane >> 1) * 8), high = ldg_stream8(at + 128 + (lane >> 2) * 8);
        unit.index[0] = index.x, unit.index[1] = index.y;
        unit.high[0] = high.x, unit.high[1] = high.y;
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
        const int lane = lane_id();
        const u32 word = unit.high[sub], high = lane & 2 ? word >> 3 : word, signs = word & 0x80008000u;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = 16 * (i & 1) + 6 * (i >> 1);
            const u32 negative = byte_by_dot(signs, 1 + 2 * (i & 1), 16);  // bit 11
            const u32 four = ((at < 8 ? high << (8 - at) : high >> (at - 8)) & 0x700u) | negative;
            a[i] = codes(table().four(unit.index[sub], i, four, lane));
        }
    }
};
__device__ __forceinline__ void prepare(IQ1_S) { IQ1::table().fill(IQ1_GRID); }
__device__ __forceinline__ void take_scales(IQ1_S::Scales& scales, const IQ1_S::Unit& unit) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int r = 0; r < 2; ++r) scales.sub[r][s] = int(unit.high[s] >> (11 + 16 * r) & 14u) + 1;
    }
}

struct IQ1_M : IQ1, WideHeads {
    static constexpr int NUMBER = FORMAT_IQ1_M, BYTES = 896;
    static constexpr Scaling SCALING = Scaling::INTEGER_16;
    struct Scales {
        uint2 sub[2];  // per row four times 16 bits: four scales of a unit, and a nibble of d
        float d[2];
    };
    struct Unit {
        u32 index[2], high;  // high: of the pair
    };

    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const uint2 h = head.row[r];
            const u32 low = (h.x >> 12 & 0x000fu) | (h.x >> 24 & 0x00f0u);
            const u32 high = (h.y >> 4 & 0x0f00u) | (h.y >> 16 & 0xf000u);
            scales.sub[r] = h;
            scales.d[r] = 1.0f / 64 * half_bits_float(u16(low | high));
        }
        return scales;
    }
    static __device__ __forceinline__ int sub_scale(const Scales& scales, int row, int half_sub) {
        const u32 word = half_sub & 8 ? scales.sub[row].y : scales.sub[row].x;
        const int at = 16 * (half_sub >> 2 & 1) + 3 * (half_sub & 3) - 1;
        return int((at < 0 ? word << -at : word >> at) & 14u) + 1;
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        const u8* at = tile + 128 + u * 192;
        const uint2 index = ldg_stream8(at + (lane >> 1) * 8);
        unit.index[0] = index.x, unit.index[1] = index.y;
        unit.high = ldg_stream4(at + 128 + (lane >> 1) * 4);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = 16 * sub + 4 * i;
            const u32 four = (at < 8 ? unit.high << (8 - at) : unit.high >> (at - 8)) & 0xf00u;
            a[i] = codes(table().four(unit.index[sub], i, four, lane_id()));
        }
    }
};
__device__ __forceinline__ void prepare(IQ1_M) { IQ1::table().fill(IQ1_GRID); }
