"""Tensors of a drafter that cannot be right: a matrix whose numbers are all the same, or numbers that are not finite.

Small files are read whole. Of a large one some rows of each tensor are read, so that it takes no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dflash_core.formats.quants import LIST_TYPES
from dflash_core.formats.weights import PART_BYTES, TensorInfo, WeightFile

WHOLE_BYTES = 64 << 20
ROWS = 16


@dataclass(frozen=True, slots=True)
class Suspects:
    """`looked_at`: what was read, in words; `warnings`: a line for each tensor that cannot be right."""

    looked_at: str
    warnings: tuple[str, ...]


def suspects(file: WeightFile, names: Iterable[str] | None = None) -> Suspects:
    """Look at the tensors `names` of a file, all by default. Raises FormatError."""
    infos = [file.tensors[name] for name in (file.tensors if names is None else names)]
    infos = [info for info in infos if info.type not in LIST_TYPES and info.n_elements]
    whole = sum(info.n_bytes for info in infos) <= WHOLE_BYTES
    found = [warning for info in infos if (warning := _wrong(file, info, whole=whole))]
    read = "all numbers" if whole else f"{ROWS} rows"
    return Suspects(f"{read} of {len(infos)} tensors: {len(found) or 'none'} suspect", tuple(found))


def _wrong(file: WeightFile, info: TensorInfo, *, whole: bool) -> str:
    low, high = np.inf, -np.inf
    for rows in _slices(info, whole=whole):
        part = file.float32(info.name, rows)
        if not np.isfinite(part).all():
            return f"{info.name}: holds numbers that are not finite"
        low, high = min(low, float(part.min())), max(high, float(part.max()))
    # A vector of ones is a usual norm.
    constant = low == high and len(info.shape) > 1
    return f"{info.name}: every number is {low:g}" if constant else ""


def _slices(info: TensorInfo, *, whole: bool) -> Iterator[slice | None]:
    if len(info.shape) < 2:
        yield None
        return
    count = info.shape[0]
    if whole or count <= ROWS:
        at_once = max(1, PART_BYTES * count // info.n_bytes)
        yield from (slice(first, first + at_once) for first in range(0, count, at_once))
    else:
        yield from (slice(row, row + 1) for row in np.linspace(0, count - 1, ROWS).astype(int).tolist())
