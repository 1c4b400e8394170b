// The output matrix: logits are only looked at, where a pass needs no more than the best of them.
//
//   head_argmax  matmul with one k k_part whose finished rows go into a running maximum per column, not to memory:
//                BestPart [column][thread block]. Bound by memory: the largest matrix of a model, read once.
//                Measured share of bandwidth on an H200: 97 % at one column (its matmul).
//   head_top     logits (of matmul with one k_part) to the best MAX_WIDTH per part of the vocabulary, with the part's
//                share of the softmax denominator: TopPart [row][part]. Bound by latency: 1 MB per row from the
//                L2, 24 us for 15 rows on an H200.
//
// merge_draws and merge_candidates (tree.cu) read the parts.

#include "head.cuh"

#ifdef COLUMNS
#include "matmul_launch.cuh"

// A lane of row g of the fragments keeps the best of column block g, columns 2t and 2t + 1 of it.
struct BestSink {
    int rows, lane;
    BestPart best[2];

    __device__ __forceinline__ void operator()(int row0, const Accumulator& acc) {
        const int g = lane >> 2, row = row0 + g;
#pragma unroll
        for (int b = 0; b < COLUMN_BLOCKS; ++b) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                float value = row < rows ? candidate(acc[b][c]) : -INFINITE;
                int id = row;
                const float lower = row + 8 < rows ? candidate(acc[b][2 + c]) : -INFINITE;
                if (better(lower, row + 8, value, id)) value = lower, id = row + 8;
#pragma unroll
                for (int offset = 4; offset < 32; offset *= 2) {
                    const float other = __shfl_xor_sync(FULL_WARP, value, offset);
                    const int other_id = __shfl_xor_sync(FULL_WARP, id, offset);
                    if (better(other, other_id, value, id)) value = other, id = other_id;
                }
                if (g == b && better(value, id, best[c].value, best[c].id)) best[c] = {value, id};
            }
        }
    }

    // A logit that is not a number must not lose quietly: it wins, as an infinity that no merge takes for a draw.
    static __device__ __forceinline__ float candidate(float logit) { return logit == logit ? logit : INFINITE; }
};

// launch: one segment, one k_part. parts [partial_columns][gridDim.x], of which columns 8 * column_block .. are written.
extern "C" __global__ void MATMUL_BOUNDS head_argmax(
    const MatmulLaunch launch, const u8* acts_q8, const u8* acts_f16, BestPart* parts, int column_block) {
    pdl_launch();
    SHARED_DYNAMIC(shared);
    const int lane = lane_id(), g = lane >> 2, t = lane & 3;
    BestSink sink{0, lane, {{-INFINITE, 0x7fffffff}, {-INFINITE, 0x7fffffff}}};
    stream_pieces(launch, acts_q8, acts_f16, column_block, shared, [&](const Segment& segment, int) -> BestSink& {
        sink.rows = segment.rows;
        return sink;
    });

    // [column][warp], in the room of the slots.
    BestPart* const of_warps = (BestPart*)shared;
    __syncthreads();
    if (g < COLUMN_BLOCKS) {
#pragma unroll
        for (int c = 0; c < 2; ++c) of_warps[(8 * g + 2 * t + c) * WARPS + warp_id()] = sink.best[c];
    }
    __syncthreads();
    pdl_wait();  // a thread block without rows has not waited yet
    for (int column = threadIdx.x; column < COLUMNS; column += MATMUL_THREADS) {
        BestPart best = of_warps[column * WARPS];
        for (int warp = 1; warp < WARPS; ++warp) {
            const BestPart other = of_warps[column * WARPS + warp];
            if (better(other.value, other.id, best.value, best.id)) best = other;
        }
        parts[size_t(8 * column_block + column) * gridDim.x + blockIdx.x] = best;
    }
}
#endif

constexpr int TOP_WARPS = 8;

