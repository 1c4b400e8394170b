// Quantised weights times a few columns: how one block streams its rectangle of super-tiles.
//
// A block owns rows [first, first + rows) (in blocks of 16) x k [k0, k0 + kn) (in tiles of 256). The rectangle is a
// linear list of super-tiles, k fastest, cut evenly between WARPS warps. A warp loads its tiles from global memory
// directly into registers, SLOTS units ahead of their use; a register is reloaded as soon as its unit is expanded.
// Activations of these k (acts.cuh) are staged in shared memory first. The first weights are requested before the
// previous kernel has ended.
//
// Sums: integers over a tile (or a span of it, acts.cuh), or floats per sub; each becomes one float, which is added to
// those of the tiles before. A block of rows that one warp begins and finishes is passed to the sink at once. Otherwise
// the warp that began it keeps its part in registers and, after one barrier, adds the parts that the following warps
// left in their shared slots, in order. None of this depends on COLUMNS: a column's bits are the same at every width.
//
// COLUMNS: columns of this pass, 1..64. WARPS: per block. SHARES: equal shares of a rectangle, one to a warp. They decide
// the order of sums, so the other ways to divide a rectangle (matmul_claims.cuh, matmul_chunks.cuh) add up in the same
// shares, whatever their warps compute. ACTS_F16: activations in half precision for all formats. PREFETCH: tiles after its first that a warp prefetches into the L2
// before the previous kernel has ended. AHEAD_BYTES: a lane loads more than two units ahead of their use only if they
// take no more bytes than this.

#pragma once

#include "acts.cuh"
#include "formats/all.cuh"
#include "planes.cuh"

#ifndef WARPS
#define WARPS 16
#endif

#ifndef SHARES
#define SHARES WARPS
#endif

#ifndef PREFETCH
#define PREFETCH 0
#endif
static_assert(PREFETCH <= 32, "a lane asks for one tile");

#ifndef AHEAD_BYTES
#define AHEAD_BYTES 1024
#endif

constexpr int MATMUL_THREADS = WARPS * 32;
constexpr int COLUMN_BLOCKS = ceil_div(COLUMNS, 8);
// Units in registers ahead of their use. A wide pass takes so long per unit that two suffice, and it needs the
// registers.
constexpr int MAX_SLOTS = COLUMN_BLOCKS <= 4 ? 4 : 2;
constexpr int HEAD_AT = COLUMN_BLOCKS <= 4 ? 0 : 2;  // the unit during which the next header is requested

#ifdef ACTS_F16
constexpr bool ALL_F16 = true;
#else
constexpr bool ALL_F16 = false;
#endif

using Accumulator = float[COLUMN_BLOCKS][4];

// How a format is multiplied by its activations.
template <class F> struct Meeting {
    static constexpr bool ROW = F::SCALING == Scaling::ROW;
    static constexpr bool F16_ACTS = ROW || ALL_F16;
    // Sums of a tile are integers.
    static constexpr bool INTEGER = !F16_ACTS && F::SCALING != Scaling::FLOAT_32 && F::SCALING != Scaling::FLOAT_64;
    static constexpr bool PAIRED = SIDE_BY_SIDE && !F16_ACTS;  // two mma columns are the planes of one column
    static constexpr int SPAN_UNITS = TILE_UNITS / (F16_ACTS ? 1 : SPANS);
    static constexpr int BLOCK = F16_ACTS ? ACTS_F16_BLOCK : ACTS_Q8_BLOCK;
    // Bytes that are staged of the second int8 block (acts.cuh): all of it with a lower plane, with two spans the
    // scales.
    static constexpr int SECOND = F16_ACTS ? 0 : PLANE_BITS ? ACTS_Q8_BLOCK : SPANS == 2 ? 32 : 0;
    static constexpr int SCALES = F16_ACTS ? ACTS_F16_SCALES : ACTS_Q8_SCALES;
    static constexpr int STAGE = COLUMN_BLOCKS * (BLOCK + SECOND);  // bytes per 256 k
    static constexpr int FORMAT_SLOTS = F::SLOTS < MAX_SLOTS ? F::SLOTS : MAX_SLOTS;
    static constexpr int SLOTS = FORMAT_SLOTS > 2 && FORMAT_SLOTS * int(sizeof(typename F::Unit)) > AHEAD_BYTES ? 2 : FORMAT_SLOTS;
};

