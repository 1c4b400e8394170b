// dequant: super-tiles to f16 rows, for batches that a library's matrix product computes (prefill).
//
// out[row][k] f16, rows x (256 * tiles_k), for the row blocks [first, first + gridDim.y) of a matrix. A warp converts
// one super-tile; a lane writes eight f16 at a time, a quad 64 consecutive bytes. Bound by memory: 3.0 to 3.2
// of 4.6 TB/s on an H200.
// d * scale * code + minimum is computed in f32 and then rounded to f16; beyond the range of f16 it becomes an
// infinity.
//
// Grid: (ceil(tiles_k / WARPS), row blocks). Only rows below `rows` are written; row 16 * first is the first of `out`.

#include "formats/all.cuh"

#ifndef WARPS
#define WARPS 8
#endif

template <class F> struct Dequantize {
    const u8* tile;
    half* out;  // where the tile's first row and k are stored
    int row, rows, stride, lane;

    // Values of one of the lane's two rows: `near` has the four from column k + 4 * (lane % 4) on, `far` those 16
    // columns further. An even lane and the odd one after it swap four, so that each stores eight consecutive values:
    // the even lane near ones, the odd lane far ones.
    __device__ __forceinline__ void store(int half_of_rows, int k, const float (&near)[4], const float (&far)[4]) const {
        const int r = (lane >> 2) + 8 * half_of_rows, odd = lane & 1;
        const uint2 a = make_uint2(pack_half2(near[0], near[1]), pack_half2(near[2], near[3]));
        const uint2 b = make_uint2(pack_half2(far[0], far[1]), pack_half2(far[2], far[3]));
        const u32 x = __shfl_xor_sync(FULL_WARP, odd ? a.x : b.x, 1), y = __shfl_xor_sync(FULL_WARP, odd ? a.y : b.y, 1);
        if (row + r >= rows) return;
        uint4* const to = (uint4*)(out + size_t(r) * stride + k + 16 * odd + 4 * (lane & 2));
        *to = odd ? make_uint4(x, y, b.x, b.y) : make_uint4(a.x, a.y, x, y);
    }

    __device__ __forceinline__ void halves() const {
        const typename F::Scales scales = F::decode(F::load_head(tile, lane), lane);
#pragma unroll 1
        for (int u = 0; u < TILE_UNITS; ++u) {
            typename F::Unit unit;
            F::load_unit(unit, tile, u, lane);
#pragma unroll
            for (int two = 0; two < 2; ++two) {
                float near[2][4], far[2][4];
                halves_at<F>(near, unit, scales, u, 2 * two);
                halves_at<F>(far, unit, scales, u, 2 * two + 1);
#pragma unroll
                for (int r = 0; r < 2; ++r) store(r, u * 64 + two * 32, near[r], far[r]);
            }
        }
    }

    __device__ __forceinline__ void codes() const {
        typename F::Scales scales = F::decode(F::load_head(tile, lane), lane);
#pragma unroll
        for (int u = 0; u < TILE_UNITS; ++u) {
            typename F::Unit unit;
            F::load_unit(unit, tile, u, lane);
            take_scales(scales, unit);
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                const int sub = 2 * u + s;
                u32 a[4];
                F::expand(unit, s, a);
                scale_codes(scales, sub, a);
                float near[2][4], far[2][4];
                weights_at<F>(near, a, scales, sub, 0);
                weights_at<F>(far, a, scales, sub, 1);
#pragma unroll
                for (int r = 0; r < 2; ++r) store(r, sub * 32, near[r], far[r]);
            }
        }
    }
};

struct DequantizeTile {
    const u8* weights;
    int format;
    half* out;
    int block, first, k, tiles_k, rows, stride;

    template <class F> __device__ __forceinline__ void operator()() const {
        if (format != F::NUMBER) return;
        prepare(F{});
        __syncthreads();
        if (k >= tiles_k) return;
        const u8* tile = weights + (size_t(block) * tiles_k + k) * F::BYTES;
        half* to = out + size_t(block - first) * TILE_ROWS * stride + size_t(k) * TILE_K;
        const Dequantize<F> work{tile, to, block * TILE_ROWS, rows, stride, lane_id()};
        if constexpr (F::SCALING == Scaling::ROW) {
            work.halves();
        } else {
            work.codes();
        }
    }
};

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    dequant(const u8* weights, int format, int rows, int first, int tiles_k, half* out, int stride) {
    pdl_launch();
    pdl_wait();
    const int k = blockIdx.x * WARPS + warp_id(), block = first + blockIdx.y;
    for_each_format(DequantizeTile{weights, format, out, block, first, k, tiles_k, rows, stride});
}
