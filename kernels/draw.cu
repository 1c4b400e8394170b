// Finds the tokens of a row that can be drawn (draw.cuh); `sample` then decides among them. Kernels that a row does not
// need return at once.
//
//   draw_list     grid = rows of the pass: hides penalised tokens, lists the first tokens of the order.
//   draw_scan     grid (parts of DRAW_PART tokens, rows): adds the tokens that score higher than all of the list. Bound by
//                 Philox, 60 integer instructions per four tokens, and by loads from the L2: 5 us each for 24 rows of
//                 248,320 tokens on an H200 (estimated).
//   draw_front    grid = rows: computes the front of the listed and added tokens.
//   draw_weights  grid (parts, rows): sums number and weight of the tokens before each token of the front, where top_k or
//                 top_p cut tokens off. PartBefore [row][part]. Bound by a dozen comparisons a token, 10 us (estimated).

#include "draw.cuh"
#include "extremes.cuh"
#include "penalties.cuh"

constexpr int ROW_THREADS = 512, PART_THREADS = 256, PER_THREAD = DRAW_PART / PART_THREADS;
constexpr float MOST_NOISE = 22.9f, LOG2_E = 1.44269504f;

// The noise of tokens at one position.
struct Noise {
    u64 seed, position;

    __device__ __forceinline__ Noise(const StepState* st, int node)
        : seed(st->seed), position(drawn_position(st, node)) {}
    __device__ __forceinline__ uint4 words(int id) const { return philox_of_four(seed, position, u32(id) / 4); }
    __device__ __forceinline__ float operator()(int id) const {
        return gumbel_about(philox(seed, position, u32(id)));
    }
};

