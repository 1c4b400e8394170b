// Flash-decoding over a KV cache: few query rows and many keys. Keys are read in tiles, and tiles are divided into
// parts.
//
//   attend         one block: online softmax of some rows over the tiles of one part, TILE keys each
//   merge_parts    one row: adds up the partial results of its parts, in order
//
// The query heads that share a kv head are packed as rows (row = node * GROUP + head within the group), so that the
// tensor cores' 16 rows are filled and a key is read once per row block. Inside a block, warp (r, c) of ROW_WARPS x
// COLUMN_WARPS owns ROW_TILES tiles of 16 rows. For these it computes the c-th share of the tile's keys in Q K^T, then
// the c-th share of the dimensions in P V; P passes through shared memory in between. Keys and values arrive by
// cp.async in the form of the cache, STAGES tiles in a ring. Packed ones are converted to f16 between shared memory and
// the fragments, or with UNPACK_ONCE once for all warps, into one or two f16 tiles next to the ring. With one stage K
// is loaded while the block works on V, and V while it works on K.
//
// Barriers of a step: four where K and V share an f16 tile (UNPACK_ONCE 1), three with one or two stages, whose next K
// is still being loaded when P is complete, else two (UNPACK_ONCE 2, three stages or more).
// Addresses: a lane's reads and writes are one offset, computed before the steps, plus constants (tiles.cuh).
//
// Bits: a row's keys are arranged in tiles by position. Only its position decides which tiles it sees, which part each
// belongs to and in which order they are processed. A tile that it does not see leaves its maximum, weight and sums as
// they are, bit for bit. So a row's result depends neither on how many rows share the pass, nor on how rows are
// assigned to warps and blocks, nor on where the cache holds a position. COLUMNS, TILE, CHUNK and the number of parts
// decide the order of the sums, so they are the same at all widths. COLUMNS is the number of columns whose weights are
// summed separately; a warp computes COLUMNS / COLUMN_WARPS of them.
//
// Bound by: bytes of K and V with a long context and few rows; latency under 1k positions; from about 16 rows on,
// shared memory reads, half of which are Q's fragments. On an H200, 4 kv heads of 256, with the merge: 7 us at 200
// positions; one row at 32,768 takes 40 us, 8 rows 54, 24 rows 92; with a q8_0 cache 35, 60 and 103.

#pragma once

#include "attention_tiles.cuh"

constexpr int ROWS = 16 * ROW_TILES * ROW_WARPS;  // packed rows of a block
constexpr int MAX_PARTS = 64;
constexpr int MERGE_WARPS = 4;

// The tiles of one split. The first CHUNK of every split are adjacent, so that a short context makes few splits
// with enough work each; the later ones are assigned round robin, so that a long context is spread evenly.
struct SplitTiles {
    int split, splits;

    __device__ __forceinline__ int tile(int step) const {
        return step < CHUNK ? CHUNK * split + step : splits * step + split;
    }
    // The first step whose tile is not below `first`; as steps count from 0, also how many have a tile below it.
    __device__ __forceinline__ int from(int first) const {
        if (CHUNK * (split + 1) > first) return max(0, first - CHUNK * split);
        return max(CHUNK, ceil_div(first - split, splits));
    }
};

// Bits low..high (inclusive, any integers) of a word.
__device__ __forceinline__ u64 bit_range(int low, int high) {
    low = max(low, 0);
    high = min(high, 63);
    return low > high ? 0 : ~0ull >> (63 - (high - low)) << low;
}

// The packed rows of a block: `first`.. of a kv head's `stride`, of which `live` are real.
struct PackedRows {
    int kv_head, kv_heads, stride, first, live;

    __device__ __forceinline__ u64 query() const { return u64(kv_head) * stride + first; }
    __device__ __forceinline__ u64 result(int part) const { return u64(part) * kv_heads * stride + query(); }
    // The packed row, counted from `first`, that is row `at` of the tile of queries, and whether it is real.
    __device__ __forceinline__ int packed(int at) const { return at; }
    __device__ __forceinline__ bool there(int at) const { return at < live; }
};

