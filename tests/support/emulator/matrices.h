// What instructions of a whole warp do with the fragments of all lanes: compiled once, in the runtime.
//
// A matrix instruction gathers the fragments into plain matrices, multiplies, and hands the result back.
// With g = lane / 4 and t = lane % 4, for A (16 x K, row-major registers), B (K x 8) and C, D (16 x 8):
//   C, D: registers 0, 1 hold row g, columns 2t and 2t+1; registers 2, 3 the same of row g + 8.
//   A of 4-byte registers that hold p values each: register r holds row g + 8 * (r & 1), k = 4p * (r >> 1) + p*t ...
//   B: register r holds column g, k = 4p * r + p*t ...
// p is 4 for int8, 2 for f16 and bf16, 1 for tf32: one layout for all of them.

#pragma once

#include "ptx.cuh"

namespace emulator {

// T: of A; B is of the same type, but for unsigned bytes, which meet signed ones.
template <class D, class T, int K, bool zero> struct Mma {
    static constexpr int P = 4 / int(sizeof(T)), RA = K / (2 * P), RB = K / (4 * P);
    using OfB = std::conditional_t<std::is_same_v<T, unsigned char>, signed char, T>;

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
        constexpr int ROWS = 4;  // at once: their sums do not wait for each other
        using Row [[gnu::vector_size(8 * sizeof(Sum))]] = Sum;
        using Results [[gnu::vector_size(8 * sizeof(D))]] = D;
        T A[16 * K];
        OfB B[K * 8];
        D C[16 * 8];
#pragma GCC unroll 4
        for (int lane = 0; lane < 32; ++lane) {
            const auto& mine = *static_cast<const MmaArgument*>(lanes[lane]);
            const int g = lane / 4, t = lane % 4;
            OfB of_b[P];
#pragma GCC unroll 4
            for (int r = 0; r < RA; ++r) {
                memcpy(&A[(g + 8 * (r & 1)) * K + 4 * P * (r >> 1) + P * t], &mine.a[r], 4);
            }
#pragma GCC unroll 2
            for (int r = 0; r < RB; ++r) {
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
            Row sums[ROWS] = {};
#pragma GCC unroll 32
            for (int k = 0; k < K; ++k) {
                Row values;
                memcpy(&values, &right[8 * k], sizeof values);
#pragma GCC unroll 4
                for (int i = 0; i < ROWS; ++i) sums[i] += left[(first + i) * K + k] * values;
            }
#pragma GCC unroll 4
            for (int i = 0; i < ROWS; ++i) {
                D* const at = &C[8 * (first + i)];
                Results out;
                if constexpr (zero) {
                    out = __builtin_convertvector(sums[i], Results);
                } else {
                    memcpy(&out, at, sizeof out);
                    if constexpr (std::is_same_v<D, int>) out += __builtin_convertvector(sums[i], Results);
                    else out = __builtin_convertvector(__builtin_convertvector(out, Row) + sums[i], Results);
                }
                memcpy(at, &out, sizeof out);
            }
        }
        for (int lane = 0; lane < 32; ++lane) {
            unsigned* const out = static_cast<MmaArgument*>(lanes[lane])->d;
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

#define EMULATED_MMA(name, D, T, K)                                                                                   \
    void name(void* const* lanes, unsigned mask) { Mma<D, T, K, false>::combine(lanes, mask); }                       \
    void name##_zero(void* const* lanes, unsigned mask) { Mma<D, T, K, true>::combine(lanes, mask); }
EMULATED_MMA(mma_s8_16832, int, signed char, 32)
EMULATED_MMA(mma_u8_16832, int, unsigned char, 32)
EMULATED_MMA(mma_s8_16816, int, signed char, 16)
EMULATED_MMA(mma_f16_16816, float, half, 16)
EMULATED_MMA(mma_f16_1688, float, half, 8)
EMULATED_MMA(mma_bf16_16816, float, bf16, 16)
EMULATED_MMA(mma_tf32_1688, float, tf32, 8)
#undef EMULATED_MMA

template <int count, bool transposed> void load_matrix(void* const* lanes, unsigned) {
    for (int lane = 0; lane < 32; ++lane) {
        for (int m = 0; m < count; ++m) {
            unsigned short halves[2];
            for (int i = 0; i < 2; ++i) {
                const int row = transposed ? 2 * (lane % 4) + i : lane / 4;
                const int column = transposed ? lane / 4 : 2 * (lane % 4) + i;
                const auto* source = static_cast<const LoadArgument*>(lanes[m * 8 + row])->row;
                halves[i] = static_cast<const unsigned short*>(source)[column];
            }
            memcpy(&static_cast<LoadArgument*>(lanes[lane])->r[m], halves, 4);
        }
    }
}

void ldmatrix_x4(void* const* lanes, unsigned mask) { load_matrix<4, false>(lanes, mask); }
void ldmatrix_x2(void* const* lanes, unsigned mask) { load_matrix<2, false>(lanes, mask); }
void ldmatrix_x4_trans(void* const* lanes, unsigned mask) { load_matrix<4, true>(lanes, mask); }
void ldmatrix_x2_trans(void* const* lanes, unsigned mask) { load_matrix<2, true>(lanes, mask); }

}  // namespace emulator
