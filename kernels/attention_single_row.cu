// The pass of plain decoding: one row, a tree's root. What attn_prepare and attn_split do for it, in one kernel and
// with the same bits; attn_combine follows. Layouts, and what near and far parts are: attention.cu.
//
// A block has THREADS threads that attend, as in attn_split, and MAKERS warps more that make the row: all queries of
// the block's kv head, straight into shared memory. All blocks of a kv head make the same ones instead of waiting for
// another kernel. The two groups wait for memory side by side and meet at one barrier. The block whose tile holds the
// new position also makes its key and value: into the tile, and into the cache for later steps.
//
// Pieces of work are the parts, dealt to blocks round robin: near ones from the last block backwards, the newest tile
// first, after them recent ones (attention_parts.cuh), then those of splits from the first block on. So the new position is in the last block's first piece.
//
// Before pdl_wait a step's first pass may read, besides what gdn.cuh lists, the length and the rows of committed
// positions in the cache: of a step only accept and kv_commit write these, which end it, and a step begins a graph or
// follows a copy. A block copies rows before the length only. The slot after them is written here, after pdl_wait, and
// no block reads it. n is read after pdl_wait, as tree_build writes it. A block without work may return before it: the
// last block waits, whose first piece always exists.
//
// Bound by latency with a short context, then by the bytes of K and V: attention.cuh. On an H200 a layer of the 27B takes
// 4.3 us less with it than with two kernels, one of the 8B 2.4.
//
// Defines: those of attention.cu for attn_split, SPLIT_K, those of heads.cuh.

#define CROWDED

#include "attention_parts.cuh"
#include "heads.cuh"

constexpr int NEWEST = GROUP + 2;  // heads that the block with the new position makes: key and value too
constexpr int MAX_MAKERS = 8;                                       // as in split_attention.py
constexpr int MAKERS = NEWEST < MAX_MAKERS ? NEWEST : MAX_MAKERS;  // split_attention.py: single_row_block
constexpr int ROUNDS = ceil_div(NEWEST, MAKERS);                     // heads of a maker
static_assert(MADE_PARTS == 2, "keys and values of its own");
static_assert(ROW_WARPS == 1 && GROUP <= ROWS && !StoredForm::ONCE, "a block holds the row, as in narrow passes");

// The only barrier of both groups. Makers return after it, and no later barrier counts them.
__device__ __forceinline__ void meet() { __syncthreads(); }

// The parts that this block computes, by turn.
struct Pieces : Window {
    int length, splits, near, far;  // near: how many are near or recent; far: how many are splits

    __device__ Pieces(int length, int splits, const Window& window) : Window(window), length(length), splits(splits) {
        const int blocks = gridDim.x;
        near = ceil_div(FIRST_SPLIT - behind(), blocks);
        far = ceil_div(splits_of(length, splits) - int(blockIdx.x), blocks);
    }
    // Blocks after this one.
    __device__ int behind() const { return int(gridDim.x) - 1 - int(blockIdx.x); }
    __device__ bool newest() const { return behind() == 0; }
};

// What the row sees of one part.
struct PieceView : Window {
    int length, part, begin, keys;  // begin: the tile of a near part
    SplitTiles tiles;
    RecentTiles recent{0, 0};
    static constexpr int step0 = 0;

    __device__ PieceView(const Pieces& all, int turn)
        : Window(all), length(all.length), begin(0), tiles{0, all.splits} {
        const int place = all.behind() + int(gridDim.x) * turn;  // among near and recent pieces
        if (turn >= all.near) {
            tiles.split = int(blockIdx.x) + int(gridDim.x) * (turn - all.near);
            part = FIRST_SPLIT + tiles.split;
            keys = border_tile(length) * TILE;
        } else if (RECENT_SPLITS && place >= NEAR) {
            part = place;
            recent = RecentTiles(part, length);
            keys = near_tile(length) * TILE;
        } else {
            const int tile = length / TILE - place;
            const bool seen = tile >= near_tile(length) && !hides(length, tile * TILE);
            part = (tile + NEAR) % NEAR;
            if (seen) begin = tile;
            keys = seen ? length + 1 : 0;
        }
    }