// The same, where NODES > 1 nodes have 16 rows of the tile of queries each, of which the first GROUP are real. As an
// order of the rows of a tile, it repeats real ones in place of the others.
template <int NODES> struct SpreadRows : PackedRows {
    static constexpr bool STRAIGHT = false;
    static constexpr int OWN = NODES > 1 ? 16 : 1, REAL = NODES > 1 ? GROUP : 1;
    __device__ __forceinline__ int packed(int at) const { return at / OWN * REAL + at % OWN; }
    __device__ __forceinline__ bool there(int at) const { return at % OWN < REAL && packed(at) < live; }
    __device__ __forceinline__ int operator()(int at) const {
        return min(at / OWN * REAL + min(at % OWN, REAL - 1), live - 1);
    }
    __device__ __forceinline__ bool skips(int) const { return false; }
};

// The rows of block (blockIdx.x, blockIdx.y) of a grid that distributes `rows` rows of the pass, `live` of them real.
__device__ __forceinline__ PackedRows packed_rows(int rows, int live) {
    const int first = blockIdx.x * ROWS;
    return {int(blockIdx.y), int(gridDim.y), rows * GROUP, first, live * GROUP - first};
}

// Shared memory of attend with TILES tiles of 16 rows per row warp.
template <int TILES, class Form> struct SharedLayout {
    static constexpr int TILE_ROWS = 16 * TILES * ROW_WARPS;
    half *const queries, *const weights;          // [TILE_ROWS][HEAD_DIM], [TILE_ROWS][TILE]
    half *const key_halves, *const value_halves;  // [TILE][HEAD_DIM], K or V of a step, where they are unpacked once
    u8* const ring;                               // [IN_FLIGHT][K, V][TILE][STRIDE]
    float* const exchange;                        // [COLUMNS][TILE_ROWS]

    __device__ __forceinline__ explicit SharedLayout(u8* shared)
        : queries(reinterpret_cast<half*>(shared)), weights(queries + TILE_ROWS * HEAD_DIM),
          key_halves(weights + TILE_ROWS * TILE), value_halves(key_halves + (Form::APART ? TILE * HEAD_DIM : 0)),
          ring(reinterpret_cast<u8*>(key_halves + Form::HALF_TILES * TILE * HEAD_DIM)),
          exchange(reinterpret_cast<float*>(ring + Form::IN_FLIGHT * Form::STAGE)) {}
};

// Queries f16 [kv heads][stride][HEAD_DIM] in memory, already times log2(e) / sqrt(HEAD_DIM).
struct CopiedQueries {
    const half* q;

    template <int TILE_ROWS> __device__ __forceinline__ void bring(half* tile, const PackedRows& rows) const {
        copy_rows<HEAD_DIM, TILE_ROWS, THREADS>(tile, q + rows.query() * HEAD_DIM, rows.live);
    }
    template <int TILE_ROWS, int NODES>
    __device__ __forceinline__ void bring(half* tile, const SpreadRows<NODES>& rows) const {
        copy_rows<HEAD_DIM, TILE_ROWS, THREADS>(tile, q + rows.query() * HEAD_DIM, TILE_ROWS, rows);
    }
    __device__ __forceinline__ bool ready() const { return true; }
};

