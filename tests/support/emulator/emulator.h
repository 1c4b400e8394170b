// CUDA's language and intrinsics for g++, so that a kernel runs on the CPU thread by thread.
//
// Compiled in front of every emulated kernel. Each CUDA thread is a fiber; the fibers of a block take turns on one
// CPU thread and change only at barriers and warp collectives, blocks run one after another. So atomics are plain
// operations and shared memory is static memory of the kernel's library, poisoned before each block.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// C's own header: C++'s is three quarters of what every kernel would load, and only adds overloads in std.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS

#include "fibers.h"

// ---------------------------------------------------------------------------------------------------------------
// The language

#define DFLASH_EMULATED 1
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __constant__ static
#ifdef __OPTIMIZE__
#define __forceinline__ inline __attribute__((always_inline))
#else  // a call is less code to compile
#define __forceinline__ inline
#endif
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct alignas(8) int2 { int x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) double2 { double x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(4) uchar4 { unsigned char x, y, z, w; };
struct alignas(4) char4 { signed char x, y, z, w; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline double2 make_double2(double x, double y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline char4 make_char4(signed char x, signed char y, signed char z, signed char w) { return {x, y, z, w}; }

constexpr int warpSize = 32;

// ---------------------------------------------------------------------------------------------------------------
// The runtime (runtime.cpp)

extern uint3 blockIdx;
extern dim3 blockDim, gridDim;

namespace emulator {

void barrier(int line);                        // of the whole block
void barrier(int line, int id, int threads);  // of `threads` threads; id 0: of the whole block
int barrier_count(int predicate, int line);
unsigned char* dynamic_shared();
unsigned long long global_timer();

template <class F> struct Signature;
template <class... A> struct Signature<void (*)(A...)> {
    static constexpr int count = sizeof...(A);
    static inline const int sizes[count + 1] = {int(sizeof(A))..., 0};
    template <void (*kernel)(A...), std::size_t... i> static void unpack(void** values, std::index_sequence<i...>) {
        kernel(*static_cast<std::remove_cv_t<A>*>(values[i])...);
    }
    template <void (*kernel)(A...)> static void call(void** values) {
        unpack<kernel>(values, std::make_index_sequence<sizeof...(A)>());
    }
};

// What the launcher needs of a kernel; `shared` is all of the library's zeroed memory, which holds nothing else.
struct Entry {
    void (*call)(void** values);
    int count;
    const int* sizes;
    unsigned char *shared_begin, *shared_end;
};

}  // namespace emulator

extern "C" __attribute__((visibility("hidden"))) unsigned char __bss_start, _end;  // of this library

#define EMULATED_ENTRY(kernel)                                                                                        \
    extern "C" __attribute__((externally_visible)) emulator::Entry emulated_##kernel() {                              \
        using S = emulator::Signature<decltype(&kernel)>;                                                             \
        return {&S::call<&kernel>, S::count, S::sizes, &__bss_start, &_end};                                          \
    }

// ---------------------------------------------------------------------------------------------------------------
// Barriers and warp collectives. All lanes named in a mask must arrive at the same line.

inline void __syncthreads(int line = __builtin_LINE()) { emulator::barrier(line); }

namespace emulator {
struct Vote { int predicate; unsigned result; };
void ballot(void* const* lanes, unsigned mask);
void any(void* const* lanes, unsigned mask);
void all(void* const* lanes, unsigned mask);

enum class Move { index, up, down, flip };
template <class T> struct Shuffle { T value; int source, width; T result; };
template <class T, Move move> void shuffle(void* const* lanes, unsigned mask) {
    for (unsigned m = mask; m; m &= m - 1) {
        const int lane = __builtin_ctz(m);
        auto& mine = *static_cast<Shuffle<T>*>(lanes[lane]);
        const int first = lane & ~(mine.width - 1);
        int from = lane;
        if (move == Move::index) from = first + (mine.source & (mine.width - 1));
        if (move == Move::up) from = lane - mine.source;
        if (move == Move::down) from = lane + mine.source;
        if (move == Move::flip) from = lane ^ mine.source;
        if (from < first && move != Move::flip) from = lane;
        if (from >= first + mine.width) from = lane;
        if (!(mask >> from & 1)) fail("a shuffle reads from a lane outside its mask", 0);
        mine.result = static_cast<Shuffle<T>*>(lanes[from])->value;
    }
}
template <class T, Move move> T shuffled(unsigned mask, T value, int source, int width, const char* name, int line) {
    Shuffle<T> argument{value, source, width, value};
    collective(mask, &argument, &shuffle<T, move>, name, line);
    return argument.result;
}
template <class T> struct Fold { T value, result; };
template <class T, class F> void fold(void* const* lanes, unsigned mask) {
    T total = static_cast<Fold<T>*>(lanes[__builtin_ctz(mask)])->value;
    for (unsigned m = mask & (mask - 1); m; m &= m - 1) {
        total = F()(total, static_cast<Fold<T>*>(lanes[__builtin_ctz(m)])->value);
    }
    for (unsigned m = mask; m; m &= m - 1) static_cast<Fold<T>*>(lanes[__builtin_ctz(m)])->result = total;
}
template <class T, class F> T folded(unsigned mask, T value, const char* name, int line) {
    Fold<T> argument{value, value};
    collective(mask, &argument, &fold<T, F>, name, line);
    return argument.result;
}
inline void nothing(void* const*, unsigned) {}
struct Add { template <class T> T operator()(T a, T b) const { return T(a + b); } };
struct Least { template <class T> T operator()(T a, T b) const { return b < a ? b : a; } };
struct Most { template <class T> T operator()(T a, T b) const { return a < b ? b : a; } };
struct Either { template <class T> T operator()(T a, T b) const { return a | b; } };
struct Both { template <class T> T operator()(T a, T b) const { return a & b; } };
}  // namespace emulator

inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    emulator::collective(mask, nullptr, &emulator::nothing, "__syncwarp", line);
}
template <class T> T __shfl_sync(unsigned m, T v, int lane, int width = 32, int line = __builtin_LINE()) {
    return emulator::shuffled<T, emulator::Move::index>(m, v, lane, width, "__shfl_sync", line);
}
template <class T> T __shfl_up_sync(unsigned m, T v, int by, int width = 32, int line = __builtin_LINE()) {
    return emulator::shuffled<T, emulator::Move::up>(m, v, by, width, "__shfl_up_sync", line);
}
template <class T> T __shfl_down_sync(unsigned m, T v, int by, int width = 32, int line = __builtin_LINE()) {
    return emulator::shuffled<T, emulator::Move::down>(m, v, by, width, "__shfl_down_sync", line);
}
template <class T> T __shfl_xor_sync(unsigned m, T v, int by, int width = 32, int line = __builtin_LINE()) {
    return emulator::shuffled<T, emulator::Move::flip>(m, v, by, width, "__shfl_xor_sync", line);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    emulator::Vote argument{predicate, 0};
    emulator::collective(mask, &argument, &emulator::ballot, "__ballot_sync", line);
    return argument.result;
}
inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    emulator::Vote argument{predicate, 0};
    emulator::collective(mask, &argument, &emulator::any, "__any_sync", line);
    return int(argument.result);
}
inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    emulator::Vote argument{predicate, 0};
    emulator::collective(mask, &argument, &emulator::all, "__all_sync", line);
    return int(argument.result);
}
// The integer reductions of sm_80 and later.
template <class T> T __reduce_add_sync(unsigned m, T v, int line = __builtin_LINE()) {
    return emulator::folded<T, emulator::Add>(m, v, "__reduce_add_sync", line);
}
template <class T> T __reduce_min_sync(unsigned m, T v, int line = __builtin_LINE()) {
    return emulator::folded<T, emulator::Least>(m, v, "__reduce_min_sync", line);
}
template <class T> T __reduce_max_sync(unsigned m, T v, int line = __builtin_LINE()) {
    return emulator::folded<T, emulator::Most>(m, v, "__reduce_max_sync", line);
}
template <class T> T __reduce_or_sync(unsigned m, T v, int line = __builtin_LINE()) {
    return emulator::folded<T, emulator::Either>(m, v, "__reduce_or_sync", line);
}
template <class T> T __reduce_and_sync(unsigned m, T v, int line = __builtin_LINE()) {
    return emulator::folded<T, emulator::Both>(m, v, "__reduce_and_sync", line);
}
// __syncthreads with a vote over the whole block.
inline int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
    return emulator::barrier_count(predicate, line);
}
inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
    return emulator::barrier_count(predicate, line) != 0;
}
inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
    return emulator::barrier_count(predicate, line) == int(blockDim.x * blockDim.y * blockDim.z);
}

