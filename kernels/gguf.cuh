// Blocks of a GGUF file as stored there: SIZE bytes hold BLOCK values, and value(block, i) is the i-th of them.
// Blocks are 2-byte aligned. Layouts are ggml's.

#pragma once

#include "common.cuh"
#include "iq1_grid.cuh"
#include "iq2_grid.cuh"
#include "iq3_grid.cuh"

__device__ __forceinline__ float half_at(const u8* p) { return half_bits_float(*(const u16*)p); }

struct F32 {
    static constexpr int BLOCK = 1, SIZE = 4;
    static __device__ __forceinline__ float value(const u8* block, int) { return *(const float*)block; }
};

struct F16 {
    static constexpr int BLOCK = 1, SIZE = 2;
    static __device__ __forceinline__ float value(const u8* block, int) { return half_at(block); }
};

struct BF16 {
    static constexpr int BLOCK = 1, SIZE = 2;
    static __device__ __forceinline__ float value(const u8* block, int) { return bf16_bits_float(*(const u16*)block); }
};

struct Q8_0 {
    static constexpr int BLOCK = 32, SIZE = 34;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        return half_at(block) * (float)(i8)block[2 + i];
    }
};

// Values i and i + 16 share a byte.
__device__ __forceinline__ int nibble_of_32(const u8* bytes, int i) { return bytes[i % 16] >> (i / 16 * 4) & 15; }

struct Q4_0 {
    static constexpr int BLOCK = 32, SIZE = 18;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        return half_at(block) * (float)(nibble_of_32(block + 2, i) - 8);
    }
};

struct Q4_1 {
    static constexpr int BLOCK = 32, SIZE = 20;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        return half_at(block) * (float)nibble_of_32(block + 4, i) + half_at(block + 2);
    }
};

struct Q5_0 {
    static constexpr int BLOCK = 32, SIZE = 22;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const int high = block[2 + i / 8] >> (i % 8) & 1;
        return half_at(block) * (float)((nibble_of_32(block + 6, i) | high << 4) - 16);
    }
};

struct Q5_1 {
    static constexpr int BLOCK = 32, SIZE = 24;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const int high = block[4 + i / 8] >> (i % 8) & 1;
        return half_at(block) * (float)(nibble_of_32(block + 8, i) | high << 4) + half_at(block + 2);
    }
};

// The 16 values of IQ4_NL and IQ4_XS, as bytes of two words.
__device__ __forceinline__ float iq4_value(int nibble) {
    constexpr u64 LOW = 0xf6eaddcfbfad9881ull, HIGH = 0x7159453526190d01ull;
    return (float)(i8)((nibble < 8 ? LOW : HIGH) >> (nibble % 8 * 8));
}

struct IQ4_NL {
    static constexpr int BLOCK = 32, SIZE = 18;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        return half_at(block) * iq4_value(nibble_of_32(block + 2, i));
    }
};

struct IQ4_XS {
    static constexpr int BLOCK = 256, SIZE = 136;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const int sub = i / 32;
        const int low = block[4 + sub / 2] >> (sub % 2 * 4) & 15, high = *(const u16*)(block + 2) >> (2 * sub) & 3;
        const float scale = half_at(block) * (float)((low | high << 4) - 32);
        return scale * iq4_value(nibble_of_32(block + 8 + 16 * sub, i % 32));
    }
};

// The 6-bit scale and minimum of eight groups of 32, packed into 12 bytes.
__device__ __forceinline__ int2 k_scale_min(const u8* packed, int group) {
    if (group < 4) return make_int2(packed[group] & 63, packed[group + 4] & 63);
    const int low = packed[group + 4];
    return make_int2((low & 15) | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4);
}
// d * scale * q - dmin * min; the block starts with d, dmin and the packed scales.
__device__ __forceinline__ float k_affine(const u8* block, int group, int q) {
    const int2 scale = k_scale_min(block + 4, group);
    return half_at(block) * (float)scale.x * (float)q - half_at(block + 2) * (float)scale.y;
}
// Values i and i + 32 of each 64 share a byte.
__device__ __forceinline__ int nibble_of_64(const u8* bytes, int i) {
    return bytes[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
}

struct Q4_K {
    static constexpr int BLOCK = 256, SIZE = 144;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        return k_affine(block, i / 32, nibble_of_64(block + 16, i));
    }
};

struct Q5_K {
    static constexpr int BLOCK = 256, SIZE = 176;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const int high = block[16 + i % 32] >> (i / 32) & 1;
        return k_affine(block, i / 32, nibble_of_64(block + 48, i) | high << 4);
    }
};

