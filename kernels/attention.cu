// Full attention of the target, between its matmuls: attn_prepare -> attn_split -> attn_combine. In plain decoding one
// kernel does the work of the first two: attention_single_row.cu.
//
// Rows are nodes node0.. of the tree in `st`; node i has position length + depth[i], its key and value in slot
// length + i. Heads are HEAD_DIM wide; query head h reads kv head h / GROUP. The work is attention.cuh's.
//
// A node's result has the same bits as decoding its path token by token, whatever the tree: the order of its sums
// follows from its position p alone. Tiles before near_tile(p) are far: they are divided among the splits, parts NEAR
// and up. Each later tile up to p is a part of its own, 0..NEAR - 1. No node is deeper than MAX_NODES - 1, so far tiles
// hold committed positions only and are the same for all rows. So are near tiles that hold nothing after the root. In
// the other near tiles a node's keys are arranged by position, wherever the cache holds them. Nodes whose ancestors are
// 0, 1, 2, .. ("straight": plain decoding, a chain, a tree's first chain) have them in order and share the work; every
// other node is processed alone.
//
// Defines: HEAD_DIM; ROTARY, dimensions rotated; GROUP, query heads per kv head; SPLIT_K, split-K partials of a matmul;
// those of heads.cuh; SINKS where heads have sinks, which adds an argument to attn_combine. For attn_split: NEAR,
// ROW_TILES, ROW_WARPS, COLUMN_WARPS, TILE, CHUNK, STAGES, optionally COLUMNS and UNPACK_ONCE
// (backends/cuda/layers/split_attention.py chooses them), and WINDOWED where rows see only the first and the last
// positions, which adds an argument. For the cache: those of kv.cuh, and with RECENT the parts RECENT_SPLITS
// (attention_parts.cuh) and RECENT_STAGES, tiles of halves in flight.

#include "attention_parts.cuh"
#include "combine.cuh"

constexpr int PREPARE_WARPS = 4;

constexpr int NODE_TILES = ceil_div(GROUP, 16 * ROW_WARPS);  // tiles of 16 rows per row warp that hold one node
// Tiles of 16 rows per row warp in a piece of a near part: one where a block has several row warps, so that pieces are
// small and spread over many blocks.
constexpr int NEAR_TILES = ROW_WARPS == 1 ? ROW_TILES : 1;
constexpr int NEAR_ROWS = 16 * NEAR_TILES * ROW_WARPS;
constexpr int FEW_TURNS = 2;  // up to so many pieces per block, pieces of splits have NEAR_ROWS rows instead of ROWS
constexpr int PATH_BYTES = MAX_NODES + 128;                   // shared memory of attn_split, before that of attend
static_assert(THREADS >= 64, "a thread for every row of a pass");
static_assert(MAX_NODES <= 256 && TILE <= 128, "a path is bytes, and is read up to a tile past its end");

// The last tile not above `tile` that belongs to near part `part`. A tile's near part is its number modulo NEAR.
__device__ __forceinline__ int tile_of(int part, int tile) { return tile - (tile - part + NEAR) % NEAR; }

// The tree of a pass: row i is node node0 + i.
struct Tree {
    const StepState* st;
    int node0, length;

    __device__ int position(int row) const { return length + st->depth[node0 + row]; }
    // Whether the row's ancestors are nodes 0, 1, 2, ..: its positions and their slots are the same.
    __device__ bool straight(int row) const { return st->depth[node0 + row] == node0 + row; }
    // Tiles before this one hold committed positions and at most the root: they are the same for all rows.
    __device__ int common() const { return (length + 1) / TILE; }
};

// What many rows of a pass see of one part: a split, a recent or a near part. Only straight rows see tiles that are not
// common: NodeView has those of the other rows.
struct SharedView : Window {
    Tree tree;
    SplitTiles tiles;
    RecentTiles recent;
    int part, begin, keys, last;  // begin: the first tile of a near part
    static constexpr int step0 = 0;

