// The head's logits and their block maxima: matmul with one k_part, which also stores the maximum of each column over
// each block of 16 finished rows. A search for the best of a row then reads a sixteenth of it.
//
// Bound by memory as head_argmax is; above 16 columns as matmul is.
//
// launch   one segment, one k_part
// logits   f32 [columns][launch.stride]
// maxima   f32 [columns][launch.stride / 16]: rows past the last are left out; a logit that is not a number counts as
//          infinite, so that it is not hidden
// sums     with SUMS: f32 like `maxima`: sum over a block's rows of exp((logit - its maximum) * inv_tree_temperature);
//          with UNSCALED too: of exp(logit - its maximum)
// All of them: columns 8 * column_block .. + COLUMNS are written.
//
// Defines, for heads that shape their logits: LOGIT_SCALE and SOFTCAP, both or none. SUPPRESSED: head.cuh; logits of
// tokens that may not be drawn are minus infinity.

#include "head.cuh"
#include "matmul_launch.cuh"
#include "state.cuh"

// Lanes of fragment row g keep the results of column block g, columns 2t and 2t + 1 of it.
struct BlockSink {
    PartialSink logits;
    float *maxima, *sums;  // of the pass's first column
    int blocks, rows, lane;
    const StepState* st;
    Allowed allowed;

    static __device__ __forceinline__ float candidate(float logit) { return logit == logit ? logit : INFINITE; }

#ifdef LOGIT_SCALE
    // For heads that define them: a factor, then a soft limit, none where it is 0.
    static __device__ __forceinline__ float shape(float logit) {
        constexpr float CAP = SOFTCAP;
        const float scaled = logit * float(LOGIT_SCALE);
        return CAP > 0.0f ? CAP * tanhf(scaled / CAP) : scaled;
    }
#else
    static __device__ __forceinline__ float shape(float logit) { return logit; }
#endif

    __device__ __forceinline__ void operator()(int row0, const Accumulator& raw) const {
#if defined(LOGIT_SCALE) || defined(SUPPRESSED)
        Accumulator shaped;
        const bool there[2] = {allowed(row0 + (lane >> 2)), allowed(row0 + (lane >> 2) + 8)};
#pragma unroll
        for (int b = 0; b < COLUMN_BLOCKS; ++b) {
#pragma unroll
            for (int c = 0; c < 4; ++c) shaped[b][c] = there[c / 2] ? shape(raw[b][c]) : -INFINITE;
        }
        const Accumulator& acc = shaped;
#else
        const Accumulator& acc = raw;
#endif
        logits(row0, acc);
        const int g = lane >> 2, row = row0 + g;
        float most[2] = {}, sum[2] = {};
#ifdef UNSCALED
        const float scale = 1.0f;
#elif defined(SUMS)
        const float scale = st->inv_tree_temperature;
#endif
#pragma unroll
        for (int b = 0; b < COLUMN_BLOCKS; ++b) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const float upper = row < rows ? candidate(acc[b][c]) : -INFINITE;
                const float lower = row + 8 < rows ? candidate(acc[b][2 + c]) : -INFINITE;
                float best = fmaxf(upper, lower);
#pragma unroll
                for (int offset = 4; offset < 32; offset *= 2) {
                    best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, offset));
                }
                if (g == b) most[c] = best;
#ifdef SUMS
                // Of a block without a number there is none; infinite ones make the sum a NaN.
                float total = upper > -INFINITE ? __expf((upper - best) * scale) : 0.0f;
                total += lower > -INFINITE ? __expf((lower - best) * scale) : 0.0f;
#pragma unroll
                for (int offset = 4; offset < 32; offset *= 2) total += __shfl_xor_sync(FULL_WARP, total, offset);
                if (g == b) sum[c] = total;
#endif
            }
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int column = 8 * g + 2 * (lane & 3) + c;
            if (column >= COLUMNS) continue;
            const size_t at = size_t(column) * blocks + row0 / TILE_ROWS;
            maxima[at] = most[c];
#ifdef SUMS
            sums[at] = sum[c];
#endif
        }
    }
};

extern "C" __global__ void __launch_bounds__(MATMUL_THREADS, 1) head_logits(
    const MatmulLaunch launch, const StepState* st, const u8* acts_q8, const u8* acts_f16, float* logits, float* maxima,
    float* sums, int column_block SUPPRESSED_PARAMETER) {
    pdl_launch();
    SHARED_DYNAMIC(shared);
    const int blocks = launch.stride / TILE_ROWS;
    const size_t first = size_t(8 * column_block);
    stream_pieces(launch, StoredActs{acts_q8, acts_f16, column_block}, shared, [&](const Segment& segment, int) {
        const PartialSink out{logits + first * launch.stride, u32(launch.stride), segment.rows, lane_id()};
        return BlockSink{out, maxima + first * blocks, sums + first * blocks, blocks, segment.rows, lane_id(), st,
                         Allowed{SUPPRESSED_GIVEN}};
    });
}
