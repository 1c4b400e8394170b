// silu(gate) * up, or what activation.cuh makes of them, of 8 neighbours of a row, of the partials of the [gate, up]
// matmul: first loaded, then used.
//
// Defines: WIDTH, elements of a row of gate, a multiple of 8; SPLIT_K, partials; UP_AT, where the rows of `up` begin, or 0
// where both alternate every 16 rows; those of activation.cuh.

#pragma once

#include "activation.cuh"

static_assert(WIDTH % 8 == 0 && UP_AT % 4 == 0, "a lane holds 8 elements");

// PREFETCHED: partials of gates, and of ups, that are loaded together.
template <int PREFETCHED = 8> struct SwigluSpan {
    PartialSpan<SPLIT_K, 8, PREFETCHED> gate, up;

    // Elements k..; zeros past the row's end.
    __device__ __forceinline__ void load(const float* partials, int rows, int width, int row, int k) {
        gate.zero();
        up.zero();
        if (k < WIDTH) {
            const int gate_at = UP_AT ? k : 2 * k - k % 16;
            gate.load(partials, rows, width, row, gate_at);
            up.load(partials, rows, width, row, gate_at + (UP_AT ? UP_AT : 16));
        }
    }
    __device__ __forceinline__ void values(float (&x)[8]) {
        float by[8];
        gate.sum().values(x);
        up.sum().values(by);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = activated(x[i], by[i]);
    }
};