    __device__ bool split() const { return part >= FIRST_SPLIT; }

    // The new position is not copied: makers put it there.
    struct Order {
        static constexpr bool STRAIGHT = true;
        int made;
        __device__ __forceinline__ int operator()(int row) const { return row; }
        __device__ __forceinline__ bool skips(int row) const { return row == made; }
    };

    __device__ int tile(int step) const {
        if (split()) return tiles.tile(Window::step(tiles, step, length));
        return RECENT_SPLITS && part >= NEAR ? recent.tile(step) : begin + NEAR * step;
    }
    __device__ Order order(int begin) const { return {length - begin}; }
    __device__ InPlace placed(int) const { return {}; }
    __device__ bool open(int begin) const { return begin + TILE <= keys && shows(length, begin); }
    __device__ u64 visible(int, int begin) const { return bit_range(0, keys - 1 - begin) & shown(length, begin); }
    __device__ bool stores(int) const { return true; }
};

// Queries that makers have put into the tile before the first piece, where they stay for all pieces.
struct MadeQueries {
    const StepState* st;
    bool first;  // piece of the block
    int& turns;  // of the block: none if the pass has no row

    template <int TILE_ROWS> __device__ __forceinline__ void bring(half*, const PackedRows&) const {}
    __device__ __forceinline__ bool ready() const {
        if (!first) return true;
        pdl_wait();
        const int n = load_now(st->n);
        meet();
        if (n <= 0) turns = 0;
        return n > 0;
    }
};

// A key or value that a warp has made: in the tile, and then in registers, as the words of a row of the cache.
struct MadeRow {
    static constexpr int EACH = HEAD_DIM / 2 / WARP;  // words of a lane, for the largest type
    u32 word[EACH];
    int count;
#ifdef RECENT
    Head packed;  // to be stored packed too
#endif

    template <class Type> __device__ __forceinline__ void put(const Head& head, u8* tile, int row) {
        const TileRow<HEAD_DIM> halves = {reinterpret_cast<half*>(tile), row};
        u8* const bytes = tile + row * Type::STRIDE;
        if constexpr (Type::HALVES) Type::store_halves(halves, head.x);
        else Type::store(bytes, head.x);
        __syncwarp();
        count = Type::WRITTEN / 4;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int at = min(WARP * j + lane_id(), count - 1);
            if constexpr (Type::HALVES) word[j] = *reinterpret_cast<const u32*>(&halves[2 * at]);
            else word[j] = reinterpret_cast<const u32*>(bytes)[at];
        }
#ifdef RECENT
        packed = head;
#endif
    }
    __device__ __forceinline__ void store(u8* to) const {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (WARP * j + lane_id() < count) reinterpret_cast<u32*>(to)[WARP * j + lane_id()] = word[j];
        }
    }
};

