// The end of a row's split attention: its parts are merged, multiplied by the sigmoid of the gate or the softplus of the
// head's one, where there is either, and stored as the acts of attn_output.
//
// Defines: those of heads.cuh; SINKS where heads have sinks, which adds an argument.

#pragma once

#include "acts.cuh"
#include "attention.cuh"
#include "heads.cuh"

// What takes a share of a head's softmax and has no value: one score per query head. Kernels have scores as exponents of
// two.
#ifdef SINKS
struct SinkOf {
    static constexpr bool THERE = true;
    float value;
    __device__ __forceinline__ SinkOf(const float* sinks, int head) : value(sinks[head] * 1.4426950408889634f) {}
};
#define SINK_PARAMETER , const float* sinks
#define SINKS_GIVEN sinks
#else
struct SinkOf : NoSink {
    __device__ __forceinline__ SinkOf(const float*, int) {}
};
#define SINK_PARAMETER
#define SINKS_GIVEN nullptr
#endif

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
        const float* partials, const Acts& acts, const SinkOf& sink = {nullptr, 0}
    ) const {
        PartialSpan<SPLIT_K, 8> gates;
        gates.zero();
        if (QUERY_PARTS == 2 && warp_id() == 0 && !padding) {
            const int column = (2 * (element / HEAD_DIM) + 1) * HEAD_DIM + element % HEAD_DIM;
            gates.load(partials, rows, projected(kv_heads), row, column);
        }
#ifdef HEAD_GATES
        float of_head = 0.0f;
        if (warp_id() == 0 && !padding) {
            const int column = head_gates(kv_heads) + element / HEAD_DIM;
            of_head = softplus(partials_sum<SPLIT_K>(partials, rows, projected(kv_heads), row, column));
        }
#endif
        float x[8], gate[8];
        merge_parts(x, out, stats, parts(), row, rows, kv_heads, padding ? 0 : element, sink);
        if (warp_id()) return;
        gates.sum().values(gate);
#pragma unroll
        for (int i = 0; i < 8; i++) {
#ifdef HEAD_GATES
            const float open = of_head;
#else
            const float open = QUERY_PARTS == 2 ? sigmoid(gate[i]) : 1.0f;
#endif
            x[i] = padding ? 0.0f : x[i] * open;
        }
        acts_store(acts, row, group, x);
    }
};
