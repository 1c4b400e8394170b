// The front of a row (draw.cuh), from the tokens that draw_list has listed and draw_scan added; `sample` then decides among
// them. Rows without one return at once.
//
// grid = rows of the pass. Bound by latency: one trip to the L2, the noise of three or four tokens a thread, eight
// barriers. 7 us for 24 rows on an H200.

#include "draw_tokens.cuh"

constexpr int FRONT_THREADS = 512;

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
constexpr int MAX_LEFT = 2048;

struct FrontShared {
    // By distance to the best value, in eighths of a power of two: a lower bound of the best score of what is certainly
    // higher in the order, as an integer.
    u32 above[FRONT_THREADS];
    u32 largest[FRONT_WARPS];
    Scored left[MAX_LEFT];
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
    if (lane_id() == WARP - 1) s.largest[warp_id()] = up_to;
    u32 above = __shfl_up_sync(FULL_WARP, up_to, 1);
    if (lane_id() == 0) above = 0;
    __syncthreads();
    above = max(above, largest_of_warp(lane_id() < warp_id() ? s.largest[lane_id()] : 0));
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
        if (place < MAX_LEFT) s.left[place] = mine[i];
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
    if (dead || method_of(st, vocab) != Method::FRONT) return;
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
    const bool fits = s.size <= MAX_LEFT;
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
