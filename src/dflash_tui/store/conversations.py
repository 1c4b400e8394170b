"""Conversations in the store: begin, add to, list, search, rename, delete, load."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dflash_core.clean import encodable
from dflash_core.errors import KnobError
from dflash_core.events import TurnReport
from dflash_core.record import TurnRecord, pack, unpack
from dflash_tui.branches import Branches, Node, new_id
from dflash_tui.store.database import Database, StoreError

TITLE = 60  # characters of a title that is made from a message
EXCERPT = 80
_REPORT = msgspec.json.Decoder(TurnReport)


@dataclass(frozen=True, slots=True)
class Card:
    """What a conversation is, apart from its messages. Times are seconds since 1970."""

    title: str
    system: str = ""
    model: str = ""
    id: str = field(default_factory=new_id)
    created: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Entry:
    """A conversation in a list. `excerpt`: where a search found it, else how its newest message begins."""

    card: Card
    messages: int
    excerpt: str


def title_of(prompt: str) -> str:
    """A title from the first message: its first line, cut at a word."""
    first = " ".join(next((line for line in prompt.splitlines() if line.strip()), "").split())
    return first if len(first) <= TITLE else (first[:TITLE].rsplit(" ", 1)[0].rstrip(" ,;:") + "…")


class Store:
    """Every conversation of the user. Usable from any thread; a failing disk does not stop it (see Database)."""

    def __init__(self, folder: Path) -> None:
        self._database = Database(folder / "conversations.db")

    @property
    def path(self) -> Path:
        return self._database.path

    @property
    def unsaved(self) -> int:
        """Changes that the disk did not take; 0 where all is well."""
        return self._database.unsaved

    @property
    def on_disk(self) -> bool:
        """Whether changes outlive the program."""
        return self._database.on_disk

    def problem(self) -> str:
        """What there is to say about the disk, once."""
        said, self._database.problem = self._database.problem, ""
        return said

    def close(self) -> bool:
        """Close; False where something could not be kept."""
        return self._database.close()

    # Changes

    def begin(self, card: Card) -> None:
        """A new conversation, without messages."""
        self._database.write(lambda db: _insert_card(db, card))

    def add(self, conversation: str, node: Node) -> bool:
        """A message behind its parent; the conversation goes on from there. False where it has been deleted."""
        there = False

        def change(db: sqlite3.Connection) -> None:
            nonlocal there
            query = "UPDATE conversation SET leaf = ?, updated = ? WHERE id = ?"
            there = db.execute(query, (node.id, node.created, conversation)).rowcount > 0
            if there:
                _insert_node(db, conversation, node)

        self._database.write(change)
        return there

    def put(self, card: Card, branches: Branches, records: Mapping[str, TurnRecord]) -> None:
        """A whole conversation at once, with the records of its answers by message; all of it or nothing."""
        packed = {message: pack(record) for message, record in records.items()}

        def change(db: sqlite3.Connection) -> None:
            _insert_card(db, card)
            for node in branches.nodes:
                _insert_node(db, card.id, node)
            for message, record in packed.items():
                _insert_record(db, message, record)
            _run(db, "UPDATE conversation SET leaf = ? WHERE id = ?", branches.leaf, card.id)

        self._database.write(change)

    def take(self, conversation: str, message: str) -> None:
        """Take out a message that nothing follows; the conversation then ends with its parent."""

        def change(db: sqlite3.Connection) -> None:
            query = "UPDATE conversation SET leaf = (SELECT parent FROM message WHERE id = ?) WHERE id = ?"
            db.execute(query, (message, conversation))
            db.execute("DELETE FROM message WHERE id = ?", (message,))

        self._database.write(change)

    def keep(self, message: str, packed: bytes) -> None:
        """Keep the packed record of the turn that `message` is the answer of."""
        self._database.write(lambda db: _insert_record(db, message, packed))

    def go(self, conversation: str, leaf: str | None) -> None:
        """The branch that the conversation is resumed on."""
        self._database.write(lambda db: _run(db, "UPDATE conversation SET leaf = ? WHERE id = ?", leaf, conversation))

    def rename(self, conversation: str, title: str) -> None:
        """Raises StoreError for an empty title."""
        title = " ".join(encodable(title).split())
        if not title:
            raise StoreError("a conversation needs a title; the old one stays")
        self._database.write(lambda db: _run(db, "UPDATE conversation SET title = ? WHERE id = ?", title, conversation))

    def delete(self, conversation: str) -> None:
        """A conversation with its messages and their records."""
        self._database.write(lambda db: _run(db, "DELETE FROM conversation WHERE id = ?", conversation))

    # Questions

    def list(self, search: str = "") -> list[Entry]:
        """Conversations, the last changed first. With `search`: those with all its words in one message or the title.

        A word finds what begins with it, accents and case apart; where that finds nothing, the text is looked for
        anywhere, inside words too.
        """
        words = re.findall(r"\w+", search)
        if not search.strip():
            return self._database.read(lambda db: _entries(db, _ALL, ()))
        if words:
            match = " ".join(f'"{word}"*' for word in words)
            if found := self._database.read(lambda db: _entries(db, _WORDS, (match, match), words[0])):
                return found
        text = search.strip()
        return self._database.read(lambda db: _entries(db, _ANYWHERE, (text, text), text))

    def find(self, name: str) -> Card:
        """The conversation whose id begins with `name`. Raises StoreError where that is none, or several."""
        query = f"{_CARDS} WHERE substr(id, 1, ?) = ? LIMIT 3"
        cards = [_card(row) for row in self._database.read(lambda db: db.execute(query, (len(name), name)).fetchall())]
        if not name or not cards:
            raise StoreError(f"no conversation {name!r}; dflash-tui conversations list shows them")
        if len(cards) > 1:
            raise StoreError(f"{name!r} could be several, {', '.join(card.id for card in cards)}; write more of it")
        return cards[0]

    def branches(self, conversation: str) -> Branches:
        """The messages of a conversation, and where it stands."""

        def query(db: sqlite3.Connection) -> tuple[Sequence[sqlite3.Row], str | None]:
            rows = db.execute(f"{_MESSAGES} WHERE conversation = ? ORDER BY number", (conversation,)).fetchall()
            leaf = db.execute("SELECT leaf FROM conversation WHERE id = ?", (conversation,)).fetchone()
            return rows, leaf[0] if leaf else None

        rows, leaf = self._database.read(query)
        return Branches(map(_node, rows), leaf)

    def has(self, id: str) -> bool:
        """Whether a conversation or message is here."""
        query = "SELECT 1 FROM message WHERE id = ?1 UNION ALL SELECT 1 FROM conversation WHERE id = ?1"
        return self._database.read(lambda db: db.execute(query, (id,)).fetchone()) is not None

    def recorded(self, conversation: str) -> Sequence[str]:
        """The answers of a conversation whose turns have a record, in the order of writing."""
        query = "SELECT id FROM turn JOIN message ON id = message WHERE conversation = ? ORDER BY number"
        rows = self._database.read_large(lambda db: db.execute(query, (conversation,)).fetchall())
        return [id for (id,) in rows]

    def turn(self, message: str) -> TurnRecord:
        """The record of the turn that `message` is the answer of. Raises StoreError where it is gone, FormatError."""
        record = self.record(message)
        if record is None:
            raise StoreError(f"the record of message {message} is gone")
        return record

    def record(self, message: str) -> TurnRecord | None:
        """The record of the turn that `message` is the answer of, where there is one. Raises FormatError."""
        query = "SELECT record FROM turn WHERE message = ?"
        rows = self._database.read_large(lambda db: db.execute(query, (message,)).fetchall())
        return unpack(rows[-1][0]) if rows else None


_CARDS = "SELECT title, system, model, id, created, updated FROM conversation"
_MESSAGES = "SELECT role, content, parent, thinking, outcome, report, id, created FROM message"

_LIST = """
SELECT c.title, c.system, c.model, c.id, c.created, c.updated,
       (SELECT count(*) FROM message WHERE conversation = c.id), {excerpt}