// The work of the makers; `in`: one row of [queries | keys | values].
__device__ __forceinline__ void make(
    const StepState* st, const Projection& in, const Pieces& pieces, const float* q_norm, const float* k_norm,
    const float* frequency, float eps, float scale, const KeyValues& cache, const SharedLayout<ROW_TILES, NewestForm>& layout
) {
    const int maker = warp_id() - WARPS, kv_head = blockIdx.y, kv_heads = gridDim.y, row = pieces.length % TILE;
    const HeadNorm query_norm(q_norm), key_norm(k_norm);
    const Rotation rotation(pieces.length, frequency);
    // Rows past the queries, as copies leave them.
    uint4* const rest = reinterpret_cast<uint4*>(layout.queries + GROUP * HEAD_DIM);
    for (int i = threadIdx.x - THREADS; i < (ROWS - GROUP) * HEAD_DIM / 8; i += WARP * MAKERS) {
        rest[i] = make_uint4(0, 0, 0, 0);
    }
    pdl_wait();
    const int n = load_now(st->n);
    // Tasks are queries, then the key, then the value. All heads of a maker are loaded before any is used.
    const int tasks = pieces.newest() ? NEWEST : GROUP;
    Head heads[ROUNDS];
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int own = maker + MAKERS * i, task = own < tasks ? own : maker;
        const int query = kv_head * GROUP + task, after = QUERY_PARTS * GROUP * kv_heads + kv_head;
        const int part = task < GROUP ? QUERY_PARTS * query : after;
        heads[i] = Head(in, 0, part * HEAD_DIM + (task > GROUP ? values_after_keys(kv_heads) : 0));
    }
    MadeRow made;
    int last = 0;  // of the maker's tasks; a key or value is always the last
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int task = maker + MAKERS * i;
        Head& head = heads[i];
        // In most rounds the compiler knows it: there is less code then.
        const bool query = MAKERS * (i + 1) <= GROUP || (MAKERS * i < GROUP && task < GROUP);
        if (task >= tasks) break;
        HeadNorm norm = query_norm;
        if (!query) norm = key_norm;
        if (query || task == GROUP) head.place(norm, rotation, eps);
        else head.place_value(eps);
        if (query) head.store_for<KeyType>(TileRow<HEAD_DIM>{layout.queries, task}, query_scale(scale, pieces.length));
        else if (task == GROUP) made.put<NewestRows::Keys>(head, layout.ring, row);
        else made.put<NewestRows::Values>(head, layout.ring + NewestForm::KEY_BYTES, row);
        last = task;
    }
    meet();
    if (n <= 0 || last < GROUP) return;
    const NewestRows& newest = newest_of(cache);
    made.store(last == GROUP ? newest.key(kv_head, pieces.length) : newest.value(kv_head, pieces.length));
#ifdef RECENT
    if (last == GROUP) KeyType::store(cache.key(kv_head, pieces.length), made.packed.x);
    else ValueType::store(cache.value(kv_head, pieces.length), made.packed.x);
#endif
}

// Grid (any number of blocks, kv heads), block THREADS + 32 MAKERS. `rows` is 1. Arguments: those of attn_prepare and
// of attn_split.
extern "C" __global__ void __launch_bounds__(THREADS + WARP * MAKERS, 1) attn_single_row(
    const StepState* st, const float* partials, const float* q_norm, const float* k_norm, const float* frequency,
    float eps, float scale, int splits, u8* k, u8* v, int slots, float* out,
    float2* stats RECENT_PARAMETER WINDOW_PARAMETER BIAS_PARAMETER
) {
    pdl_launch();
    SHARED_DYNAMIC(shared);
    const Pieces pieces(st->length, splits, WINDOW);
    int turns = pieces.near + pieces.far;
    if (turns == 0) return;
    const KeyValues cache = {k, v, slots RECENT_GIVEN};
    if (warp_id() >= WARPS) {
        const Projection in = {partials, 1, projected(gridDim.y), BIAS};
        make(st, in, pieces, q_norm, k_norm, frequency, eps, scale, cache, SharedLayout<ROW_TILES, NewestForm>(shared));
        return;
    }
    const PackedRows row = {int(blockIdx.y), int(gridDim.y), GROUP, 0, GROUP};
    int turn = 0;
#ifdef RECENT
#pragma unroll 1
    for (; turn < min(pieces.near, turns); turn++) {
        if (turn) __syncthreads();  // all threads have finished the previous piece
        const PieceView view(pieces, turn);
        const MadeQueries queries = {st, turn == 0, turns};
        attend<ROW_TILES, NewestForm>(view, row, view.part, queries, newest_of(cache), shared, out, stats);
    }
#endif
#pragma unroll 1
    for (; turn < turns; turn++) {
        if (turn) __syncthreads();
        const PieceView view(pieces, turn);
        attend<ROW_TILES>(view, row, view.part, MadeQueries{st, turn == 0, turns}, cache, shared, out, stats);
    }
    cp_async_wait<0>();  // where the pass has no row, copies are under way
}
