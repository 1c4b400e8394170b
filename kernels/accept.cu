// Accepts part of a tree: the walk, the stops, the state of the next step, and the report to the host.
//
//   accept     one warp. Follows st->draw from the root (tree.walk is the twin), cuts the answer at a stop as
//              Decoder does, updates StepState and fills the ring slot. Once st->stop is set it changes nothing but
//              `accepted`, which becomes 0: nothing of that replay is committed.
//   kv_commit  moves the accepted nodes' rows to where a sequence would have them.
//
// Bound by latency; the slot crosses the bus as posted writes. On an H200: 5 us in a plain step, 10 to 14 us in a tree
// step.

#include "ring.cuh"

// The next node of the walk after `at` (the `taken`-th below the root), or -1 where it ends. All lanes agree.
// `forced`, if not null, replaces the target's choice: a count, and that many nodes below the root, which the
// walk takes while they are in the tree and follow each other.
__device__ __forceinline__ int next_node(const StepState* st, int at, int taken, int n, const int* forced) {
    if (forced) {
        if (taken >= forced[0]) return -1;
        const int node = forced[1 + taken];
        return node > at && node < n && st->parent[node] == at ? node : -1;
    }
    const int token = st->draw[at];
    for (int first = at / WARP * WARP; first < n; first += WARP) {
        const int node = first + lane_id();
        const bool child = node > at && node < n && st->parent[node] == at && st->token[node] == token;
        const u32 found = __ballot_sync(FULL_WARP, child);
        if (found) return first + __ffs(int(found)) - 1;
    }
    return -1;
}

// Copy the live part of an array to the slot.
template <class T> __device__ __forceinline__ void report(T* to, const T* from, int count) {
    for (int i = lane_id(); i < count; i += WARP) to[i] = from[i];
}

// `trace` (null: off) is `bench --accept-trace`: [trace_steps][1 + MAX_DEPTH], step s taking row s % trace_steps.
// `cancel` is pinned host memory. `ring` too, of `slots` slots.
extern "C" __global__ void __launch_bounds__(32) accept(
    StepState* st, RingSlot* ring, int slots, const int* cancel, const int* trace, int trace_steps, u64* stamps
) {
    __shared__ int path[MAX_NODES], tokens[MAX_NODES + 1];
    pdl_launch();
    pdl_wait();
    const int lane = lane_id();
    if (st->stop) {
        if (lane == 0) st->accepted = 0;
        return;
    }
    stamp(stamps, ACCEPT_BEGIN);
    const int cancelled = *static_cast<const volatile int*>(cancel);  // read early: it crosses the bus
    const int n = st->n, step = st->steps, length = st->length, answered = st->answered;
    const int* const forced = trace ? trace + step % trace_steps * (1 + MAX_DEPTH) : nullptr;

    // The walk: path[0..walked) are nodes, the root first; the token after each is that of the next node; the last is
    // drawn.
    int walked = 1, at = 0;
    if (lane == 0) path[0] = 0;
    for (int node; (node = next_node(st, at, walked - 1, n, forced)) >= 0; ++walked) {
        at = node;
        if (lane == 0) path[walked] = node, tokens[walked - 1] = st->token[node];
    }
    const int bonus = st->draw[at];
    if (lane == 0) tokens[walked - 1] = bonus;
    __syncwarp();

    // Cut at the first stop. The stop token itself is kept.
    int kept = 0, stop = RUNNING;
    while (stop == RUNNING && kept < walked) {
        const int token = tokens[kept++], count = answered + kept;
        const bool ends = lane < MAX_STOP_IDS && st->stop_ids[lane % MAX_STOP_IDS] == token && token >= 0;
        if (token < 0) stop = BROKEN;
        else if (__any_sync(FULL_WARP, ends)) stop = STOP_TOKEN;
        else if (count >= st->max_tokens) stop = MAX_TOKENS;
        else if (st->prompt_length + count >= st->context_length) stop = CONTEXT_FULL;
    }
    if (stop == RUNNING && __any_sync(FULL_WARP, cancelled)) stop = CANCELLED;
    // A draw from non-finite numbers is invalid, and so may be the whole pass: nothing of it is kept.
    const int added = stop == BROKEN ? 0 : kept;

    RingSlot* const slot = ring + step % slots;
    report(slot->token, tokens, added);
    report(slot->path, path, walked);
    report(slot->tree_token, st->token, n);
    report(slot->tree_parent, st->parent, n);
    report(slot->tree_depth, st->depth, n);
    report(slot->tree_log_prob, st->log_prob, n);
    report(slot->tree_path_log_prob, st->path_log_prob, n);
    const int built = st->by_value ? st->built : 0;
    report(slot->tree_value, st->value, built);
    report(&slot->candidate[0][0], &st->candidate[0][0], st->draft_depth * MAX_WIDTH);
    report(&slot->candidate_log_prob[0][0], &st->candidate_log_prob[0][0], st->draft_depth * MAX_WIDTH);

    for (int i = lane; i < added; i += WARP) {
        st->path[i] = path[i];
        st->pending_path[i] = path[i];
        st->history[(answered + i) % HISTORY] = tokens[i];
    }
    __syncwarp();
    if (lane == 0) {
        st->accepted = added;
        if (added) {
            if (st->draft_depth > 0) st->draft_length = length;
            st->length = length + added;
            st->root = tokens[added - 1];
            st->answered = answered + added;
            st->parity ^= 1;
        }
        st->pending = added;  // none where the pass is dropped: it has already committed what was pending before it
        st->steps = step + 1;
        st->stop = stop;
        stamps[ACCEPT_END] = global_timer();
        for (int i = 0; i < STAMPS; ++i) slot->stamp[i] = stamps[i];
        slot->stop = stop;
        slot->length = length + added;
        slot->answered = answered + added;
        slot->tokens = added;
        slot->accepted = walked;
        slot->bonus = bonus;
        slot->n = n;
        slot->by_value = st->by_value;
        slot->built = built;
        slot->draft_depth = st->draft_depth;
        slot->width = st->width;
    }
    __threadfence_system();
    __syncwarp();
    if (lane == 0) *static_cast<volatile int*>(&slot->ready) = step + 1;
}

// Rows of 16-byte chunks. A stream is one [slot][chunks] array, such as the keys of one head of one layer; one block
// moves one stream, a thread one chunk of every row. Node i has been in slot length + i so far. Node numbers
// grow along the path, so in that order each row is read before it is overwritten; READ rows are read ahead.
extern "C" __global__ void kv_commit(const StepState* st, const u64* streams, int chunks, u64* stamps) {
    constexpr int READ = 8;
    pdl_launch();
    pdl_wait();
    const int accepted = st->accepted, length = st->length - accepted;
    uint4* const rows = reinterpret_cast<uint4*>(streams[blockIdx.x]) + u64(length) * chunks;
    for (int chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
        for (int first = 1; first < accepted; first += READ) {
            uint4 held[READ];
#pragma unroll
            for (int i = 0; i < READ; ++i) {
                if (first + i < accepted) held[i] = rows[st->path[first + i] * chunks + chunk];
            }
#pragma unroll
            for (int i = 0; i < READ; ++i) {
                if (first + i < accepted) rows[(first + i) * chunks + chunk] = held[i];
            }
        }
    }
    if (accepted) stamp(stamps, COMMIT_END);
}
