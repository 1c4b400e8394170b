"""Conversations as a JSON file: every branch, knobs, reports, records. Writes the files and reads them back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from dflash_core.errors import FormatError
from dflash_core.files import read_input
from dflash_core.record import TurnLine, assemble, lines, pack, unpack
from dflash_core.turn_check import check_report
from dflash_tui.application.conversations.branches import Branches, Node, new_id
from dflash_tui.application.conversations.store.conversations import Progress, Store, StoredConversation
from dflash_tui.application.conversations.store.rows import Card, short_title, title_of
from dflash_tui.application.json_store import parse

VERSION = 1
NO_EXPORT, OTHER = "not an export of conversations: ", "name a JSON file that an export has written"
MAX_BYTES = 1 << 30  # largest file in bytes: thousands of long conversations with their records
# Ids that a command line can name and a list can show. `all` means every conversation.
_ID = re.compile(r"(?!all$)[0-9A-Za-z_][0-9A-Za-z_-]{0,63}")


class _Head(msgspec.Struct, frozen=True):
    format: Literal["dflash-tui conversations"]
    version: int


class _Conversation(msgspec.Struct, frozen=True):
    """A conversation: its messages, `leaf`, the id of the last one shown, and the turns by the id of their answer."""

    card: Card
    leaf: str | None
    messages: tuple[Node, ...]
    turns: dict[str, tuple[TurnLine, ...]]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """An export of conversations."""

    format: Literal["dflash-tui conversations"] = "dflash-tui conversations"
    version: int = VERSION
    conversations: tuple[_Conversation, ...]


_HEAD = msgspec.json.Decoder(_Head)
_FILE = msgspec.json.Decoder(_File)


def to_json(conversations: Iterable[StoredConversation]) -> bytes:
    """The text of a file, UTF-8. Raises FormatError for a record that cannot be read."""
    file = _File(
        conversations=tuple(
            _Conversation(
                one.card,
                one.branches.leaf,
                one.branches.nodes,
                {message: tuple(lines(unpack(packed))) for message, packed in one.records.items()},
            )
            for one in conversations
        )
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"


def from_json(data: bytes) -> list[StoredConversation]:
    """The conversations of a file that `to_json` made. Raises FormatError: what is wrong, and where in the file."""
    if not data.strip():
        raise FormatError(f"{NO_EXPORT}the file is empty; {OTHER}")
    try:
        version = parse(data, _HEAD).version
    except FormatError as error:
        raise FormatError(f"{NO_EXPORT}{error}; {OTHER}") from None
    if version != VERSION:
        raise FormatError(f"an export of version {version}; this program reads version {VERSION}")
    try:
        file = parse(data, _FILE)
    except FormatError as error:
        raise FormatError(f"{NO_EXPORT}{error}") from None
    return [_checked(one, place) for place, one in enumerate(file.conversations)]


def from_file(path: Path) -> list[StoredConversation]:
    """The conversations of a file. Raises FormatError, which names it; OSError where it cannot be read."""
    data = read_input(path, MAX_BYTES)
    try:
        return from_json(data)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def _checked(one: _Conversation, place: int) -> StoredConversation:
    """A conversation whose messages are consistent. Raises FormatError."""

    def refuse(what: str) -> FormatError:
        return FormatError(f"{NO_EXPORT}$.conversations[{place}]: {what}")

    known: dict[str, Node] = {}
    for node in one.messages:
        if node.id in known:
            raise refuse(f"two messages have the id {node.id!r}")
        if node.parent is not None and node.parent not in known:
            raise refuse(f"message {node.id!r} follows {node.parent!r}, which is not before it")
        before = known[node.parent].role if node.parent is not None else "assistant"
        if node.role == before and node.parent is None:
            raise refuse(f"message {node.id!r} is of the assistant, and none is before it; expected the user's first")
        if node.role == before:
            raise refuse(f"message {node.id!r} is of the {node.role}, like the one before it")
        try:
            if node.report is not None:
                check_report(node.report)
        except FormatError as error:
            raise refuse(f"message {node.id!r} has {error}") from None
        known[node.id] = node
    if one.leaf is not None and one.leaf not in known:
        raise refuse(f"its branch ends with {one.leaf!r}, which is not one of its messages")
    if unknown := [message for message in one.turns if message not in known]:
        raise refuse(f"the record of {unknown[0]!r}, which is not one of its messages")
    if questions := [message for message in one.turns if known[message].role == "user"]:
        raise refuse(f"the record of {questions[0]!r}, which is not an answer")
    records: dict[str, bytes] = {}
    for message, turn in one.turns.items():
        try:
            [record] = assemble(turn)
            records[message] = pack(record)
        except FormatError as error:
            raise refuse(f"the record of {message!r} has {error}") from None
        except ValueError:
            raise refuse(f"the record of {message!r} is not that of one turn") from None
    title = short_title(one.card.title) or title_of(one.messages[0].content if one.messages else "") or "untitled"
    return StoredConversation(replace(one.card, title=title), Branches(one.messages, one.leaf), records)


def import_file(store: Store, one: StoredConversation, progress: Progress | None = None) -> Card:
    """Add a conversation to the store; if it exists already, as a second one. Returns its card there.

    An id that a command line could not name is replaced too. Raises DFlashError for a text that is larger than
    a database accepts; `progress` gets the share that is written.
    """
    ids = [one.card.id, *(node.id for node in one.branches.nodes)]
    if not all(map(_ID.fullmatch, ids)) or store.has(*ids):
        one = _renamed(one)
    store.put(one, progress)
    return one.card


def _renamed(one: StoredConversation) -> StoredConversation:
    """The same conversation under new ids."""
    ids: dict[str | None, str | None] = {None: None}
    ids |= {node.id: new_id() for node in one.branches.nodes}
    nodes = [replace(node, id=ids[node.id] or "", parent=ids[node.parent]) for node in one.branches.nodes]
    records = {ids[message] or "": record for message, record in one.records.items()}
    return StoredConversation(replace(one.card, id=new_id()), Branches(nodes, ids[one.branches.leaf]), records)


def file_name(card: Card, kind: str) -> str:
    """A name for an exported conversation, made from its title."""
    words = re.findall(r"\w+", card.title)[:8]
    return f"{'-'.join(words)[:60] or 'conversation'}.{kind}"