struct Q6_K {
    static constexpr int BLOCK = 256, SIZE = 210;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        // In each 128: values i and i + 64 share a byte of low nibbles, i, i + 32, i + 64, i + 96 one of high pairs.
        const int part = i / 128, low = block[part * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
        const int high = block[128 + part * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        const float scale = half_at(block + 208) * (float)(i8)block[192 + i / 16];
        return scale * (float)((low | high << 4) - 32);
    }
};

struct Q3_K {
    static constexpr int BLOCK = 256, SIZE = 110;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const u8* packed = block + 96;
        const int group = i / 16;
        const int low = packed[group % 8] >> (group / 8 * 4) & 15, high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        const float scale = half_at(block + 108) * (float)((low | high << 4) - 32);
        const int pair = block[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        const int lifted = block[i % 32] >> (i / 32) & 1;  // a clear bit subtracts 4
        return scale * (float)(pair - (lifted ? 0 : 4));
    }
};

// Four neighbouring values have an entry of a grid; eight have a byte of signs.
__device__ __forceinline__ float iq3_signed(int magnitude, int signs, int i) {
    return (float)(signs >> (i % 8) & 1 ? -magnitude : magnitude);
}

// Seven signs of eight values, whose last makes the number of negative ones even.
__device__ __forceinline__ int eight_signs(u32 seven) { return int(seven | (u32)__popc(seven) << 7); }

struct IQ3_S {
    static constexpr int BLOCK = 256, SIZE = 110;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const int four = i / 4, sub = i / 32, high = block[66 + four / 8] >> (four % 8) & 1;
        const int magnitude = iq3_grid_value(IQ3_S_GRID[block[2 + four] | high << 8], i % 4, 2, 15);
        const int scale = 1 + 2 * (block[106 + sub / 2] >> (sub % 2 * 4) & 15);
        return half_at(block) * (float)scale * iq3_signed(magnitude, block[74 + i / 8], i);
    }
};

struct IQ3_XXS {
    static constexpr int BLOCK = 256, SIZE = 98;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const u16* words = (const u16*)(block + 66) + i / 32 * 2;
        const u32 packed = words[0] | (u32)words[1] << 16;
        const int signs = eight_signs(packed >> (i / 8 % 4 * 7) & 127u);
        const int magnitude = iq3_grid_value(IQ3_XXS_GRID[block[2 + i / 4]], i % 4, 8, 62);
        return half_at(block) * 0.25f * (float)((packed >> 28) * 2 + 1) * iq3_signed(magnitude, signs, i);
    }
};

// In each 128: values i, i + 32, i + 64 and i + 96 share a byte.
__device__ __forceinline__ int pair_of_128(const u8* bytes, int i) {
    return bytes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
}

struct Q2_K {
    static constexpr int BLOCK = 256, SIZE = 84;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const int scale = block[i / 16];
        return half_at(block + 80) * (float)(scale & 15) * (float)pair_of_128(block + 16, i) -
               half_at(block + 82) * (float)(scale >> 4);
    }
};

__device__ __forceinline__ float iq2_scaled(float d, int scale) { return d * ((float)scale + 0.5f) * 0.25f; }

struct IQ2_XXS {
    static constexpr int BLOCK = 256, SIZE = 66;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const u8* sub = block + 2 + i / 32 * 8;
        const u32 packed = ((const u16*)sub)[2] | (u32)((const u16*)sub)[3] << 16;
        const int magnitude = iq2_grid_value(IQ2_XXS_GRID[sub[i / 8 % 4]], i % 8);
        const int signs = eight_signs(packed >> (i / 8 % 4 * 7) & 127u);
        return iq2_scaled(half_at(block), packed >> 28) * iq3_signed(magnitude, signs, i);
    }
};

struct IQ2_XS {
    static constexpr int BLOCK = 256, SIZE = 74;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const u32 packed = ((const u16*)(block + 2))[i / 8];
        const int magnitude = iq2_grid_value(IQ2_XS_GRID[packed & 511], i % 8);
        const int scale = block[66 + i / 32] >> (i / 16 % 2 * 4) & 15;
        return iq2_scaled(half_at(block), scale) * iq3_signed(magnitude, eight_signs(packed >> 9), i);
    }
};

struct IQ2_S {
    static constexpr int BLOCK = 256, SIZE = 82;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const int high = block[66 + i / 32] >> (i / 8 % 4 * 2) & 3, scale = block[74 + i / 32] >> (i / 16 % 2 * 4) & 15;
        const int magnitude = iq2_grid_value(IQ2_S_GRID[block[2 + i / 8] | high << 8], i % 8);
        return iq2_scaled(half_at(block), scale) * iq3_signed(magnitude, block[34 + i / 8], i);
    }
};

// d * scale * (-1, 0 or 1, with 1 / 8 more or less).
__device__ __forceinline__ float iq1_value(float scaled, int entry, int i, bool negative) {
    return scaled * ((float)((entry >> (i % 8 * 2) & 3) - 1) + (negative ? -0.125f : 0.125f));
}

