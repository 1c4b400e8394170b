// Finds the tokens of a row that can be drawn (draw.cuh); `sample` then decides among them. Kernels that a row does not
// need return at once.
//
//   draw_list     grid = rows of the pass: hides penalised tokens, lists the first tokens of the order. Bound by
//                 latency: two trips to the L2, for state and block maxima, which stay in registers, and for the tokens
//                 of the chosen blocks; eight barriers; shared atomics. 12 us for 24 rows of 248,320 tokens on an H200.
//   draw_scan     grid (parts of DRAW_PART tokens, rows): adds the tokens that score higher than all of the list. Bound
//                 by Philox, 60 integer instructions per four tokens, and by loads from the L2: 10 us for 24 rows
//                 of 248,320 tokens on an H200.
//   draw_front    grid = rows: computes the front of the listed and added tokens. Bound by latency: one trip to the L2,
//                 the noise of three or four tokens a thread, eight barriers. 7 us on an H200.
//   draw_weights  grid (parts, rows): sums number or weight of the tokens before each token of the front, where top_k
//                 or top_p cut tokens off. PartBefore [row][part]. Bound by an exponential and half a dozen comparisons
//                 and additions a token: 13 us on an H200.

#include "draw.cuh"
#include "extremes.cuh"
#include "penalties.cuh"

constexpr int LIST_THREADS = 1024, FRONT_THREADS = 512, PART_THREADS = 256, PER_THREAD = DRAW_PART / PART_THREADS;
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

// The logits of tokens id[i] to id[i] + 3, in turn, where each id is a multiple of 4; -inf past the vocabulary.
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

// The distance to the best value as two digits below BINS, packed into one integer. Its resolution is relative: the
// first digit has 32 values per power of two. -inf is further away than any.
constexpr int NEAREST = (127 - 40) << 16;  // of 2^-40
constexpr int DIGIT_BITS = 11, FARTHEST = BINS * BINS - 1;
static_assert(BINS == 1 << DIGIT_BITS);
__device__ __forceinline__ int distance_digits(float best, float value) {
    const int digits = min(max(int(__float_as_uint(best - value) >> 7) - NEAREST, 0), FARTHEST);
    return value > -INFINITE ? digits : FARTHEST + 1;
}
// The largest distance of these digits.
__device__ __forceinline__ float distance_of(int digits) {
    return digits == FARTHEST ? INFINITE : __uint_as_float(u32(digits + NEAREST) << 7 | 127);
}

constexpr int LIST_WARPS = LIST_THREADS / WARP;
static_assert(LIST_WARPS == WARP, "a lane per warp");

struct ListShared {
    int tokens[HISTORY];
    u32 count[BINS];
    u32 room[2][LIST_WARPS], sums[LIST_WARPS];
    int blocks[LIST];  // of 16 tokens, that hold tokens of the list
    float value[LIST];
    int id[LIST];
    int last, chosen, listed;
    u32 left, many;
};

// A row's block maxima, dealt out to the threads. A thread keeps its own in registers, as to read them once more is a
// trip to the L2; those of tokens from 16 * HELD * LIST_THREADS = 262,144 on are read each time.
struct Maxima {
    static constexpr int HELD = 16;
    const float* all;
    int blocks;
    float held[HELD];
    // After `measure`.
    float best;
    int digits[HELD];

    __device__ __forceinline__ Maxima(const float* of_row, int count) : all(of_row), blocks(count) {
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int block = i * LIST_THREADS + threadIdx.x;
            held[i] = block < blocks ? all[block] : -INFINITE;
        }
    }
    // The largest of this thread's.
    __device__ __forceinline__ float largest() const {
        float most = -INFINITE;
#pragma unroll
        for (int i = 0; i < HELD; ++i) most = fmaxf(most, held[i]);
#pragma unroll 1
        for (int i = HELD * LIST_THREADS + threadIdx.x; i < blocks; i += LIST_THREADS) most = fmaxf(most, all[i]);
        return most;
    }
    __device__ __forceinline__ void measure(float from) {
        best = from;
#pragma unroll
        for (int i = 0; i < HELD; ++i) digits[i] = distance_digits(best, held[i]);
    }
    // Call f(digits, block) for each.
    template <class F> __device__ __forceinline__ void each(F f) const {
#pragma unroll
        for (int i = 0; i < HELD; ++i) f(digits[i], i * LIST_THREADS + int(threadIdx.x));
#pragma unroll 1
        for (int i = HELD * LIST_THREADS + threadIdx.x; i < blocks; i += LIST_THREADS) {
            f(distance_digits(best, all[i]), i);
        }
    }
};

