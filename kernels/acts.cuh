// Activations as the matmuls read them: quantised to int8 or converted to f16, in the order of the mma's B fragments.
//
// One block holds 8 rows (the 8 columns of an mma) x 256 k. Its address depends only on (row, group), so a
// producer need not know how many rows the pass has:
//     f16    (group * 8 + row / 8) * BLOCK             group = k / 256, row < 64
//     int8   (group * 16 + row / 8) * BLOCK, and a second one 8 blocks later, which most launches do not read
// K is padded with zeros to whole groups: the producer calls with zeros for k >= K.
//
// int8 block, 2208 B                                   f16 block, 4384 B
//     0  values [unit 4][lane 32][16 B]                    0  values [sub 8][lane 32][8 halves]
//  2048  scales [row 8] f32: x = scale * q              4096  scales [row 8] f32, powers of two: x = scale * h
//  2080  sums   [row 8][sub 8] f16: of 32 q each        4128  sums [row 8][sub 8] f16, of 32 h each: upper part
// second int8 block                                     4256  sums, lower part: upper + lower is exact to 22 bits
//     0  values again (PLANE_BITS)
//  2048  scales of k 128.. (SPANS 2)
//  2080  sums, lower part (PLANE_BITS)
// Lane 4 * row + t of a unit (64 k = 2 subs of 32) owns 16 B, word j = k  32 * (j / 2) + 16 * (j & 1) + 4 t .. + 3 of
// it; of a sub (32 k) 8 halves, half i = k  16 * (i / 4) + 4 t + (i & 3). Both are what one lane feeds to its mmas.
// With a lower plane the first block has sub 0 of every unit and the second sub 1; the 16 B of a lane are words 0 and 1
// of that sub, each followed by the same of the lower plane.
// f16 brings max|x| into [512, 1024) so that no sum of 32 overflows. A group with an infinity or a NaN gets that as its
// scale, so that it shows in the result. Twin: backends/cuda/acts.py.
//
// Defines of producers and consumers of the int8 form, both at most one per launch:
//     SPANS       scales of a group: 1, or 2 for one per 128 k. max|x| of a span becomes 127.
//     PLANE_BITS  bits of a lower plane, 0 for none: max|x| becomes 127 << PLANE_BITS, q = (value << PLANE_BITS) + lower,
//                 |value| <= 127, -2^(PLANE_BITS - 1) <= lower < 2^(PLANE_BITS - 1)

#pragma once

#include "common.cuh"

#ifndef SPANS
#define SPANS 1
#endif
#ifndef PLANE_BITS
#define PLANE_BITS 0
#endif
static_assert(SPANS == 1 || (SPANS == 2 && PLANE_BITS == 0), "finer scales or a lower plane");

constexpr int ACTS_ROWS = 64;    // rows a buffer holds
constexpr int ACTS_GROUP = 256;  // k of a block
constexpr int ACTS_Q8_BLOCK = 2208, ACTS_Q8_SCALES = 2048, ACTS_Q8_SUMS = 2080;
constexpr int ACTS_F16_BLOCK = 4384, ACTS_F16_SCALES = 4096, ACTS_F16_SUMS = 4128, ACTS_F16_SUMS_LOW = 4256;

// Where a producer writes; a pointer is null for a form that no consumer reads.
struct Acts {
    u8* q8;
    u8* f16;
};

__device__ __forceinline__ size_t acts_block(int row, int group) { return (size_t)group * (ACTS_ROWS / 8) + (row >> 3); }

