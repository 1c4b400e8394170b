// The order in which gdn_recurrence visits the nodes of a pass, once for all layers. Format: gdn_order.cuh.
//
// A pass visits its own nodes, and their ancestors from earlier passes. Bound by latency: every thread reads every
// node, one thread per node. Defines: those of gdn.cuh.

#include "gdn.cuh"
#include "gdn_order.cuh"

// grid 1, block MAX_NODES. rows: of the pass. order: u32 [ORDER_INTS].
extern "C" __global__ void __launch_bounds__(MAX_NODES, 1) gdn_order(
    const StepState* st, int node0, int rows, u32* order
) {
    __shared__ u64 ancestors[MAX_NODES][4];
    __shared__ int parents[MAX_NODES];
    __shared__ int weight[MAX_NODES];  // nodes of this pass below a node or at it; 0: it is not visited
    __shared__ int size[MAX_NODES];    // nodes visited below a node or at it
    __shared__ int ahead[MAX_NODES];   // visits from its parent's to its own
    __shared__ Turn turns[MAX_NODES];
    __shared__ u8 light[MAX_NODES];    // its parent's state is needed again after the nodes below it
    __shared__ u8 keeps[MAX_NODES];    // its own state is saved, for a second child with children
    const int node = threadIdx.x;
    pdl_launch();
    pdl_wait();
    const int end = node0 + live_rows(st, node0, rows);
    if (end <= node0) return;
    if (node < end) {
        parents[node] = st->parent[node];
#pragma unroll
        for (int word = 0; word < 4; word++) ancestors[node][word] = st->mask[node][word];
    }
    keeps[node] = 0;
    __syncthreads();
    auto below = [&](int other) { return int(ancestors[other][node / 64] >> node % 64 & 1); };

    int mine = 0;
    for (int other = node0; other < end; other++) mine += below(other);
    if (node >= end) mine = 0;
    weight[node] = mine;
    __syncthreads();
    int count = 0;
    for (int other = 0; other < end; other++) count += weight[other] ? below(other) : 0;
    size[node] = count;
    __syncthreads();

    const bool inner = mine && count > 1;
    bool earlier = false, later = false;  // whether siblings that change the state come before it, and after
    int steps = 1;
    for (int other = 0; mine && node > 0 && other < end; other++) {
        if (other == node || !weight[other] || parents[other] != parents[node]) continue;
        const bool other_inner = size[other] > 1;
        bool first = other < node;
        if (weight[other] != mine) first = weight[other] < mine;
        if (other_inner != inner) first = inner;
        if (first) steps += size[other];
        if (other_inner) (first ? earlier : later) = true;
    }
    ahead[node] = steps;
    light[node] = inner && later;
    if (inner && later) keeps[parents[node]] = 1;
    __syncthreads();

    int place = 0, level = 0;
    for (int at = node; mine && at > 0; at = parents[at]) place += ahead[at], level += light[at];
    if (mine) {
        const bool replay = node < node0;
        const u32 load = inner && earlier ? level - light[node] : Turn::NONE, keep = keeps[node] ? level : Turn::NONE;
        turns[place] = Turn::of(
            node, load, keep, replay ? Turn::REPLAY : inner ? Turn::INNER : Turn::LEAF, replay ? 0 : node - node0
        );
    }
    __syncthreads();  // all visits are in place; the root's `count` is their number
    const int visits = size[0];
    if (node < visits) {
        const Turn own = turns[node];
        order[node] = node == visits - 1 ? own.bits | Turn::LAST : own.before(turns[node + 1]).bits;
    }
    if (node < AHEAD) order[visits + node] = 0;
}