// Compute the penalised values of the newest tokens, and hide their logits in the row.
__device__ __forceinline__ int penalise(const StepState* st, int node, float* logits, ListShared& s, RowTokens& out) {
    const int window = penalty_window(st, node, s.tokens);
    for (int i = threadIdx.x; i < window; i += LIST_THREADS) {
        const float logit = logits[s.tokens[i]];
        const Penalised mine = Penalised::of(st, s.tokens, window, i, logit);
        out.penalised[i] = mine.token, out.penalised_value[i] = mine.value, out.logit[i] = logit;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < window; i += LIST_THREADS) logits[s.tokens[i]] = -INFINITE;
    __syncthreads();
    return window;
}

// The sum of `mine` over the lanes up to this one.
__device__ __forceinline__ u32 sum_up_to(u32 mine) {
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
        const u32 below = __shfl_up_sync(FULL_WARP, mine, offset);
        if (lane_id() >= offset) mine += below;
    }
    return mine;
}

// Add `mine` entries to a list of `size` that the block shares; return the place of the first. All lanes call.
__device__ __forceinline__ int append(int mine, int& size) {
    const u32 up_to = sum_up_to(u32(mine));
    int begin = 0;
    if (lane_id() == WARP - 1 && up_to > 0) begin = atomicAdd(&size, int(up_to));
    return __shfl_sync(FULL_WARP, begin, WARP - 1) + int(up_to) - mine;
}

// Find the bin that holds the `left`th of what was counted; store the largest digits in it. The first bin begins with
// `nearest`, and a bin's number is at `shift` in digits.
__device__ __forceinline__ void select_bin(u32 left, int nearest, int shift, ListShared& s) {
    static_assert(BINS == 2 * LIST_THREADS, "two bins per thread");
    const uint2 mine = reinterpret_cast<const uint2*>(s.count)[threadIdx.x];
    const u32 up_to = sum_up_to(mine.x + mine.y);
    if (lane_id() == WARP - 1) s.sums[warp_id()] = up_to;
    __syncthreads();
    const u32 upper = up_to + sum_of_warp(lane_id() < warp_id() ? s.sums[lane_id()] : 0);
    const u32 middle = upper - mine.y, lower = middle - mine.x;
    if (lower < left && left <= upper) {
        const bool second = left > middle;
        const int bin = 2 * threadIdx.x + second;
        s.last = nearest + ((bin + 1) << shift) - 1;
        s.left = left - (second ? middle : lower), s.many = second ? mine.y : mine.x;
    }
}

__device__ __forceinline__ void clear_counts(ListShared& s) {
    reinterpret_cast<uint2*>(s.count)[threadIdx.x] = {0, 0};
}

