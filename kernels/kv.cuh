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
// With RECENT (packed types) the newest positions are also stored as halves, in such a ring of their own; a kernel that
// reads or writes the cache then has RECENT_PARAMETER. Which row reads which of them: attention_parts.cuh.
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

// One layer's rows of keys and of values. RING: see KV_RING.
template <class KeysOf, class ValuesOf, bool RING> struct CacheRows {
    using Keys = KeysOf;
    using Values = ValuesOf;
    u8 *k, *v;
    int slots;

    // Where position `position` of a head is among the rows.
    __device__ __forceinline__ u64 row(int kv_head, int position) const {
        const int slot = RING ? int(u32(position) % u32(slots)) : position;
        return u64(kv_head) * slots + slot;
    }
    // Where the row `more` after that of `position` is, counted from there.
    __device__ __forceinline__ int after(int position, int more) const {
        return !RING || int(u32(position) % u32(slots)) + more < slots ? more : more - slots;
    }
    __device__ __forceinline__ u8* key(int kv_head, int position) const {
        return k + row(kv_head, position) * Keys::BYTES;
    }
    __device__ __forceinline__ u8* value(int kv_head, int position) const {
        return v + row(kv_head, position) * Values::BYTES;
    }
};
#ifdef KV_RING
using StoredRows = CacheRows<KeyType, ValueType, true>;
#else
using StoredRows = CacheRows<KeyType, ValueType, false>;
#endif

// One layer's keys and values, and of them in which the newest are read.
#ifdef RECENT
using NewestRows = CacheRows<KvInterleaved, KvF16, true>;
struct KeyValues : StoredRows {
    NewestRows newest;
};
#define RECENT_PARAMETER , u8 *recent_k, u8 *recent_v, int recent_slots
#define RECENT_GIVEN , {recent_k, recent_v, recent_slots}
#define RECENT_PASSED , recent_k, recent_v, recent_slots
__device__ __forceinline__ const NewestRows& newest_of(const KeyValues& cache) { return cache.newest; }
static_assert(!KeyType::HALVES && !ValueType::HALVES, "halves need no window of halves");
#else
using KeyValues = StoredRows;
using NewestRows = StoredRows;
#define RECENT_PARAMETER
#define RECENT_GIVEN
#define RECENT_PASSED
__device__ __forceinline__ const NewestRows& newest_of(const KeyValues& cache) { return cache; }
#endif
