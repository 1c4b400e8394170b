// The state of a speculative step on the device: every length, index and knob that a kernel reads.
// Grids are constant, as launches are recorded in graphs; kernels read their bounds here. The host reads this struct's
// fields from this file (backends/cuda/headers.py). All fields are 4 bytes wide except the masks and the seed, which come
// first.

#pragma once

#include "common.cuh"

constexpr int MAX_NODES = 256;   // nodes of a tree, the root included, over all passes
constexpr int MAX_DEPTH = 64;    // draft positions per block
constexpr int MAX_WIDTH = 8;     // candidates kept per draft position
constexpr int MAX_STOP_IDS = 16;
constexpr int HISTORY = 256;     // newest answer tokens that penalties count
constexpr int VALUE_CLASSES = 16, VALUE_FEATURES = 5;

// BROKEN: the target's logits were not finite.
enum Stop { RUNNING = 0, STOP_TOKEN = 1, MAX_TOKENS = 2, CONTEXT_FULL = 3, CANCELLED = 4, BROKEN = 5, HALTED = 6 };

struct StepState {
    u64 mask[MAX_NODES][4];      // each node's ancestors and itself, a bit per node
    u64 seed;

    // The sequence.
    int length;                  // committed positions: keys and values of [0, length) are final
    int root;                    // the newest token of the answer: drawn, not yet run
    int parity;                  // which half of a double buffer this step writes; a step that adds tokens flips it
    int pending;                 // accepted nodes of the last step that recurrent and conv states do not contain yet
    int draft_length;            // positions in the drafter's cache; [draft_length, length) are pending
    int stop;                    // enum Stop; once set, every later replay is a no-op
    int answered;                // tokens of the answer so far, the root included
    int steps;                   // steps since the turn began; accept writes ring slot steps % slots

    // The tree of this step. Node 0 is the root; parents come before children.
    int n;                       // live nodes, the root included: those that passes run
    int built;                   // nodes that were built, under by_value; the first n of them are live
    int token[MAX_NODES];
    int parent[MAX_NODES];
    int depth[MAX_NODES];
    float log_prob[MAX_NODES];   // the drafter's own log-probability of the node, 0 for the root
    float path_log_prob[MAX_NODES];
    float value[MAX_NODES];      // under by_value: the learned probability that the walk reaches a node
    int draw[MAX_NODES];         // the target's own token after each node
    int path[MAX_NODES];         // accepted nodes of this step, the root first
    int accepted;                // number of nodes in path
    int pending_path[MAX_NODES]; // accepted nodes of the last pass, the root first: see `pending`

    // Candidates of the drafter: depth d (0-based) and rank r, best first.
    int candidate[MAX_DEPTH][MAX_WIDTH];
    float candidate_log_prob[MAX_DEPTH][MAX_WIDTH];

    // Knobs of the turn; the host writes them before the first step, and between steps on request.
    int budget;                  // nodes below the root
    int draft_depth;             // draft positions used: block - 1, or 0 in plain decoding
    int width;                   // candidates used per position: 1 for a chain
    int chain_seed;
    int by_parent;               // candidates are scored given the token above them, where the drafter can
    int by_value;                // the tree is built by learned value: policy/best_first.py
    int rows;                    // under by_value: nodes that passes run, the root included
    float weights[VALUE_CLASSES][VALUE_FEATURES];  // of the logistic models, see policy/values.py
    int draft_window;            // 0: all of the context
    float log_p_min;             // -inf: off
    float inv_tree_temperature;
    float draft_noise;           // what drafts get of the draws' noise, see drafters/draw_noise.py; 0: none
    float temperature;           // 0: greedy
    int top_k;                   // 0: off
    float top_p;                 // 1: off
    float min_p;                 // 0: off
    float repetition_penalty;    // 1: off
    float frequency_penalty;     // 0: off
    float presence_penalty;      // 0: off
    int max_tokens;
    int halt_at;                 // 0: off. Tokens of the answer after which a guard halts it
    int context_length;
    int prompt_length;
    int stop_ids[MAX_STOP_IDS];  // padded with -1

    int history[HISTORY];        // the answer's last tokens: entry i % HISTORY is token i of the answer
};

// A field as soon as it may be known: the compiler would load it where it is first used. Never from a line of the L1 that
// was loaded with other fields before pdl_wait.
__device__ __forceinline__ int load_now(const int& value) { return *(const volatile int*)&value; }
