// Around the tree: the draws of a greedy pass, and the best-first tree itself (src/dflash_core/tree.py is the twin).
//
//   merge_draws       grid = rows of the pass, one warp each: the target's own token after each node
//   tree_build        one warp
//   step_begin        one thread: when a step began
//
// With TEXT a tree by value takes successors from the conversation's own text too (text.cuh), no deeper than the drafts:
// what followed the same words is offered under every node, and `copied` tells the host which nodes came from there.
//
// With PAIRS tree_build takes a table of what candidates are below each other (pairs.cuh), and goes by it where the state
// says by_parent.
//
// Bound by latency: a few kilobytes. In a step on an H200 merge_draws takes 2 to 4 us.

#include "head.cuh"
#include "pairs.cuh"
#include "ring.cuh"
#ifdef TEXT
#include "text.cuh"
#endif

// The better of all lanes' (value, id), to every lane.
__device__ __forceinline__ void warp_best(float& value, int& id) {
#pragma unroll
    for (int offset = WARP / 2; offset; offset /= 2) {
        const float other = __shfl_xor_sync(FULL_WARP, value, offset);
        const int other_id = __shfl_xor_sync(FULL_WARP, id, offset);
        if (better(other, other_id, value, id)) value = other, id = other_id;
    }
}

// A row whose best logit is not a number, or none at all, draws -1.
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

// ---- The best-first tree ------------------------------------------------------------------------------------------

constexpr int OFFERS = MAX_NODES + MAX_DEPTH;  // each node added leaves one slot more than before, each seed one
constexpr u64 EMPTY = ~0ull;

// A candidate below some node: `slot` says which of its position's it is.
struct Choice {
    int token, slot;
    double log_prob;
};

// What is offered below a node: the same at all nodes of a depth, or its own, by its slot.
struct Choices {
    const StepState* st;
    const PairTable* given;

    __device__ __forceinline__ const Pairing& pairing(int depth, int rank, int above) const {
        return given->rows[(depth * PAIR_CANDIDATES + above) * MAX_WIDTH + rank];
    }
    __device__ __forceinline__ Choice at(int depth, int rank, int above) const {
        if (!given) return {st->candidate[depth][rank], 0, double(st->candidate_log_prob[depth][rank])};
        const Pairing& found = pairing(depth, rank, above);
        return {found.slot < 0 ? -1 : given->ids[depth * PAIR_CANDIDATES + found.slot], found.slot, found.log_prob};
    }
};

// Put a node into the tree; node 0 is the root. All lanes call; lanes 0..3 hold a word of the mask each.
template <class Nodes>
__device__ __forceinline__ void append(
    StepState* st, Nodes& b, int node, int token, int slot, int parent, double log_prob
) {
    const int lane = lane_id();
    if (lane < 4) {
        const u64 own = lane == node / 64 ? 1ull << node % 64 : 0;
        const u64 mask = own | (parent < 0 ? 0 : b.mask[parent][lane]);
        b.mask[node][lane] = mask;
        st->mask[node][lane] = mask;
    }
    if (lane == 0) {
        const double path = parent < 0 ? 0.0 : b.path[parent] + log_prob;
        const int depth = parent < 0 ? 0 : b.depth[parent] + 1;
        b.path[node] = path;
        b.depth[node] = depth;
        b.slot[node] = slot;
        st->token[node] = token;
        st->parent[node] = parent;
        st->depth[node] = depth;
        st->log_prob[node] = float(log_prob);
        st->path_log_prob[node] = float(path);
    }
    __syncwarp();
}

struct Builder {
    double offer_path[OFFERS];  // the path's log-probability, in double as in the twin: it decides the order
    u64 offer_tie[OFFERS];      // token, depth, rank, parent: the order among equals; EMPTY for a free slot
    double path[MAX_NODES];
    u64 mask[MAX_NODES][4];
    int depth[MAX_NODES];
    u8 slot[MAX_NODES];
};

