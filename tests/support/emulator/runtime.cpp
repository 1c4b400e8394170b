// The emulator's scheduler: fibers, barriers, warp collectives, guarded memory, and a report for every way to go wrong.

#include "emulator.h"
#include "matrices.h"

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <cwchar>
#include <map>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
emulator::Running emulator::running;

extern "C" void emulator_fiber();

namespace {

constexpr std::size_t STACK = 256 << 10;  // reserved per fiber; only touched pages exist
constexpr std::size_t PAGE = 4096, GUARD = 16 << 20;
// Stacks of neighbours begin this much apart within a page: at the same place all would share a few lines of the cache.
constexpr std::size_t STAGGER = 15 * 64, STAGGERED = 16;
constexpr unsigned POISON = 0x7fffffffu;  // NaN as float and as two halves, far out of range as an index

// ------------------------------------------------------------------------------------------------ context switch

using emulator::Context;
using emulator::running;
using emulator::switch_context;
using emulator::Warp;

#if defined(__x86_64__)
// Begins a fiber below the words that make_context wrote, so that a stack serves every block as it is.
[[gnu::naked]] void begin() { asm("subq $24, %rsp\n\tcall emulator_fiber@PLT"); }

void make_context(Context& context, unsigned char* stack) {
    auto** top = reinterpret_cast<void**>(stack + STACK);
    *--top = nullptr;                         // keeps the stack aligned as after a call
    *--top = reinterpret_cast<void*>(begin);  // where the first switch goes
    context = top;
}
#else
void make_context(Context& context, unsigned char* stack) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, emulator_fiber, 0);
}
#endif

// ------------------------------------------------------------------------------------------------ state

struct Launch {
    std::vector<Context> contexts, fresh;  // of the block's threads; how each begins, by stack
    std::vector<uint3> places;  // threadIdx of each
    std::vector<Warp> warps;
    unsigned char* stacks = nullptr;
    std::size_t stack_count = 0;
    Context host;
    int threads = 0, live = 0, count = 0, result = 0;
    int expected = 0;      // threads that the next barrier of the whole block waits for
    bool has_met = false;  // whether the block has been at one
    struct Barrier { int waiting = 0, threads = 0, line = 0; } barriers[emulator::BARRIERS];
    emulator::Entry entry;
    void** values = nullptr;
    std::map<std::size_t, unsigned char*> dynamics;  // by size: each ends at an unmapped page
    unsigned char* dynamic = nullptr;
    bool running = false;
    char message[512];
    sigjmp_buf escape;
} launch;

struct Allocation { unsigned char *map, *data; std::size_t map_bytes, bytes; };
std::map<std::uintptr_t, Allocation> allocations;

std::size_t up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

void set_warp(std::size_t index) {
    running.warp = &launch.warps[index];
    running.contexts = &launch.contexts[index * 32];
    running.places = &launch.places[index * 32];
    running.lane = __builtin_ctz(running.warp->runnable);
    threadIdx = running.places[running.lane];
}

void say_where(char* out, std::size_t size) {
    snprintf(out, size, "block (%u, %u, %u) thread (%u, %u, %u)", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
             threadIdx.y, threadIdx.z);
}

// Leave the fibers where they are and end the launch with a message.
[[noreturn]] void abandon() {
    launch.running = false;
    siglongjmp(launch.escape, 1);
}

// Who waits where, when nobody can go on.
[[noreturn]] void deadlock() {
    char* at = launch.message;
    char* const end = launch.message + sizeof launch.message;
    at += snprintf(at, std::size_t(end - at), "block (%u, %u, %u): divergent ", blockIdx.x, blockIdx.y, blockIdx.z);
    bool barred = false;
    for (const auto& barrier : launch.barriers) {
        if (!barrier.waiting) continue;
        at += snprintf(at, std::size_t(end - at), "%s, %d of %d threads are at %s in line %d", barred ? "" : "barrier",
                       barrier.waiting, barrier.threads,
                       &barrier == launch.barriers ? "__syncthreads" : "warps_barrier", barrier.line);
        barred = true;
    }
    if (!barred) at += snprintf(at, std::size_t(end - at), "warp collective");
    for (std::size_t w = 0; w < launch.warps.size() && at < end - 120; ++w) {
        const Warp& warp = launch.warps[w];
        if (!warp.collecting) continue;
        const int lane = __builtin_ctz(warp.collecting);
        at += snprintf(at, std::size_t(end - at), "; warp %zu lanes %08x wait at %s in line %d for mask %08x", w,
                       warp.collecting, warp.name[lane], warp.line[lane], warp.mask[lane]);
    }
    if (launch.live < launch.threads && at < end - 60) {
        snprintf(at, std::size_t(end - at), "; %d threads have returned", launch.threads - launch.live);
    }
    abandon();
}

