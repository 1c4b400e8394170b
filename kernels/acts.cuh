// Activations as the matmuls read them: quantised or halved, in the order of the mma's B fragments.
//
// One block holds 8 rows (the 8 columns of an mma) x 256 k. Its address depends on nothing but (row, group), so a
// producer need not know how many rows ride along:
//     acts_offset = (group * 8 + row / 8) * BLOCK        group = k / 256, row < 64
// K is padded with zeros to whole groups: the producer calls with zeros for k >= K.
//
// int8 block, 2208 B                                   f16 block, 4384 B
//     0  values [unit 4][lane 32][16 B]                    0  values [sub 8][lane 32][8 halves]
//  2048  scales [row 8] f32: x = scale * q              4096  scales [row 8] f32, powers of two: x = scale * h
//  2080  sums   [row 8][sub 8] f16: of 32 q each        4128  sums [row 8][sub 8] f16, of 32 h each: upper part
//                                                       4256  sums, lower part: upper + lower is exact to 22 bits
// Lane 4 * row + t of a unit (64 k = 2 subs of 32) owns 16 B, word j = k  32 * (j / 2) + 16 * (j & 1) + 4 t .. + 3 of it;
// of a sub (32 k) 8 halves, half i = k  16 * (i / 4) + 4 t + (i & 3). Both are what one lane feeds to its mmas.
// int8 rounds to max|x| / 127. f16 brings max|x| into [512, 1024) so that no sum of 32 overflows. A group with an
// infinity or a NaN gets that as its scale: it shows in the result. Twin: backends/cuda/acts.py.

#pragma once

#include "common.cuh"

constexpr int ACTS_ROWS = 64;    // rows a buffer holds
constexpr int ACTS_GROUP = 256;  // k per scale
constexpr int ACTS_Q8_BLOCK = 2208, ACTS_Q8_SCALES = 2048, ACTS_Q8_SUMS = 2080;
constexpr int ACTS_F16_BLOCK = 4384, ACTS_F16_SCALES = 4096, ACTS_F16_SUMS = 4128, ACTS_F16_SUMS_LOW = 4256;

// Where a producer writes; a null pointer is a form that no consumer asks for.
struct Acts {
    u8* q8;
    u8* f16;
};

__device__ __forceinline__ size_t acts_block(int row, int group) { return (size_t)group * (ACTS_ROWS / 8) + (row >> 3); }

// The largest magnitude in the warp, infinities and NaNs included: as integers they are the largest of all.
__device__ __forceinline__ u32 acts_largest(const float x[8]) {
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const u32 bits = __float_as_uint(x[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        const u32 other = __shfl_xor_sync(0xffffffffu, largest, step);
        largest = other > largest ? other : largest;
    }
    return largest;
}

// Quantise and store 256 values of a row. The whole warp calls; lane l holds k = 8 l .. 8 l + 7 of the group in x.
__device__ __forceinline__ void acts_store_q8(u8* acts, int row, int group, const float x[8]) {
    const int lane = threadIdx.x & 31;
    const u32 bits = acts_largest(x);
    const float largest = __uint_as_float(bits), scale = largest / 127.0f;
    const float inverse = largest > 1e-35f ? 127.0f / largest : 0.0f;
    int sum = 0;
    u32 word[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int q = __float2int_rn(x[i] * inverse);
        sum += q;
        word[i >> 2] |= (u32)(q & 255) << (8 * (i & 3));
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);

    u8* block = acts + acts_block(row, group) * ACTS_Q8_BLOCK;
    const int r = row & 7, sub = lane >> 2;
    // k within the sub is 8 (lane & 3): word 0 goes to t = 2 (lane & 1), word 1 to the next t.
    u8* to = block + (sub >> 1) * 512 + (r * 4 + 2 * (lane & 1)) * 16 + ((sub & 1) * 2 + ((lane >> 1) & 1)) * 4;
    *(u32*)to = word[0];
    *(u32*)(to + 16) = word[1];
    if ((lane & 3) == 0) ((half*)(block + ACTS_Q8_SUMS))[r * 8 + sub] = __float2half_rn((float)sum);
    if (lane == 0) ((float*)(block + ACTS_Q8_SCALES))[r] = scale;
}

// The same in half precision.
__device__ __forceinline__ void acts_store_f16(u8* acts, int row, int group, const float x[8]) {
    const int lane = threadIdx.x & 31;
    const u32 bits = acts_largest(x), exponent = bits >> 23;
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

    u8* block = acts + acts_block(row, group) * ACTS_F16_BLOCK;
    const int r = row & 7, sub = lane >> 2;
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

__device__ __forceinline__ void acts_store(Acts acts, int row, int group, const float x[8]) {
    if (acts.q8) acts_store_q8(acts.q8, row, group, x);
    if (acts.f16) acts_store_f16(acts.f16, row, group, x);
}
