// experts_out: down of silu(gate) * up, times the pair's weight.
//
// A block computes the activations of its entries itself, from the output of experts_in. This saves a launch, and
// overlaps with the loading of its first weights. Bound by memory. Defines: see experts_stream.cuh; CHOOSES where the row
// of a pass of one is routed here (experts_one_row.cuh): its weights are requested before experts_in has ended.

#include "experts_stream.cuh"
#include "activation.cuh"
#ifdef CHOOSES
#include "experts_one_row.cuh"
#endif

// silu(gate) * up of pairs, from the output of experts_in: f32 [place of the pair][stride], gate before up.
struct SwigluOfPairs {
    const float* inner;
    int rows, stride;

    template <class F>
    __device__ __forceinline__ void stage(u8* staged, const ExpertKind& kind, const ExpertEntry& entry) const {
        using M = Meeting<F>;
        static_assert(M::F16_ACTS || SPANS == 1, "one scale per group");
        const int columns = entry.count;
        pdl_wait();
#pragma unroll 1
        for (int i = warp_id(); i < kind.tiles_k * columns; i += WARPS) {
            const int k = i / columns, c = i - k * columns, at = k * TILE_K + 8 * lane_id();
            const float* from = inner + size_t(place_of(entry.pair[c], rows)) * stride + at;
            Span<8> gate, up;
            gate.zero();
            up.zero();
            if (at < kind.width) gate.load(from), up.load(from + kind.width);
            float x[8], by[8];
            gate.values(x);
            up.values(by);
#pragma unroll
            for (int j = 0; j < 8; ++j) x[j] = activated(x[j], by[j]);
            u8* block = staged + k * M::STAGE;
            if constexpr (M::F16_ACTS) {
                acts_fill_f16(block, c, x);
            } else {
                acts_fill_q8(block, block + ACTS_Q8_SECONDS, c, x);
            }
        }
    }
};

#ifdef CHOOSES

// As below, for a pass of one row, as in experts_in.cu. The kernel before has waited for the scores before it let this one
// begin.
extern "C" __global__ void __launch_bounds__(MATMUL_THREADS, PER_SM) experts_out(
    const ExpertLaunch launch, const float* inner, int stride, float* out, int rows, const float* scores, float scale,
    const int* count, int node0 BIAS_PARAMETER CHOICE_PARAMETERS) {
    SHARED_DYNAMIC(shared);
    __shared__ OneRow row;
    pdl_launch();
    if (threadIdx.x == 0) row.begin();
    row.choose<true>(scores, CHOOSING);
    if (node0 < *count) {
        const Job job{launch, &row.work, row.weight, out, rows, BIAS};
        stream_experts(job, SwigluOfPairs{inner, rows, stride}, shared);
    }
    pdl_wait();  // a block without work ends after experts_in, too
}

#else

// inner: the output of experts_in, of `stride`; weights f32 by pair. out f32 [pair's place][launch.stride].
extern "C" __global__ void __launch_bounds__(MATMUL_THREADS, PER_SM) experts_out(
    const ExpertLaunch launch, const ExpertWork* work, const float* weights, const float* inner, int stride, float* out,
    int rows BIAS_PARAMETER) {
    SHARED_DYNAMIC(shared);
    pdl_launch();
    pdl_wait();
    stream_experts(Job{launch, work, weights, out, rows, BIAS}, SwigluOfPairs{inner, rows, stride}, shared);
}

#endif
