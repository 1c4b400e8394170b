// One kernel per primitive of common.cuh and ptx.cuh, for test_primitives.py: what a register holds goes in and out.

#include "common.cuh"

// Fragments in [lane][register], result in [lane][4].
#define MMA_KERNEL(name, D, RA, RB)                                                                                   \
    extern "C" __global__ void name##_kernel(D* out, const u32* a_in, const u32* b_in, int zero) {                    \
        u32 a[RA], b[RB];                                                                                             \
        D d[4];                                                                                                       \
        const int lane = threadIdx.x;                                                                                 \
        for (int i = 0; i < RA; ++i) a[i] = a_in[lane * RA + i];                                                      \
        for (int i = 0; i < RB; ++i) b[i] = b_in[lane * RB + i];                                                      \
        for (int i = 0; i < 4; ++i) d[i] = out[lane * 4 + i];                                                         \
        if (zero) name##_zero(d, a, b);                                                                               \
        else name(d, a, b);                                                                                           \
        for (int i = 0; i < 4; ++i) out[lane * 4 + i] = d[i];                                                         \
    }
MMA_KERNEL(mma_s8_16832, int, 4, 2)
MMA_KERNEL(mma_s8_16816, int, 2, 1)
MMA_KERNEL(mma_f16_16816, float, 4, 2)
MMA_KERNEL(mma_f16_1688, float, 2, 1)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
extern "C" __global__ void mma_bf16_16816_kernel(float* out, const u32* a_in, const u32* b_in, int zero) {
    u32 a[4], b[2];
    float d[4];
    const int lane = threadIdx.x;
    for (int i = 0; i < 4; ++i) a[i] = a_in[lane * 4 + i], d[i] = zero ? 0.0f : out[lane * 4 + i];
    for (int i = 0; i < 2; ++i) b[i] = b_in[lane * 2 + i];
    mma_bf16_16816(d, a, b);
    for (int i = 0; i < 4; ++i) out[lane * 4 + i] = d[i];
}
extern "C" __global__ void mma_tf32_1688_kernel(float* out, const u32* a_in, const u32* b_in, int zero) {
    u32 a[4], b[2];
    float d[4];
    const int lane = threadIdx.x;
    for (int i = 0; i < 4; ++i) {
        a[i] = tf32_bits(__uint_as_float(a_in[lane * 4 + i]));
        d[i] = zero ? 0.0f : out[lane * 4 + i];
    }
    for (int i = 0; i < 2; ++i) b[i] = tf32_bits(__uint_as_float(b_in[lane * 2 + i]));
    mma_tf32_1688(d, a, b);
    for (int i = 0; i < 4; ++i) out[lane * 4 + i] = d[i];
}
#endif

// 32 rows of 8 halves through shared memory; out [lane][4].
extern "C" __global__ void ldmatrix_kernel(u32* out, const uint4* in, int transposed) {
    __shared__ uint4 rows[32];
    const int lane = threadIdx.x;
    cp_async16(&rows[lane], &in[lane]);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    u32 r[4];
    if (transposed) ldmatrix_x4_trans(r, &rows[lane]);
    else ldmatrix_x4(r, &rows[lane]);
    for (int i = 0; i < 4; ++i) out[lane * 4 + i] = r[i];
}

extern "C" __global__ void integer_kernel(u32* out, const u32* a, const u32* b, const u32* c) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[3 * i + 0] = u32(dp4a(int(a[i]), int(b[i]), int(c[i])));
    out[3 * i + 1] = prmt(a[i], b[i], c[i]);
    out[3 * i + 2] = lop3<0x6a>(a[i], b[i], c[i]);
}

// Sums, extremes and a vote over a block of 96 threads; shuffles within groups of 8.
extern "C" __global__ void reductions_kernel(float* out, const float* in) {
    __shared__ float scratch[3];
    const int i = threadIdx.x;
    const float v = in[i];
    const float down = __shfl_down_sync(FULL_WARP, v, 3, 8), up = __shfl_up_sync(FULL_WARP, v, 2, 8);
    out[7 * i + 0] = warp_sum(v);
    out[7 * i + 1] = warp_max(v);
    out[7 * i + 2] = block_sum<96>(v, scratch);
    out[7 * i + 3] = block_max<96>(v, scratch);
    out[7 * i + 4] = float(__popc(__ballot_sync(FULL_WARP, v > 0)));
    out[7 * i + 5] = down;
    out[7 * i + 6] = up;
}

extern "C" __global__ void halves_kernel(u32* out, const float* in) {
    const int i = threadIdx.x;
    const u32 pair = pack_half2(in[2 * i], in[2 * i + 1]);
    out[i] = half2_bits(__hfma2(as_half2(pair), as_half2(pair), __float2half2_rn(0.5f)));
}

extern "C" __global__ void dynamic_kernel(int* out, int bytes) {
    SHARED_DYNAMIC(memory);
    int* values = reinterpret_cast<int*>(memory);
    const int n = bytes / 4;
    for (int i = threadIdx.x; i < n; i += blockDim.x) values[i] = i * i + int(blockIdx.x);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = values[n - 1 - i];
}

// A warp returns after the first barrier: the second waits for the others only.
extern "C" __global__ void leaving_kernel(float* out) {
    __shared__ float shared[2][32];
    const int i = threadIdx.x;
    if (i >= 64) shared[0][i - 64] = float(i);
    __syncthreads();
    if (i >= 64) return;
    if (i >= 32) shared[1][i - 32] = 2.0f * shared[0][i - 32];
    __syncthreads();
    if (i < 32) out[i] = shared[1][31 - i];
}

// ---- What must be reported ------------------------------------------------------------------------------------------

extern "C" __global__ void wrong_kernel(float* out, int fault) {
    __shared__ float shared[64];
    const int i = threadIdx.x;
    if (fault == 0) out[i] = shared[i];                         // shared memory nobody wrote
    if (fault == 1) out[blockDim.x * 4096 + i] = 1.0f;          // far outside
    if (fault == 2) out[blockDim.x] = 1.0f;                     // just behind the end
    if (fault == 3 && i < 32) __syncthreads();                  // a barrier that half of the block reaches
    if (fault == 4 && i % 32 < 7) out[i] = __shfl_sync(FULL_WARP, out[i], 0);
    if (fault == 5) out[i] = float((fault + i) / (i / 1000));
    if (fault == 6) {
        if (i < 32) __syncthreads();
        else __syncthreads();
    }
    if (fault == 7) out[-1] = 1.0f;
    if (fault == 8) shared[i] = 1.0f;  // a write somewhere, or the compiler would know that there is none
}
