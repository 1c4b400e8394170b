// Around the tree: the draws of a greedy pass, and the best-first tree itself (src/dflash_core/tree.py is the twin).
//
//   merge_draws       grid = rows of the pass, one warp each: the target's own token after each node
//   tree_build        one block, of which one warp builds, or up to four where the tree is by value and with TEXT; then
//                     another block only prefetches
//   step_begin        one thread: when a step began; verify_begin: when the pass did, where the host edited the tree
//
// With TEXT a tree by value takes successors from the conversation's own text too (ngrams.cuh), no deeper than the
// drafts: tokens that followed the same tokens are offered below every node, and `copied` tells the host which nodes
// came from there. A second block prefetches the text into the L2 while the drafter ends.
//
// With PAIRS tree_build takes a table of the candidates below each other (pairs.cuh), and uses it where the state
// says by_parent.
//
// Bound by latency: a few kilobytes. In a step on an H200 merge_draws takes 2 to 4 us.

#include "head.cuh"
#include "ring.cuh"
#include "value_tree.cuh"

// The better of all lanes' (value, id), to every lane.
__device__ __forceinline__ void warp_best(float& value, int& id) {
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2) {
        const float other = __shfl_xor_sync(FULL_WARP, value, offset);
        const int other_id = __shfl_xor_sync(FULL_WARP, id, offset);
        if (better(other, other_id, value, id)) value = other, id = other_id;
    }
}

// A row whose best logit is not finite, or that has none, draws -1.
extern "C" __global__ void __launch_bounds__(32) merge_draws(StepState* st, const BestPart* parts, int count, int node0) {
    pdl_launch();
    pdl_wait();
    const int row = blockIdx.x, node = node0 + row;
    if (st->stop || node >= st->n) return;
    float value = -INFINITE;
    int id = 0x7fffffff;
    for (int part = lane_id(); part < count; part += WARP) {
        const BestPart mine = parts[row * count + part];
        if (better(mine.value, mine.id, value, id)) value = mine.value, id = mine.id;
    }
    warp_best(value, id);
    if (lane_id() == 0) st->draw[node] = value > -INFINITE && value < INFINITE ? id : -1;
}

constexpr int TREE_THREADS = 4 * WARP;

// ---- The best-first tree ------------------------------------------------------------------------------------------

constexpr int OFFERS = MAX_NODES + MAX_DEPTH;  // each node added leaves one slot more than before, each seed one

struct Builder {
    int candidate[MAX_DEPTH][MAX_WIDTH];
    float stated[MAX_DEPTH][MAX_WIDTH];  // log-probabilities
    Offers<OFFERS> offers;   // by the path's log-probability; ties: token, depth, rank, parent
    double path[MAX_NODES];  // in double as in the twin: it decides the order
    u64 mask[MAX_NODES][4];
    u8 slot[MAX_NODES];
};

struct Tree {
    StepState* st;
    Builder& b;
    const Choices choices;
    const int depths, width;
    const double floor;
    int n, size;  // nodes, and slots for offers

    // Whether a candidate qualifies. Lanes whose `mine` is true store theirs in `slot`, or leave the slot empty where
    // it does not.
    __device__ __forceinline__ bool offer(bool mine, int slot, int depth, int rank, int parent) {
        bool offered = depth < depths && rank < width;
        Choice choice = {};
        if (offered) {
            choice = choices.at(depth, rank, b.slot[parent]);
            offered = choice.slot >= 0 && (choice.log_prob >= floor || (depth == 0 && rank == 0));
        }
        if (mine) {
            b.offers.tie[slot] = u64(u32(choice.token)) << 32 | u64(depth) << 24 | u64(rank) << 16 | u64(parent);
            b.offers.key[slot] = offered ? falling(b.path[parent] + choice.log_prob) : NOTHING;
        }
        return offered;
    }

    // Put a node into the tree; node 0 is the root. Lanes 0..3 hold a word of the mask each.
    __device__ __forceinline__ void add(const Choice& choice, int parent, int depth) {
        const int lane = lane_id(), node = n++;
        if (lane < 4) {
            const u64 own = lane == node / 64 ? 1ull << node % 64 : 0;
            const u64 mask = own | (parent < 0 ? 0 : b.mask[parent][lane]);
            b.mask[node][lane] = mask;
            st->mask[node][lane] = mask;
        }
        if (lane == 0) {
            const double path = parent < 0 ? 0.0 : b.path[parent] + choice.log_prob;
            b.path[node] = path;
            b.slot[node] = choice.slot;
            st->token[node] = choice.token;
            st->parent[node] = parent;
            st->depth[node] = depth;
            st->log_prob[node] = float(choice.log_prob);
            st->path_log_prob[node] = float(path);
        }
        __syncwarp();
    }
};

