// Turns of the threads of a block, each a fiber on one CPU thread: the switch, warps, and how a lane waits for its warp.
//
// All of it is inline. A lane goes on behind the call at which it waited, and a processor foresees a jump to there from
// the next such call; behind a function that switches stacks it would foresee the wrong return, every time.

#pragma once

#include <cstddef>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

struct uint3 { unsigned x, y, z; };
extern uint3 threadIdx;

namespace emulator {

#if defined(__x86_64__)
using Context = void*;  // a stack pointer: what a switch must keep lies on the stack
#if defined(__AVX512F__)
#define EMULATOR_WIDE                                                                                                 \
    "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",       \
        "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7",
#else
#define EMULATOR_WIDE
#endif
[[gnu::always_inline]] inline void switch_context(Context& from, Context& to) {
    Context *save = &from, next = to;
    asm volatile(
        "leaq -128(%%rsp), %%rsp\n\t"  // what the compiler keeps below the stack pointer
        "pushq %%rbp\n\t"
        "pushq %%rbx\n\t"
        "leaq 1f(%%rip), %%rax\n\t"
        "pushq %%rax\n\t"
        "movq %%rsp, (%%rdi)\n\t"
        "movq %%rsi, %%rsp\n\t"
        "popq %%rax\n\t"
        "jmp *%%rax\n"
        "1:\tpopq %%rbx\n\t"
        "popq %%rbp\n\t"
        "leaq 128(%%rsp), %%rsp"
        : "+D"(save), "+S"(next)
        :
        : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc", EMULATOR_WIDE
          "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
          "xmm13", "xmm14", "xmm15");
}
#undef EMULATOR_WIDE
#else
using Context = ucontext_t;
inline void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

// Arguments of one lane in a warp collective live on its own stack; `combine` sees those of all lanes in `mask`.
using Combine = void (*)(void* const* lanes, unsigned mask);

constexpr int BARRIERS = 16;  // of a block

struct Warp {
    unsigned exists = 0, runnable = 0, begun = 0, collecting = 0, at_barrier[BARRIERS] = {}, returned = 0;
    void* argument[32];
    unsigned mask[32];
    Combine combine[32];
    const char* name[32];
    int line[32];

    void begin(unsigned lanes) {  // what lanes of an earlier block wait for may stay: it is read of those that collect
        exists = runnable = lanes;
        begun = collecting = returned = 0;
        for (unsigned& at : at_barrier) at = 0;
    }
};

// Who runs: a lane of a warp, with the stacks and places of that warp's lanes.
struct Running {
    Warp* warp;
    Context* contexts;
    const uint3* places;
    int lane;
};
extern Running running;

void leave();  // to a thread of another warp, or out of the block: nobody of this warp can go on
void complete(unsigned mask, Combine combine, int line);
[[noreturn]] void fail(const char* message, int line);

// The thread that runs stands at a barrier, waits for its warp or has returned: the next one goes on, lanes of its warp
// first, in order.
[[gnu::always_inline]] inline void wait() {
    const unsigned runnable = running.warp->runnable;
    if (!runnable) return leave();
    const int lane = running.lane, next = __builtin_ctz(runnable);
    running.lane = next;
    threadIdx = running.places[next];
    switch_context(running.contexts[lane], running.contexts[next]);  // back here once someone picks this thread
}

[[gnu::always_inline]] inline void meet(unsigned mask, void* argument, Combine combine, const char* name, int line) {
    Warp& warp = *running.warp;
    const int lane = running.lane;
    const unsigned bit = 1u << lane;
    if (!(mask & bit)) fail("a lane calls a warp collective whose mask leaves it out", line);
    mask &= warp.exists;
    warp.argument[lane] = argument;
    warp.mask[lane] = mask;
    warp.combine[lane] = combine;
    warp.name[lane] = name;
    warp.line[lane] = line;
    warp.collecting |= bit;
    if ((warp.collecting & mask) == mask) return complete(mask, combine, line);
    warp.runnable &= ~bit;
    wait();
}

void collective_in_runtime(unsigned mask, void* argument, Combine combine, const char* name, int line);

// Without optimisation its instructions would be many, and slow: such kernels call the runtime's.
[[gnu::always_inline]] inline void collective(unsigned mask, void* argument, Combine combine, const char* name, int line) {
#ifdef __OPTIMIZE__
    meet(mask, argument, combine, name, line);
#else
    collective_in_runtime(mask, argument, combine, name, line);
#endif
}

}  // namespace emulator
