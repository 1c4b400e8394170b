"""Rows of the tables as the program's types. A value that the program cannot have written means damage."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from dflash_core.clean import encodable
from dflash_core.damaged import in_words
from dflash_core.errors import FormatError
from dflash_core.turn_check import check_report
from dflash_core.turn_stats import TurnReport
from dflash_tui.application.conversations.branches import Branches, Node, Time, new_id
from dflash_tui.application.conversations.tool_messages import ToolCall, ToolResult
from dflash_tui.application.json_store import parse

MAX_MADE_TITLE = 60  # characters of a title made from a message
MAX_TITLE = 500  # characters of one that is typed or imported
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Card:
    """The data of a conversation, except for its messages."""

    title: str
    system: str = ""
    model: str = ""
    id: str = field(default_factory=new_id)
    created: Time = field(default_factory=time.time)
    updated: Time = field(default_factory=time.time)


def title_of(prompt: str) -> str:
    """A title from the first message: its first line, cut at a word."""
    first = " ".join(next((line for line in prompt.splitlines() if line.strip()), "").split())
    return first if len(first) <= MAX_MADE_TITLE else (first[:MAX_MADE_TITLE].rsplit(" ", 1)[0].rstrip(" ,;:") + "…")


def short_title(title: str) -> str:
    """A typed or imported title: one line, at most MAX_TITLE characters. Control codes are removed when shown."""
    line = " ".join(encodable(title[: 8 * MAX_TITLE]).split())
    return line if len(line) <= MAX_TITLE else line[: MAX_TITLE - 1] + "…"


CARD = ("title", "system", "model", "id", "created", "updated")
NODE = ("role", "content", "parent", "thinking", "outcome", "report", "id", "created", "calls", "results")
_COLUMNS = {
    "conversation": (*CARD, "leaf", "number"),
    "message": (*NODE, "conversation", "number"),
    "turn": ("record", "message"),
}
TITLE = f"substr(title, 1, {MAX_TITLE})"  # earlier versions accepted titles of any length
CARDS = f"SELECT {TITLE}, {', '.join(CARD[1:])} FROM conversation"
MESSAGES = f"SELECT {', '.join(NODE)} FROM message"
_card_values, _node_values = attrgetter(*CARD), attrgetter(*NODE)
_REPORT = msgspec.json.Decoder(TurnReport)
_CALLS = msgspec.json.Decoder(tuple[ToolCall, ...])
_RESULTS = msgspec.json.Decoder(tuple[ToolResult, ...])


class UnusableError(Exception):
    """A file that is not for this program: `kind` is damaged, newer or foreign, the text says why."""

    def __init__(self, why: str, kind: str = "damaged") -> None:
        super().__init__(why)
        self.kind = kind


def typed(value: object, kind: type[T]) -> T:
    """A value of this type. Raises UnusableError, like every function here."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UnusableError(in_words(error)) from None


def packed(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    raise UnusableError(f"{type(value).__name__} where the record of a turn belongs")


def card(row: Sequence[object]) -> Card:
    return typed(dict(zip(CARD, row)), Card)


def node(row: Sequence[object]) -> Node:
    """A message from the columns NODE. An unreadable report only costs the figures under an answer."""
    values = dict(zip(NODE, row))
    report = values.pop("report")
    values["calls"], values["results"] = _list(values["calls"], _CALLS), _list(values["results"], _RESULTS)
    found = typed(values, Node)
    with contextlib.suppress(FormatError):
        if isinstance(report, str) and report:
            figures = parse(report, _REPORT)
            check_report(figures)
            return replace(found, report=figures)
    return found


def _list(value: object, decoder: msgspec.json.Decoder[tuple[T, ...]]) -> tuple[T, ...]:
    """The calls or results of a row."""
    try:
        return parse(value, decoder) if isinstance(value, str) else ()
    except FormatError as error:
        raise UnusableError(str(error)) from None


def branches(rows: Sequence[Sequence[object]], leaf: object) -> Branches:
    """A conversation from its rows in the order of writing."""
    try:
        return Branches(map(node, rows), leaf if isinstance(leaf, str) else None)
    except ValueError as error:  # an index that no longer ensures unique ids
        raise UnusableError(str(error)) from None


def insert_card(db: sqlite3.Connection, card: Card) -> None:
    _insert(db, "conversation", dict(zip(CARD, _card_values(card))), ("title", "system", "model"))


def insert_node(db: sqlite3.Connection, conversation: str, node: Node) -> None:
    row: dict[str, Any] = dict(zip(NODE, _node_values(node)), conversation=conversation)
    for name in ("report", "calls", "results"):
        row[name] = msgspec.json.encode(row[name]).decode() if row[name] else None
    _insert(db, "message", row, ("content", "thinking", "outcome"))


def _insert(db: sqlite3.Connection, table: str, row: dict[str, Any], texts: Sequence[str]) -> None:
    """Add a row; one with its id stays as it is. `texts`: columns that may have what is not UTF-8."""
    for name in texts:
        row[name] = encodable(row[name])
    columns, marks = ", ".join(row), ", ".join("?" * len(row))
    statement = f"INSERT INTO {table} ({columns}) VALUES ({marks}) ON CONFLICT (id) DO NOTHING"
    db.execute(statement, tuple(row.values()))


def insert_record(db: sqlite3.Connection, message: str, packed: bytes) -> None:
    known = "SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM message WHERE id = ?1)"  # it may have been deleted meanwhile
    db.execute(f"INSERT OR REPLACE INTO turn (message, record) {known}", (message, packed))


def copy(source: sqlite3.Connection, target: sqlite3.Connection, *, records: bool) -> int:
    """Copy every row that can be read; returns the number of messages. Raises errors of `target` only."""
    source.text_factory = lambda data: data.decode(errors="replace")
    makes: dict[str, Callable[[Sequence[object]], object]] = {"conversation": card, "message": node}
    if records:
        makes["turn"] = lambda row: packed(row[0])
    for table, make in makes.items():
        columns, marks = ", ".join(_COLUMNS[table]), ", ".join("?" * len(_COLUMNS[table]))
        there = {str(row[1]) for row in _readable(source, f"SELECT * FROM pragma_table_info('{table}') ORDER BY cid")}
        # A file of an earlier version, which could not be brought up to date, lacks some.
        read = ", ".join(one if one in there else "NULL" for one in _COLUMNS[table])
        for row in _readable(source, f"SELECT {read} FROM {table} ORDER BY rowid"):
            with contextlib.suppress(UnusableError, sqlite3.IntegrityError):
                make(row)
                target.execute(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})", row)
    return int(target.execute("SELECT count(*) FROM message").fetchone()[0])


def _readable(source: sqlite3.Connection, query: str) -> Iterator[Sequence[Any]]:
    """Rows from both ends, if a damaged page is between; a row may then occur twice."""
    for order in (" ASC", " DESC"):
        with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
            yield from source.execute(query + order)
            return