// Partial results of one part: `out` f32 [parts][kv heads][stride][HEAD_DIM], not yet divided by the weights, and
// `stats` [parts][kv heads][stride]: the row's largest score (base 2) and its sum of weights, minus infinity and 0
// where the row saw nothing; `out` is then undefined.
//
// stride = GROUP * rows of the pass. The cache is kv.cuh's; memory past the keys may hold anything. A block has THREADS
// threads that attend, its first ones, and TILES tiles of 16 rows per row warp; `shared`: see
// backends/cuda/layers/split_attention.py. `source`: where the queries come from
//   bring<TILE_ROWS>(tile, rows)  starts copying them to the tile, in the first group of copies; rows past the live ones are
//                            zeros
//   ready()                  called once, with the first copies under way and before a result is written: false to give
//                            up; else what does not come with the copies is in shared memory
// `view`: the part, and which row sees what
//   step0, tile(step)    the tiles to process, by number, from step0 on while they begin before `keys`
//   keys                 no row sees positions from here on
//   order(begin)         which rows of the cache, counted from slot `begin`, are positions begin.. (tiles.cuh); rows
//                        that it skips are in the tile when the queries are ready
//   placed(row_warp)     which rows of the copied tile are its positions, in order, for rows of a row warp (tiles.cuh)
//   open(begin)          every row sees all of the tile that begins there
//   visible(row, begin)  bit i: the row sees position begin + i
//   stores(row)          whether this block stores the row's result of this part
template <int TILES, class Form = StoredForm, class View, class Rows, class Source>
__device__ __forceinline__ void attend(
    const View& view, const Rows& rows, int part, const Source& source, const typename Form::Rows& cache,
    u8* shared, float* out, float2* stats
) {
    using Keys = typename Form::Keys;
    using Values = typename Form::Values;
    constexpr int TILE_ROWS = SharedLayout<TILES, Form>::TILE_ROWS, IN_FLIGHT = Form::IN_FLIGHT;
    constexpr bool ONCE = Form::ONCE, APART = Form::APART, VALUE_HALVES = Form::VALUE_HALVES;
    const int lane = lane_id(), quad = lane / 4, live = rows.live;
    const int row_warp = warp_id() / COLUMN_WARPS, column_warp = warp_id() % COLUMN_WARPS;
    const u64 result0 = rows.result(part);
    if (live <= 0) return;
    if (view.tile(view.step0) * TILE >= view.keys) {
        if (!source.ready()) return;
        const float2 nothing = make_float2(-INFINITE, 0.0f);
        for (int at = threadIdx.x; at < min(live, TILE_ROWS); at += THREADS) {
            if (view.stores((rows.first + at) / GROUP)) stats[result0 + at] = nothing;
        }
        return;
    }

    const SharedLayout<TILES, Form> layout(shared);
    half *const p_tile = layout.weights, *const key_halves = layout.key_halves, *const value_halves = layout.value_halves;
    float* const exchange = layout.exchange;

    auto stage = [&](int step) { return layout.ring + (step - view.step0) % IN_FLIGHT * Form::STAGE; };
    // Groups of copies, alternating K and V, empty past the end: the waits below count groups.
    auto fetch_keys = [&](int step) {
        const int begin = view.tile(step) * TILE, keys = view.keys - begin;
        if (keys > 0) {
            fetch_rows<Keys>(stage(step), cache.key(rows.kv_head, begin), keys, view.order(begin));
        }
        cp_async_commit();
    };
    auto fetch_values = [&](int step) {
        const int begin = view.tile(step) * TILE, keys = view.keys - begin;
        u8* const values = stage(step) + Form::KEY_BYTES;
        if (keys > 0) fetch_rows<Values>(values, cache.value(rows.kv_head, begin), keys, view.order(begin));
        cp_async_commit();
    };
    source.template bring<TILE_ROWS>(layout.queries, rows);
#pragma unroll
    for (int ahead = 0; ahead < max(IN_FLIGHT - 1, 1); ahead++) {
        fetch_keys(view.step0 + ahead);
        fetch_values(view.step0 + ahead);
    }

    // This thread has rows `quad` and quad + 8 of each tile of 16 rows.
    const int row = 16 * TILES * row_warp, key = 8 * KEY_TILES * column_warp, dim = 8 * DIM_TILES * column_warp;
    Queries<TILES> queries(layout.queries, row);
    const auto placed = view.placed(row_warp);
    const u32 p_at = chunk_offset<TILE>(row + quad, key / 8) + 4 * (lane % 4);
    float best[TILES][2], weight[TILES][2][SHARES], sums[TILES][DIM_TILES][4];
#pragma unroll
    for (int r = 0; r < TILES; r++) {
        best[r][0] = best[r][1] = -INFINITE;
#pragma unroll
        for (int s = 0; s < SHARES; s++) weight[r][0][s] = weight[r][1][s] = 0.0f;
#pragma unroll
        for (int t = 0; t < DIM_TILES; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[r][t][e] = 0.0f;
    }

    using Scores = float[TILES][KEY_TILES][4];
    auto score = [&](Scores& scores, int step) {
        half* const keys = ONCE ? key_halves : reinterpret_cast<half*>(stage(step));
        if constexpr (Form::KEY_HALVES) multiply_keys(scores, queries, keys, key, placed);
        else multiply_packed_keys<Keys>(scores, queries, stage(step), key);
    };
    // Scores become minus infinity where the row does not see the key. The warp's maximum of each row is stored in
    // `tops`.
    auto offer_tops = [&](Scores& scores, int step, float* tops) {
        const int begin = view.tile(step) * TILE;
        const bool open = view.open(begin);
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int at = row + 16 * r + 8 * h + quad;
                if (!open && rows.there(at)) {
                    const int node = (rows.first + rows.packed(at)) / GROUP;
                    const u64 seen = view.visible(node, begin) >> (key + 2 * (lane % 4));
#pragma unroll
                    for (int t = 0; t < KEY_TILES; t++) {
                        if (!(seen >> 8 * t & 1)) scores[r][t][2 * h] = -INFINITE;
                        if (!(seen >> 8 * t & 2)) scores[r][t][2 * h + 1] = -INFINITE;
                    }
                }
                float top = -INFINITE;
#pragma unroll
                for (int t = 0; t < KEY_TILES; t++) {
                    top = fmaxf(top, fmaxf(scores[r][t][2 * h], scores[r][t][2 * h + 1]));
                }
                top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
                top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
                if (lane % 4 == 0) tops[column_warp * TILE_ROWS + at] = top;
            }
    };
    // Weights of a step relative to the largest scores so far: P, and the earlier sums rescaled to match.
    auto weigh = [&](const Scores& scores, const float* tops, half* p) {
#pragma unroll
        for (int r = 0; r < TILES; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int at = row + 16 * r + 8 * h + quad;
                float top = best[r][h];
#pragma unroll
                for (int c = 0; c < COLUMN_WARPS; c++) top = fmaxf(top, tops[c * TILE_ROWS + at]);
                // A row that has seen nothing yet stays at zero: never minus infinity minus minus infinity.
                const float base = top == -INFINITE ? 0.0f : top;
                const float carry = exp2f(best[r][h] - base);
                best[r][h] = top;
                // Explicit rounding, so that the compiler does not fuse it differently: see "Bits".
#pragma unroll
                for (int s = 0; s < SHARES; s++) weight[r][h][s] = __fmul_rn(weight[r][h][s], carry);
#pragma unroll
                for (int t = 0; t < KEY_TILES; t++) {
                    // A weight too small for a float is zero in f16, and also in a sum that contains the 1 of the best
                    // key.
                    const float left = exp2_or_zero(scores[r][t][2 * h] - base);
                    const float right = exp2_or_zero(scores[r][t][2 * h + 1] - base);
                    float& share = weight[r][h][t / (KEY_TILES / SHARES)];
                    share = __fadd_rn(share, __fadd_rn(left, right));
                    half* const to = chunk_on(p, p_at, t, (16 * r + 8 * h) * 2 * TILE);
                    *reinterpret_cast<u32*>(to) = bits_of(__floats2half2_rn(left, right));
                }
#pragma unroll
                for (int t = 0; t < DIM_TILES; t++) {
                    sums[r][t][2 * h] *= carry;
                    sums[r][t][2 * h + 1] *= carry;
                }
            }
    };
    auto add_values = [&](int step, half* p) {
        u8* const values = stage(step) + Form::KEY_BYTES;
        half* const unpacked = ONCE ? value_halves : reinterpret_cast<half*>(values);
        if constexpr (VALUE_HALVES) multiply_values(sums, p, unpacked, row, dim, placed);
        else multiply_packed_values<Values>(sums, p, values, row, dim);
    };
    auto there = [&](int step) { return view.tile(step) * TILE < view.keys; };

    if (!source.ready()) return;
    constexpr bool AHEAD = !ONCE && IN_FLIGHT > 2;
    if constexpr (APART) {
        cp_async_wait<1>();
        __syncthreads();
        unpack_keys<Keys>(key_halves, stage(view.step0));
        __syncthreads();
        fetch_keys(view.step0 + 1);
    } else if constexpr (AHEAD) {
        cp_async_wait<2 * IN_FLIGHT - 3>();
        __syncthreads();
    }

    for (int step = view.step0; there(step); step++) {
        if constexpr (APART || AHEAD) {
            // K has been loaded
        } else if constexpr (ONCE) {
            cp_async_wait<1>();
            __syncthreads();  // K is loaded, and all warps are done with the f16 tile
            unpack_keys<Keys>(key_halves, stage(step));
            __syncthreads();
            fetch_keys(step + 1);
        } else if constexpr (IN_FLIGHT == 1) {
            if (step == view.step0) cp_async_wait<1>();
            else cp_async_wait<0>();
            __syncthreads();  // K is loaded, and all warps are done with V
            if (step != view.step0) fetch_values(step);
        } else {
            cp_async_wait<2 * IN_FLIGHT - 3>();
            __syncthreads();  // K is loaded, and all warps are done with the stage that is loaded next
            fetch_keys(step + IN_FLIGHT - 1);
            fetch_values(step + IN_FLIGHT - 1);
        }

        if (step == view.step0) queries.read();
        Scores scores;
        score(scores, step);
        offer_tops(scores, step, exchange);
        if constexpr (APART) cp_async_wait<0>();
        else if constexpr (ONCE) cp_async_wait<1>();
        __syncthreads();  // all warps are done with K, and with V of the step before
        if constexpr (AHEAD) {
            fetch_keys(step + IN_FLIGHT - 1);
            fetch_values(step + IN_FLIGHT - 1);
        } else if constexpr (IN_FLIGHT == 1 && !ONCE) {
            fetch_keys(step + 1);
        }

        weigh(scores, exchange, p_tile);
        // Scores are no longer needed: unpacking reuses their registers.
        if constexpr (ONCE) unpack_values<Values>(value_halves, stage(step) + Form::KEY_BYTES);
        if constexpr (APART) {
            if (there(step + 1)) unpack_keys<Keys>(key_halves, stage(step + 1));
        }
        if constexpr (AHEAD) cp_async_wait<2 * IN_FLIGHT - 3>();
        else if constexpr (!ONCE) cp_async_wait<IN_FLIGHT == 1 ? 1 : 2 * IN_FLIGHT - 2>();
        __syncthreads();  // P and V are complete, and with APART or AHEAD the next K
        if constexpr (APART) fetch_keys(step + 2);
        if constexpr (ONCE) fetch_values(step + 1);
        add_values(step, p_tile);
    }

    // A thread's weights are those of its own keys: add up the four lanes of a row, then the column warps.
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int s = 0; s < SHARES; s++) {
                float total = weight[r][h][s];
                total += __shfl_xor_sync(FULL_WARP, total, 1);
                total += __shfl_xor_sync(FULL_WARP, total, 2);
                const int column = column_warp * SHARES + s;
                if (lane % 4 == 0) exchange[column * TILE_ROWS + row + 16 * r + 8 * h + quad] = total;
            }
        }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = row + 16 * r + 8 * h + quad, packed = rows.packed(at);
            if (!rows.there(at) || !view.stores((rows.first + packed) / GROUP)) continue;
            if (column_warp == 0 && lane % 4 == 0) {
                float total = 0.0f;
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) total += exchange[c * TILE_ROWS + at];
                stats[result0 + packed] = make_float2(best[r][h], total);
            }
            float* const to = out + (result0 + packed) * HEAD_DIM + dim;
            if constexpr (VALUE_HALVES) {
#pragma unroll
                for (int t = 0; t < DIM_TILES; t++) {
                    const float2 pair = make_float2(sums[r][t][2 * h], sums[r][t][2 * h + 1]);
                    *reinterpret_cast<float2*>(to + 8 * t + 2 * (lane % 4)) = pair;
                }
            } else {
#pragma unroll
                for (int t = 0; t < DIM_TILES; t += 4) {
#pragma unroll
                    for (int e = 2 * h; e < 2 * h + 2; e++) {
                        const float (&four)[DIM_TILES][4] = sums[r];
                        const float4 side_by_side =
                            make_float4(four[t][e], four[t + 1][e], four[t + 2][e], four[t + 3][e]);
                        *reinterpret_cast<float4*>(to + 8 * (t + lane % 4) + 4 * (e % 2)) = side_by_side;
                    }
                }
            }
        }
}

