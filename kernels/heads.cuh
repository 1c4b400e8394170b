// One head of one row, held by a warp: the sum of a matmul's partials, the head's RMS norm, the rotary embedding.
// Lane l holds elements l, l + 32, l + 64, ...: loads coalesce, and both elements of a rotary pair are in one lane.
//
// Defines, all optional: UNGATED where attn_q has no gates; BIASED where the projection has biases, which adds an
// argument; UNNORMED where queries and keys have no norm; TURN_FACTOR, of sines and cosines; VALUES_NORMED where values
// have a norm without weights; KEYS_ARE_VALUES where a value is what attn_k gives; BORROWED where there are queries only;
// HEAD_GATES where a number per query head follows the values; GROWTH and GROWTH_LENGTH where queries grow with the
// position.

#pragma once

#include "kv.cuh"
#include "partials.cuh"

// Rows of attn_q per query head, in units of the head: with gates, the query and then its gate.
#ifdef UNGATED
constexpr int QUERY_PARTS = 1;
#else
constexpr int QUERY_PARTS = 2;
#endif

// Rows of keys and values per kv head, in units of a head.
#if defined(BORROWED)
constexpr int PAIR_PARTS = 0;
#elif defined(KEYS_ARE_VALUES)
constexpr int PAIR_PARTS = 1;
#else
constexpr int PAIR_PARTS = 2;
#endif
constexpr int MADE_PARTS = PAIR_PARTS ? 2 : 0;  // heads that are made of them

// The column of the gate of query head 0, where heads have one number each.
__device__ __forceinline__ int head_gates(int kv_heads) {
    return (QUERY_PARTS * GROUP + PAIR_PARTS) * kv_heads * HEAD_DIM;
}
// Columns of [queries | keys | values | gates of heads]; a matrix takes whole blocks of 16.
__device__ __forceinline__ int projected(int kv_heads) {
#ifdef HEAD_GATES
    return head_gates(kv_heads) + ceil_div(GROUP * kv_heads, 16) * 16;
#else
    return head_gates(kv_heads);
#endif
}
// The column of value head 0 after that of key head 0.
__device__ __forceinline__ int values_after_keys(int kv_heads) {
    return PAIR_PARTS == 2 ? kv_heads * HEAD_DIM : 0;
}

// A kernel with heads of biased projections has BIAS_PARAMETER as its last one, and BIAS is what was given.
#ifdef BIASED
#define BIAS_PARAMETER , const float* bias
#define BIAS bias
#else
#define BIAS_PARAMETER
#define BIAS nullptr
#endif

// The partials of a matmul, f32 [SPLIT_K][rows][width], and its biases, f32 (width).
struct Projection {
    const float* partials;
    int rows, width;
    const float* bias = nullptr;
};

// The weights of a head's norm, the frequencies of its rotary embedding, and its sines and cosines at a position, as lanes
// need them. All may be loaded long before the head.
struct HeadNorm {
#ifndef UNNORMED
    float at[HEAD_DIM / WARP];

    __device__ __forceinline__ explicit HeadNorm(const float* weight) {
#pragma unroll
        for (int j = 0; j < HEAD_DIM / WARP; j++) at[j] = weight[WARP * j + lane_id()];
    }
#else
    __device__ __forceinline__ explicit HeadNorm(const float*) {}
#endif
};
struct Frequencies {
    static constexpr int HALF = ROTARY / 2 / WARP;
    float at[HALF];

    __device__ __forceinline__ explicit Frequencies(const float* frequency) {
#pragma unroll
        for (int j = 0; j < HALF; j++) at[j] = frequency[WARP * j + lane_id()];
    }
};
struct Rotation {
    static constexpr int HALF = Frequencies::HALF;
    float sine[HALF], cosine[HALF];