extern "C" __global__ void __launch_bounds__(TREE_THREADS) tree_build(
    StepState* st, u64* stamps
#ifdef PAIRS
    , const int* pair_ids, const Pairing* pair_rows
#endif
#ifdef TEXT
    , const int* text, int ints, u64* copied, int slots
#endif
) {
    __shared__ union {
        Builder fixed;
        ValueBuilder learned;
    } shared;
    pdl_launch();
#ifdef TEXT
    if (blockIdx.x) return prefetch_text(text, ints);
#endif
    pdl_wait();
    // Loaded together, as each trip to the L2 takes half a microsecond.
    const int stopped = st->stop, by_value = st->by_value, chain_seed = st->chain_seed, root = st->root;
    const int budget = min(st->budget, MAX_NODES - 1);
    const int stop_id = st->stop_ids[lane_id() % MAX_STOP_IDS];
    const int width = min(st->width, MAX_WIDTH);
    const double floor = st->log_p_min;
    int depths = min(st->draft_depth, MAX_DEPTH);
    if (stopped) return;
    stamp(stamps, TREE_BEGIN);
    const PairTable* given = nullptr;
#ifdef PAIRS
    // As many depths as fit are copied to shared memory: the tree reads one entry after the other.
    constexpr int NEAR = 8, ENTRIES = PAIR_CANDIDATES * MAX_WIDTH;
    __shared__ Pairing near[NEAR * ENTRIES];
    if (depths <= NEAR && st->by_parent) {
        for (int i = threadIdx.x; i < depths * ENTRIES; i += TREE_THREADS) near[i] = pair_rows[i];
        pair_rows = near;
        __syncthreads();
    }
    const PairTable table = {pair_ids, pair_rows};
    if (st->by_parent) given = &table;
#endif
    if (by_value) {
        // The token after the deepest node is drawn, so the answer's last possible token is never drafted.
        const int last = st->halt_at > 0 ? min(st->max_tokens, st->halt_at) : st->max_tokens;
        depths = min(depths, min(last, st->context_length - st->prompt_length) - st->answered - 1);
#ifdef TEXT
        const TextView view = {text, text + (RUNS << SLOT_BITS)};
        const int known = st->prompt_length + st->answered;
        ValueTree tree{st, shared.learned, given, max(depths, 0), width, stop_id, 0, 0, view, known, 0, 0};
        tree.build(budget);
        // Pinned, as the ring; whole when this kernel ends, so long before the step is reported.
        if (threadIdx.x == 0) copied[st->steps % slots] = tree.copied;
#else
        ValueTree{st, shared.learned, given, max(depths, 0), width, stop_id, 0, 0}.build(budget);
#endif
        stamp(stamps, VERIFY_BEGIN);
        return;
    }
    Builder& builder = shared.fixed;
    // To shared memory, since the nodes read one candidate after the other.
    for (int i = threadIdx.x; i < depths * MAX_WIDTH; i += TREE_THREADS) {
        (&builder.candidate[0][0])[i] = (&st->candidate[0][0])[i];
        (&builder.stated[0][0])[i] = (&st->candidate_log_prob[0][0])[i];
    }
    __syncthreads();
    if (warp_id()) return;
    const int lane = lane_id();
    const Choices choices = {builder.candidate, builder.stated, given};
    Tree tree{st, builder, choices, depths, width, floor, 0, 0};
    tree.add({root, 0, 0.0}, -1, 0);
    if (chain_seed) {
        for (int depth = 0; depth < min(depths, budget); ++depth) {
            const Choice best = tree.choices.at(depth, 0, builder.slot[depth]);
            if (best.slot < 0 || (depth > 0 && best.log_prob < tree.floor)) break;
            if (tree.offer(lane == 0, tree.size, depth, 1, depth)) ++tree.size;
            tree.add(best, depth, depth + 1);
            if (ends_answer(stop_id, best.token)) break;
        }
    } else if (tree.offer(lane == 0, 0, 0, 0, 0)) {
        tree.size = 1;
    }
    __syncwarp();
    while (tree.n <= budget) {
        const int slot = builder.offers.best(tree.size);
        if (slot < 0) break;
        const u64 tie = builder.offers.tie[slot];
        const int depth = int(tie >> 24 & 0xff), rank = int(tie >> 16 & 0xff), parent = int(tie & 0xffff);
        const int token = int(tie >> 32), node = tree.n;
        tree.add(tree.choices.at(depth, rank, builder.slot[parent]), parent, depth + 1);
        const bool below = !ends_answer(stop_id, token);
        // Its next sibling takes its place, and its first child a new one.
        const bool child = lane == 1, mine = lane == 0 || (child && below);
        const int from = child ? node : parent, next = child ? 0 : rank + 1;
        const bool offered = tree.offer(mine, child ? tree.size : slot, depth + child, next, from);
        tree.size += __any_sync(FULL_WARP, mine && child && offered);
    }
    if (lane_id() == 0) st->n = tree.n;
    stamp(stamps, VERIFY_BEGIN);
}

extern "C" __global__ void step_begin(u64* stamps) {
    pdl_launch();
    pdl_wait();
    stamp(stamps, STEP_BEGIN);
}

extern "C" __global__ void verify_begin(u64* stamps) {
    pdl_launch();
    pdl_wait();
    stamp(stamps, VERIFY_BEGIN);
}
