// One row: the warps of a block take tiles as they become free.
//
// With equal shares the warps of a block finish up to 3 us apart, out of 8 to 25 us, and only the last ones do not
// keep the memory busy. Here the next free warp takes the next tile, and each tile's sums go to shared memory. When all
// are stored, a thread adds the tiles of a row in the order and in the SHARES of stream_rectangle: the same bits. A
// warp claims each tile two tiles ahead, so weights are requested as early as with equal shares.
//
// On an H200, whole steps of one row against equal shares: the 27B 1.9 % faster, the 8B 1.2 % (docs/notes/steps.md).
//
// Included by matmul_launch.cuh.

#pragma once

#include "matmul.cuh"

static_assert(COLUMNS == 1, "the sums of all tiles of one column fit shared memory");

// Scales of activations per tile.
template <class F> constexpr int TILE_SPANS = TILE_UNITS / Meeting<F>::SPAN_UNITS;

// See stream_rectangle, but with sink.one(row, value). After the staged activations there is space for the sums, 64 B
// per tile and span.
template <class F, class Acts, class Sink>
__device__ __forceinline__ void stream_claimed(
    const Rectangle& part, const Acts& acts, u8* staged, Staged& form, Sink&& sink) {
    using M = Meeting<F>;
    constexpr int TILE_SUMS = TILE_SPANS<F> * TILE_ROWS;
    __shared__ int claimed;
    float* const sums = (float*)(staged + part.kn * M::STAGE);
    const int lane = lane_id(), kn = part.kn, tiles = part.rows * kn, skip = part.tiles_k - kn;
    const u8* const weights = part.weights + (size_t(part.first) * part.tiles_k + part.k0) * F::BYTES;
    const float per_block = 1.0f / float(kn);
    const auto block_of = [&](int at) { return int((float(at) + 0.5f) * per_block); };
    const auto tile_at = [&](int at, int block) { return weights + size_t(at + block * skip) * F::BYTES; };

    int at = warp_id(), after = at + WARPS, block = block_of(at);
    const u8* tile = tile_at(at, block);
    Ahead<F> ahead;
    if (at < tiles) ahead.begin(tile, lane);
#if PREFETCH
    if (form == Staged::NONE && lane < PREFETCH && after + lane * WARPS < tiles) {
        const int further = after + lane * WARPS;
        bulk_prefetch(tile_at(further, block_of(further)), F::BYTES);
    }
#endif

    prepare(F{});
    if (form != Staged::NONE) __syncthreads();  // the sums of the previous rectangle have been read
    if (threadIdx.x == 0) claimed = 2 * WARPS;
    stage_once<F>(acts, staged, part, form);
    __syncthreads();
    if constexpr (SUMMED<F>) {
        sum_sixteens<F>(staged, kn);
        __syncthreads();
    }

    if (at < tiles) {
        while (true) {
            int claim = 0;
            if (lane == 0) claim = atomicAdd(&claimed, 1);
            float* const to = sums + at * TILE_SUMS + (lane >> 2);
            const u8* const acts_of_tile = staged + (at - block * kn) * M::STAGE;
            const auto keep = [&](int span, int, int i, float value, float) {
                if ((i & 1) == 0 && (lane & 3) == 0) to[span * TILE_ROWS + 4 * i] = value;  // rows g and g + 8
            };
            if (after >= tiles) {
                multiply_tile<F>(ahead, tile, false, tile, acts_of_tile, lane, keep);
                break;
            }
            const int block_after = block_of(after);
            const u8* const next = tile_at(after, block_after);
            multiply_tile<F>(ahead, tile, true, next, acts_of_tile, lane, keep);
            at = after, block = block_after, tile = next;
            after = __shfl_sync(FULL_WARP, claim, 0);
        }
    }
    __syncthreads();
    for (int row = threadIdx.x; row < part.rows * TILE_ROWS; row += MATMUL_THREADS) {
        const int first = row / TILE_ROWS * kn;
        const float* of_tile = sums + first * TILE_SUMS + row % TILE_ROWS;
        int next = next_share(tiles, first) - first;
        float total = 0.0f, chain = 0.0f;
        bool whole = false;  // something was added to the total
        for (int k = 0; k < kn; ++k, of_tile += TILE_SUMS) {
            if (k == next) {
                total = whole ? __fadd_rn(total, chain) : chain;
                whole = true;
                chain = 0.0f;
                next = next_share(tiles, first + k) - first;
            }
#pragma unroll
            for (int span = 0; span < TILE_SPANS<F>; ++span) {
                const float factor = *column_scales<F>(staged + k * M::STAGE, span, 0);
                chain = __fmaf_rn(of_tile[span * TILE_ROWS], factor, chain);
            }
        }
        sink.one(part.first * TILE_ROWS + row, whole ? __fadd_rn(total, chain) : chain);
    }
}