    __device__ __forceinline__ Rotation(int position, const float* frequency)
        : Rotation(position, Frequencies(frequency)) {}
    __device__ __forceinline__ Rotation(int position, const Frequencies& frequency) {
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            // The product is rounded to float, as in the reference; whole turns are subtracted in double, since at
            // position 262,144 float sine and cosine would need their slow path and its local memory.
            const double turns = double(float(position) * frequency.at[j]) * 0.15915494309189535;
            sincospif(2.0f * float(turns - rint(turns)), &sine[j], &cosine[j]);
#ifdef TURN_FACTOR
            sine[j] *= float(TURN_FACTOR), cosine[j] *= float(TURN_FACTOR);
#endif
        }
    }
};

// The factor of a query at a position, times `scale`. Explicit rounding, as in `rotate`.
__device__ __forceinline__ float query_scale(float scale, int position) {
#ifdef GROWTH
    return __fmul_rn(scale, __fmaf_rn(float(GROWTH), logf(float(1 + position / GROWTH_LENGTH)), 1.0f));
#else
    return scale;
#endif
}

// One head of HEAD_DIM elements.
struct Head {
    static_assert(HEAD_DIM % 64 == 0 && ROTARY % 64 == 0 && ROTARY <= HEAD_DIM, "a rotary pair within one lane");
    static constexpr int PARTS = HEAD_DIM / WARP;
    float x[PARTS];

    Head() = default;
    __device__ __forceinline__ Head(const Projection& in, int row, int column) {
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            x[j] = partials_sum<SPLIT_K>(in.partials, in.rows, in.width, row, column + WARP * j + lane_id());
#ifdef BIASED
            x[j] += in.bias[column + WARP * j + lane_id()];
#endif
        }
    }

    // A query or a key as the scores need it: normalised, rotated to its position, and transformed where the type of
    // cached keys requires it.
    __device__ __forceinline__ void place(const HeadNorm& norm, const Rotation& rotation, float eps) {
#ifndef UNNORMED
        normalise(norm, eps);
#endif
        rotate(rotation);
        if (KeyType::ROTATED) transform();
    }

    // A value as the cache holds it.
    __device__ __forceinline__ void place_value(float eps) {
#ifdef VALUES_NORMED
        const float scale = scale_of(eps);
#pragma unroll
        for (int j = 0; j < PARTS; j++) x[j] *= scale;
#endif
    }

    // 1 over the root of the mean square.
    __device__ __forceinline__ float scale_of(float eps) const {
        float squares = 0.0f;
#pragma unroll
        for (int j = 0; j < PARTS; j++) squares += x[j] * x[j];
        return 1.0f / sqrtf(warp_sum(squares) / HEAD_DIM + eps);
    }

#ifndef UNNORMED
    // x over the root of its mean square, times the weights.
    __device__ __forceinline__ void normalise(const HeadNorm& norm, float eps) {
        const float scale = scale_of(eps);
#pragma unroll
        for (int j = 0; j < PARTS; j++) x[j] *= scale * norm.at[j];
    }
#endif

    // NEOX rotary: pairs (i, i + ROTARY / 2) of the first ROTARY elements by the angle f32(position * frequency[i]).
    // Explicit rounding, so that no kernel fuses it differently from another.
    __device__ __forceinline__ void rotate(const Rotation& rotation) {
        constexpr int HALF = Rotation::HALF;
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            const float a = x[j], b = x[j + HALF], sine = rotation.sine[j], cosine = rotation.cosine[j];
            x[j] = __fmaf_rn(a, cosine, -__fmul_rn(b, sine));
            x[j + HALF] = __fmaf_rn(a, sine, __fmul_rn(b, cosine));
        }
    }

    // The orthonormal Hadamard transform, its own inverse. It has only sums and differences, so its steps may have any
    // order.
    __device__ __forceinline__ void transform() {
#pragma unroll
        for (int half = 1; half < PARTS; half *= 2)
#pragma unroll
            for (int j = 0; j < PARTS; j++) {
                if (j & half) continue;
                const float a = x[j], b = x[j + half];
                x[j] = __fadd_rn(a, b), x[j + half] = __fsub_rn(a, b);
            }
#pragma unroll
        for (int half = 1; half < WARP; half *= 2)
#pragma unroll
            for (int j = 0; j < PARTS; j++) {
                const float other = __shfl_xor_sync(FULL_WARP, x[j], half);
                x[j] = lane_id() & half ? __fsub_rn(other, x[j]) : __fadd_rn(x[j], other);
            }
        const float root = 1.0f / sqrtf(float(HEAD_DIM));
#pragma unroll
        for (int j = 0; j < PARTS; j++) x[j] = __fmul_rn(x[j], root);
    }

    // Stores a query in the order that keys of a type need; `out` is indexed by element.
    template <class Keys, class Row> __device__ __forceinline__ void store_for(const Row& out, float scale) const {
        const int e = lane_id(), place = Keys::HALVES ? e : interleaved(e);
#pragma unroll
        for (int j = 0; j < PARTS; j++) out[WARP * j + place] = __float2half_rn(x[j] * scale);
    }
};

