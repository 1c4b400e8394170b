// Accepts part of a tree: the walk, the stops, the state of the next step, and the report to the host.
//
//   accept     one block, a thread per node, which loads all that it needs at once. The first warp follows the draws
//              from the root (tree.walk is the twin), cuts the answer at a stop as Decoder does, and updates StepState;
//              all threads fill the ring slot. Once st->stop is set it changes nothing but `accepted`, which becomes 0:
//              nothing of that replay is committed.
//   kv_commit  moves the accepted nodes' rows to where a sequence would have them.
//
// Bound by latency: trips to the L2, a read of the flag and a fence across the bus; the slot crosses it as posted
// writes. On an H100: 2 us in a plain step, 3 to 4 us in a tree step.

#include "ring.cuh"

constexpr int ACCEPT_THREADS = MAX_NODES;

// The tree as the walk reads it.
struct Walk {
    int parent[MAX_NODES], token[MAX_NODES], draw[MAX_NODES];
    int path[MAX_NODES], tokens[MAX_NODES + 1];  // the walk's nodes, the root first, and the token after each

    // The next node after `at` (the `taken`-th below the root), or -1 where the walk ends. All lanes of a warp agree.
    // `forced`, if not null, replaces the target's choice: a count, and that many nodes below the root, which the
    // walk takes while they are in the tree and follow each other.
    __device__ __forceinline__ int next(int at, int taken, int n, const int* forced) const {
        if (forced) {
            if (taken >= forced[0]) return -1;
            const int node = forced[1 + taken];
            return node > at && node < n && parent[node] == at ? node : -1;
        }
        for (int first = at / WARP * WARP; first < n; first += WARP) {
            const int node = first + lane_id();
            const bool child = node > at && node < n && parent[node] == at && token[node] == draw[at];
            const u32 found = __ballot_sync(FULL_WARP, child);
            if (found) return first + __ffs(int(found)) - 1;
        }
        return -1;
    }
};

