// silu(gate) * up, as activations for ffn_down: the partials of the [gate, up] matmul added up on the way.
//
// One warp per (256 elements, row); a block holds as many neighbouring groups as it has warps. A lane has all partials of
// its 8 gates and 8 ups in flight at once. Bound by latency with few rows, by the L2 with many: in a step of the 27B on
// an H200 1.8 us with one row, 3.6 us with 16, 6 us with 64 (27 MB of partials: 4.5 TB/s).
//
// Defines: WIDTH, elements of a row of gate, a multiple of 8; SPLIT_K, partials; UP_AT, where the rows of `up` begin, or 0
// where both come in turns of 16 rows.

#include "acts.cuh"
#include "partials.cuh"

static_assert(WIDTH % 8 == 0 && UP_AT % 4 == 0, "a lane holds 8 elements");

// grid (groups / warps of a block, rounded up; rows). partials f32 [SPLIT_K][rows][width].
extern "C" __global__ void swiglu(
    const float* partials, int rows, int width, u8* acts_q8, u8* acts_f16, const int* count, int node0
) {
    const int group = blockIdx.x * (blockDim.x / WARP) + warp_id(), row = blockIdx.y;
    const int k = group * ACTS_GROUP + 8 * lane_id();
    pdl_launch();
    pdl_wait();
    if (group * ACTS_GROUP >= WIDTH) return;

    PartialSpan<SPLIT_K, 8> gate, up;
    gate.zero();
    up.zero();
    if (k < WIDTH) {
        const int gate_at = UP_AT ? k : 2 * k - k % 16;
        gate.load(partials, rows, width, row, gate_at);
        up.load(partials, rows, width, row, gate_at + (UP_AT ? UP_AT : 16));
    }
    if (node0 + row >= *count) return;
    float x[8], by[8];
    gate.sum().values(x);
    up.sum().values(by);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = silu(x[i]) * by[i];
    acts_store({acts_q8, acts_f16}, row, group, x);
}
