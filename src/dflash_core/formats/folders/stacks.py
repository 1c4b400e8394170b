"""Experts that a folder holds as one tensor: MXFP4, and floats whose inputs come before their outputs (GPT-OSS)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_core.formats.folders.floats8 import halves_in_bytes
from dflash_core.formats.folders.parts import Part
from dflash_core.formats.quants import Bytes
from dflash_core.formats.weights import WeightFile


@dataclass(frozen=True, slots=True)
class Mxfp4Experts(Part):
    """Every `step`-th row, from `first` on, of NAME_blocks (experts, rows, inputs / 32, 16), two neighbours in a byte,
    with NAME_scales (experts, rows, inputs / 32): powers of two by their exponents."""

    file: WeightFile
    name: str
    first: int = 0
    step: int = 1
    type: str = "MXFP4"

    def __post_init__(self) -> None:
        blocks, scales = self.file.tensors[self.name + "_blocks"], self.file.tensors.get(self.name + "_scales")
        fits = scales is not None and (*scales.shape, 16) == blocks.shape and len(blocks.shape) == 4
        if not fits or {blocks.type, scales.type if scales else ""} != {"U8"} or blocks.shape[1] % self.step:
            expected = "U8 (experts, rows, blocks, 16) and _scales of the same sizes"
            raise self.file.damaged(blocks.name, f"is {blocks.type} {list(blocks.shape)}", expected)

    @property
    def sizes(self) -> tuple[int, int, int]:
        experts, rows, blocks, _ = self.file.tensors[self.name + "_blocks"].shape
        return experts, rows // self.step, blocks * 32

    @property
    def shape(self) -> tuple[int, int]:
        experts, rows, columns = self.sizes
        return experts * rows, columns

    def read(self, begin: int, end: int) -> Bytes:
        blocks, rows = self.shape[1] // 32, slice(begin * self.step, end * self.step)
        part = slice(rows.start * blocks, rows.stop * blocks)
        codes = self.file.raw(self.name + "_blocks", part).view("<u8")
        codes = codes.reshape(-1, self.step, blocks, 2)[:, self.first]
        found = np.empty((end - begin, blocks, 17), np.uint8)
        found[..., 0] = self.file.raw(self.name + "_scales", rows).reshape(-1, self.step, blocks)[:, self.first]
        found[..., 1:] = halves_in_bytes(np.ascontiguousarray(codes))
        return found.reshape(end - begin, -1)


@dataclass(frozen=True, slots=True)
class TurnedExperts(Part):
    """Every `step`-th output, from `first` on, of floats (experts, inputs, outputs)."""

    file: WeightFile
    name: str
    first: int = 0
    step: int = 1

    @property
    def type(self) -> str:
        return self.file.tensors[self.name].type

    @property
    def sizes(self) -> tuple[int, int, int]:
        experts, inputs, outputs = self.file.tensors[self.name].shape
        return experts, outputs // self.step, inputs

    @property
    def shape(self) -> tuple[int, int]:
        experts, outputs, inputs = self.sizes
        return experts * outputs, inputs

    def read(self, begin: int, end: int) -> Bytes:
        _, each, inputs = self.sizes
        found = []
        for expert in range(begin // each, -(-end // each)):
            stored = self.file.raw(self.name, slice(expert * inputs, (expert + 1) * inputs))
            values = stored.view({2: np.uint16, 4: np.uint32}[stored.shape[1] // (each * self.step)])
            rows = slice(max(begin - expert * each, 0), min(end - expert * each, each))
            turned = np.ascontiguousarray(values[:, self.first :: self.step][:, rows].T)
            found.append(turned.view(np.uint8))
        return np.concatenate(found) if found else np.empty((0, inputs * 2), np.uint8)