// List all tokens that are at most as far from the largest maximum as the `wanted`th largest maximum is; return their
// number. The counts are cleared, with no barrier since.
__device__ __forceinline__ int list_tokens(
    const float* logits, Maxima& maxima, int vocab, u32 wanted, ListShared& s) {
    static_assert(ANCHORS <= LIST_THREADS && MOST_LISTED + HISTORY <= LIST_THREADS, "see `floor`");
    const u32 key = ordered(maxima.largest()), highest = largest_of_warp(key), lowest = least_of_warp(key);
    if (lane_id() == 0) s.room[0][warp_id()] = highest, s.room[1][warp_id()] = lowest;
    // What stays if there are fewer than wanted: all of them.
    if (threadIdx.x == 0) s.last = FARTHEST, s.many = 0, s.chosen = 0, s.listed = 0;
    __syncthreads();
    const float best = score_of(largest_of_warp(s.room[0][lane_id()]));
    // Every thread has a maximum from here on, so the `wanted`th is no lower: a third of them are left to count.
    const float floor = score_of(least_of_warp(s.room[1][lane_id()]));
    if (!(best < INFINITE)) return BROKEN_ROW;
    maxima.measure(best);

    // The digits of the `wanted`th distance, one after the other; the second is only needed where the first is too
    // coarse. Digits from `nearest` to `furthest` are counted, at `shift`.
    int nearest = 0, furthest = min(distance_digits(best, floor), FARTHEST) | (BINS - 1), shift = DIGIT_BITS;
    u32 left = wanted;
    for (;;) {
        maxima.each([&](int digits, int) {
            if (digits >= nearest && digits <= furthest) atomicAdd(&s.count[digits >> shift & (BINS - 1)], 1u);
        });
        __syncthreads();
        select_bin(left, nearest, shift, s);
        __syncthreads();
        if (shift == 0 || s.many <= wanted / 4) break;
        left = s.left, furthest = s.last, nearest = furthest - (BINS - 1), shift = 0;
        clear_counts(s);
        __syncthreads();
    }
    const int last = s.last;
    int many = 0;
    maxima.each([&](int digits, int) { many += digits <= last; });
    int place = append(many, s.chosen);
    maxima.each([&](int digits, int block) {
        if (digits > last) return;
        if (place < LIST) s.blocks[place] = block;
        ++place;
    });
    __syncthreads();
    const int fours = 4 * s.chosen;
    if (fours > 4 * LIST) return TOO_LONG;  // all but a few blocks (of penalised tokens) hold a token for the list
    // As many at once as ANCHORS blocks and a quarter more have: they are loaded in one trip to the L2.
    constexpr int TOGETHER = ceil_div(5 * ANCHORS, LIST_THREADS);
    const float farthest = distance_of(last);
#pragma unroll 1
    for (int turn = 0; turn < fours; turn += TOGETHER * LIST_THREADS) {
        const auto four = [&](int i) { return turn + i * LIST_THREADS + int(threadIdx.x); };
        const auto exists = [&](int i) { return four(i) < fours; };
        const auto token = [&](int i) { return 16 * s.blocks[four(i) / 4] + four(i) % 4 * 4; };
        int id[TOGETHER];
        float value[4 * TOGETHER];
        u32 found = 0;
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) id[i] = exists(i) ? token(i) : 0;  // as good as any
        load_fours(value, logits, id, vocab);
#pragma unroll
        for (int i = 0; i < 4 * TOGETHER; ++i) {
            const bool near = value[i] > -INFINITE && !(best - value[i] > farthest);
            found |= u32(exists(i / 4) && near) << i;
        }
        int place = append(__popc(found), s.listed);
#pragma unroll
        for (int i = 0; i < 4 * TOGETHER; ++i) {
            if (!(found >> i & 1)) continue;
            if (place < LIST) s.value[place] = value[i], s.id[place] = token(i / 4) + i % 4;
            ++place;
        }
    }
    __syncthreads();
    return s.listed <= LIST ? s.listed : TOO_LONG;
}

