// The front of every row: the tokens that can be drawn, whatever top_k, top_p and min_p cut off (draw.cuh). Grid of both
// kernels: (parts of DRAW_PART tokens, rows of the pass); they do nothing where `sample` needs no front.
//
//   draw_parts    the front of each part: scores in float, with noise only where a token could still be drawn. PartFront
//                 [row][part]. Bound by Philox: at most 60 integer instructions a token, 20 to 30 us for 24 rows of 248,320
//                 tokens on an H200 (estimated).
//   draw_weights  the front of the row from those of its parts, RowFront [row], and where tokens are cut off by count or
//                 weight what lies before each of its tokens, PartBefore [row][part].
//
// PARTS: of the vocabulary.

#include "draw.cuh"
#include "penalties.cuh"

constexpr int WARPS = DRAW_THREADS / WARP;
constexpr float MOST_NOISE = 22.9f;
constexpr int SLOTS = ceil_div(PARTS * FRONT_OF_PART, DRAW_THREADS);  // of a thread that holds the fronts of all parts

// The tokens of a part, entry i of a thread at i * DRAW_THREADS + threadIdx.x; penalised ones and those behind the
// vocabulary as -inf. False where one of them is infinite or no number.
struct PartTokens {
    float value[PER_THREAD];
    int first;  // id of this thread's entry 0

    __device__ __forceinline__ int id(int i) const { return first + i * DRAW_THREADS; }

    __device__ __forceinline__ bool load(const StepState* st, const float* logits, int vocab, int node, int part) {
        __shared__ u32 taken[DRAW_PART / 32];
        __shared__ int tokens[HISTORY];
        first = part * DRAW_PART + threadIdx.x;
        bool whole = true;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) value[i] = id(i) < vocab ? logits[id(i)] : -INFINITE;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) whole = whole && value[i] < INFINITE;
        if (penalises(st)) {
            for (int i = threadIdx.x; i < DRAW_PART / 32; i += DRAW_THREADS) taken[i] = 0;
            const int window = penalty_window(st, node, tokens);
            for (int i = threadIdx.x; i < window; i += DRAW_THREADS) {
                const u32 at = u32(tokens[i] - part * DRAW_PART);
                if (at < DRAW_PART) atomicOr(&taken[at / 32], 1u << at % 32);
            }
            __syncthreads();
#pragma unroll
            for (int i = 0; i < PER_THREAD; ++i) {
                const int at = i * DRAW_THREADS + threadIdx.x;
                if (taken[at / 32] >> at % 32 & 1) value[i] = -INFINITE;
            }
        }
        return __syncthreads_and(whole);
    }
};

// A token with its score.
struct Scored {
    float score, value;
    int id;
};

// The best by `score`, of equals the lower id, over the block; all threads get it. `room` [2][WARPS]: a second call
// takes the other half, so that one barrier is enough.
__device__ __forceinline__ Scored block_best(Scored mine, Scored (*room)[WARPS], int turn) {
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2) {
        const float score = __shfl_xor_sync(FULL_WARP, mine.score, offset);
        const float value = __shfl_xor_sync(FULL_WARP, mine.value, offset);
        const int id = __shfl_xor_sync(FULL_WARP, mine.id, offset);
        if (score > mine.score || (score == mine.score && id < mine.id)) mine = {score, value, id};
    }
    if (lane_id() == 0) room[turn & 1][warp_id()] = mine;
    __syncthreads();
    Scored best = room[turn & 1][0];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) {
        const Scored other = room[turn & 1][warp];
        if (other.score > best.score || (other.score == best.score && other.id < best.id)) best = other;
    }
    return best;
}

// The front of N tokens a thread, best score first: take(place, token) for each in one thread. A score of -inf is no
// token. How many; more than `most` where the front is longer. Each round takes the best score that is left, and with it
// all that come after it in the order and can not have a higher score.
template <int N, class Id, class Take>
__device__ __forceinline__ int find_front(
    const float (&value)[N], float (&score)[N], float inverse, int most, Scored (*room)[WARPS], Id id, Take take) {
    for (int found = 0;; ++found) {
        Scored mine = {-INFINITE, 0, 0x7fffffff};
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (score[i] > mine.score) mine = {score[i], value[i], id(i)};
        }
        const Scored best = block_best(mine, room, found);
        if (best.score == -INFINITE || found == most) return best.score == -INFINITE ? found : most + 1;
        if (threadIdx.x == 0) take(found, best);
        const float low = best.score - slack(best.value * inverse);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const bool after = value[i] < best.value || (value[i] == best.value && id(i) > best.id);
            if (id(i) == best.id || (after && score[i] + slack(value[i] * inverse) < low)) score[i] = -INFINITE;
        }
    }
}

