"""Blocks of styled lines, arranged above or next to each other. The panels are built from them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from textual.content import Content

DOT = " · "
Span = tuple[str, str]
"""Text and its style."""
Line = Sequence[Span]
Block = list[Line]


def line(*spans: str | Span) -> Line:
    """A line of plain and styled parts."""
    return [span if isinstance(span, tuple) else (span, "") for span in spans]


def wrapped(text: str, width: int, style: str = "") -> Block:
    """A text wrapped between words; no lines for an empty one."""
    return [[(part, style)] for part in textwrap.wrap(text, max(width, 8), drop_whitespace=True)]


def dotted(parts: Iterable[str], width: int, dot: str = DOT) -> list[str]:
    """Parts separated by dots, wrapped between parts; no line begins or ends with a dot."""
    lines: list[str] = []
    for part in filter(None, parts):
        longer = f"{lines[-1]}{dot}{part}" if lines else part
        if lines and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def beside(left: Block, right: Block, width: int) -> Block:
    """Two blocks side by side; the left one is padded to `width` plus two cells."""
    joined: Block = []
    for a, b in zip_longest(left, right, fillvalue=()):
        used = sum(cell_len(text) for text, _ in a)
        joined.append([*a, (" " * max(width - used + 2, 1), ""), *b])
    return joined


def content(lines: Iterable[Line]) -> Content:
    spans: list[Span] = []
    for one in lines:
        spans += one
        spans.append(("\n", ""))
    return Content.assemble(*spans[:-1])
