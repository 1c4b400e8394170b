// Chooses the candidates of a draft block: the MAX_WIDTH best tokens of each draft position and their
// log-probabilities, from the maxima and sums of blocks of 16 tokens that head_logits writes (logits.cu). The N best
// tokens are in the N blocks with the largest maxima (of equal maxima the lower blocks), so only 16 N logits of a row are
// read.
//
// With PAIRS, N is PAIR_CANDIDATES instead of MAX_WIDTH. The PAIRS best tokens, at most PAIR_CANDIDATES, go to `ids`
// and `log_probs` for pairs.cu; the rest of a row is -1 and -inf. The state gets the first MAX_WIDTH as without PAIRS.
// With TARGETS the logits are of a draft vocabulary: its row r is token targets[r], or r + targets[r] with OFFSETS.
// With MARKOV and the state's by_parent, the best tokens are those of `biased`, which markov_bias writes; they are
// ordered by their log-probabilities without that bias.
// The state's candidates are then ranked by what is known of their draws (draft_noise.cuh).
//
// Grid = draft positions. Bound by latency: 124 KB of maxima and sums per row in one SM, 7 us on an H200 (estimated).

#include "draft_noise.cuh"
#include "head.cuh"
#include "pairs.cuh"

constexpr int CANDIDATE_THREADS = 512, CANDIDATE_WARPS = CANDIDATE_THREADS / WARP, BLOCK = 16;
#ifdef PAIRS
constexpr int TOP = PAIR_CANDIDATES;
#else
constexpr int TOP = MAX_WIDTH;
#endif
constexpr int LANES = WARP / TOP, EACH = BLOCK / LANES;  // lanes per block whose logits are read, and tokens per lane

// The best TOP of the entries offered, sorted. A lane offers its ids in ascending order, so ties go to the lower id.
struct TopList {
    float value[TOP];
    int id[TOP];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < TOP; ++i) value[i] = -INFINITE, id[i] = 0x7fffffff;
    }
    __device__ __forceinline__ void offer(float new_value, int new_id) {
#pragma unroll
        for (int i = TOP - 1; i >= 0; --i) {
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
        for (int i = 0; i + 1 < TOP; ++i) value[i] = value[i + 1], id[i] = id[i + 1];
        value[TOP - 1] = -INFINITE, id[TOP - 1] = 0x7fffffff;
    }
    // The best of all lanes' lists, removed from its list; every lane gets it.
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

// Row r of `logits` f32 [rows][stride], `maxima` and `sums` [rows][vocab / 16, rounded up] is draft position first + r.
// ids, log_probs [positions][PAIR_CANDIDATES]. With MARKOV a launch is one position; rows [positions][PAIR_CANDIDATES]
// are the candidates' rows of the draft vocabulary, and path[position] is the best token, -1 if there is none.
extern "C" __global__ void __launch_bounds__(CANDIDATE_THREADS, 1) candidates(
    StepState* st, const float* logits, const float* maxima, const float* sums, int vocab, int stride, int first
#ifdef PAIRS
    , int* ids, float* log_probs
#endif
#ifdef TARGETS
    , const TARGETS* targets
#endif
#ifdef MARKOV
    , const float* biased, const float* biased_maxima, int* rows, int* path
#endif
) {
    __shared__ BestPart of_warps[CANDIDATE_WARPS][TOP];
    __shared__ float scratch[CANDIDATE_WARPS];
    pdl_launch();
    pdl_wait();
    const int lane = lane_id(), warp = warp_id(), row = blockIdx.x, blocks = ceil_div(vocab, BLOCK);
    const int position = first + row;
    if (st->stop || position >= st->draft_depth) return;
    const float scale = st->inv_tree_temperature;
    logits += size_t(row) * stride, maxima += size_t(row) * blocks, sums += size_t(row) * blocks;
#ifdef MARKOV
    const float* const by = st->by_parent ? biased : logits;
    const float* const bounds = st->by_parent ? biased_maxima : maxima;
#else
    const float *const by = logits, *const bounds = maxima;
#endif

    TopList top;
    top.clear();
    float most = -INFINITE, sum = 0.0f;
#pragma unroll 4
    for (int block = threadIdx.x; block < blocks; block += CANDIDATE_THREADS) {
        const float here = maxima[block], share = sums[block], bound = bounds[block];
        if (bound > top.value[TOP - 1]) top.offer(bound, block);
        if (here > most) {
            sum = sum * __expf((most - here) * scale) + share;
            most = here;
        } else if (here > -INFINITE) {
            sum += share * __expf((here - most) * scale);
        }
    }
    const float of_all = block_max<CANDIDATE_THREADS>(most, scratch);
    sum = block_sum<CANDIDATE_THREADS>(most > -INFINITE ? sum * __expf((most - of_all) * scale) : 0.0f, scratch);
    const float log_norm = of_all * scale + logf(sum);

#pragma unroll
    for (int rank = 0; rank < TOP; ++rank) {
        const BestPart best = top.pop();
        if (lane == 0) of_warps[warp][rank] = best;
    }
    __syncthreads();
    if (warp > 0) return;
    top.clear();
    if (lane < CANDIDATE_WARPS) {
#pragma unroll
        for (int rank = 0; rank < TOP; ++rank) {
            top.value[rank] = of_warps[lane][rank].value, top.id[rank] = of_warps[lane][rank].id;
        }
    }
    // Several lanes for each of the best blocks.
    int mine = 0x7fffffff;
#pragma unroll
    for (int rank = 0; rank < TOP; ++rank) {
        const BestPart best = top.pop();
        if (lane / LANES == rank) mine = best.id;
    }
    top.clear();
    if (mine < blocks) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int id = mine * BLOCK + lane % LANES * EACH + i;
            if (id < vocab && by[id] > top.value[TOP - 1]) top.offer(by[id], id);
        }
    }
    // One lane for each of the best.
    BestPart own = {-INFINITE, 0};
