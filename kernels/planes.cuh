// Codes of weights times one or two planes of int8 activations (acts.cuh), as exact integers.
//
// With a lower plane q = (value << PLANE_BITS) + lower. Up to four columns both planes are side by side in one mma, a
// row's values in an even column and its lower plane in the odd one next to it, and integers are joined afterwards. In
// wider passes they follow each other along k: the codes multiplied by the values are scaled by 1 << PLANE_BITS
// relative to those multiplied by the lower plane, so that 16 k of both planes are one mma over 32. Codes that fill
// their byte cannot be scaled, so their two products are computed separately and then joined. The joined sums are the
// same integers with both.
//
// Included by matmul.cuh, which needs COLUMNS.

#pragma once

#include "acts.cuh"
#include "formats/format.cuh"

constexpr bool SIDE_BY_SIDE = PLANE_BITS > 0 && COLUMNS <= 4;
constexpr bool STACKED = PLANE_BITS > 0 && !SIDE_BY_SIDE;

// Staged blocks of one k: those of all columns, then the part of their second ones that is read.
constexpr int ACTS_Q8_SECONDS = ceil_div(COLUMNS, 8) * ACTS_Q8_BLOCK;

// Where in a staged block the lane's 16 B of the first unit are. Columns that do not exist read the last one that does.
// PAIRED: columns of the mma are pairs of planes.
template <bool PAIRED> __device__ __forceinline__ int fragment_at(int lane) {
    const int column = lane >> (PAIRED ? 3 : 2);
    return COLUMNS < 8 ? 64 * min(column, COLUMNS - 1) + 16 * (lane & 3) : 16 * lane;
}

// Whether the 16 B at `at` of a block whose units end at `end` are read: units hold 64 B of each row.
__device__ __forceinline__ bool is_read(int at, int end) {
    return COLUMNS >= 8 || at >= end || (at & 511) < 64 * COLUMNS;
}

// What a lane reads of a unit.
struct Fragments {
    u32 value[2][2], lower[2][2];  // [sub][half]

    // `first`: the lane's 16 B of the unit, in the first block.
    __device__ __forceinline__ explicit Fragments(const u8* first) {
        const uint4 a = *(const uint4*)first;
        if (PLANE_BITS) {
            const uint4 b = *(const uint4*)(first + ACTS_Q8_SECONDS);
            set(0, a);
            set(1, b);
        } else {
            value[0][0] = a.x, value[0][1] = a.y, value[1][0] = a.z, value[1][1] = a.w;
        }
    }

private:
    __device__ __forceinline__ void set(int sub, const uint4& words) {
        const bool odd = SIDE_BY_SIDE && threadIdx.x & 4;  // the lane's column is one of the lower plane
        value[sub][0] = odd ? words.y : words.x, value[sub][1] = odd ? words.w : words.z;
        lower[sub][0] = words.y, lower[sub][1] = words.w;
    }
};

// The codes of one unit as multiplied by the planes: unchanged where the planes are side by side.
template <class F> struct PlaneCodes {
    u32 value[2][4], lower[2][4];

    __device__ __forceinline__ explicit PlaneCodes(const u32 (&a)[2][4]) {
        static_assert(PLANE_BITS <= F::MAX_PLANE_BITS, "the weights' codes or their sums have no space for that");
        constexpr u32 LOW_BITS = 0x01010101u * (0xffu >> PLANE_BITS);
#pragma unroll
        for (int s = 0; s < 2; ++s) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                value[s][i] = lower[s][i] = a[s][i];
                if constexpr (STACKED && F::CODES == Codes::LOW) {
                    // Of two rows in the nibbles of a byte the odd one is already in position for the values.
                    if (PLANE_BITS == 4 && i & 1) {
                        value[s][i] = opaque(a[s][i] << PLANE_BITS);
                        lower[s][i] = value[s][i] >> PLANE_BITS;
                    } else {
                        lower[s][i] = opaque(a[s][i]);
                        value[s][i] = lower[s][i] << PLANE_BITS;
                    }
                } else if constexpr (STACKED && F::CODES == Codes::HIGH) {
                    // Bytes shifted right, with their signs.
                    lower[s][i] = (a[s][i] >> PLANE_BITS & LOW_BITS) | (prmt(a[s][i], 0, 0xba98u) & ~LOW_BITS);
                }
            }
        }
    }
};

// The sum over q, from the sums over values and over the lower plane. High codes: both are in units of the lower
// plane's codes, 1 << PLANE_BITS of theirs.
template <class F> __device__ __forceinline__ int join(int value, int lower) {
    return F::CODES == Codes::HIGH ? value + (lower >> PLANE_BITS) : (value << PLANE_BITS) + lower;
}

// The product, or one that is added to p.
template <bool ADDED> __device__ __forceinline__ void multiply_s8(int (&p)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (ADDED) mma_s8_16832(p, a, b);
    else mma_s8_16832_zero(p, a, b);
}
template <bool ADDED> __device__ __forceinline__ void multiply_u8(int (&p)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (ADDED) mma_u8_16832(p, a, b);
    else mma_u8_16832_zero(p, a, b);
}

// 32 k of a sub: codes, as needed for values and lower plane, times fragments of both. ADDED: to what is in p.
template <class F, bool ADDED = false>
__device__ __forceinline__ void product_32(int (&p)[4], const PlaneCodes<F>& codes, const Fragments& acts, int s) {
    const u32(&a)[4] = codes.value[s], (&a_lower)[4] = codes.lower[s];
    const u32(&b)[2] = acts.value[s], (&b_lower)[2] = acts.lower[s];
    if constexpr (!STACKED) {
        multiply_s8<ADDED>(p, a, b);
    } else if constexpr (F::CODES == Codes::LOW) {
        multiply_u8<ADDED>(p, {a[0], a[1], a_lower[0], a_lower[1]}, {b[0], b_lower[0]});
        mma_u8_16832(p, {a[2], a[3], a_lower[2], a_lower[3]}, {b[1], b_lower[1]});
    } else if constexpr (F::CODES == Codes::HIGH) {
        multiply_s8<ADDED>(p, {a[0], a[1], a_lower[0], a_lower[1]}, {b[0], b_lower[0]});
        mma_s8_16832(p, {a[2], a[3], a_lower[2], a_lower[3]}, {b[1], b_lower[1]});
    } else {
        int value[4], lower[4];
        mma_s8_16832_zero(value, a, b);
        mma_s8_16832_zero(lower, a, b_lower);
#pragma unroll
        for (int i = 0; i < 4; ++i) p[i] = join<F>(value[i], lower[i]) + (ADDED ? p[i] : 0);
    }
}

// 16 k, half h of the sub.
template <class F>
__device__ __forceinline__ void product_16(int (&p)[4], const PlaneCodes<F>& codes, const Fragments& acts, int s, int h) {
    static_assert(!STACKED || F::CODES != Codes::LOW, "no format with a scale per 16 has such codes");
    const u32 *a = codes.value[s] + 2 * h, *a_lower = codes.lower[s] + 2 * h;
    if constexpr (STACKED && F::CODES == Codes::HIGH) {
        mma_s8_16832_zero(p, {a[0], a[1], a_lower[0], a_lower[1]}, {acts.value[s][h], acts.lower[s][h]});
    } else {
        mma_s8_16816_zero(p, {a[0], a[1]}, {acts.value[s][h]});
        if constexpr (STACKED) {
            int lower[4];
            mma_s8_16816_zero(lower, {a[0], a[1]}, {acts.lower[s][h]});
#pragma unroll
            for (int i = 0; i < 4; ++i) p[i] = join<F>(p[i], lower[i]);
        }
    }
}
