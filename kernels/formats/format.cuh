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
//     CODES                     see below; the f16 formats have none
//     MAX_PLANE_BITS           bits of a lower plane of activations (acts.cuh) that fit with its codes and sums
//     Unit, load_unit(tile, u, lane), expand(unit, sub of the unit, a)
//     Head, load_head(tile, lane), decode(head, lane) -> Scales
//     sub_scale(scales, row, i) integer or float of sub i (or of half sub i): row 0 is the upper one
//     Scales::d[row]            float, the factor of everything
//     Scales::minimum[row]      two halves, the minima of subs 2t and 2t+1: an A fragment of mma.m16n8k8
//     Scales::minimum_scale[row]  float, its factor, sign included
// and may have
//     prepare(F)                fills tables in shared memory; a barrier follows
//     take_scales(Scales, Unit) where a unit brings the scales of its own two subs
// One weight is d * sub_scale * code + minimum_scale * minimum. Repacked by backends/cuda/repack.py.

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
    FORMAT_Q3_K = 11,
    FORMAT_Q4_K = 12,
    FORMAT_Q5_K = 13,
    FORMAT_Q6_K = 14,
    FORMAT_IQ3_XXS = 18,
    FORMAT_IQ4_NL = 20,
    FORMAT_IQ3_S = 21,
    FORMAT_IQ4_XS = 23,
    FORMAT_MXFP4 = 39,
};

// How sums of products become numbers.
enum class Scaling {
    INTEGER_32,  // an integer per 32 k: sums stay integers until the tile's end
    INTEGER_16,  // an integer per 16 k
    FLOAT_32,    // a float per 32 k
    ROW,         // nothing but one float per row; the codes are halves
};

// Where a code is in its byte, which decides how both planes of activations are multiplied by it (planes.cuh).
enum class Codes {
    LOW,   // unsigned, in the low bits
    HIGH,  // two's complement, in the high bits
    FULL,  // two's complement, all bits
};

template <class F> __device__ __forceinline__ void prepare(F) {}
template <class Scales, class Unit> __device__ __forceinline__ void take_scales(Scales&, const Unit&) {}

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
