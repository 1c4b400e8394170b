// The cache of keys and values as kernels see it. A layer's keys, and its values, are KvElement
// [kv heads][slots][KV_ROW]; whatever touches a row goes through its type's file, of which a define chooses one:
//
//   KvElement, KV_ROW            what a head's row of HEAD_DIM numbers is stored as
//   kv_store(row, x)             a warp stores a head's row; lane l has elements l, l + 32, l + 64, ...
//   kv_fetch<COUNT, THREADS>     a block starts bringing rows into a swizzled tile of halves (tiles.cuh), row order(i)
//                                as the i-th; those from `live` on become zeros and may be anywhere; there after the
//                                wait for the cp.async group and a barrier
//
// With KV_RING positions take turns in the slots: position p lies in slot p % slots, which holds the newest of them. A
// tile of the attention then lies in one piece where slots are a whole number of tiles, or more than there are
// positions.
//
// The host's side is backends/cuda/kv.py.

#pragma once

#include "kv_f16.cuh"

// One layer's keys and values.
struct KeyValues {
    KvElement *k, *v;
    int slots;

    // Where a head's row of `position` lies, in elements.
    __device__ __forceinline__ u64 row(int kv_head, int position) const {
#ifdef KV_RING
        const int slot = u32(position) % u32(slots);
#else
        const int slot = position;
#endif
        return (u64(kv_head) * slots + slot) * KV_ROW;
    }
};
