"""Blocks that only folders of safetensors have, made of several tensors when they are read, and their values.

INT4_32, INT4_64, INT4_128: a scale of 16 bits, f16 or where BF16_SCALE is set in the byte after it bf16; in that byte
the zero, 0 to 16; then codes of four bits, two neighbours in a byte, the first in the low half. (code - zero) * scale.

INT4S_128: INT4_128 whose zeros are all 8.

F8_E4M3: a scale as f32, then 128 codes of 8 bits. code * scale.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SYMMETRIC_TYPE, GENERAL_TYPE = "INT4S_128", "INT4_128"
"""The type of groups of 128 whose zeros are all 8, which has a faster kernel, and that of any zeros: the same
blocks."""
BF16_SCALE = 0x80
_ZERO = 0x1F


def _e4m3() -> npt.NDArray[np.float32]:
    """The value of each code: a sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    found = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7))
    found = np.where(code & 0x7F == 0x7F, np.nan, found)
    return np.where(code & 0x80, -found, found).astype(np.float32)


E4M3 = _e4m3()


def int4_values(rows: npt.NDArray[np.uint8], group: int) -> npt.NDArray[np.float32]:
    """Blocks of `group` weights, (..., bytes), as floats (..., weights)."""
    blocks = rows.reshape(*rows.shape[:-1], -1, 3 + group // 2)
    bits = np.ascontiguousarray(blocks[..., :2]).view(np.uint16)[..., 0]
    flags = blocks[..., 2]
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    scale = np.where(flags & BF16_SCALE != 0, wide, bits.view(np.float16).astype(np.float32))
    codes = np.stack((blocks[..., 3:] & 15, blocks[..., 3:] >> 4), axis=-1)
    codes = codes.reshape(*codes.shape[:-2], group).astype(np.float32)
    found: npt.NDArray[np.float32] = (codes - (flags & _ZERO)[..., None]) * scale[..., None]
    return found.reshape(*rows.shape[:-1], -1)


def e4m3_values(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Blocks of F8_E4M3, (..., bytes), as floats (..., weights)."""
    blocks = rows.reshape(*rows.shape[:-1], -1, 132)
    scale = np.ascontiguousarray(blocks[..., :4]).view(np.float32)
    found: npt.NDArray[np.float32] = E4M3[blocks[..., 4:]] * scale
    return found.reshape(*rows.shape[:-1], -1)
