// A prompt's chunk sorted by expert: what experts_sort.cu writes and experts_rows.cu reads.

#pragma once

#include "experts.cuh"
#include "halves.cuh"

constexpr int CHUNK_COLUMNS = 64;  // rows of an entry, at most

// Places first .. first + count of the sorted rows, all of one expert.
struct ChunkEntry {
    int expert, first, count;
};

// `shared` entries of the expert that all rows take come first, `entries` are all.
struct ChunkWork {
    int shared, entries;

    __device__ __forceinline__ const ChunkEntry* list() const { return (const ChunkEntry*)(this + 1); }
    __device__ __forceinline__ ChunkEntry* list() { return (ChunkEntry*)(this + 1); }
};
