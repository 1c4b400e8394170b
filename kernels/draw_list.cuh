// The first tokens of a row in order of value, found from the maxima of its blocks of 16 tokens (logits.cu): a thread block
// lists them, and reads little else of the row.

#pragma once

#include "draw_tokens.cuh"

constexpr int LIST_THREADS = 1024;
constexpr int LIST_WARPS = LIST_THREADS / WARP;
static_assert(LIST_WARPS == WARP, "a lane per warp");

struct ListShared {
    u32 count[BINS];
    u32 extremes[2][LIST_WARPS], sums[LIST_WARPS];
    int blocks[LIST];  // of 16 tokens, that hold tokens of the list
    float value[LIST];
    int id[LIST];
    int last, chosen, listed;
    u32 left, many;
};

// A row's block maxima, dealt out to the threads. A thread keeps its own in registers, as to read them once more is a
// trip to the L2; those of tokens from 16 * PER_THREAD * LIST_THREADS = 262,144 on are read each time.
struct Maxima {
    static constexpr int PER_THREAD = 16;
    const float* all;
    int blocks;
    float own[PER_THREAD];
    // After `measure`.
    float best;
    int digits[PER_THREAD];

    __device__ __forceinline__ Maxima(const float* of_row, int count) : all(of_row), blocks(count) {
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int block = i * LIST_THREADS + threadIdx.x;
            own[i] = block < blocks ? all[block] : -INFINITE;
        }
    }
    // The largest of this thread's.
    __device__ __forceinline__ float largest() const {
        float most = -INFINITE;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) most = fmaxf(most, own[i]);
#pragma unroll 1
        for (int i = PER_THREAD * LIST_THREADS + threadIdx.x; i < blocks; i += LIST_THREADS) most = fmaxf(most, all[i]);
        return most;
    }
    __device__ __forceinline__ void measure(float from) {
        best = from;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) digits[i] = distance_digits(best, own[i]);
    }
    // Call f(digits, block) for each.
    template <class F> __device__ __forceinline__ void each(F f) const {
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) f(digits[i], i * LIST_THREADS + int(threadIdx.x));
#pragma unroll 1
        for (int i = PER_THREAD * LIST_THREADS + threadIdx.x; i < blocks; i += LIST_THREADS) {
            f(distance_digits(best, all[i]), i);
        }
    }
};

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

// The largest distance of these digits.
__device__ __forceinline__ float distance_of(int digits) {
    return digits == FARTHEST ? INFINITE : __uint_as_float(u32(digits + NEAREST) << 7 | 127);
}

// List all tokens that are at most as far from the largest maximum as the `rank`th largest maximum is; return their
// number. The counts are cleared, with no barrier since.
__device__ __forceinline__ int list_tokens(
    const float* logits, Maxima& maxima, int vocab, u32 rank, ListShared& s) {
    static_assert(ANCHORS <= LIST_THREADS && MAX_LISTED + HISTORY <= LIST_THREADS, "see `floor`");
    const u32 key = ordered(maxima.largest()), highest = largest_of_warp(key), lowest = least_of_warp(key);
    if (lane_id() == 0) s.extremes[0][warp_id()] = highest, s.extremes[1][warp_id()] = lowest;
    // What stays if there are fewer than `rank`: all of them.
    if (threadIdx.x == 0) s.last = FARTHEST, s.many = 0, s.chosen = 0, s.listed = 0;
    __syncthreads();
    const float best = score_of(largest_of_warp(s.extremes[0][lane_id()]));
    // Every thread has a maximum from here on, so the `rank`th is no lower: a third of them are left to count.
    const float floor = score_of(least_of_warp(s.extremes[1][lane_id()]));
    if (!(best < INFINITE)) return BROKEN_ROW;
    maxima.measure(best);

    // The digits of the `rank`th distance, one after the other; the second is only needed where the first is too
    // coarse. Digits from `nearest` to `furthest` are counted, at `shift`.
    int nearest = 0, furthest = min(distance_digits(best, floor), FARTHEST) | (BINS - 1), shift = DIGIT_BITS;
    u32 left = rank;
    for (;;) {
        maxima.each([&](int digits, int) {
            if (digits >= nearest && digits <= furthest) atomicAdd(&s.count[digits >> shift & (BINS - 1)], 1u);
        });
        __syncthreads();
        select_bin(left, nearest, shift, s);
        __syncthreads();
        if (shift == 0 || s.many <= rank / 4) break;
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
