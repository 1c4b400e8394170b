"""The tables, and the upgrade of older files: numbered migrations, each in one transaction."""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
import time

from dflash_tui import __version__
from dflash_tui.conversations.store.rows import DamagedError

# A released statement must not change, or every older file would be taken for a damaged one: a new migration
# changes the tables. `number` is the order of writing and the key of the search index; `id` is chosen by the program,
# so that a change that failed on a full disk can be made again later. A message without a parent
# starts its conversation; messages with the same parent are siblings: answers to one message, or versions of one.
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


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    _TABLES,
    _search("message", "content") + _search("conversation", "title"),
)
VERSION = len(MIGRATIONS)
OURS = {"migration", "conversation", "message", "turn"}
# Internal tables of the search index: their content and their statements depend on SQLite's version.
_SEARCH_OWN = re.compile(r"(message_content|conversation_title)_(data|idx|docsize|config)")


class WrongFileError(Exception):
    """An intact database, but not one for this program: `kind` is newer or foreign, the text says why."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


def migrate(connection: sqlite3.Connection, until: int = VERSION) -> None:
    """Bring the tables up to date, and check that they are those of this program.

    Raises WrongFileError, DamagedError or sqlite3.Error; the file is unchanged then.
    """
    connection.execute("BEGIN")  # both in one transaction: another app may be creating the tables at the same time
    try:
        version = _version(connection)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if len(tables & OURS) < 2 and tables:
            raise WrongFileError("foreign", "its tables are those of another program")
        if tables:
            _agree(connection, version)
    finally:
        connection.execute("ROLLBACK")
    for number, statements in enumerate(MIGRATIONS[:until], 1):
        if number > version:
            _apply(connection, number, statements)
    if until == VERSION:
        compare(connection)


def _agree(connection: sqlite3.Connection, version: int) -> None:
    """Check that the version in the header is that of the last migration. Raises WrongFileError for a newer one."""
    [(applied,)] = connection.execute("SELECT max(version) FROM migration").fetchall()
    if version != applied:
        raise DamagedError(f"its version is {version}, and its last migration {applied}")
    if version > VERSION:
        raise WrongFileError("newer", _writer(connection, version))


def compare(connection: sqlite3.Connection) -> None:
    """Raises DamagedError if a table, index or trigger differs from what this program creates."""
    if changed := sorted(reference() - _objects(connection)):
        raise DamagedError(f"the {changed[0][0]} {changed[0][1]} is missing or not as this program makes it")


@functools.cache
def reference() -> frozenset[tuple[str, ...]]:
    """The content of a new file. Raises sqlite3.OperationalError if this Python's SQLite has no full-text search."""
    with contextlib.closing(new_file()) as connection:
        return _objects(connection)


def new_file() -> sqlite3.Connection:
    """One in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for number, statements in enumerate(MIGRATIONS, 1):
        _apply(connection, number, statements)
    return connection


def _objects(connection: sqlite3.Connection) -> frozenset[tuple[str, ...]]:
    """Kind, name, table and statement of each."""
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    found = set()
    for kind, name, table, sql in rows:
        own = _SEARCH_OWN.fullmatch(str(name)) is not None
        found.add((str(kind), str(name), str(table), "" if own else " ".join(str(sql).split())))
    return frozenset(found)


def _apply(connection: sqlite3.Connection, number: int, statements: tuple[str, ...]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _version(connection) < number:  # else another app has just done it
            for statement in statements:
                connection.execute(statement)
            connection.execute("INSERT INTO migration VALUES (?, ?, ?)", (number, __version__, time.time()))
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _writer(connection: sqlite3.Connection, version: int) -> str:
    """The program that wrote a newer file; its table of migrations may have changed too."""
    try:
        row = connection.execute("SELECT program FROM migration ORDER BY version DESC").fetchone()
    except sqlite3.Error:
        row = None
    by = f"dflash-tui {row[0]}" if row else "a later dflash-tui"
    return f"{by} wrote it (schema {version}, this program has {VERSION})"
