// The sampler chain over a set of tokens, exactly: top_k, temperature, top_p, min_p, then the best of weight and Gumbel
// noise (src/dflash_core/sampling.py is the Python twin). The set is a row of logits, or a list of some of its tokens.
//
// Values are compared in double, as the twin does. The truncations find their border, the last token they keep in the
// order of value (higher first) and id (lower first), by radix descent: a histogram of the tokens' weights (1 each for
// top_k, probability for top_p), the bin that holds the border, then that bin's next digit. The first digit is the
// distance to the best in units of 1/64, which spreads logits well; then come the value's bits, then the id's. Weights are
// integer multiples of 2^-44, so that sums do not depend on the order of summation.
//
// Penalised tokens (at most HISTORY) are kept separately with their double values; their logits are -inf during the draw
// and restored at its end. A block has THREADS threads, a multiple of 32.

#pragma once

#include "draw.cuh"

constexpr double BINS_PER_UNIT = 64.0;
constexpr double ONE = 17592186044416.0;  // 2^44: a weight of 1
constexpr double NO_WEIGHT = -31.3;       // e to this is under 2^-45
constexpr u64 ALL64 = ~0ull;
constexpr u32 ALL32 = ~0u;

// A token's place in the order, most significant field first; smaller places come earlier.
struct Place {
    u32 bin;
    u64 key;
    u32 id;

    __device__ __forceinline__ bool up_to(const Place& border) const {
        if (bin != border.bin) return bin < border.bin;
        if (key != border.key) return key < border.key;
        return id <= border.id;
    }
};
constexpr Place EVERYTHING{BINS, ALL64, ALL32};

// The digits of a place: the bin, 6 of the key (11, 11, 11, 11, 11, 9 bits), 3 of the id (11, 11, 10 bits).
constexpr int DIGITS = 10;
__device__ __forceinline__ int digit_shift(int level) {
    return level <= 6 ? max(64 - 11 * level, 0) : max(32 - 11 * (level - 6), 0);
}
__device__ __forceinline__ u32 digit(const Place& p, int level) {
    if (level == 0) return p.bin;
    const int shift = digit_shift(level), above = digit_shift(level - 1);
    if (level <= 6) {
        const int width = (level == 1 ? 64 : above) - shift;
        return u32(p.key >> shift) & ((1u << width) - 1);
    }
    const int width = (level == 7 ? 32 : above) - shift;
    return (p.id >> shift) & ((1u << width) - 1);
}
// Whether all digits before `level` are those of `chosen`.
__device__ __forceinline__ bool same_before(const Place& p, const Place& chosen, int level) {
    if (level == 0) return true;
    if (p.bin != chosen.bin) return false;
    if (level == 1) return true;
    if (level <= 7) return p.key >> digit_shift(min(level - 1, 6)) == chosen.key >> digit_shift(min(level - 1, 6));
    return p.key == chosen.key && p.id >> digit_shift(level - 1) == chosen.id >> digit_shift(level - 1);
}

struct Shared {
    u64 mass[BINS];
    u32 count[BINS];
    u64 sums[THREADS / WARP];
    double values[THREADS / WARP];
    double scores[THREADS / WARP];
    int ids[THREADS / WARP];
    int penalised[HISTORY];    // ids, or -1
    double penalised_value[HISTORY];
    float logit[HISTORY];      // of penalised tokens, to be put back
    u64 rest, total;           // of the descent: what is left to keep inside the chosen bin
    u32 bin, chosen_count;
    u64 chosen_mass;
};

struct Row {
    Shared& s;
    float* const logits;
    const double temperature;
    const float* values;       // the tokens' logits: `tokens` of them, with ids of their own or counted from 0
    const int* ids;
    int tokens;
    int window;                // entries of s.penalised
    double best;               // the largest value
    int best_id;

    // Call f(value, id) for every token whose value is not -inf; the tokens are divided among the threads.
    template <class F> __device__ __forceinline__ void each(F f) const {
#pragma unroll 4
        for (int i = threadIdx.x; i < tokens; i += THREADS) {
            const float value = values[i];
            if (value > -INFINITE) f(double(value), ids ? ids[i] : i);
        }
        for (int i = threadIdx.x; i < window; i += THREADS) {
            if (s.penalised[i] >= 0 && s.penalised_value[i] > -INFINITE) f(s.penalised_value[i], s.penalised[i]);
        }
    }