    __device__ SharedView(const Tree& tree, const PackedRows& rows, int max_rows, int part, int splits, const Window& window)
        : Window(window), tree(tree), tiles{part - FIRST_SPLIT, splits}, recent(part, tree.length), part(part), begin(0) {
        const int first = rows.first / GROUP;
        last = (rows.first + min(rows.live, max_rows) - 1) / GROUP;
        const int deepest = tree.length + tree.node0 + last;  // no row has a later position
        if (!near()) {
            keys = end_of(deepest) * TILE;
        } else {
            keys = tree.straight(first) ? deepest + 1 : tree.common() * TILE;
            begin = tile_of(part, near_tile(tree.length) + NEAR - 1);
            if (hides(tree.length, begin * TILE)) begin += NEAR;
        }
    }

    __device__ bool near() const { return part < NEAR; }
    __device__ bool split() const { return part >= FIRST_SPLIT; }
    // A row at a position sees tiles of this part's kind from begin_of on, and but for near ones before end_of.
    __device__ int begin_of(int position) const {
        return split() ? 0 : near() ? near_tile(position) : border_tile(position);
    }
    __device__ int end_of(int position) const { return split() ? border_tile(position) : near_tile(position); }

    __device__ int tile(int step) const {
        if (split()) return tiles.tile(Window::step(tiles, step, tree.length));
        return RECENT_SPLITS && !near() ? recent.tile(step) : begin + NEAR * step;
    }
    __device__ InOrder order(int) const { return {}; }

    __device__ bool open(int begin) const {
        const int end = begin + TILE, deepest = tree.length + tree.node0 + last;
        if (!shows(deepest, begin) || begin < begin_of(deepest) * TILE) return false;
        return end <= (near() ? tree.length + 1 : end_of(tree.length) * TILE);
    }

    __device__ u64 visible(int row, int begin) const {
        const int position = tree.position(row);
        int end = end_of(position) * TILE;
        if (near()) end = tree.straight(row) ? position + 1 : tree.common() * TILE;
        return shown(position, begin) & bit_range(begin_of(position) * TILE - begin, end - 1 - begin);
    }

    __device__ bool stores(int row) const {
        return !near() || tree.straight(row) || tile_of(part, tree.position(row) / TILE) < tree.common();
    }
};

// What a node that is not straight sees of one tile that is not common. path[d] is its ancestor at depth d.
struct NodeView : Window {
    int first, length, keys;
    const u8* path;
    const NewestRows& cache;
    static constexpr int step0 = 0;

    __device__ NodeView(
        int first, int length, int keys, const u8* path, const NewestRows& cache, const Window& window
    ) : Window(window), first(first), length(length), keys(keys), path(path), cache(cache) {}

    struct Order {
        static constexpr bool STRAIGHT = false;
        const u8* path;
        const NewestRows& cache;
        int begin, committed;  // rows of the tile that are committed positions; negative if it begins in the tree
        __device__ int operator()(int row) const {
            return row < committed ? row : cache.after(begin, committed + path[row - committed]);
        }
        __device__ bool skips(int) const { return false; }
    };

    __device__ int tile(int step) const { return first + NEAR * step; }
    __device__ Order order(int begin) const { return {path, cache, begin, length - begin}; }
    __device__ bool open(int begin) const { return begin + TILE <= keys && shows(keys - 1, begin); }
    __device__ u64 visible(int, int begin) const {
        return bit_range(0, keys - 1 - begin) & shown(keys - 1, begin);
    }
    __device__ bool stores(int) const { return true; }
};

// Sums the partials of [attn_q | attn_k | attn_v] (per query head: query, then its gate), normalises and rotates
// queries and keys, writes q f16 [kv heads][rows * GROUP][HEAD_DIM] times `scale` (log2(e) / sqrt(HEAD_DIM)), and keys
// and values into slots length + node. Grid (ceil(tasks / PREPARE_WARPS), rows); a warp per task, which is a head to
// write.
// Bound by latency: with 24 + 2 x 4 heads of 256, a row reads 32 KB per partial and writes 16 KB.
extern "C" __global__ void __launch_bounds__(WARP* PREPARE_WARPS) attn_prepare(
    const StepState* st, int node0, const float* partials, int rows, int kv_heads, const float* q_norm,
    const float* k_norm, const float* frequency, float eps, float scale, half* q, u8* k, u8* v,
    int slots RECENT_PARAMETER BIAS_PARAMETER
) {
    pdl_launch();
    const int heads = kv_heads * GROUP, task = blockIdx.x * PREPARE_WARPS + warp_id(), row = blockIdx.y;
    pdl_wait();
    if (task >= heads + MADE_PARTS * kv_heads || node0 + row >= st->n) return;
    const Projection in = {partials, rows, projected(kv_heads), BIAS};
    const int position = st->length + st->depth[node0 + row], slot = st->length + node0 + row;
    prepare_head<QUERY_PARTS * HEAD_DIM>(
        in, row, task, kv_heads, position, slot, q_norm, k_norm, frequency, eps, scale, q, {k, v, slots RECENT_GIVEN}
    );
}

