"""The tables, and the upgrade of older files: numbered migrations, each in one transaction."""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from dflash_tui import __version__
from dflash_tui.application.conversations.store.rows import UnusableError

T = TypeVar("T")
# A released statement must not change: a new migration changes the tables. `number` is the order of writing and the
# key of the search index; `id` is chosen by the program, so that a change that failed on a full disk can be made again
# later. A message without a parent starts its conversation; messages with the same parent are siblings: answers to one
# message, or versions of one.
_TABLES = (
    """CREATE TABLE migration (version INTEGER PRIMARY KEY, program TEXT NOT NULL, applied REAL NOT NULL)""",
    """CREATE TABLE conversation (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        title TEXT NOT NULL,
        system TEXT NOT NULL,
        model TEXT NOT NULL,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        leaf TEXT
    )""",
    """CREATE TABLE message (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        conversation TEXT NOT NULL REFERENCES conversation (id) ON DELETE CASCADE,
        parent TEXT,
        role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
        content TEXT NOT NULL,
        thinking TEXT NOT NULL,
        outcome TEXT NOT NULL,
        created REAL NOT NULL,
        report TEXT
    )""",
    """CREATE INDEX message_of ON message (conversation, number)""",
    """CREATE TABLE turn (
        message TEXT PRIMARY KEY REFERENCES message (id) ON DELETE CASCADE,
        record BLOB NOT NULL
    )""",
)


def _search(table: str, column: str) -> tuple[str, ...]:
    """A full-text index over one column that keeps no second copy of the text, and the triggers that feed it."""
    index = f"{table}_{column}"
    take_out = f"INSERT INTO {index} ({index}, rowid, {column}) VALUES ('delete', old.number, old.{column});"
    put_in = f"INSERT INTO {index} (rowid, {column}) VALUES (new.number, new.{column});"
    return (
        f"CREATE VIRTUAL TABLE {index} USING fts5 ({column}, content = '{table}', content_rowid = 'number', "
        "tokenize = 'unicode61 remove_diacritics 2')",
        f"CREATE TRIGGER {index}_added AFTER INSERT ON {table} BEGIN {put_in} END",
        f"CREATE TRIGGER {index}_gone AFTER DELETE ON {table} BEGIN {take_out} END",
        f"CREATE TRIGGER {index}_changed AFTER UPDATE OF {column} ON {table} BEGIN {take_out} {put_in} END",
        f"INSERT INTO {index} ({index}) VALUES ('rebuild')",
    )


# Of each running app: what is typed and queued, where its running answer belongs, and the steps of that answer.
_JOURNAL = (
    "CREATE TABLE app (id TEXT PRIMARY KEY, typed TEXT NOT NULL, place TEXT, changed REAL NOT NULL)",
    """CREATE TABLE paste (
        app TEXT NOT NULL REFERENCES app (id) ON DELETE CASCADE,
        words TEXT NOT NULL,
        text TEXT NOT NULL,
        PRIMARY KEY (app, words)
    )""",
    """CREATE TABLE step (
        number INTEGER PRIMARY KEY,
        app TEXT NOT NULL REFERENCES app (id) ON DELETE CASCADE,
        line BLOB NOT NULL
    )""",
)

# JSON; NULL in the messages of earlier versions, and in all that have none.
_CALLS = ("ALTER TABLE message ADD COLUMN calls TEXT", "ALTER TABLE message ADD COLUMN results TEXT")

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    _TABLES,
    _search("message", "content") + _search("conversation", "title"),
    _JOURNAL,
    _CALLS,
)
VERSION = len(MIGRATIONS)
_FIRST = {"migration", "conversation", "message", "turn"}


def migrate(connection: sqlite3.Connection, until: int = VERSION) -> None:
    """Bring the tables up to date. Raises UnusableError or sqlite3.Error; the file is unchanged then."""
    tables = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and len(tables & _FIRST) < 2:
        raise UnusableError("its tables are those of another program", "foreign")
    if (version := _version(connection)) > VERSION:
        [(applied, program)] = connection.execute("SELECT max(version), program FROM migration").fetchall()
        wrote = f"dflash-tui {program} wrote it (schema {version}, this program has {VERSION})"
        raise UnusableError(wrote, "newer" if version == applied else "damaged")
    for number, statements in enumerate(MIGRATIONS[:until], 1):
        if number > version:
            transact(connection, functools.partial(_apply, number, statements))


def _apply(number: int, statements: tuple[str, ...], db: sqlite3.Connection) -> None:
    if _version(db) < number:  # else another app has just done it
        for statement in statements:
            db.execute(statement)
        db.execute("INSERT INTO migration VALUES (?, ?, ?)", (number, __version__, time.time()))
        db.execute(f"PRAGMA user_version = {number}")


def transact(connection: sqlite3.Connection, change: Callable[[sqlite3.Connection], T]) -> T:
    """A transaction: the change is made completely or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = change(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled back already
            connection.execute("ROLLBACK")
        raise
    return result


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@functools.cache
def reference() -> frozenset[tuple[str, ...]]:
    """The objects of a new file. Raises sqlite3.OperationalError if this Python's SQLite has no full-text search."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        return _objects(connection)


def check(connection: sqlite3.Connection, *, pages: bool = True) -> None:
    """Raises UnusableError if a table, index or trigger is not what this program creates, or a page is damaged."""
    if changed := sorted(reference() - _objects(connection)):
        raise UnusableError(f"the {changed[0][0]} {changed[0][1]} is missing or not as this program makes it")
    if pages and connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        raise UnusableError("database disk image is malformed")


def _objects(connection: sqlite3.Connection) -> frozenset[tuple[str, ...]]:
    """Kind, name and statement of each; the tables of the search index depend on SQLite's version."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    own = re.compile(r"(message_content|conversation_title)_(data|idx|docsize|config)")
    return frozenset(
        (str(kind), str(name), "" if own.fullmatch(str(name)) else " ".join(str(sql).split()))
        for kind, name, sql in rows
    )
