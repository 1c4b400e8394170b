// How the tiles that a row of a tree's pass sees are divided into parts, and the window that it sees them through.
// attention.cu says what near and far are.

#pragma once

#include "attention.cuh"
#include "state.cuh"

static_assert(NEAR == ceil_div(MAX_NODES - 1, TILE) + 1, "tiles from near_tile(p) to that of p, both with them");

// The first tile of a position's near keys.
__device__ __forceinline__ int near_tile(int position) { return max(position - (MAX_NODES - 1), 0) / TILE; }

// With RECENT, a row at position p reads positions from its border on as halves, and those before it packed: the twin of
// CachePair.border in cache_types.py. Its tiles are then of three kinds: stored ones before border_tile(p), recent ones
// before near_tile(p), and near ones. A kind's tiles are divided into parts of their own: NEAR, RECENT_SPLITS, splits.
#ifdef RECENT
constexpr int RECENT_STEP = 128;
static_assert(CHUNK * TILE == RECENT_STEP, "recent tiles begin with a whole group");
static_assert(RECENT % RECENT_STEP == 0 && RECENT >= MAX_NODES - 1 + TILE, "near tiles are recent");
__device__ __forceinline__ int border_tile(int position) {
    return max(position + 1 - RECENT, 0) / RECENT_STEP * CHUNK;
}
#else
constexpr int RECENT_SPLITS = 0;
__device__ __forceinline__ int border_tile(int position) { return near_tile(position); }
#endif
constexpr int FIRST_SPLIT = NEAR + RECENT_SPLITS;  // the first part that is a split

// How many splits read the stored tiles of a row at `position`.
__device__ __forceinline__ int splits_of(int position, int splits) {
    return min(ceil_div(border_tile(position), CHUNK), splits);
}

// The tiles of recent part `part`, of rows from position `first` on: groups of CHUNK adjacent ones, dealt round robin.
struct RecentTiles {
    int group;  // the first

    __device__ __forceinline__ RecentTiles(int part, int first) : group(border_tile(first) / CHUNK) {
        constexpr int COUNT = RECENT_SPLITS ? RECENT_SPLITS : 1;
        group += (part - NEAR + COUNT - group % COUNT) % COUNT;
    }
    __device__ __forceinline__ int tile(int step) const {
        return CHUNK * (group + RECENT_SPLITS * (step / CHUNK)) + step % CHUNK;
    }
};

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