// The logits of tokens id[i] to id[i] + 3, in turn, where each id is a multiple of 4; -inf for tokens past the vocabulary.
template <int FOURS> __device__ __forceinline__ void load_fours(
    float (&value)[4 * FOURS], const float* logits, const int (&id)[FOURS], int vocab) {
    bool whole = u64(logits) % sizeof(float4) == 0;
#pragma unroll
    for (int i = 0; i < FOURS; ++i) whole &= id[i] + 3 < vocab;
    if (whole) {
#pragma unroll
        for (int i = 0; i < FOURS; ++i) {
            const float4 four = *reinterpret_cast<const float4*>(logits + id[i]);
            value[4 * i] = four.x, value[4 * i + 1] = four.y, value[4 * i + 2] = four.z, value[4 * i + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4 * FOURS; ++i) {
            const int token = id[i / 4] + i % 4;
            value[i] = token < vocab ? logits[token] : -INFINITE;
        }
    }
}

// ---- The list ------------------------------------------------------------------------------------------------------

// The distance to the best value as two digits below BINS, packed into one integer. Its resolution is relative: the first
// digit has 32 values per power of two.
__device__ __forceinline__ int distance_digits(float best, float value) {
    constexpr int NEAREST = (127 - 40) << 5;  // 2^-40
    const u32 bits = __float_as_uint(best - value);
    const int first = int(bits >> 18) - NEAREST;
    if (first < 0) return 0;
    return first < BINS ? first * BINS + int(bits >> 7) % BINS : BINS * BINS - 1;
}

struct ListShared {
    int tokens[HISTORY];
    u32 count[BINS];
    u32 sums[ROW_THREADS / WARP];
    float most[ROW_THREADS / WARP];
    int blocks[LIST];  // of 16 tokens, that hold tokens of the list
    int last, chosen, listed;
    u32 left, many;
};

// Compute the penalised values of the newest tokens, and hide their logits in the row.
__device__ __forceinline__ int penalise(const StepState* st, int node, float* logits, ListShared& s, RowTokens& out) {
    const int window = penalty_window(st, node, s.tokens);
    for (int i = threadIdx.x; i < window; i += ROW_THREADS) {
        const float logit = logits[s.tokens[i]];
        const Penalised mine = Penalised::of(st, s.tokens, window, i, logit);
        out.penalised[i] = mine.token, out.penalised_value[i] = mine.value, out.logit[i] = logit;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < window; i += ROW_THREADS) logits[s.tokens[i]] = -INFINITE;
    __syncthreads();
    return window;
}

// List all tokens that are at most as far from the largest maximum as the `wanted`th largest maximum is; return their
// number.
__device__ __forceinline__ int list_tokens(
    const float* logits, const float* maxima, int vocab, u32 wanted, ListShared& s, RowTokens& out) {
    constexpr int EACH = BINS / ROW_THREADS;
    const int blocks = ceil_div(vocab, 16);
    float best = -INFINITE;
#pragma unroll 8
    for (int i = threadIdx.x; i < blocks; i += ROW_THREADS) best = fmaxf(best, maxima[i]);
    best = block_max<ROW_THREADS>(best, s.most);
    if (!(best < INFINITE)) return BROKEN_ROW;

    // The digits of the `wanted`th distance, one after the other; the second is only needed where the first is too
    // coarse.
    if (threadIdx.x == 0) s.last = BINS * BINS - 1, s.chosen = 0, s.listed = 0;
    u32 left = wanted;
    int first = -1;
    for (int level = 0; level < 2; ++level) {
        for (int i = threadIdx.x; i < BINS; i += ROW_THREADS) s.count[i] = 0;
        __syncthreads();
#pragma unroll 8
        for (int i = threadIdx.x; i < blocks; i += ROW_THREADS) {
            const int digits = distance_digits(best, maxima[i]);
            if (!(maxima[i] > -INFINITE) || (level == 1 && digits / BINS != first)) continue;
            atomicAdd(&s.count[level == 0 ? digits / BINS : digits % BINS], 1u);
        }
        __syncthreads();
        u32 mine = 0, total;
        for (int i = 0; i < EACH; ++i) mine += s.count[threadIdx.x * EACH + i];
        u32 before = block_sum_before<ROW_THREADS>(mine, total, s.sums);
        if (before < left && left <= before + mine) {
            int bin = threadIdx.x * EACH;
            while (before + s.count[bin] < left) before += s.count[bin++];
            s.last = level == 0 ? bin * BINS + BINS - 1 : first * BINS + bin;
            s.left = left - before, s.many = s.count[bin];
        } else if (threadIdx.x == 0 && left > total) {
            s.many = 0;  // all of them
        }
        __syncthreads();
        if (s.many <= wanted / 4) break;
        left = s.left, first = s.last / BINS;
        __syncthreads();
    }
    const int last = s.last;
    for (int i = threadIdx.x; i < blocks; i += ROW_THREADS) {
        if (!(maxima[i] > -INFINITE) || distance_digits(best, maxima[i]) > last) continue;
        const int at = atomicAdd(&s.chosen, 1);
        if (at < LIST) s.blocks[at] = i;
    }
    __syncthreads();
    const int chosen = s.chosen;
    if (chosen > LIST) return TOO_LONG;  // all but a few blocks (of penalised tokens) hold a token for the list
    // One token per thread and turn. A few turns are loaded before any token is listed: a thread that read a whole block
    // would wait for each of its tokens.
    constexpr int TOGETHER = 4;
    for (int first = threadIdx.x; first < 16 * chosen; first += TOGETHER * ROW_THREADS) {
        float value[TOGETHER];
        int id[TOGETHER];
#pragma unroll
        for (int turn = 0; turn < TOGETHER; ++turn) {
            const int i = first + turn * ROW_THREADS;
            id[turn] = i < 16 * chosen ? 16 * s.blocks[i / 16] + i % 16 : vocab;
            value[turn] = id[turn] < vocab ? logits[id[turn]] : -INFINITE;
        }
#pragma unroll
        for (int turn = 0; turn < TOGETHER; ++turn) {
            if (!(value[turn] > -INFINITE) || distance_digits(best, value[turn]) > last) continue;
            const int at = atomicAdd(&s.listed, 1);
            if (at < LIST) out.value[at] = value[turn], out.id[at] = id[turn];
        }
    }
    __syncthreads();
    return s.listed <= LIST ? s.listed : TOO_LONG;
}

// `logits` [rows][stride], of which the first `vocab` columns are tokens; `maxima` [rows][vocab / 16, rounded up] of
// blocks of 16 tokens, infinite where a block contains NaN.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 1) draw_list(
    const StepState* st, float* logits, int vocab, int stride, int node0, const float* maxima, RowTokens* rows) {
    __shared__ ListShared s;
    pdl_launch();
    pdl_wait();
    const int row = blockIdx.x, node = node0 + row;
    if (st->stop || node >= st->n) return;
    RowTokens& out = rows[row];
    logits += u64(row) * stride;
    maxima += u64(row) * ceil_div(vocab, 16);
    const int window = penalises(st) ? penalise(st, node, logits, s, out) : 0;
    const Way way = way_of(st, vocab);
    if (threadIdx.x == 0) out.window = window, out.added = 0;
    if (way == Way::WHOLE) return;
    // One block more per penalised token: then at least the wanted number of maxima are of tokens without a penalty.
    const int wanted = way == Way::LISTED ? kept_tokens(st, vocab) + window : min(ANCHORS, ceil_div(vocab, 128));
    int count = list_tokens(logits, maxima, vocab, u32(wanted), s, out);
    if (way == Way::FRONT && count >= 0) {
        const Noise noise(st, node);
        const float inverse = 1.0f / st->temperature;
        float best = -INFINITE, enough = -INFINITE;
        for (int i = threadIdx.x; i < count; i += ROW_THREADS) {
            const float ratio = out.value[i] * inverse;
            best = fmaxf(best, out.value[i]);
            enough = fmaxf(enough, ratio + noise(out.id[i]) - slack(ratio));
        }
        best = block_max<ROW_THREADS>(best, s.most);
        enough = block_max<ROW_THREADS>(enough, s.most);
        if (!(fabsf(best * inverse) < LARGEST_RATIO)) count = TOO_LONG;
        if (threadIdx.x == 0) out.best = best, out.enough = enough;
    }
    if (threadIdx.x == 0) out.count = count;
}

