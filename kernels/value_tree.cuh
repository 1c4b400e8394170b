// The tree by learned value (src/dflash_core/policy/best_first.py is the Python twin). A node's value is the learned
// probability that the walk reaches it. An offer is a token that may be added below a node; the offer with the highest
// value is added first. The spine is the root and, below it, the drafter's best candidate at each depth.
//
// All threads of the block first compute what does not depend on the tree: the candidates' probabilities and, with
// TEXT, which token followed each of them in the conversation's text, if it were added below the spine. Then one warp
// adds node after node: it computes the drafter's offers below a node and takes the best offer. With TEXT, two more
// warps look up what followed the node in the text and offer it, and a fourth stores the node's columns, with one
// barrier per node. Without TEXT, one warp does all of it, without barriers. The tree is written to memory at the end.
//
// Bound by the latency of one chain of dependent operations per node: without TEXT the probability in double (on the
// spine it is computed beforehand) and the search for the best offer; with TEXT also a barrier and, where a match is
// found, two dependent loads from the L2. 0.5 us per node on an H200, with TEXT 0.8.

#pragma once

#include "offers.cuh"
#ifdef TEXT
#include "ngrams.cuh"
#endif

constexpr int VALUE_NODES = 64;
#ifdef TEXT
enum Worker { CHOOSES, LOOKS_UP, LOOKS_UP_TOO, KEEPS };  // warps
constexpr int TEXTUAL = 1;
constexpr double MIN_SHARE = 1 / (MIN_COPIED + 1e-9);
// An added node takes at most four slots: a sibling, one from the text and two children. An offer whose token its
// parent already has as a child takes at most two.
constexpr int VALUE_OFFERS = 6 * VALUE_NODES;
#else
enum Worker { CHOOSES, KEEPS = CHOOSES };  // one warp, and no barrier
constexpr int TEXTUAL = 0;
constexpr int VALUE_OFFERS = 3 * VALUE_NODES + 1;
#endif
constexpr int COPIED = 15;                          // as a rank: the offer is from the text
constexpr int UNLIKELY = 15;                        // as `stated`: not a candidate, or less likely than MIN_COPIED
constexpr double SMALLEST = 1e-4, BLOCK = 15.0;     // policy/values.py

// A token that may be added below `parent`. `stated`: the candidate whose probability it has, by rank, or by slot where
// each node has its own candidates; `above`: the same for its parent; `off`: how many nodes the parent is off the
// spine, at most 2.
struct __align__(8) Offer {
    int token;
    u32 place;

    __device__ __forceinline__ static Offer of(int token, int depth, int parent, int off, int rank, int stated, int above) {
        return {token, u32(depth | parent << 6 | off << 12 | rank << 14 | stated << 18 | above << 22)};
    }
    __device__ __forceinline__ int depth() const { return place & 63; }
    __device__ __forceinline__ int parent() const { return place >> 6 & 63; }
    __device__ __forceinline__ int off() const { return place >> 12 & 3; }
    __device__ __forceinline__ int rank() const { return place >> 14 & 15; }
    __device__ __forceinline__ int stated() const { return place >> 18 & 15; }
    __device__ __forceinline__ int above() const { return place >> 22 & 15; }
};
static_assert(MAX_DEPTH <= 64 && VALUE_NODES <= 64 && MAX_WIDTH < COPIED && PAIR_CANDIDATES <= 16, "bits of an Offer");

struct ValueBuilder {
    int candidate[MAX_DEPTH][MAX_WIDTH];
    float stated[MAX_DEPTH][MAX_WIDTH];                          // log-probabilities
    double p[MAX_DEPTH][MAX_WIDTH], odds[MAX_DEPTH][MAX_WIDTH];  // probabilities and log-odds
    double on_spine[MAX_DEPTH][MAX_WIDTH];                       // chances below the spine's nodes
    double before[MAX_DEPTH];                                    // minus the log-probability of the spine above, at most 8
    double share[MAX_DEPTH][MAX_WIDTH];                          // 1 / p
    double weights[VALUE_CLASSES][VALUE_FEATURES];
    OffersInTurn<VALUE_OFFERS> offers;
    Offer offer[VALUE_OFFERS];
    double offer_value[VALUE_OFFERS];
    Offer node[VALUE_NODES];
    double value[VALUE_NODES], path[VALUE_NODES], log_prob[VALUE_NODES];
    u64 mask[VALUE_NODES];
#ifdef TEXT
    // `copy`: the text's offer below the newest node, by the warp that looked it up; `best`: the best of all other
    // offers. Double-buffered, as a warp may still read one while another warp writes the next.
    Found best[2], copy[2][2];
    int line[LONGEST + MAX_DEPTH];          // the newest tokens up to the root, and the spine's
    Successor found[MAX_DEPTH][MAX_WIDTH];  // what followed a candidate below the spine in the text
    Successor first;                        // and what followed the root
    int tail[VALUE_NODES][LONGEST];         // the newest tokens at a node, its own first
#endif
};