// Whether what is subtracted is multiplied by sums of 16 activations, not by each: the same integers. For this the
// one column's sums are in shared memory, in the place of a column that does not exist.
#if defined(CLAIMED) && SPANS == 1 && PLANE_BITS == 0
template <class F> constexpr bool SUMMED = LOWERED<F> && !Meeting<F>::F16_ACTS;
#else
template <class F> constexpr bool SUMMED = false;
#endif
constexpr int SUMS_AT = 4 * 64;  // of the fifth column in a block's first unit: 16 int16

// Computes these sums for kn staged blocks. All threads of the block call; a barrier must follow.
template <class F> __device__ __forceinline__ void sum_sixteens(u8* staged, int kn) {
    for (int i = threadIdx.x; i < 16 * kn; i += MATMUL_THREADS) {
        u8* const block = staged + (i >> 4) * Meeting<F>::STAGE;
        const u8* const of_unit = block + (i >> 2 & 3) * 512 + (i & 3) * 4;
        int sum = 0;
#pragma unroll
        for (int t = 0; t < 4; ++t) sum = dp4a(*(const int*)(of_unit + 16 * t), 0x01010101, sum);
        ((i16*)(block + SUMS_AT))[i & 15] = i16(sum);
    }
}

// The sums of what is subtracted of a tile, for lanes 0 of their quads: lane t makes those of unit t.
template <class F>
__device__ __forceinline__ void lowered_sums(int (&lowered)[4], const typename F::Scales& scales, const u8* acts, int lane) {
    const int t = lane & 3;
    const uint2 sums = *(const uint2*)(acts + SUMS_AT + 8 * t);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const u32 near = t & 1 ? scales.minimum[r][1] : scales.minimum[r][0];
        const u32 far = t & 1 ? scales.minimum[r][3] : scales.minimum[r][2];
        const u32 minima = F::minima_of_unit(t & 2 ? far : near);
        int sum = dp2a<true>(sums.y, minima, dp2a<false>(sums.x, minima, 0));
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        lowered[2 * r] = sum + __shfl_xor_sync(FULL_WARP, sum, 2);
    }
}

template <bool INTEGER> struct SumType {
    using Type = int;
};
template <> struct SumType<false> {
    using Type = float;
};

// Weights in flight: the header and the next units of a tile.
template <class F> struct Ahead {
    static constexpr int SLOTS = Meeting<F>::SLOTS;
    typename F::Head head;
    typename F::Unit unit[SLOTS];

    __device__ __forceinline__ void begin(const u8* tile, int lane) {
        head = F::load_head(tile, lane);
#pragma unroll
        for (int u = 0; u < SLOTS; ++u) F::load_unit(unit[u], tile, u, lane);
    }
    // Unit u of `tile` has been used: load the unit that comes SLOTS later, of this tile or of the next if there is one.
    __device__ __forceinline__ void refill(int u, const u8* tile, bool more, const u8* next, int lane) {
        if (u + SLOTS < TILE_UNITS) {
            F::load_unit(unit[u % SLOTS], tile, u + SLOTS, lane);
        } else {
            typename F::Unit fresh;  // undefined after the last tile: a value that was kept would be copied in each one
            if (more) F::load_unit(fresh, next, u + SLOTS - TILE_UNITS, lane);
            unit[u % SLOTS] = fresh;
        }
    }
};

__device__ __forceinline__ uint4 shared_words4(const u8* at) { return *(const uint4*)at; }

// Four signed bytes as two pairs of f16: a byte b becomes 1024 + (b + 128), minus 1152.
__device__ __forceinline__ void signed_bytes_to_halves(u32 word, u32& low, u32& high) {
    const u32 biased = word ^ 0x80808080u;
    const half2 offset = as_half2(0x64806480u);
    low = half2_bits(__hsub2(as_half2(prmt(biased, 0x64646464u, 0x4140u)), offset));
    high = half2_bits(__hsub2(as_half2(prmt(biased, 0x64646464u, 0x4342u)), offset));
}

// A float per integer sum: adds it, times its scale.
template <class F>
__device__ __forceinline__ void add_scaled(
    float (&sum)[4], const int (&product)[4], const typename F::Scales& scales, int index) {
#pragma unroll
    for (int i = 0; i < 4; i += SIDE_BY_SIDE ? 2 : 1) {
        const int whole = SIDE_BY_SIDE ? join<F>(product[i], product[i + SIDE_BY_SIDE]) : product[i];
        sum[i] = __fmaf_rn(float(whole), F::sub_scale(scales, i >> 1, index), sum[i]);
    }
}