// All lanes call all of these with the same arguments.
struct Tree {
    StepState* st;
    Builder& b;
    const Choices choices;
    const int depths, width;
    const double floor;
    int n, offers;

    // Put a candidate into `slot`, or leave the slot empty where it does not qualify.
    __device__ __forceinline__ bool offer(int slot, int depth, int rank, int parent) {
        bool wanted = depth < depths && rank < width;
        Choice choice = {};
        if (wanted) {
            choice = choices.at(depth, rank, b.slot[parent]);
            wanted = choice.slot >= 0 && (choice.log_prob >= floor || (depth == 0 && rank == 0));
        }
        if (lane_id() == 0) {
            b.offer_tie[slot] = EMPTY;
            if (wanted) {
                b.offer_tie[slot] = u64(u32(choice.token)) << 32 | u64(depth) << 24 | u64(rank) << 16 | u64(parent);
                b.offer_path[slot] = b.path[parent] + choice.log_prob;
            }
        }
        return wanted;
    }

    __device__ __forceinline__ void add(const Choice& choice, int parent) {
        append(st, b, n++, choice.token, choice.slot, parent, choice.log_prob);
    }

    // The slot of the best offer, to every lane; -1 where there is none.
    __device__ __forceinline__ int best() const {
        double path = 0;
        u64 tie = EMPTY;
        int slot = -1;
        for (int i = lane_id(); i < offers; i += WARP) {
            if (before(b.offer_path[i], b.offer_tie[i], path, tie)) path = b.offer_path[i], tie = b.offer_tie[i], slot = i;
        }
#pragma unroll
        for (int offset = WARP / 2; offset; offset /= 2) {
            const double other_path = __shfl_xor_sync(FULL_WARP, path, offset);
            const u64 other_tie = __shfl_xor_sync(FULL_WARP, tie, offset);
            const int other_slot = __shfl_xor_sync(FULL_WARP, slot, offset);
            if (before(other_path, other_tie, path, tie)) path = other_path, tie = other_tie, slot = other_slot;
        }
        return slot;
    }

    __device__ __forceinline__ static bool before(double path, u64 tie, double other_path, u64 other_tie) {
        if (tie == EMPTY || other_tie == EMPTY) return tie != EMPTY;
        return path > other_path || (path == other_path && tie < other_tie);
    }
};

// ---- The tree by learned value ---------------------------------------------------------------------------------------

constexpr int VALUE_NODES = 64;
#ifdef TEXT
constexpr int VALUE_OFFERS = 3 * VALUE_NODES + 2;  // each pop leaves three slots more at most
constexpr int COPIED = 0xff;                       // the rank of an offer from the text
#else
constexpr int VALUE_OFFERS = 2 * VALUE_NODES + 2;  // each pop leaves two slots more at most
#endif
constexpr double SMALLEST = 1e-4, BLOCK = 15.0;  // policy/values.py

struct ValueBuilder {
    double p[MAX_DEPTH][MAX_WIDTH], odds[MAX_DEPTH][MAX_WIDTH];  // stated
    double on_spine[MAX_DEPTH][MAX_WIDTH];                       // chances below the spine's nodes
    double before[MAX_DEPTH];                                    // minus the spine's log-probability above, at most 8
    double offer_value[VALUE_OFFERS];
    u64 offer[VALUE_OFFERS];   // token, depth, rank, parent; EMPTY for a free slot
    int offer_order[VALUE_OFFERS];
    double value[VALUE_NODES], path[VALUE_NODES];
    double log_prob[VALUE_NODES];
    int depth[VALUE_NODES], off[VALUE_NODES];  // off: 0 on the spine, else steps since it was left
    u64 mask[VALUE_NODES][4];
    u8 slot[VALUE_NODES];
#ifdef TEXT
    double offer_log_prob[VALUE_OFFERS];  // of an offer from the text
    int tail[VALUE_NODES][LONGEST];       // the newest tokens at a node, its own first
    int tail_size[VALUE_NODES];
    u64 copied;                           // nodes from the text
#endif
};

