// The end of a row's split attention: its parts are merged, multiplied by the sigmoid of the gate, where there is one, and
// stored as the acts of attn_output.

#pragma once

#include "acts.cuh"
#include "attention.cuh"
#include "heads.cuh"

// A group of 256 activations: constructed before the previous kernel has ended.
struct GatedGroup {
    const int group, element;
    const bool padding;

    __device__ __forceinline__ GatedGroup(int group, int kv_heads)
        : group(group), element(group * ACTS_GROUP + 8 * lane_id()), padding(element >= kv_heads * GROUP * HEAD_DIM) {}

    // For row `row` of `rows`; all MERGE_WARPS warps call. `parts()`: how many parts the row has, called once the loads
    // of its gates are issued. partials: of the projection that includes the gates.
    template <class Parts>
    __device__ __forceinline__ void combine(
        const Parts& parts, int row, int rows, int kv_heads, const float* out, const float2* stats,
        const float* partials, const Acts& acts
    ) const {
        PartialSpan<SPLIT_K, 8> gates;
        gates.zero();
        if (QUERY_PARTS == 2 && warp_id() == 0 && !padding) {
            const int column = (2 * (element / HEAD_DIM) + 1) * HEAD_DIM + element % HEAD_DIM;
            gates.load(partials, rows, projected(kv_heads), row, column);
        }
        float x[8], gate[8];
        merge_parts(x, out, stats, parts(), row, rows, kv_heads, padding ? 0 : element);
        if (warp_id()) return;
        gates.sum().values(gate);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float open = QUERY_PARTS == 2 ? sigmoid(gate[i]) : 1.0f;
            x[i] = padding ? 0.0f : x[i] * open;
        }
        acts_store(acts, row, group, x);
    }
};
