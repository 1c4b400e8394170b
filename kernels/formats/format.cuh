// The interface of a weight format to the kernels that read it.
//
// Weights are stored in super-tiles of 16 rows x 256 k, BYTES each: a header of scales, then 4 units of 64 k, in the
// order of the A fragments of mma.m16n8k32. Lane 4 g + t holds rows g and g + 8 ("upper", "lower"); of a sub (32 k)
// its four registers are upper k 4t..+3, lower k 4t..+3, upper k 16+4t..+3, lower k 16+4t..+3, a signed byte each. In
// the f16 order (F16, F32) the same four k of both rows are the a0..a3 of one mma.m16n8k16: any order of k serves as
// long as activations (acts.cuh) have the same one.
//
// A format F has
//     NUMBER                    in enum Format
//     BYTES                     of a super-tile
//     SLOTS                     units in registers ahead of their use: 4, or fewer where a unit is large
//     SCALING                   see below
//     MINIMUM                   whether something is subtracted per sub: Scales::minimum, Scales::minimum_scale
//     CODES                     see below; the formats of halves have none
//     MAX_PLANE_BITS           bits of a lower plane of activations (acts.cuh) that fit with its codes and sums
//     Unit, load_unit(tile, u, lane), expand(unit, sub of the unit, a)
//     Head, load_head(tile, lane), decode(head, lane) -> Scales
//     sub_scale(scales, row, i) integer or float of sub, half sub or unit i, as SCALING says: row 0 is the upper one
//     Scales::d[row]            float, the factor of everything
//     Scales::minimum[row]      two halves, the minima of subs 2t and 2t+1: an A fragment of mma.m16n8k8
//     Scales::minimum_scale[row]  float, its factor, sign included
// and may have
//     prepare(F)                fills tables in shared memory; a barrier follows
//     take_scales(Scales, Unit) where a unit brings the scales of its own two subs
//     scale_codes(Scales, sub, a)  where scales are multiplied into the codes
//     minima(Scales, sub, a), for LOWERED  bytes to subtract per 16 k, times Scales::minimum_scale, in the order of codes;
//                               minima_of_unit(Scales::minimum[row][unit]) has the four of a unit
// One weight is d * sub_scale * code + minimum_scale * minimum. The formats of halves have, in place of expand and
// sub_scale, PARTS and halves(unit, scales, u, chunk, part, a): the A fragment of 16 k, without d; parts are added. Those
// with TWO_SCALES have Scales::ratio.
// Repacked by backends/cuda/repack.py.

#pragma once

#include "common.cuh"

// A super-tile's shape.
constexpr int TILE_ROWS = 16, TILE_K = 256, TILE_UNITS = 4, TILE_SUBS = 8;

// The numbers of ggml, which the tables of segments carry.
enum Format {
    FORMAT_F32 = 0,
    FORMAT_F16 = 1,
    FORMAT_Q4_0 = 2,
    FORMAT_Q4_1 = 3,
    FORMAT_Q5_0 = 6,
    FORMAT_Q5_1 = 7,
    FORMAT_Q8_0 = 8,
    FORMAT_Q2_K = 10,
    FORMAT_Q3_K = 11,
    FORMAT_Q4_K = 12,
    FORMAT_Q5_K = 13,
    FORMAT_Q6_K = 14,
    FORMAT_IQ2_XXS = 16,
    FORMAT_IQ2_XS = 17,
    FORMAT_IQ3_XXS = 18,
    FORMAT_IQ1_S = 19,
    FORMAT_IQ4_NL = 20,
    FORMAT_IQ3_S = 21,
    FORMAT_IQ2_S = 22,
    FORMAT_IQ4_XS = 23,
    FORMAT_IQ1_M = 29,
    FORMAT_TQ1_0 = 34,
    FORMAT_TQ2_0 = 35,
    FORMAT_MXFP4 = 39,
    FORMAT_NVFP4 = 40,
    FORMAT_Q1_0 = 41,
    FORMAT_Q2_0 = 42,
    // Of folders of safetensors, which ggml does not know.
    FORMAT_INT4_32 = 200,
    FORMAT_INT4_64 = 201,
    FORMAT_INT4_128 = 202,
    FORMAT_F8_E4M3 = 203,
    FORMAT_INT4S_128 = 204,
};

// How sums of products become numbers.
enum class Scaling {
    INTEGER_32,  // an integer per 32 k: sums stay integers until the tile's end
    INTEGER_16,  // an integer per 16 k
    FLOAT_32,    // a float per 32 k
    FLOAT_64,    // a float per 64 k
    TILE,        // nothing but one float per row; matrix instructions add up the whole tile
    ROW,         // the same of halves
};

// Where a code is in its byte, which decides how both planes of activations are multiplied by it (planes.cuh).
enum class Codes {
    LOW,   // unsigned, in the low bits
    HIGH,  // two's complement, in the high bits
    FULL,  // two's complement, all bits
};

