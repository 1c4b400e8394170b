// Who does what in a launch of matmul or head: several matrices of the same K, split over k split_k and blocks.
//
// Mirrored by backends/cuda/plan.py, which deals blocks in proportion to bytes. Passed by value: a block finds its
// share without a trip to memory.

#pragma once

#include "matmul.cuh"
#ifdef CHUNK
#include "matmul_chunks.cuh"
#endif

constexpr int MAX_SEGMENTS = 6, MAX_SPLIT_K = 32, MAX_GRID = 256;

struct Segment {
    const u8* weights;
    int format;   // enum Format
    int blocks;   // of 16 rows
    int rows;     // live ones; more are computed, not stored
    int offset;   // of its first row in the output
};

struct MatmulLaunch {
    Segment segment[MAX_SEGMENTS];
    int segments, tiles_k, split_k, stride;
    u16 part_begin[MAX_SPLIT_K + 2];  // the first thread block of each k k_part, and the grid's size
    u16 row_begin[MAX_GRID];          // the first block of rows of each thread block, over all segments
};

// The thread block's pieces of one format, one after another: visit(segment, Rectangle, k_part). A piece is found from
// the tables each time: what is not kept costs no registers while a piece streams.
template <class Visit>
__device__ __forceinline__ void for_each_piece(const MatmulLaunch& launch, int format, Visit&& visit) {
#pragma unroll 1
    for (int s = 0; s < launch.segments; ++s) {
        if (launch.segment[s].format != format) continue;
        const int me = blockIdx.x;
        int k_part = 0, base = 0, total = 0;
        while (me >= launch.part_begin[k_part + 1]) ++k_part;
        for (int i = 0; i < launch.segments; ++i) {
            if (i == s) base = total;
            total += launch.segment[i].blocks;
        }
        const Segment& segment = launch.segment[s];
        const int last = me + 1 == launch.part_begin[k_part + 1] ? total : launch.row_begin[me + 1];
        const int from = max(int(launch.row_begin[me]), base), to = min(last, base + segment.blocks);
        if (from >= to) continue;
        const int k0 = launch.tiles_k * k_part / launch.split_k, k1 = launch.tiles_k * (k_part + 1) / launch.split_k;
        visit(segment, Rectangle{segment.weights, launch.tiles_k, from - base, to - from, k0, k1 - k0}, k_part);
    }
}

// Streams the pieces of one format into sink_of(segment, k_part).
template <class Acts, class SinkOf> struct StreamPieces {
    const MatmulLaunch& launch;
    const Acts& acts;
    u8* shared;  // slots, then staged activations; of chunks those alone
    Staged& form;
    SinkOf& sink_of;

    template <class F> __device__ __forceinline__ void operator()() const {
        for_each_piece(launch, F::NUMBER, [&](const Segment& segment, const Rectangle& part, int k_part) {
#ifdef CHUNK
            stream_in_chunks<F>(part, acts, shared, form, sink_of(segment, k_part));
#else
            stream_rectangle<F>(
                part, acts, (float*)shared, shared + WARPS * COLUMN_BLOCKS * 512, form, sink_of(segment, k_part));
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

    __device__ __forceinline__ void operator()(int row0, const Accumulator& acc) const {
        const int row = row0 + (lane >> 2), column = 2 * (lane & 3);
        const bool live[2] = {row < rows, row + 8 < rows};
        // From column to column by one pointer: offsets of their own would all be kept in registers.
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
