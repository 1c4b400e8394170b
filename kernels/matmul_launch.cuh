// Work distribution in a launch of matmul or head: several matrices of the same K, divided by parts of K and blocks of
// rows.
//
// Written by backends/cuda/plan.py, which gives each thread block its share by bytes. Passed by value: a thread block
// finds its share without a read from global memory. Until then no weight can be requested, so there is one table entry to
// read and no division.

#pragma once

#include "matmul.cuh"
#ifdef CHUNK
#include "matmul_chunks.cuh"
#endif
#ifdef CLAIMED
#include "matmul_claims.cuh"
#endif

constexpr int MAX_SEGMENTS = 6, MAX_GRID = 256;

struct Segment {
    const u8* weights;
    int format;   // enum Format
    int blocks;   // of 16 rows
    int rows;     // live ones; more are computed, not stored
    int offset;   // of its first row in the output
    int base;     // blocks of the segments before
    int padding;
};

// A thread block's share: blocks of rows from `first` on, over all segments, of a part of K; the first segment it is in.
struct Share {
    u16 first;
    u8 part, segment;
};

struct MatmulLaunch {
    Segment segment[MAX_SEGMENTS];
    int segments, tiles_k, split_k, stride, blocks;  // of rows, over all segments
    u32 per_part;                                    // 2^32 / split_k, rounded up
    Share share[MAX_GRID + 1];                       // the one after the last is of part split_k

    // The first tile of a part of K.
    __device__ __forceinline__ int k_begin(int part) const {
        return split_k == 1 ? part * tiles_k : int(__umulhi(unsigned(part * tiles_k), per_part));
    }
};

// The thread block's pieces of one format, one after another: visit(segment, Rectangle, k_part). A piece is found from
// the table each time: so it costs no registers while a piece streams.
template <class Visit>
__device__ __forceinline__ void for_each_piece(const MatmulLaunch& launch, int format, Visit&& visit) {
#pragma unroll 1
    for (int s = launch.share[blockIdx.x].segment; s < launch.segments; ++s) {
        const Segment& segment = launch.segment[s];
        const Share mine = launch.share[blockIdx.x], next = launch.share[blockIdx.x + 1];
        const int end = (next.part == mine.part ? next.first : launch.blocks) - segment.base;
        if (end <= 0) return;
        if (segment.format != format) continue;
        const int first = max(mine.first - segment.base, 0), rows = min(end, segment.blocks) - first;
        const int k0 = launch.k_begin(mine.part), kn = launch.k_begin(mine.part + 1) - k0;
        visit(segment, Rectangle{segment.weights, launch.tiles_k, first, rows, k0, kn}, mine.part);
    }
}

// Streams the pieces of one format into sink_of(segment, k_part).
template <class Acts, class SinkOf> struct StreamPieces {
    const MatmulLaunch& launch;
    const Acts& acts;
    u8* shared;  // slots, then staged activations; in chunks and with claims those first
    Staged& form;
    SinkOf& sink_of;

    template <class F> __device__ __forceinline__ void operator()() const {
        for_each_piece(launch, F::NUMBER, [&](const Segment& segment, const Rectangle& part, int k_part) {
            auto&& sink = sink_of(segment, k_part);
#if defined(CHUNK)
            stream_in_chunks<F>(part, acts, shared, form, sink);
#elif defined(CLAIMED)
            stream_claimed<F>(part, acts, shared, form, sink);
#else
            static_assert(SHARES == WARPS, "each warp has a share");
            stream_rectangle<F>(part, acts, (float*)shared, shared + WARPS * COLUMN_BLOCKS * 512, form, sink);
#endif
        });
    }
};

// All pieces of the thread block.
template <class Acts, class SinkOf>
__device__ __forceinline__ void stream_pieces(
    const MatmulLaunch& launch, const Acts& acts, u8* shared, SinkOf&& sink_of) {
    Staged form = Staged::NONE;
    for_each_format(StreamPieces<Acts, SinkOf>{launch, acts, shared, form, sink_of});
}

// Writes finished rows into a partial f32 [columns][stride].
struct PartialSink {
    float* out;  // the pass's first column, the segment's first row
    u32 stride;
    int rows, lane;

    // Of the only column.
    __device__ __forceinline__ void one(int row, float value) const {
        if (row < rows) out[row] = value;
    }

    __device__ __forceinline__ void operator()(int row0, const Accumulator& acc) const {
        const int row = row0 + (lane >> 2), column = 2 * (lane & 3);
        const bool live[2] = {row < rows, row + 8 < rows};
        // From column to column by one pointer: separate offsets would all be kept in registers.
        float* at = out + size_t(u32(column)) * stride + row;
#pragma unroll
        for (int b = 0; b < COLUMN_BLOCKS; ++b) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                if (8 * b + 8 <= COLUMNS || 8 * b + column + c < COLUMNS) {
                    if (live[0]) at[0] = acc[b][c];
                    if (live[1]) at[8] = acc[b][2 + c];
                }
                at += c == 0 ? size_t(stride) : 7 * size_t(stride);
            }
        }
    }
};