    __device__ __forceinline__ double exponent_of(double value) const { return __ddiv_rn(__dsub_rn(value, best), temperature); }

    __device__ __forceinline__ u64 weight(double value) const {
        const double exponent = exponent_of(value);
        return exponent < NO_WEIGHT ? 0 : __double2ull_rn(exp(exponent) * ONE);
    }

    __device__ __forceinline__ Place place(double value, int id) const {
        const u64 bits = u64(__double_as_longlong(__dadd_rn(value, 0.0)));  // -0 and 0 are equals
        const double distance = (best - value) * BINS_PER_UNIT;
        // Ascending where values descend: positive values have all bits but the sign inverted, negative ones keep theirs.
        return {distance < BINS - 1 ? u32(distance) : BINS - 1, bits >> 63 ? bits : ~bits & ~(1ull << 63), u32(id)};
    }

    __device__ void recall(const RowTokens& from);
    __device__ bool find_best();
    template <bool by_weight> __device__ Place border(double share, u64 count, const Place& within);
    __device__ int draw(const Place& border, double min_p, u64 seed, u64 position);
    __device__ void put_back();
};

// Load the penalised tokens that draw_list has stored.
__device__ void Row::recall(const RowTokens& from) {
    window = from.window;
    for (int i = threadIdx.x; i < window; i += THREADS) {
        s.penalised[i] = from.penalised[i], s.penalised_value[i] = from.penalised_value[i], s.logit[i] = from.logit[i];
    }
    __syncthreads();
}

__device__ void Row::put_back() {
    __syncthreads();
    for (int i = threadIdx.x; i < window; i += THREADS) {
        if (s.penalised[i] >= 0) logits[s.penalised[i]] = s.logit[i];
    }
}

// Find the largest value and its lowest id. False if that value is not finite, or if any value is NaN.
__device__ bool Row::find_best() {
    double value = -INFINITE;
    int id = 0x7fffffff;
    bool broken = false;
    for (int i = threadIdx.x; i < tokens; i += THREADS) broken |= values[i] != values[i];
    for (int i = threadIdx.x; i < window; i += THREADS) broken |= s.penalised_value[i] != s.penalised_value[i];
    each([&](double v, int i) {
        if (v > value || (v == value && i < id)) value = v, id = i;
    });
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2) {
        const double other = __shfl_xor_sync(FULL_WARP, value, offset);
        const int other_id = __shfl_xor_sync(FULL_WARP, id, offset);
        if (other > value || (other == value && other_id < id)) value = other, id = other_id;
    }
    if (lane_id() == 0) s.values[warp_id()] = value, s.ids[warp_id()] = id;
    broken = __syncthreads_or(broken);
    best = s.values[0], best_id = s.ids[0];
    for (int warp = 1; warp < THREADS / WARP; ++warp) {
        if (s.values[warp] > best || (s.values[warp] == best && s.ids[warp] < best_id)) {
            best = s.values[warp], best_id = s.ids[warp];
        }
    }
    __syncthreads();
    return !broken && best > -INFINITE && best < INFINITE;
}

