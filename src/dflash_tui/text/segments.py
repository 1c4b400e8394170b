"""Where streamed Markdown may be cut, so that each append parses and lays out only a little text again.

Textual parses the last top-level block again on every append and lays out what its Markdown holds, so a list of 150
items or a message of 100 paragraphs costs more with every word. A segment ends where a block surely does. A long list
is cut before a top-level item, and the part before the cut does not change. A long fence, table or paragraph continues
as plain lines. When such a block ends, it alone is rendered from its text. The scan is by line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# Characters. The first three limit an open block, which is rendered again with every append.
LIST_LIMIT = 200
TABLE_LIMIT = 500
BLOCK_LIMIT = 2_000
SEGMENT_LIMIT = 1_500  # of a segment; beyond it the next block begins another one

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_ITEM = re.compile(r"([-*+]|\d{1,9}[.)])(?=[ \t]|$)")
_ITEM_START = re.compile(r"[-*+]$|\d{1,9}[.)]?$")
_DELIMITER = re.compile(r" {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(\1[ \t]*){2,}$")
_BREAK = re.compile(r" {0,3}(#{1,6}([ \t]|$)|>)")
_SPACES = " \t\r"  # a line of other white space is not blank
_DEFINITION = re.compile(r" {0,3}\[[^\]]+\]:")


@dataclass(frozen=True, slots=True)
class Op:
    """append: to the open segment; next: to a new one; cut: its list goes on in a new one; plain: to the plain tail;
    join: a block that was cut or has a tail has ended, and the next text begins a segment.

    `text` is from the message, `shown` is rendered in its place; None means the same text.
    """

    kind: Literal["append", "next", "cut", "plain", "join"]
    text: str = ""
    shown: str | None = None


class Segmenter:
    """Reads a streamed message and returns the operations for each part. `dirty`: render all of it again at the end."""

    def __init__(self) -> None:
        self.dirty = False
        self._line = ""
        self._held = ""
        self._kind: Literal["", "para", "list", "fence", "table"] = ""
        self._size = 0
        self._segment = 0  # characters of the open segment
        self._fence = ""
        self._family = ""
        self._number = 0
        self._blank = False
        self._closed = False  # the previous line ended a fence
        self._previous = ""
        self._plain = False
        self._cut = False

    def feed(self, text: str) -> list[Op]:
        """The operations for the next part of the message."""
        ops: list[Op] = []
        for part in text.splitlines(keepends=True):
            self._line += part
            ended = part.endswith("\n")
            if self._hold(ended):
                self._held += part
                continue
            part, self._held = self._held + part, ""
            begins = self._line == part
            if begins and self._over(part):
                if self._join(ops):
                    self._segment = 0
                elif self._segment > SEGMENT_LIMIT:
                    ops.append(Op("next"))
                    self._segment = 0
            if self._plain:
                ops.append(Op("plain", part))
            elif begins and self._cuts_here():
                self._cut = True
                ops.append(Op("cut", part, self._renumbered(part)))
                self._size = 0
            else:
                ops.append(Op("append", part))
            self._segment += len(part)
            if ended:
                self._end_line()
        return _merged(ops)

    def finish(self) -> list[Op]:
        """The remaining operations at the end of the message."""
        ops: list[Op] = []
        if self._held:
            ops.append(Op("plain" if self._plain else "append", self._held))
            self._held = ""
        if self._line:
            self._line += "\n"
            self._end_line()
        self._join(ops)
        return _merged(ops)

    def _join(self, ops: list[Op]) -> bool:
        """Join a block that was shown in pieces; False if there was none."""
        pieces = self._plain or self._cut
        if pieces:
            ops.append(Op("join"))
        self._plain = self._cut = False
        return pieces

    def _over(self, begin: str) -> bool:
        """Whether a line with this start certainly ends the open block and begins another."""
        if begin[0] in " \t\r\n":
            return False
        if self._kind == "list":
            return self._blank and begin[0] not in "-*+0123456789"
        return not self._kind and (self._blank or self._closed)

    def _hold(self, ended: bool) -> bool:
        """Whether the start of a line may still become a list item where a cut is due."""
        due = self._kind == "list" and self._size > LIST_LIMIT
        return due and not ended and _ITEM_START.match(self._line) is not None

    def _cuts_here(self) -> bool:
        if self._kind != "list" or self._size <= LIST_LIMIT:
            return False
        item = _ITEM.match(self._line)
        return item is not None and _family(item[1]) == self._family and _RULE.match(self._line) is None

    def _renumbered(self, part: str) -> str:
        """Renumber an item: an ordered list counts up from its first number and ignores its later numbers."""
        item = _ITEM.match(part)
        if item is None or not item[1][0].isdigit():
            return part
        return f"{self._number + 1}{item[1][-1]}{part[item.end() :]}"

    def _end_line(self) -> None:
        line, self._line = self._line.rstrip("\n"), ""
        was = self._kind
        self._next_kind(line)
        self._closed = was == "fence" and not self._kind
        self._blank = not line.strip(_SPACES)
        self._previous = line
        if _DEFINITION.match(line) and self._kind != "fence":
            self.dirty = True
        self._size = 0 if not self._kind or self._kind != was else self._size + len(line) + 1
        limit = {"fence": BLOCK_LIMIT, "para": BLOCK_LIMIT, "table": TABLE_LIMIT}.get(self._kind)
        self._plain = self._plain or (limit is not None and self._size > limit)

    def _next_kind(self, line: str) -> None:
        if self._kind == "fence":
            close = _FENCE.match(line)
            if close and close[1][0] == self._fence[0] and len(close[1]) >= len(self._fence) and not close[2].strip():
                self._kind = ""
            return
        if self._kind == "list" and (not line.strip(_SPACES) or line[0] in _SPACES):
            return
        fence = _FENCE.match(line)
        item = _ITEM.match(line) if _RULE.match(line) is None else None
        if fence and not (fence[1][0] == "`" and "`" in fence[2]):
            self._kind, self._fence = "fence", fence[1]
        elif not line.strip(_SPACES) or _BREAK.match(line) or _RULE.match(line):
            self._kind = ""
        elif item and not (self._kind == "para" and item[1][0].isdigit() and int(item[1][:-1]) != 1):
            self._enter_item(item[1])
        elif self._kind == "list" and not self._blank:
            pass  # a lazy continuation line
        elif self._kind == "table" and "|" in line:
            pass
        elif "|" in self._previous and _DELIMITER.match(line) and self._kind == "para":
            self._kind = "table"
        else:
            self._kind = "para"

    def _enter_item(self, marker: str) -> None:
        family = _family(marker)
        if self._kind == "list" and family == self._family:
            self._number += 1
            return
        self._kind, self._family = "list", family
        self._number = int(marker[:-1]) if marker[0].isdigit() else 0
        self._size = 0


def _family(marker: str) -> str:
    return marker[-1]


def _merged(ops: list[Op]) -> list[Op]:
    """Merge neighbouring operations of one kind, so that a burst of lines costs one append."""
    merged: list[Op] = []
    for op in ops:
        last = merged[-1] if merged else None
        if last is not None and op.kind == last.kind == "plain":
            merged[-1] = Op("plain", last.text + op.text)
        elif last is not None and op.kind == "append" and last.kind in ("append", "next", "cut"):
            shown = None if last.shown is None else last.shown + op.text
            merged[-1] = Op(last.kind, last.text + op.text, shown)
        else:
            merged.append(op)
    return merged
