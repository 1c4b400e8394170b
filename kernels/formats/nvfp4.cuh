// NVFP4, 36 B per 64 weights of a row: w = s * v with an unsigned 8-bit float s (4 bits of exponent, 3 of mantissa) per
// 16, v one of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with a sign, times one float per matrix.
// Share of bandwidth: 73 % of an H200's 4.4 TB/s at one row of 17,408 x 5,120 (`python -m tools.bench.types`).
//
// Weights become f16 numbers: a scale times v has few bits, so all but the last factor is exact, and the activations are
// f16 too. Of v as f16 only the high byte is not zero; prmt finds four of them by three bits each.
//
// Units: [32 lanes][4 words], word 2 * sub + half: three bits of values 0..3 of the upper row in nibbles 0..3, of the
// lower row in 4..7, k 16 * half + 4 t + i; the sign of the upper row's value i is bit 8 i + 7, of the lower row's
// 8 i + 3. Tile, 2320 B: s [16 rows][16], the matrix's factor as f32 and 12 B of nothing. The bits of s shifted to the
// mantissa of an f16 are s / 256, subnormal numbers too.

#pragma once

#include "formats/q4_k.cuh"

// The values of a row as halves times `scale`: registers of an A fragment.
__device__ __forceinline__ void fp4_halves(u32 bytes, half scale, u32& near, u32& far) {
    near = bits_of(__hmul2(half2_of(prmt(bytes, 0, 0x1404u)), __half2half2(scale)));
    far = bits_of(__hmul2(half2_of(prmt(bytes, 0, 0x3424u)), __half2half2(scale)));
}
__device__ __forceinline__ void fp4_expand(u32 word, const half (&scale)[2], u32 (&a)[4]) {
    constexpr u32 SMALL = 0x3e3c3800u, LARGE = 0x46444240u;
    const u32 index = word & 0x77777777u;
    fp4_halves(prmt(SMALL, LARGE, index) | (word & 0x80808080u), scale[0], a[0], a[2]);
    fp4_halves(prmt(SMALL, LARGE, upper_half_by_dot(index)) | (word << 4 & 0x80808080u), scale[1], a[1], a[3]);
}

struct NVFP4 {
    static constexpr int NUMBER = FORMAT_NVFP4, BYTES = 2320, SLOTS = 4, PARTS = 1;
    static constexpr Scaling SCALING = Scaling::ROW;
    static constexpr bool MINIMUM = false;
    struct Head {
        uint4 row[2];
        u32 factor;
    };
    struct Scales {
        u32 unit[2][4];  // [row][unit], a byte per 16 k
        float d[2];
    };
    using Unit = Q4_K::Unit;

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        const u8* upper = tile + (lane >> 2) * 16;
        return {{ldg_stream16(upper), ldg_stream16(upper + 8 * 16)}, ldg_stream4(tile + 256)};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const uint4 h = head.row[r];
            scales.unit[r][0] = h.x, scales.unit[r][1] = h.y, scales.unit[r][2] = h.z, scales.unit[r][3] = h.w;
            scales.d[r] = 256.0f * __uint_as_float(head.factor);
        }
        return scales;
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        load_words4(unit.word, tile + 272 + u * 512, lane);
    }
    static __device__ __forceinline__ void halves(
        const Unit& unit, const Scales& scales, int u, int chunk, int, u32 (&a)[4]) {
        half scale[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) scale[r] = bits_half(u16(byte_by_dot(scales.unit[r][u], chunk, 128)));
        fp4_expand(unit.word[chunk], scale, a);
    }
};
