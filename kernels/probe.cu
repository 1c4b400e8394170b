// probe.cu: is there a working compiler?
//
// `dflash-tui doctor` compiles this file for every architecture that the project supports; whether a card computes
// correctly is tested with a whole pair.
//
// What it tests on purpose:
//   - cuda_fp16.h, so that a missing or mismatched header package shows here and not in the first real kernel;
//   - a warp shuffle and a half-precision multiply-add, so that the wrong machine code gives a wrong number;
//   - no C or C++ standard header: NVRTC has none.
//
// Contract: one block of 32 threads; out[i] = sum over lanes 0..i of (2 * lane + 1) = (i + 1)^2, exact in float.

#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(32) probe(float* out) {
    const int lane = threadIdx.x;
    float sum = __half2float(__hfma(__int2half_rn(2), __int2half_rn(lane), __int2half_rn(1)));

    for (int offset = 1; offset < 32; offset *= 2) {
        const float below = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += below;
    }
    out[lane] = sum;
}