// `logits` [rows][stride], of which the first `vocab` columns are tokens; `maxima` [rows][vocab / 16, rounded up] of
// blocks of 16 tokens, infinite where a block contains NaN.
extern "C" __global__ void __launch_bounds__(LIST_THREADS, 1) draw_list(
    const StepState* st, float* logits, int vocab, int stride, int node0, const float* maxima, RowTokens* rows) {
    __shared__ __align__(8) ListShared s;
    pdl_launch();
    pdl_wait();
    const int row = blockIdx.x, node = node0 + row, blocks = ceil_div(vocab, 16);
    Maxima of_row(maxima + u64(row) * blocks, blocks);
    const bool dead = load_now(st->stop) | (node >= load_now(st->n));
    const bool penalised = penalises(st);
    const Way way = way_of(st, vocab);
    issue_loads();  // all of these in one trip
    if (dead) return;
    clear_counts(s);
    RowTokens& out = rows[row];
    logits += u64(row) * stride;
    const int window = penalised ? penalise(st, node, logits, s, out) : 0;
    if (threadIdx.x == 0) out.window = window, out.added = 0;
    if (way == Way::WHOLE) return;
    const Noise noise(st, node);
    // One block more per penalised token: then at least the wanted number of maxima are of tokens without a penalty.
    const int wanted = way == Way::LISTED ? kept_tokens(st, vocab) + window : min(ANCHORS, ceil_div(vocab, 128));
    int count = list_tokens(logits, of_row, vocab, u32(wanted), s);
    const bool front = way == Way::FRONT;
    const float inverse = 1.0f / st->temperature;
    float best = -INFINITE, enough = -INFINITE;
#pragma unroll
    for (int i = 0; i < LIST; i += LIST_THREADS) {
        const int at = i + threadIdx.x;
        if (at >= count) break;
        const float value = s.value[at], ratio = value * inverse;
        const int id = s.id[at];
        out.value[at] = value, out.id[at] = id;
        if (!front) continue;
        best = fmaxf(best, value);
        enough = fmaxf(enough, ratio + noise(id) - slack(ratio));
    }
    if (front && count >= 0) {
        best = score_of(largest_of_warp(ordered(best))), enough = score_of(largest_of_warp(ordered(enough)));
        if (lane_id() == 0) s.room[0][warp_id()] = ordered(best), s.room[1][warp_id()] = ordered(enough);
        __syncthreads();
        best = score_of(largest_of_warp(s.room[0][lane_id()]));
        enough = score_of(largest_of_warp(s.room[1][lane_id()]));
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
        // Noise of x needs 1 - u <= e^-x, so one exponential gives the word below which noise is not enough.
        const float lacking = exp2_or_zero(32.0f - least * LOG2_E) * 1.001f + 1.0f;
        const u32 enough_word = lacking < 4294967040.0f ? ~u32(lacking) : 0;
        if (max(max(word[0], word[1]), max(word[2], word[3])) < enough_word) continue;
        u32 left = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) left |= u32(word[i] >= enough_word && value[i] > -INFINITE) << i;
        // Not unrolled: nearly always one token of one lane.
#pragma unroll 1
        for (; left; left &= left - 1) {
            const int i = __ffs(int(left)) - 1;
            const float mine = i & 2 ? (i & 1 ? value[3] : value[2]) : (i & 1 ? value[1] : value[0]);
            if (gumbel_about(word_of_four(words, i)) < needed(mine)) continue;
            const int at = atomicAdd(&out.added, 1);
            if (at < LIST) out.added_value[at] = mine, out.added_id[at] = part.token(four) + i;
        }
    }
}

// ---- The front -----------------------------------------------------------------------------------------------------

// A token with its score.
struct Scored {
    float score, value;
    int id;

    __device__ __forceinline__ bool before(const Scored& other) const {
        return value > other.value || (value == other.value && id < other.id);
    }
    // Bounds of the exact score.
    __device__ __forceinline__ float low(float inverse) const { return score - slack(value * inverse); }
    __device__ __forceinline__ float high(float inverse) const { return score + slack(value * inverse); }
};

constexpr int FRONT_WARPS = FRONT_THREADS / WARP;
constexpr int MOST_LEFT = 2048;

struct FrontShared {
    // By distance to the best value, in eighths of a power of two: a lower bound of the best score of what is certainly
    // higher in the order, as an integer.
    u32 above[FRONT_THREADS];
    u32 room[FRONT_WARPS];
    Scored left[MOST_LEFT];
    Scored front[FRONT_OF_ROW];
    int size, count;  // of `left` and of `front`
    // For penalised tokens: a float that is a lower bound of the value, and a lower bound of the score.
    float value[HISTORY], low[HISTORY];
    int joining[FRONT_WARPS];
};

// Leave out tokens that another one rules out which is further up in the order by more than a step of `above`: of some
// 1,300 a dozen or two are left.
template <int EACH> __device__ __forceinline__ void rule_out(
    const Scored (&mine)[EACH], float best, float inverse, FrontShared& s) {
    constexpr int COARSER = 13;
    static_assert(FARTHEST >> COARSER == FRONT_THREADS - 1, "a thread per distance");
    u32 exists = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (!(mine[i].score > -INFINITE)) continue;
        exists |= 1u << i;
        const int at = distance_digits(best, mine[i].value) >> COARSER;
        atomicMax(&s.above[at], ordered(mine[i].low(inverse)));
    }
    __syncthreads();
    u32 up_to = s.above[threadIdx.x];
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
        const u32 nearer = __shfl_up_sync(FULL_WARP, up_to, offset);
        if (lane_id() >= offset) up_to = max(up_to, nearer);
    }
    if (lane_id() == WARP - 1) s.room[warp_id()] = up_to;
    u32 above = __shfl_up_sync(FULL_WARP, up_to, 1);
    if (lane_id() == 0) above = 0;
    __syncthreads();
    above = max(above, largest_of_warp(lane_id() < warp_id() ? s.room[lane_id()] : 0));
    s.above[threadIdx.x] = above;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (!(exists >> i & 1)) continue;
        const int at = distance_digits(best, mine[i].value) >> COARSER;
        if (ordered(mine[i].high(inverse)) < s.above[at]) exists &= ~(1u << i);
    }
    int place = append(__popc(exists), s.size);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (!(exists >> i & 1)) continue;
        if (place < MOST_LEFT) s.left[place] = mine[i];
        ++place;
    }
    __syncthreads();
}

