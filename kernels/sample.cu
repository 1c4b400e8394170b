// The target's own draw after each node, from its row of logits: one block per row, in one of three ways (draw.cuh). All
// end in the same exact comparisons (sampler.cuh), over a list of tokens, over the row's front, or over the whole row.
//
//   LISTED  about 10 us for 24 rows of 248,320 tokens on an H200 (estimated): 62 KB of maxima in one SM, twice or thrice.
//   FRONT   less here; draw.cu has the work.
//   WHOLE   bound by the passes over a row in one SM, 2 without truncation, 5 to 8 with: 1.0 ms with top_k 40.

#include "draw.cuh"
#include "sampler.cuh"

constexpr int LIST = 2048;
constexpr int UNDECIDED = -2;
// How far a sum of weights in float may be off, of the total.
constexpr double WEIGHT_SLACK = 4e-5;

struct List {
    float value[LIST];
    int id[LIST];
    int count;
};

struct Candidates {
    double value[FRONT_OF_ROW], score[FRONT_OF_ROW];
    int id[FRONT_OF_ROW];
    double penalised[HISTORY];  // weights
    enum : int { OUT, IN, UNSURE } place[FRONT_OF_ROW];
    int token;
};

// Bins of the distance to the best: 32 to each power of two, so that they suit logits of any scale.
__device__ __forceinline__ int distance_bin(float best, float value) {
    constexpr int NEAREST = (127 - 40) << 5;  // 2^-40
    return min(max(int(__float_as_uint(best - value) >> 18) - NEAREST, 0), BINS - 1);
}

// Makes a list that holds the first `kept` tokens of the order, and with it the row's tokens. False where it gets too
// long. `best`: the largest logit, infinite for a row that is broken, -inf for one without a token.
__device__ bool list_tokens(Row& row, List& list, const float* maxima, int vocab, int kept, float& best) {
    constexpr int EACH = BINS / THREADS;
    Shared& s = row.s;
    const int blocks = ceil_div(vocab, 16);
    best = -INFINITE;
#pragma unroll 8
    for (int i = threadIdx.x; i < blocks; i += THREADS) best = fmaxf(best, maxima[i]);
    best = block_max<THREADS>(best, (float*)s.values);
    if (!(best < INFINITE)) return true;

    // Among `kept` blocks and one for every penalised token there are `kept` maxima of tokens as they are.
    const u64 wanted = u64(kept + row.window);
    for (int i = threadIdx.x; i < BINS; i += THREADS) s.count[i] = 0;
    if (threadIdx.x == 0) s.bin = BINS - 1, list.count = 0;
    __syncthreads();
#pragma unroll 8
    for (int i = threadIdx.x; i < blocks; i += THREADS) {
        if (maxima[i] > -INFINITE) atomicAdd(&s.count[distance_bin(best, maxima[i])], 1u);
    }
    __syncthreads();
    u64 mine = 0, total;
    for (int i = 0; i < EACH; ++i) mine += s.count[threadIdx.x * EACH + i];
    u64 before = scan_before(s, mine, total);
    if (before < wanted && wanted <= before + mine) {
        int bin = threadIdx.x * EACH;
        while (before + s.count[bin] < wanted) before += s.count[bin++];
        s.bin = u32(bin);
    }
    __syncthreads();
    const int last = int(s.bin);
#pragma unroll 8
    for (int i = threadIdx.x; i < blocks; i += THREADS) {
        if (!(maxima[i] > -INFINITE) || distance_bin(best, maxima[i]) > last) continue;
        for (int id = 16 * i; id < min(16 * i + 16, vocab); ++id) {
            const float value = row.logits[id];
            if (!(value > -INFINITE) || distance_bin(best, value) > last) continue;
            const int at = atomicAdd(&list.count, 1);
            if (at < LIST) list.value[at] = value, list.id[at] = id;
        }
    }
    __syncthreads();
    if (list.count > LIST) return false;
    row.values = list.value, row.ids = list.id, row.tokens = list.count;
    return true;
}

