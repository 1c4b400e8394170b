"""Thousands of damaged files: each must be refused with a DFlashError of one line, or accepted; nothing else may
happen."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from abuse.doors import DOORS, Door
from abuse.report import Finding, Report, Watermark
from dflash_core.errors import DFlashError

LIMIT_S = 600  # of one mutant; only a hang takes so long
WARM = 3000


class HangError(Exception):
    """A file keeps the program busy for too long."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise HangError where the main thread stays inside for too long."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise HangError(f"over {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def try_one(door: Door, seed: str, folder: Path) -> Exception | None:
    """Write one damaged file and do with it what the program does. Returns an error that should not have occurred."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    door.lay(random.Random(seed), folder)
    try:
        with limited():
            door.enter(folder)
    except DFlashError as error:
        if "\n" in str(error):
            return ValueError(f"an error of several lines: {str(error)[:200]!r}")
    except Exception as error:
        return error
    return None


def kind_of(door: Door, error: Exception) -> str:
    """The door, the error's type, and the innermost frame that is ours."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/src/dflash" in frame.filename]
    place = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "outside"
    return f"{door.name}: {type(error).__name__} in {place}"


def run(seed: int, folder: Path, *, mutants: int = 0, seconds: float = 0.0, only: str = "") -> Report:
    """Mutants of every door in turn until `mutants` are tried or `seconds` are over. The first of each kind is kept.

    `folder/now` is what was tried last: if the process itself dies, that file is the cause.
    """
    report, watermark, began = Report("mutants", seed), Watermark(), time.monotonic()
    doors = [door for door in DOORS if only in door.name]
    order = [door for door in doors for _ in range(door.share)]
    random.Random(seed).shuffle(order)
    kinds: set[str] = set()
    for number, door in enumerate(itertools.cycle(order)):
        if (mutants and number >= mutants) or (seconds and time.monotonic() - began > seconds):
            break
        name = f"{seed}.{number}"
        error = try_one(door, name, folder / "now")
        report.counts["mutants"] += 1
        report.counts[door.name] += 1
        if error is not None:
            kind = kind_of(door, error)
            report.counts["foreign exceptions"] += 1
            if kind not in kinds:
                kinds.add(kind)
                kept = folder / f"{name}.{door.name.replace(' ', '-')}"
                shutil.copytree(folder / "now", kept)
                (kept / "trace.txt").write_text("".join(traceback.format_exception(error)))
                report.crashes.append(Finding(kind, name, str(error)[:200], str(kept)))
        if number and number % WARM == 0:
            watermark.look(report)
    report.seconds = time.monotonic() - began
    return report