struct ValueTree {
    StepState* st;
    ValueBuilder& b;
    const Choices choices;
    const int depths, width;
    int n, offers;
#ifdef TEXT
    TextView text;

    // The tail at the root: of the answer, and of the prompt before it.
    __device__ __forceinline__ void begin_tails() {
        const int lane = lane_id(), all = st->prompt_length + st->answered, at = all - 1 - lane;
        if (lane < LONGEST) {
            const int said = at - st->prompt_length;
            b.tail[0][lane] = lane == 0 ? st->root : at < 0 ? 0 : said >= 0 ? st->history[said % HISTORY] : text.tokens[at];
        }
        if (lane == 0) b.tail_size[0] = min(all, LONGEST), b.copied = 0;
        __syncwarp();
    }

    __device__ __forceinline__ void extend_tail(int node, int parent, int token) {
        const int lane = lane_id();
        if (lane < LONGEST) b.tail[node][lane] = lane == 0 ? token : b.tail[parent][lane - 1];
        if (lane == 0) b.tail_size[node] = min(b.tail_size[parent] + 1, LONGEST);
        __syncwarp();
    }

    // Offer what the text has after `node`, unless it is the drafter's first choice there. All lanes call; says whether
    // a slot was taken.
    __device__ __forceinline__ bool offer_copied(int slot, int order, int node) {
        const int depth = b.depth[node], lane = lane_id();
        if (depth >= depths) return false;
        const Successor found = successor_of(text, b.tail[node], b.tail_size[node]);
        if (found.match < 0 || found.token == st->candidate[depth][0]) return false;
        const u32 among = __ballot_sync(FULL_WARP, lane < width && st->candidate[depth][lane % MAX_WIDTH] == found.token);
        if (lane == 0) {
            const double p = fmax(among ? b.p[depth][__ffs(int(among)) - 1] : 0.0, LEAST_COPIED);
            const double best = b.p[depth][0], kept = fmin(fmax(p, SMALLEST), 1 - SMALLEST);
            const double first = fmin(fmax(best, SMALLEST), 1 - SMALLEST);
            const float* const w = text.head->weights[found.match];
            const double kind = b.copied >> node & 1 ? 2 : b.off[node] ? 1 : 0;
            const double z = w[0] + w[1] * log(kept / (1 - kept)) + w[2] * log(first / (1 - first)) + w[4] * kind;
            b.offer_value[slot] = b.value[node] * (z > -500 ? 1 / (1 + exp(-z)) : 0.0);
            b.offer_order[slot] = order;
            b.offer_log_prob[slot] = log(p);
            b.offer[slot] = u64(u32(found.token)) << 32 | u64(depth) << 24 | u64(COPIED) << 16 | u64(node);
        }
        __syncwarp();
        return true;
    }

    // Whether `parent` has a child with this token already.
    __device__ __forceinline__ bool taken(int parent, int token) const {
        bool found = false;
        for (int i = lane_id(); i < n; i += WARP) found |= st->parent[i] == parent && st->token[i] == token;
        return __any_sync(FULL_WARP, found);
    }
#endif

    // What the drafter says of every candidate, and the chances below the spine: a candidate a lane. Where each node has its
    // own, only how likely the spine is above a depth: the best of the best below the root.
    __device__ __forceinline__ void state_candidates() {
        if (choices.given) {
            int above = 0;
            double sum = 0;
            for (int d = 0; d < depths; ++d) {
                if (lane_id() == 0) b.before[d] = fmin(fmax(-sum, 0.0), 8.0);
                if (above < 0) continue;
                const Pairing& best = choices.pairing(d, 0, above);
                sum += best.log_prob, above = best.slot;
            }
            __syncwarp();
            return;
        }
        for (int d = lane_id(); d < depths; d += WARP) {
            double sum = 0;
            for (int above = 0; above < d; ++above) sum += double(st->candidate_log_prob[above][0]);
            b.before[d] = fmin(fmax(-sum, 0.0), 8.0);
        }
        __syncwarp();
        for (int i = lane_id(); i < depths * width; i += WARP) {
            const int d = i / width, r = i % width;
            const double p = exp(double(st->candidate_log_prob[d][r])), first = exp(double(st->candidate_log_prob[d][0]));
            const double kept = fmin(fmax(p, SMALLEST), 1 - SMALLEST), odds = log(kept / (1 - kept));
            b.p[d][r] = p;
            b.odds[d][r] = odds;
            b.on_spine[d][r] = chance(min(r, 2), odds, b.before[d], d / BLOCK, first);
        }
        __syncwarp();
    }