// The largest magnitude among LANES lanes, infinities and NaNs included: as integers they are the largest of all.
template <int LANES> __device__ __forceinline__ u32 acts_largest(const float x[8]) {
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const u32 bits = __float_as_uint(x[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step >>= 1) {
        const u32 other = __shfl_xor_sync(0xffffffffu, largest, step);
        largest = other > largest ? other : largest;
    }
    return largest;
}

// Quantise 256 values into row r of a block, and of its second block. The whole warp calls; lane l has the eight from
// k = 8 l on in x.
__device__ __forceinline__ void acts_fill_q8(u8* block, u8* second, int r, const float x[8]) {
    constexpr int MOST = 127 << PLANE_BITS;
    const int lane = threadIdx.x & 31;
    const float largest = __uint_as_float(acts_largest<32 / SPANS>(x)), scale = largest / float(MOST);
    const float inverse = largest > 1e-35f ? float(MOST) / largest : 0.0f;
    int sum = 0;
    u32 word[2] = {0, 0}, lower[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int q = __float2int_rn(x[i] * inverse), value = (q + (1 << PLANE_BITS >> 1)) >> PLANE_BITS;
        sum += q;
        word[i >> 2] |= (u32)(value & 255) << (8 * (i & 3));
        lower[i >> 2] |= (u32)(q - (value << PLANE_BITS) & 255) << (8 * (i & 3));
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);

    const int sub = lane >> 2;
    // k within the sub is 8 (lane & 3): word 0 belongs to t = 2 (lane & 1), word 1 to the next t.
    const int at = (sub >> 1) * 512 + (r * 4 + 2 * (lane & 1)) * 16, h = (lane >> 1) & 1;
    if (PLANE_BITS) {
        u8* to = (sub & 1 ? second : block) + at + 8 * h;
        *(uint2*)to = make_uint2(word[0], lower[0]);
        *(uint2*)(to + 16) = make_uint2(word[1], lower[1]);
    } else {
        u8* to = block + at + ((sub & 1) * 2 + h) * 4;
        *(u32*)to = word[0];
        *(u32*)(to + 16) = word[1];
    }
    if ((lane & 3) == 0) {
        const half high = __float2half_rn((float)sum);
        ((half*)(block + ACTS_Q8_SUMS))[r * 8 + sub] = high;
        if (PLANE_BITS) ((half*)(second + ACTS_Q8_SUMS))[r * 8 + sub] = __float2half_rn(sum - __half2float(high));
    }
    if (lane == 0) ((float*)(block + ACTS_Q8_SCALES))[r] = scale;
    if (SPANS == 2 && lane == 16) ((float*)(second + ACTS_Q8_SCALES))[r] = scale;
}

// Quantise and store 256 values of a row.
__device__ __forceinline__ void acts_store_q8(u8* acts, int row, int group, const float x[8]) {
    u8* block = acts + (acts_block(row, group) + (size_t)group * (ACTS_ROWS / 8)) * ACTS_Q8_BLOCK;
    acts_fill_q8(block, block + (ACTS_ROWS / 8) * ACTS_Q8_BLOCK, row & 7, x);
}

// The same in half precision.
__device__ __forceinline__ void acts_fill_f16(u8* block, int r, const float x[8]) {
    const int lane = threadIdx.x & 31;
    const u32 bits = acts_largest<32>(x), exponent = bits >> 23;
    // max|x| = 2^(exponent - 127) * [1, 2) becomes [512, 1024); under 2^-117 it counts as zero.
    const bool finite = exponent < 255, live = exponent > 9;
    const float scale = !finite ? __uint_as_float(bits) : live ? __uint_as_float((exponent - 9) << 23) : 0.0f;
    const float inverse = finite && live ? __uint_as_float((263 - exponent) << 23) : 0.0f;
    float sum = 0.0f;
    u32 word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const half low = __float2half_rn(x[2 * i] * inverse), high = __float2half_rn(x[2 * i + 1] * inverse);
        sum += __half2float(low);
        sum += __half2float(high);
        word[i] = (u32)__half_as_ushort(low) | (u32)__half_as_ushort(high) << 16;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);

    const int sub = lane >> 2;
    u8* to = block + sub * 512 + (r * 4 + 2 * (lane & 1)) * 16 + ((lane >> 1) & 1) * 8;
    *(uint2*)to = make_uint2(word[0], word[1]);
    *(uint2*)(to + 16) = make_uint2(word[2], word[3]);
    if ((lane & 3) == 0) {
        const half high = __float2half_rn(sum);
        ((half*)(block + ACTS_F16_SUMS))[r * 8 + sub] = high;
        ((half*)(block + ACTS_F16_SUMS_LOW))[r * 8 + sub] = __float2half_rn(sum - __half2float(high));
    }
    if (lane == 0) ((float*)(block + ACTS_F16_SCALES))[r] = scale;
}

__device__ __forceinline__ void acts_store_f16(u8* acts, int row, int group, const float x[8]) {
    acts_fill_f16(acts + acts_block(row, group) * ACTS_F16_BLOCK, row & 7, x);
}

__device__ __forceinline__ void acts_store(Acts acts, int row, int group, const float x[8]) {
    if (acts.q8) acts_store_q8(acts.q8, row, group, x);
    if (acts.f16) acts_store_f16(acts.f16, row, group, x);
}