// One unit times the int8 activations of a column block: 64 k into sum. `fragments`: of the unit.
template <class F, class Sum>
__device__ __forceinline__ void multiply_q8(
    const PlaneCodes<F>& codes, const typename F::Scales& scales, int u, const Fragments& fragments, Sum (&sum)[4]) {
    if constexpr (F::SCALING == Scaling::TILE) {
        product_32<F, true>(sum, codes, fragments, 0);
        product_32<F, true>(sum, codes, fragments, 1);
    } else if constexpr (F::SCALING == Scaling::FLOAT_64) {
        int product[4];
        product_32<F>(product, codes, fragments, 0);
        product_32<F, true>(product, codes, fragments, 1);
        add_scaled<F>(sum, product, scales, u);
    } else {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            int product[4];
            if constexpr (F::SCALING == Scaling::INTEGER_16) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    product_16<F>(product, codes, fragments, s, h);
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[i] += product[i] * F::sub_scale(scales, i >> 1, 4 * u + 2 * s + h);
                }
            } else {
                product_32<F>(product, codes, fragments, s);
                if constexpr (F::SCALING == Scaling::INTEGER_32) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[i] += product[i] * F::sub_scale(scales, i >> 1, 2 * u + s);
                } else {
                    add_scaled<F>(sum, product, scales, 2 * u + s);
                }
            }
        }
    }
}

// One sub times the f16 activations of a column block: 32 k into sum. `acts`: the lane's fragments of the sub.
template <class F>
__device__ __forceinline__ void multiply_f16(
    const u32 (&a)[2][4], const typename F::Scales& scales, int sub, const u8* acts, float (&sum)[4]) {
    const uint4 words = shared_words4(acts);
    const u32 b[2][2] = {{words.x, words.y}, {words.z, words.w}};
    float product[4];
    if constexpr (F::SCALING == Scaling::TILE) {
        mma_f16_16816(sum, a[0], b[0]);
        mma_f16_16816(sum, a[1], b[1]);
    } else if constexpr (F::SCALING == Scaling::INTEGER_16) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            mma_f16_16816_zero(product, a[h], b[h]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum[i] = __fmaf_rn(product[i], float(F::sub_scale(scales, i >> 1, 2 * sub + h)), sum[i]);
            }
        }
    } else {
        mma_f16_16816_zero(product, a[0], b[0]);
        mma_f16_16816(product, a[1], b[1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum[i] = __fmaf_rn(product[i], scale_at<F>(scales, i >> 1, sub, 0), sum[i]);
        }
    }
}

// Four registers of signed bytes, a sub's, as two A fragments of halves.
__device__ __forceinline__ void sub_to_halves(const u32 (&a)[4], u32 (&halves)[2][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        signed_bytes_to_halves(a[2 * h], halves[h][0], halves[h][2]);
        signed_bytes_to_halves(a[2 * h + 1], halves[h][1], halves[h][3]);
    }
}

// The scales of a column block's columns for one span of a staged block of 256 k.
template <class F> __device__ __forceinline__ const float* column_scales(const u8* acts, int span, int column_block) {
    using M = Meeting<F>;
    return (const float*)(acts + (span ? ACTS_Q8_SECONDS + column_block * M::SECOND : column_block * M::BLOCK + M::SCALES));
}

// Whether the first 128 k of a tile are scaled apart from the others: sums of codes with a scale for each.
template <class F>
constexpr bool FIRST_APART = TWO_SCALES<F> && !Meeting<F>::ROW && Meeting<F>::SPAN_UNITS == TILE_UNITS;

