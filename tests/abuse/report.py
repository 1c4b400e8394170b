"""What one part has done and found, and the process's own memory and descriptors."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dflash_core import memory

GROWTH = 5.0  # percent of resident memory, after the warm-up


class Finding(msgspec.Struct, frozen=True):
    """A fault: its kind, and what to run or read to reproduce it."""

    kind: str
    seed: str
    detail: str
    kept: str = ""  # the file or action list that shows it


@dataclass
class Report:
    """`counts` has actions, turns, mutants, kills and starts. The lists should be empty, and nothing should grow."""

    part: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    crashes: list[Finding] = field(default_factory=list)
    lost: list[Finding] = field(default_factory=list)
    differences: list[Finding] = field(default_factory=list)
    near_ties: int = 0
    growth: float = 0.0  # percent of resident memory since the warm-up
    descriptors: int = 0  # more than after the warm-up
    seconds: float = 0.0

    @property
    def findings(self) -> list[Finding]:
        return [*self.crashes, *self.lost, *self.differences]

    @property
    def faults(self) -> list[str]:
        """What exceeds the limits, a line each."""
        lines = [f"{one.kind} (seed {one.seed}) {one.detail} {one.kept}".strip() for one in self.findings]
        lines += [f"resident memory grew by {self.growth:.1f} %"] * (self.growth >= GROWTH)
        return lines + [f"{self.descriptors} descriptors gained"] * (self.descriptors > 0)


class Watermark:
    """Resident memory and open descriptors, compared with what they were after a warm-up."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def look(self, report: Report) -> None:
        """The first call marks the end of the warm-up; each later one writes the growth since then into `report`."""
        _let_go()
        now = memory.host_memory().process, _descriptors()
        if self._before is None:
            self._before = now
        report.growth = (now[0] / self._before[0] - 1) * 100
        report.descriptors = now[1] - self._before[1]


def _let_go() -> None:
    """Drop what only this process has: apps that have ended, in Textual's caches, and pages that malloc keeps."""
    gc.unfreeze()  # objects that the app has frozen for the collector
    for one in gc.get_objects():
        if type(one).__name__ == "_lru_cache_wrapper" and one.__module__.split(".")[0] in ("textual", "rich"):
            one.cache_clear()
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _descriptors() -> int:
    folder = Path("/dev/fd")
    return len(os.listdir(folder)) if folder.is_dir() else 0
