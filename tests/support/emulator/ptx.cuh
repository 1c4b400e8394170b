// The emulator's twin of kernels/ptx.cuh: the same names, with the meaning that the PTX ISA gives them.

#pragma once

#include <cuda_fp16.h>

// Instructions of a whole warp; what takes those of all lanes is in the runtime (matrices.h). A lane passes its fragments
// as they are: together they are in one place, and kernels may hold them in registers elsewhere. No templates: with each
// kernel the compiler would make all those again that functions of a header use.
namespace emulator {
struct MmaArgument {
    unsigned d[4], a[4], b[2];
};
struct LoadArgument {
    const void* row;
    unsigned r[4];
};
}  // namespace emulator

#define EMULATED_MMA(name, D, RA, RB, GIVEN)                                                                          \
    namespace emulator { void name(void* const* lanes, unsigned mask); }                                              \
    inline void name(D (&d)[4], const unsigned (&a)[RA], const unsigned (&b)[RB], int line = __builtin_LINE()) {       \
        emulator::MmaArgument argument;                                                                               \
        if (GIVEN) memcpy(argument.d, d, sizeof d);                                                                   \
        memcpy(argument.a, a, sizeof a);                                                                              \
        memcpy(argument.b, b, sizeof b);                                                                              \
        emulator::collective(0xffffffffu, &argument, &emulator::name, "mma", line);                                   \
        memcpy(d, argument.d, sizeof d);                                                                              \
    }
#define EMULATED_MMAS(name, D, RA, RB) EMULATED_MMA(name, D, RA, RB, true) EMULATED_MMA(name##_zero, D, RA, RB, false)
EMULATED_MMAS(mma_s8_16832, int, 4, 2)
EMULATED_MMAS(mma_u8_16832, int, 4, 2)
EMULATED_MMAS(mma_s8_16816, int, 2, 1)
EMULATED_MMAS(mma_f16_16816, float, 4, 2)
EMULATED_MMAS(mma_f16_1688, float, 2, 1)
EMULATED_MMAS(mma_bf16_16816, float, 4, 2)
EMULATED_MMAS(mma_tf32_1688, float, 4, 2)
#undef EMULATED_MMAS
#undef EMULATED_MMA

#define EMULATED_LDMATRIX(name, COUNT)                                                                                \
    namespace emulator { void name(void* const* lanes, unsigned mask); }                                              \
    inline void name(unsigned (&r)[COUNT], const void* row, int line = __builtin_LINE()) {                            \
        emulator::LoadArgument argument{row};                                                                         \
        emulator::collective(0xffffffffu, &argument, &emulator::name, "ldmatrix", line);                              \
        memcpy(r, argument.r, sizeof r);                                                                              \
    }
EMULATED_LDMATRIX(ldmatrix_x4, 4)
EMULATED_LDMATRIX(ldmatrix_x2, 2)
EMULATED_LDMATRIX(ldmatrix_x4_trans, 4)
EMULATED_LDMATRIX(ldmatrix_x2_trans, 2)
#undef EMULATED_LDMATRIX

inline unsigned tf32_bits(float v) {  // round to nearest, ties away from zero
    return (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
}
inline float exp2_or_zero(float x) {
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}
inline int dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += int((signed char)(a >> i)) * int((signed char)(b >> i));
    return c;
}
inline unsigned upper_half_by_dot(unsigned word) { return word >> 16; }
template <bool UPPER> int dp2a(unsigned a, unsigned b, int c) {
    const unsigned bytes = UPPER ? b >> 16 : b;
    return c + short(a) * int(bytes & 255) + short(a >> 16) * int(bytes >> 8 & 255);
}
inline unsigned multiply_add(unsigned a, unsigned b, unsigned c) { return a * b + c; }
inline int byte_by_dot(unsigned word, int i, unsigned factor = 1) { return int((word >> (8 * i) & 255) * factor); }
inline unsigned prmt(unsigned a, unsigned b, unsigned selector) { return __byte_perm(a, b, selector); }
inline unsigned opaque(unsigned x) { return x; }
template <unsigned table> unsigned lop3(unsigned a, unsigned b, unsigned c) {
    unsigned r = 0;
    for (int i = 0; i < 8; ++i) {
        if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return r;
}

template <class T> T look_up_shared(const void* base, unsigned word, unsigned steps, unsigned further) {
    for (int i = 0; i < 32; i += 8) further += (word >> i & 255) * (steps >> i & 255);
    T v;
    memcpy(&v, static_cast<const unsigned char*>(base) + further, sizeof v);
    return v;
}
inline unsigned look_up_shared2(const void* base, unsigned word, unsigned steps, unsigned further) {
    return look_up_shared<unsigned short>(base, word, steps, further);
}
inline unsigned look_up_shared4(const void* base, unsigned word, unsigned steps, unsigned further) {
    return look_up_shared<unsigned>(base, word, steps, further);
}

inline uint4 ldg_stream16(const void* p) { return *static_cast<const uint4*>(p); }
inline uint2 ldg_stream8(const void* p) { return *static_cast<const uint2*>(p); }
inline unsigned ldg_stream4(const void* p) { return *static_cast<const unsigned*>(p); }
inline float load_l2(const float* p) { return *p; }

inline void bulk_prefetch(const void* p, int bytes) {  // memory that is not there is not asked for
    const auto* at = static_cast<const volatile unsigned char*>(p);
    (void)at[0], (void)at[bytes - 1];
}

inline void cp_async16(void* shared, const void* global) { memcpy(shared, global, 16); }
inline void cp_async16_or_zero(void* shared, const void* global, bool valid) {
    if (valid) memcpy(shared, global, 16);
    else memset(shared, 0, 16);
}
inline void cp_async_commit() {}
template <int pending> void cp_async_wait() {}

inline void issue_loads() {}
template <int id, int threads> void warps_barrier(int line = __builtin_LINE()) {
    static_assert(id > 0 && id < emulator::BARRIERS && threads % 32 == 0);
    emulator::barrier(line, id, threads);
}

inline void pdl_launch() {}
inline void pdl_wait() {}
inline unsigned long long global_timer() { return emulator::global_timer(); }