// Ends the sums of the first 128 k, of formats with a scale of their own there: of halves, in units of the other scale.
template <class F, class Sum, int FIRST_BLOCKS>
__device__ __forceinline__ void end_first(
    Sum (&sum)[COLUMN_BLOCKS][4], float (&first)[FIRST_BLOCKS][4], const typename F::Scales& scales) {
    constexpr int SPREAD = Meeting<F>::PAIRED ? 2 : 1;
#pragma unroll
    for (int b = 0; b < COLUMN_BLOCKS; ++b) {
        if constexpr (FIRST_APART<F>) {
#pragma unroll
            for (int i = 0; i < 4; i += SPREAD) {
                Sum whole = sum[b][i];
                if constexpr (SPREAD == 2 && Meeting<F>::INTEGER) whole = join<F>(whole, sum[b][i + 1]);
                first[b][i] = __fmul_rn(float(whole), scales.first[i >> 1]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[b][i] = 0;
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[b][i] = __fmul_rn(sum[b][i], scales.ratio[i >> 1]);
        }
    }
}

// Passes the sums of a span of a tile to take(column block, i, value, factor of the column), and resets them to zero.
// `lowered`: the sums of what is subtracted, of formats that have such. Paired columns: lane t of a quad holds column t,
// in the place of mma column 2 t.
template <class F, class Sum, int LOWERED_BLOCKS, int FIRST_BLOCKS, class Take>
__device__ __forceinline__ void take_sums(
    Sum (&sum)[COLUMN_BLOCKS][4], Sum (&lowered)[LOWERED_BLOCKS][4], const float (&first)[FIRST_BLOCKS][4],
    const typename F::Scales& scales, int span, const u8* acts, int lane, Take&& take) {
    using M = Meeting<F>;
    constexpr int SPREAD = M::PAIRED ? 2 : 1;  // mma columns per column
    const int t = lane & 3;
#pragma unroll
    for (int b = 0; b < COLUMN_BLOCKS; ++b) {
        const u8* block = acts + b * M::BLOCK;
        float minimum[4];
        if constexpr (F::MINIMUM) {
            // The lane has subs 2 t and 2 t + 1: with two spans, the first has those of lanes 0 and 1 of a quad.
            const bool mine = SPANS == 1 || M::F16_ACTS || t >> 1 == span;
            const u32 a[2] = {mine ? scales.minimum[0] : 0, mine ? scales.minimum[1] : 0};
            const int at = M::PAIRED ? 16 * (lane >> 3) + 4 * t : 4 * lane;
            mma_f16_1688_zero(minimum, a, {*(const u32*)(block + (M::F16_ACTS ? ACTS_F16_SUMS : ACTS_Q8_SUMS) + at)});
            if constexpr (M::F16_ACTS || PLANE_BITS > 0) {
                const int lower = M::F16_ACTS ? ACTS_F16_SUMS_LOW : ACTS_Q8_SECONDS + ACTS_Q8_SUMS;
                mma_f16_1688(minimum, a, {*(const u32*)(block + lower + at)});
            }
        }
        const float* of_rows = column_scales<F>(acts, span, b);
        const float2 pair = M::PAIRED ? make_float2(of_rows[t], 0.0f) : *(const float2*)(of_rows + 2 * t);
#pragma unroll
        for (int i = 0; i < 4; i += SPREAD) {
            Sum whole = sum[b][i];
            if constexpr (M::PAIRED && M::INTEGER) whole = join<F>(whole, sum[b][i + SPREAD - 1]);
            float value;
            if constexpr (FIRST_APART<F>) value = __fmaf_rn(float(whole), scales.d[i >> 1], first[b][i]);
            else if constexpr (TWO_SCALES<F> && !M::ROW) value = __fmul_rn(float(whole), factor_at<F>(scales, i >> 1, 4 * span));
            else value = __fmul_rn(float(whole), scales.d[i >> 1]);
            if constexpr (F::MINIMUM) value = __fmaf_rn(minimum[i], scales.minimum_scale[i >> 1], value);
            if constexpr (LOWERED<F>) {
                Sum below = lowered[b][i];
                if constexpr (M::PAIRED) below = join<F>(below, lowered[b][i + SPREAD - 1]);
                value = __fmaf_rn(float(below), scales.minimum_scale[i >> 1], value);
            }
            take(b, i, value, i & 1 ? pair.y : pair.x);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum[b][i] = 0;
            if constexpr (LOWERED<F>) lowered[b][i] = 0;
        }
    }
}

// Passes finished rows to the sink; lane t of a quad has columns 2 t and 2 t + 1.
template <class F, class Sink> __device__ __forceinline__ void deliver(Sink&& sink, int row0, const Accumulator& acc) {
    if constexpr (Meeting<F>::PAIRED) {
        Accumulator spread = {};
        const int lane = lane_id(), from = (lane & ~3) + 2 * (lane & 1);  // lanes 2 and 3: no such columns
#pragma unroll
        for (int i = 0; i < 4; ++i) spread[0][i] = __shfl_sync(FULL_WARP, acc[0][i & 2], from + (i & 1));
        sink(row0, spread);
    } else {
        sink(row0, acc);
    }
}

// One super-tile, whose sums are passed to take(span, column block, i, value, factor of the column). `acts`: the staged
// block of its 256 k. more: the next tile's weights are requested meanwhile.
template <class F, class Take>
__device__ __forceinline__ void multiply_tile(
    Ahead<F>& ahead, const u8* tile, bool more, const u8* next, const u8* acts, int lane, Take&& take) {
    using M = Meeting<F>;
    using Sum = typename SumType<M::INTEGER>::Type;
    typename F::Scales scales = F::decode(ahead.head, lane);
    if constexpr (PLANE_BITS > 0 && !M::F16_ACTS) {
        // With high codes the sums are over the codes shifted right by PLANE_BITS (planes.cuh): the scale makes up for
        // it.
        constexpr float UNIT = F::CODES == Codes::HIGH ? 1 << PLANE_BITS : 1;
        scales.d[0] *= UNIT, scales.d[1] *= UNIT;
        if constexpr (TWO_SCALES<F>) scales.first[0] *= UNIT, scales.first[1] *= UNIT;
    }
    const u8* fragments = acts + fragment_at<M::PAIRED>(lane);
    Sum sum[COLUMN_BLOCKS][4] = {}, lowered[LOWERED<F> ? COLUMN_BLOCKS : 1][4] = {};
    float first[FIRST_APART<F> ? COLUMN_BLOCKS : 1][4];
#pragma unroll
    for (int u = 0; u < TILE_UNITS; ++u) {
        if (u == HEAD_AT) {
            typename F::Head fresh;
            if (more) fresh = F::load_head(next, lane);
            ahead.head = fresh;
        }
        typename F::Unit& unit = ahead.unit[u % M::SLOTS];
        if constexpr (TWO_SCALES<F> && M::SPAN_UNITS == TILE_UNITS) {
            if (u == FIRST_UNITS) end_first<F>(sum, first, scales);
        }
        if constexpr (M::ROW) {
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                u32 a[F::PARTS][2][4];
#pragma unroll
                for (int i = 0; i < 2 * F::PARTS; ++i) F::halves(unit, scales, u, 2 * s + (i & 1), i >> 1, a[i >> 1][i & 1]);
#pragma unroll
                for (int b = 0; b < COLUMN_BLOCKS; ++b) {
                    const uint4 words = shared_words4(fragments + b * M::BLOCK + (2 * u + s) * 512);
#pragma unroll
                    for (int part = 0; part < F::PARTS; ++part) {
                        mma_f16_16816(sum[b], a[part][0], {words.x, words.y});
                        mma_f16_16816(sum[b], a[part][1], {words.z, words.w});
                    }
                }
            }
            ahead.refill(u, tile, more, next, lane);
        } else {
            u32 a[2][4];
            F::expand(unit, 0, a[0]);
            F::expand(unit, 1, a[1]);
            take_scales(scales, unit);
            ahead.refill(u, tile, more, next, lane);
            u32 below[2][4];
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                scale_codes(scales, 2 * u + s, a[s]);
                if constexpr (LOWERED<F> && !SUMMED<F>) F::minima(scales, 2 * u + s, below[s]);
            }
            if constexpr (M::F16_ACTS) {
#pragma unroll
                for (int s = 0; s < 2; ++s) {
                    u32 halves[2][4], below_halves[2][4];
                    sub_to_halves(a[s], halves);
                    if constexpr (LOWERED<F>) sub_to_halves(below[s], below_halves);
#pragma unroll
                    for (int b = 0; b < COLUMN_BLOCKS; ++b) {
                        const u8* of_sub = fragments + b * M::BLOCK + (2 * u + s) * 512;
                        multiply_f16<F>(halves, scales, 2 * u + s, of_sub, sum[b]);
                        if constexpr (LOWERED<F>) multiply_f16<F>(below_halves, scales, 2 * u + s, of_sub, lowered[b]);
                    }
                }
            } else {
                const PlaneCodes<F> codes(a);
#pragma unroll
                for (int b = 0; b < COLUMN_BLOCKS; ++b) {
                    const Fragments of_unit(fragments + b * M::BLOCK + u * 512);
                    multiply_q8<F>(codes, scales, u, of_unit, sum[b]);
                    if constexpr (LOWERED<F> && !SUMMED<F>) {
                        multiply_q8<F>(PlaneCodes<F>(below), scales, u, of_unit, lowered[b]);
                    }
                }
            }
        }
        if (u % M::SPAN_UNITS == M::SPAN_UNITS - 1) {
            const int span = u / M::SPAN_UNITS;
            if constexpr (SUMMED<F>) lowered_sums<F>(lowered[0], scales, acts, lane);
            take_sums<F>(sum, lowered, first, scales, span, acts, lane, [&](int b, int i, float value, float factor) {
                take(span, b, i, value, factor);
            });
        }
    }
}