// A softmax without a sink.
struct NoSink {
    static constexpr bool THERE = false;
    static constexpr float value = 0.0f;
};

// Elements `element`..+7 of a row's attention, counted through its heads, from the partial results of all parts. Warp w
// adds up parts w, w + MERGE_WARPS, ..; then the first warp adds up the warps' sums, and only it gets the result. All
// warps call, with `element` of the lane. A part of which the row saw nothing is left out and its results are not read,
// so the number of parts that other rows need changes nothing. `sink`: of the lane's head; it is added once, here.
template <class Sink = NoSink>
__device__ __forceinline__ void merge_parts(
    float (&x)[8], const float* out, const float2* stats, int parts, int row, int rows, int kv_heads, int element,
    const Sink& sink = {}
) {
    __shared__ float tops[MERGE_WARPS][WARP], totals[MERGE_WARPS][WARP], sums[MERGE_WARPS][8][WARP];
    constexpr int TURNS = MAX_PARTS / MERGE_WARPS, AT_ONCE = 4;  // parts in flight: more would take too many registers
    const int lane = lane_id(), warp = warp_id(), head = element / HEAD_DIM;
    const u64 step = u64(kv_heads) * rows * GROUP;  // packed rows of a part
    const u64 packed = (u64(head / GROUP) * rows + row) * GROUP + head % GROUP;
    auto statistics = [&](int at) {
        return at < parts ? stats[at * step + packed] : make_float2(-INFINITE, 0.0f);
    };

    // All statistics are loaded at once, then the parts that count, AT_ONCE at a time.
    float top = -INFINITE, total = 0.0f;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) top = fmaxf(top, statistics(turn * MERGE_WARPS + warp).x);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = 0.0f;