// The noise of tokens at one position.
struct Noise {
    u64 seed, position;

    __device__ __forceinline__ float operator()(int id) const { return gumbel_about(philox(seed, position, u32(id))); }
};

extern "C" __global__ void __launch_bounds__(DRAW_THREADS, 2)
    draw_parts(const StepState* st, const float* logits, int vocab, int stride, int node0, PartFront* fronts) {
    __shared__ Scored room[2][WARPS];
    pdl_launch();
    pdl_wait();
    const int part = blockIdx.x, row = blockIdx.y, node = node0 + row;
    if (st->stop || node >= st->n || way_of(st, vocab) != Way::FRONT) return;
    PartFront* const out = fronts + row * PARTS + part;
    PartTokens tokens;
    const bool whole = tokens.load(st, logits + u64(row) * stride, vocab, node, part);

    // The first token of the part in the order of value: what can not be better than it is not drawn.
    Scored first = {-INFINITE, 0, 0x7fffffff};
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        if (tokens.value[i] > first.score) first = {tokens.value[i], tokens.value[i], tokens.id(i)};
    }
    first = block_best(first, room, 1);
    const Noise noise{st->seed, drawn_position(st, node)};
    const float inverse = 1.0f / st->temperature, ratio = first.value * inverse;
    const float enough = ratio + noise(first.id) - slack(ratio);
    float score[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const float mine = tokens.value[i] * inverse, lacking = enough - slack(mine);
        score[i] = -INFINITE;
        if (tokens.value[i] > -INFINITE && mine + MOST_NOISE >= lacking) {
            const float sum = mine + noise(tokens.id(i));
            if (sum >= lacking) score[i] = sum;
        }
    }
    const int count = find_front(
        tokens.value, score, inverse, FRONT_OF_PART, room, [&](int i) { return tokens.id(i); },
        [&](int place, const Scored& token) { out->value[place] = token.value, out->id[place] = token.id; });
    if (threadIdx.x == 0) out->count = count, out->broken = !whole, out->best = first.score;
}

struct RowShared {
    Scored room[2][WARPS];
    int tokens[HISTORY];
    int penalised[WARPS];
    // Of the front: before (value, id) is a float above `value`, or equal to it with an id under `tie`.
    float value[FRONT_OF_ROW], low[FRONT_OF_ROW];
    int tie[FRONT_OF_ROW];
    float weight[WARPS][FRONT_OF_ROW], total[WARPS];
    int count[WARPS][FRONT_OF_ROW];
};

