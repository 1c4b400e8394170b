// The tree by learned value (src/dflash_core/policy/best_first.py is the twin): a node's value is the chance that the walk
// comes to it, and the best on offer is added.
//
// All threads of the block say what is known before: the candidates, and what the text has after each below the spine.
// Then nodes are added one after the other. One warp takes the best offer; then that warp works out what the drafter offers
// because of it, another writes the node, a third looks up what the text has there. All warps count along, so that
// they meet only before a step and after it.
//
// Bound by the latency of one chain of dependent operations per node, most of it the logistic function in double: 0.8 us a
// node on an H200, with the text 1.2.

#pragma once

#include "offers.cuh"
#ifdef TEXT
#include "text.cuh"
#endif

constexpr int VALUE_NODES = 64;
constexpr int VALUE_OFFERS = 3 * VALUE_NODES + 2;  // a node leaves two children more at most, and one from the text
constexpr int COPIED = 0xff;                        // the rank of an offer from the text
constexpr double SMALLEST = 1e-4, BLOCK = 15.0;     // policy/values.py
enum Worker { CHOOSES, WRITES, LOOKS_UP, BEGINS };  // warps

struct ValueBuilder {
    int candidate[MAX_DEPTH][MAX_WIDTH];
    float stated[MAX_DEPTH][MAX_WIDTH];                          // log-probabilities
    double p[MAX_DEPTH][MAX_WIDTH], odds[MAX_DEPTH][MAX_WIDTH];  // of the same
    double on_spine[MAX_DEPTH][MAX_WIDTH];                       // chances below the spine's nodes
    double before[MAX_DEPTH];                                    // minus the spine's log-probability above, at most 8
    double share[MAX_DEPTH][MAX_WIDTH];                          // 1 / p
    double weights[VALUE_CLASSES][VALUE_FEATURES];
    Offers<VALUE_OFFERS> offers;   // ties: the order in which they came
    u64 offer[VALUE_OFFERS];       // token, depth, rank, parent
    double offer_value[VALUE_OFFERS];
    double value[VALUE_NODES], path[VALUE_NODES], log_prob[VALUE_NODES];
    double node_p[VALUE_NODES], node_share[VALUE_NODES];
    u8 off[VALUE_NODES];  // 0 on the spine, else steps since it was left
    u64 mask[VALUE_NODES][4];
    u8 slot[VALUE_NODES];
    struct {
        int slot;  // -1 where nothing is on offer
        u64 offer;
        double value;
    } best[2];  // in turns: a warp may be behind the one that chooses
#ifdef TEXT
    double offer_p[VALUE_OFFERS], offer_log_prob[VALUE_OFFERS];  // of an offer from the text
    int copies;                             // offers that the newest node has from the text
    int line[LONGEST + MAX_DEPTH];          // the newest tokens up to the root, and the spine's
    Successor found[MAX_DEPTH][MAX_WIDTH];  // what the text has after a candidate below the spine
    Successor first;                        // and after the root
    int tail[VALUE_NODES][LONGEST];         // the newest tokens at a node, its own first
    int token[VALUE_NODES], parent[VALUE_NODES];
#endif
};

__device__ __forceinline__ double clipped(double p) { return fmin(fmax(p, SMALLEST), 1 - SMALLEST); }
__device__ __forceinline__ double odds_of(double p) { return log(clipped(p) / (1 - clipped(p))); }
__device__ __forceinline__ double chance_at(double z) { return z > -500 ? 1 / (1 + exp(-z)) : 0.0; }

// A node, as far as what is offered below it depends on it.
struct Above {
    int node, slot, off;
    double log_prob, p, share, value;
};

struct ValueTree {
    StepState* st;
    ValueBuilder& b;
    const PairTable* given;
    const int depths, width;
    const int stop_id;  // a lane's own
    int n, size;        // nodes, and slots for offers; the same in all threads
#ifdef TEXT
    TextView text;
    int known;            // tokens up to the root
    u64 copied, copying;  // nodes from the text, and those above them
#endif

