// The emulator's twin of kernels/ptx.cuh: the same names, with the meaning that the PTX ISA gives them.
//
// A matrix instruction gathers the fragments of all lanes into plain matrices, multiplies, and hands the result back.
// With g = lane / 4 and t = lane % 4, for A (16 x K, row-major registers), B (K x 8) and C, D (16 x 8):
//   C, D: registers 0, 1 hold row g, columns 2t and 2t+1; registers 2, 3 the same of row g + 8.
//   A of 4-byte registers that hold p values each: register r holds row g + 8 * (r & 1), k = 4p * (r >> 1) + p*t ...
//   B: register r holds column g, k = 4p * r + p*t ...
// p is 4 for int8, 2 for f16 and bf16, 1 for tf32: one layout for all of them.

#pragma once

#include <cuda_fp16.h>

namespace emulator {

template <class T, int K> struct Fragments {
    static constexpr int P = 4 / int(sizeof(T)), RA = K / (2 * P), RB = K / (4 * P);
};

// T: of A; B is of the same type, but for unsigned bytes, which meet signed ones.
template <class D, class T, int K, bool zero> struct Mma {
    using Shape = Fragments<T, K>;
    using OfB = std::conditional_t<std::is_same_v<T, unsigned char>, signed char, T>;
    D* d;
    const unsigned *a, *b;

    template <class U> static auto value(U v) {
        if constexpr (std::is_integral_v<U>) return int(v);
        else return float(v);
    }

    template <int count, class U, class V> [[gnu::always_inline]] static void widen(const U* from, V* to) {
#if defined(__F16C__)
        if constexpr (std::is_same_v<U, half>) {  // which compilers convert one by one
            using Eight [[gnu::vector_size(16)]] = short;
            for (int i = 0; i < count; i += 8) {
                Eight bits;
                memcpy(&bits, from + i, sizeof bits);
                const auto values = __builtin_ia32_vcvtph2ps256(bits);
                memcpy(to + i, &values, sizeof values);
            }
            return;
        }
#endif
        for (int i = 0; i < count; ++i) to[i] = value(from[i]);
    }

    // Products are exact in Sum, so that it does not matter whether they are rounded before they are added.
    [[gnu::optimize("O3", "fp-contract=fast")]] static void combine(void* const* lanes, unsigned mask) {
        if (mask != 0xffffffffu) fail("a matrix instruction needs all 32 lanes", 0);
        // Products of bytes and their sums are whole numbers that a float holds.
        using Sum = std::conditional_t<std::is_same_v<D, int>, float, double>;
        // A row of the result in as many parts as it fills registers. Four rows at once: their sums do not wait for
        // each other.
        constexpr int P = Shape::P, PARTS = 8 * sizeof(Sum) / 32, N = 8 / PARTS, ROWS = 4;
        using Part [[gnu::vector_size(32)]] = Sum;
        using Results [[gnu::vector_size(N * sizeof(D))]] = D;
        T A[16 * K];
        OfB B[K * 8];
        D C[16 * 8];
#pragma GCC unroll 4
        for (int lane = 0; lane < 32; ++lane) {
            const auto& mine = *static_cast<Mma*>(lanes[lane]);
            const int g = lane / 4, t = lane % 4;
            OfB of_b[P];
#pragma GCC unroll 4
            for (int r = 0; r < Shape::RA; ++r) {
                memcpy(&A[(g + 8 * (r & 1)) * K + 4 * P * (r >> 1) + P * t], &mine.a[r], 4);
            }
#pragma GCC unroll 2
            for (int r = 0; r < Shape::RB; ++r) {
                memcpy(of_b, &mine.b[r], 4);
#pragma GCC unroll 4
                for (int i = 0; i < P; ++i) B[(4 * P * r + P * t + i) * 8 + g] = of_b[i];
            }
            if constexpr (!zero) {
                memcpy(&C[8 * g + 2 * t], mine.d, 2 * sizeof(D));
                memcpy(&C[8 * g + 2 * t + 64], mine.d + 2, 2 * sizeof(D));
            }
        }
        using Value = std::conditional_t<std::is_same_v<D, int>, int, float>;
        Value narrow_a[16 * K], narrow_b[K * 8];  // in two steps: compilers know how to take many values at once
        widen<16 * K>(A, narrow_a);
        widen<K * 8>(B, narrow_b);
        Sum left[16 * K], right[K * 8];
        for (int i = 0; i < 16 * K; ++i) left[i] = Sum(narrow_a[i]);
        for (int i = 0; i < K * 8; ++i) right[i] = Sum(narrow_b[i]);
        for (int first = 0; first < 16; first += ROWS) {
            Part sums[ROWS][PARTS] = {};
#pragma GCC unroll 32
            for (int k = 0; k < K; ++k) {
#pragma GCC unroll 2
                for (int part = 0; part < PARTS; ++part) {
                    Part values;
                    memcpy(&values, &right[8 * k + N * part], sizeof values);
#pragma GCC unroll 4
                    for (int i = 0; i < ROWS; ++i) sums[i][part] += left[(first + i) * K + k] * values;
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < ROWS * PARTS; ++i) {
                D* const at = &C[8 * first + N * i];
                const Part sum = sums[i / PARTS][i % PARTS];
                Results out;
                if constexpr (zero) {
                    out = __builtin_convertvector(sum, Results);
                } else {
                    memcpy(&out, at, sizeof out);
                    if constexpr (std::is_same_v<D, int>) out += __builtin_convertvector(sum, Results);
                    else out = __builtin_convertvector(__builtin_convertvector(out, Part) + sum, Results);
                }
                memcpy(at, &out, sizeof out);
            }
        }
        for (int lane = 0; lane < 32; ++lane) {
            D* const out = static_cast<Mma*>(lanes[lane])->d;
            memcpy(out, &C[2 * lane], 2 * sizeof(D));
            memcpy(out + 2, &C[2 * lane + 64], 2 * sizeof(D));
        }
    }
};

struct bf16 {
    unsigned short bits;
    explicit operator float() const { return __uint_as_float(unsigned(bits) << 16); }
};
struct tf32 {
    unsigned bits;  // the hardware reads the upper 19
    explicit operator float() const { return __uint_as_float(bits & 0xffffe000u); }
};

template <class D, class T, int K, bool zero>
__forceinline__ void mma(D* d, const unsigned* a, const unsigned* b, int line) {
    Mma<D, T, K, zero> argument{d, a, b};
    collective(0xffffffffu, &argument, &Mma<D, T, K, zero>::combine, "mma", line);
}

template <int count, bool transposed> struct LoadMatrix {
    unsigned* r;
    const void* row;
    static void combine(void* const* lanes, unsigned) {
        for (int lane = 0; lane < 32; ++lane) {
            for (int m = 0; m < count; ++m) {
                unsigned short halves[2];
                for (int i = 0; i < 2; ++i) {
                    const int row = transposed ? 2 * (lane % 4) + i : lane / 4;
                    const int column = transposed ? lane / 4 : 2 * (lane % 4) + i;
                    const auto* source = static_cast<const LoadMatrix*>(lanes[m * 8 + row])->row;
                    halves[i] = static_cast<const unsigned short*>(source)[column];
                }
                memcpy(&static_cast<LoadMatrix*>(lanes[lane])->r[m], halves, 4);
            }
        }
    }
};
template <int count, bool transposed> __forceinline__ void load_matrix(unsigned* r, const void* row, int line) {
    LoadMatrix<count, transposed> argument{r, row};
    collective(0xffffffffu, &argument, &LoadMatrix<count, transposed>::combine, "ldmatrix", line);
}

}  // namespace emulator

// What combines the lanes is compiled once, in the runtime, and not with every kernel that calls it.
#ifdef EMULATOR_RUNTIME
#define EMULATED_SHARED template struct emulator::
#else
#define EMULATED_SHARED extern template struct emulator::
#endif

#define EMULATED_MMA(name, D, T, K, RA, RB)                                                                           \
    EMULATED_SHARED Mma<D, T, K, false>;                                                                              \
    EMULATED_SHARED Mma<D, T, K, true>;                                                                               \
    __forceinline__ void name(D (&d)[4], const unsigned (&a)[RA], const unsigned (&b)[RB], int line = __builtin_LINE()) {      \
        emulator::mma<D, T, K, false>(d, a, b, line);                                                                 \
    }                                                                                                                 \
    __forceinline__ void name##_zero(D (&d)[4], const unsigned (&a)[RA], const unsigned (&b)[RB],                              \
                            int line = __builtin_LINE()) {                                                            \
        emulator::mma<D, T, K, true>(d, a, b, line);                                                                  \
    }