// Adds a tile's sums to those of the tiles before it.
struct Added {
    Accumulator& acc;

    __device__ __forceinline__ void operator()(int, int b, int i, float value, float factor) const {
        acc[b][i] = __fmaf_rn(value, factor, acc[b][i]);
    }
};

// Start copying PER_K bytes of each of kn groups, from `from` in memory to `to` in shared memory. A block's units, of
// which only the bytes of existing columns are copied, end at offset `end`.
template <int PER_K, int FROM_STEP, int TO_STEP>
__device__ __forceinline__ void stage_blocks(u8* to, const u8* from, int kn, int end) {
    constexpr int CHUNKS = PER_K / 16;
#ifdef CHUNK
#pragma unroll 1
#endif
    for (int i = threadIdx.x; i < kn * CHUNKS; i += MATMUL_THREADS) {
        const int k = i / CHUNKS, at = (i - k * CHUNKS) * 16;
        if (is_read(at, end)) cp_async16(to + k * TO_STEP + at, from + size_t(k) * FROM_STEP + at);
    }
}

// Activations that an earlier kernel has stored for all rows; `column_block`: the first column block of this pass.
struct StoredActs {
    const u8 *q8, *f16;
    int column_block;

    // Start copying those of [k0, k0 + kn) x this pass's columns into shared memory, [k][STAGE].
    template <class F> __device__ __forceinline__ void stage(u8* staged, int k0, int kn) const {
        using M = Meeting<F>;
        constexpr int STEP = (M::F16_ACTS ? 1 : 2) * (ACTS_ROWS / 8) * M::BLOCK;
        const u8* from = (M::F16_ACTS ? f16 : q8) + size_t(k0) * STEP + column_block * M::BLOCK;
        stage_blocks<COLUMN_BLOCKS * M::BLOCK, STEP, M::STAGE>(staged, from, kn, M::SCALES);
        if constexpr (M::SECOND > 0) {
            const u8* second = from + (ACTS_ROWS / 8) * M::BLOCK;
            u8* to = staged + ACTS_Q8_SECONDS;
            if constexpr (PLANE_BITS > 0) {
                stage_blocks<COLUMN_BLOCKS * M::SECOND, STEP, M::STAGE>(to, second, kn, M::SCALES);
            } else {
#pragma unroll
                for (int b = 0; b < COLUMN_BLOCKS; ++b) {
                    const u8* scales = second + b * M::BLOCK + M::SCALES;
                    stage_blocks<M::SECOND, STEP, M::STAGE>(to + b * M::SECOND, scales, kn, 0);
                }
            }
        }
    }
};