// Store a key that is placed, or a value, as the cache holds it.
__device__ __forceinline__ void store_key(const KeyValues& cache, const Head& head, int kv_head, int slot) {
    KeyType::store(cache.key(kv_head, slot), head.x);
#ifdef RECENT
    NewestRows::Keys::store(cache.newest.key(kv_head, slot), head.x);
#endif
}
__device__ __forceinline__ void store_value(const KeyValues& cache, const Head& head, int kv_head, int slot) {
    ValueType::store(cache.value(kv_head, slot), head.x);
#ifdef RECENT
    NewestRows::Values::store(cache.newest.value(kv_head, slot), head.x);
#endif
}

// One head of a row of [queries | keys | values]: `task` counts query heads, then key heads, then value heads. It is made
// before the projection is there, then loaded and stored.
struct HeadTask {
    const int task, kv_heads, heads;
    const HeadNorm norm;
    const Frequencies frequencies;

    __device__ __forceinline__ HeadTask(
        int task, int kv_heads, const float* q_norm, const float* k_norm, const float* frequency
    ) : task(task), kv_heads(kv_heads), heads(kv_heads * GROUP), norm(task < kv_heads * GROUP ? q_norm : k_norm),
        frequencies(frequency) {}

    __device__ __forceinline__ bool query() const { return task < heads; }
    __device__ __forceinline__ bool value() const { return task >= heads + kv_heads; }
    __device__ __forceinline__ int kv_head() const { return query() ? task / GROUP : (task - heads) % kv_heads; }

    // A query head is QUERY_WIDTH columns wide, of which the first HEAD_DIM are the query.
    template <int QUERY_WIDTH> __device__ __forceinline__ Head load(const Projection& in, int row) const {
        const int after = heads * QUERY_WIDTH + kv_head() * HEAD_DIM + (value() ? values_after_keys(kv_heads) : 0);
        return Head(in, row, query() ? task * QUERY_WIDTH : after);
    }
    // Queries are packed by kv head, q [kv heads][rows * GROUP][HEAD_DIM], multiplied by `scale`, and in the order that
    // keys of type `Reader` need.
    template <class Reader>
    __device__ __forceinline__ void store(
        Head& head, int row, int rows, int position, int slot, float eps, float scale, half* q, const KeyValues& cache
    ) const {
        if (value()) {
            head.place_value(eps);
            store_value(cache, head, kv_head(), slot);
            return;
        }
        head.place(norm, Rotation(position, frequencies), eps);
        if (!query()) return store_key(cache, head, kv_head(), slot);
        const u64 packed = (u64(kv_head()) * rows + row) * GROUP + task % GROUP;
        head.template store_for<Reader>(q + packed * HEAD_DIM, query_scale(scale, position));
    }
};

// All of it at once.
template <int QUERY_WIDTH, class Reader = KeyType>
__device__ __forceinline__ void prepare_head(
    const Projection& in, int row, int task, int kv_heads, int position, int slot, const float* q_norm,
    const float* k_norm, const float* frequency, float eps, float scale, half* q, const KeyValues& cache
) {
    const HeadTask made(task, kv_heads, q_norm, k_norm, frequency);
    Head head = made.load<QUERY_WIDTH>(in, row);
    made.store<Reader>(head, row, in.rows, position, slot, eps, scale, q, cache);
}
