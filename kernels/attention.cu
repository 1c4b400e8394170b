// Full attention of the target, between its matmuls: attn_prepare -> attn_split -> attn_combine. In plain decoding one
// kernel does the work of the first two: attention_single_row.cu.
//
// Rows are nodes node0.. of the tree in `st`; node i has position length + depth[i], its key and value in slot
// length + i. Heads are HEAD_DIM wide; query head h reads kv head h / GROUP. The work is attention.cuh's.
//
// A node's result has the same bits as decoding its path token by token, whatever the tree: the order of its sums
// follows only from its position p. Tiles before near_tile(p) are far: they are divided among the splits, parts NEAR
// and up. Each later tile up to p is a part of its own, 0..NEAR - 1. No node is deeper than MAX_NODES - 1, so far tiles
// hold committed positions only and are the same for all rows. So are near tiles that hold nothing after the root. In
// the other near tiles a node's keys are arranged by position, wherever the cache holds them. Nodes whose ancestors are
// 0, 1, 2, .. ("straight": plain decoding, a chain, a tree's first chain) have them in order and share the work. Of the
// other nodes a piece has one, or where all pieces are more than the blocks as many as there are row warps, each with a
// node of its own: the keys of all their ancestors are copied once, and read in the order of each node's path.
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

// Nodes that are not straight: the most of a piece, each in a row warp of its own, where warps can read a tile in any
// order; else one. A row warp has NODE_TILES tiles of 16 rows of a node.
constexpr bool ANY_ORDER = NewestForm::KEY_HALVES && NewestForm::VALUE_HALVES && GROUP <= 16;
constexpr int NODE_LIMIT = MAX_NODES / TILE - 1;  // by the memory for Arranged
constexpr int NODES = !ANY_ORDER ? 1 : ROW_WARPS < NODE_LIMIT ? ROW_WARPS : NODE_LIMIT;
constexpr int NODE_TILES = NODES > 1 ? 1 : ceil_div(GROUP, 16 * ROW_WARPS);
using NodeRows = SpreadRows<NODES>;
// Tiles of 16 rows per row warp in a piece of a near part: one where a block has several row warps, so that pieces are
// small and spread over many blocks.
constexpr int NEAR_TILES = ROW_WARPS == 1 ? ROW_TILES : 1;
constexpr int NEAR_ROWS = 16 * NEAR_TILES * ROW_WARPS;
constexpr int FEW_TURNS = 2;  // up to so many pieces per block, pieces of splits have NEAR_ROWS rows instead of ROWS
constexpr int PATH_BYTES = MAX_NODES + 128;  // shared memory of attn_split, before that of attend: Arranged, and a Deal
constexpr int DEAL_AT = MAX_NODES + 64;
static_assert(THREADS >= 64, "a thread for every row of a pass");
static_assert(MAX_NODES <= 256, "a node is a byte");

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
// common: NodesView has those of the other rows.
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
    __device__ InPlace placed(int) const { return {}; }

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

// What NODES nodes that are not straight see of one tile that is not common, row warp w the w-th of them. Keys of all
// their ancestors in the tile, and of committed positions before them, are copied once; a row warp then reads them in the
// order of its node's path.
struct NodesView : Window {
    Tree tree;
    int first, before, keys;  // the tile; its committed positions
    const u8 *list, *places;  // see Arranged
    const NewestRows& cache;
    static constexpr int step0 = 0;

    __device__ NodesView(
        const Tree& tree, int first, int before, int keys, const u8* list, const u8* places, const NewestRows& cache,
        const Window& window
    ) : Window(window), tree(tree), first(first), before(before), keys(keys), list(list), places(places), cache(cache) {}

    struct Order {
        static constexpr bool STRAIGHT = false;
        const u8* list;
        const NewestRows& cache;
        int begin, before, root;  // root: where node 0 is, counted from the tile's beginning
        __device__ int operator()(int row) const {
            return row < before ? row : cache.after(begin, root + list[row - before]);
        }
        __device__ bool skips(int) const { return false; }
    };
    struct Placed {
        static constexpr bool IN_ORDER = NODES == 1;  // of a single node ancestors are listed in order
        const u8* of;
        __device__ __forceinline__ int operator()(int key) const { return IN_ORDER ? key : of[key]; }
    };

