"""Tensor types: bytes per block, and conversion of blocks to float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_core.formats.folder_blocks import e4m3_values, int4_values

Bytes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockType:
    """A ggml type: `block` elements are stored together in `size` bytes."""

    name: str
    block: int
    size: int


SUPPORTED: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    30: BlockType("BF16", 1, 2),
    8: BlockType("Q8_0", 32, 34),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    20: BlockType("IQ4_NL", 32, 18),
    23: BlockType("IQ4_XS", 256, 136),
    21: BlockType("IQ3_S", 256, 110),
    18: BlockType("IQ3_XXS", 256, 98),
    16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74),
    22: BlockType("IQ2_S", 256, 82),
    19: BlockType("IQ1_S", 256, 50),
    29: BlockType("IQ1_M", 256, 56),
    34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66),
    39: BlockType("MXFP4", 32, 17),
    40: BlockType("NVFP4", 64, 36),
    41: BlockType("Q1_0", 128, 18),
    42: BlockType("Q2_0", 64, 18),
}

# Types of token lists: read as numbers, never as weights.
LISTS: dict[int, BlockType] = {26: BlockType("I32", 1, 4), 27: BlockType("I64", 1, 8)}

# Of folders of safetensors (formats/folder_blocks.py): no GGUF file has them.
FOLDER_TYPES: tuple[BlockType, ...] = (
    BlockType("INT4_32", 32, 19),
    BlockType("INT4_64", 64, 35),
    BlockType("INT4_128", 128, 67),
    BlockType("INT4S_128", 128, 67),
    BlockType("F8_E4M3", 128, 132),
)

# Known by name only, so that an error can name the type.
UNSUPPORTED: dict[int, str] = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
    142: "PQ2_0 (of the PrismML fork)", 143: "PTQ1_0 (of the PrismML fork)",
} | dict.fromkeys(range(133, 142), "a type of the ik_llama.cpp fork") | dict.fromkeys(
    range(144, 159), "a type of the ik_llama.cpp fork"
)  # fmt: skip

BY_NAME: dict[str, BlockType] = {kind.name: kind for kind in (*SUPPORTED.values(), *FOLDER_TYPES)}
LIST_TYPES: dict[str, BlockType] = {kind.name: kind for kind in LISTS.values()} | {"BOOL": BlockType("BOOL", 1, 1)}
SUPPORTED_NAMES = " ".join(kind.name for kind in SUPPORTED.values())
FLOATS = ("F32", "F16", "BF16")
_AT_ONCE = 1 << 14  # elements of a row that the gguf package sees


def to_int64(data: Bytes, name: str) -> npt.NDArray[np.int64]:
    """Raw bytes of a list of numbers, (count,)."""
    stored = {"I32": "<i4", "I64": "<i8", "BOOL": "?"}[name]
    return data.reshape(-1).view(stored).astype(np.int64)


def to_float32(rows: Bytes, name: str) -> Float32:
    """Rows of raw bytes as a new float32 array of the same leading shape. The last axis is a whole number of blocks."""
    if name == "F32":
        return rows.view("<f4").astype(np.float32)
    if name == "F16":
        return rows.view("<f2").astype(np.float32)
    if name == "BF16":  # the upper half of a float32
        return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
    if name.startswith("INT4"):
        return int4_values(rows, BY_NAME[name].block)
    if name == "F8_E4M3":
        return e4m3_values(rows)
    if name in _FEW_BITS:
        return _few_bits(rows, *_FEW_BITS[name])
    if not rows.size:  # gguf's dequantisers reshape to -1, which is undefined for zero rows
        return np.empty((*rows.shape[:-1], rows.shape[-1] // BY_NAME[name].size * BY_NAME[name].block), np.float32)
    dequantize, kind = _gguf_quants(name)
    count, stored = rows.size // rows.shape[-1], BY_NAME[name]
    width = rows.shape[-1] // stored.size * stored.block
    # The package takes 16 rows at a time, which for short ones is mostly its own loop: here several make up one row.
    joined = 1
    while count % (2 * joined) == 0 and 2 * joined * width <= _AT_ONCE:
        joined *= 2
    # A damaged block may have infinite scales; numpy's warnings about them would not help the user.
    with np.errstate(all="ignore"):
        values: Float32 = dequantize(rows.reshape(count // joined, -1), kind)
    return values.reshape(*rows.shape[:-1], width)


# Of the types that the gguf package cannot decode: bits of a code, and the value of code 0 and between two codes.
_FEW_BITS = {"Q1_0": (1, -1, 2), "Q2_0": (2, -1, 1)}


def _few_bits(rows: Bytes, bits: int, first: int, step: int) -> Float32:
    """Blocks of 18 bytes: d as f16, then 16 bytes of codes, the first in the lowest bits; d * (first + step * code)."""
    blocks = rows.reshape(*rows.shape[:-1], rows.shape[-1] // 18, 18)
    d = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
    codes = blocks[..., 2:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & ((1 << bits) - 1)
    values = codes.astype(np.float32) * np.float32(step) + np.float32(first)
    with np.errstate(all="ignore"):
        scaled: Float32 = values.reshape(*blocks.shape[:-1], 128 // bits) * d
    return scaled.reshape(*rows.shape[:-1], blocks.shape[-2] * (128 // bits))


@functools.cache
def _gguf_quants(name: str) -> tuple[Callable[[Bytes, Any], Float32], Any]:
    """The gguf package's dequantiser. Imported on first use: it takes half a second, and reading a header does not
    need it."""
    import gguf.quants

    return gguf.quants.dequantize, gguf.GGMLQuantizationType[name]