// ---- Further tokens that can be drawn -------------------------------------------------------------------------------

// A thread's tokens of a part, by fours: its first, then every PART_THREADS-th.
struct Part {
    int id[PER_THREAD / 4];
    float value[PER_THREAD];

    __device__ __forceinline__ Part(const float* logits, int vocab) {
#pragma unroll
        for (int i = 0; i < PER_THREAD / 4; ++i) {
            id[i] = blockIdx.x * DRAW_PART + 4 * (i * PART_THREADS + threadIdx.x);
        }
        load_fours(value, logits, id, vocab);
    }
    __device__ __forceinline__ int token(int i) const { return id[i / 4] + i % 4; }
};

extern "C" __global__ void __launch_bounds__(PART_THREADS, 3)
    draw_scan(const StepState* st, const float* logits, int vocab, int stride, int node0, RowTokens* rows) {
    pdl_launch();
    pdl_wait();
    const int row = blockIdx.y, node = node0 + row;
    RowTokens& out = rows[row];
    if (st->stop || node >= st->n || way_of(st, vocab) != Way::FRONT || out.count < 0) return;
    const Part part(logits + u64(row) * stride, vocab);
    const Noise noise(st, node);
    const float inverse = 1.0f / st->temperature, enough = out.enough;
    // The noise that a token of this value needs.
    const auto needed = [&](float value) { return enough - slack(value * inverse) - value * inverse; };
#pragma unroll
    for (int four = 0; four < PER_THREAD; four += 4) {
        const float* const value = part.value + four;
        // None of them can be added if a token with their largest value and their largest noise could not.
        const float most = fmaxf(fmaxf(value[0], value[1]), fmaxf(value[2], value[3])), least = needed(most);
        if (!(most > -INFINITE) || least > MOST_NOISE) continue;
        const uint4 words = noise.words(part.token(four));
        const u32 word[4] = {words.x, words.y, words.z, words.w};
        // Noise of x needs 1 - u <= e^-x, so one exponential is enough to rule it out.
        const u32 top = max(max(word[0], word[1]), max(word[2], word[3]));
        if (float(~top) > exp2f(32.0f - least * LOG2_E) * 1.001f + 1.0f) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (!(value[i] > -INFINITE) || gumbel_about(word[i]) < needed(value[i])) continue;
            const int at = atomicAdd(&out.added, 1);
            if (at < LIST) out.added_value[at] = value[i], out.added_id[at] = part.token(four + i);
        }
    }
}

// ---- The front -----------------------------------------------------------------------------------------------------

// A token with its score.
struct Scored {
    float score, value;
    int id;

    __device__ __forceinline__ bool beats(const Scored& other) const {
        return score > other.score || (score == other.score && id < other.id);
    }
};

constexpr int ROW_WARPS = ROW_THREADS / WARP;