// ---------------------------------------------------------------------------------------------------------------
// Atomics, fences

template <class T, class U> T atomicAdd(T* p, U v) { T old = *p; *p = T(old + T(v)); return old; }
template <class T, class U> T atomicSub(T* p, U v) { T old = *p; *p = T(old - T(v)); return old; }
template <class T, class U> T atomicMax(T* p, U v) { T old = *p; if (old < T(v)) *p = T(v); return old; }
template <class T, class U> T atomicMin(T* p, U v) { T old = *p; if (T(v) < old) *p = T(v); return old; }
template <class T, class U> T atomicOr(T* p, U v) { T old = *p; *p = T(old | T(v)); return old; }
template <class T, class U> T atomicAnd(T* p, U v) { T old = *p; *p = T(old & T(v)); return old; }
template <class T, class U> T atomicExch(T* p, U v) { T old = *p; *p = T(v); return old; }
template <class T, class U, class V> T atomicCAS(T* p, U compare, V v) {
    T old = *p;
    if (old == T(compare)) *p = T(v);
    return old;
}
inline long long clock64() { return (long long)emulator::global_timer(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
[[noreturn]] inline void __trap(int line = __builtin_LINE()) { emulator::fail("__trap", line); }

// ---------------------------------------------------------------------------------------------------------------
// Arithmetic

template <class T> T __ldg(const T* p) { return *p; }
inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return b < a ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return b < a ? b : a; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a < b ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64; }
inline unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; ++i) r |= (v >> i & 1u) << (31 - i);
    return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