// `trace` (null: off) is `bench --accept-trace`: [trace_steps][1 + MAX_DEPTH], step s taking row s % trace_steps.
// `cancel` is pinned host memory. `ring` too, of `slots` slots.
extern "C" __global__ void __launch_bounds__(ACCEPT_THREADS) accept(
    StepState* st, RingSlot* ring, int slots, const int* cancel, const int* trace, int trace_steps, u64* stamps
) {
    __shared__ Walk walk;
    pdl_launch();
    pdl_wait();
    const u64 began = global_timer();
    const int mine = threadIdx.x, lane = lane_id();
    int cancelled = 0;
    if (mine < WARP) cancelled = *static_cast<const volatile int*>(cancel);  // first, as it crosses the bus
    const int stopped = st->stop, n = st->n, step = st->steps, length = st->length, answered = st->answered;
    const int by_value = st->by_value, built = by_value ? st->built : 0;
    const int draft_depth = st->draft_depth, width = st->width;
    const int max_tokens = st->max_tokens, halt_at = st->halt_at;
    const int prompt_length = st->prompt_length, context_length = st->context_length;
    const int stop_id = st->stop_ids[lane % MAX_STOP_IDS], parity = st->parity;
    const u64 stage = lane < STAMPS ? stamps[lane] : 0;
    // Entries past the last node hold arbitrary data, which nothing reads.
    const int token = st->token[mine], parent = st->parent[mine], draw = st->draw[mine], depth = st->depth[mine];
    const float log_prob = st->log_prob[mine], path_log_prob = st->path_log_prob[mine], value = st->value[mine];
    if (stopped) {
        if (mine == 0) st->accepted = 0;
        return;
    }
    walk.token[mine] = token, walk.parent[mine] = parent, walk.draw[mine] = draw;
    __syncthreads();

    RingSlot* const slot = ring + step % slots;
    if (mine < n) {
        slot->tree_token[mine] = token;
        slot->tree_parent[mine] = parent;
        slot->tree_depth[mine] = depth;
        slot->tree_log_prob[mine] = log_prob;
        slot->tree_path_log_prob[mine] = path_log_prob;
    }
    if (mine < built) slot->tree_value[mine] = value;
    for (int i = mine; i < draft_depth * MAX_WIDTH; i += ACCEPT_THREADS) {
        (&slot->candidate[0][0])[i] = (&st->candidate[0][0])[i];
        (&slot->candidate_log_prob[0][0])[i] = (&st->candidate_log_prob[0][0])[i];
    }
    if (warp_id() == 0) {
        const int* const forced = trace ? trace + step % trace_steps * (1 + MAX_DEPTH) : nullptr;
        int walked = 1, at = 0;
        if (lane == 0) walk.path[0] = 0;
        for (int node; (node = walk.next(at, walked - 1, n, forced)) >= 0; ++walked) {
            at = node;
            if (lane == 0) walk.path[walked] = node, walk.tokens[walked - 1] = walk.token[node];
        }
        const int bonus = walk.draw[at];
        if (lane == 0) walk.tokens[walked - 1] = bonus;
        __syncwarp();

        // Cut at the first stop. The stop token itself is kept.
        int kept = 0, stop = RUNNING;
        while (stop == RUNNING && kept < walked) {
            const int next = walk.tokens[kept++], count = answered + kept;
            if (next < 0) stop = BROKEN;
            else if (__any_sync(FULL_WARP, stop_id == next)) stop = STOP_TOKEN;
            else if (count >= max_tokens) stop = MAX_TOKENS;
            else if (prompt_length + count >= context_length) stop = CONTEXT_FULL;
            else if (halt_at > 0 && count >= halt_at) stop = HALTED;
        }
        if (stop == RUNNING && __any_sync(FULL_WARP, cancelled)) stop = CANCELLED;
        // A draw from non-finite numbers is invalid, and so may be the whole pass: nothing of it is kept.
        const int added = stop == BROKEN ? 0 : kept;

        for (int i = lane; i < walked; i += WARP) slot->path[i] = walk.path[i];
        for (int i = lane; i < added; i += WARP) {
            slot->token[i] = walk.tokens[i];
            st->path[i] = walk.path[i];
            st->pending_path[i] = walk.path[i];
            st->history[(answered + i) % HISTORY] = walk.tokens[i];
        }
        const u64 ended = global_timer();
        if (lane < STAMPS) slot->stamp[lane] = lane == ACCEPT_BEGIN ? began : lane == ACCEPT_END ? ended : stage;
        if (lane == 0) {
            stamps[ACCEPT_BEGIN] = began;
            stamps[ACCEPT_END] = ended;
            st->accepted = added;
            if (added) {
                if (draft_depth > 0) st->draft_length = length;
                st->length = length + added;
                st->root = walk.tokens[added - 1];
                st->answered = answered + added;
                st->parity = parity ^ 1;
            }
            st->pending = added;  // none where the pass is dropped: it has already committed what was pending before it
            st->steps = step + 1;
            st->stop = stop;
            slot->stop = stop;
            slot->length = length + added;
            slot->answered = answered + added;
            slot->tokens = added;
            slot->accepted = walked;
            slot->bonus = bonus;
            slot->n = n;
            slot->by_value = by_value;
            slot->built = built;
            slot->draft_depth = draft_depth;
            slot->width = width;
        }
    }
    __syncthreads();
    if (mine == 0) {
        __threadfence_system();  // after the barrier: it orders what all threads have written
        *static_cast<volatile int*>(&slot->ready) = step + 1;
    }
}

// Rows of 16-byte chunks. A stream is one [slot][chunks] array, such as the keys of one head of one layer; one block
// moves one stream, a thread one chunk of every row. Node i has been in slot length + i so far. Node numbers
// grow along the path, so in that order each row is read before it is overwritten; READ rows are read ahead. With
// KV_RING (kv.cuh) slots are counted modulo `slots`.
#ifdef KV_RING
#define RING_PARAMETER , int slots
#else
#define RING_PARAMETER
#endif
extern "C" __global__ void kv_commit(const StepState* st, const u64* streams, int chunks, u64* stamps RING_PARAMETER) {
    constexpr int READ = 8;
    pdl_launch();
    pdl_wait();
    const int accepted = st->accepted, length = st->length - accepted;
#ifdef KV_RING
    uint4* const rows = reinterpret_cast<uint4*>(streams[blockIdx.x]);
    const auto row = [&](int node) { return u64(u32(length + node) % u32(slots)) * chunks; };
#else
    uint4* const rows = reinterpret_cast<uint4*>(streams[blockIdx.x]) + u64(length) * chunks;
    const auto row = [&](int node) { return node * chunks; };
#endif
    for (int chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
        for (int first = 1; first < accepted; first += READ) {
            uint4 buffer[READ];
#pragma unroll
            for (int i = 0; i < READ; ++i) {
                if (first + i < accepted) buffer[i] = rows[row(st->path[first + i]) + chunk];
            }
#pragma unroll
            for (int i = 0; i < READ; ++i) {
                if (first + i < accepted) rows[row(first + i) + chunk] = buffer[i];
            }
        }
    }
    if (accepted) stamp(stamps, COMMIT_END);
}