    __device__ int tile(int step) const { return first + NEAR * step; }
    __device__ Order order(int begin) const { return {list, cache, begin, before, tree.length - begin}; }
    __device__ Placed placed(int row_warp) const { return {places + min(row_warp, NODES - 1) * TILE}; }
    __device__ bool open(int) const { return false; }
    __device__ u64 visible(int row, int begin) const {
        const int position = tree.position(row);
        return bit_range(0, position - begin) & shown(position, begin);
    }
    __device__ bool stores(int row) const { return first <= tree.position(row) / TILE; }
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
    const int task = blockIdx.x * PREPARE_WARPS + warp_id(), row = blockIdx.y;
    const KeyValues cache = {k, v, slots RECENT_GIVEN};
    if (task >= kv_heads * (GROUP + MADE_PARTS)) return;
    const Projection in = {partials, rows, projected(kv_heads), BIAS};
    const HeadTask made(task, kv_heads, q_norm, k_norm, frequency);
    pdl_wait();
    const int n = st->n, length = st->length, depth = st->depth[node0 + row];
    Head head = made.load<QUERY_PARTS * HEAD_DIM>(in, row);  // requested before it is known whether the row is live
    if (node0 + row >= n) return;
    made.store<KeyType>(head, row, rows, length + depth, length + node0 + row, eps, scale, q, cache);
}

// How the work for one kv head is cut into pieces, and how many of them this block takes.
struct Deal : Window {
    int length, live, near_blocks;
    int straight;               // nodes; the others are always the last ones
    int nodes, own;             // of these in a piece, and their pieces
    int far_rows;               // rows of a piece of a split
    int from_first, from_last;  // the block's pieces: of splits, and those that exist at any context length

    __device__ Deal(int node0, int length, int live, int splits, int straight, const Window& window)
        : Window(window), length(length), live(live), near_blocks(ceil_div(live * GROUP, NEAR_ROWS)),
          straight(straight), nodes(1), own(live - straight) {
        const int block = blockIdx.x, blocks = gridDim.x, near = FIRST_SPLIT * near_blocks;
        const int far = splits_of(length + node0 + live - 1, splits);
        // A single node is faster, but not than two of them in turn.
        if (far * near_blocks + near + own > blocks) nodes = NODES, own = ceil_div(own, NODES);
        const int always = own + near;
        // Larger pieces read a tile once for more rows; smaller ones, where there are few, occupy more blocks.
        far_rows = far * near_blocks + always <= FEW_TURNS * blocks ? NEAR_ROWS : ROWS;
        from_first = max(ceil_div(far_blocks() * far - block, blocks), 0);
        from_last = max(ceil_div(always - (blocks - 1 - block), blocks), 0);
    }
    __device__ int far_blocks() const { return ceil_div(live * GROUP, far_rows); }
};
static_assert(DEAL_AT + sizeof(Deal) <= PATH_BYTES, "memory after Arranged");

// How a tile that is not common is copied and read for up to NODES nodes: in shared memory, made by the whole block.
struct Arranged {
    u8* const list;    // [TILE] the nodes whose keys follow those of committed positions
    u8* const places;  // [NODES][TILE] the copied row that has the i-th position of the tile on the way to a node
    u32* const bits;   // the nodes of `list`

    __device__ explicit Arranged(u8* shared)
        : list(shared), places(shared + TILE), bits(reinterpret_cast<u32*>(shared + MAX_NODES)) {}

    // For nodes node.. of the tree, `count` of them; nodes from `end` on are none of their ancestors. Returns how many
    // rows are copied. The caller waits before it reads, and all threads are done with what was there.
    __device__ int make(const Tree& tree, int node, int count, int end, int begin) const {
        const StepState* const st = tree.st;
        const int before = max(tree.length - begin, 0), root = tree.length - begin;
        // The last row is zeros where not all of the tile's rows are copied.
        for (int at = threadIdx.x; at < NODES * TILE; at += THREADS) {
            places[at] = at % TILE < before ? at % TILE : TILE - 1;
        }
        u32 within[NODES];  // bit i: the thread's i-th node is an ancestor of the w-th, and in the tile
        int depth[ceil_div(MAX_NODES, THREADS)];
#pragma unroll
        for (int w = 0; w < NODES; w++) within[w] = 0;
#pragma unroll
        for (int i = 0; i < ceil_div(MAX_NODES, THREADS); i++) {
            const int other = threadIdx.x + THREADS * i;
            if (other >= MAX_NODES) break;  // whole warps
            const bool there = other < end;  // the others' state may be far away
            depth[i] = there ? st->depth[other] : -MAX_NODES;
            const bool in_tile = there && root + depth[i] >= 0 && root + depth[i] < TILE;
            bool any = false;
#pragma unroll
            for (int w = 0; w < NODES; w++) {
                const u64 word = there ? st->mask[node + min(w, count - 1)][other / 64] : 0;
                const bool mine = in_tile && word >> other % 64 & 1;
                within[w] |= u32(mine) << i;
                any |= mine;
            }
            const u32 found = __ballot_sync(FULL_WARP, any);
            if (lane_id() == 0) bits[other / WARP] = found;
        }
        __syncthreads();
        int total = 0;
#pragma unroll
        for (int word = 0; word < MAX_NODES / WARP; word++) total += __popc(bits[word]);
#pragma unroll
        for (int i = 0; i < ceil_div(MAX_NODES, THREADS); i++) {
            const int other = threadIdx.x + THREADS * i;
            if (other >= MAX_NODES) break;
            int rank = __popc(bits[other / WARP] & ((1u << lane_id()) - 1));
            for (int word = 0; word < other / WARP; word++) rank += __popc(bits[word]);
            if (rank >= TILE) break;
            bool any = false;
#pragma unroll
            for (int w = 0; w < NODES; w++) {
                if (!(within[w] >> i & 1)) continue;
                places[w * TILE + root + depth[i]] = min(before + rank, TILE - 1);
                any = true;
            }
            if (any) list[rank] = other;
        }
        return before + total;
    }
};

