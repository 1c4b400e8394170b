// Keys and values as halves.

#pragma once

#include "tiles.cuh"

using KvElement = half;
constexpr int KV_ROW = HEAD_DIM;

template <int PARTS> __device__ __forceinline__ void kv_store(KvElement* row, const float (&x)[PARTS]) {
#pragma unroll
    for (int j = 0; j < PARTS; j++) row[WARP * j + lane_id()] = __float2half_rn(x[j]);
}

template <int COUNT, int THREADS, class Order>
__device__ __forceinline__ void kv_fetch(half* tile, const KvElement* rows, int live, const Order& order) {
    copy_rows<HEAD_DIM, COUNT, THREADS>(tile, rows, live, order);
}