template <class F> __device__ __forceinline__ void prepare(F) {}
template <class Scales, class Unit> __device__ __forceinline__ void take_scales(Scales&, const Unit&) {}
template <class Scales> __device__ __forceinline__ void scale_codes(const Scales&, int, u32 (&)[4]) {}

// Of formats whose tiles begin with eight bytes for each row.
struct WideHeads {
    struct Head {
        uint2 row[2];
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        const u8* upper = tile + (lane >> 2) * 8;
        return {{ldg_stream8(upper), ldg_stream8(upper + 8 * 8)}};
    }
};

// A lane's four words, `offset` bytes into a tile: 512 B over the warp.
__device__ __forceinline__ void load_words4(u32 (&to)[4], const u8* at, int lane) {
    const uint4 v = ldg_stream16(at + lane * 16);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

// Byte `i` of a word, as it is or sign extended.
__device__ __forceinline__ int byte_of(u32 word, int i) { return int(prmt(word, 0, 0x4440u + u32(i))); }
__device__ __forceinline__ int signed_byte_of(u32 word, int i) { return int(prmt(word, 0, 0x8880u + 0x1111u * u32(i))); }

__device__ __forceinline__ u32 rotate_right4(u32 word) { return word >> 4 | word << 28; }

// Bytes under 128 as a pair of halves: 0x64bb is 1024 + b.
__device__ __forceinline__ u32 bytes_to_halves(u32 word, u32 selector) {
    const half2 v = __hsub2(as_half2(prmt(word, 0x64646464u, selector)), as_half2(0x64006400u));
    return half2_bits(v);
}

// Whether a byte per 16 k is subtracted.
template <class F> constexpr bool LOWERED = false;
// Whether the first 128 k of a tile have another scale than d: Scales::first[row] of formats with scaling TILE, of halves
// Scales::ratio[row] times d.
template <class F> constexpr bool TWO_SCALES = false;
// The units and subs with the first scale.
constexpr int FIRST_UNITS = TILE_UNITS / 2, FIRST_SUBS = TILE_SUBS / 2;

// The factor of everything in a sub of a row.
template <class F> __device__ __forceinline__ float factor_at(const typename F::Scales& scales, int row, int sub) {
    if constexpr (TWO_SCALES<F>) {
        if constexpr (F::SCALING == Scaling::ROW) {
            return sub < FIRST_SUBS ? scales.d[row] * scales.ratio[row] : scales.d[row];
        } else {
            return sub < FIRST_SUBS ? scales.first[row] : scales.d[row];
        }
    } else {
        return scales.d[row];
    }
}

// The scale of half `h` of a sub.
template <class F>
__device__ __forceinline__ float scale_at(const typename F::Scales& scales, int row, int sub, int h) {
    if constexpr (F::SCALING == Scaling::TILE) return 1.0f;
    else if constexpr (F::SCALING == Scaling::FLOAT_64) return F::sub_scale(scales, row, sub >> 1);
    else return float(F::sub_scale(scales, row, F::SCALING == Scaling::INTEGER_16 ? 2 * sub + h : sub));
}

// Eight weights of two rows as numbers, for kernels that multiply in f16: of row r the four k from 16 h + 4 t of a sub
// on, where t is the lane's place in its quad. The whole warp calls.
template <class F>
__device__ __forceinline__ void weights_at(
    float (&v)[2][4], const u32 (&codes)[4], const typename F::Scales& scales, int sub, int h) {
    u32 minima[4];
    if constexpr (LOWERED<F>) F::minima(scales, sub, minima);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float minimum = 0.0f;
        if constexpr (F::MINIMUM) {
            // Lane t of the quad holds the pair of subs 2 t, 2 t + 1.
            const u32 pair = __shfl_sync(FULL_WARP, scales.minimum[r], (lane_id() & ~3) | sub >> 1);
            minimum = scales.minimum_scale[r] * half_bits_float(u16(pair >> (16 * (sub & 1))));
        } else if constexpr (LOWERED<F>) {
            minimum = scales.minimum_scale[r] * float(minima[2 * h + r] & 255u);
        }
        const float scale = factor_at<F>(scales, r, sub) * scale_at<F>(scales, r, sub, h);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            v[r][j] = __fmaf_rn(scale, float(signed_byte_of(codes[2 * h + r], j)), minimum);
        }
    }
}

// The same of a format of halves: chunk `chunk` of unit u.
template <class F>
__device__ __forceinline__ void halves_at(
    float (&v)[2][4], const typename F::Unit& unit, const typename F::Scales& scales, int u, int chunk) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[r][j] = 0.0f;
    }
#pragma unroll
    for (int part = 0; part < F::PARTS; ++part) {
        u32 a[4];
        F::halves(unit, scales, u, chunk, part, a);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 pair = unpack_half2(a[2 * i + r]);
                v[r][2 * i] += pair.x, v[r][2 * i + 1] += pair.y;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float factor = factor_at<F>(scales, r, 2 * u);
#pragma unroll
        for (int j = 0; j < 4; ++j) v[r][j] *= factor;
    }
}