FROM conversation c {where} ORDER BY c.updated DESC, c.number DESC
"""
_LAST = "(SELECT substr(content, 1, 400) FROM message WHERE conversation = c.id ORDER BY number DESC LIMIT 1)"
_ALL = _LIST.format(excerpt=_LAST, where="")
_FOUND = _LIST.format(
    excerpt=f"coalesce((SELECT content FROM message WHERE number = found.number), {_LAST})",
    where="""JOIN (
        SELECT conversation, max(number) AS number FROM (
            SELECT conversation, number FROM message WHERE {message}
            UNION ALL SELECT id, NULL FROM conversation WHERE {conversation}
        ) GROUP BY conversation
    ) AS found ON found.conversation = c.id""",
)
_WORDS = _FOUND.format(
    message="number IN (SELECT rowid FROM message_content WHERE message_content MATCH ?)",
    conversation="number IN (SELECT rowid FROM conversation_title WHERE conversation_title MATCH ?)",
)
_ANYWHERE = _FOUND.format(
    message="instr(lower(content), lower(?)) > 0", conversation="instr(lower(title), lower(?)) > 0"
)


def _insert_card(db: sqlite3.Connection, card: Card) -> None:
    row = (card.id, encodable(card.title), encodable(card.system), card.model, card.created, card.updated)
    columns = "id, title, system, model, created, updated"
    db.execute(f"INSERT INTO conversation ({columns}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING", row)


def _insert_node(db: sqlite3.Connection, conversation: str, node: Node) -> None:
    report = msgspec.json.encode(node.report).decode() if node.report is not None else None
    texts = (encodable(node.content), encodable(node.thinking))
    row = (node.id, conversation, node.parent, node.role, *texts, node.outcome, node.created, report)
    columns = "id, conversation, parent, role, content, thinking, outcome, created, report"
    marks = ", ".join("?" * len(row))
    db.execute(f"INSERT INTO message ({columns}) VALUES ({marks}) ON CONFLICT (id) DO NOTHING", row)


def _insert_record(db: sqlite3.Connection, message: str, packed: bytes) -> None:
    known = "SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM message WHERE id = ?1)"  # it may have been deleted meanwhile
    db.execute(f"INSERT OR REPLACE INTO turn (message, record) {known}", (message, packed))


def _run(db: sqlite3.Connection, statement: str, *values: str | None) -> None:
    db.execute(statement, values)


def _entries(db: sqlite3.Connection, query: str, values: Sequence[str], word: str = "") -> list[Entry]:
    return [Entry(_card(row), row[6], excerpt(row[7] or "", word)) for row in db.execute(query, values)]


def _card(row: Sequence[str | float]) -> Card:
    title, system, model, id, created, updated = row[:6]
    return Card(str(title), str(system), str(model), str(id), float(created), float(updated))


def _node(row: sqlite3.Row) -> Node:
    role, content, parent, thinking, outcome, report, id, created = row
    return Node(role, content, parent, thinking, outcome, _report(report), id, created)


def _report(text: str | None) -> TurnReport | None:
    """A report that cannot be read costs only the figures under an answer."""
    try:
        return _REPORT.decode(text) if text else None
    except (msgspec.MsgspecError, KnobError):
        return None


def excerpt(text: str, word: str) -> str:
    """One line of `text` around `word`."""
    line = " ".join(text.split())
    at = max(line.casefold().find(word.casefold()), 0) if word else 0
    begin = 0 if at + len(word) <= EXCERPT else at - EXCERPT // 4
    cut = line[begin : begin + EXCERPT]
    return ("…" if begin else "") + cut + ("…" if begin + EXCERPT < len(line) else "")