// The last token to keep of those up to `within`: by_weight, the one at which `share` of their total weight is reached;
// else the one at which `count` tokens are.
template <bool by_weight> __device__ Place Row::border(double share, u64 count, const Place& within) {
    constexpr int EACH = BINS / THREADS;
    static_assert(BINS % THREADS == 0, "every thread looks at as many bins");
    Place chosen{0, 0, 0};
    u64 rest = count;
    for (int level = 0; level < DIGITS; ++level) {
        for (int i = threadIdx.x; i < BINS; i += THREADS) s.mass[i] = 0, s.count[i] = 0;
        __syncthreads();
        // Most tokens may be in the first digit's last bin: its sum does not use atomics.
        u64 far_mass = 0;
        u32 far_count = 0;
        each([&](double value, int id) {
            const Place p = place(value, id);
            if (!same_before(p, chosen, level) || !p.up_to(within)) return;
            const u64 mass = by_weight ? weight(value) : 1;
            const u32 bin = digit(p, level);
            if (level == 0 && bin == BINS - 1) {
                far_mass += mass, ++far_count;
            } else {
                atomicAdd(&s.mass[bin], mass);
                atomicAdd(&s.count[bin], 1u);
            }
        });
        if (level == 0) {
            far_mass = warp_sum(far_mass);
            far_count = warp_sum(far_count);
            if (lane_id() == 0) {
                atomicAdd(&s.mass[BINS - 1], far_mass);
                atomicAdd(&s.count[BINS - 1], far_count);
            }
        }
        __syncthreads();
        u64 mine = 0, total;
        for (int i = 0; i < EACH; ++i) mine += s.mass[threadIdx.x * EACH + i];
        u64 before = block_sum_before<THREADS>(mine, total, s.sums);
        if (level == 0) {
            if (by_weight) rest = max(u64(ceil(share * double(total))), u64(1));
            if (rest >= total) return within;
        }
        if (before < rest && rest <= before + mine) {
            int bin = threadIdx.x * EACH;
            while (before + s.mass[bin] < rest) before += s.mass[bin++];
            s.bin = u32(bin);
            s.rest = rest - before;
            s.chosen_mass = s.mass[bin];
            s.chosen_count = s.count[bin];
        }
        __syncthreads();
        const u32 bin = s.bin;
        rest = s.rest;
        const bool whole = rest == s.chosen_mass || s.chosen_count == 1;
        // The digits below are all ones where the border is the bin's end.
        const int shift = digit_shift(level);
        if (level == 0) chosen = {bin, 0, 0};
        else if (level <= 6) chosen.key |= u64(bin) << shift;
        else chosen.id |= bin << shift;
        __syncthreads();
        if (whole) {
            if (level <= 6) chosen.id = ALL32;
            if (level == 0) chosen.key = ALL64;
            else if (level <= 6) chosen.key |= (1ull << shift) - 1;
            else chosen.id |= (1u << shift) - 1;
            break;
        }
    }
    return chosen.up_to(within) ? chosen : within;  // a whole bin may reach further
}

// The token with the highest score (log-weight plus noise) among those up to `border` and not under `min_p`; of equal
// scores, the earlier token in the order.
__device__ int Row::draw(const Place& border, double min_p, u64 seed, u64 position) {
    constexpr double MARGIN = 1e-3;  // of the estimate in float
    double value = best, score = gumbel(philox(seed, position, u32(best_id)));
    int id = best_id;
    const double inverse = 1.0 / temperature;
    each([&](double v, int i) {
        const double about = (v - best) * inverse;
        if (about < -GUMBEL_SPREAD) return;
        const u32 word = philox(seed, position, u32(i));
        if (about + gumbel_about(word) < score - MARGIN) return;
        const double exponent = exponent_of(v);
        if (!place(v, i).up_to(border) || (min_p > 0 && exp(exponent) < min_p)) return;
        const double mine = __dadd_rn(exponent, gumbel(word));
        if (mine > score || (mine == score && (v > value || (v == value && i < id)))) score = mine, value = v, id = i;
    });
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2) {
        const double other_score = __shfl_xor_sync(FULL_WARP, score, offset);
        const double other = __shfl_xor_sync(FULL_WARP, value, offset);
        const int other_id = __shfl_xor_sync(FULL_WARP, id, offset);
        if (other_score > score ||
            (other_score == score && (other > value || (other == value && other_id < id)))) {
            score = other_score, value = other, id = other_id;
        }
    }
    if (lane_id() == 0) s.scores[warp_id()] = score, s.values[warp_id()] = value, s.ids[warp_id()] = id;
    __syncthreads();
    int winner = 0;
    for (int warp = 1; warp < THREADS / WARP; ++warp) {
        const double more = s.scores[warp] - s.scores[winner];
        if (more > 0 || (more == 0 && (s.values[warp] > s.values[winner] ||
                                       (s.values[warp] == s.values[winner] && s.ids[warp] < s.ids[winner])))) {
            winner = warp;
        }
    }
    return s.ids[winner];
}