#pragma unroll
    for (int rank = 0; rank < TOP; ++rank) {
        const BestPart best = top.pop();
        if (lane == rank) own = best;
    }
    const bool there = own.value > -INFINITE;  // a row of NaN has none
#ifdef TARGETS
    int token = there ? int(targets[own.id]) : 0;
#ifdef OFFSETS
    token += there ? own.id : 0;
#endif
#else
    const int token = there ? own.id : 0;
#endif
#ifdef MARKOV
    const float log_prob = (there ? logits[own.id] : -INFINITE) * scale - log_norm;
    const float key = log_prob == log_prob ? log_prob : -INFINITE;
    int order = 0;
    for (int other = 0; other < TOP; ++other) {
        const float its = __shfl_sync(FULL_WARP, key, other);
        order += its > key || (its == key && other < lane);
    }
    if (lane == 0) path[position] = there ? token : -1;
#else
    const float log_prob = own.value * scale - log_norm;
    const int order = lane;
#endif
    int place = lane < TOP ? order : WARP;
    float stated = log_prob;
#ifdef PAIRS
    const bool scored_later = st->by_parent;  // pairing.cuh adds the noise to scores by the token above
#else
    constexpr bool scored_later = false;
#endif
    if (st->draft_noise > 0.0f && !scored_later) rerank(st, position, token, there, place, stated);
    if (lane >= TOP) return;
    if (place < MAX_WIDTH) {
        st->candidate[position][place] = token;
        st->candidate_log_prob[position][place] = stated;
    }
#ifdef PAIRS
    const bool paired = there && order < PAIRS;
    ids[position * TOP + order] = paired ? token : -1;
    log_probs[position * TOP + order] = paired ? log_prob : -INFINITE;
#endif
#ifdef MARKOV
    rows[position * TOP + order] = own.id;
#endif
}
