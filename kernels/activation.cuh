// What a feed-forward layer makes of a number of its gate and the same of its up.
//
// Defines: none for silu(gate) * up; GELU for gelu(gate) * up, in its tanh form; CLAMP and CLAMP_ALPHA, numbers, for
// gate * sigmoid(CLAMP_ALPHA * gate) * (up + 1) with gate at most CLAMP and up within plus and minus that.

#pragma once

#include "partials.cuh"

// `headroom`: up is given times this, and the result is needed times this.
__device__ __forceinline__ float activated(float gate, float up, float headroom = 1.0f) {
#if defined(GELU)
    // (1 + tanh(x)) / 2 is sigmoid(2 x); the constants are 2 sqrt(2 / pi) and 0.044715 times that.
    return gate * sigmoid(gate * (1.5957691216057308f + 0.07135481627159546f * gate * gate)) * up;
#elif defined(CLAMP)
    const float most = float(CLAMP), g = fminf(gate, most), u = fminf(fmaxf(up / headroom, -most), most);
    return g * sigmoid(float(CLAMP_ALPHA) * g) * (u + 1.0f) * headroom;
#else
    return silu(gate) * up;
#endif
}
