"""Weights as small floats: FP8 (E4M3) with a scale per tensor, row or block of 128 by 128, and NVFP4: E2M1 with an
E4M3 scale per 16 inputs and a float per tensor. Layouts: published checkpoints of ModelOpt and compressed-tensors."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Fp8(Part):
    """NAME.weight (outputs, inputs) times NAME.weight_scale, one, one per output or one per block of 128 by 128 (also
    called weight_scale_inv, which is multiplied too)."""

    file: WeightFile
    name: str
    scale: str
    type: str = "F8_E4M3"

    def __post_init__(self) -> None:
        rows, columns = self.shape
        if columns % BLOCK:
            inputs = f"has {columns:,} inputs as FP8"
            raise self.file.unread(self.name, inputs, f"a multiple of {BLOCK}", "the model's BF16 file")
        found = self.file.tensors[self.scale].shape
        if found not in ((1,), (rows,), (rows, 1), (1, 1), (-(-rows // BLOCK), columns // BLOCK)):
            expected = f"one scale, one for each of {rows:,} rows or one per block of {BLOCK} x {BLOCK}"
            raise self.file.unread(self.scale, f"has shape {list(found)}", expected)

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.file.tensors[self.name + ".weight"].shape
        return rows, columns

    def read(self, begin: int, end: int) -> Bytes:
        rows, columns = self.shape
        codes = self.file.raw(self.name + ".weight", slice(begin, end))
        _check_numbers(self.file, self.name + ".weight", codes)
        scales = self.file.float32(self.scale)
        if scales.size == 1:
            spread = np.broadcast_to(scales.reshape(1, 1), (end - begin, columns // BLOCK))
        elif scales.size == rows and scales.shape != (-(-rows // BLOCK), columns // BLOCK):
            spread = np.broadcast_to(scales.reshape(-1, 1)[begin:end], (end - begin, columns // BLOCK))
        else:
            spread = scales[np.arange(begin, end) // BLOCK]
        spread = np.ascontiguousarray(spread, np.float32)[..., None].view(np.uint8)

        def blocks(first: int, last: int) -> Bytes:
            found = np.empty((last - first, columns // BLOCK, 4 + BLOCK), np.uint8)
            found[..., :4] = spread[first:last]
            found[..., 4:] = codes[first:last].reshape(last - first, -1, BLOCK)
            return found.reshape(last - first, -1)

        return unpacked(blocks, end - begin)


@dataclass(frozen=True, slots=True)
class Nvfp4(Part):
    """E2M1 codes (outputs, inputs / 2), the even input in the low half of a byte; scales (outputs, inputs / 16); and
    one number of the tensor, `whole`, which multiplies the matrix or, where `divides`, divides it."""

    file: WeightFile
    name: str
    codes: str
    scale: str
    whole: str
    divides: bool
    type: str = "NVFP4"

    def __post_init__(self) -> None:
        rows, half = self.file.tensors[self.codes].shape
        columns, info, whole = 2 * half, self.file.tensors[self.scale], self.file.tensors[self.whole]
        if columns % 64:
            inputs = f"has {columns:,} inputs as NVFP4"
            raise self.file.unread(self.name, inputs, "a multiple of 64", "the model's BF16 file")
        if info.type != "F8_E4M3" or info.shape != (rows, columns // FOUR_BITS) or whole.n_elements != 1:
            expected = f"F8_E4M3 {[rows, columns // FOUR_BITS]} and one number for the tensor"
            raise self.file.damaged(self.scale, f"is {info.type} {list(info.shape)}", expected)

    @property
    def shape(self) -> tuple[int, int]:
        rows, half = self.file.tensors[self.codes].shape
        return rows, 2 * half

    @property
    def factors(self) -> tuple[float, ...]:
        whole = self.file.float32(self.whole).reshape(-1)[0]
        found = np.float32(1) / whole if self.divides and whole else whole
        if not np.isfinite(found) or not found:
            raise self.file.damaged(self.whole, f"is {whole}", "a number other than 0")
        return () if found == 1 else (float(found),)

    def read(self, begin: int, end: int) -> Bytes:
        scales = self.file.raw(self.scale, slice(begin, end))
        _check_numbers(self.file, self.scale, scales)
        if (scales & 0x80).any():
            raise self.file.damaged(self.scale, "is negative", "scales of at least 0")
        stored = self.file.raw(self.codes, slice(begin, end)).view("<u4").reshape(end - begin, -1, 2)

        def blocks(first: int, last: int) -> Bytes:
            # ggml's blocks of 64: four scales, then of each 16 inputs i and i + 8 in a byte.
            found = np.empty((last - first, scales.shape[1] // 4, 36), np.uint8)
            found[..., :4] = scales[first:last].reshape(last - first, -1, 4)
            found[..., 4:] = halves_in_bytes(stored[first:last]).reshape(*found.shape[:2], 32)
            return found.reshape(last - first, -1)

        return unpacked(blocks, end - begin)


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
