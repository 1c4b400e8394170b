// A warp's largest and least integers and their sum, by one instruction where the card has it, and scores as integers.

#pragma once

#include "common.cuh"

__device__ __forceinline__ u32 largest_of_warp(u32 v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(FULL_WARP, v);
#else
    return warp_max(v);
#endif
}
__device__ __forceinline__ u32 least_of_warp(u32 v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(FULL_WARP, v);
#else
    return warp_min(v);
#endif
}
__device__ __forceinline__ u32 sum_of_warp(u32 v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(FULL_WARP, v);
#else
    return warp_sum(v);
#endif
}
// A score as an integer of the same order; a NaN becomes the largest of all, so that it is chosen and shows in the result.
// No score becomes 0.
__device__ __forceinline__ u32 ordered(float score) {
    const u32 bits = __float_as_uint(score);
    return score != score ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
// The score of which this is the integer.
__device__ __forceinline__ float score_of(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
