"""The cache of keys and values: who stores, who reads, and what a position takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor


def is_spine(path: Sequence[int]) -> bool:
    """Whether a path of ascending nodes is 0, 1, 2, ...: its rows then need no gathering."""
    return path[-1] == len(path) - 1


class KVCache:
    """Keys and values of one layer's committed positions, followed by the uncommitted rows of the pass under way.

    As floats of the model's own type. Another type of cache is a subclass that packs rows where they are written and
    unpacks them where they are read.
    """

    component = "target KV"
    stored: torch.dtype | None = None  # what rows are stored as; None: the model's own type

    def __init__(self, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.k = torch.empty(kv_heads, 0, head_dim, dtype=self.stored or dtype)
        self.v = torch.empty(kv_heads, 0, head_dim, dtype=self.stored or dtype)

    def write(self, length: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put rows (kv_heads, n, head_dim) behind `length` committed ones; returns views over all length + n."""
        end = length + k.shape[1]
        if end > self.k.shape[1]:
            self.k, self.v = self._grown(self.k, length, end), self._grown(self.v, length, end)
        self.k[:, length:end], self.v[:, length:end] = self.pack(k), self.pack(v)
        return self.unpack(self.k[:, :end]), self.unpack(self.v[:, :end])

    def pack(self, rows: Tensor) -> Tensor:
        """Rows (kv_heads, n, head_dim) as they are stored."""
        return rows

    def unpack(self, rows: Tensor) -> Tensor:
        """Stored rows as floats, (kv_heads, n, head_dim)."""
        return rows

    def commit(self, length: int, path: Sequence[int]) -> None:
        """Commit the rows `path` of the last write: they move up to directly behind `length`."""
        if is_spine(path):
            return  # they stand there already
        index, end = length + torch.tensor(path), length + len(path)
        self.k[:, length:end] = self.k[:, index]
        self.v[:, length:end] = self.v[:, index]

    def copy(self) -> Self:
        """The same positions in memory of their own."""
        other = object.__new__(type(self))
        other.dtype, other.k, other.v = self.dtype, self.k.clone(), self.v.clone()
        return other

    def checkpoint(self) -> None:
        """Nothing: what lies behind the committed length is never read, so a cache only needs to be cut."""

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    @staticmethod
    def _grown(old: Tensor, length: int, end: int) -> Tensor:
        new = old.new_empty(old.shape[0], max(end, 2 * old.shape[1], 256), old.shape[2])
        new[:, :length] = old[:, :length]
        return new


CACHE_TYPES: dict[str, type[KVCache]] = {"float": KVCache}
"""Types of caches by name. The model's own floats are what a sequence has where nothing else is asked for."""

DEFAULT_CACHE = "float"