// Which form of activations is in shared memory.
enum class Staged { NONE, Q8, F16 };

// One matrix's share of a block.
struct Rectangle {
    const u8* weights;   // super-tiles [rows / 16][tiles_k]
    int tiles_k;         // of the matrix
    int first, rows;     // blocks of 16 rows
    int k0, kn;          // tiles of 256
};

// Stages a rectangle's activations, unless an earlier rectangle with the same k has left them there. A barrier must
// follow.
template <class F, class Acts>
__device__ __forceinline__ void stage_once(const Acts& acts, u8* staged, const Rectangle& part, Staged& form) {
    constexpr Staged FORM = Meeting<F>::F16_ACTS ? Staged::F16 : Staged::Q8;
    if (form == FORM) return;
    pdl_wait();
    acts.template stage<F>(staged, part.k0, part.kn);
    cp_async_commit();
    cp_async_wait<0>();
    form = FORM;
}

__device__ __forceinline__ int share_begin(int tiles, int share) {
    return int(unsigned(tiles) * unsigned(share) / SHARES);
}

// The first tile after `at` with which a share begins.
__device__ __forceinline__ int next_share(int tiles, int at) {
    return share_begin(tiles, int((unsigned(at + 1) * SHARES + unsigned(tiles) - 1) / unsigned(tiles)));
}