EMULATED_MMA(mma_s8_16832, int, signed char, 32, 4, 2)
EMULATED_MMA(mma_u8_16832, int, unsigned char, 32, 4, 2)
EMULATED_MMA(mma_s8_16816, int, signed char, 16, 2, 1)
EMULATED_MMA(mma_f16_16816, float, half, 16, 4, 2)
EMULATED_MMA(mma_f16_1688, float, half, 8, 2, 1)
EMULATED_MMA(mma_bf16_16816, float, emulator::bf16, 16, 4, 2)
EMULATED_MMA(mma_tf32_1688, float, emulator::tf32, 8, 4, 2)
#undef EMULATED_MMA
EMULATED_SHARED LoadMatrix<4, false>;
EMULATED_SHARED LoadMatrix<2, false>;
EMULATED_SHARED LoadMatrix<4, true>;
EMULATED_SHARED LoadMatrix<2, true>;
#undef EMULATED_SHARED

inline void ldmatrix_x4(unsigned (&r)[4], const void* row, int line = __builtin_LINE()) {
    emulator::load_matrix<4, false>(r, row, line);
}
inline void ldmatrix_x2(unsigned (&r)[2], const void* row, int line = __builtin_LINE()) {
    emulator::load_matrix<2, false>(r, row, line);
}
inline void ldmatrix_x4_trans(unsigned (&r)[4], const void* row, int line = __builtin_LINE()) {
    emulator::load_matrix<4, true>(r, row, line);
}
inline void ldmatrix_x2_trans(unsigned (&r)[2], const void* row, int line = __builtin_LINE()) {
    emulator::load_matrix<2, true>(r, row, line);
}

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
inline unsigned prmt(unsigned a, unsigned b, unsigned selector) { return __byte_perm(a, b, selector); }
inline unsigned opaque(unsigned x) { return x; }
template <unsigned table> unsigned lop3(unsigned a, unsigned b, unsigned c) {
    unsigned r = 0;
    for (int i = 0; i < 8; ++i) {
        if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return r;
}

inline uint4 ldg_stream16(const void* p) { return *static_cast<const uint4*>(p); }
inline uint2 ldg_stream8(const void* p) { return *static_cast<const uint2*>(p); }
inline unsigned ldg_stream4(const void* p) { return *static_cast<const unsigned*>(p); }

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
