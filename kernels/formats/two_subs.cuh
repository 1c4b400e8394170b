// What the formats of the smallest tables of grids share: IQ2_XXS and IQ3_XXS.

#pragma once

#include "formats/format.cuh"

// A tile whose rows have a scale, in `EIGHTHS` eighths of the file's, and whose units have the whole numbers that it is
// multiplied by for their two subs.
template <int EIGHTHS>
struct TwoSubs {
    static constexpr int SLOTS = 4;
    static constexpr Scaling SCALING = Scaling::INTEGER_32;
    static constexpr bool MINIMUM = false;
    static constexpr Codes CODES = Codes::FULL;
    static constexpr int MAX_PLANE_BITS = 4;
    struct Head {
        u32 d;
    };
    struct Scales {
        int sub[2][2];  // [row][sub of the unit]
        float d[2];
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        return {ldg_stream4(tile + (lane >> 2) * 4)};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        Scales scales = {};
#pragma unroll
        for (int r = 0; r < 2; ++r) scales.d[r] = EIGHTHS / 8.0f * half_bits_float(u16(head.d >> (16 * r)));
        return scales;
    }
    static __device__ __forceinline__ int sub_scale(const Scales& scales, int row, int sub) {
        return scales.sub[row][sub & 1];
    }
};
