// ffn_down of one row, which does swiglu.cu's work itself.
//
// A kernel between two products of one row takes some 2 us, nearly all of it latency. Here each thread block computes
// the activations of its part of K instead of copying them, while its first weights are being loaded: one launch less
// for 2 KB per partial and group of 256, from the L2. Blocks of the same part compute the same ones. A warp takes a
// group as it would in swiglu.cu, which wider passes run, so the bits are the same. On an H200 plain steps of the 27B
// went from 5.171 to 5.110 ms, of the 8B from 1.872 to 1.843.
//
// Defines: matmul.cuh's and swiglu.cuh's.

#include "matmul_launch.cuh"
#include "swiglu.cuh"

static_assert(COLUMNS == 1, "one row; the others of the 8 that a block of activations holds are nobody's");

// As StoredActs. partials f32 [SPLIT_K][1][width] of the [gate, up] matmul.
struct SwigluActs {
    const float* partials;
    int width;

    template <class F> __device__ __forceinline__ void stage(u8* staged, int k0, int kn) const {
        using M = Meeting<F>;
#pragma unroll 1
        for (int k = warp_id(); k < kn; k += WARPS) {
            SwigluSpan<4> span;  // more would take registers from the weights that are being loaded
            float x[8];
            span.load(partials, 1, width, 0, (k0 + k) * ACTS_GROUP + 8 * lane_id());
            span.values(x);
            u8* const block = staged + k * M::STAGE;
            // A second block has only the lower plane or the second scales.
            if constexpr (M::F16_ACTS) acts_fill_f16(block, 0, x);
            else acts_fill_q8(block, block + ACTS_Q8_SECONDS - (PLANE_BITS > 0 ? 0 : M::SCALES), 0, x);
        }
    }
};

// out f32 [split_k][1][launch.stride]
extern "C" __global__ void __launch_bounds__(MATMUL_THREADS, 1) swiglu_matmul(
    const MatmulLaunch launch, const float* partials, int width, float* out) {
    pdl_launch();
    SHARED_DYNAMIC(shared);
    stream_pieces(launch, SwigluActs{partials, width}, shared, [&](const Segment& segment, int k_part) {
        float* const to = out + size_t(k_part) * launch.stride + segment.offset;
        return PartialSink{to, u32(launch.stride), segment.rows, lane_id()};
    });
}
