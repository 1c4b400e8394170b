// Rows f32 [rows][k] through the producers' store: grid (groups, rows), one warp.

#include "acts.cuh"

extern "C" __global__ void acts_rows(const float* x, int k, u8* acts_q8, u8* acts_f16) {
    const int group = blockIdx.x, row = blockIdx.y;
    float v[8];
    for (int i = 0; i < 8; ++i) {
        const int at = group * ACTS_GROUP + 8 * lane_id() + i;
        v[i] = at < k ? x[row * k + at] : 0.0f;
    }
    acts_store({acts_q8, acts_f16}, row, group, v);
}
