// matmul: out[k_part][column][row] = W[row][k k_part] . x[column][k k_part], for 1..64 columns and any of the formats.
//
// Work split: see matmul.cuh and matmul_launch.cuh. S k split_k x groups of rows = one thread block per SM; the consumer
// adds the S partials in order. Bound by memory up to 16 columns. Share of an H200's bandwidth (4.62 TB/s): 86 % for
// 100 MB of Q4_K at one column and 84 % at 16, 62 to 74 % for 18 to 54 MB, 97 % for a 1 GB head; 37 % at 64 columns.
//
// launch        segments and shares (by value)
// acts_q8/f16   activations of up to 64 rows; the form that no segment needs may be null
// out           f32 [split_k][partial_columns][launch.stride]; columns 8 * column_block .. + COLUMNS are written
// Shared memory: kn_max * bytes of a staged tile + WARPS * ceil(COLUMNS / 8) * 512; with CHUNK (see
// matmul_chunks.cuh), 2 * CHUNK * bytes of a staged tile.

#include "matmul_launch.cuh"

// Where kernels overlap, a pass of four columns leaves space for a block of swiglu and this one's: 512 threads x 112
// registers and 128 x 64 fill a multiprocessor's register file. Wider passes lose more by loading later than they gain.
#if COLUMNS == 4 && !defined(CHUNK) && __CUDA_ARCH__ >= 900
#define BOUNDS __maxnreg__(112)
#else
#define BOUNDS __launch_bounds__(MATMUL_THREADS, 1)
#endif

extern "C" __global__ void BOUNDS matmul(
    const MatmulLaunch launch, const u8* acts_q8, const u8* acts_f16, float* out, int partial_columns, int column_block) {
    pdl_launch();
    SHARED_DYNAMIC(shared);
    stream_pieces(launch, StoredActs{acts_q8, acts_f16, column_block}, shared, [&](const Segment& segment, int k_part) {
        const size_t partial = size_t(k_part) * partial_columns + 8 * column_block;
        return PartialSink{out + partial * launch.stride + segment.offset, u32(launch.stride), segment.rows, lane_id()};
    });
}
