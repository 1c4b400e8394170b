// The target's own draw after each node, from the results of draw_*.cu for its row of logits: one block per row. All methods
// end in the same exact comparisons (sampler.cuh), over a list of tokens, over the row's front, or over the whole row.
//
//   LISTED, FRONT  bound by latency: about 8 us on an H200 (estimated).
//   WHOLE          bound by the passes over a row in one SM, 2 without truncation, 5 to 8 with: 1.0 ms with top_k 40.
//
// Defines. LOG_PROBS: the target's own log-probability of each draw is reported too (log_probs.cuh).

#include "sampler.cuh"
#ifdef LOG_PROBS
#include "log_probs.cuh"
#define LOG_PROBS_PARAMETERS , const RowTotal* totals, NodeLogProbs* slots, int slot_count, int slot_nodes
#else
#define LOG_PROBS_PARAMETERS
#endif

constexpr int UNDECIDED = -2;
// The largest error of a sum of weights in float, as a share of the total.
constexpr double WEIGHT_SLACK = 4e-5;

struct Candidates {
    double value[FRONT_OF_ROW], score[FRONT_OF_ROW];
    int id[FRONT_OF_ROW];
    double penalised[HISTORY];  // weights
    enum : int { OUT, IN, UNSURE } place[FRONT_OF_ROW];
    int token;
};

// The token that the row's front gives, -1 for a row that is broken, or UNDECIDED.
__device__ int draw_from_front(
    const Row& row, Candidates& c, const StepState* st, const RowFront& front, float best_listed,
    const PartBefore* parts, int count, int vocab, int node) {
    static_assert(FRONT_OF_ROW <= THREADS, "a thread per token of the front");
    if (front.count == BROKEN_ROW) return -1;
    if (front.count <= 0) return UNDECIDED;
    const int mine = threadIdx.x, kept = drawn_among(st, vocab);
    const bool weighed = by_weight(st);
    if (mine < front.count) c.value[mine] = front.value[mine], c.id[mine] = front.id[mine];
    for (int i = threadIdx.x; i < row.window; i += THREADS) {
        const double value = row.s.penalised_value[i];
        const bool there = weighed && row.s.penalised[i] >= 0 && value > -INFINITE;
        c.penalised[i] = there ? exp((value - double(best_listed)) / row.temperature) : 0.0;
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
        if (kept > 0 || weighed) {
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
        if (!out && weighed && id != best_id && !(weight < share - unsure)) {
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

// Draw from all tokens of `row`, which is a list or a whole row of logits.
__device__ int draw_exactly(Row& row, const StepState* st, int kept, int node) {
    if (!row.find_best()) return -1;
    if (!(st->temperature > 0)) return row.best_id;
    Place border = EVERYTHING;
    if (kept > 0) border = row.border<false>(0, u64(kept), border);
    if (st->top_p < 1) border = row.border<true>(double(st->top_p), 0, border);
    return row.draw(border, double(st->min_p), st->seed, drawn_position(st, node));
}

// grid = rows of the pass; `logits` [rows][stride], of which the first `vocab` columns are tokens; `rows` and `fronts`
// [rows], `before` [rows][parts].
extern "C" __global__ void __launch_bounds__(THREADS, 1) sample(
    StepState* st, float* logits, int vocab, int stride, int node0, const RowTokens* rows, const RowFront* fronts,
    const PartBefore* before, int parts LOG_PROBS_PARAMETERS
) {
    __shared__ Shared shared;
    __shared__ Candidates candidates;
    pdl_launch();
    pdl_wait();
    const int at = blockIdx.x, node = node0 + at, kept = drawn_among(st, vocab);
    if (st->stop || node >= st->n) return;
    float* const own = logits + u64(at) * stride;
    const RowTokens& found = rows[at];
    Row row{shared, own, double(st->temperature), own, nullptr, vocab, 0, 0.0, 0};
    row.recall(found);
    int token = UNDECIDED;
    switch (method_of(st, vocab)) {
        case Method::LISTED:
            if (found.count == BROKEN_ROW) token = -1;
            if (found.count >= 0) row.values = found.value, row.ids = found.id, row.tokens = found.count;
            break;
        case Method::FRONT:
            token = draw_from_front(
                row, candidates, st, fronts[at], found.best, before + u64(at) * parts, parts, vocab, node);
            break;
        case Method::WHOLE:
            break;
    }
    if (token == UNDECIDED) token = draw_exactly(row, st, kept, node);
    row.put_back();
    if (threadIdx.x == 0) st->draw[node] = token;
#ifdef LOG_PROBS
    __syncthreads();  // a penalised logit is back
    if (threadIdx.x == 0 && token >= 0) {
        log_probs_of(st, slots, slot_count, slot_nodes, node).log_prob = log_prob_of(totals[at], own[token]);
    }
#endif
}
