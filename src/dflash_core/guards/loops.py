"""Detects whether a text repeats itself, from the ids of its tail: it repeats with a period; most of it is made of runs
that occur again and again; it uses next to no different tokens. A passage that occurs twice may be a draft and its
copy, so runs count from the third occurrence on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

WINDOW = 2048  # tokens of the tail that are checked
COVERAGE = 768  # tokens that a loop has to fill
MAX_PERIOD = 512
RATES = ((8, 0.995), (64, 0.99), (MAX_PERIOD, 0.98))  # by largest period, the share of the tail that has to repeat
SAMPLE = 128  # tokens whose comparison excludes most periods
RUNS = (8, 16, 32)
MIN_REPEATS = 3
LOW_ENTROPY = 1024  # tokens that hold MIN_DISTINCT ids at most, MAX_USED of them MIN_SHARE of all
MIN_DISTINCT, MAX_USED, MIN_SHARE = 32, 8, 0.95

Ids = npt.NDArray[np.int64]


def find_loop(ids: Sequence[int], *, runs: bool) -> str:
    """A description of the repetition at the end of `ids`; empty if there is none. `runs`: whether the second trigger
    counts; a list or a table in an answer can cause it."""
    tail = np.asarray(ids[-WINDOW:], np.int64)
    return _periodic(tail) or (_repeated_runs(tail) if runs else "") or _low_entropy(tail)


def _periodic(tail: Ids) -> str:
    n = len(tail)
    max_period = min(MAX_PERIOD, n // 3, n - COVERAGE)
    if max_period < 1:
        return ""
    # The differences allowed in the whole tail may all be in its last tokens: few texts have a period left after these.
    sample = min(SAMPLE, n - max_period)
    windows = np.lib.stride_tricks.sliding_window_view(tail[n - max_period - sample : -1], sample)[::-1]
    differing = (windows != tail[n - sample :]).sum(axis=1)
    for place in np.flatnonzero(differing <= (1 - RATES[-1][1]) * n):
        period = int(place) + 1
        same = tail[period:] == tail[:-period]
        rate = next(rate for longest, rate in RATES if period <= longest)
        for covered in (max(COVERAGE, 2 * period), n - period):
            if covered <= len(same) and (share := float(same[-covered:].mean())) >= rate:
                tokens = "one token" if period == 1 else f"{period} tokens"
                return f"{tokens} over and over in the last {covered + period:,} ({share:.1%} the same)"
    return ""


def _repeated_runs(tail: Ids) -> str:
    n = len(tail)
    hashed, length = tail.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15), 1
    while length < RUNS[-1]:
        if 2 * length > len(tail):
            return ""
        # A polynomial hash modulo 2^64: runs with equal hashes are equal except in one of 10^13 windows.
        factor = np.uint64(pow(0xD1342543DE82EF95, length, 1 << 64))
        hashed, length = hashed[:-length] * factor + hashed[length:], 2 * length
        if length not in RUNS:
            continue
        _, which, counts = np.unique(hashed, return_inverse=True, return_counts=True)
        edges = np.zeros(n + 1, np.int64)
        starts = np.flatnonzero(counts[which] >= MIN_REPEATS)
        np.add.at(edges, starts, 1)
        np.add.at(edges, starts + length, -1)
        covered = int((np.cumsum(edges) > 0).sum())
        if covered >= max(COVERAGE, n / 2):
            return f"runs of {length} tokens that occur {MIN_REPEATS} times or more fill {covered:,} of the last {n:,}"
    return ""


def _low_entropy(tail: Ids) -> str:
    if len(tail) < LOW_ENTROPY:
        return ""
    _, counts = np.unique(tail[-LOW_ENTROPY:], return_counts=True)
    share = np.sort(counts)[-MAX_USED:].sum() / LOW_ENTROPY
    if len(counts) > MIN_DISTINCT or share < MIN_SHARE:
        return ""
    used = min(MAX_USED, len(counts))
    return f"{len(counts)} different tokens in the last {LOW_ENTROPY:,}, {used} of them {share:.1%}"