    __device__ __forceinline__ Choices choices() const { return {b.candidate, b.stated, given}; }

    // What the drafter says of every candidate, and the chances below the spine: a candidate a thread, all of the block
    // call. Where each node has its own, only how likely the spine is above a depth: the best of the best below the root.
    __device__ __forceinline__ void state_candidates() {
        for (int i = threadIdx.x; i < VALUE_CLASSES * VALUE_FEATURES; i += blockDim.x)
            b.weights[i / VALUE_FEATURES][i % VALUE_FEATURES] = st->weights[i / VALUE_FEATURES][i % VALUE_FEATURES];
        if (given) {
            if (threadIdx.x == 0) {
                int above = 0;
                double sum = 0;
                for (int d = 0; d < depths; ++d) {
                    b.before[d] = fmin(fmax(-sum, 0.0), 8.0);
                    if (above < 0) continue;
                    const Pairing& best = choices().pairing(d, 0, above);
                    sum += best.log_prob, above = best.slot;
                }
            }
            __syncthreads();
            return;
        }
        for (int i = threadIdx.x; i < depths * width; i += blockDim.x) {
            const int d = i / width, r = i % width;
            const float log_prob = st->candidate_log_prob[d][r];
            const double p = exp(double(log_prob));
            b.candidate[d][r] = st->candidate[d][r];
#ifdef TEXT
            if (r == 0) b.line[LONGEST + d] = st->candidate[d][r];
#endif
            b.stated[d][r] = log_prob;
            b.p[d][r] = p;
            b.odds[d][r] = odds_of(p);
            b.share[d][r] = 1 / (p + 1e-9);
        }
        __syncthreads();
        for (int d = threadIdx.x; d < depths; d += blockDim.x) {
            double sum = 0;
#pragma unroll 4
            for (int above = 0; above < d; ++above) sum += double(b.stated[above][0]);
            b.before[d] = fmin(fmax(-sum, 0.0), 8.0);
        }
#ifdef TEXT
        // Backwards, so that the last warps begin: the first ones add up what is stated.
        for (int i = depths * width - 1 - int(threadIdx.x); i >= 0; i -= blockDim.x) {
            const int d = i / width, r = i % width;
            b.found[d][r] = successor_of(text, BelowSpine{b.line + LONGEST + d, b.candidate[d][r]}, known + d + 1);
        }
#endif
        __syncthreads();
        for (int i = threadIdx.x; i < depths * width; i += blockDim.x) {
            const int d = i / width, r = i % width;
            b.on_spine[d][r] = chance(min(r, 2), b.odds[d][r], b.before[d], d / BLOCK, b.p[d][0]);
        }
        __syncthreads();
    }

    __device__ __forceinline__ double chance(int cls, double odds, double before, double third, double fourth) const {
        const double* const w = b.weights[cls];
        return chance_at(w[0] + w[1] * odds + w[2] * before + w[3] * third + w[4] * fourth);
    }

    // Lanes put candidates into slots, each its own, or leave them empty; those with a slot below 0 have none.
    __device__ __forceinline__ void offer(int slot, int order, int depth, int rank, const Above& above) {
        if (slot < 0) return;
        b.offers.key[slot] = NOTHING;
        if (depth >= depths || rank >= width) return;
        const Choice choice = choices().at(depth, rank, above.slot);
        if (choice.slot < 0) return;
        double q = b.on_spine[depth][rank];
        if (given || above.off) {
            const int kind = (above.off == 0 ? 0 : above.off == 1 ? 3 : 6) + min(rank, 2);
            const double stated = fmin(fmax(above.log_prob, -8.0), 0.0);
            double odds, fourth;
            if (given) {
                odds = choices().pairing(depth, rank, above.slot).odds;
                fourth = choices().pairing(depth, 0, above.slot).p;
            } else {
                const double over = b.p[depth][rank] - (1 - above.p);
                odds = b.odds[depth][rank];
                fourth = fmin(fmax(over * above.share, 0.0), 1.0);
            }
            q = chance(kind, odds, b.before[depth], above.off ? stated : depth / BLOCK, fourth);
        }
        put(slot, order, choice.token, depth, rank, above.node, above.value * q);
    }

