// Weights through the gap between two products: a warp's next super-tiles, copied ahead into its own shared memory.
//
// Registers hold the tile that comes next, which covers a trip to memory. A small kernel between two products takes two
// or three trips: meanwhile nothing is asked for, and memory idles. Weights are nobody's result, so a thread block that
// was set up early fills its rings before pdl_wait. While it streams, the place of a tile that has gone into registers
// takes the one DEPTH tiles further on.
//
// PREFETCH: bytes of a warp's ring, 0 for none; it holds as many tiles of a format as fit. sm_90 and later.

#pragma once

#include "formats/format.cuh"

#ifndef PREFETCH
#define PREFETCH 0
#endif

constexpr int RING_PLACES = 4;  // at most
constexpr int RING_BYTES = PREFETCH ? RING_PLACES * 16 + PREFETCH : 0;  // of a warp: a barrier per place, then tiles
static_assert(PREFETCH % 16 == 0, "bulk copies are of whole 16 bytes");

#if PREFETCH
// A warp's ring, whatever goes through it. `phase`: bit p is the phase that place p waits for.
struct WarpRing {
    u8* at;
    u32 phase;

    // The warp calls, once.
    __device__ __forceinline__ void begin(u8* shared) {
        at = shared + warp_id() * RING_BYTES;
        phase = 0;
        if (lane_id() == 0) {
#pragma unroll
            for (int place = 0; place < RING_PLACES; ++place) mbarrier_init(arrived(place), 1);
            fence_bulk();
        }
        __syncwarp();
    }
    __device__ __forceinline__ u64* arrived(int place) const { return (u64*)(at + place * 16); }
};

// The tiles of F that a warp takes in one rectangle, behind the first.
template <class F, int DEPTH> struct TileRing {
    WarpRing& ring;
    const u8* from;  // the next tile to ask for
    int k, kn;       // its place in the row of tiles of this k_part
    u32 skip;        // bytes from the end of such a row to the next
    int left, place = 0;

    // `tile`: the one before the first, at k.
    __device__ __forceinline__ TileRing(WarpRing& ring, const u8* tile, int k, int kn, size_t skip, int tiles)
        : ring(ring), from(tile), k(k), kn(kn), skip(u32(skip)), left(tiles) {
        go_on();
#pragma unroll
        for (int p = 0; p < DEPTH; ++p) ask(p);
    }
    // The next tile, which has arrived.
    __device__ __forceinline__ SharedTile take() {
        mbarrier_wait(ring.arrived(place), ring.phase >> place & 1);
        ring.phase ^= 1u << place;
        return {tile_at(place)};
    }
    // What was taken last is in registers.
    __device__ __forceinline__ void give_back() {
        __syncwarp();
        ask(place);
        place = place + 1 == DEPTH ? 0 : place + 1;
    }

private:
    __device__ __forceinline__ u8* tile_at(int place) const { return ring.at + RING_PLACES * 16 + place * F::BYTES; }
    __device__ __forceinline__ void go_on() {
        from += F::BYTES;
        if (++k == kn) k = 0, from += skip;
    }
    __device__ __forceinline__ void ask(int place) {
        if (left <= 0) return;
        if (lane_id() == 0) bulk_copy(tile_at(place), from, F::BYTES, ring.arrived(place));
        go_on();
        --left;
    }
};
#else
struct WarpRing {
    __device__ __forceinline__ void begin(u8*) {}
};
template <class F, int DEPTH> struct TileRing {
    __device__ __forceinline__ TileRing(WarpRing&, const u8*, int, int, size_t, int) {}
};
#endif
