// What all kernels share: names of types, half-precision helpers, reductions over a warp and a block.
//
// NVRTC has no standard headers, so the types are spelled here. <ptx.cuh> is found through the include path: the
// emulator of the tests puts its own first.

#pragma once

#include <cuda_fp16.h>
#include <ptx.cuh>

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;

constexpr u32 FULL_WARP = 0xffffffffu;
constexpr int WARP = 32;

#define INFINITE __int_as_float(0x7f800000)

// Dynamic shared memory as bytes, 128-byte aligned. Once per kernel, at its top.
#ifdef DFLASH_EMULATED
#define SHARED_DYNAMIC(name) u8* const name = emulator::dynamic_shared()
#else
#define SHARED_DYNAMIC(name) extern __shared__ __align__(128) u8 name[]
#endif

__device__ __forceinline__ int lane_id() { return int(threadIdx.x) % WARP; }
__device__ __forceinline__ int warp_id() { return int(threadIdx.x) / WARP; }
template <class T> __host__ __device__ constexpr T ceil_div(T a, T b) { return (a + b - 1) / b; }

// ---- Halves and bit patterns --------------------------------------------------------------------------------------

__device__ __forceinline__ half bits_half(u16 bits) { return __ushort_as_half(bits); }
__device__ __forceinline__ u16 half_bits(half v) { return __half_as_ushort(v); }
__device__ __forceinline__ float half_bits_float(u16 bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ float bf16_bits_float(u16 bits) { return __uint_as_float(u32(bits) << 16); }

// Two values as the two f16 of one register, the first in the low bits: an operand of mma_f16.
__device__ __forceinline__ u32 pack_half2(float low, float high) {
    return u32(half_bits(__float2half_rn(low))) | u32(half_bits(__float2half_rn(high))) << 16;
}
__device__ __forceinline__ float2 unpack_half2(u32 pair) {
    return make_float2(half_bits_float(u16(pair)), half_bits_float(u16(pair >> 16)));
}
__device__ __forceinline__ half2 as_half2(u32 pair) {
    return __halves2half2(bits_half(u16(pair)), bits_half(u16(pair >> 16)));
}
// The same register under another type.
__device__ __forceinline__ half2 half2_of(u32 pair) { return *reinterpret_cast<const half2*>(&pair); }
__device__ __forceinline__ u32 bits_of(half2 v) { return *reinterpret_cast<const u32*>(&v); }
__device__ __forceinline__ u32 half2_bits(half2 v) {
    return u32(half_bits(__low2half(v))) | u32(half_bits(__high2half(v))) << 16;
}

// ---- Reductions: the same order whatever else runs, so results do not depend on the batch ----------------------------

// Every lane gets the result.
template <class T> __device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2) v += __shfl_xor_sync(FULL_WARP, v, offset);
    return v;
}
// Several sums whose shuffles overlap.
template <int COUNT> __device__ __forceinline__ void warp_sums(float (&v)[COUNT]) {
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2)
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[i] += __shfl_xor_sync(FULL_WARP, v[i], offset);
}
template <class T> __device__ __forceinline__ T warp_max(T v) {
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2) v = max(v, __shfl_xor_sync(FULL_WARP, v, offset));
    return v;
}
template <class T> __device__ __forceinline__ T warp_min(T v) {
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2) v = min(v, __shfl_xor_sync(FULL_WARP, v, offset));
    return v;
}

// Every thread gets the result. `scratch`: shared memory for BLOCK / 32 values that is not in use; it is free
// again afterwards. All threads of the block call it.
template <int BLOCK, class T> __device__ __forceinline__ T block_sum(T v, T* scratch) {
    v = warp_sum(v);
    if (lane_id() == 0) scratch[warp_id()] = v;
    __syncthreads();
    T total = scratch[0];
#pragma unroll
    for (int warp = 1; warp < BLOCK / WARP; ++warp) total += scratch[warp];
    __syncthreads();
    return total;
}
template <int BLOCK, class T> __device__ __forceinline__ T block_max(T v, T* scratch) {
    v = warp_max(v);
    if (lane_id() == 0) scratch[warp_id()] = v;
    __syncthreads();
    T most = scratch[0];
#pragma unroll
    for (int warp = 1; warp < BLOCK / WARP; ++warp) most = max(most, scratch[warp]);
    __syncthreads();
    return most;
}