struct IQ1_S {
    static constexpr int BLOCK = 256, SIZE = 50;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const int packed = ((const u16*)(block + 34))[i / 32], high = packed >> (i / 8 % 4 * 3) & 7;
        const float scaled = half_at(block) * (float)(2 * (packed >> 12 & 7) + 1);
        return iq1_value(scaled, IQ1_GRID[block[2 + i / 8] | high << 8], i, packed >> 15);
    }
};

struct IQ1_M {
    static constexpr int BLOCK = 256, SIZE = 56;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const u16* words = (const u16*)(block + 48);
        const int d = words[0] >> 12 | words[1] >> 12 << 4 | words[2] >> 12 << 8 | words[3] >> 12 << 12;
        const int high = block[32 + i / 16] >> (i / 8 % 2 * 4) & 15, scale = words[i / 64] >> (i / 16 % 4 * 3) & 7;
        const float scaled = half_bits_float(u16(d)) * (float)(2 * scale + 1);
        return iq1_value(scaled, IQ1_GRID[block[i / 8] | (high & 7) << 8], i, high >> 3);
    }
};

struct TQ1_0 {
    static constexpr int BLOCK = 256, SIZE = 54;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        // Digit n of byte b of 32 bytes, of 16, of 4.
        const int first = i < 160 ? 0 : i < 240 ? 160 : 240, bytes = i < 160 ? 32 : i < 240 ? 16 : 4, at = i - first;
        u32 digit = block[first / 5 + at % bytes];
        for (int n = at / bytes; n > 0; --n) digit = digit * 3 & 255;
        return half_at(block + 52) * (float)((int)(digit * 3 >> 8) - 1);
    }
};

struct TQ2_0 {
    static constexpr int BLOCK = 256, SIZE = 66;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        return half_at(block + 64) * (float)(pair_of_128(block, i) - 1);
    }
};

// Four bits: a sign and the f32 numbers 0, 0.5, 1, 1.5, 2, 3, 4, 6, twice as integers.
__device__ __forceinline__ float fp4_value(int nibble) {
    const int twice = 0xc8643210u >> (nibble % 8 * 4) & 15;
    return 0.5f * (float)(nibble & 8 ? -twice : twice);
}

struct MXFP4 {
    static constexpr int BLOCK = 32, SIZE = 17;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const u32 e = block[0];
        return __uint_as_float(e ? e << 23 : 1u << 22) * fp4_value(nibble_of_32(block + 1, i));
    }
};

struct NVFP4 {
    static constexpr int BLOCK = 64, SIZE = 36;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const u8 *bytes = block + 4 + i / 16 * 8, scale = block[i / 16];
        // The bits of the scale in the place of an f16's are 1 / 256 of it.
        const float s = scale == 0x7f ? 0.0f : 256.0f * half_bits_float(u16((scale & 127) << 7));
        return s * fp4_value(bytes[i % 8] >> (i / 8 % 2 * 4) & 15);
    }
};

struct Q1_0 {
    static constexpr int BLOCK = 128, SIZE = 18;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        return block[2 + i / 8] >> (i % 8) & 1 ? half_at(block) : -half_at(block);
    }
};

struct Q2_0 {
    static constexpr int BLOCK = 64, SIZE = 18;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        return half_at(block) * (float)((block[2 + i / 4] >> (i % 4 * 2) & 3) - 1);
    }
};

// Blocks of folders of safetensors; those of INT4 are not aligned.
template <int GROUP> struct Int4Block {
    static constexpr int BLOCK = GROUP, SIZE = 3 + GROUP / 2;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const u32 bits = u32(block[0]) | u32(block[1]) << 8;
        const float scale = block[2] & 0x80 ? __uint_as_float(bits << 16) : half_bits_float(u16(bits));
        return scale * (float)((block[3 + i / 2] >> (i % 2 * 4) & 15) - (block[2] & 0x1f));
    }
};
using INT4_32 = Int4Block<32>;
using INT4_64 = Int4Block<64>;
using INT4_128 = Int4Block<128>;
using INT4S_128 = Int4Block<128>;

struct F8_E4M3 {
    static constexpr int BLOCK = 128, SIZE = 132;
    static __device__ __forceinline__ float value(const u8* block, int i) {
        const u32 code = block[4 + i];
        // The bits of a code in the place of an f16's are 1 / 256 of it.
        const float v = 256.0f * half_bits_float(u16((code & 128) << 8 | (code & 127) << 7));
        return *(const float*)block * v;
    }
};

// Value `at` of row `row` of a matrix with rows of LENGTH values.
template <class Format, int LENGTH> __device__ __forceinline__ float row_value(const u8* matrix, int row, int at) {
    constexpr u64 ROW_BYTES = (u64)LENGTH / Format::BLOCK * Format::SIZE;
    return Format::value(matrix + row * ROW_BYTES + (u64)(at / Format::BLOCK) * Format::SIZE, at % Format::BLOCK);
}
