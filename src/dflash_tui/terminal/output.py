"""Where commands write: results on stdout, everything else on stderr."""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from dflash_core.clean import clean, escaped, lines, one_line
from dflash_core.errors import DFlashError
from dflash_core.files import check_folder, check_regular, write_whole

CLEAR_LINE = "\r\x1b[K"
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def write_out(text: str) -> None:
    """Write to stdout. Control characters are made safe for a terminal; a pipe or file gets the text unchanged."""
    sys.stdout.write(clean(text) if sys.stdout.isatty() else text)


def write_err(text: str) -> None:
    """Write one or more lines to stderr, with control characters made safe and each line's length bounded."""
    _note(sys.stderr, lines(text) + "\n")


def on_a_terminal() -> bool:
    """Whether the app can read keys and draw; it draws on stderr, so that stdout stays unused."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def check_terminal(what: str, instead: str) -> None:
    """Refuse to open the app where there is no terminal, or one that it cannot draw on. Raises DFlashError."""
    if not on_a_terminal():
        raise DFlashError(f"{what} needs a terminal; in a pipe or a script {instead}")
    if os.environ.get("TERM") == "dumb":
        raise DFlashError(f"{what} needs a terminal with a cursor, and TERM is dumb; set xterm-256color, or {instead}")


def discard(stream: TextIO) -> None:
    """Redirect a broken stream to the null device, so that the final flush at exit does not fail."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _note(stream: TextIO, text: str) -> None:
    """Write what is not the result. If the disk is full, this is lost but not the answer."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:  # the reader has closed the pipe: the command ends
        raise
    except OSError:
        discard(stream)


def write_json(value: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Write one object and a line end. Characters that the stream cannot encode and control characters are
    escaped."""
    stream = stream or sys.stdout
    unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
    stream.write(escaped(json.dumps(value, ensure_ascii=not unicode)) + "\n")
    stream.flush()


def check_file(path: Path) -> None:
    """Refuse a path that `write_file` cannot write, as far as is known in advance. Raises DFlashError."""
    check_folder(path)
    check_regular(path)


def write_file(path: Path, data: bytes) -> None:
    """Write a result to a file, completely or not at all. Raises DFlashError."""
    check_file(path)
    try:
        write_whole(path, data)
    except OSError as error:
        raise DFlashError(f"{path} cannot be written: {error.strerror}; name another file") from None


def write_json_file(path: Path | None, value: Mapping[str, Any], notes: Notes) -> None:
    """Write everything measured to a file, if one was requested. Called once it is printed, as a disk may refuse it.
    Raises DFlashError."""
    if path is not None:
        write_file(path, (json.dumps(value, indent=1) + "\n").encode())
        notes.line(f"written: {path}")


class Notes:
    """What is not the result: notes, progress, thinking. A progress line is overwritten on a terminal only."""

    def __init__(self, stream: TextIO | None = None, *, plain: bool = False) -> None:
        self.stream = stream or sys.stderr
        self.is_terminal = self.stream.isatty() and not plain
        self.dims = self.is_terminal and not os.environ.get("NO_COLOR")
        self._phase = ""
        self._open = False  # the last line has text

    def line(self, text: str) -> None:
        self.end_line()
        _note(self.stream, lines(text) + "\n")

    def progress(self, phase: str, share: float | None = None) -> None:
        """Report that `share` (0 to 1) of a phase is done. If lines cannot be overwritten, report each phase once."""
        phase = one_line(phase)
        if self.is_terminal:
            _note(self.stream, f"{CLEAR_LINE}{phase}" if share is None else f"{CLEAR_LINE}{phase} {share:.0%}")
            self._open = True
        elif phase != self._phase:
            _note(self.stream, phase + "\n")
        self._phase = phase

    def thinking(self, text: str) -> None:
        """A piece of the model's thinking, as it comes."""
        if self._phase:
            self.end_line()
        text = clean(text)
        _note(self.stream, f"{DIM}{text}{PLAIN}" if self.dims else text)
        self._phase = ""
        self._open = not text.endswith("\n")

    def end_line(self) -> None:
        """Clear a progress line, or end a line of thinking."""
        if self._open:
            _note(self.stream, CLEAR_LINE if self._phase else "\n")
        self._open, self._phase = False, ""


MARKS = "dflash-marks"
"""The name of the encoding error handler that `register_marks` adds: ASCII, of the same width, for marks that the
terminal's locale lacks."""

_MARKS = {
    "-": "–−─━╸═▔",
    "|": "│┃▏▎▍▌▕",
    "+": "╭╮╰╯┌┐└┘├┤┴┬┼",
    "_": "▁▂▃␣",
    "=": "▄▅",
    "#": "▆▇█▊▉▋▰■▫",
    ".": "·▱…░",
    "o": "•●",
    "c": "○",
    "*": "★",
    "@": "◆",
    "v": "✓▼↓",
    "x": "✗×",
    "~": "≈±",
    ">": "›❯▸▶→⇥",
    "<": "‹←␍⏎↵≤",
    "^": "↑",
    "0": "∅",
    '"': "“”",
}
_ASCII = {ord(mark): plain for plain, marks in _MARKS.items() for mark in marks}


def register_marks() -> None:
    """Make `MARKS` known to Python's encoders."""
    codecs.register_error(MARKS, _replaced)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wanting = error.object[error.start : error.end].translate(_ASCII)
    return "".join(one if one.isascii() else "?" for one in wanting), error.end
