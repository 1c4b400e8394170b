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

extern "C" __global__ void __launch_bounds__(32) tree_build(StepState* st, u64* stamps) {
    __shared__ Builder builder;
    pdl_launch();
    pdl_wait();
    if (st->stop) return;
    stamp(stamps, TREE_BEGIN);
    const int depths = min(st->draft_depth, MAX_DEPTH), budget = min(st->budget, MAX_NODES - 1);
    Tree tree{st, builder, depths, min(st->width, MAX_WIDTH), double(st->log_p_min), 0, 0};
    tree.add(st->root, -1, 0.0);
    if (st->chain_seed) {
        for (int depth = 0; depth < min(depths, budget); ++depth) {
            const double log_prob = tree.log_prob(depth, 0);
            if (depth > 0 && log_prob < tree.floor) break;
            if (tree.offer(tree.offers, depth, 1, depth)) ++tree.offers;
            tree.add(st->candidate[depth][0], depth, log_prob);
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
        const int node = tree.n;
        tree.add(int(tie >> 32), parent, tree.log_prob(depth, rank));
        tree.offer(slot, depth, rank + 1, parent);
        if (tree.offer(tree.offers, depth + 1, 0, node)) ++tree.offers;
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