// One piece of a block's work: of splits, or of the others, or of either kind. A separate function, because attend needs
// the registers that a loop around it would hold, and two forms of it more than one.
template <bool SPLITS, bool OTHERS>
__device__ __attribute__((noinline)) void attend_piece(
    const StepState* st, int node0, int rows, int splits, int turn, const half* q, u8* k, u8* v, int slots, float* out,
    float2* stats RECENT_PARAMETER
) {
    SHARED_DYNAMIC(shared);
    u8* const tiles = shared + PATH_BYTES;
    const Deal* const deal = reinterpret_cast<Deal*>(shared + DEAL_AT);
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

    const int nodes = deal->nodes, begin_row = deal->straight + nodes * (deal->own + item);
    const int end_row = min(begin_row + nodes, deal->live);
    const Arranged arranged(shared);
    int shallow = tree.position(begin_row), deep = shallow;
    for (int row = begin_row + 1; row < end_row; row++) {
        shallow = min(shallow, tree.position(row));
        deep = max(deep, tree.position(row));
    }
#pragma unroll 1
    for (int tile = tree.common(); tile <= deep / TILE; tile++) {
        const int before = max(tree.length - tile * TILE, 0);
        int count = end_row - begin_row;
#pragma unroll 1
        for (int row = begin_row; row < end_row; row += count) {
            if (count == 1 && tree.position(row) < tile * TILE) continue;
            __syncthreads();  // all threads have finished the previous tile
            int copied = arranged.make(tree, node0 + row, count, node0 + deal->live, tile * TILE);
            if (count > 1 && copied >= TILE) {  // one at a time: the tile has no more rows
                count = 1;
                row--;
                continue;
            }
            __syncthreads();
            if (deal->hides(shallow, tile * TILE)) copied = 0;
            const NodeRows some = {{int(blockIdx.y), int(gridDim.y), rows * GROUP, row * GROUP, count * GROUP}};
            const NodesView view(
                tree, tile, before, tile * TILE + copied, arranged.list, arranged.places, newest, *deal
            );
            attend<NODE_TILES, NewestForm>(view, some, tile % NEAR, queries, newest, tiles, out, stats);
        }
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
    const int row = threadIdx.x;
    // The path to every node is in the L2 by the time that it is read.
    if (row < rows) bulk_prefetch(st->mask[node0 + row], sizeof st->mask[0]);
    pdl_wait();
    // Loaded at once: a block can do nothing before it has them.
    const int n = st->n, length = st->length, depth = st->depth[node0 + min(row, rows - 1)];
    const Window shown = WINDOW;
    if (node0 >= n) return;
    const int live = min(n - node0, rows);
    Deal* const deal = reinterpret_cast<Deal*>(shared + DEAL_AT);
    const int straight = __syncthreads_count(row < live && depth == node0 + row);
    if (threadIdx.x == 0) *deal = Deal(node0, length, live, splits, straight, shown);
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
    const int n = st->n, length = st->length, depth = st->depth[node0 + row];
    if (node0 + row >= n) return;
    const auto parts = [&] { return FIRST_SPLIT + splits_of(length + depth, splits); };
    group.combine(parts, row, rows, kv_heads, out, stats, partials, {acts_q8, acts_f16}, sink);
}