// The row's front, the same in every block that asks; block 0 of the row writes it. How many, or a negative number.
__device__ __forceinline__ int row_front(
    const StepState* st, const PartFront* fronts, const float* logits, int node, float inverse, RowShared& s,
    RowFront* out, float& reference) {
    const Noise noise{st->seed, drawn_position(st, node)};
    bool broken = false, long_part = false;
    float most = -INFINITE;
    for (int part = threadIdx.x; part < PARTS; part += DRAW_THREADS) {
        broken |= fronts[part].broken != 0;
        long_part |= fronts[part].count > FRONT_OF_PART;
        most = fmaxf(most, fronts[part].best);
    }
    float value[SLOTS], score[SLOTS];
    int ids[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
        const int at = i * DRAW_THREADS + threadIdx.x, part = at / FRONT_OF_PART, entry = at % FRONT_OF_PART;
        const bool there = part < PARTS && entry < fronts[part].count;
        value[i] = there ? fronts[part].value[entry] : 0.0f;
        ids[i] = there ? fronts[part].id[entry] : -1;
        score[i] = there ? value[i] * inverse + noise(ids[i]) : -INFINITE;
    }
    // Scores of the maxima are the maxima themselves.
    reference = block_best({most, most, 0}, s.room, 1).score;
    if (__syncthreads_or(broken)) return BROKEN_ROW;
    if (__syncthreads_or(long_part) || !(fabsf(reference * inverse) < LARGEST_RATIO)) return TOO_LONG;
    int count = find_front(
        value, score, inverse, FRONT_OF_ROW, s.room, [&](int i) { return ids[i]; },
        [&](int place, const Scored& token) {
            s.value[place] = token.value, s.tie[place] = token.id;
            s.low[place] = token.score - slack(token.value * inverse);
            if (out) out->value[place] = token.value, out->id[place] = token.id;
        });
    __syncthreads();
    if (count > FRONT_OF_ROW) return TOO_LONG;
    if (!penalises(st)) return count;

    // Penalised tokens join with what they are worth in double, but for those that others rule out.
    const int window = penalty_window(st, node, s.tokens), i = threadIdx.x;
    static_assert(HISTORY <= DRAW_THREADS, "a thread per entry of the window");
    bool joins = false;
    float below = 0.0f;
    Penalised mine{-1, 0.0};
    if (i < window) mine = Penalised::of(st, s.tokens, window, i, logits[s.tokens[i]]);
    if (mine.token >= 0 && mine.value > -INFINITE) {
        below = __double2float_rd(mine.value);
        const float ratio = below * inverse, most_score = ratio + noise(mine.token) + 2 * slack(ratio);
        joins = true;
        for (int place = 0; place < count; ++place) joins &= !(s.value[place] > below && s.low[place] > most_score);
    }
    const u32 lanes = __ballot_sync(FULL_WARP, joins);
    if (lane_id() == 0) s.penalised[warp_id()] = __popc(lanes);
    __syncthreads();
    int place = count + __popc(lanes & ((1u << lane_id()) - 1));
    for (int warp = 0; warp < WARPS; ++warp) {
        if (warp < warp_id()) place += s.penalised[warp];
        count += s.penalised[warp];
    }
    if (count > FRONT_OF_ROW) return TOO_LONG;
    if (joins) {
        // A float above `below` is above the value itself; one equal to it is not before it but where the value is that.
        s.value[place] = below, s.tie[place] = double(below) == mine.value ? mine.token : 0;
        if (out) out->value[place] = mine.value, out->id[place] = mine.token;
    }
    __syncthreads();
    return count;
}

extern "C" __global__ void __launch_bounds__(DRAW_THREADS, 2) draw_weights(
    const StepState* st, const float* logits, int vocab, int stride, int node0, const PartFront* fronts, RowFront* rows,
    PartBefore* before) {
    __shared__ RowShared s;
    pdl_launch();
    pdl_wait();
    const int part = blockIdx.x, row = blockIdx.y, node = node0 + row;
    if (st->stop || node >= st->n || way_of(st, vocab) != Way::FRONT) return;
    const bool by_count = kept_tokens(st, vocab) > 0, by_weight = st->top_p < 1;
    if (part > 0 && !by_count && !by_weight) return;
    const float inverse = 1.0f / st->temperature;
    float reference;
    RowFront* const out = part == 0 ? rows + row : nullptr;
    const int count = row_front(st, fronts + row * PARTS, logits + u64(row) * stride, node, inverse, s, out, reference);
    if (out && threadIdx.x == 0) out->count = count, out->reference = reference;
    if (count <= 0 || (!by_count && !by_weight)) return;

    PartTokens tokens;
    tokens.load(st, logits + u64(row) * stride, vocab, node, part);
    const float scale = inverse * 1.44269504f;
    float weight[PER_THREAD], total = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        weight[i] = by_weight ? exp2f((tokens.value[i] - reference) * scale) : 0.0f;
        total += weight[i];
    }
    const int lane = lane_id(), warp = warp_id();
    total = warp_sum(total);
    if (lane == 0) s.total[warp] = total;
    for (int place = 0; place < count; ++place) {
        const float value = s.value[place];
        const int tie = s.tie[place];
        float sum = 0.0f;
        int many = 0;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const bool is_before = tokens.value[i] > value || (tokens.value[i] == value && tokens.id(i) < tie);
            many += is_before;
            sum += is_before ? weight[i] : 0.0f;
        }
        if (by_count) many = warp_sum(many);
        if (by_weight) sum = warp_sum(sum);
        if (lane == 0) s.count[warp][place] = many, s.weight[warp][place] = sum;
    }
    __syncthreads();
    PartBefore& mine = before[row * PARTS + part];
    for (int place = threadIdx.x; place < count; place += DRAW_THREADS) {
        int many = 0;
        float sum = 0.0f;
        for (int i = 0; i < WARPS; ++i) many += s.count[i][place], sum += s.weight[i][place];
        mine.count[place] = many, mine.weight[place] = sum;
    }
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (int i = 0; i < WARPS; ++i) sum += s.total[i];
        mine.total = sum;
    }
}
