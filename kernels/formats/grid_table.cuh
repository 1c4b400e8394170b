// A grid of eight values per entry in shared memory, and how a lane of a warp reads its four of them.
//
// An entry is one word: the eight digits in a nibble each, four of which select bytes of a register with prmt. The two
// lanes that share eight weights read the same word. COPIES of the table lie beside each other, and lanes are divided among
// them: each copy has 32 / COPIES banks, so fewer lanes meet in a bank.

#pragma once

#include "formats/format.cuh"

template <int COUNT_, int COPIES_> struct GridTable {
    static constexpr int COUNT = COUNT_, COPIES = COPIES_;
    alignas(16) u32 word[COUNT * COPIES];

    // By all threads of the block, four entries at a time: few reads wait for each other. After the grid's entries, there may
    // be the same once more with digits from 4 on.
    template <int ENTRIES> __device__ __forceinline__ void fill(const u16 (&grid)[ENTRIES]) {
        static_assert(COUNT == ENTRIES || COUNT == 2 * ENTRIES, "the grid once or twice");
        for (int i = threadIdx.x; i < ENTRIES / 4; i += blockDim.x) {
            const uint2 read = ((const uint2*)grid)[i];
            u32 digits[4] = {read.x & 0xffffu, read.x >> 16, read.y & 0xffffu, read.y >> 16};  // two bits each
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                digits[j] = (digits[j] | digits[j] << 8) & 0x00ff00ffu;
                digits[j] = (digits[j] | digits[j] << 4) & 0x0f0f0f0fu;
                digits[j] = (digits[j] | digits[j] << 2) & 0x33333333u;
            }
#pragma unroll
            for (int half = 0; half < COUNT / ENTRIES; ++half) {
                uint4* to = (uint4*)word + (half * ENTRIES / 4 + i) * COPIES;
#pragma unroll
                for (int copy = 0; copy < COPIES; ++copy) {
                    const int at = 4 * copy;
                    to[copy] = make_uint4(
                        digits[at / COPIES], digits[(at + 1) / COPIES], digits[(at + 2) / COPIES], digits[(at + 3) / COPIES]);
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) digits[j] |= 0x44444444u;
            }
        }
    }
    // The lane's nibbles of the entry of byte i of `low` and of `high`, a multiple of 256: the values of an even lane are the
    // first four.
    __device__ __forceinline__ u32 four(u32 low, int i, u32 high, int lane) const {
        const u8* const mine = (const u8*)word + (lane >> 1) % COPIES * 4 + (lane & 1) * 2;
        return look_up_shared2(mine, low, u32(4 * COPIES) << (8 * i), high * (4 * COPIES));
    }
};

// Bits that the lane has for its eight registers of a unit, register r's bit of value j at 4 j + r % 4 + 16 (r / 4): brought
// to bit 2 of nibble j.
__device__ __forceinline__ u32 bits_of_register(u32 bits, int r) {
    // Shifts to the left are not made by the unit that all else here needs.
    const u32 half = r < 4 ? bits : upper_half_by_dot(bits);
    const int shift = (r & 3) - 2;
    return (shift < 0 ? half << -shift : half >> shift) & 0x4444u;
}
