"""The tokenised corpus on disk, packed into rows for training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ANSWER = 1 << 24
"""Set in a token that the model has to generate."""

Tokens = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Documents:
    """Documents end to end: `tokens` (n,) with the ANSWER bit, `starts` (documents + 1,)."""

    tokens: Tokens
    starts: I64

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> Tokens:
        return self.tokens[self.starts[i] : self.starts[i + 1]]

    @staticmethod
    def of(rows: list[Tokens]) -> Documents:
        starts = np.cumsum([0] + [len(r) for r in rows]).astype(np.int64)
        return Documents(np.concatenate(rows) if rows else np.zeros(0, np.int32), starts)

    def joined(self, other: Documents, times: int = 1) -> Documents:
        """These documents followed by `times` copies of the others."""
        tokens, starts = [self.tokens], [self.starts]
        for _ in range(times):
            starts.append(other.starts[1:] + sum(len(t) for t in tokens))
            tokens.append(other.tokens)
        return Documents(np.concatenate(tokens), np.concatenate(starts))


def load(folder: Path) -> dict[str, Documents]:
    """made, known, held and held_read of `corpus.npz`."""
    with np.load(folder / "corpus.npz") as z:
        return {name: Documents(z[name], z[name + "_starts"]) for name in ("made", "known", "held", "held_read")}


@dataclass
class Rows:
    """Packed rows: `tokens` (R, S) int32 with the ANSWER bit and `seg` (R, S) int32, -2 where a row is padded."""

    tokens: Tensor
    seg: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


def pack(documents: Documents, length: int, seed: int) -> Rows:
    """Whole documents in a seeded order, row after row; none is cut."""
    order = np.random.default_rng(seed).permutation(len(documents))
    sizes = np.diff(documents.starts)[order]
    places = np.empty(len(order), np.int64)
    row, used = 0, 0
    for i, size in enumerate(sizes.tolist()):
        if used + size > length:
            row, used = row + 1, 0
        places[i] = row * length + used
        used += size
    total = int(sizes.sum())
    within = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    tokens = np.zeros((row + 1) * length, np.int32)
    seg = np.full((row + 1) * length, -2, np.int32)
    target = np.repeat(places, sizes) + within
    tokens[target] = documents.tokens[np.repeat(documents.starts[order], sizes) + within]
    seg[target] = np.repeat(np.arange(len(order), dtype=np.int32), sizes)
    return Rows(torch.from_numpy(tokens.reshape(-1, length)), torch.from_numpy(seg.reshape(-1, length)))
