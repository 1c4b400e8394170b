"""Weights of four bits with a scale and a zero per group of inputs: (code - zero) * scale.

Three layouts, all with eight codes in a word of 32 bits: GPTQ packs along the inputs, AWQ along the outputs in an order
of its own, compressed-tensors along the inputs with rows of outputs. Layouts: the published unpackers of AutoRound,
AutoAWQ and compressed-tensors. Scales may be negative: about half of AutoRound's are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dflash_core.formats.folder_blocks import BF16_SCALE, SYMMETRIC_TYPE
from dflash_core.formats.folders.parts import Part, unpacked
from dflash_core.formats.quants import LIST_TYPES, Bytes, to_int64
from dflash_core.formats.weights import WeightFile

Words = npt.NDArray[np.unsignedinteger]
GROUPS = (32, 64, 128)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble n of a word has column 8 c + AWQ_ORDER[n]."""
SCALE_TYPES = ("F16", "BF16")
FIRST_INPUTS = 64
"""Inputs whose order is read when a folder is opened: an order by activation shows there. A load reads the rest."""
SYMMETRIC = 8
"""The zero of a matrix that stores none."""


@dataclass(frozen=True, slots=True)
class Int4:
    """What the layouts share.

    plus_one: whether the file stores zeros minus one. symmetric: whether all zeros are 8.
    """

    file: WeightFile
    name: str
    plus_one: bool = False
    symmetric: bool = False
    codes: ClassVar[str]
    scales: ClassVar[str]
    zeros: ClassVar[str]
    order: ClassVar[tuple[int, ...]] = tuple(range(8))
    by_row: ClassVar[bool] = False
    """Whether outputs are rows of the tensors, and not columns."""

    def part(self) -> Part:
        """Raises FormatError or UnsupportedError for scales and zeros that do not belong to their codes, and for a size
        of groups that no type has."""
        file, tensors, (outputs, inputs) = self.file, self.file.tensors, self.shape
        scales, zeros = tensors[self.name + self.scales], tensors.get(self.name + self.zeros)
        if scales.type not in SCALE_TYPES:
            raise file.unread(scales.name, f"is stored as {scales.type}", " or ".join(SCALE_TYPES))
        expected, of_zeros = ((count, self._groups) for count in (outputs, outputs // 8))
        if not self.by_row:
            expected, of_zeros = expected[::-1], of_zeros[::-1]
        if scales.shape != expected or outputs % 8:
            needed = f"{list(expected)} for {outputs:,} outputs, a multiple of 8"
            raise file.damaged(scales.name, f"has shape {list(scales.shape)}", needed)
        if zeros is not None and (zeros.shape != of_zeros or zeros.type != "I32"):
            raise file.damaged(zeros.name, f"is {zeros.type} {list(zeros.shape)}", f"I32 {list(of_zeros)}")
        size, rest = divmod(inputs, self._groups)
        if rest or size not in GROUPS:
            found = f"groups of {size}" if not rest else f"{self._groups} groups"
            expected_groups = f"groups of {', '.join(map(str, GROUPS))}"
            use = "a file with such groups, or the model's GGUF"
            raise file.unread(self.name, f"has {found} over {inputs:,} inputs", expected_groups, use)
        kind = SYMMETRIC_TYPE if (self.symmetric or zeros is None) and size == 128 else f"INT4_{size}"
        return Part(self.name, kind, self.shape, self.read)

    @property
    def shape(self) -> tuple[int, int]:
        stored = self.file.tensors[self.name + self.codes].shape
        outputs, words = stored if self.by_row else stored[::-1]
        return outputs, words * 8

    @property
    def _groups(self) -> int:
        return self.file.tensors[self.name + self.scales].shape[-1 if self.by_row else 0]

    def read(self, begin: int, end: int) -> Bytes:
        scales, zeros = self._of(self.scales, begin, end), np.full((1, 1), SYMMETRIC, np.uint8)
        if self.name + self.zeros in self.file.tensors:
            first = begin // 8
            packed = np.ascontiguousarray(self._of(self.zeros, first, -(-end // 8)).T)
            zeros = _nibbles(packed, self.order)[:, begin - 8 * first : end - 8 * first].T + np.uint8(self.plus_one)
        rows, groups = scales.shape
        bits = np.ascontiguousarray(scales, np.uint16)[..., None].view(np.uint8)
        bf16 = self.file.tensors[self.name + self.scales].type == "BF16"
        flagged = np.broadcast_to(zeros, scales.shape) | np.uint8(BF16_SCALE * bf16)
        codes = self._codes(begin, end)

        def blocks(begin: int, end: int) -> Bytes:
            packed = codes(begin, end).reshape(end - begin, groups, -1)
            found = np.empty((end - begin, groups, 3 + packed.shape[2]), np.uint8)
            found[..., :2], found[..., 2], found[..., 3:] = bits[begin:end], flagged[begin:end], packed
            return found.reshape(end - begin, -1)

        return unpacked(blocks, rows)

    def _codes(self, begin: int, end: int) -> Callable[[int, int], Bytes]:
        """What gives the codes of some of these rows, (rows, inputs / 2), two neighbours in a byte."""
        words = self._of(self.codes, begin, end)
        return lambda begin, end: np.ascontiguousarray(words[begin:end]).view(np.uint8)

    def _of(self, tensor: str, begin: int, end: int) -> Words:
        """Words of some outputs, (end - begin, words)."""
        name = self.name + tensor
        info = self.file.tensors[name]
        size, rows, columns = info.n_bytes // info.n_elements, *info.shape
        kind = {2: np.uint16, 4: np.uint32}[size]
        if self.by_row:
            return self.file.raw(name, slice(begin, end)).view(kind)
        if end - begin == columns:
            return self.file.raw(name).view(kind).T
        found = np.empty((rows, (end - begin) * size), np.uint8)
        shard = self.file.shards[info.shard]
        for row in range(rows):
            shard.read(info.offset + (row * columns + begin) * size, (end - begin) * size, found[row])
        return found.view(kind).T


@dataclass(frozen=True, slots=True)
class Gptq(Int4):
    """NAME.qweight (inputs / 8, outputs), NAME.scales (groups, outputs), NAME.qzeros (groups, outputs / 8).

    The first version of the format stores zeros minus one. symmetric: by what the folder says until it is settled.
    """

    codes, scales, zeros = ".qweight", ".scales", ".qzeros"

    def part(self) -> Part:
        self._check_order(FIRST_INPUTS)
        return replace(Int4.part(self), settle=self._settled)

    def _settled(self) -> Part:
        """By the zeros, since what configs say of them is often wrong. Raises UnsupportedError for another order."""
        self._check_order(self.shape[1])
        name, eights = self.name + self.zeros, 0x77777777 if self.plus_one else 0x88888888
        symmetric = name not in self.file.tensors or bool((self.file.raw(name).view("<u4") == eights).all())
        return Int4.part(replace(self, symmetric=symmetric))

    def _check_order(self, count: int) -> None:
        """Refuse groups of inputs that are not neighbours, by the groups of the first `count` inputs. Raises
        UnsupportedError."""
        if (name := self.name + ".g_idx") not in self.file.tensors:
            return
        inputs = self.shape[1]
        neighbours = np.arange(min(count, inputs)) // (inputs // self._groups)
        if not np.array_equal(_first(self.file, name, count), neighbours):
            order, use = "orders inputs by activation (desc_act)", "a file without, or the model's GGUF"
            raise self.file.unread(name, order, "groups of neighbours", use)


@dataclass(frozen=True, slots=True)
class Awq(Int4):
    """NAME.qweight (inputs, outputs / 8), NAME.scales (groups, outputs), NAME.qzeros (groups, outputs / 8). Without the
    last all zeros are 8, as in the other layouts."""

    codes, scales, zeros = ".qweight", ".scales", ".qzeros"
    order = AWQ_ORDER

    @property
    def shape(self) -> tuple[int, int]:
        inputs, words = self.file.tensors[self.name + self.codes].shape
        return words * 8, inputs

    def _codes(self, begin: int, end: int) -> Callable[[int, int], Bytes]:
        words, start = self._of(self.codes, begin // 8, -(-end // 8)), begin % 8

        def codes(begin: int, end: int) -> Bytes:
            first, last = start + begin, start + end
            packed = _awq_codes(words[first // 8 : -(-last // 8)].T)
            return packed[first % 8 : first % 8 + end - begin]

        return codes


@dataclass(frozen=True, slots=True)
class Packed(Int4):
    """NAME.weight_packed (outputs, inputs / 8), NAME.weight_scale (outputs, groups), and where the zeros are not all 8
    NAME.weight_zero_point (outputs / 8, groups), of compressed-tensors."""

    codes, scales, zeros = ".weight_packed", ".weight_scale", ".weight_zero_point"
    by_row = True


def _awq_codes(words: Words) -> Bytes:
    """(inputs, n) words to (8 n, inputs / 2) codes, two neighbours in a byte."""
    found = np.empty((words.shape[1], 8, len(words) // 2), np.uint8)
    for nibble, place in enumerate(AWQ_ORDER):
        codes = (words >> np.uint32(4 * nibble)).astype(np.uint8) & 15
        found[:, place] = (codes[0::2] | codes[1::2] << 4).T
    return found.reshape(8 * words.shape[1], -1)


def _first(file: WeightFile, name: str, count: int) -> npt.NDArray[np.int64]:
    """The first numbers of a list. Raises FormatError where the tensor is none."""
    info = file.tensors[name]
    if count >= info.n_elements or info.type not in LIST_TYPES:
        return file.int64(name)
    size = info.n_bytes // info.n_elements
    return to_int64(file.shards[info.shard].read(info.offset, count * size), info.type)


def _nibbles(words: Words, order: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """(rows, n) words to (rows, 8 n) codes, nibble n of a word at place order[n]."""
    found = np.empty((*words.shape, 8), np.uint8)
    for nibble, place in enumerate(order):
        found[..., place] = words >> np.uint32(4 * nibble) & np.uint32(15)
    return found.reshape(len(words), -1)