__device__ __forceinline__ double within(double x, double least, double most) { return fmin(fmax(x, least), most); }
// within(x, 0, 1) by integer comparisons: positive doubles sort as their bits do. It is on the critical path of every
// node.
__device__ __forceinline__ double within_one(double x) {
    const i64 bits = __double_as_longlong(x), one = __double_as_longlong(1.0);
    return bits < 0 ? 0.0 : bits >= one ? 1.0 : x;
}
__device__ __forceinline__ double clipped(double p) { return within(p, SMALLEST, 1 - SMALLEST); }
__device__ __forceinline__ double odds_of(double p) { return log(clipped(p) / (1 - clipped(p))); }
__device__ __forceinline__ double share_of(double p) { return 1 / (p + 1e-9); }
__device__ __forceinline__ double chance_at(double z) {
    const double chance = 1 / (1 + exp(-z));  // computed unconditionally, to save a branch
    return z > -500 ? chance : 0.0;
}

// What the offers below a node depend on. `stated` as in an Offer; `off`: how many nodes this node is off the spine.
struct Above {
    int node, stated, off;
    double log_prob, value;
};

struct ValueTree {
    StepState* st;
    ValueBuilder& b;
    const PairTable* given;
    const int depths, width;
    const int stop_id;  // the stop token that this lane compares
    int n, size;        // nodes, and slots for offers; the same in all threads
#ifdef TEXT
    TextView text;
    int known;            // tokens up to the root
    u64 copied, copying;  // a bit per node: those from the text, and the parents of these
#endif

    __device__ __forceinline__ Choices choices() const { return {b.candidate, b.stated, given}; }

    // Computes `before` where each node has its own candidates. There the spine is the best candidate below the root,
    // the best one below that, and so on. Nothing else about such candidates can be computed before the tree is built.
    // One thread calls.
    __device__ __forceinline__ void state_spine() {
        int above = 0;
        double sum = 0;
        for (int d = 0; d < depths; ++d) {
            b.before[d] = within(-sum, 0, 8);
            if (above < 0) continue;
            const Pairing& best = choices().pairing(d, 0, above);
            sum += best.log_prob, above = best.slot;
        }
    }

