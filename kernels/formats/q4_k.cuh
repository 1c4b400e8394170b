// Q4_K, 144 B per 256 weights of a row: w = d * scale * q - dmin * minimum, q in 0..15, 6-bit scales and minima per 32.
//
// Tile, 2304 B: header [16 rows][16 B], as in the file (d, dmin, 12 bytes of 6-bit fields); unit [32 lanes][4 words],
// word 2 * sub + half: byte i holds k 16 * half + 4 t + i of the upper row (low nibble) and of the lower row (high).

#pragma once

#include "formats/format.cuh"

// The 16 header bytes that Q4_K and Q5_K share.
struct KHead {
    uint4 row[2];
};

struct KScales {
    u32 sub[2][2];  // [row][sub / 4], a byte each
    float d[2], minimum_scale[2];
    u32 minimum[2];
};

__device__ __forceinline__ KHead k_load_head(const u8* tile, int lane) {
    const u8* upper = tile + (lane >> 2) * 16;
    return {{ldg_stream16(upper), ldg_stream16(upper + 8 * 16)}};
}

__device__ __forceinline__ KScales k_decode(const KHead& head, int lane) {
    KScales scales;
    const int t = lane & 3;
    // Subs 0..3 are the low 6 bits of a byte each; of 4..7 the low 4 bits are nibbles of the last word, the high 2
    // the top bits of the others. The lane's two minima, subs 2t and 2t + 1, are neighbours.
    const u32 pair = t & 1 ? 0x4342u : 0x4140u;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const uint4 h = head.row[r];
        scales.d[r] = half_bits_float(u16(h.x));
        scales.minimum_scale[r] = -half_bits_float(u16(h.x >> 16));
        scales.sub[r][0] = h.y & 0x3f3f3f3fu;
        scales.sub[r][1] = (h.w & 0x0f0f0f0fu) | (h.y >> 2 & 0x30303030u);
        const u32 minima = t < 2 ? h.z & 0x3f3f3f3fu : (h.w >> 4 & 0x0f0f0f0fu) | (h.z >> 2 & 0x30303030u);
        scales.minimum[r] = bytes_to_halves(minima, pair);
    }
    return scales;
}

struct Q4_K {
    static constexpr int NUMBER = FORMAT_Q4_K, BYTES = 2304, SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::INTEGER_32;
    static constexpr bool MINIMUM = true;
    static constexpr Codes CODES = Codes::LOW;
    static constexpr int MAX_PLANE_BITS = 4;
    using Head = KHead;
    using Scales = KScales;
    struct Unit {
        u32 word[4];
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) { return k_load_head(tile, lane); }
    static __device__ __forceinline__ Scales decode(const Head& head, int lane) { return k_decode(head, lane); }
    static __device__ __forceinline__ int sub_scale(const Scales& scales, int row, int sub) {
        return byte_of(scales.sub[row][sub >> 2], sub & 3);
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
        load_words4(unit.word, tile + 256 + u * 512, lane);
    }
    static __device__ __forceinline__ void expand(const Unit& unit, int sub, u32 (&a)[4]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 word = unit.word[2 * sub + half];
            a[2 * half] = word & 0x0f0f0f0fu;
            a[2 * half + 1] = word >> 4 & 0x0f0f0f0fu;
        }
    }
};
