"""Experts that a folder holds as one tensor: MXFP4, and floats whose inputs come before their outputs (GPT-OSS).

A part is every `step`-th row of each expert, from `first` on."""

from __future__ import annotations

import numpy as np

from dflash_core.formats.folders.floats8 import halves_in_bytes
from dflash_core.formats.folders.parts import Part
from dflash_core.formats.quants import Bytes
from dflash_core.formats.weights import WeightFile


def mxfp4_experts(file: WeightFile, name: str, first: int = 0, step: int = 1) -> Part:
    """NAME_blocks (experts, rows, inputs / 32, 16), two neighbours in a byte, with NAME_scales (experts, rows,
    inputs / 32): powers of two by their exponents. Raises FormatError."""
    stored, scales = file.tensors[name + "_blocks"], file.tensors.get(name + "_scales")
    fits = scales is not None and (*scales.shape, 16) == stored.shape and len(stored.shape) == 4
    if not fits or {stored.type, scales.type if scales else ""} != {"U8"} or stored.shape[1] % step:
        expected = "U8 (experts, rows, blocks, 16) and _scales of the same sizes"
        raise file.damaged(stored.name, f"is {stored.type} {list(stored.shape)}", expected)
    experts, each, blocks, _ = stored.shape

    def read(begin: int, end: int) -> Bytes:
        rows = slice(begin * step, end * step)
        codes = file.raw(name + "_blocks", slice(rows.start * blocks, rows.stop * blocks)).view("<u8")
        codes = codes.reshape(-1, step, blocks, 2)[:, first]
        found = np.empty((end - begin, blocks, 17), np.uint8)
        found[..., 0] = file.raw(name + "_scales", rows).reshape(-1, step, blocks)[:, first]
        found[..., 1:] = halves_in_bytes(np.ascontiguousarray(codes))
        return found.reshape(end - begin, -1)

    return Part(name, "MXFP4", (experts, each // step, blocks * 32), read)


def turned_experts(file: WeightFile, name: str, first: int = 0, step: int = 1) -> Part:
    """Floats (experts, inputs, outputs)."""
    info = file.tensors[name]
    experts, inputs, outputs = info.shape
    each = outputs // step

    def read(begin: int, end: int) -> Bytes:
        found = []
        for expert in range(begin // each, -(-end // each)):
            stored = file.raw(name, slice(expert * inputs, (expert + 1) * inputs))
            values = stored.view({2: np.uint16, 4: np.uint32}[stored.shape[1] // outputs])
            rows = slice(max(begin - expert * each, 0), min(end - expert * each, each))
            found.append(np.ascontiguousarray(values[:, first::step][:, rows].T).view(np.uint8))
        return np.concatenate(found) if found else np.empty((0, inputs * 2), np.uint8)

    return Part(name, info.type, (experts, each, inputs), read)