// The token that the row's front gives, -1 for a row that is broken, or UNDECIDED.
__device__ int draw_from_front(
    const Row& row, Candidates& c, const StepState* st, const RowFront& front, const PartBefore* parts, int count,
    int vocab, int node) {
    static_assert(FRONT_OF_ROW <= THREADS, "a thread per token of the front");
    if (front.count == BROKEN_ROW) return -1;
    if (front.count <= 0) return UNDECIDED;
    const int mine = threadIdx.x, kept = kept_tokens(st, vocab);
    const bool by_weight = st->top_p < 1;
    if (mine < front.count) c.value[mine] = front.value[mine], c.id[mine] = front.id[mine];
    for (int i = threadIdx.x; i < row.window; i += THREADS) {
        const double value = row.s.penalised_value[i];
        const bool there = by_weight && row.s.penalised[i] >= 0 && value > -INFINITE;
        c.penalised[i] = there ? exp((value - double(front.reference)) / row.temperature) : 0.0;
    }
    __syncthreads();
    if (mine < front.count) {
        const double value = c.value[mine];
        const int id = c.id[mine];
        double best = value;
        int best_id = id;
        for (int i = 0; i < front.count; ++i) {
            if (c.value[i] > best || (c.value[i] == best && c.id[i] < best_id)) best = c.value[i], best_id = c.id[i];
        }
        int rank = 0;
        double weight = 0.0, total = 0.0;
        if (kept > 0 || by_weight) {
            for (int part = 0; part < count; ++part) {
                rank += parts[part].count[mine];
                weight += double(parts[part].weight[mine]), total += double(parts[part].total);
            }
            for (int i = 0; i < row.window; ++i) {
                if (row.s.penalised[i] < 0) continue;
                const double other = row.s.penalised_value[i];
                const bool before = other > value || (other == value && row.s.penalised[i] < id);
                rank += before;
                weight += before ? c.penalised[i] : 0.0, total += c.penalised[i];
            }
        }
        const double exponent = __ddiv_rn(__dsub_rn(value, best), row.temperature);
        const double share = double(st->top_p) * total, unsure = WEIGHT_SLACK * total;
        const bool out = (kept > 0 && rank >= kept) || (st->min_p > 0 && exp(exponent) < double(st->min_p));
        c.place[mine] = out ? Candidates::OUT : Candidates::IN;
        if (!out && by_weight && id != best_id && !(weight < share - unsure)) {
            c.place[mine] = weight > share + unsure ? Candidates::OUT : Candidates::UNSURE;
        }
        c.score[mine] = __dadd_rn(exponent, gumbel(philox(st->seed, drawn_position(st, node), u32(id))));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int winner = -1;
        double unsure = -INFINITE;
        for (int i = 0; i < front.count; ++i) {
            if (c.place[i] == Candidates::UNSURE) unsure = max(unsure, c.score[i]);
            if (c.place[i] != Candidates::IN) continue;
            bool wins = winner < 0 || c.score[i] > c.score[winner];
            if (!wins && c.score[i] == c.score[winner]) {
                wins = c.value[i] > c.value[winner] || (c.value[i] == c.value[winner] && c.id[i] < c.id[winner]);
            }
            if (wins) winner = i;
        }
        c.token = winner >= 0 && unsure < c.score[winner] ? c.id[winner] : UNDECIDED;
    }
    __syncthreads();
    return c.token;
}

// Over all tokens of `row`: a list, or a whole row of logits.
__device__ int draw_exactly(Row& row, const StepState* st, int kept, int node) {
    if (!row.find_best()) return -1;
    if (!(st->temperature > 0)) return row.best_id;
    Place border = EVERYTHING;
    if (kept > 0) border = row.border<false>(0, u64(kept), border);
    if (st->top_p < 1) border = row.border<true>(double(st->top_p), 0, border);
    return row.draw(border, double(st->min_p), st->seed, drawn_position(st, node));
}

// grid = rows of the pass; `logits` [rows][stride], of which `vocab` are tokens; `maxima` [rows][vocab / 16, rounded up] of
// blocks of 16 of them, infinite where one is not a number; `fronts` [rows] and `before` [rows][parts] of draw_weights.
extern "C" __global__ void __launch_bounds__(THREADS, 1) sample(
    StepState* st, float* logits, int vocab, int stride, int node0, const float* maxima, const RowFront* fronts,
    const PartBefore* before, int parts
) {
    __shared__ Shared shared;
    __shared__ union {
        List list;
        Candidates candidates;
    } found;
    pdl_launch();
    pdl_wait();
    const int at = blockIdx.x, node = node0 + at, kept = kept_tokens(st, vocab);
    if (st->stop || node >= st->n) return;
    float* const own = logits + u64(at) * stride;
    Row row{shared, own, double(st->temperature), own, nullptr, vocab, 0, 0.0, 0};
    if (penalises(st)) row.penalise(st, node);
    int token = UNDECIDED;
    switch (way_of(st, vocab)) {
        case Way::LISTED: {
            float best;
            list_tokens(row, found.list, maxima + u64(at) * ceil_div(vocab, 16), vocab, kept, best);
            if (!(best < INFINITE)) token = -1;
            break;
        }
        case Way::FRONT:
            token = draw_from_front(row, found.candidates, st, fronts[at], before + u64(at) * parts, parts, vocab, node);
            break;
        case Way::WHOLE:
            break;
    }
    if (token == UNDECIDED) token = draw_exactly(row, st, kept, node);
    row.put_back();
    if (threadIdx.x == 0) st->draw[node] = token;
}
