"""Converts database values to the program's types. A value that the program cannot have written means damage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dflash_core.errors import FormatError
from dflash_core.events import TurnReport
from dflash_core.turn_check import check_report
from dflash_tui.conversations.branches import Branches, Node
from dflash_tui.conversations.parse import parse
from dflash_tui.conversations.store.card import Card

LAST_SECOND = 253_402_300_799.0  # in the year 9999: no later date can be shown
_REPORT = msgspec.json.Decoder(TurnReport)


class DamagedError(Exception):
    """The file contains what no version of this program writes."""


def text(value: object) -> str:
    """Raises DamagedError, like every function here."""
    if isinstance(value, str):
        return value
    raise DamagedError(f"{type(value).__name__} where a text belongs")


def text_or_none(value: object) -> str | None:
    return None if value is None else text(value)


def whole_number(value: object) -> int:
    if isinstance(value, int):
        return value
    raise DamagedError(f"{type(value).__name__} where a whole number belongs")


def seconds(value: object) -> float:
    """Seconds since 1970, of a date that can be shown."""
    if isinstance(value, int | float) and 0 <= value <= LAST_SECOND:
        return float(value)
    raise DamagedError(f"{value if isinstance(value, float) else type(value).__name__} where a time belongs")


def role(value: object) -> Literal["user", "assistant"]:
    if value == "user":
        return "user"
    if value == "assistant":
        return "assistant"
    raise DamagedError("a message that is neither the user's nor an answer")


def packed(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    raise DamagedError(f"{type(value).__name__} where the record of a turn belongs")


# The type of each column; a name means the same in every table.
COLUMNS: Mapping[str, Callable[[object], Any]] = {
    **dict.fromkeys(("id", "title", "system", "model", "conversation", "message", "content", "thinking"), text),
    **dict.fromkeys(("leaf", "parent", "report"), text_or_none),
    **dict.fromkeys(("created", "updated"), seconds),
    "number": whole_number,
    "outcome": text,
    "role": role,
    "record": packed,
}


def card(row: Sequence[object]) -> Card:
    """A card from the columns title, system, model, id, created, updated."""
    title, system, model, id = map(text, row[:4])
    return Card(title, system, model, id, seconds(row[4]), seconds(row[5]))


def branches(rows: Sequence[Sequence[object]], leaf: object) -> Branches:
    """A conversation from its rows in the order of writing."""
    try:
        return Branches(map(node, rows), text_or_none(leaf))
    except ValueError as error:  # an index that no longer ensures unique ids
        raise DamagedError(str(error)) from None


def node(row: Sequence[object]) -> Node:
    """A message from the columns role, content, parent, thinking, outcome, report, id, created."""
    return Node(
        role(row[0]),
        text(row[1]),
        text_or_none(row[2]),
        text(row[3]),
        text(row[4]),
        _report(text_or_none(row[5])),
        text(row[6]),
        seconds(row[7]),
    )


def _report(kept: str | None) -> TurnReport | None:
    """A report; one that is unreadable or inconsistent only costs the figures under an answer."""
    try:
        report = parse(kept, _REPORT) if kept else None
        if report is not None:
            check_report(report)
    except FormatError:
        return None
    return report
