"""The cache of keys and values of the CPU backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from dflash_core.cache_types import EXACT, F16, RECENT_STEP, CachePair
from dflash_core.models.cache_rows import CODECS, Codec, Floats, hadamard
from dflash_core.models.rows import LayerState


def is_spine(path: Sequence[int]) -> bool:
    """Whether a path of ascending nodes is 0, 1, 2, ...: its rows then need no gathering."""
    return path[-1] == len(path) - 1


def grown(old: Tensor, length: int, end: int) -> Tensor:
    """Rows (heads, positions, width) with space for `end` positions and more, the first `length` copied."""
    new = old.new_empty(old.shape[0], max(end, 2 * old.shape[1], 256), old.shape[2])
    new[:, :length] = old[:, :length]
    return new


class KVCache(LayerState):
    """Keys and values of one layer's committed positions, followed by the uncommitted rows of the running pass.

    `kv`: the cache type; rows are packed when written and unpacked when read. None and EXACT store floats of the
    model's own type. Where `rotated`, keys are stored as their Hadamard transform: callers transform the queries with
    `queries`.
    """

    def __init__(self, kv_heads: int, head_dim: int, dtype: torch.dtype, kv: CachePair | None = None) -> None:
        self.dtype, self.head_dim, self.kv = dtype, head_dim, kv
        self.rotated = kv is not None and kv.k.rotated
        own = Floats(dtype)
        kinds = (kv.k, kv.v) if kv and kv != EXACT else ()
        self._codecs: Sequence[Codec] = [CODECS[kind.name] for kind in kinds] or [own, own]
        self.k, self.v = (torch.empty(kv_heads, 0, one.elements(head_dim), dtype=one.dtype) for one in self._codecs)

    def store(self, length: int, k: Tensor, v: Tensor) -> None:
        """Write rows (kv_heads, n, head_dim) after `length` committed ones."""
        keys, values = self._codecs
        self._write(length, keys.pack(self.queries(k)), values.pack(v))

    def read(self, runs: Sequence[slice]) -> tuple[Tensor, Tensor]:
        """Keys and values (kv_heads, positions, head_dim) of runs of positions, one after the other."""
        found = []
        for stored, codec in zip((self.k, self.v), self._codecs):
            parts = [codec.unpack(stored[:, run], self.head_dim, self.dtype) for run in runs]
            found.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
        return found[0], found[1]

    def queries(self, q: Tensor) -> Tensor:
        """Queries (..., head_dim), transformed like the keys."""
        return hadamard(q) if self.rotated else q

    def commit(self, length: int, path: Sequence[int]) -> None:
        if is_spine(path):
            return  # the rows of the last `store` are in place already
        index, end = length + torch.tensor(path), length + len(path)
        self.k[:, length:end] = self.k[:, index]
        self.v[:, length:end] = self.v[:, index]

    def copy(self) -> Self:
        """The same positions in memory of their own."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.k, other.v = self.k.clone(), self.v.clone()
        return other

    def parts(self, runs: Sequence[slice], positions: Tensor) -> Iterator[tuple[Tensor | slice, Tensor, Tensor]]:
        """What rows at `positions` (n,) read of these runs: groups of rows with their keys and values."""
        yield slice(None), *self.read(runs)

    def positions(self, begin: int, end: int) -> tuple[Tensor, ...]:
        """Keys and values (kv_heads, positions, row)."""
        return self.k[:, begin:end].clone(), self.v[:, begin:end].clone()

    def put(self, begin: int, rows: Iterator[Tensor]) -> None:
        self._write(begin, next(rows), next(rows))

    def _write(self, length: int, k: Tensor, v: Tensor) -> None:
        """Stored rows after `length` others."""
        end = length + k.shape[1]
        if end > self.k.shape[1]:
            self.k, self.v = grown(self.k, length, end), grown(self.v, length, end)
        self.k[:, length:end], self.v[:, length:end] = k, v

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes


class RecentCache(KVCache):
    """A packed cache that also stores its last positions as halves, keys transformed as in the packed rows.

    A row reads positions from its border on (`CachePair.border`) as halves and the others packed. Halves before the
    border of the committed length, and a step more, are dropped, so the cache cannot be cut back much further than that
    without a checkpoint.
    """

    def __init__(self, kv_heads: int, head_dim: int, dtype: torch.dtype, kv: CachePair) -> None:
        super().__init__(kv_heads, head_dim, dtype, kv)
        self._pair, self._halves = kv, KVCache(kv_heads, head_dim, dtype, F16)
        self.first = 0  # the position of the first half

    def store(self, length: int, k: Tensor, v: Tensor) -> None:
        super().store(length, k, v)
        halves, begin = self._halves, self._pair.border(length) - RECENT_STEP
        if begin > self.first and length + k.shape[1] - self.first > halves.k.shape[1]:
            rows = halves.positions(begin - self.first, length - self.first)
            halves.put(0, iter(rows))
            self.first = begin
        halves.store(length - self.first, self.queries(k), v)

    def parts(self, runs: Sequence[slice], positions: Tensor) -> Iterator[tuple[Tensor | slice, Tensor, Tensor]]:
        borders = [self._pair.border(position) for position in positions.tolist()]
        for border in sorted(set(borders)):
            rows = torch.tensor([one == border for one in borders])
            yield rows, *self._mixed(runs, border)

    def _mixed(self, runs: Sequence[slice], border: int) -> tuple[Tensor, Tensor]:
        """Keys and values of runs of positions, as halves from `border` on. A drafter that drafts again from an earlier
        position reads what is left of them."""
        border, first = max(border, self.first), self.first
        past = [slice(run.start, min(run.stop, border)) for run in runs if run.start < border]
        recent = [slice(max(run.start, border) - first, run.stop - first) for run in runs if run.stop > border]
        k, v = self._halves.read(recent)
        if not past:
            return k, v
        packed = self.read(past)
        return torch.cat((packed[0], k), 1), torch.cat((packed[1], v), 1)

    def commit(self, length: int, path: Sequence[int]) -> None:
        super().commit(length, path)
        self._halves.commit(length - self.first, path)

    def reaches(self, length: int) -> bool:
        return self.first <= self._pair.border(length)

    def tensors(self, length: int) -> tuple[Tensor, ...]:
        """The halves that the next row reads: keys and values (kv_heads, positions, head_dim)."""
        return self._halves.positions(self._pair.border(length) - self.first, length - self.first)

    def load(self, length: int, tensors: Iterator[Tensor]) -> None:
        self.first = self._pair.border(length)
        self._halves.put(0, tensors)

    def copy(self) -> Self:
        other = super().copy()
        other._halves = self._halves.copy()
        return other

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._halves.nbytes