// Stream a rectangle; sink(first row of the block of 16, acc) receives each finished block, in order within a warp.
// `slots`: WARPS * COLUMN_BLOCKS * 512 B of shared memory, `staged`: kn * STAGE B, which an earlier rectangle of the
// same k may have filled, as `form` says. `acts`: StoredActs, or an object that computes them (swiglu_matmul.cu). All
// threads of the block call.
template <class F, class Acts, class Sink>
__device__ __forceinline__ void stream_rectangle(
    const Rectangle& part, const Acts& acts, float* slots, u8* staged, Staged& form, Sink&& sink) {
    using M = Meeting<F>;
    const int lane = lane_id(), warp = warp_id(), kn = part.kn;
    const int tiles = part.rows * kn, begin = share_begin(tiles, warp), end = share_begin(tiles, warp + 1);
    int block = begin / kn, k = begin - block * kn;
    const u8* tile = part.weights + (size_t(part.first + block) * part.tiles_k + part.k0 + k) * F::BYTES;
    const size_t skip = size_t(part.tiles_k - kn) * F::BYTES;

    Ahead<F> ahead;
    if (begin < end) ahead.begin(tile, lane);
#if PREFETCH
    if (form == Staged::NONE && lane < PREFETCH && begin + 1 + lane < end) {
        const int at = begin + 1 + lane, row = at / kn;
        const size_t index = size_t(part.first + row) * part.tiles_k + part.k0 + (at - row * kn);
        bulk_prefetch(part.weights + index * F::BYTES, F::BYTES);
    }
#endif

    prepare(F{});
    stage_once<F>(acts, staged, part, form);
    __syncthreads();

    Accumulator acc = {};
    bool continued = k != 0;  // the block of rows was begun by an earlier warp
    float4* slot = (float4*)slots + warp * COLUMN_BLOCKS * 32 + lane;
    const auto finish_block = [&]() {
        if (continued) {
#pragma unroll
            for (int b = 0; b < COLUMN_BLOCKS; ++b) slot[b * 32] = make_float4(acc[b][0], acc[b][1], acc[b][2], acc[b][3]);
        } else {
            deliver<F>(sink, (part.first + block) * TILE_ROWS, acc);
        }
    };
    for (int i = begin + 1; i < end; ++i) {
        const bool row_end = k + 1 == kn;
        const u8* next = tile + F::BYTES + (row_end ? skip : 0);
        multiply_tile<F>(ahead, tile, true, next, staged + k * M::STAGE, lane, Added{acc});
        tile = next;
        ++k;
        if (row_end) {
            finish_block();
#pragma unroll
            for (int b = 0; b < COLUMN_BLOCKS; ++b) {
#pragma unroll
                for (int j = 0; j < 4; ++j) acc[b][j] = 0.0f;
            }
            continued = false;
            k = 0;
            ++block;
        }
    }
    bool owner = false;  // of a block that later warps continue
    if (begin < end) {
        multiply_tile<F>(ahead, tile, false, tile, staged + k * M::STAGE, lane, Added{acc});
        owner = !continued && k + 1 < kn;
        if (!owner) finish_block();
    }
    __syncthreads();
    if (owner) {
        const int block_end = (block + 1) * kn;
        for (int other = warp + 1; other < WARPS; ++other) {
            const int from = share_begin(tiles, other);
            if (from >= block_end) break;
            if (from == share_begin(tiles, other + 1)) continue;  // a warp without tiles
            const float4* part_of = (const float4*)slots + other * COLUMN_BLOCKS * 32 + lane;
#pragma unroll
            for (int b = 0; b < COLUMN_BLOCKS; ++b) {
                const float4 v = part_of[b * 32];
                acc[b][0] += v.x, acc[b][1] += v.y, acc[b][2] += v.z, acc[b][3] += v.w;
            }
        }
        deliver<F>(sink, (part.first + block) * TILE_ROWS, acc);
    }
}
