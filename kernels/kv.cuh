// The cache of keys and values as kernels see it. A layer's keys, and its values, are rows of bytes
// [kv heads][slots][BYTES]; whatever touches a row goes through its type, which the defines KV_K and KV_V name (halves
// where they are left out). A type is a struct with a file of its own:
//
//   BYTES                       of a head's row of HEAD_DIM numbers, a multiple of CHUNK_BYTES
//   WRITTEN                     the first of them, which `store` writes; a multiple of 4
//   ROTATED                     keys are stored as their Hadamard transform; queries are transformed too
//   HALVES                      rows are HEAD_DIM halves; all others are packed (kv_packed.cuh). Their type also has
//                               store_halves(row, x), of a row that is indexed by element
//   store(row, x)               a warp stores a head's row; lane l has elements l, l + 32, l + 64, ...
// and where packed, of rows in shared memory, or anywhere:
//   STRIDE                      bytes from one row of a tile to the next
//   eight(to, row, group, part)            elements 8 part.. of a group of 32, as halves
//   four(to, first, second, group, part)   elements 4 part.. of two rows: to[i] holds the i-th of both
//   RUNS, SHARED                runs of bytes in a row, and adjacent groups in one (the last may hold fewer)
//   load(loaded, row, run, part), eights(to, loaded, part)    `eight` of a run's groups, loads apart; LOADED words
//
// With KV_RING positions share the slots: position p is stored in slot p % slots, which holds the newest of them. A
// tile of the attention is then contiguous where slots are a whole number of tiles, or more than there are
// positions. Rows past a tile's end may be before it: see `after`.
//
// The host's side is backends/cuda/kv.py, the twin in plain torch models/cache_rows.py.

#pragma once

#include "kv_bf16.cuh"
#include "kv_f16.cuh"
#include "kv_packed.cuh"

#ifndef KV_K
#define KV_K KvF16
#endif
#ifndef KV_V
#define KV_V KvF16
#endif
using KeyType = KV_K;
using ValueType = KV_V;

// One layer's keys and values.
struct KeyValues {
    u8 *k, *v;
    int slots;

    // Where position `position` of a head is among the rows.
    __device__ __forceinline__ u64 row(int kv_head, int position) const {
#ifdef KV_RING
        const int slot = u32(position) % u32(slots);
#else
        const int slot = position;
#endif
        return u64(kv_head) * slots + slot;
    }
    // Where the row `more` after that of `position` is, counted from there.
    __device__ __forceinline__ int after(int position, int more) const {
#ifdef KV_RING
        return int(u32(position) % u32(slots)) + more < slots ? more : more - slots;
#else
        return more;
#endif
    }
    __device__ __forceinline__ u8* key(int kv_head, int position) const {
        return k + row(kv_head, position) * KeyType::BYTES;
    }
    __device__ __forceinline__ u8* value(int kv_head, int position) const {
        return v + row(kv_head, position) * ValueType::BYTES;
    }
};