// The best MAX_WIDTH of what it was offered, sorted; ids are offered in ascending order.
struct TopList {
    float value[MAX_WIDTH];
    int id[MAX_WIDTH];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < MAX_WIDTH; ++i) value[i] = -INFINITE, id[i] = 0x7fffffff;
    }
    __device__ __forceinline__ void offer(float new_value, int new_id) {
#pragma unroll
        for (int i = MAX_WIDTH - 1; i >= 0; --i) {
            const bool here = new_value > value[i], above = i > 0 && new_value > value[i > 0 ? i - 1 : 0];
            if (above) {
                value[i] = value[i - 1], id[i] = id[i - 1];
            } else if (here) {
                value[i] = new_value, id[i] = new_id;
            }
        }
    }
    __device__ __forceinline__ void drop_first() {
#pragma unroll
        for (int i = 0; i + 1 < MAX_WIDTH; ++i) value[i] = value[i + 1], id[i] = id[i + 1];
        value[MAX_WIDTH - 1] = -INFINITE, id[MAX_WIDTH - 1] = 0x7fffffff;
    }
    // The best of all lanes' lists, taken out of its list; every lane gets it.
    __device__ __forceinline__ BestPart pop() {
        BestPart best = {value[0], id[0]};
#pragma unroll
        for (int offset = 16; offset; offset /= 2) {
            const float other = __shfl_xor_sync(FULL_WARP, best.value, offset);
            const int other_id = __shfl_xor_sync(FULL_WARP, best.id, offset);
            if (better(other, other_id, best.value, best.id)) best = {other, other_id};
        }
        if (best.id == id[0]) drop_first();
        return best;
    }
};

// Grid (parts, rows), block TOP_WARPS * 32. Row r of the parts is row r of `logits` f32 [rows][stride].
extern "C" __global__ void __launch_bounds__(TOP_WARPS * 32)
    head_top(const StepState* st, const float* logits, int vocab, int stride, TopPart* parts) {
    __shared__ BestPart of_warps[TOP_WARPS][MAX_WIDTH];
    __shared__ float most_of[TOP_WARPS], sum_of[TOP_WARPS];
    pdl_launch();
    pdl_wait();
    const int lane = lane_id(), warp = warp_id(), part = blockIdx.x, row = blockIdx.y;
    if (st->stop || row >= st->draft_depth) return;
    const float scale = st->inv_tree_temperature;
    const float* const from = logits + size_t(row) * stride;
    // In whole steps of the block, so that a warp's loads are full lines.
    constexpr int STEP = TOP_WARPS * 32;
    const int steps = ceil_div(vocab, STEP), begin = steps * part / int(gridDim.x), end = steps * (part + 1) / int(gridDim.x);

    TopList top;
    top.clear();
    float most = -INFINITE, sum = 0.0f;
    for (int step = begin; step < end; ++step) {
        const int id = step * STEP + threadIdx.x;
        if (id >= vocab) break;
        const float logit = from[id], scaled = logit * scale;
        if (logit > top.value[MAX_WIDTH - 1]) top.offer(logit, id);
        // A logit that is not a number spoils the sum, and with it every probability of the row.
        if (scaled > most) {
            sum = sum * expf(most - scaled) + 1.0f;
            most = scaled;
        } else if (!(scaled == -INFINITE)) {
            sum += expf(scaled - most);
        }
    }
    __syncwarp();
    const float warp_most = warp_max(most);
    const float share = most > -INFINITE ? sum * expf(most - warp_most) : sum;
    const float warp_total = warp_sum(share);
#pragma unroll
    for (int rank = 0; rank < MAX_WIDTH; ++rank) {
        const BestPart best = top.pop();
        if (lane == 0) of_warps[warp][rank] = best;
    }
    if (lane == 0) most_of[warp] = warp_most, sum_of[warp] = warp_total;
    __syncthreads();
    if (warp > 0) return;

    TopPart* const out = parts + size_t(row) * gridDim.x + part;
    top.clear();
    if (lane < TOP_WARPS) {
#pragma unroll
        for (int rank = 0; rank < MAX_WIDTH; ++rank) {
            top.value[rank] = of_warps[lane][rank].value, top.id[rank] = of_warps[lane][rank].id;
        }
    }
#pragma unroll
    for (int rank = 0; rank < MAX_WIDTH; ++rank) {
        const BestPart best = top.pop();
        if (lane == 0) out->value[rank] = best.value, out->id[rank] = best.id;
    }
    if (lane == 0) {
        float total_most = -INFINITE, total = 0.0f;
        for (int i = 0; i < TOP_WARPS; ++i) total_most = fmaxf(total_most, most_of[i]);
        for (int i = 0; i < TOP_WARPS; ++i) {
            total += most_of[i] > -INFINITE ? sum_of[i] * expf(most_of[i] - total_most) : sum_of[i];
        }
        out->most = total_most, out->sum = total;
    }
}
