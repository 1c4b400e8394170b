"""Where commands write: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from dflash_core.clean import clean, escaped, lines, one_line

CLEAR_LINE = "\r\x1b[K"
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def write_out(text: str) -> None:
    """Write to stdout; a terminal gets no character that it would obey, a pipe or file gets the text as it is."""
    sys.stdout.write(clean(text) if sys.stdout.isatty() else text)


def write_err(text: str) -> None:
    """Write one or more lines to stderr, made safe to show, each of a bounded length."""
    sys.stderr.write(lines(text) + "\n")


def write_json(value: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Write one object and a line end. Escapes stand for what the stream could not hold and what a
    terminal would obey."""
    stream = stream or sys.stdout
    unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
    stream.write(escaped(json.dumps(value, ensure_ascii=not unicode)) + "\n")
    stream.flush()


def keep_json(path: Path | None, value: Mapping[str, Any], notes: Notes) -> None:
    """Write everything measured to a file, where one was asked for."""
    if path is not None:
        path.write_text(json.dumps(value, indent=1) + "\n")
        notes.line(f"written: {path}")


class Notes:
    """What is not the result: notes, progress, thinking. A progress line is overwritten on a terminal only."""

    def __init__(self, stream: TextIO | None = None, *, plain: bool = False) -> None:
        self.stream = stream or sys.stderr
        self.is_terminal = self.stream.isatty() and not plain
        self.dims = self.is_terminal and not os.environ.get("NO_COLOR")
        self._phase = ""
        self._open = False  # text stands on the last line

    def line(self, text: str) -> None:
        self.end_line()
        self.stream.write(lines(text) + "\n")
        self.stream.flush()

    def progress(self, phase: str, share: float | None = None) -> None:
        """Say what is going on, `share` (0 to 1) of it done. Where nothing can be overwritten, a phase is said once."""
        phase = one_line(phase)
        if self.is_terminal:
            self.stream.write(f"{CLEAR_LINE}{phase}" if share is None else f"{CLEAR_LINE}{phase} {share:.0%}")
            self._open = True
        elif phase != self._phase:
            self.stream.write(phase + "\n")
        self._phase = phase
        self.stream.flush()

    def thinking(self, text: str) -> None:
        """A piece of the model's thinking, as it comes."""
        if self._phase:
            self.end_line()
        text = clean(text)
        self.stream.write(f"{DIM}{text}{PLAIN}" if self.dims else text)
        self.stream.flush()
        self._phase = ""
        self._open = not text.endswith("\n")

    def end_line(self) -> None:
        """Take a progress line away, or end a line of thinking."""
        if self._open:
            self.stream.write(CLEAR_LINE if self._phase else "\n")
            self.stream.flush()
        self._open, self._phase = False, ""