// The best of the warp's tokens, returned to all its lanes.
__device__ __forceinline__ Scored warp_best(const Scored& mine) {
    const u32 key = ordered(mine.score), top = largest_of_warp(key);
    const u32 id = least_of_warp(key == top ? u32(mine.id) : ~0u);
    const int lane = __ffs(__ballot_sync(FULL_WARP, key == top && u32(mine.id) == id)) - 1;
    return {__shfl_sync(FULL_WARP, mine.score, lane), __shfl_sync(FULL_WARP, mine.value, lane), int(id)};
}

// The best of all threads' tokens, returned to each of them. `room` [2][warps]: successive calls alternate between its
// halves, so one barrier is enough.
__device__ __forceinline__ Scored block_best(const Scored& mine, Scored (*room)[ROW_WARPS], int turn) {
    static_assert(WARP % ROW_WARPS == 0, "a lane per warp, or several");
    const Scored best = warp_best(mine);
    if (lane_id() == 0) room[turn & 1][warp_id()] = best;
    __syncthreads();
    return warp_best(room[turn & 1][lane_id() % ROW_WARPS]);
}

struct FrontShared {
    Scored room[2][ROW_WARPS], front[FRONT_OF_ROW];
    // For penalised tokens: a float that is a lower bound of the value, and a lower bound of the score.
    float value[HISTORY], low[HISTORY];
    int joining[ROW_WARPS];
};

// A token may be in both lists. Each round takes the token with the best score that is left, and removes it and all
// tokens that come after it in the order and certainly score lower.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 1)
    draw_front(const StepState* st, int vocab, int node0, const RowTokens* rows, RowFront* fronts) {
    constexpr int EACH = 2 * LIST / ROW_THREADS;
    __shared__ FrontShared s;
    pdl_launch();
    pdl_wait();
    const int row = blockIdx.x, node = node0 + row;
    if (st->stop || node >= st->n || way_of(st, vocab) != Way::FRONT) return;
    const RowTokens& tokens = rows[row];
    RowFront& out = fronts[row];
    const Noise noise(st, node);
    const float inverse = 1.0f / st->temperature;
    const int listed = tokens.count, added = tokens.added;
    if (listed <= 0 || added > LIST) {
        if (threadIdx.x == 0) out.count = listed == BROKEN_ROW ? BROKEN_ROW : TOO_LONG;
        return;
    }
    // All are loaded before the noise of any is computed; what is past the counts is arbitrary.
    Scored mine[EACH];
#pragma unroll
    for (int i = 0; i < EACH / 2; ++i) {
        const int at = i * ROW_THREADS + threadIdx.x, other = i + EACH / 2;
        mine[i].value = tokens.value[at], mine[i].id = tokens.id[at];
        mine[other].value = tokens.added_value[at], mine[other].id = tokens.added_id[at];
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int at = i % (EACH / 2) * ROW_THREADS + threadIdx.x;
        const bool exists = at < (i < EACH / 2 ? listed : added);
        mine[i].score = exists ? mine[i].value * inverse + noise(mine[i].id) : -INFINITE;
    }
    int count = 0;
    for (;; ++count) {
        Scored best = {-INFINITE, 0.0f, 0x7fffffff};
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (mine[i].beats(best)) best = mine[i];
        }
        best = block_best(best, s.room, count);
        if (best.score == -INFINITE) break;
        if (count == FRONT_OF_ROW) {
            count = TOO_LONG;
            break;
        }
        if (threadIdx.x == 0) s.front[count] = best, out.value[count] = best.value, out.id[count] = best.id;
        const float low = best.score - slack(best.value * inverse);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const bool after = mine[i].value < best.value || (mine[i].value == best.value && mine[i].id > best.id);
            const bool less = mine[i].score + slack(mine[i].value * inverse) < low;
            if (mine[i].id == best.id || (after && less)) mine[i].score = -INFINITE;
        }
    }
    __syncthreads();

    // Penalised tokens are added with their values in double, except those that others rule out.
    if (count >= 0 && tokens.window > 0) {
        static_assert(HISTORY <= ROW_THREADS, "a thread per entry of the window");
        const int token = threadIdx.x < tokens.window ? tokens.penalised[threadIdx.x] : -1;
        const double value = token >= 0 ? tokens.penalised_value[threadIdx.x] : 0.0;
        bool joins = token >= 0 && value > -INFINITE;
        const float below = __double2float_rd(value), ratio = below * inverse;
        const float score = ratio + (joins ? noise(token) : 0.0f), most = score + 2 * slack(ratio);
        if (threadIdx.x < tokens.window) {
            s.value[threadIdx.x] = below, s.low[threadIdx.x] = joins ? score - 2 * slack(ratio) : -INFINITE;
        }
        __syncthreads();
        for (int i = 0; i < count; ++i) {
            const float low = s.front[i].score - slack(s.front[i].value * inverse);
            joins &= !(s.front[i].value > below && low > most);
        }
        for (int i = 0; i < tokens.window; ++i) joins &= !(s.value[i] > below && s.low[i] > most);
        const u32 lanes = __ballot_sync(FULL_WARP, joins);
        if (lane_id() == 0) s.joining[warp_id()] = __popc(lanes);
        __syncthreads();
        int place = count + __popc(lanes & ((1u << lane_id()) - 1));
        for (int warp = 0; warp < ROW_WARPS; ++warp) {
            if (warp < warp_id()) place += s.joining[warp];
            count += s.joining[warp];
        }
        if (count > FRONT_OF_ROW) count = TOO_LONG;
        else if (joins) out.value[place] = value, out.id[place] = token;
    }
    if (threadIdx.x == 0) out.count = count;
}

