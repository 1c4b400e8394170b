"""How long the app takes to start: a new process to its first complete frame, and until its model is loaded.

    python -m tools.bench.start [--rounds 7] [--target FILE --draft FILE] [--json] [--out FILE]

Without --target, the demo pair is loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash_core.errors import DFlashError
from dflash_core.user_folders import KINDS
from dflash_tui.application.starting import arguments_again
from dflash_tui.terminal.output import Notes
from tools.bench.tool import add_options, report, request_of, run_tool

COLUMNS, ROWS = 120, 40
MAX_S = 300.0  # seconds for one start
# Text that marks each stage on the terminal: the prompt's row is drawn last, and the page of an empty
# conversation says how to open another model once one is loaded.
MARKS = {"first frame": (b"Ask anything",), "loaded": (b"opens another", b"to look around with")}
_SEQUENCE = re.compile(rb"\x1b\[[0-9;?<>=]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds of one start: clock time and total processor time."""

    clock: float
    processor: float


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, rounds=7)
    args, notes = parser.parse_args(), Notes()
    command = [sys.executable, "-m", "dflash_tui", *arguments_again([], request_of(args), "")]
    found: dict[str, list[Start]] = {name: [] for name in MARKS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for name, marks in MARKS.items():
                notes.progress(f"start {number + 1} of {args.rounds}, to: {name}", number / args.rounds)
                found[name].append(_start(command, Path(folder), marks))
    notes.end_line()
    figures = {"start": {name.replace(" ", "_"): [asdict(one) for one in each] for name, each in found.items()}}
    report(figures, "\n".join(table(found)), args, notes)


def table(found: dict[str, list[Start]]) -> list[str]:
    """The least of each: other load on the machine only adds to it."""
    lines = [f"{'seconds, least of the starts':<30}{'clock':>8}{'processor':>12}"]
    for name, each in found.items():
        lines.append(f"{name:<30}{min(one.clock for one in each):>8.2f}{min(one.processor for one in each):>12.2f}")
    return lines


def _start(command: list[str], folder: Path, marks: tuple[bytes, ...]) -> Start:
    """Start the app in a separate terminal, and end it when the terminal shows one of `marks`."""
    began = time.monotonic()
    child, screen = pty.fork()
    if child == 0:
        try:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.environ.update({f"XDG_{kind.upper()}_HOME": str(folder) for kind in KINDS})
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(command[0], command)
        finally:
            os._exit(1)
    drawn, seen = b"", False
    with contextlib.suppress(OSError):  # Linux raises this when the other end of a pseudo-terminal has closed
        while not seen and select.select([screen], [], [], max(began + MAX_S - time.monotonic(), 0.0))[0]:
            if not (part := os.read(screen, 1 << 16)):
                break
            drawn += part
            text = _SEQUENCE.sub(b"", drawn)
            seen = any(mark in text for mark in marks)
    clock = time.monotonic() - began
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, _, used = os.wait4(child, 0)
    os.close(screen)
    if not seen:
        raise DFlashError("the app ended, or hung, during its start; dflash-tui doctor may show why")
    return Start(clock, used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    run_tool(main)
