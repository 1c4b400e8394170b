"""A type of cache that only tests know: bytes under a fixed scale. All that it takes to add one is in this file."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_core.backends.cuda.kv import KVCache as CudaCache
from dflash_core.models.kv_cache import KVCache as CpuCache

SCALE = 24
# In kernels/kv.cuh, in place of the line that includes the only type there is.
REGISTERED = """
#ifdef KV_TOY
#include "kv_toy.cuh"
#else
#include "kv_f16.cuh"
#endif
"""
KERNELS = """
#pragma once

#include "tiles.cuh"

using KvElement = signed char;
constexpr int KV_ROW = HEAD_DIM;

template <int PARTS> __device__ __forceinline__ void kv_store(KvElement* row, const float (&x)[PARTS]) {
    for (int j = 0; j < PARTS; j++) {
        row[WARP * j + lane_id()] = KvElement(fminf(fmaxf(rintf(24.0f * x[j]), -127.0f), 127.0f));
    }
}

template <int COUNT, int THREADS, class Order>
__device__ __forceinline__ void kv_fetch(half* tile, const KvElement* rows, int live, const Order& order) {
    for (int at = threadIdx.x; at < COUNT * HEAD_DIM; at += THREADS) {
        const int row = at / HEAD_DIM, column = at % HEAD_DIM;
        const float x = row < live ? rows[order(row) * HEAD_DIM + column] / 24.0f : 0.0f;
        chunk_at<HEAD_DIM>(tile, row, column / 8)[column % 8] = __float2half_rn(x);
    }
}
"""


class ToyCpuCache(CpuCache):
    stored = torch.int8

    def pack(self, rows: Tensor) -> Tensor:
        return (rows * SCALE).round().clamp(-127, 127).to(torch.int8)

    def unpack(self, rows: Tensor) -> Tensor:
        return rows.to(self.dtype) / SCALE


class ToyCudaCache(CudaCache):
    define = "KV_TOY"
    dtype = torch.int8

    def floats(self, place: int, end: int) -> tuple[Tensor, Tensor]:
        k, v = super().floats(place, end)
        return (k.float() / SCALE).half(), (v.float() / SCALE).half()
