// The part of cuda_fp16.h that kernels use, on the compiler's own half type. Every operation rounds once.

#pragma once

using half = _Float16;
using __half = half;
struct alignas(4) half2 { half x, y; };
using __half2 = half2;

inline float __half2float(half v) { return float(v); }
inline half __float2half(float v) { return half(v); }
inline half __float2half_rn(float v) { return half(v); }
inline half __double2half(double v) { return half(v); }
inline half __int2half_rn(int v) { return half(v); }
inline half __ushort_as_half(unsigned short v) { return emulated_bits<half>(v); }
inline unsigned short __half_as_ushort(half v) { return emulated_bits<unsigned short>(v); }

inline half __hadd(half a, half b) { return half(float(a) + float(b)); }
inline half __hsub(half a, half b) { return half(float(a) - float(b)); }
inline half __hmul(half a, half b) { return half(float(a) * float(b)); }
inline half __hfma(half a, half b, half c) { return half(double(a) * double(b) + double(c)); }
inline half __hmax(half a, half b) { return half(fmaxf(float(a), float(b))); }
inline half __hmin(half a, half b) { return half(fminf(float(a), float(b))); }
inline half __hneg(half a) { return half(-float(a)); }
inline half __habs(half a) { return half(fabsf(float(a))); }

inline half2 make_half2(half x, half y) { return {x, y}; }
inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline half2 __half2half2(half v) { return {v, v}; }
inline half2 __float2half2_rn(float v) { return {half(v), half(v)}; }
inline half2 __floats2half2_rn(float x, float y) { return {half(x), half(y)}; }
inline half2 __float22half2_rn(float2 v) { return {half(v.x), half(v.y)}; }
inline float2 __half22float2(half2 v) { return {float(v.x), float(v.y)}; }
inline half __low2half(half2 v) { return v.x; }
inline half __high2half(half2 v) { return v.y; }
inline float __low2float(half2 v) { return float(v.x); }
inline float __high2float(half2 v) { return float(v.y); }
inline half2 __hadd2(half2 a, half2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
inline half2 __hsub2(half2 a, half2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
inline half2 __hmul2(half2 a, half2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
inline half2 __hfma2(half2 a, half2 b, half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
inline half2 __hmax2(half2 a, half2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
inline half2 __habs2(half2 a) { return {__habs(a.x), __habs(a.y)}; }
