// Kernels that others are compared with, or run between others in measurements.
//
//   stream  reads memory and does nothing else. Grid-stride over 16-byte words, four under way per thread. Bound by memory.
//   pause   lasts a given time and touches nothing, like a small kernel between two products.

#include "common.cuh"

// data [words] of 16 B; out [gridDim.x * blockDim.x] u32: the exclusive or of what each thread read.
extern "C" __global__ void __launch_bounds__(256) stream(const u8* data, u64 words, u32* out) {
    pdl_launch();
    pdl_wait();
    const u64 threads = u64(gridDim.x) * blockDim.x, me = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    u32 all = 0;
    u64 i = me;
    for (; i + 3 * threads < words; i += 4 * threads) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = ldg_stream16(data + (i + j * threads) * 16);
#pragma unroll
        for (int j = 0; j < 4; ++j) all ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < words; i += threads) {
        const uint4 v = ldg_stream16(data + i * 16);
        all ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    out[me] = all;
}

// cycles: of the multiprocessor's clock, from the end of the previous kernel.
extern "C" __global__ void __launch_bounds__(128) pause(long long cycles) {
    pdl_launch();
    pdl_wait();
    const long long begin = clock64();
    while (clock64() - begin < cycles) {}
}
