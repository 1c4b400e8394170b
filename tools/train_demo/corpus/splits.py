"""What is never trained on: a fifth of all templates and operand pairs, chosen by hash, and near-copies of held-out text."""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
import numpy.typing as npt

Split = Literal["train", "held"]

SHARED_RUN = 13
"""Tokens in a row that make two texts near-copies."""


def held_out(key: str) -> bool:
    """True for the fifth of all keys that belongs to the held-out split."""
    return hashlib.blake2b(b"demo:" + key.encode(), digest_size=8).digest()[0] % 5 == 0


def split_of(key: str) -> Split:
    return "held" if held_out(key) else "train"


def pair_split(a: int, b: int) -> Split:
    """The split of an operand pair; order does not matter, so b + a is held out with a + b, and a - b with both."""
    low, high = sorted((a, b))
    return split_of(f"pair:{low}:{high}")


def run_hashes(tokens: npt.NDArray[np.int32], length: int = SHARED_RUN) -> npt.NDArray[np.uint64]:
    """One hash for every run of `length` tokens: (n,) -> (n - length + 1,)."""
    count = max(0, len(tokens) - length + 1)
    out = np.zeros(count, np.uint64)
    for i in range(length):
        out = out * np.uint64(0x9E3779B97F4A7C15) + tokens[i : i + count].astype(np.uint64) + np.uint64(1)
    return out


def near_copies(held: list[npt.NDArray[np.int32]], trained: npt.NDArray[np.int32]) -> list[bool]:
    """For each held-out token row, whether it shares a run of SHARED_RUN tokens with the trained text."""
    hashes = [run_hashes(row) for row in held]
    wanted = np.unique(np.concatenate(hashes)) if hashes else np.zeros(0, np.uint64)
    step, found = 1 << 22, [np.zeros(0, np.uint64)]
    for start in range(0, len(trained), step):
        some = run_hashes(trained[start : start + step + SHARED_RUN - 1])
        found.append(np.intersect1d(wanted, some))
    seen = np.concatenate(found)
    return [bool(np.isin(row, seen).any()) for row in hashes]