    // One lane calls, or each for its own slot.
    __device__ __forceinline__ void put(int slot, int order, int token, int depth, int rank, int parent, double value) {
        b.offer[slot] = u64(u32(token)) << 32 | u64(depth) << 24 | u64(rank) << 16 | u64(parent);
        b.offer_value[slot] = value;
        b.offers.tie[slot] = order;
        b.offers.key[slot] = falling(value);
    }

    __device__ __forceinline__ Above above(int node) const {
        return {node, b.slot[node], b.off[node], b.log_prob[node], b.node_p[node], b.node_share[node], b.value[node]};
    }

    // One warp calls.
    __device__ __forceinline__ void write(const Above& it, int token, int parent, int depth) {
        if (lane_id() == 0) {
            b.off[it.node] = it.off;
            b.log_prob[it.node] = it.log_prob;
            b.node_p[it.node] = it.p;
            b.node_share[it.node] = it.share;
            b.value[it.node] = it.value;
            st->value[it.node] = float(it.value);
#ifdef TEXT
            b.token[it.node] = token, b.parent[it.node] = parent;
#endif
        }
        append(st, b, it.node, token, it.slot, parent, depth, it.log_prob);
    }

#ifdef TEXT
    // Tokens backwards from a node, and from a candidate below the spine.
    struct Tail {
        const int* newest;
        __device__ __forceinline__ int operator()(int back) const { return newest[back]; }
    };
    struct BelowSpine {
        const int* above;
        int token;
        __device__ __forceinline__ int operator()(int back) const { return back ? *(above - back) : token; }
    };

    // The tail at the root, of the answer and of the prompt before it, and what the text has there. One warp calls.
    __device__ __forceinline__ void begin_tails() {
        const int lane = lane_id(), at = known - 1 - lane, said = at - st->prompt_length;
        if (lane < LONGEST) {
            const int token = lane == 0 ? st->root : at < 0 ? 0 : said >= 0 ? st->history[said % HISTORY] : text.tokens[at];
            b.tail[0][lane] = b.line[LONGEST - 1 - lane] = token;
        }
        __syncwarp();
        b.first = successor_of(text, Tail{b.tail[0]}, known);
    }

    // Offer what the text has after a node, `found`, unless it is the drafter's first choice there. One warp calls.
    __device__ __forceinline__ void offer_copied(int slot, int order, int depth, const Above& above, const Successor& found) {
        const int lane = lane_id();
        const bool wanted = found.match >= 0 && found.token != b.candidate[depth][0];
        if (lane == 0) b.copies = wanted;
        if (!wanted) return;
        const u32 among = __ballot_sync(FULL_WARP, lane < width && b.candidate[depth][lane % MAX_WIDTH] == found.token);
        if (lane) return;
        const int rank = among ? __ffs(int(among)) - 1 : 0;
        const bool unlikely = !among || b.p[depth][rank] < LEAST_COPIED;
        const double odds = unlikely ? LEAST_ODDS : b.odds[depth][rank];
        const double* const w = b.weights[COPIED_CLASS + found.match];
        const double kind = copied >> above.node & 1 ? 2 : above.off ? 1 : 0;
        const double q = chance_at(w[0] + w[1] * odds + w[2] * b.odds[depth][0] + w[4] * kind);
        b.offer_p[slot] = unlikely ? LEAST_COPIED : b.p[depth][rank];
        b.offer_log_prob[slot] = unlikely ? LEAST_LOG : double(b.stated[depth][rank]);
        put(slot, order, found.token, depth, COPIED, above.node, above.value * q);
    }

    // Whether `parent` has a child with this token already.
    __device__ __forceinline__ bool taken(int parent, int token) const {
        bool found = false;
        for (int i = lane_id(); i < n; i += WARP) found |= b.parent[i] == parent && b.token[i] == token;
        return __any_sync(FULL_WARP, found);
    }
#endif

