// What the kernels of a draw (draw.cuh) have in common: the noise of tokens, their logits by fours, lists that a block
// fills together, and distances to the best value as integers.

#pragma once

#include "draw.cuh"
#include "extremes.cuh"

// The noise of tokens at one position.
struct Noise {
    u64 seed, position;

    __device__ __forceinline__ Noise(const StepState* st, int node)
        : seed(st->seed), position(drawn_position(st, node)) {}
    __device__ __forceinline__ uint4 words(int id) const { return philox_of_four(seed, position, u32(id) / 4); }
    __device__ __forceinline__ float operator()(int id) const {
        return gumbel_about(philox(seed, position, u32(id)));
    }
};

// The logits of tokens id[i] to id[i] + 3, in turn, where each id is a multiple of 4; -inf past the vocabulary.
template <int FOURS> __device__ __forceinline__ void load_fours(
    float (&value)[4 * FOURS], const float* logits, const int (&id)[FOURS], int vocab) {
    bool whole = u64(logits) % sizeof(float4) == 0;
#pragma unroll
    for (int i = 0; i < FOURS; ++i) whole &= id[i] + 3 < vocab;
    if (whole) {
#pragma unroll
        for (int i = 0; i < FOURS; ++i) {
            const float4 four = *reinterpret_cast<const float4*>(logits + id[i]);
            value[4 * i] = four.x, value[4 * i + 1] = four.y, value[4 * i + 2] = four.z, value[4 * i + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4 * FOURS; ++i) {
            const int token = id[i / 4] + i % 4;
            value[i] = token < vocab ? logits[token] : -INFINITE;
        }
    }
}

// The distance to the best value as two digits below BINS, packed into one integer. Its resolution is relative: the
// first digit has 32 values per power of two. -inf is further away than any.
constexpr int NEAREST = (127 - 40) << 16;  // of 2^-40
constexpr int DIGIT_BITS = 11, FARTHEST = BINS * BINS - 1;
static_assert(BINS == 1 << DIGIT_BITS);
__device__ __forceinline__ int distance_digits(float best, float value) {
    const int digits = min(max(int(__float_as_uint(best - value) >> 7) - NEAREST, 0), FARTHEST);
    return value > -INFINITE ? digits : FARTHEST + 1;
}

// Add `mine` entries to a list of `size` that the block shares; return the place of the first. All lanes call.
__device__ __forceinline__ int append(int mine, int& size) {
    const u32 up_to = sum_up_to(u32(mine));
    int begin = 0;
    if (lane_id() == WARP - 1 && up_to > 0) begin = atomicAdd(&size, int(up_to));
    return __shfl_sync(FULL_WARP, begin, WARP - 1) + int(up_to) - mine;
}