    __device__ __forceinline__ double chance(int cls, double odds, double before, double third, double fourth) const {
        const float* const w = st->weights[cls];
        const double z = w[0] + w[1] * odds + w[2] * before + w[3] * third + w[4] * fourth;
        return z > -500 ? 1 / (1 + exp(-z)) : 0.0;
    }

    // One lane puts a candidate into `slot`, or leaves the slot empty.
    __device__ __forceinline__ void offer(int slot, int order, int rank, int parent) {
        const int depth = b.depth[parent], off = b.off[parent];
        b.offer[slot] = EMPTY;
        if (depth >= depths || rank >= width) return;
        const Choice choice = choices.at(depth, rank, b.slot[parent]);
        if (choice.slot < 0) return;
        const double above = b.log_prob[parent];
        const int kind = (off == 0 ? 0 : off == 1 ? 3 : 6) + min(rank, 2);
        double q;
        if (choices.given) {
            const double best = choices.pairing(depth, 0, b.slot[parent]).p;
            const double third = off ? fmin(fmax(above, -8.0), 0.0) : depth / BLOCK;
            q = chance(kind, choices.pairing(depth, rank, b.slot[parent]).odds, b.before[depth], third, best);
        } else if (off) {
            const double m = exp(above);
            const double shared = fmin(fmax((b.p[depth][rank] - (1 - m)) / (m + 1e-9), 0.0), 1.0);
            q = chance(kind, b.odds[depth][rank], b.before[depth], fmin(fmax(above, -8.0), 0.0), shared);
        } else {
            q = b.on_spine[depth][rank];
        }
        b.offer_value[slot] = b.value[parent] * q;
        b.offer_order[slot] = order;
        b.offer[slot] = u64(u32(choice.token)) << 32 | u64(depth) << 24 | u64(rank) << 16 | u64(parent);
    }

    __device__ __forceinline__ void add(const Choice& choice, int parent, int rank, double value) {
        const int node = n++;
        append(st, b, node, choice.token, choice.slot, parent, choice.log_prob);
        if (lane_id() == 0) {
            b.off[node] = parent < 0 || (b.off[parent] == 0 && rank == 0) ? 0 : b.off[parent] + 1;
            b.log_prob[node] = choice.log_prob;
            b.value[node] = value;
            st->value[node] = float(value);
        }
        __syncwarp();
    }

    // The slot of the best offer, the earliest of equals, to every lane; -1 where there is none.
    __device__ __forceinline__ int best() const {
        double value = -1;
        int order = 0x7fffffff, slot = -1;
        for (int i = lane_id(); i < offers; i += WARP) {
            if (b.offer[i] != EMPTY && before(b.offer_value[i], b.offer_order[i], value, order))
                value = b.offer_value[i], order = b.offer_order[i], slot = i;
        }
#pragma unroll
        for (int offset = WARP / 2; offset; offset /= 2) {
            const double other = __shfl_xor_sync(FULL_WARP, value, offset);
            const int other_order = __shfl_xor_sync(FULL_WARP, order, offset);
            const int other_slot = __shfl_xor_sync(FULL_WARP, slot, offset);
            if (before(other, other_order, value, order)) value = other, order = other_order, slot = other_slot;
        }
        return slot;
    }

    __device__ __forceinline__ static bool before(double value, int order, double other, int other_order) {
        return value > other || (value == other && order < other_order);
    }
};

