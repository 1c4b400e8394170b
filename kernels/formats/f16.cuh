// F16 and BF16 (stored as f16), and F32 (stored as the sum of two f16), with a power of two per row that brings them
// into the range of f16: 1 for F16.
//
// Tile, 8256 and 16448 B: scale [16 rows] f32; unit: [4 chunks of 16 k][parts][32 lanes][4 words], the fragments
// as they are: upper k 4t, 4t+1; lower the same; upper 4t+2, 4t+3; lower. Part 1 of F32 is the remainder of part 0.

#pragma once

#include "formats/format.cuh"

template <int PARTS_> struct Halves {
    static constexpr int NUMBER = PARTS_ == 1 ? FORMAT_F16 : FORMAT_F32, PARTS = PARTS_;
    static constexpr int BYTES = 64 + PARTS * 8192, SLOTS = PARTS == 1 ? 2 : 1;
    static constexpr Scaling SCALING = Scaling::ROW;
    static constexpr bool MINIMUM = false;
    struct Head {
        u32 d[2];
    };
    struct Scales {
        float d[2];
    };
    struct Unit {
        u32 word[4][PARTS][4];
    };

    static __device__ __forceinline__ Head load_head(const u8* tile, int lane) {
        const u8* upper = tile + (lane >> 2) * 4;
        return {{ldg_stream4(upper), ldg_stream4(upper + 8 * 4)}};
    }
    static __device__ __forceinline__ Scales decode(const Head& head, int) {
        return {{__uint_as_float(head.d[0]), __uint_as_float(head.d[1])}};
    }
    static __device__ __forceinline__ void load_unit(Unit& unit, const u8* tile, int u, int lane) {
#pragma unroll
        for (int i = 0; i < 4 * PARTS; ++i) {
            load_words4(unit.word[i / PARTS][i % PARTS], tile + 64 + (u * 4 * PARTS + i) * 512, lane);
        }
    }
    static __device__ __forceinline__ void halves(
        const Unit& unit, const Scales&, int, int chunk, int part, u32 (&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = unit.word[chunk][part][i];
    }
};

using F16 = Halves<1>;
using F32 = Halves<2>;
