// text_update: writes a conversation's new tokens into the arrays in which trees look them up (ngrams.cuh).
//
// `changes` is in the host's memory: a count, an unused number, then that many pairs: an index into the arrays'
// numbers and the new value there. No index occurs twice with different values. One block; bound by the two trips
// to the host's memory.

#include "common.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS) text_update(const int* changes, int* text) {
    pdl_launch();
    pdl_wait();
    const int count = changes[0];
    const int2* const pairs = reinterpret_cast<const int2*>(changes) + 1;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const int2 pair = pairs[i];
        text[pair.x] = pair.y;
    }
}
