// F8_E4M3, 132 B per 128 weights of a row: w = s * v, s a float, v a number of 8 bits: a sign, 4 bits of exponent (bias
// 7), 3 of mantissa.
// Share of bandwidth: 87 % of an H200's at one row of 17,408 x 5,120 (`python -m tools.bench.types`).
//
// A code's bits shifted to those of an f16 are v / 256, subnormal numbers too, so v is exact.
//
// Tile, 4224 B: [16 rows][ratio, d] f32: d is the scale of the second 128 k of a row, ratio times d that of the first.
// Unit: [2 subs][32 lanes][4 words], word 2 * half + row half: k 32 sub + 16 half + 4 t + i.

#pragma once

#include "formats/format.cuh"

// Four codes as halves: registers of an A fragment.
__device__ __forceinline__ void e4m3_halves(u32 word, u32& near, u32& far) {
    const u32 first = prmt(word, 0, 0x1404u), second = prmt(word, 0, 0x3424u);
    near = (first & 0x80008000u) | (first >> 1 & 0x3f803f80u);
    far = (second & 0x80008000u) | (second >> 1 & 0x3f803f80u);
}

struct F8_E4M3 : WideHeads {
    static constexpr int NUMBER = FORMAT_F8_E4M3, BYTES = 4224, SLOTS = 4, PARTS = 1;
    static constexpr Scaling SCALING = Scaling::ROW;
    static constexpr bool MINIMUM = false;
    struct Scales {
        float ratio[2], d[2];
    };
    struct Unit {
        u32 word[2][4];
    };

    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            scales.ratio[r] = __uint_as_float(head.row[r].x);
            scales.d[r] = 256.0f * __uint_as_float(head.row[r].y);
        }
        return scales;
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        load_words4(unit.word[0], tile + 128 + u * 1024, lane);
        load_words4(unit.word[1], tile + 128 + u * 1024 + 512, lane);
    }
    static __device__ __forceinline__ void halves(const Unit& unit, const Scales&, int, int chunk, int, u32 (&a)[4]) {
        const u32(&words)[4] = unit.word[chunk >> 1];
        e4m3_halves(words[2 * (chunk & 1)], a[0], a[2]);
        e4m3_halves(words[2 * (chunk & 1) + 1], a[1], a[3]);
    }
};
template <> constexpr bool TWO_SCALES<F8_E4M3> = true;
