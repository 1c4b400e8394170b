// How the tiles that a row of a tree's pass sees are divided into parts, and the window that it sees them through.
// attention.cu says what near and far are.

#pragma once

#include "attention.cuh"
#include "state.cuh"

static_assert(NEAR == ceil_div(MAX_NODES - 1, TILE) + 1, "tiles from near_tile(p) to that of p, both with them");

// The first tile of a position's near keys.
__device__ __forceinline__ int near_tile(int position) { return max(position - (MAX_NODES - 1), 0) / TILE; }

// How many splits the tiles before `tile` are divided among.
__device__ __forceinline__ int splits_of(int tile, int splits) { return min(ceil_div(tile, CHUNK), splits); }

// The window: which positions a query at some position sees, apart from parts, the tree and causality. A base class,
// empty without WINDOWED. A tile that no row of a part sees is not read. A tile that only some rows see does not change
// the results of the others by a bit. A kernel has WINDOW_PARAMETER as its last one, and WINDOW is what was given.
#ifdef WINDOWED
struct Window {
    int size, sinks;  // visible: the last `size` positions, its own included, and the first `sinks`

    __device__ u64 shown(int position, int begin) const {
        return bit_range(0, sinks - 1 - begin) | bit_range(position - size + 1 - begin, 63);
    }
    // shows: all positions up to `last` see all of the tile that begins at `begin`. It may be false for a tile that
    // sinks and window only cover together. hides: no position from `first` on sees any of the tile.
    __device__ bool shows(int last, int begin) const { return begin + TILE <= sinks || begin > last - size; }
    __device__ bool hides(int first, int begin) const { return begin >= sinks && begin + TILE <= first - size + 1; }
    // The `step`-th of the split's steps that are not skipped. Skipped are those whose tile no position from `first` on
    // sees.
    __device__ int step(const SplitTiles& tiles, int step, int first) const {
        const int before = tiles.from(ceil_div(sinks, TILE));
        return step < before ? step : max(tiles.from(max(first - size + 1, 0) / TILE), before) + step - before;
    }
};
#define WINDOW_PARAMETER , const Window* window
#define WINDOW (*window)
#else
struct Window {
    __device__ u64 shown(int, int) const { return ~0ull; }
    __device__ bool shows(int, int) const { return true; }
    __device__ bool hides(int, int) const { return false; }
    __device__ int step(const SplitTiles&, int step, int) const { return step; }
};
#define WINDOW_PARAMETER
#define WINDOW Window()
#endif