// Compare each token that is left with all others. It is of the front if none before it in the order certainly scores
// higher; it may be there twice, once from each list.
__device__ __forceinline__ void take_front(float inverse, FrontShared& s, RowFront& out) {
    for (int first = 0; first < s.size; first += FRONT_THREADS) {
        const int at = first + threadIdx.x;
        bool stays = at < s.size;
        Scored mine{};
        if (stays) {
            mine = s.left[at];
            const float high = mine.high(inverse);
            for (int i = 0; i < s.size; ++i) {
                const Scored other = s.left[i];
                stays &= !(other.before(mine) && other.low(inverse) > high) && !(other.id == mine.id && i < at);
            }
        }
        const int place = append(stays, s.count);
        if (stays && place < FRONT_OF_ROW) {
            s.front[place] = mine, out.value[place] = mine.value, out.id[place] = mine.id;
        }
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(FRONT_THREADS, 1)
    draw_front(const StepState* st, int vocab, int node0, const RowTokens* rows, RowFront* fronts) {
    constexpr int EACH = 2 * LIST / FRONT_THREADS;
    __shared__ FrontShared s;
    pdl_launch();
    pdl_wait();
    const int row = blockIdx.x, node = node0 + row;
    const RowTokens& tokens = rows[row];
    RowFront& out = fronts[row];
    // All are loaded in one trip; what is past the counts is arbitrary.
    Scored mine[EACH];
#pragma unroll
    for (int i = 0; i < EACH / 2; ++i) {
        const int at = i * FRONT_THREADS + threadIdx.x, other = i + EACH / 2;
        mine[i].value = tokens.value[at], mine[i].id = tokens.id[at];
        mine[other].value = tokens.added_value[at], mine[other].id = tokens.added_id[at];
    }
    const int listed = tokens.count, added = tokens.added;
    const float nearest = tokens.best;
    const bool dead = load_now(st->stop) | (node >= load_now(st->n));
    issue_loads();
    if (dead || way_of(st, vocab) != Way::FRONT) return;
    if (listed <= 0 || added > LIST) {
        if (threadIdx.x == 0) out.count = listed == BROKEN_ROW ? BROKEN_ROW : TOO_LONG;
        return;
    }
    const Noise noise(st, node);
    const float inverse = 1.0f / st->temperature;
    s.above[threadIdx.x] = 0;
    if (threadIdx.x == 0) s.size = 0, s.count = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int at = i % (EACH / 2) * FRONT_THREADS + threadIdx.x;
        const bool exists = at < (i < EACH / 2 ? listed : added);
        mine[i].score = exists ? mine[i].value * inverse + noise(mine[i].id) : -INFINITE;
    }
    __syncthreads();
    rule_out(mine, nearest, inverse, s);
    const bool fits = s.size <= MOST_LEFT;
    if (fits) take_front(inverse, s, out);
    int count = fits && s.count <= FRONT_OF_ROW ? s.count : TOO_LONG;

    // Penalised tokens are added with their values in double, except those that others rule out.
    if (count >= 0 && tokens.window > 0) {
        static_assert(HISTORY <= FRONT_THREADS, "a thread per entry of the window");
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
            joins &= !(s.front[i].value > below && s.front[i].low(inverse) > most);
        }
        for (int i = 0; i < tokens.window; ++i) joins &= !(s.value[i] > below && s.low[i] > most);
        const u32 lanes = __ballot_sync(FULL_WARP, joins);
        if (lane_id() == 0) s.joining[warp_id()] = __popc(lanes);
        __syncthreads();
        int place = count + __popc(lanes & ((1u << lane_id()) - 1));
        for (int warp = 0; warp < FRONT_WARPS; ++warp) {
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
    // A token of this part comes before a token of the front if its logit is above `border`, or equal to it and its id
    // is below `tie`; 0 where that is true of no token of the part.
    float border[FRONT_OF_ROW];
    int tie[FRONT_OF_ROW];
    float weight[PART_THREADS / WARP][FRONT_OF_ROW], total[PART_THREADS / WARP];
    int count[PART_THREADS / WARP][FRONT_OF_ROW];
};

// Which of a warp's tokens come before a token of the front: WeightsShared. Without `ties`, `tie` is 0.
template <bool ties> __device__ __forceinline__ bool comes_before(const Part& part, int i, float border, int tie) {
    return part.value[i] > border || (ties && part.value[i] == border && part.token(i) < tie);
}
// The sum of their weights, and their number.
template <bool ties> __device__ __forceinline__ float weight_before(
    const Part& part, const float (&weight)[PER_THREAD], float border, int tie) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        if (comes_before<ties>(part, i, border, tie)) sum += weight[i];
    }
    return warp_sum(sum);
}
template <bool ties> __device__ __forceinline__ u32 count_before(const Part& part, float border, int tie) {
    u32 many = 0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) many += comes_before<ties>(part, i, border, tie);
    return sum_of_warp(many);
}

