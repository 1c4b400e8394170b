// The output matrix where only the best logit is needed: matmul with one k_part, whose finished rows update a running
// maximum per column and are not stored. BestPart [column][thread block], which merge_draws (tree.cu) reads.
// logits.cu is for passes that need more.
//
// Bound by memory: the largest matrix of a model, read once. Measured share of bandwidth on an H200: 97 % at one column
// (its matmul).

#include "head.cuh"
#include "matmul_launch.cuh"

// A lane of row g of the fragments keeps the best of column block g, columns 2t and 2t + 1 of it.
struct BestSink {
    int rows, lane;
    BestPart best[2];
    Allowed allowed;

    __device__ __forceinline__ void operator()(int row0, const Accumulator& acc) {
        const int g = lane >> 2, row = row0 + g;
        const bool upper_there = row < rows && allowed(row), lower_there = row + 8 < rows && allowed(row + 8);
#pragma unroll
        for (int b = 0; b < COLUMN_BLOCKS; ++b) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                float value = upper_there ? candidate(acc[b][c]) : -INFINITE;
                int id = row;
                const float lower = lower_there ? candidate(acc[b][2 + c]) : -INFINITE;
                if (better(lower, row + 8, value, id)) value = lower, id = row + 8;
#pragma unroll
                for (int offset = 4; offset < 32; offset *= 2) {
                    const float other = __shfl_xor_sync(FULL_WARP, value, offset);
                    const int other_id = __shfl_xor_sync(FULL_WARP, id, offset);
                    if (better(other, other_id, value, id)) value = other, id = other_id;
                }
                if (g == b && better(value, id, best[c].value, best[c].id)) best[c] = {value, id};
            }
        }
    }

    // A NaN must not be hidden: it wins, as an infinity that no merge accepts as a draw.
    static __device__ __forceinline__ float candidate(float logit) { return logit == logit ? logit : INFINITE; }
};

// launch: one segment, one k_part. parts [partial_columns][gridDim.x], of which columns 8 * column_block .. are written.
extern "C" __global__ void __launch_bounds__(MATMUL_THREADS, 1) head_argmax(
    const MatmulLaunch launch, const u8* acts_q8, const u8* acts_f16, BestPart* parts,
    int column_block SUPPRESSED_PARAMETER) {
    pdl_launch();
    SHARED_DYNAMIC(shared);
    const int lane = lane_id(), g = lane >> 2, t = lane & 3;
    BestSink sink{0, lane, {{-INFINITE, 0x7fffffff}, {-INFINITE, 0x7fffffff}}, Allowed{SUPPRESSED_GIVEN}};
    stream_pieces(launch, StoredActs{acts_q8, acts_f16, column_block}, shared, [&](const Segment& segment, int) -> BestSink& {
        sink.rows = segment.rows;
        return sink;
    });

    // [column][warp], in the memory of the slots.
    BestPart* const of_warps = (BestPart*)shared;
    __syncthreads();
    if (g < COLUMN_BLOCKS) {
#pragma unroll
        for (int c = 0; c < 2; ++c) of_warps[(8 * g + 2 * t + c) * WARPS + warp_id()] = sink.best[c];
    }
    __syncthreads();
    pdl_wait();  // a thread block without rows has not waited yet
    for (int column = threadIdx.x; column < COLUMNS; column += MATMUL_THREADS) {
        BestPart best = of_warps[column * WARPS];
        for (int warp = 1; warp < WARPS; ++warp) {
            const BestPart other = of_warps[column * WARPS + warp];
            if (better(other.value, other.id, best.value, best.id)) best = other;
        }
        parts[size_t(8 * column_block + column) * gridDim.x + blockIdx.x] = best;
    }
}
