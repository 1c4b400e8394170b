// Keys or values as small codes with a scale per 32 numbers: the types q8_0, q5_0, q4_0 and tq3_0.
//
// A row has three parts. First the LOW lower bits of the codes: element e of group j is in byte e of a run of 32 bytes,
// which 8 / LOW groups share, the first of them in the lowest bits. Then HIGH words of 32 bits per group, one for each
// further bit. Then the scale of each group, an f16. A number is (code - ZERO) * scale, all in f16: the code's byte
// under the exponent bits of 1024 is 1024 + code, from which 1024 + ZERO is subtracted exactly. With CENTRED zero is
// between the two middle codes, so codes are doubled and the scale is halved. A lane of the warp that stores a row has
// element e = lane of every group.

#pragma once

#include "common.cuh"

// The largest magnitude of a group becomes REACH / 4 scales; with REACH 0, the number that has it becomes code 0.
template <int LOW, int HIGH, bool CENTRED, int REACH, bool TURNED> struct KvPacked {
    static constexpr int GROUPS = HEAD_DIM / WARP, SHARED = 8 / LOW, RUNS = ceil_div(GROUPS, SHARED);
    static constexpr int LOADED = 2 + (SHARED + 1) / 2 + HIGH * SHARED;  // words of Loaded
    static constexpr int PLANES = WARP * RUNS, SCALES = PLANES + 4 * HIGH * GROUPS;
    static constexpr int WRITTEN = SCALES + 2 * GROUPS, BYTES = ceil_div(WRITTEN, 16) * 16;
    static constexpr int STRIDE = BYTES;  // a tile is one contiguous range of memory on both sides
    static constexpr bool HALVES = false, ROTATED = TURNED;
    static constexpr int CODES = 1 << (LOW + HIGH);
    static constexpr float ZERO = CENTRED ? 0.5f * (CODES - 1) : 0.5f * CODES;
    static constexpr u32 MASK = 0x01010101u * ((1 << LOW) - 1), FIRST_PLANE = 1u << LOW;
    // 1024 + ZERO as two halves; where CENTRED, 1024 + 2 ZERO, as codes are doubled.
    static constexpr u32 OFFSET = 0x00010001u * (0x6400 + (CENTRED ? CODES - 1 : CODES / 2));
    static_assert(HIGH <= 1, "one word per group");

    template <int PARTS> static __device__ __forceinline__ void store(u8* row, const float (&x)[PARTS]) {
        static_assert(PARTS == GROUPS, "a group per element of a lane");
        const int lane = lane_id();
        u32 code[RUNS * SHARED] = {}, plane = 0;
        half scale = __float2half_rn(0.0f);
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            const float most = warp_max(fabsf(x[j]));
            float step;
            if (REACH) {
                step = most / (0.25f * REACH);
            } else {
                const u32 holders = __ballot_sync(FULL_WARP, fabsf(x[j]) == most);
                step = __shfl_sync(FULL_WARP, x[j], holders ? __ffs(int(holders)) - 1 : 0) / -ZERO;
            }
            const half rounded = __float2half_rn(step);
            const float factor = __half2float(rounded);
            const float ratio = factor == 0.0f ? 0.0f : x[j] / factor;
            code[j] = u32(fminf(fmaxf(rintf(__fadd_rn(ratio, ZERO)), 0.0f), float(CODES - 1)));
            if (HIGH) {
                const u32 bits = __ballot_sync(FULL_WARP, int(code[j] >> LOW & 1));
                if (lane == j) plane = bits;
            }
            if (lane == j) scale = rounded;
        }
#pragma unroll
        for (int run = 0; run < RUNS; run++) {
            u32 byte = 0;
#pragma unroll
            for (int i = 0; i < SHARED; i++) byte |= (code[run * SHARED + i] & ((1 << LOW) - 1)) << LOW * i;
            row[WARP * run + lane] = u8(byte);
        }
        if (lane < GROUPS) {
            if (HIGH) *reinterpret_cast<u32*>(row + PLANES + 4 * lane) = plane;
            *reinterpret_cast<half*>(row + SCALES + 2 * lane) = scale;
        }
    }

    // Four codes, a byte each, from their bytes in a run and, of a type with a plane, their four bits of it.
    static __device__ __forceinline__ u32 codes(u32 bytes, int group, u32 bits) {
        constexpr int UP = CENTRED ? 1 : 0;  // centred codes are doubled here
        static_assert(LOW < 8 || !CENTRED, "whole bytes have no space for that");
        u32 found = bytes;
        if constexpr (LOW < 8) {
            const int down = LOW * (group % SHARED) - UP;
            found = (down < 0 ? bytes << UP : bytes >> down) & MASK << UP;
        }
        if (HIGH) found |= (bits & 0xf) * (0x00204081u << (LOW + UP)) & 0x01010101u << (LOW + UP);
        return found;
    }
    // The first two bytes of `codes`, or the last two, as numbers.
    template <bool LAST> static __device__ __forceinline__ u32 numbers(u32 codes, half2 scale) {
        const half2 raised = half2_of(prmt(codes, 0x64646464u, LAST ? 0x4342 : 0x4140));
        return bits_of(__hmul2(__hsub2(raised, half2_of(OFFSET)), scale));
    }
    static __device__ __forceinline__ u32 plane(const u8* row, int group) {
        return HIGH ? *reinterpret_cast<const u32*>(row + PLANES + 4 * group) : 0;
    }
    static __device__ __forceinline__ half2 scales(const u8* first, const u8* second, int group) {
        const u32 a = *reinterpret_cast<const u16*>(first + SCALES + 2 * group);
        const u32 b = first == second ? a : *reinterpret_cast<const u16*>(second + SCALES + 2 * group);
        return halved(half2_of(prmt(a, b, 0x5410)));
    }
    // What codes are multiplied by.
    static __device__ __forceinline__ half2 halved(half2 scale) {
        return CENTRED ? __hmul2(scale, half2_of(0x38003800u)) : scale;
    }
    // Eight elements of a group from their bytes and, of a type with a plane, their eight bits of it.
    static __device__ __forceinline__ void unpack(u32 (&to)[4], uint2 bytes, int group, u32 bits, half2 scale) {
        const u32 low = codes(bytes.x, group, bits), high = codes(bytes.y, group, bits >> 4);
        to[0] = numbers<false>(low, scale), to[1] = numbers<true>(low, scale);
        to[2] = numbers<false>(high, scale), to[3] = numbers<true>(high, scale);
    }

    static __device__ __forceinline__ void eight(u32 (&to)[4], const u8* row, int group, int part) {
        const uint2 bytes = *reinterpret_cast<const uint2*>(row + WARP * (group / SHARED) + 8 * part);
        unpack(to, bytes, group, plane(row, group) >> 8 * part, scales(row, row, group));
    }

    // What `eights` needs of a run, in few loads: groups that share bytes have adjacent words and scales.
    struct Loaded {
        uint2 bytes;
        u32 planes[HIGH ? SHARED : 1], scales[(SHARED + 1) / 2];
    };
    static __device__ __forceinline__ void load(Loaded& to, const u8* row, int run, int part) {
        to.bytes = *reinterpret_cast<const uint2*>(row + WARP * run + 8 * part);
        const u8 *const planes = row + PLANES + 4 * SHARED * run, *const scales = row + SCALES + 2 * SHARED * run;
        if constexpr (SHARED == 1) {
            to.scales[0] = *reinterpret_cast<const u16*>(scales);
        } else if constexpr (SHARED == 2) {
            to.scales[0] = *reinterpret_cast<const u32*>(scales);
        } else {
            const uint2 four = *reinterpret_cast<const uint2*>(scales);
            to.scales[0] = four.x, to.scales[1] = four.y;
        }
        if constexpr (HIGH && SHARED == 2) {
            const uint2 two = *reinterpret_cast<const uint2*>(planes);
            to.planes[0] = two.x, to.planes[1] = two.y;
        } else if constexpr (HIGH) {
            const uint4 four = *reinterpret_cast<const uint4*>(planes);
            to.planes[0] = four.x, to.planes[1] = four.y, to.planes[2] = four.z, to.planes[3] = four.w;
        }
    }
    static __device__ __forceinline__ void eights(u32 (&to)[SHARED][4], const Loaded& from, int part) {
#pragma unroll
        for (int k = 0; k < SHARED; k++) {
            const half2 scale = halved(half2_of(prmt(from.scales[k / 2], 0, k % 2 ? 0x3232 : 0x1010)));
            unpack(to[k], from.bytes, k, HIGH ? from.planes[k] >> 8 * part : 0, scale);
        }
    }

    static __device__ __forceinline__ void four(
        u32 (&to)[4], const u8* first, const u8* second, int group, int part
    ) {
        const int at = WARP * (group / SHARED) + 4 * part;
        const u32 a = codes(*reinterpret_cast<const u32*>(first + at), group, plane(first, group) >> 4 * part);
        const u32 b = codes(*reinterpret_cast<const u32*>(second + at), group, plane(second, group) >> 4 * part);
        const half2 scale = scales(first, second, group);
        const u32 left = prmt(a, b, 0x5140), right = prmt(a, b, 0x7362);
        to[0] = numbers<false>(left, scale), to[1] = numbers<true>(left, scale);
        to[2] = numbers<false>(right, scale), to[3] = numbers<true>(right, scale);
    }
};

using KvQ8 = KvPacked<8, 0, false, 4 * 127, false>;
using KvQ5 = KvPacked<4, 1, false, 0, true>;
using KvQ4 = KvPacked<4, 0, false, 0, true>;
using KvTq3 = KvPacked<2, 1, true, 15, true>;
