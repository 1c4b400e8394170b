"""Where streamed Markdown may be cut, so that the block that is still open stays small.

Textual rebuilds the last top-level block on every append, so a list of 150 items or a table of 400 rows costs 300 ms
each time. A long list is cut in front of a top-level item, and what is before the cut stands still; a long fence, table
or paragraph goes on as plain lines until it closes. The scan is by line and only decides about speed: the finished
message is rendered from its full text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# Characters of an open block that are rendered again with every append.
LIST_LIMIT = 200
TABLE_LIMIT = 500
BLOCK_LIMIT = 2_000

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_ITEM = re.compile(r"([-*+]|\d{1,9}[.)])(?=[ \t]|$)")
_ITEM_START = re.compile(r"[-*+]$|\d{1,9}[.)]?$")
_DELIMITER = re.compile(r" {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(\1[ \t]*){2,}$")
_BREAK = re.compile(r" {0,3}(#{1,6}([ \t]|$)|>)")
_DEFINITION = re.compile(r" {0,3}\[[^\]]+\]:")


@dataclass(frozen=True, slots=True)
class Op:
    """append: to the open segment; cut: its list goes on in a new one; plain: to the plain tail; join: that closes."""

    kind: Literal["append", "cut", "plain", "join"]
    text: str = ""


class Segmenter:
    """Reads a message as it streams, says what to do with each part. `dirty`: render it once more at the end."""

    def __init__(self) -> None:
        self.dirty = False
        self._line = ""
        self._held = ""
        self._kind: Literal["", "para", "list", "fence", "table"] = ""
        self._size = 0
        self._fence = ""
        self._family = ""
        self._number = 0
        self._blank = False
        self._previous = ""
        self._plain = False

    def feed(self, text: str) -> list[Op]:
        """What to do with the next part of the message."""
        ops: list[Op] = []
        for part in text.splitlines(keepends=True):
            self._line += part
            ended = part.endswith("\n")
            if self._hold(ended):
                self._held += part
                continue
            part, self._held = self._held + part, ""
            if self._plain:
                ops.append(Op("plain", part))
            elif self._line == part and self._cuts_here():
                self.dirty = True
                ops.append(Op("cut", self._renumbered(part)))
                self._size = 0
            else:
                ops.append(Op("append", part))
            if ended:
                ops += self._end_line()
        return _merged(ops)

    def finish(self) -> list[Op]:
        """What is left at the end of the message."""
        ops: list[Op] = []
        if self._held:
            ops.append(Op("plain" if self._plain else "append", self._held))
            self._held = ""
        if self._line:
            self._line += "\n"
            ops += self._end_line()
        if self._plain:
            ops.append(Op("join"))
            self._plain = False
        return _merged(ops)

    def _hold(self, ended: bool) -> bool:
        """The start of a line that may yet turn out to be a list item where a cut is due."""
        due = self._kind == "list" and self._size > LIST_LIMIT
        return due and not ended and _ITEM_START.match(self._line) is not None

    def _cuts_here(self) -> bool:
        if self._kind != "list" or self._size <= LIST_LIMIT:
            return False
        item = _ITEM.match(self._line)
        return item is not None and _family(item[1]) == self._family and _RULE.match(self._line) is None

    def _renumbered(self, part: str) -> str:
        """An ordered list counts on from its first number, whatever its later numbers say."""
        item = _ITEM.match(part)
        if item is None or not item[1][0].isdigit():
            return part
        return f"{self._number + 1}{item[1][-1]}{part[item.end() :]}"

    def _end_line(self) -> list[Op]:
        line, self._line = self._line.rstrip("\n"), ""
        was = self._kind
        self._next_kind(line)
        self._blank = not line.strip()
        self._previous = line
        if _DEFINITION.match(line) and self._kind != "fence":
            self.dirty = True
        if self._kind == "table" and "](" in line:
            self.dirty = True
        self._size = 0 if not self._kind or self._kind != was else self._size + len(line) + 1
        if self._plain and self._kind != was:
            self._plain = False
            return [Op("join")]
        limit = {"fence": BLOCK_LIMIT, "para": BLOCK_LIMIT, "table": TABLE_LIMIT}.get(self._kind)
        if limit is not None and self._size > limit:
            self._plain = True
        return []

    def _next_kind(self, line: str) -> None:
        if self._kind == "fence":
            close = _FENCE.match(line)
            if close and close[1][0] == self._fence[0] and len(close[1]) >= len(self._fence) and not close[2].strip():
                self._kind = ""
            return
        if self._kind == "list" and (not line.strip() or line[0] in " \t"):
            return
        fence = _FENCE.match(line)
        item = _ITEM.match(line) if _RULE.match(line) is None else None
        if fence and not (fence[1][0] == "`" and "`" in fence[2]):
            self._kind, self._fence = "fence", fence[1]
        elif not line.strip() or _BREAK.match(line) or _RULE.match(line):
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
    """Neighbours of one kind as one, so that a burst of lines costs one append."""
    merged: list[Op] = []
    for op in ops:
        if merged and op.kind == merged[-1].kind == "plain":
            merged[-1] = Op("plain", merged[-1].text + op.text)
        elif merged and op.kind == "append" and merged[-1].kind in ("append", "cut"):
            merged[-1] = Op(merged[-1].kind, merged[-1].text + op.text)
        else:
            merged.append(op)
    return merged