void pass_barrier(int id) {
    launch.barriers[id].waiting = 0;
    if (id == 0) {
        launch.has_met = true;
        launch.result = launch.count;
        launch.count = 0;
    }
    for (Warp& warp : launch.warps) {
        warp.runnable |= warp.at_barrier[id];
        warp.at_barrier[id] = 0;
    }
}

// The next warp in turn with a thread that can go on. False where nobody can.
bool next_warp() {
    const std::size_t count = launch.warps.size(), mine = std::size_t(running.warp - launch.warps.data());
    for (std::size_t i = 1; i < count; ++i) {
        const std::size_t other = mine + i < count ? mine + i : mine + i - count;
        if (!launch.warps[other].runnable) continue;
        set_warp(other);
        return true;
    }
    return false;
}

// ------------------------------------------------------------------------------------------------ signals

void on_signal(int number, siginfo_t* info, void*) {
    if (!launch.running) {  // not ours: die as without a handler
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    char where[96];
    say_where(where, sizeof where);
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    const char* what = number == SIGFPE    ? "integer division by zero"
                       : number == SIGALRM ? "still running after two minutes"
                                           : "access outside every array";
    int length = snprintf(launch.message, sizeof launch.message, "%s: %s", where, what);
    if (number == SIGSEGV || number == SIGBUS) {
        for (const auto& [key, array] : allocations) {
            if (address < key - GUARD || address >= key + array.bytes + GUARD) continue;
            const long long offset = (long long)address - (long long)key;
            length += snprintf(launch.message + length, sizeof launch.message - std::size_t(length),
                               "; byte %lld of an array of %zu bytes", offset, array.bytes);
        }
        const auto stacks = reinterpret_cast<std::uintptr_t>(launch.stacks);
        if (address >= stacks && address < stacks + launch.stack_count * (STACK + PAGE)) {
            snprintf(launch.message + length, sizeof launch.message - std::size_t(length), "; its stack overflowed");
        }
    }
    abandon();
}

struct Handlers {
    static constexpr int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGALRM};
    struct sigaction old[4];
    stack_t old_stack;
    Handlers() {
        static unsigned char* const alternate = static_cast<unsigned char*>(
            mmap(nullptr, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        stack_t stack{alternate, 0, 64 << 10};
        sigaltstack(&stack, &old_stack);
        struct sigaction action {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        for (int i = 0; i < 4; ++i) sigaction(numbers[i], &action, &old[i]);
        alarm(120);
    }
    ~Handlers() {
        alarm(0);
        for (int i = 0; i < 4; ++i) sigaction(numbers[i], &old[i], nullptr);
        sigaltstack(&old_stack, nullptr);
    }
};

void need_stacks(std::size_t count) {
    if (count <= launch.stack_count) return;
    if (launch.stacks) munmap(launch.stacks, launch.stack_count * (STACK + PAGE));
    launch.stacks = static_cast<unsigned char*>(mmap(nullptr, count * (STACK + PAGE), PROT_READ | PROT_WRITE,
                                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    launch.fresh.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
        unsigned char* const stack = launch.stacks + i * (STACK + PAGE);
        mprotect(stack, PAGE, PROT_NONE);
        make_context(launch.fresh[i], stack + PAGE - i % STAGGERED * STAGGER);
    }
    launch.stack_count = count;
}

void poison(unsigned char* begin, unsigned char* end) {
    static_assert(sizeof(wchar_t) == sizeof POISON);
    const std::size_t count = std::size_t(end - begin) / sizeof POISON;
    wmemset(reinterpret_cast<wchar_t*>(begin), wchar_t(POISON), count);
    begin += sizeof POISON * count;
    for (; begin < end; ++begin) *begin = 0xff;
}

void run_block() {
    const int last = launch.threads % 32;
    for (Warp& warp : launch.warps) warp.begin(~0u);
    if (last) launch.warps.back().begin((1u << last) - 1);
    std::copy_n(launch.fresh.begin(), launch.threads, launch.contexts.begin());
    launch.live = launch.threads;
    for (auto& barrier : launch.barriers) barrier = {};
    launch.count = 0;
    launch.expected = launch.threads;
    launch.has_met = false;
    set_warp(0);
    switch_context(launch.host, launch.contexts[0]);
}

}  // namespace

// Runs a thread, and on the same stack those after it that have not begun either: where none of a block waits, one stack
// stays in the cache in place of hundreds that are fetched.
extern "C" void emulator_fiber() {
    for (;;) {
        running.warp->begun |= 1u << running.lane;
        launch.entry.call(launch.values);
        Warp& warp = *running.warp;
        Context& mine = running.contexts[running.lane];
        warp.runnable &= ~(1u << running.lane);
        warp.returned |= 1u << running.lane;
        --launch.live;
        // Barriers do not wait for threads that have returned. Here that goes for a whole warp that has been at one: any
        // other is a mistake more likely than not.
        if (warp.returned == warp.exists && launch.has_met) {
            auto& whole = launch.barriers[0];
            whole.threads = launch.expected -= __builtin_popcount(warp.exists);
            if (whole.waiting && whole.waiting == launch.expected) pass_barrier(0);
        }
        if (warp.runnable) {
            running.lane = __builtin_ctz(warp.runnable);
            threadIdx = running.places[running.lane];
        } else if (!next_warp()) {
            if (launch.live) deadlock();
            switch_context(mine, launch.host);
        }
        if (running.warp->begun >> running.lane & 1) switch_context(mine, running.contexts[running.lane]);
    }
}

// ---------------------------------------------------------------------------------------------------- for kernels

namespace emulator {

void fail(const char* message, int line) {
    char where[96];
    say_where(where, sizeof where);
    snprintf(launch.message, sizeof launch.message, line ? "%s: %s in line %d" : "%s: %s", where, message, line);
    abandon();
}

void barrier(int line, int id, int threads) {
    auto& own = launch.barriers[id];
    if (own.waiting && (own.line != line || own.threads != threads)) {
        char text[128];
        snprintf(text, sizeof text, "divergent barrier: other threads are at __syncthreads in line %d, this one",
                 own.line);
        fail(text, line);
    }
    own.line = line;
    own.threads = threads;
    if (++own.waiting < threads) {
        const unsigned bit = 1u << running.lane;
        running.warp->at_barrier[id] |= bit;
        running.warp->runnable &= ~bit;
        wait();
        return;
    }
    pass_barrier(id);
}

void barrier(int line) { barrier(line, 0, launch.expected); }

int barrier_count(int predicate, int line) {
    launch.count += predicate != 0;
    barrier(line);
    return launch.result;
}

void leave() {
    Context& from = running.contexts[running.lane];
    if (!next_warp()) deadlock();
    switch_context(from, running.contexts[running.lane]);
}

void complete(unsigned mask, Combine combine, int line) {
    Warp& warp = *running.warp;
    unsigned differ = 0;
    for (int other = 0; other < 32; ++other) {
        const bool same = warp.mask[other] == mask && warp.combine[other] == combine && warp.line[other] == line;
        differ |= unsigned(!same) << other;
    }
    if (differ & mask) {
        const int other = __builtin_ctz(differ & mask);
        char text[160];
        snprintf(text, sizeof text, "divergent collective: lane %d waits at %s in line %d, this one", other,
                 warp.name[other], warp.line[other]);
        fail(text, line);
    }
    combine(warp.argument, mask);
    warp.collecting &= ~mask;
    warp.runnable |= mask;
}

void collective_in_runtime(unsigned mask, void* argument, Combine combine, const char* name, int line) {
    meet(mask, argument, combine, name, line);
}

void ballot(void* const* lanes, unsigned mask) {
    unsigned result = 0;
    for (unsigned m = mask; m; m &= m - 1) {
        const int lane = __builtin_ctz(m);
        result |= unsigned(static_cast<Vote*>(lanes[lane])->predicate != 0) << lane;
    }
    for (unsigned m = mask; m; m &= m - 1) static_cast<Vote*>(lanes[__builtin_ctz(m)])->result = result;
}

void any(void* const* lanes, unsigned mask) {
    ballot(lanes, mask);
    for (unsigned m = mask; m; m &= m - 1) {
        auto& result = static_cast<Vote*>(lanes[__builtin_ctz(m)])->result;
        result = result != 0;
    }
}

void all(void* const* lanes, unsigned mask) {
    ballot(lanes, mask);
    for (unsigned m = mask; m; m &= m - 1) {
        auto& result = static_cast<Vote*>(lanes[__builtin_ctz(m)])->result;
        result = result == mask;
    }
}

unsigned char* dynamic_shared() { return launch.dynamic; }

unsigned long long global_timer() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}

}  // namespace emulator

// ---------------------------------------------------------------------------------------------------- for Python

extern "C" {

// Memory that ends (rounded up to 16 bytes) where a wide stretch without any memory begins, with another one in front
// of its first page. The rest of that page is poison.
void* emulator_alloc(std::size_t bytes) {
    const std::size_t body = up(bytes ? bytes : 16, PAGE), total = body + 2 * GUARD;
    auto* map = static_cast<unsigned char*>(
        mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (map == MAP_FAILED || mprotect(map + GUARD, body, PROT_READ | PROT_WRITE) != 0) return nullptr;
    poison(map + GUARD, map + GUARD + body);
    unsigned char* data = map + GUARD + body - up(bytes, 16);
    allocations[reinterpret_cast<std::uintptr_t>(data)] = {map, data, total, bytes};
    return data;
}

// Whether something was written beside the array inside its own pages.
int emulator_intact(void* data) {
    const Allocation& array = allocations.at(reinterpret_cast<std::uintptr_t>(data));
    for (auto* p = array.map + GUARD; p + 4 <= array.data; p += 4) {
        if (memcmp(p, &POISON, 4) != 0) return 0;
    }
    unsigned char pattern[4];
    memcpy(pattern, &POISON, 4);
    for (std::size_t i = array.bytes; i < up(array.bytes, 16); ++i) {
        if (array.data[i] != pattern[i % 4]) return 0;
    }
    return 1;
}

void emulator_free(void* data) {
    const auto found = allocations.find(reinterpret_cast<std::uintptr_t>(data));
    if (found == allocations.end()) return;
    munmap(found->second.map, found->second.map_bytes);
    allocations.erase(found);
}

void need_dynamic(std::size_t bytes) {
    unsigned char*& memory = launch.dynamics[bytes];
    if (!memory) memory = static_cast<unsigned char*>(emulator_alloc(bytes));
    launch.dynamic = memory;
}

// Run a kernel. Returns null, or what went wrong, in words.
const char* emulator_launch(emulator::Entry (*describe)(), const unsigned* grid, const unsigned* block,
                            std::size_t shared_bytes, void** values) {
    launch.entry = describe();
    launch.values = values;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    launch.threads = int(block[0] * block[1] * block[2]);
    if (launch.threads < 1 || launch.threads > 1024) return "a block has 1 to 1024 threads";
    need_stacks(std::size_t(launch.threads));
    launch.contexts.resize(std::size_t(launch.threads));
    launch.warps.resize(up(std::size_t(launch.threads), 32) / 32);
    launch.places.clear();
    for (unsigned z = 0; z < blockDim.z; ++z) {
        for (unsigned y = 0; y < blockDim.y; ++y) {
            for (unsigned x = 0; x < blockDim.x; ++x) launch.places.push_back({x, y, z});
        }
    }
    need_dynamic(up(shared_bytes, 128));
    const char* volatile failure = nullptr;
    {
        Handlers handlers;
        if (sigsetjmp(launch.escape, 1) == 0) {
            launch.running = true;
            for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
                for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
                    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
                        poison(launch.entry.shared_begin, launch.entry.shared_end);
                        poison(launch.dynamic, launch.dynamic + up(shared_bytes, 128));
                        run_block();
                    }
                }
            }
        } else {
            failure = launch.message;
        }
        launch.running = false;
    }
    return failure;
}

int emulator_parameter_count(emulator::Entry (*describe)()) { return describe().count; }
int emulator_parameter_size(emulator::Entry (*describe)(), int index) { return describe().sizes[index]; }
}
