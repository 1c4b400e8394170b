"""Weights of four bits with a scale and a zero per group of inputs: (code - zero) * scale.

Three layouts, all with eight codes in a word of 32 bits: GPTQ packs along the inputs, AWQ along the outputs in an order
of its own, compressed-tensors along the inputs with rows of outputs. Layouts: the published unpackers of AutoRound,
AutoAWQ and compressed-tensors. Scales may be negative: about half of AutoRound's are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.folder_blocks import BF16_SCALE, SYMMETRIC_TYPE
from dflash_core.formats.folders.parts import unpacked
from dflash_core.formats.quants import LIST_TYPES, Bytes, to_int64
from dflash_core.formats.weights import StoredWeights, shown

Words = npt.NDArray[np.uint32]
GROUPS = (32, 64, 128)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble n of a word has column 8 c + AWQ_ORDER[n]."""
SCALES = ("F16", "BF16")
SYMMETRIC = 8
"""The zero of a matrix that stores none."""


@dataclass(frozen=True, slots=True)
class Gptq:
    """NAME.qweight (inputs / 8, outputs), NAME.scales (groups, outputs), NAME.qzeros (groups, outputs / 8).

    plus_one: whether the file stores zeros minus one, as the first version of the format does. symmetric: whether all
    zeros are 8, by what the folder says until `settled`.
    """

    file: StoredWeights
    name: str
    plus_one: bool
    symmetric: bool = False
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        words, outputs = self.file.tensors[self.name + ".qweight"].shape
        return outputs, words * 8

    @property
    def type(self) -> str:
        groups = self.file.tensors[self.name + ".scales"].shape[0]
        return int4_type(self.file, self.name, self.shape[1], groups, self.symmetric)

    def settled(self) -> Gptq:
        """By the zeros, since what configs say of them is often wrong. Raises UnsupportedError for another order."""
        self.check_order(self.shape[1])
        if (name := self.name + ".qzeros") not in self.file.tensors:
            return replace(self, symmetric=True)
        eights = 0x77777777 if self.plus_one else 0x88888888
        return replace(self, symmetric=bool((self.file.raw(name).view("<u4") == eights).all()))

    def check_order(self, count: int) -> None:
        """Refuse groups of inputs that are not neighbours, by the groups of the first `count` inputs. Raises
        UnsupportedError."""
        if (name := self.name + ".g_idx") not in self.file.tensors:
            return
        inputs, groups = self.shape[1], self.file.tensors[self.name + ".scales"].shape[0]
        if not np.array_equal(_first(self.file, name, count), np.arange(min(count, inputs)) // (inputs // groups)):
            raise UnsupportedError(
                f"{self.file.path}: {shown(name)} orders inputs by activation (desc_act), expected groups of"
                " neighbours; use a file without, or the model's GGUF"
            )

    def read(self, begin: int, end: int) -> Bytes:
        words = _columns(self.file, self.name + ".qweight", begin, end)
        scales = _columns(self.file, self.name + ".scales", begin, end).T
        zeros: npt.NDArray[np.uint8] | int = SYMMETRIC
        if self.name + ".qzeros" in self.file.tensors:
            first, last = begin // 8, -(-end // 8)
            packed = _columns(self.file, self.name + ".qzeros", first, last)
            zeros = _nibbles(packed, range(8))[:, begin - 8 * first : end - 8 * first].T + self.plus_one

        def codes(begin: int, end: int) -> Bytes:
            return np.ascontiguousarray(words[:, begin:end].T).view(np.uint8)

        return _blocks(codes, scales, zeros, _is_bf16(self.file, self.name + ".scales"))


@dataclass(frozen=True, slots=True)
class Awq:
    """NAME.qweight (inputs, outputs / 8), NAME.scales (groups, outputs), NAME.qzeros (groups, outputs / 8)."""

    file: StoredWeights
    name: str
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        inputs, words = self.file.tensors[self.name + ".qweight"].shape
        return words * 8, inputs

    @property
    def type(self) -> str:
        return int4_type(self.file, self.name, self.shape[1], self.file.tensors[self.name + ".scales"].shape[0])

    def read(self, begin: int, end: int) -> Bytes:
        first, last = begin // 8, -(-end // 8)
        part = slice(begin - 8 * first, end - 8 * first)
        words = _columns(self.file, self.name + ".qweight", first, last)
        scales = _columns(self.file, self.name + ".scales", begin, end).T
        zeros: npt.NDArray[np.uint8] | int = SYMMETRIC
        if self.name + ".qzeros" in self.file.tensors:
            zeros = _nibbles(_columns(self.file, self.name + ".qzeros", first, last), AWQ_ORDER)[:, part].T

        def codes(begin: int, end: int) -> Bytes:
            at = part.start + begin
            packed = _awq_codes(words[:, at // 8 : -(-(part.start + end) // 8)])
            return packed[at % 8 : at % 8 + end - begin]

        return _blocks(codes, scales, zeros, _is_bf16(self.file, self.name + ".scales"))


@dataclass(frozen=True, slots=True)
class Packed:
    """NAME.weight_packed (outputs, inputs / 8), NAME.weight_scale (outputs, groups), and where the zeros are not all 8
    NAME.weight_zero_point (outputs / 8, groups), of compressed-tensors."""

    file: StoredWeights
    name: str
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        outputs, words = self.file.tensors[self.name + ".weight_packed"].shape
        return outputs, words * 8

    @property
    def type(self) -> str:
        groups = self.file.tensors[self.name + ".weight_scale"].shape[-1]
        symmetric = self.name + ".weight_zero_point" not in self.file.tensors
        return int4_type(self.file, self.name, self.shape[1], groups, symmetric)

    def read(self, begin: int, end: int) -> Bytes:
        packed = self.file.raw(self.name + ".weight_packed", slice(begin, end))
        scales = self.file.raw(self.name + ".weight_scale", slice(begin, end)).view(np.uint16)
        zeros: npt.NDArray[np.uint8] | int = SYMMETRIC
        if self.name + ".weight_zero_point" in self.file.tensors:
            first, last = begin // 8, -(-end // 8)
            stored = self.file.raw(self.name + ".weight_zero_point", slice(first, last)).view(np.uint32)
            zeros = _nibbles(np.ascontiguousarray(stored.T), range(8))[:, begin - 8 * first : end - 8 * first].T
        bf16 = _is_bf16(self.file, self.name + ".weight_scale")
        return _blocks(lambda begin, end: packed[begin:end], scales, zeros, bf16)


def _awq_codes(words: npt.NDArray[np.unsignedinteger]) -> Bytes:
    """(inputs, n) words to (8 n, inputs / 2) codes, two neighbours in a byte."""
    found = np.empty((words.shape[1], 8, len(words) // 2), np.uint8)
    for nibble, place in enumerate(AWQ_ORDER):
        codes = (words >> np.uint32(4 * nibble)).astype(np.uint8) & 15
        found[:, place] = (codes[0::2] | codes[1::2] << 4).T
    return found.reshape(8 * words.shape[1], -1)


def int4_type(file: StoredWeights, name: str, inputs: int, groups: int, symmetric: bool = False) -> str:
    """The type of blocks of so many groups. `symmetric`: whether all zeros are 8. Raises UnsupportedError for a size of
    groups that no type has."""
    size, rest = divmod(inputs, groups)
    if rest or size not in GROUPS:
        found = f"groups of {size}" if not rest else f"{groups} groups"
        raise UnsupportedError(
            f"{file.path}: {shown(name)} has {found} over {inputs:,} inputs, expected groups of"
            f" {', '.join(map(str, GROUPS))}; use a file with such groups, or the model's GGUF"
        )
    return SYMMETRIC_TYPE if symmetric and size == 128 else f"INT4_{size}"


def check_int4(file: StoredWeights, name: str, scales: str, zeros: str, outputs: int, inputs: int) -> None:
    """Refuse scales and zeros that do not belong to their codes. Raises FormatError or UnsupportedError."""
    of_scales, of_zeros = file.tensors[scales], file.tensors.get(zeros)
    if of_scales.type not in SCALES:
        raise UnsupportedError(
            f"{file.path}: {shown(scales)} is stored as {of_scales.type}, expected {' or '.join(SCALES)}; use another"
            " file of the model"
        )
    by_row = scales.endswith("weight_scale")
    groups = of_scales.shape[-1] if by_row else of_scales.shape[0]
    expected = (outputs, groups) if by_row else (groups, outputs)
    if of_scales.shape != expected or outputs % 8:
        raise FormatError(
            f"{file.path}: {shown(scales)} has shape {list(of_scales.shape)}, expected {list(expected)} for"
            f" {outputs:,} outputs, a multiple of 8; download it again"
        )
    expected = (outputs // 8, groups) if by_row else (groups, outputs // 8)
    if of_zeros is not None and (of_zeros.shape != expected or of_zeros.type != "I32"):
        raise FormatError(
            f"{file.path}: {shown(zeros)} is {of_zeros.type} {list(of_zeros.shape)}, expected I32 {list(expected)};"
            " download it again"
        )
    int4_type(file, name, inputs, groups)


def _is_bf16(file: StoredWeights, scales: str) -> bool:
    return file.tensors[scales].type == "BF16"


def _first(file: StoredWeights, name: str, count: int) -> npt.NDArray[np.int64]:
    """The first numbers of a list. Raises FormatError where the tensor is none."""
    info = file.tensors[name]
    if count >= info.n_elements or info.type not in LIST_TYPES:
        return file.int64(name)
    size = info.n_bytes // info.n_elements
    return to_int64(file.shards[info.shard].read(info.offset, count * size), info.type)


def _columns(file: StoredWeights, name: str, begin: int, end: int) -> npt.NDArray[np.unsignedinteger]:
    """Columns of a stored matrix, (rows, end - begin), as words of their size."""
    info = file.tensors[name]
    rows, columns = info.shape
    size = info.n_bytes // info.n_elements
    kind = {2: np.uint16, 4: np.uint32}[size]
    if end - begin == columns:
        return file.raw(name).view(kind)
    found = np.empty((rows, (end - begin) * size), np.uint8)
    shard = file.shards[info.shard]
    for row in range(rows):
        shard.read(info.offset + (row * columns + begin) * size, (end - begin) * size, found[row])
    return found.view(kind)


def _nibbles(words: npt.NDArray[np.unsignedinteger], order: tuple[int, ...] | range) -> npt.NDArray[np.uint8]:
    """(rows, n) words to (rows, 8 n) codes, nibble n of a word at place order[n]."""
    found = np.empty((*words.shape, 8), np.uint8)
    for nibble, place in enumerate(order):
        found[..., place] = words >> np.uint32(4 * nibble) & np.uint32(15)
    return found.reshape(len(words), -1)


def _blocks(
    codes: Callable[[int, int], Bytes],
    scales: npt.NDArray[np.unsignedinteger],
    zeros: npt.NDArray[np.uint8] | int,
    bf16: bool,
) -> Bytes:
    """Blocks of INT4_32 and so on from scales and zeros (rows, groups), and codes, two neighbours in a byte (rows,
    inputs / 2), which are asked for part by part (begin, end)."""
    rows, groups = scales.shape
    bits = np.ascontiguousarray(scales, np.uint16)[..., None].view(np.uint8)
    flagged = np.broadcast_to(np.asarray(zeros, np.uint8), (rows, groups)) | np.uint8(BF16_SCALE * bf16)

    def blocks(begin: int, end: int) -> Bytes:
        packed = codes(begin, end).reshape(end - begin, groups, -1)
        found = np.empty((end - begin, groups, 3 + packed.shape[2]), np.uint8)
        found[..., :2], found[..., 2], found[..., 3:] = bits[begin:end], flagged[begin:end], packed
        return found.reshape(end - begin, -1)

    return unpacked(blocks, rows)
