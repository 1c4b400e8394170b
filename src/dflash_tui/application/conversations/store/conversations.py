"""Conversations in the store: create, extend, list, search, rename, delete, load."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from dflash_core.clean import encodable
from dflash_core.errors import DFlashError
from dflash_core.record import TurnRecord, unpack
from dflash_tui.application.conversations.branches import Branches, Node
from dflash_tui.application.conversations.store import rows
from dflash_tui.application.conversations.store.database import Database
from dflash_tui.application.conversations.store.rows import Card, short_title
from dflash_tui.application.log import LOG

EXCERPT = 80
REPORT_EVERY = 2000  # messages written between two calls of `progress`
Progress = Callable[[float], None]
Made = TypeVar("Made")
ENDING = 200  # messages at the end of a conversation that are shown next to the list


@dataclass(frozen=True, slots=True)
class Entry:
    """A conversation in a list; `messages`: their number on its present branch.

    `excerpt`: the text around a search hit, else the beginning of the newest message.
    """

    card: Card
    messages: int
    excerpt: str


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation in the program's memory. `records`: packed, by message id."""

    card: Card
    branches: Branches
    records: Mapping[str, bytes] = field(default_factory=dict)


class Store(Database):
    """Every conversation of the user. Usable from any thread; a failing disk does not stop it (see Database).

    `holds` returns the conversation in memory, which is written again if the file is lost while it is open.
    """

    def __init__(self, folder: Path, holds: Callable[[], StoredConversation | None] = lambda: None) -> None:

        def renew(db: sqlite3.Connection) -> bool:
            stored = holds()
            if stored is not None:
                _insert(db, stored)
            return stored is not None

        super().__init__(folder / "conversations.db", renew)

    # Changes

    def begin(self, card: Card) -> None:
        """Add a new conversation without messages."""
        self.write(lambda db: rows.insert_card(db, card))

    def add(self, conversation: str, node: Node) -> bool:
        """Add a message after its parent; it becomes the conversation's leaf. False if the conversation was deleted."""
        there = False

        def change(db: sqlite3.Connection) -> None:
            nonlocal there
            query = "UPDATE conversation SET leaf = ?, updated = ? WHERE id = ?"
            there = db.execute(query, (node.id, node.created, conversation)).rowcount > 0
            if there:
                rows.insert_node(db, conversation, node)

        self.write(change)
        return there

    def put(self, stored: StoredConversation, progress: Progress | None = None) -> None:
        """Add a whole conversation, all of it or nothing. Messages that exist already are not changed.

        `progress` gets the share of the messages written so far. Raises DFlashError for a text that is too large.
        """
        self.write(lambda db: _insert(db, stored, progress))

    def keep(self, message: str, packed: bytes) -> None:
        """Store the packed record of the turn whose answer is `message`."""
        self.write(lambda db: rows.insert_record(db, message, packed))

    def go(self, conversation: str, leaf: str | None) -> None:
        """Set the branch on which the conversation is resumed."""
        self._run("UPDATE conversation SET leaf = ? WHERE id = ?", leaf, conversation)

    def rename(self, conversation: str, title: str) -> None:
        """Change the title. Raises DFlashError for an empty one."""
        title = short_title(title)
        if not title:
            raise DFlashError("a conversation needs a title; the old one stays")
        self._run("UPDATE conversation SET title = ? WHERE id = ?", title, conversation)

    def set_system(self, conversation: str, text: str) -> None:
        self._run("UPDATE conversation SET system = ? WHERE id = ?", text, conversation)

    def delete(self, conversation: str) -> None:
        self._run("DELETE FROM conversation WHERE id = ?", conversation)

    def _run(self, statement: str, *values: str | None) -> None:
        self.write(lambda db: db.execute(statement, values))

    # Questions

    def list(self, search: str = "") -> list[Entry]:
        """Conversations, last changed first. With `search`: those with all its words in one message or the title.

        A word matches as a prefix, ignoring accents and case; if nothing matches, the text is searched
        everywhere, inside words too.
        """
        search = encodable(search)
        words = re.findall(r"\w+", search)
        if not search.strip():
            return self.read(lambda db: _entries(db, _ALL, ()))
        if words:
            match = " ".join(f'"{word}"*' for word in words)
            if found := self.read(lambda db: _entries(db, _WORDS, (match, match), words[0])):
                return found
        text = search.strip()
        return self.read(lambda db: _entries(db, _ANYWHERE, (text, text), text))

    def newest(self, besides: str = "") -> Card | None:
        """The conversation that changed last, other than the one with the id `besides`."""
        found = self._all(rows.card, f"{rows.CARDS} WHERE id <> ? ORDER BY updated DESC, number DESC LIMIT 1", besides)
        return found[0] if found else None

    def find(self, name: str) -> Card:
        """The conversation with that id or id prefix. Raises DFlashError if there is none, or several."""
        name = encodable(name)
        begins = f"{rows.CARDS} WHERE substr(id, 1, ?) = ? AND ? <> '' LIMIT 3"
        cards = self._all(rows.card, f"{rows.CARDS} WHERE id = ?", name)
        cards = cards or self._all(rows.card, begins, len(name), name, name)
        if not cards:
            raise DFlashError(f"no conversation {name!r}; dflash-tui conversations list shows them")
        if len(cards) > 1:
            raise DFlashError(f"{name!r} matches several, {', '.join(card.id for card in cards)}; write more of it")
        return cards[0]

    def stored(self, conversation: str, *, records: bool = True) -> StoredConversation:
        """A conversation with its stored records, which are large, so that `put` can restore it. Raises DFlashError."""
        card, branches = self.find(conversation), self.branches(conversation)
        query = "SELECT message, record FROM turn JOIN message ON id = message WHERE conversation = ?"

        def packed_records(db: sqlite3.Connection) -> list[tuple[str, bytes]]:
            return [(str(message), rows.packed(one)) for message, one in db.execute(query, (conversation,))]

        return StoredConversation(card, branches, dict(self.read_large(packed_records) if records else []))

    def branches(self, conversation: str) -> Branches:

        def query(db: sqlite3.Connection) -> Branches:
            found = db.execute(f"{rows.MESSAGES} WHERE conversation = ? ORDER BY number", (conversation,)).fetchall()
            leaf = db.execute("SELECT leaf FROM conversation WHERE id = ?", (conversation,)).fetchone()
            return rows.branches(found, leaf[0] if leaf else None)

        return self.read(query)

    def ending(self, conversation: str) -> Sequence[Node]:
        """The last messages of a conversation's present branch, without reports; it reads at most ENDING of them."""
        return self._all(rows.node, _ENDING, conversation, ENDING)

    def _all(self, make: Callable[[Sequence[object]], Made], query: str, *values: str | int) -> Sequence[Made]:
        """What `make` returns of each row."""
        return self.read(lambda db: [make(row) for row in db.execute(query, values)])

    def has(self, *ids: str) -> bool:
        """Whether a conversation or message with one of these ids exists."""
        query = "SELECT 1 FROM message WHERE id = ?1 UNION ALL SELECT 1 FROM conversation WHERE id = ?1"
        return self.read(lambda db: any(db.execute(query, (id,)).fetchone() for id in ids))

    def recorded(self, conversation: str) -> Sequence[str]:
        """The answers of a conversation that have a record, in the order of writing."""
        query = "SELECT id FROM turn JOIN message ON id = message WHERE conversation = ? ORDER BY number"
        return self.read_large(lambda db: [str(id) for (id,) in db.execute(query, (conversation,))])

    def record(self, message: str) -> TurnRecord | None:
        """The record of the turn whose answer is `message`, if there is one. Raises FormatError."""
        query = "SELECT record FROM turn WHERE message = ?"
        packed_records = self.read_large(lambda db: [rows.packed(one) for (one,) in db.execute(query, (message,))])
        return unpack(packed_records[-1]) if packed_records else None

    def readable(self, message: str) -> TurnRecord | None:
        """As `record`; one that cannot be read is logged."""
        try:
            return self.record(message)
        except DFlashError as error:
            LOG.warning("the record of an answer: %s", error)
            return None