// Whether an answer ends with `token`; all lanes ask of the same one.
__device__ __forceinline__ bool ends_answer(const StepState* st, int token) {
    return __any_sync(FULL_WARP, token >= 0 && st->stop_ids[lane_id() % MAX_STOP_IDS] == token);
}

#ifdef TEXT
// As below, with what the text offers: policy/best_first.py as a whole.
__device__ __forceinline__ void build_with_text(StepState* st, ValueBuilder& b, const TextView& text, int depths, int budget) {
    ValueTree tree{st, b, {st, nullptr}, depths, min(st->width, MAX_WIDTH), 0, 0, text};
    tree.begin_tails();
    tree.state_candidates();
    tree.add({st->root, 0, 0.0}, -1, 0, 1.0);
    const int lane = lane_id(), most = min(budget, VALUE_NODES - 1);
    if (lane == 0) tree.offer(0, 0, 0, 0);
    __syncwarp();
    tree.offers = 1 + tree.offer_copied(1, 1, 0);
    for (int pops = 1; tree.n <= most; ++pops) {
        const int slot = tree.best();
        if (slot < 0) break;
        const u64 offer = b.offer[slot];
        const double value = b.offer_value[slot];
        const int depth = int(offer >> 24 & 0xff), rank = int(offer >> 16 & 0xff), parent = int(offer & 0xffff);
        const int token = int(offer >> 32), node = tree.n, order = 4 * pops;
        const bool copied = rank == COPIED;
        const int off = copied || b.off[parent] || rank ? b.off[parent] + 1 : 0;
        const double log_prob = copied ? b.offer_log_prob[slot] : 0.0;
        __syncwarp();
        if (lane == 0) {
            if (!copied && (off < 2 || rank > 0)) tree.offer(slot, order, rank + 1, parent);
            else b.offer[slot] = EMPTY;
        }
        __syncwarp();
        if (tree.taken(parent, token)) continue;
        if (copied && lane == 0) b.copied |= 1ull << node;
        tree.add(copied ? Choice{token, 0, log_prob} : tree.choices.at(depth, rank, 0), parent, copied ? 1 : rank, value);
        tree.extend_tail(node, parent, token);
        if (ends_answer(st, token)) continue;
        tree.offers += tree.offer_copied(tree.offers, order + 1, node);
        if (lane == 1) tree.offer(tree.offers, order + 2, 0, node);
        if (lane == 2 && off >= 1) tree.offer(tree.offers + 1, order + 3, 1, node);
        tree.offers += off >= 1 ? 2 : 1;
        __syncwarp();
    }
    if (lane == 0) {
        st->built = tree.n;
        st->n = min(tree.n, st->rows);
    }
    __syncwarp();
}
#else
__device__ __forceinline__ void build_by_value(
    StepState* st, ValueBuilder& b, const PairTable* given, int depths, int budget
) {
    ValueTree tree{st, b, {st, given}, depths, min(st->width, MAX_WIDTH), 0, 0};
    tree.state_candidates();
    tree.add({st->root, 0, 0.0}, -1, 0, 1.0);
    if (lane_id() == 0) tree.offer(0, 0, 0, 0);
    tree.offers = 1;
    __syncwarp();
    const int most = min(budget, VALUE_NODES - 1);
    while (tree.n <= most) {
        const int slot = tree.best();
        if (slot < 0) break;
        const u64 offer = b.offer[slot];
        const double value = b.offer_value[slot];
        const int depth = int(offer >> 24 & 0xff), rank = int(offer >> 16 & 0xff), parent = int(offer & 0xffff);
        const int token = int(offer >> 32), node = tree.n, order = 4 * node;
        tree.add(tree.choices.at(depth, rank, b.slot[parent]), parent, rank, value);
        // On the spine, at the first step off it and after a first rank the next rank follows; deeper both come at once.
        const int lane = lane_id(), off = b.off[node];
        const bool below = !ends_answer(st, token);
        if (lane == 0) {
            if (off < 2 || rank > 0) tree.offer(slot, order, rank + 1, parent);
            else b.offer[slot] = EMPTY;
        }
        if (lane == 1 && below) tree.offer(tree.offers, order + 1, 0, node);
        if (lane == 2 && below && off >= 1) tree.offer(tree.offers + 1, order + 2, 1, node);
        if (below) tree.offers += off >= 1 ? 2 : 1;
        __syncwarp();
    }
    if (lane_id() == 0) {
        st->built = tree.n;
        st->n = min(tree.n, st->rows);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(32) tree_build(
    StepState* st, u64* stamps
#ifdef PAIRS
    , const int* pair_ids, const Pairing* pair_rows
#endif
#ifdef TEXT
    , const TextHead* text_head, const int* text_tokens, const int* text_last, u64* copied, int slots
#endif
) {
    __shared__ union {
        Builder fixed;
        ValueBuilder learned;
    } room;
    pdl_launch();
    pdl_wait();
    if (st->stop) return;
    stamp(stamps, TREE_BEGIN);
    const int budget = min(st->budget, MAX_NODES - 1);
    int depths = min(st->draft_depth, MAX_DEPTH);
    const PairTable* given = nullptr;
#ifdef PAIRS
    // As many depths as there is room for come closer: the tree asks for one entry after the other.
    constexpr int NEAR = 8, ENTRIES = PAIR_CANDIDATES * MAX_WIDTH;
    __shared__ Pairing near[NEAR * ENTRIES];
    if (depths <= NEAR && st->by_parent) {
        for (int i = lane_id(); i < depths * ENTRIES; i += WARP) near[i] = pair_rows[i];
        pair_rows = near;
        __syncwarp();
    }
    const PairTable table = {pair_ids, pair_rows};
    if (st->by_parent) given = &table;
#endif
    if (st->by_value) {
        // The token after the deepest node is drawn, so the last one that the answer has room for is never drafted.
        depths = min(depths, min(st->max_tokens, st->context_length - st->prompt_length) - st->answered - 1);
#ifdef TEXT
        build_with_text(st, room.learned, {text_head, text_tokens, text_last}, max(depths, 0), budget);
        if (lane_id() == 0) copied[st->steps % slots] = room.learned.copied;  // pinned, as the ring
        __threadfence_system();
#else
        build_by_value(st, room.learned, given, max(depths, 0), budget);
#endif
        stamp(stamps, VERIFY_BEGIN);
        return;
    }
    Builder& builder = room.fixed;
    Tree tree{st, builder, {st, given}, depths, min(st->width, MAX_WIDTH), double(st->log_p_min), 0, 0};
    tree.add({st->root, 0, 0.0}, -1);
    if (st->chain_seed) {
        for (int depth = 0; depth < min(depths, budget); ++depth) {
            const Choice best = tree.choices.at(depth, 0, builder.slot[depth]);
            if (best.slot < 0 || (depth > 0 && best.log_prob < tree.floor)) break;
            if (tree.offer(tree.offers, depth, 1, depth)) ++tree.offers;
            tree.add(best, depth);
            if (ends_answer(st, best.token)) break;
        }
    } else if (tree.offer(0, 0, 0, 0)) {
        tree.offers = 1;
    }
    __syncwarp();
    while (tree.n <= budget) {
        const int slot = tree.best();
        if (slot < 0) break;
        const u64 tie = builder.offer_tie[slot];
        const int depth = int(tie >> 24 & 0xff), rank = int(tie >> 16 & 0xff), parent = int(tie & 0xffff);
        const int token = int(tie >> 32), node = tree.n;
        tree.add(tree.choices.at(depth, rank, builder.slot[parent]), parent);
        tree.offer(slot, depth, rank + 1, parent);
        if (!ends_answer(st, token) && tree.offer(tree.offers, depth + 1, 0, node)) ++tree.offers;
        __syncwarp();
    }
    if (lane_id() == 0) st->n = tree.n;
    stamp(stamps, VERIFY_BEGIN);
}

extern "C" __global__ void step_begin(u64* stamps) {
    pdl_launch();
    pdl_wait();
    stamp(stamps, STEP_BEGIN);
}
