// Around the tree: the draws of a greedy pass, and the best-first tree itself (src/dflash_core/tree.py is the twin).
//
//   merge_draws       grid = rows of the pass, one warp each: the target's own token after each node
//   tree_build        one warp
//   step_begin        one thread: when a step began
//
// Bound by latency: a few kilobytes. In a step on an H200 merge_draws takes 2 to 4 us.

#include "head.cuh"
#include "ring.cuh"

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

struct Builder {
    double offer_path[OFFERS];  // the path's log-probability, in double as in the twin: it decides the order
    u64 offer_tie[OFFERS];      // token, depth, rank, parent: the order among equals; EMPTY for a free slot
    double path[MAX_NODES];
    u64 mask[MAX_NODES][4];
    int depth[MAX_NODES];
};

// All lanes call all of these with the same arguments.
struct Tree {
    StepState* st;
    Builder& b;
    const int depths, width;
    const double floor;
    int n, offers;

    __device__ __forceinline__ double log_prob(int depth, int rank) const {
        return double(st->candidate_log_prob[depth][rank]);
    }

    // Put a candidate into `slot`, or leave the slot empty where it does not qualify.
    __device__ __forceinline__ bool offer(int slot, int depth, int rank, int parent) {
        bool wanted = depth < depths && rank < width;
        if (wanted) wanted = log_prob(depth, rank) >= floor || (depth == 0 && rank == 0);
        if (lane_id() == 0) {
            b.offer_tie[slot] = EMPTY;
            if (wanted) {
                const u64 token = u32(st->candidate[depth][rank]);
                b.offer_tie[slot] = token << 32 | u64(depth) << 24 | u64(rank) << 16 | u64(parent);
                b.offer_path[slot] = b.path[parent] + log_prob(depth, rank);
            }
        }
        return wanted;
    }

    // Add a node; node 0 is the root. Lanes 0..3 hold a word of the mask each.
    __device__ __forceinline__ void add(int token, int parent, double log_prob) {
        const int node = n++, lane = lane_id();
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
            st->token[node] = token;
            st->parent[node] = parent;
            st->depth[node] = depth;
            st->log_prob[node] = float(log_prob);
            st->path_log_prob[node] = float(path);
        }
        __syncwarp();
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

constexpr int VALUE_NODES = 64, VALUE_OFFERS = 2 * VALUE_NODES + 2;  // each pop leaves two slots more at most
constexpr double SMALLEST = 1e-4, BLOCK = 15.0;  // policy/values.py

struct ValueBuilder {
    double p[MAX_DEPTH][MAX_WIDTH], odds[MAX_DEPTH][MAX_WIDTH];  // stated
    double on_spine[MAX_DEPTH][MAX_WIDTH];                       // chances below the spine's nodes
    double before[MAX_DEPTH];                                    // minus the spine's log-probability above, at most 8
    double offer_value[VALUE_OFFERS];
    u64 offer[VALUE_OFFERS];   // token, depth, rank, parent; EMPTY for a free slot
    int offer_order[VALUE_OFFERS];
    double value[VALUE_NODES], path[VALUE_NODES];
    float log_prob[VALUE_NODES];
    int depth[VALUE_NODES], off[VALUE_NODES];  // off: 0 on the spine, else steps since it was left
    u64 mask[VALUE_NODES][4];
};

struct ValueTree {
    StepState* st;
    ValueBuilder& b;
    const int depths, width;
    int n, offers;

    // What the drafter says of every candidate, and the chances below the spine: a candidate a lane.
    __device__ __forceinline__ void state_candidates() {
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
        double q = b.on_spine[depth][rank];
        if (off) {
            const double above = b.log_prob[parent], m = exp(above);
            const double shared = fmin(fmax((b.p[depth][rank] - (1 - m)) / (m + 1e-9), 0.0), 1.0);
            q = chance((off == 1 ? 3 : 6) + min(rank, 2), b.odds[depth][rank], b.before[depth],
                       fmin(fmax(above, -8.0), 0.0), shared);
        }
        b.offer_value[slot] = b.value[parent] * q;
        b.offer_order[slot] = order;
        b.offer[slot] = u64(u32(st->candidate[depth][rank])) << 32 | u64(depth) << 24 | u64(rank) << 16 | u64(parent);
    }

    // Add a node; node 0 is the root.
    __device__ __forceinline__ void add(int token, int parent, int rank, float log_prob, double value) {
        const int node = n++, lane = lane_id();
        if (lane < 4) {
            const u64 own = lane == node / 64 ? 1ull << node % 64 : 0;
            const u64 mask = own | (parent < 0 ? 0 : b.mask[parent][lane]);
            b.mask[node][lane] = mask;
            st->mask[node][lane] = mask;
        }
        if (lane == 0) {
            const double path = parent < 0 ? 0.0 : b.path[parent] + double(log_prob);
            const int depth = parent < 0 ? 0 : b.depth[parent] + 1;
            b.path[node] = path;
            b.depth[node] = depth;
            b.off[node] = parent < 0 || (b.off[parent] == 0 && rank == 0) ? 0 : b.off[parent] + 1;
            b.log_prob[node] = log_prob;
            b.value[node] = value;
            st->token[node] = token;
            st->parent[node] = parent;
            st->depth[node] = depth;
            st->log_prob[node] = log_prob;
            st->path_log_prob[node] = float(path);
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

__device__ __forceinline__ void build_by_value(StepState* st, ValueBuilder& b, int depths, int budget) {
    ValueTree tree{st, b, depths, min(st->width, MAX_WIDTH), 0, 0};
    tree.state_candidates();
    tree.add(st->root, -1, 0, 0.0f, 1.0);
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
        tree.add(token, parent, rank, st->candidate_log_prob[depth][rank], value);
        // On the spine, at the first step off it and behind a first rank the next rank follows; deeper both come at once.
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

extern "C" __global__ void __launch_bounds__(32) tree_build(StepState* st, u64* stamps) {
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
    if (st->by_value) {
        // The token behind the deepest node is drawn, so the last one that the answer has room for is never drafted.
        depths = min(depths, min(st->max_tokens, st->context_length - st->prompt_length) - st->answered - 1);
        build_by_value(st, room.learned, max(depths, 0), budget);
        stamp(stamps, VERIFY_BEGIN);
        return;
    }
    Builder& builder = room.fixed;
    Tree tree{st, builder, depths, min(st->width, MAX_WIDTH), double(st->log_p_min), 0, 0};
    tree.add(st->root, -1, 0.0);
    if (st->chain_seed) {
        for (int depth = 0; depth < min(depths, budget); ++depth) {
            const double log_prob = tree.log_prob(depth, 0);
            if (depth > 0 && log_prob < tree.floor) break;
            if (tree.offer(tree.offers, depth, 1, depth)) ++tree.offers;
            tree.add(st->candidate[depth][0], depth, log_prob);
            if (ends_answer(st, st->candidate[depth][0])) break;
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
        tree.add(token, parent, tree.log_prob(depth, rank));
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