inline int __mulhi(int a, int b) { return int((int64_t(a) * b) >> 32); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    const uint64_t bytes = uint64_t(b) << 32 | a;
    // Written out: kernels that unpack weights spend much of their time here.
    const unsigned r = unsigned(bytes >> (s << 3 & 56) & 0xff) | unsigned(bytes >> (s >> 1 & 56) & 0xff) << 8 |
                       unsigned(bytes >> (s >> 5 & 56) & 0xff) << 16 | unsigned(bytes >> (s >> 9 & 56)) << 24;
    if (!(s & 0x8888)) return r;
    const unsigned replicated = (s >> 3 & 1) * 0xff | (s >> 7 & 1) * 0xff00 | (s >> 11 & 1) * 0xff0000 |
                                (s >> 15 & 1) * 0xff000000;  // the sign, eight times
    return (r & ~replicated) | ((r >> 7 & 0x01010101) * 0xff & replicated);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return unsigned(((uint64_t(high) << 32 | low) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned((uint64_t(high) << 32 | low) >> (by & 31));
}
template <class To, class From> To emulated_bits(From v) {
    static_assert(sizeof(To) == sizeof(From));
    To r;
    memcpy(&r, &v, sizeof r);
    return r;
}
inline unsigned __float_as_uint(float v) { return emulated_bits<unsigned>(v); }
inline int __float_as_int(float v) { return emulated_bits<int>(v); }
inline float __uint_as_float(unsigned v) { return emulated_bits<float>(v); }
inline float __int_as_float(int v) { return emulated_bits<float>(v); }
inline long long __double_as_longlong(double v) { return emulated_bits<long long>(v); }
inline double __longlong_as_double(long long v) { return emulated_bits<double>(v); }

inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline double rsqrt(double v) { return 1.0 / sqrt(v); }
inline float __expf(float v) { return expf(v); }
inline float __logf(float v) { return logf(v); }
inline float __log2f(float v) { return log2f(v); }
inline float __sinf(float v) { return sinf(v); }
inline float __cosf(float v) { return cosf(v); }
inline void sincospif(float v, float* sine, float* cosine) {
    *sine = float(sin(M_PI * double(v)));
    *cosine = float(cos(M_PI * double(v)));
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float __fsqrt_rn(float v) { return sqrtf(v); }
inline float __frsqrt_rn(float v) { return 1.0f / sqrtf(v); }
inline float __saturatef(float v) { return v < 0 ? 0 : v > 1 ? 1 : v; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline int __float2int_rn(float v) { return int(nearbyintf(v)); }
inline int __float2int_rz(float v) { return int(v); }
inline int __float2int_rd(float v) { return int(floorf(v)); }
inline int __float2int_ru(float v) { return int(ceilf(v)); }
inline unsigned __float2uint_rn(float v) { return unsigned(nearbyintf(v)); }
inline float __int2float_rn(int v) { return float(v); }
inline float __double2float_rd(double v) {
    const float near = float(v);
    return double(near) > v ? nextafterf(near, -INFINITY) : near;
}
inline float __uint2float_rn(unsigned v) { return float(v); }
inline unsigned long long __double2ull_rn(double v) { return (unsigned long long)(nearbyint(v)); }
inline unsigned long long __double2ull_rz(double v) { return (unsigned long long)(v); }
inline double __ull2double_rn(unsigned long long v) { return double(v); }
inline double __uint2double_rn(unsigned v) { return double(v); }
