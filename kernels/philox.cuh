// Philox4x32-10 (Salmon et al., 2011) and the Gumbel noise made from it. src/dflash_core/sampling.py is the Python twin.

#pragma once

#include "common.cuh"

// The words of tokens 4 * four to 4 * four + 3. The counter is (four, low half of position, high half of position, 0), the
// key is the seed.
__device__ __forceinline__ uint4 philox_of_four(u64 seed, u64 position, u32 four) {
    u32 x0 = four, x1 = u32(position), x2 = u32(position >> 32), x3 = 0;
    u32 key0 = u32(seed), key1 = u32(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u32 high0 = __umulhi(x0, 0xD2511F53u), low0 = x0 * 0xD2511F53u;
        const u32 high1 = __umulhi(x2, 0xCD9E8D57u), low1 = x2 * 0xCD9E8D57u;
        x0 = high1 ^ x1 ^ key0;
        x2 = high0 ^ x3 ^ key1;
        x1 = low1, x3 = low0;
        key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
    return {x0, x1, x2, x3};
}

// The word of one token, of those of four.
__device__ __forceinline__ u32 word_of_four(const uint4& four, u32 token) {
    const u32 even = token & 2 ? four.z : four.x, odd = token & 2 ? four.w : four.y;
    return token & 1 ? odd : even;
}
__device__ __forceinline__ u32 philox(u64 seed, u64 position, u32 token) {
    return word_of_four(philox_of_four(seed, position, token / 4), token);
}

__device__ __forceinline__ double gumbel(u32 word) {
    const double uniform = __ddiv_rn(__dadd_rn(double(word), 0.5), 4294967296.0);
    return -log(-log(uniform));
}

// The same to about 1e-5, in float. Above 1/2 the inner logarithm is log1p of the distance to 1, which keeps its digits.
__device__ __forceinline__ float gumbel_about(u32 word) {
    constexpr float UNIT = 1.0f / 4294967296.0f;
    const bool upper = word >> 31;
    const float part = (float(upper ? ~word : word) + 0.5f) * UNIT;
    return -logf(upper ? -log1pf(-part) : -logf(part));
}

// The difference of the largest and the smallest noise: a token this far below the best cannot be drawn.
constexpr double GUMBEL_SPREAD = 26.1;
