// What a token gives to every layer of a model with per-layer inputs, and its use by one of them (arch/spec.py).
//
//   per_layer_given   for all layers at once: a row of a table, and the model's projection of the token's embedding
//   per_layer_gate    gelu(gate) * what is given to the layer, as activations of its `proj`
//   rows_per_layer    both for a prompt's chunk and one layer
//
// Bound by latency; a step reads one row of the table, which keeps the block format of its file. Defines: FORMAT, the
// table's type as gguf.cuh spells it; LAYERS; WIDTH, numbers of a layer; HIDDEN, the model's width; SPLIT_K, partials.

#include "acts.cuh"
#include "features.cuh"
#include "gguf.cuh"
#include "halves.cuh"
#include "partials.cuh"

constexpr int GIVEN_WARPS = 4, EACH = ceil_div(WIDTH, WARP);

__device__ __forceinline__ float gelu(float x) {
    return x * sigmoid(x * (1.5957691216057308f + 0.07135481627159546f * x * x));
}

// What is given to layer `layer` by `token`, whose projection is x: elements l, l + 32, .. of lane l. The warp calls.
__device__ __forceinline__ void give(
    float (&x)[EACH], const u8* table, int token, int layer, const float* weight, float eps
) {
    constexpr u64 ROW_BYTES = u64(LAYERS) * WIDTH / FORMAT::BLOCK * FORMAT::SIZE;
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        x[j] *= rsqrtf(float(HIDDEN));
        squares += x[j] * x[j];
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / WIDTH + eps);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = WARP * j + lane_id(), at = layer * WIDTH + i;
        if (i >= WIDTH) break;
        const u8* const block = table + token * ROW_BYTES + u64(at / FORMAT::BLOCK) * FORMAT::SIZE;
        const float own = FORMAT::value(block, at % FORMAT::BLOCK) * sqrtf(float(WIDTH));
        x[j] = (own + x[j] * scale * weight[i]) * 0.70710678118654752f;
    }
}

// partials f32 [SPLIT_K][rows][stride], of the projection; given f32 [rows][LAYERS * WIDTH]. Grid (LAYERS / GIVEN_WARPS,
// rounded up; rows). Row i is tokens[node0 + i], live below *count.
extern "C" __global__ void __launch_bounds__(WARP* GIVEN_WARPS) per_layer_given(
    const float* partials, int rows, int stride, const u8* table, const int* tokens, const float* weight, float eps,
    float* given, const int* count, int node0
) {
    const int layer = blockIdx.x * GIVEN_WARPS + warp_id(), row = blockIdx.y;
    pdl_launch();
    pdl_wait();
    if (layer >= LAYERS || node0 + row >= *count) return;
    float x[EACH] = {};
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = WARP * j + lane_id();
        if (i < WIDTH) x[j] = partials_sum<SPLIT_K>(partials, rows, stride, row, layer * WIDTH + i);
    }
    give(x, table, tokens[node0 + row], layer, weight, eps);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = WARP * j + lane_id();
        if (i < WIDTH) given[(u64(row) * LAYERS + layer) * WIDTH + i] = x[j];
    }
}

// partials f32 [SPLIT_K][rows][stride], of the gate; given f32 [rows][LAYERS * WIDTH]. Grid (groups of 256 of WIDTH, rows).
extern "C" __global__ void __launch_bounds__(WARP) per_layer_gate(
    const float* partials, int rows, int stride, const float* given, int layer, u8* acts_q8, u8* acts_f16,
    const int* count, int node0
) {
    const int group = blockIdx.x, row = blockIdx.y, k = group * ACTS_GROUP + 8 * lane_id();
    pdl_launch();
    pdl_wait();
    if (node0 + row >= *count) return;
    float x[8] = {};
    if (k < WIDTH) {
        PartialSpan<SPLIT_K, 8> gates;
        Span<8> span;
        float by[8];
        gates.load(partials, rows, stride, row, k);
        gates.sum().values(x);
        span.load(given + (u64(row) * LAYERS + layer) * WIDTH + k);
        span.values(by);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = gelu(x[i]) * by[i];
    }
    acts_store({acts_q8, acts_f16}, row, group, x);
}

// projected f32 [rows][WIDTH], of the layer alone; gate f16 [rows][WIDTH] becomes gelu(gate) * what is given * HEADROOM.
// Grid (rows / GIVEN_WARPS, rounded up). Rows below *count are live.
extern "C" __global__ void __launch_bounds__(WARP* GIVEN_WARPS) rows_per_layer(
    const int* count, const float* projected, const u8* table, const int* tokens, const float* weight, float eps,
    int layer, half* gate
) {
    const int row = blockIdx.x * GIVEN_WARPS + warp_id();
    pdl_launch();
    pdl_wait();
    if (row >= *count) return;
    float x[EACH] = {};
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = WARP * j + lane_id();
        if (i < WIDTH) x[j] = projected[u64(row) * WIDTH + i];
    }
    give(x, table, tokens[row], layer, weight, eps);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = WARP * j + lane_id();
        if (i >= WIDTH) break;
        half& at = gate[u64(row) * WIDTH + i];
        at = __float2half_rn(gelu(__half2float(at)) * x[j] * HEADROOM);
    }
}