// How the work for one kv head is cut into pieces, and how many of them this block takes.
struct Deal : Window {
    int length, live, near_blocks;
    int own;                    // nodes that are not straight, always the last ones: a piece each
    int far_rows;               // rows of a piece of a split
    int from_first, from_last;  // the block's pieces: of splits, and those that exist at any context length

    __device__ Deal(const StepState* st, int node0, int rows, int splits, int straight, const Window& window)
        : Window(window), length(st->length), live(min(st->n - node0, rows)),
          near_blocks(ceil_div(live * GROUP, NEAR_ROWS)), own(live - straight) {
        const int block = blockIdx.x, blocks = gridDim.x, always = own + FIRST_SPLIT * near_blocks;
        const int far = splits_of(length + node0 + live - 1, splits);
        // Larger pieces read a tile once for more rows; smaller ones, where there are few, occupy more blocks.
        far_rows = far * near_blocks + always <= FEW_TURNS * blocks ? NEAR_ROWS : ROWS;
        from_first = max(ceil_div(far_blocks() * far - block, blocks), 0);
        from_last = max(ceil_div(always - (blocks - 1 - block), blocks), 0);
    }
    __device__ int far_blocks() const { return ceil_div(live * GROUP, far_rows); }
};
static_assert(MAX_NODES + TILE + sizeof(Deal) <= PATH_BYTES, "room after the path");

// One piece of a block's work: of splits, or of the others, or of either kind. A separate function, because attend needs
// the registers that a loop around it would hold, and two forms of it more than one.
template <bool SPLITS, bool OTHERS>
__device__ __attribute__((noinline)) void attend_piece(
    const StepState* st, int node0, int rows, int splits, int turn, const half* q, u8* k, u8* v, int slots, float* out,
    float2* stats RECENT_PARAMETER
) {
    SHARED_DYNAMIC(shared);
    u8 *const path = shared, *const tiles = shared + PATH_BYTES;
    const Deal* const deal = reinterpret_cast<Deal*>(shared + MAX_NODES + TILE);
    const KeyValues cache = {k, v, slots RECENT_GIVEN};
    const NewestRows& newest = newest_of(cache);
    const CopiedQueries queries = {q};
    const Tree tree = {st, node0, deal->length};
    const bool split = SPLITS && (!OTHERS || turn < deal->from_first);
    const int item = split ? blockIdx.x + gridDim.x * turn
                           : gridDim.x - 1 - blockIdx.x + gridDim.x * (turn - deal->from_first) - deal->own;
    if (split || item >= 0) {
        const int row_blocks = split ? deal->far_blocks() : deal->near_blocks;
        const int max_rows = split ? deal->far_rows : NEAR_ROWS;
        const int which = item / row_blocks, first = item % row_blocks * max_rows;
        const PackedRows some = {int(blockIdx.y), int(gridDim.y), rows * GROUP, first, deal->live * GROUP - first};
        const int part = split ? FIRST_SPLIT + which : which;
        const SharedView view(tree, some, max_rows, part, splits, *deal);
        constexpr bool ALIKE = NEAR_TILES == ROW_TILES;
        if constexpr (!SPLITS) {
            attend<NEAR_TILES, NewestForm>(view, some, part, queries, newest, tiles, out, stats);
        } else if (ALIKE || max_rows == ROWS) {
            attend<ROW_TILES>(view, some, part, queries, cache, tiles, out, stats);
        } else {
            attend<NEAR_TILES>(view, some, part, queries, cache, tiles, out, stats);
        }
        return;
    }
    if (!OTHERS) return;

    // The ancestor at depth d is the node whose bit in the mask has d set bits below it.
    const int row = deal->live + item, position = tree.position(row);
    const u64* const mask = st->mask[node0 + row];
    for (int node = threadIdx.x; node < MAX_NODES; node += THREADS) {
        const u64 word = mask[node / 64];
        if (!(word >> node % 64 & 1)) continue;
        int depth = __popcll(word & ((1ull << node % 64) - 1));
        for (int before = 0; before < node / 64; before++) depth += __popcll(mask[before]);
        path[depth] = node;
    }
    const PackedRows single = {int(blockIdx.y), int(gridDim.y), rows * GROUP, row * GROUP, GROUP};
#pragma unroll 1
    for (int tile = tree.common(); tile <= position / TILE; tile++) {
        __syncthreads();  // the path is written, and all threads have finished the previous tile
        const int keys = deal->hides(position, tile * TILE) ? 0 : position + 1;
        const NodeView view(tile, tree.length, keys, path, newest, *deal);
        attend<NODE_TILES, NewestForm>(view, single, tile % NEAR, queries, newest, tiles, out, stats);
    }
}