# If the leaf is not a message of the conversation, its newest message is used.
_LEAF = """coalesce(
    (SELECT id FROM message WHERE id = (SELECT leaf FROM conversation WHERE id = {id}) AND conversation = {id}),
    (SELECT id FROM message WHERE conversation = {id} ORDER BY number DESC LIMIT 1))"""
_ENDING = f"""
WITH RECURSIVE up (leaf, above, height) AS (
    SELECT id, parent, 1 FROM message WHERE id = {_LEAF.format(id="?1")}
    UNION ALL SELECT id, parent, height + 1 FROM up JOIN message ON id = above AND conversation = ?1 LIMIT ?2
) SELECT {", ".join("NULL" if name == "report" else name for name in rows.NODE)}
FROM up JOIN message ON id = up.leaf ORDER BY height DESC
"""

_LIST = """
SELECT {title}, c.system, c.model, c.id, c.created, c.updated,
       {count}, {excerpt}
FROM conversation c {where} ORDER BY c.updated DESC, c.number DESC
"""
_LAST = "(SELECT substr(content, 1, 400) FROM message WHERE conversation = c.id ORDER BY number DESC LIMIT 1)"
# The messages shown on opening: one of several versions. Only a conversation with branches needs the recursion.
_COUNT = f"""
(SELECT CASE WHEN count(*) = count(DISTINCT coalesce(parent, '')) THEN count(*) ELSE (
    WITH RECURSIVE up (id, parent) AS (
        SELECT id, parent FROM message WHERE id = {_LEAF.format(id="c.id")}
        UNION SELECT m.id, m.parent FROM up JOIN message m ON m.id = up.parent
    ) SELECT count(*) FROM up) END
 FROM message WHERE conversation = c.id)
"""
_ALL = _LIST.format(title=rows.TITLE, count=_COUNT, excerpt=_LAST, where="")
_FOUND = _LIST.format(
    title=rows.TITLE,
    count=_COUNT,
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


def _insert(db: sqlite3.Connection, stored: StoredConversation, progress: Progress | None = None) -> None:
    rows.insert_card(db, stored.card)
    nodes = stored.branches.nodes
    for place, node in enumerate(nodes):
        rows.insert_node(db, stored.card.id, node)
        if progress is not None and place % REPORT_EVERY == REPORT_EVERY - 1:
            progress(place / len(nodes))
    for message, record in stored.records.items():
        rows.insert_record(db, message, record)
    db.execute("UPDATE conversation SET leaf = ? WHERE id = ?", (stored.branches.leaf, stored.card.id))


def _entries(db: sqlite3.Connection, query: str, values: Sequence[str], word: str = "") -> list[Entry]:
    found = db.execute(query, values)
    return [Entry(rows.card(row), row[6], _excerpt(rows.typed(row[7] or "", str), word)) for row in found]


def _excerpt(text: str, word: str) -> str:
    """One line of `text` around `word`."""
    line = " ".join(text.split())
    at = max(line.casefold().find(word.casefold()), 0) if word else 0
    begin = 0 if at + len(word) <= EXCERPT else at - EXCERPT // 4
    cut = line[begin : begin + EXCERPT]
    return ("…" if begin else "") + cut + ("…" if begin + EXCERPT < len(line) else "")
