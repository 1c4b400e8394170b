// The kernels of a draw (draw.cuh) that read all tokens of a row: a thread block has a part of DRAW_PART. Rows that need
// neither return at once. Grid (parts, rows of the pass).
//
//   draw_scan     adds the tokens that score higher than all of the list. Bound by Philox, 60 integer instructions per
//                 four tokens, and by loads from the L2: 10 us for 24 rows of 248,320 tokens on an H200.
//   draw_weights  sums number or weight of the tokens before each token of the front, where top_k or top_p cut tokens
//                 off. PartBefore [row][part]. Bound by an exponential and half a dozen comparisons and additions a
//                 token: 13 us on an H200.

#include "draw_tokens.cuh"

constexpr int PART_THREADS = 256, PER_THREAD = DRAW_PART / PART_THREADS;
constexpr float MAX_NOISE = 22.9f, LOG2_E = 1.44269504f;

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
    if (st->stop || node >= st->n || method_of(st, vocab) != Method::FRONT || out.count < 0) return;
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
        if (!(most > -INFINITE) || least > MAX_NOISE) continue;
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
    if (st->stop || node >= st->n || method_of(st, vocab) != Method::FRONT) return;
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