// The next float below a finite one.
__device__ __forceinline__ float below(float value) { return score_of(ordered(value == 0 ? -0.0f : value) - 1); }

extern "C" __global__ void __launch_bounds__(PART_THREADS, 4) draw_weights(
    const StepState* st, const float* logits, int vocab, int stride, int node0, const RowTokens* rows,
    const RowFront* fronts, PartBefore* before) {
    __shared__ WeightsShared s;
    pdl_launch();
    pdl_wait();
    const int row = blockIdx.y, node = node0 + row;
    if (st->stop || node >= st->n || way_of(st, vocab) != Way::FRONT) return;
    const bool weighed = by_weight(st);  // or else by number: with both it would not be FRONT
    const RowFront& front = fronts[row];
    const int count = front.count, lane = lane_id(), warp = warp_id();
    if (count < 0 || !(weighed || by_count(st, vocab))) return;
    const Part part(logits + u64(row) * stride, vocab);
    static_assert(FRONT_OF_ROW <= PART_THREADS, "a thread per token of the front");
    if (const int i = threadIdx.x; i < count) {
        const double exact = front.value[i];
        const float value = __double2float_rd(exact);
        const int tie = double(value) == exact ? front.id[i] : 0, begin = blockIdx.x * DRAW_PART;
        const bool all_before = tie >= begin + DRAW_PART;
        s.border[i] = all_before ? below(value) : value, s.tie[i] = tie > begin && !all_before ? tie : 0;
    }
    const float scale = LOG2_E / st->temperature, best = rows[row].best;
    float weight[PER_THREAD], total = 0.0f, most = -INFINITE;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        weight[i] = weighed ? exp2_or_zero((part.value[i] - best) * scale) : 0.0f;
        total += weight[i];
        most = fmaxf(most, part.value[i]);
    }
    total = warp_sum(total);
    if (lane == 0) s.total[warp] = total;
    __syncthreads();
    for (int place = 0; place < count; ++place) {
        const float border = s.border[place];
        const int tie = s.tie[place];
        float sum = 0.0f;
        u32 many = 0;
        if (tie > 0) {  // a part in sixty
            if (weighed) sum = weight_before<true>(part, weight, border, tie);
            else many = count_before<true>(part, border, tie);
        } else if (__any_sync(FULL_WARP, most > border)) {  // half of a flat row's front is above most warps' tokens
            if (weighed) sum = weight_before<false>(part, weight, border, tie);
            else many = count_before<false>(part, border, tie);
        }
        if (lane == 0) s.count[warp][place] = int(many), s.weight[warp][place] = sum;
    }
    __syncthreads();
    PartBefore& mine = before[row * gridDim.x + blockIdx.x];
    if (const int place = threadIdx.x; place < count) {
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