    // The drafter's probabilities of all candidates, and their chances below the spine's nodes: a candidate per thread.
    // All threads of the block call.
    __device__ __forceinline__ void state_candidates() {
        b.offers.clear();
        for (int i = threadIdx.x; i < VALUE_CLASSES * VALUE_FEATURES; i += blockDim.x)
            b.weights[i / VALUE_FEATURES][i % VALUE_FEATURES] = st->weights[i / VALUE_FEATURES][i % VALUE_FEATURES];
        if (given) {
            if (threadIdx.x == 0) state_spine();
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
            b.share[d][r] = share_of(p);
        }
        __syncthreads();
        for (int d = threadIdx.x; d < depths; d += blockDim.x) {
            double sum = 0;
#pragma unroll 4
            for (int above = 0; above < d; ++above) sum += double(b.stated[above][0]);
            b.before[d] = within(-sum, 0, 8);
        }
#ifdef TEXT
        look_below_spine();
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

    // Each lane offers a candidate in its own slot, or leaves the slot empty. A slot below 0: the lane has nothing to
    // offer.
    __device__ __forceinline__ void offer(int slot, int depth, int rank, const Above& above) {
        if (slot < 0 || depth >= depths || rank >= width) return;
        const Choice choice = choices().at(depth, rank, above.stated);
        if (choice.slot < 0) return;
        double q = b.on_spine[depth][rank];
        if (given || above.off) {
            double odds, stated, fourth;
            if (given) {
                odds = choices().pairing(depth, rank, above.stated).odds;
                stated = above.log_prob;
                fourth = choices().pairing(depth, 0, above.stated).p;
            } else {
                const Stated it = stated_of(depth - 1, above.stated);
                odds = b.odds[depth][rank];
                stated = it.log_prob;
                fourth = within_one((b.p[depth][rank] - (1 - it.p)) * it.share);
            }
            const double third = above.off ? within(stated, -8, 0) : depth / BLOCK;
            q = chance(3 * above.off + min(rank, 2), odds, b.before[depth], third, fourth);
        }
        const int own = given ? choice.slot : rank;
        put(slot, Offer::of(choice.token, depth, above.node, above.off, rank, own, above.stated), above.value * q);
        b.offers.key[slot] = falling(above.value * q);
    }

    // The drafter's probability of a candidate, or the one assumed where that is unknown or very small (UNLIKELY).
    struct Stated {
        double log_prob, p, share;
    };
    __device__ __forceinline__ Stated stated_of(int depth, int candidate) const {
#ifdef TEXT
        const bool lacks = candidate == UNLIKELY;
        const int at = lacks ? 0 : candidate;
        const Stated known = {double(b.stated[depth][at]), b.p[depth][at], b.share[depth][at]};
        return {lacks ? MIN_LOG : known.log_prob, lacks ? MIN_COPIED : known.p, lacks ? MIN_SHARE : known.share};
#else
        return {double(b.stated[depth][candidate]), b.p[depth][candidate], b.share[depth][candidate]};
#endif
    }

    // Stores all of an offer except its key. One lane calls, or each lane for its own slot.
    __device__ __forceinline__ void put(int slot, const Offer& it, double value) {
        b.offer[slot] = it;
        b.offer_value[slot] = value;
    }

    // The drafter's log-probability of an offer.
    __device__ __forceinline__ double log_prob_of(const Offer& it) const {
        if (given) return choices().pairing(it.depth(), it.rank(), it.above()).log_prob;
        return stated_of(it.depth(), it.stated()).log_prob;
    }

    // Store a node's columns; `path` and `mask` are its parent's. One lane calls.
    __device__ __forceinline__ void keep(const Above& node, const Offer& it, double path, u64 mask) {
        const int at = node.node;
        b.node[at] = it;
        b.value[at] = node.value;
        b.log_prob[at] = node.log_prob;
        b.path[at] = path + node.log_prob;
        b.mask[at] = 1ull << at | mask;
    }

    // Write the nodes. One warp calls.
    __device__ __forceinline__ void write() const {
        __syncwarp();
#pragma unroll 1
        for (int node = lane_id(); node < n; node += WARP) {
            const Offer it = b.node[node];
            st->token[node] = it.token;
            st->parent[node] = node ? it.parent() : -1;
            st->depth[node] = node ? it.depth() + 1 : 0;
            st->log_prob[node] = float(b.log_prob[node]);
            st->path_log_prob[node] = float(b.path[node]);
            st->value[node] = float(b.value[node]);
            for (int word = 0; word < MAX_NODES / 64; ++word) st->mask[node][word] = word ? 0 : b.mask[node];
        }
        if (lane_id() == 0) {
            st->built = n;
            st->n = min(n, st->rows);
        }
    }

    // Offer the next sibling and the first children of `it` in the slots from `size` on. `node` is the node that `it`
    // becomes if it is added. One warp calls.
    __device__ __forceinline__ void expand(const Offer& it, bool sibling, const Above& node, int children) {
        const int lane = lane_id();
        const bool child = lane > 0;
        const Above above = {
            child ? node.node : it.parent(), child ? node.stated : it.above(), child ? node.off : it.off(),
            child ? node.log_prob : b.log_prob[it.parent()], child ? node.value : b.value[it.parent()]
        };
        const bool offers = child ? lane <= children : sibling;
        const int slot = child ? first_child(sibling) + lane - 1 : size;
        offer(offers ? slot : -1, it.depth() + child, child ? lane - 1 : it.rank() + 1, above);
    }

    // Slots in order: the sibling, the text's offer, the children. Of equal values the lower slot is taken first.
    __device__ __forceinline__ int first_child(bool sibling) const { return size + sibling + TEXTUAL; }

#ifdef TEXT
    // Tokens by their distance back from the newest, which is a node's own token, or a candidate below the spine.
    struct Tail {
        const int* newest;
        __device__ __forceinline__ int operator()(int back) const { return newest[back]; }
    };
    struct BelowSpine {
        const int* above;
        int token;
        __device__ __forceinline__ int operator()(int back) const { return back ? *(above - back) : token; }
    };

    // The newest tokens at the root, from the answer and the prompt before it. One warp calls.
    __device__ __forceinline__ void begin_tails() {
        const int lane = lane_id(), at = known - 1 - lane, answered = at - st->prompt_length;
        if (lane >= LONGEST) return;
        const int token = lane == 0 ? st->root : at < 0 ? 0 : answered >= 0 ? st->history[answered % HISTORY] : text.tokens[at];
        b.tail[0][lane] = b.line[LONGEST - 1 - lane] = token;
    }

    // Find what followed the root, and every candidate below the spine, in the text: one look-up per thread. Look-ups
    // are assigned in reverse, so that the root's, which takes another branch, goes to a later warp: the first warps are
    // still summing up `before`.
    __device__ __forceinline__ void look_below_spine() {
        for (int i = depths * width - int(threadIdx.x); i >= 0; i -= blockDim.x) {
            if (i == 0) {
                b.first = successor_of(text, Tail{b.tail[0]}, known);
                continue;
            }
            const int d = (i - 1) / width, r = (i - 1) % width;
            b.found[d][r] = successor_of(text, BelowSpine{b.line + LONGEST + d, b.candidate[d][r]}, known + d + 1);
        }
    }

    // Write the first RUNS of a node's newest tokens to `newest`, and return the token that the lane compares in a
    // LookUp. One warp calls.
    __device__ __forceinline__ int tail_of(const Offer& it, int (&newest)[RUNS]) const {
        newest[0] = it.token;
#pragma unroll
        for (int i = 1; i < RUNS; ++i) newest[i] = b.tail[it.parent()][i - 1];
        const int back = lane_back() - 2;
        return back < 0 ? it.token : b.tail[it.parent()][back];
    }

    // Offer the token that followed a node in the text, unless it is the drafter's first candidate there. The token is
    // `found`, or with `asks` the result of a look-up. While that loads, each lane computes the chance of one possible
    // result: a class of match, and which candidate the token is, or none. Two warps call, each for half of the
    // classes.
    __device__ __forceinline__ void copy(
        int slot, const Offer& it, const Above& node, bool asks, Successor found, int turn
    ) {
        constexpr int MATCHES = WARP / MAX_WIDTH;
        const bool first = warp_id() == LOOKS_UP;
        const int lane = lane_id(), rank = lane % MAX_WIDTH, match = lane / MAX_WIDTH + (first ? 0 : MATCHES);
        const int depth = node.node ? it.depth() + 1 : 0;
        LookUp asked = {};
        int own = 0;
        if (node.node) {
            int newest[RUNS];
            own = tail_of(it, newest);
            if (first && lane && lane <= FOLLOWED) b.tail[node.node][lane - 1] = own;
            if (asks) asked = look_up(text, newest, known + depth);
        }
        const bool promising = asks ? asked.promising() : found.match >= 0;
        Found& offered = b.copy[turn][!first];
        if (lane == 0) offered.key = NOTHING;
        if (!promising) return;
        const int choice = lane < width ? b.candidate[depth][rank] : -1;
        // Rank 0 means none of the candidates, as the first one is never offered here.
        const bool one = rank > 0 && rank < width;
        const double odds = one ? fmax(b.odds[depth][rank], MIN_ODDS) : MIN_ODDS;
        const double kind = node.node && it.rank() == COPIED ? 2 : node.off ? 1 : 0;
        const double* const w = b.weights[COPIED_CLASS + min(match, MATCH_CLASSES - 1)];
        const double q = chance_at(w[0] + w[1] * odds + w[2] * b.odds[depth][0] + w[4] * kind);
        if (asks) found = verified(asked, own);
        const u32 among = __ballot_sync(FULL_WARP, (lane < width) & (choice == found.token));
        __syncwarp();  // the key of an empty slot is stored
        if (match != found.match || (among & (0 - among)) != (rank ? 1u << rank : 0)) return;
        const int stated = one && b.p[depth][rank] >= MIN_COPIED ? rank : UNLIKELY;
        put(slot, Offer::of(found.token, depth, node.node, node.off, COPIED, stated, 0), node.value * q);
        offered = {falling(node.value * q), slot};
    }

    // Whether `parent` has a child with this token already.
    __device__ __forceinline__ bool taken(int parent, int token) const {
        bool found = false;
#pragma unroll
        for (int i = lane_id(); i < VALUE_NODES; i += WARP) {
            const Offer it = b.node[i];
            found |= (i > 0) & (i < n) & (it.parent() == parent) & (it.token == token);
        }
        return __any_sync(FULL_WARP, found);
    }
#endif

    // All threads of the block call.
    __device__ __forceinline__ void build(int budget) {
        const int warp = warp_id(), lane = lane_id(), most = min(budget, VALUE_NODES - 1);
#ifdef TEXT
        const bool copies = warp == LOOKS_UP || warp == LOOKS_UP_TOO;
        if (warp == KEEPS) begin_tails();
#endif
        state_candidates();
#ifndef TEXT
        if (warp != CHOOSES) return;  // the others have nothing to look up
#endif
        const Above root = {0, 0, 0, 0.0, 1.0};
        const Offer none = {};
        Found best = {NOTHING, 0};
        n = 1, size = 1 + TEXTUAL;
        if (warp == KEEPS && lane == 0) keep(root, {st->root, 0}, 0.0, 0);
        if (warp == CHOOSES) {
            offer(lane == 0 ? 0 : -1, 0, 0, root);
            __syncwarp();
            best = b.offers.best(1);
        }
#ifdef TEXT
        bool looks = depths > 0;
        if (threadIdx.x == 0) b.best[1] = best;
        if (copies && looks) copy(1, none, root, false, b.first, 1);
#endif
        for (int pops = 1; n <= most; ++pops) {
#ifdef TEXT
            __syncthreads();  // all offers are written, those from the text too
            Found newest = {NOTHING, 0};
            if (looks) newest = better_of(b.copy[pops % 2][0], b.copy[pops % 2][1]);
            best = better_of(b.best[pops % 2], newest);
#endif
            if (best.key == NOTHING) break;
            const int slot = best.slot;
            const Offer it = b.offer[slot];
            const int parent = it.parent();
            const bool from_text = it.rank() == COPIED;
            bool added = true;
#ifdef TEXT
            if (from_text || copying >> parent & 1) {
                added = !taken(parent, it.token);
                if (from_text && added) copied |= 1ull << n, copying |= 1ull << parent;
            }
#endif
            const bool ends = ends_answer(stop_id, it.token), below = added & !ends;
            // Below a spine node, a rank is offered when the one before it is taken. Below other nodes ranks 0 and 1
            // are offered together, so the next rank is offered from rank 1 on.
            const int off = from_text || it.off() || it.rank() ? min(it.off() + 1, 2) : 0;
            const bool sibling = !from_text && (off < 2 || it.rank() > 0);
            const int children = below ? off ? 2 : 1 : 0;
            Above node = {n, it.stated(), off, 0.0, b.offer_value[slot]};
#ifdef TEXT
            looks = below && it.depth() + 1 < depths;
#endif
            if (warp == CHOOSES) {
                // Loaded before the chances are computed, which takes longer.
                const double path = KEEPS == CHOOSES ? b.path[parent] : 0.0;
                const u64 mask = KEEPS == CHOOSES ? b.mask[parent] : 0;
                if (KEEPS == CHOOSES) node.log_prob = log_prob_of(it);
#ifdef TEXT
                if (lane == 0 && newest.key != NOTHING) b.offers.key[newest.slot] = newest.key;
#endif
                if (lane == 0) b.offers.key[slot] = NOTHING;
                expand(it, sibling, node, children);
                if (KEEPS == CHOOSES && lane == 0 && added) keep(node, it, path, mask);
                __syncwarp();
                best = b.offers.best(first_child(sibling) + children);
#ifdef TEXT
                if (lane == 0) b.best[(pops + 1) % 2] = best;
            } else if (warp == KEEPS) {
                node.log_prob = log_prob_of(it);
                if (lane == 0 && added) keep(node, it, b.path[parent], b.mask[parent]);
            } else if (looks) {
                const bool asks = from_text || it.off();
                const Successor found = asks ? Successor{} : b.found[it.depth()][it.rank()];
                copy(size + sibling, it, node, asks, found, (pops + 1) % 2);
#endif
            }
            size = first_child(sibling) + children;
            n += added;
        }
        if (warp == KEEPS) write();
    }
};