// Partial attention of all parts: see attend. Grid (any number of blocks, kv heads). Pieces of work are assigned to
// blocks round robin. Those of splits (a split times a group of rows) start with the first block. Those that exist at
// any context length (a node that is not straight; a near part times a group of rows) start with the last block and go
// backwards. Launch no more blocks than run at the same time: each takes most of an SM.
extern "C" __global__ void __launch_bounds__(THREADS, 1) attn_split(
    const StepState* st, int node0, int rows, int splits, const half* q, u8* k, u8* v, int slots, float* out,
    float2* stats RECENT_PARAMETER WINDOW_PARAMETER
) {
    pdl_launch();
    SHARED_DYNAMIC(shared);
    pdl_wait();
    if (node0 >= st->n) return;
    Deal* const deal = reinterpret_cast<Deal*>(shared + MAX_NODES + TILE);
    const int row = threadIdx.x;
    const int straight = __syncthreads_count(row < min(st->n - node0, rows) && Tree{st, node0, 0}.straight(row));
    if (threadIdx.x == 0) *deal = Deal(st, node0, rows, splits, straight, WINDOW);
    __syncthreads();
#pragma unroll 1
    for (int turn = 0; turn < deal->from_first + deal->from_last; turn++) {
        if (turn) __syncthreads();  // all threads have finished the previous piece
        if constexpr (RECENT_SPLITS == 0) {
            attend_piece<true, true>(st, node0, rows, splits, turn, q, k, v, slots, out, stats RECENT_PASSED);
        } else if (turn < deal->from_first) {
            attend_piece<true, false>(st, node0, rows, splits, turn, q, k, v, slots, out, stats RECENT_PASSED);
        } else {
            attend_piece<false, true>(st, node0, rows, splits, turn, q, k, v, slots, out, stats RECENT_PASSED);
        }
    }
}

// See combine.cuh. Grid (groups of 256 activations, rows). Bound by latency; reads 1 KB per part and group.
extern "C" __global__ void __launch_bounds__(WARP* MERGE_WARPS, 6) attn_combine(
    const StepState* st, int node0, const float* out, const float2* stats, int splits, const float* partials, int rows,
    int kv_heads, u8* acts_q8, u8* acts_f16 SINK_PARAMETER
) {
    pdl_launch();
    const int row = blockIdx.y;
    const GatedGroup group(blockIdx.x, kv_heads);
    const SinkOf sink(SINKS_GIVEN, group.padding ? 0 : group.element / HEAD_DIM);
    pdl_wait();
    if (node0 + row >= st->n) return;
    const auto parts = [&] { return FIRST_SPLIT + splits_of(st->length + st->depth[node0 + row], splits); };
    group.combine(parts, row, rows, kv_heads, out, stats, partials, {acts_q8, acts_f16}, sink);
}
