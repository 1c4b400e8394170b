// A rectangle of super-tiles where shared memory is too small for all activations of its k: they are staged in chunks.
//
// A warp computes whole blocks of 16 rows, one per round, in as many rounds as the rectangle needs. In a round all
// warps advance along k together, CHUNK tiles at a time: one buffer is read while the next chunk is copied into the
// other. So a pass of any width reads each weight once, and K needs few parts. Activations are read from the L2 again
// in every round.
//
// Sums: in the order and in the SHARES of stream_rectangle, so with the same bits. A block of rows in which a share
// begins is added up in two parts or more; few blocks are, so the parts before are kept in local memory, where they
// need no register.
//
// CHUNK: tiles of 256 k per chunk. Shared memory: 2 * CHUNK staged tiles.

#pragma once

#include "matmul.cuh"

// The sums of a block of rows up to the last share that began in it.
struct EarlierShares {
    volatile float sum[COLUMN_BLOCKS][4];
    bool any = false;

    // Adds the chain in `acc`, which begins again.
    __device__ __forceinline__ void take(Accumulator& acc) {
        add_to(acc);
#pragma unroll
        for (int b = 0; b < COLUMN_BLOCKS; ++b) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum[b][i] = acc[b][i];
                acc[b][i] = 0.0f;
            }
        }
        any = true;
    }
    __device__ __forceinline__ void add_to(Accumulator& acc) const {
        if (!any) return;
#pragma unroll
        for (int b = 0; b < COLUMN_BLOCKS; ++b) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[b][i] = __fadd_rn(sum[b][i], acc[b][i]);
        }
    }
};

// See stream_rectangle. `form` says whether the previous kernel has been waited for.
template <class F, class Sink>
__device__ __forceinline__ void stream_in_chunks(
    const Rectangle& part, const StoredActs& acts, u8* staged, Staged& form, Sink&& sink) {
    using M = Meeting<F>;
    const int lane = lane_id(), warp = warp_id(), kn = part.kn, tiles = part.rows * kn;
    // Rounds are of equal size, so that the last one does not leave most warps idle.
    const int rounds = ceil_div(part.rows, WARPS), side_by_side = ceil_div(part.rows, rounds);
    const int mine = warp < side_by_side ? ceil_div(part.rows - warp, side_by_side) : 0;  // this warp's rounds
    const u32 to_next_round = u32(side_by_side * part.tiles_k - kn + 1) * F::BYTES;
    const u8* tile = part.weights + (size_t(part.first + warp) * part.tiles_k + part.k0) * F::BYTES;

    Ahead<F> ahead;
    if (mine > 0) ahead.begin(tile, lane);

    prepare(F{});
    if (form == Staged::NONE) pdl_wait();
    form = M::F16_ACTS ? Staged::F16 : Staged::Q8;
    u8* const buffer[2] = {staged, staged + CHUNK * M::STAGE};
    acts.stage<F>(buffer[0], part.k0, min(CHUNK, kn));
    cp_async_commit();

    int turn = 0;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const int first = (round * side_by_side + warp) * kn;
        int left = next_share(tiles, first) - first;  // tiles until a share begins
        Accumulator acc = {};
        EarlierShares earlier;
#pragma unroll 1
        for (int k = 0; k < kn; k += CHUNK, turn ^= 1) {
            cp_async_wait<0>();
            __syncthreads();  // the chunk is loaded, and the other buffer is no longer read
            const int next_k = k + CHUNK < kn ? k + CHUNK : 0;
            if (next_k > 0 || round + 1 < rounds) {
                acts.stage<F>(buffer[turn ^ 1], part.k0 + next_k, min(CHUNK, kn - next_k));
            }
            cp_async_commit();
            if (round >= mine) continue;
            const u8* staged_tile = buffer[turn];
            const int some = min(CHUNK, kn - k);
            const u8* const end = staged_tile + some * M::STAGE;
            // After the very last tile the same one is requested again, and not used.
            const u32 behind_chunk = next_k > 0 ? F::BYTES : round + 1 < mine ? to_next_round : 0;
            // Rarely more than one turn: a share that begins among these tiles ends one.
            for (int done = 0, until; done < some; left -= until - done, done = until) {
                if (left == 0) {
                    earlier.take(acc);
                    left = next_share(tiles, first + k + done) - (first + k + done);
                }
                until = min(some, done + left);
                const u8* const border = buffer[turn] + until * M::STAGE;
#pragma unroll 1
                for (; staged_tile < border; staged_tile += M::STAGE) {
                    const u8* next = tile + (staged_tile + M::STAGE < end ? F::BYTES : behind_chunk);
                    multiply_tile<F>(ahead, tile, true, next, staged_tile, lane, Added{acc});
                    tile = next;
                }
            }
        }
        if (round >= mine) continue;
        earlier.add_to(acc);
        deliver<F>(sink, (part.first + round * side_by_side + warp) * TILE_ROWS, acc);
    }
    __syncthreads();  // another rectangle may use the buffers
}
