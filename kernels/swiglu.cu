// silu(gate) * up, as activations for ffn_down: from the partials of the [gate, up] matmul, which it adds up. For one
// row swiglu_matmul.cu does this.
//
// One warp per (256 elements, row); a block holds as many neighbouring groups as it has warps. A lane loads up to 8
// partials of its 8 gates and 8 ups together (PartialSpan). Bound by latency with few rows, by the L2 with many: in a
// step of the 27B on an H200 1.8 us with one row, 3.6 us with 16, 6 us with 64 (27 MB of partials: 4.5 TB/s).
//
// Defines: swiglu.cuh.

#include "acts.cuh"
#include "swiglu.cuh"

// grid (groups / warps of a block, rounded up; rows). partials f32 [SPLIT_K][rows][width].
extern "C" __global__ void swiglu(
    const float* partials, int rows, int width, u8* acts_q8, u8* acts_f16, const int* count, int node0
) {
    const int group = blockIdx.x * (blockDim.x / WARP) + warp_id(), row = blockIdx.y;
    pdl_launch();
    pdl_wait();
    if (group * ACTS_GROUP >= WIDTH) return;

    SwigluSpan<> span;
    span.load(partials, rows, width, row, group * ACTS_GROUP + 8 * lane_id());
    if (node0 + row >= *count) return;
    float x[8];
    span.values(x);
    acts_store({acts_q8, acts_f16}, row, group, x);
}
