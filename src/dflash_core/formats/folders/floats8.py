"""Weights as small floats: FP8 (E4M3) with a scale per tensor, row or block of 128 by 128, and NVFP4: E2M1 with an
E4M3 scale per 16 inputs and a float per tensor. Layouts: published checkpoints of ModelOpt and compressed-tensors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dflash_core.errors import FormatError
from dflash_core.formats.folders.parts import Part, unpacked
from dflash_core.formats.quants import Bytes
from dflash_core.formats.weights import WeightFile, shown

BLOCK = 128
"""Rows and columns of an FP8 matrix that share a scale; columns of a block of F8_E4M3."""
NAN = 0x7F
"""The code of E4M3 that is no number, but for its sign."""
FOUR_BITS = 16
"""Columns that share a scale of NVFP4."""


def fp8(file: WeightFile, name: str, scale: str) -> Part:
    """NAME.weight (outputs, inputs) times the tensor `scale`: one, one per output or one per block of 128 by 128.
    Raises FormatError or UnsupportedError."""
    weight, spans = name + ".weight", file.tensors[scale].shape
    rows, columns = file.tensors[weight].shape
    if columns % BLOCK:
        raise file.unread(name, f"has {columns:,} inputs as FP8", f"a multiple of {BLOCK}", "the model's BF16 file")
    of_blocks = (-(-rows // BLOCK), columns // BLOCK)
    if spans not in ((1,), (rows,), (rows, 1), (1, 1), of_blocks):
        expected = f"one scale, one for each of {rows:,} rows or one per block of {BLOCK} x {BLOCK}"
        raise file.unread(scale, f"has shape {list(spans)}", expected)

    def read(begin: int, end: int) -> Bytes:
        codes = file.raw(weight, slice(begin, end))
        _check_numbers(file, weight, codes)
        scales = file.float32(scale)
        if scales.size == 1:
            spread = np.broadcast_to(scales.reshape(1, 1), (end - begin, columns // BLOCK))
        elif spans == of_blocks:
            spread = scales[np.arange(begin, end) // BLOCK]
        else:
            spread = np.broadcast_to(scales.reshape(-1, 1)[begin:end], (end - begin, columns // BLOCK))
        spread = np.ascontiguousarray(spread, np.float32)[..., None].view(np.uint8)

        def blocks(first: int, last: int) -> Bytes:
            found = np.empty((last - first, columns // BLOCK, 4 + BLOCK), np.uint8)
            found[..., :4] = spread[first:last]
            found[..., 4:] = codes[first:last].reshape(last - first, -1, BLOCK)
            return found.reshape(last - first, -1)

        return unpacked(blocks, end - begin)

    return Part(name, "F8_E4M3", (rows, columns), read)


def nvfp4(file: WeightFile, name: str, codes: str, scale: str, whole: str, *, divides: bool) -> Part:
    """E2M1 `codes` (outputs, inputs / 2), the even input in the low half of a byte; scales (outputs, inputs / 16); and
    one number of the tensor, `whole`, which multiplies the matrix or, where `divides`, divides it. Raises
    FormatError or UnsupportedError."""
    rows, half = file.tensors[codes].shape
    columns, info = 2 * half, file.tensors[scale]
    if columns % 64:
        raise file.unread(name, f"has {columns:,} inputs as NVFP4", "a multiple of 64", "the model's BF16 file")
    of_scales = (rows, columns // FOUR_BITS)
    if info.type != "F8_E4M3" or info.shape != of_scales or file.tensors[whole].n_elements != 1:
        expected = f"F8_E4M3 {list(of_scales)} and one number for the tensor"
        raise file.damaged(scale, f"is {info.type} {list(info.shape)}", expected)
    stated = file.float32(whole).reshape(-1)[0]
    factor = np.float32(1) / stated if divides and stated else stated
    if not np.isfinite(factor) or not factor:
        raise file.damaged(whole, f"is {stated}", "a number other than 0")

    def read(begin: int, end: int) -> Bytes:
        scales = file.raw(scale, slice(begin, end))
        _check_numbers(file, scale, scales)
        if (scales & 0x80).any():
            raise file.damaged(scale, "is negative", "scales of at least 0")
        stored = file.raw(codes, slice(begin, end)).view("<u4").reshape(end - begin, -1, 2)

        def blocks(first: int, last: int) -> Bytes:
            # ggml's blocks of 64: four scales, then of each 16 inputs i and i + 8 in a byte.
            found = np.empty((last - first, scales.shape[1] // 4, 36), np.uint8)
            found[..., :4] = scales[first:last].reshape(last - first, -1, 4)
            found[..., 4:] = halves_in_bytes(stored[first:last]).reshape(*found.shape[:2], 32)
            return found.reshape(last - first, -1)

        return unpacked(blocks, end - begin)

    return Part(name, "NVFP4", (rows, columns), read, () if factor == 1 else (float(factor),))


def halves_in_bytes(words: npt.NDArray[np.unsignedinteger]) -> Bytes:
    """Codes of four bits, neighbours in a byte, (..., 2) words of half a group each: a byte of the result, (..., bytes
    of a group), has code i of the first half and of the second one."""
    low = words.dtype.type(int.from_bytes(b"\x0f" * words.itemsize, "little"))
    first, second, four = words[..., 0], words[..., 1], words.dtype.type(4)
    evens = (first & low) | (second & low) << four
    odds = first >> four & low | (second & ~low)
    pairs = np.stack((evens[..., None].view(np.uint8), odds[..., None].view(np.uint8)), axis=-1)
    return pairs.reshape(*words.shape[:-1], -1)


def _check_numbers(file: WeightFile, name: str, codes: Bytes) -> None:
    if ((codes & 0x7F) == NAN).any():
        raise FormatError(f"{file.path}: {shown(name)} holds values that are no numbers; download it again")
