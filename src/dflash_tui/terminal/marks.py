"""ASCII replacements, of the same width, for marks that the terminal's locale lacks."""

from __future__ import annotations

import codecs

ERRORS = "dflash-marks"
"""The name of the encoding error handler that `register` adds."""

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


def register() -> None:
    """Make `ERRORS` known to Python's encoders."""
    codecs.register_error(ERRORS, _replaced)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wanting = error.object[error.start : error.end].translate(_ASCII)
    return "".join(one if one.isascii() else "?" for one in wanting), error.end
