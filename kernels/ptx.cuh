// Every instruction that CUDA C++ cannot express. All inline PTX of the project is in this file; the emulator of the
// tests (tests/support/emulator/ptx.cuh) has the same names in plain C++.
//
// Fragments, with g = lane / 4 and t = lane % 4, for A (16 x K), B (K x 8) and C, D (16 x 8), as in the PTX ISA:
//   C, D: registers 0, 1 hold row g, columns 2t and 2t+1; registers 2, 3 the same of row g + 8.
//   A of 4-byte registers that hold p values each: register r holds row g + 8 * (r & 1), k = 4p * (r >> 1) + p*t ...
//   B: register r holds column g, k = 4p * r + p*t ...
// p is 4 for int8, 2 for f16 and bf16, 1 for tf32: one layout for all of them.
//
// mma_x(d, a, b) is d += a b; mma_x_zero(d, a, b) is d = a b, which costs no registers for the zeros.

#pragma once

#include <cuda_fp16.h>

// ---- Matrix instructions ------------------------------------------------------------------------------------------

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ void mma_s8_16832(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_s8_16832_zero(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}
// Unsigned bytes times signed ones.
__device__ __forceinline__ void mma_u8_16832(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_u8_16832_zero(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}
__device__ __forceinline__ void mma_s8_16816(int (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
__device__ __forceinline__ void mma_s8_16816_zero(int (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(0));
}
__device__ __forceinline__ void mma_f16_16816(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_bf16_16816(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_tf32_1688(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#else  // Turing: the same products from smaller instructions; bf16 and tf32 do not exist there

__device__ __forceinline__ void mma_s8_8816(int& d0, int& d1, unsigned a, unsigned b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(d0), "+r"(d1)
        : "r"(a), "r"(b));
}
__device__ __forceinline__ void mma_s8_16816(int (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
    mma_s8_8816(d[0], d[1], a[0], b[0]);
    mma_s8_8816(d[2], d[3], a[1], b[0]);
}
__device__ __forceinline__ void mma_s8_16816_zero(int (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
    d[0] = d[1] = d[2] = d[3] = 0;
    mma_s8_16816(d, a, b);
}
__device__ __forceinline__ void mma_s8_16832(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    mma_s8_16816(d, {a[0], a[1]}, {b[0]});
    mma_s8_16816(d, {a[2], a[3]}, {b[1]});
}
__device__ __forceinline__ void mma_s8_16832_zero(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    d[0] = d[1] = d[2] = d[3] = 0;
    mma_s8_16832(d, a, b);
}
__device__ __forceinline__ void mma_u8_8816(int& d0, int& d1, unsigned a, unsigned b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(d0), "+r"(d1)
        : "r"(a), "r"(b));
}
__device__ __forceinline__ void mma_u8_16832(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        mma_u8_8816(d[0], d[1], a[2 * h], b[h]);
        mma_u8_8816(d[2], d[3], a[2 * h + 1], b[h]);
    }
}
__device__ __forceinline__ void mma_u8_16832_zero(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    d[0] = d[1] = d[2] = d[3] = 0;
    mma_u8_16832(d, a, b);
}

#endif

__device__ __forceinline__ void mma_f16_1688(float (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
#if __CUDA_ARCH__ < 800
__device__ __forceinline__ void mma_f16_16816(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    mma_f16_1688(d, {a[0], a[1]}, {b[0]});
    mma_f16_1688(d, {a[2], a[3]}, {b[1]});
}
#endif

__device__ __forceinline__ void mma_f16_1688_zero(float (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    mma_f16_1688(d, a, b);
}
__device__ __forceinline__ void mma_f16_16816_zero(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    mma_f16_16816(d, a, b);
}

// The bits of `v` as tf32, rounded to nearest: what mma_tf32_1688 takes.
__device__ __forceinline__ unsigned tf32_bits(float v) {
    unsigned bits;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
#else
    bits = __float_as_uint(v);
#endif
    return bits;
}

// ---- 8 x 8 matrices of 16-bit values from shared memory: lane l gives the address of row l % 8 of matrix l / 8 -----

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(unsigned (&r)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(unsigned (&r)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}

// ---- Floats -------------------------------------------------------------------------------------------------------

// 2^x as exp2f has it, and 0 where that is below the normal range: one instruction, where exp2f scales by four.
__device__ __forceinline__ float exp2_or_zero(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- Integer ------------------------------------------------------------------------------------------------------

// c + the sum of four products of signed bytes.
__device__ __forceinline__ int dp4a(int a, int b, int c) {
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
    return c;
}
// c + the sum of two products: the signed halves of a, and bytes 0 and 1 of b, or with UPPER bytes 2 and 3.
template <bool UPPER> __device__ __forceinline__ int dp2a(unsigned a, unsigned b, int c) {
    if (UPPER) asm("dp2a.hi.s32.u32 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
    else asm("dp2a.lo.s32.u32 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
    return c;
}
// a * b + c as one instruction, also where the compiler would rather shift.
__device__ __forceinline__ unsigned multiply_add(unsigned a, unsigned b, unsigned c) {
    unsigned v;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
    return v;
}
// Byte `i` of a word, by the unit that multiplies.
__device__ __forceinline__ int byte_by_dot(unsigned word, int i, unsigned factor = 1) {
    unsigned v;
    asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(v) : "r"(word), "r"(factor << (8 * i)), "r"(0));
    return int(v);
}
// The upper half of a word, in the same way.
__device__ __forceinline__ unsigned upper_half_by_dot(unsigned word) {
    unsigned v;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(v) : "r"(word), "r"(0x0100u), "r"(0));
    return v;
}
// Any four of the eight bytes of b:a, one selector nibble each.
__device__ __forceinline__ unsigned prmt(unsigned a, unsigned b, unsigned selector) {
    unsigned r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}
// x with its origin hidden from the compiler, so that bits already extracted are not extracted again.
__device__ __forceinline__ unsigned opaque(unsigned x) {
    asm("" : "+r"(x));
    return x;
}
// Any function of three bits: `table` is that function of 0xF0, 0xCC, 0xAA.
template <unsigned table> __device__ __forceinline__ unsigned lop3(unsigned a, unsigned b, unsigned c) {
    unsigned r;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(a), "r"(b), "r"(c), "n"(table));
    return r;
}

// 16 or 32 bits of shared memory, `further` bytes after `base` and after the sum of the products of the unsigned bytes of
// `word` and `steps`: one instruction makes the address.
__device__ __forceinline__ unsigned look_up_address(const void* base, unsigned word, unsigned steps, unsigned further) {
    unsigned address = opaque(shared_address(base)) + further;
    asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(address) : "r"(word), "r"(steps));
    return address;
}
__device__ __forceinline__ unsigned look_up_shared2(const void* base, unsigned word, unsigned steps, unsigned further) {
    unsigned short v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(look_up_address(base, word, steps, further)) : "memory");
    return v;
}
__device__ __forceinline__ unsigned look_up_shared4(const void* base, unsigned word, unsigned steps, unsigned further) {
    unsigned v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(look_up_address(base, word, steps, further)) : "memory");
    return v;
}

// ---- Loads --------------------------------------------------------------------------------------------------------

// Weights are read once: past the L1. Volatile keeps them where they are written, ahead of the arithmetic.
__device__ __forceinline__ uint4 ldg_stream16(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
__device__ __forceinline__ uint2 ldg_stream8(const void* p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
__device__ __forceinline__ unsigned ldg_stream4(const void* p) {
    unsigned v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

// Past the L1, which may hold what was there before another kernel wrote it.
__device__ __forceinline__ float load_l2(const float* p) { return __ldcg(p); }

// Prefetches `bytes` of global memory into the L2; address and size are multiples of 16. One thread calls for all.
__device__ __forceinline__ void bulk_prefetch(const void* p, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#else
    for (int at = 0; at < bytes; at += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(p) + at));
#endif
}

// 16 bytes from global to shared memory, both 16-byte aligned; done after cp_async_wait and a barrier.
__device__ __forceinline__ void cp_async16(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
#else
    *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}
// The same, or zeros; `global` is not read where `valid` is false.
__device__ __forceinline__ void cp_async16_or_zero(void* shared, const void* global, bool valid) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
#else
    *static_cast<uint4*>(shared) = valid ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
#endif
}
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Wait until at most `pending` groups are under way.
template <int pending> __device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

// Loads before this are not put off until after it, as the compiler would to save registers.
__device__ __forceinline__ void issue_loads() { asm volatile("" ::: "memory"); }

// ---- Barriers of some warps of a block ---------------------------------------------------------------------------

// Like __syncthreads for `threads` threads, whole warps, that all name the same `id`, 1 to 15.
template <int id, int threads> __device__ __forceinline__ void warps_barrier() {
    static_assert(id > 0 && id < 16 && threads % 32 == 0, "barrier 0 is that of the whole block");
    asm volatile("bar.sync %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

// ---- Programmatic dependent launch (sm_90 and later; elsewhere kernels follow each other anyway) ----------------------

// The next kernel may be set up now; it still waits in pdl_wait for all of this one.
__device__ __forceinline__ void pdl_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until everything that earlier kernels wrote is visible.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- Clusters: blocks side by side that write to each other's shared memory (sm_90 and later only) ------------------

#if __CUDA_ARCH__ >= 900
// All threads of all blocks of the cluster arrive, then wait; writes before the arrival are visible after the wait.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Stores `v` at the address of `shared` in block `rank` of the cluster.
__device__ __forceinline__ void cluster_store(float* shared, int rank, float v) {
    asm volatile(
        "{ .reg .u32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.f32 [there], %2; }" ::"r"(
            shared_address(shared)
        ),
        "r"(rank), "f"(v)
        : "memory"
    );
}
#endif

// Nanoseconds, one clock for the whole device.
__device__ __forceinline__ unsigned long long global_timer() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