// ---- What precedes each token of the front --------------------------------------------------------------------------

struct WeightsShared {
    // A token comes before a token of the front if its logit is above `value`, or equal to it and its id is below `tie`.
    float value[FRONT_OF_ROW];
    int tie[FRONT_OF_ROW];
    float weight[PART_THREADS / WARP][FRONT_OF_ROW], total[PART_THREADS / WARP];
    int count[PART_THREADS / WARP][FRONT_OF_ROW];
};

extern "C" __global__ void __launch_bounds__(PART_THREADS, 2) draw_weights(
    const StepState* st, const float* logits, int vocab, int stride, int node0, const RowTokens* rows,
    const RowFront* fronts, PartBefore* before) {
    __shared__ WeightsShared s;
    pdl_launch();
    pdl_wait();
    const int row = blockIdx.y, node = node0 + row;
    if (st->stop || node >= st->n || way_of(st, vocab) != Way::FRONT) return;
    const bool counted = by_count(st, vocab), weighed = by_weight(st);
    const RowFront& front = fronts[row];
    const int count = front.count, lane = lane_id(), warp = warp_id();
    if (count < 0 || (!counted && !weighed)) return;
    const Part part(logits + u64(row) * stride, vocab);
    for (int i = threadIdx.x; i < count; i += PART_THREADS) {
        const double exact = front.value[i];
        s.value[i] = __double2float_rd(exact);
        s.tie[i] = double(s.value[i]) == exact ? front.id[i] : 0;
    }
    const float scale = LOG2_E / st->temperature, best = rows[row].best;
    float weight[PER_THREAD], total = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        weight[i] = weighed ? exp2f((part.value[i] - best) * scale) : 0.0f;
        total += weight[i];
    }
    total = warp_sum(total);
    if (lane == 0) s.total[warp] = total;
    __syncthreads();
    for (int place = 0; place < count; ++place) {
        const float border = s.value[place];
        const int tie = s.tie[place];
        float sum = 0.0f;
        int many = 0;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const bool is_before = part.value[i] > border || (part.value[i] == border && part.token(i) < tie);
            many += is_before;
            sum += is_before ? weight[i] : 0.0f;
        }
        if (counted) many = warp_sum(many);
        if (weighed) sum = warp_sum(sum);
        if (lane == 0) s.count[warp][place] = many, s.weight[warp][place] = sum;
    }
    __syncthreads();
    PartBefore& mine = before[row * gridDim.x + blockIdx.x];
    for (int place = threadIdx.x; place < count; place += PART_THREADS) {
        int many = 0;
        float sum = 0.0f;
        for (int i = 0; i < PART_THREADS / WARP; ++i) many += s.count[i][place], sum += s.weight[i][place];
        mine.count[place] = many, mine.weight[place] = sum;
    }
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (int i = 0; i < PART_THREADS / WARP; ++i) sum += s.total[i];
        mine.total = sum;
    }
}