    // All threads of the block call.
    __device__ __forceinline__ void build(int budget) {
        const int warp = warp_id(), lane = lane_id(), most = min(budget, VALUE_NODES - 1);
#ifdef TEXT
        if (warp == BEGINS) begin_tails();
#endif
        state_candidates();
        const Above root = {0, 0, 0, 0.0, 1.0, 1.0, 1.0};
        if (warp == WRITES) write(root, st->root, -1, 0);
        if (warp == CHOOSES) offer(lane == 0 ? 0 : -1, 0, 0, 0, root);
        n = size = 1;
#ifdef TEXT
        if (warp == LOOKS_UP && depths) offer_copied(1, 1, 0, root, b.first);
        __syncthreads();
        if (depths) size += b.copies;
#endif
        for (int pops = 1; n <= most; ++pops) {
            if (warp == CHOOSES) {
                __syncwarp();
                const int slot = b.offers.best(size);
                if (lane == 0) b.best[pops % 2] = {slot, b.offer[max(slot, 0)], b.offer_value[max(slot, 0)]};
            }
            __syncthreads();  // the best is known, and the node before it is there
            const int slot = b.best[pops % 2].slot;
            if (slot < 0) break;
            const u64 popped = b.best[pops % 2].offer;
            const int depth = int(popped >> 24 & 0xff), rank = int(popped >> 16 & 0xff), parent = int(popped & 0xffff);
            const int token = int(popped >> 32), node = n, order = 4 * pops, off = b.off[parent];
            const bool from_text = rank == COPIED;
            bool added = true;
            Above it = {node, 0, from_text || off || rank ? off + 1 : 0, 0.0, 0.0, 0.0, b.best[pops % 2].value};
            if (!from_text) {
                const Choice choice = choices().at(depth, rank, b.slot[parent]);
                it.slot = choice.slot, it.log_prob = choice.log_prob;
                it.p = b.p[depth][rank], it.share = b.share[depth][rank];
            }
#ifdef TEXT
            if (from_text) it.log_prob = b.offer_log_prob[slot], it.p = b.offer_p[slot], it.share = 1 / (it.p + 1e-9);
            added = !(from_text || copying >> parent & 1) || !taken(parent, token);
            if (from_text && added) copied |= 1ull << node, copying |= 1ull << parent;
#endif
            const bool below = added && !ends_answer(stop_id, token);
            // On the spine, at the first step off it and after a first rank the next rank follows; deeper both come at once.
            const bool next = !from_text && (it.off < 2 || rank > 0);
            const int children = below ? it.off >= 1 ? 2 : 1 : 0;
            if (warp == CHOOSES) {
                if (lane == 0 && !next) b.offers.key[slot] = NOTHING;
                const int mine = lane == 0 ? next ? slot : -1 : lane <= children ? size + lane - 1 : -1;
                const Above from = lane ? it : above(parent);
                offer(mine, order + (lane ? 1 + lane : 0), depth + (lane ? 1 : 0), lane ? lane - 1 : rank + 1, from);
            }
            if (warp == WRITES && added) write(it, token, parent, depth + 1);
            n += added;
            size += children;
#ifdef TEXT
            const bool looks = below && depth + 1 < depths;
            if (warp == LOOKS_UP) {
                if (lane < LONGEST) b.tail[node][lane] = lane == 0 ? token : b.tail[parent][lane - 1];
                __syncwarp();
                if (looks) {
                    const Successor found = !from_text && off == 0
                        ? b.found[depth][rank]
                        : successor_of(text, Tail{b.tail[node]}, known + depth + 1);
                    offer_copied(size, order + 1, depth + 1, it, found);
                }
            }
            __syncthreads();  // what is offered is there
            if (looks) size += b.copies;
#endif
        }
        if (threadIdx.x == 0) {
            st->built = n;
            st->n = min(n, st->rows);
        }
    }
};