#pragma unroll 1
    for (int first = warp; first < parts; first += AT_ONCE * MERGE_WARPS) {
        float2 stat[AT_ONCE];
        float4 part[AT_ONCE][2];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) stat[i] = statistics(first + i * MERGE_WARPS);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const u64 at = (first + i * MERGE_WARPS) * step + packed;
            const float4* from = reinterpret_cast<const float4*>(out + at * HEAD_DIM + element % HEAD_DIM);
            const bool seen = stat[i].x > -INFINITE;
            part[i][0] = seen ? from[0] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            part[i][1] = seen ? from[1] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const float4 a = part[i][0], b = part[i][1];
            const float values[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            const float weight = stat[i].x > -INFINITE ? exp2f(stat[i].x - top) : 0.0f;
            total += weight * stat[i].y;
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] += weight * values[j];
        }
    }
    tops[warp][lane] = top;
    totals[warp][lane] = total;
#pragma unroll
    for (int i = 0; i < 8; i++) sums[warp][i][lane] = x[i];
    __syncthreads();
    if (warp) return;

#pragma unroll
    for (int w = 0; w < MERGE_WARPS; w++) top = fmaxf(top, tops[w][lane]);
    if (Sink::THERE) top = fmaxf(top, sink.value);
    total = Sink::THERE ? exp2f(sink.value - top) : 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = 0.0f;
#pragma unroll
    for (int w = 0; w < MERGE_WARPS; w++) {
        const float weight = exp2f(tops[w][lane] - top);  // 0 for a warp whose parts the row saw nothing of
        total += weight * totals[w][lane];
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] += weight * sums[w][i][lane];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] /= total;
}
