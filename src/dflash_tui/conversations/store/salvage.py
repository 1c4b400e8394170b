"""Recovers what is readable in a damaged file, whether header, schema, pages or single values are damaged."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dflash_tui.conversations.store.rows import COLUMNS, DamagedError
from dflash_tui.conversations.store.schema import new_file

TEXTS = ("conversation", "message")
EVERYTHING = (*TEXTS, "turn")
PAGE = 4096
_EMPTY_PAGE = bytes((13, 0, 0, 0, 0, PAGE >> 8, PAGE & 255, 0))  # a leaf page of an empty table
# Columns in the order of their definition: a table's statement may be unreadable although its rows are not.
_NAMES = {
    "conversation": ("number", "id", "title", "system", "model", "created", "updated", "leaf"),
    "message": (
        *("number", "id", "conversation", "parent", "role"),
        *("content", "thinking", "outcome", "created", "report"),
    ),
    "turn": ("message", "record"),
}
# Replacements for unreadable values; a row that lacks any other value is useless.
_SPARE: Mapping[str, Any] = {
    **dict.fromkeys(("system", "model", "thinking", "outcome"), ""),
    **dict.fromkeys(("leaf", "parent", "report")),
    **dict.fromkeys(("created", "updated"), 0.0),
    "title": "untitled",
}
# A message recreates the conversation that it names, with a replacement title.
_ITS_CONVERSATION = """
INSERT OR IGNORE INTO conversation (id, title, system, model, created, updated)
VALUES (:conversation, 'untitled', '', '', :created, :created)
"""


def salvage(damaged: Path, target: sqlite3.Connection) -> None:
    """Copy what is readable in a file to new tables; the file is not changed. Raises errors of `target` only."""
    with tempfile.TemporaryDirectory(dir=damaged.parent, ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / "copy.db"
        try:
            _copy_file(damaged, copy)
            _mend_header(copy)
        except OSError:  # no room
            copy = damaged
        with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
            if copy != damaged:
                _mend_schema(copy)
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(copy))}?mode=ro", uri=True)) as source:
            copy_rows(source, target, EVERYTHING)


def copy_rows(source: sqlite3.Connection, target: sqlite3.Connection, tables: Sequence[str]) -> None:
    """Copy every row that can be read. Raises errors of `target` only."""
    decode, source.text_factory = source.text_factory, lambda data: data.decode(errors="replace")
    try:
        for table in tables:
            names = _NAMES[table]
            marks = ", ".join("?" * len(names))
            insert = f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({marks})"
            for row in _rows(source, f"SELECT {', '.join(names)} FROM {table} ORDER BY rowid"):
                with contextlib.suppress(sqlite3.IntegrityError, DamagedError):  # its message is lost
                    values = dict(zip(names, _repaired(names, row), strict=True))
                    if table == "message":
                        target.execute(_ITS_CONVERSATION, values)
                    target.execute(insert, tuple(values.values()))
    finally:
        source.text_factory = decode


def _rows(source: sqlite3.Connection, query: str) -> Iterator[Sequence[object]]:
    """Rows from both ends, if a damaged page is between; a row may then occur twice."""
    for order in (" ASC", " DESC"):
        try:
            yield from source.execute(query + order)
            return
        except (sqlite3.Error, UnicodeDecodeError):
            continue


def _copy_file(file: Path, copy: Path) -> None:
    for ending in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(f"{file}{ending}", f"{copy}{ending}")


def messages(connection: sqlite3.Connection) -> int:
    """How many there are."""
    return int(connection.execute("SELECT count(*) FROM message").fetchone()[0])


def _repaired(names: Sequence[str], row: Sequence[object]) -> Iterator[object]:
    for name, value in zip(names, row, strict=True):
        try:
            yield COLUMNS[name](value)
        except DamagedError:
            if name not in _SPARE:
                raise
            yield _SPARE[name]


def _mend_header(copy: Path) -> None:
    """Write the fields that are the same in every file of this program (https://sqlite.org/fileformat.html)."""
    with copy.open("r+b") as file:
        header = bytearray(file.read(100))
        size = os.fstat(file.fileno()).st_size
        if len(header) < 100 or size % PAGE:
            return
        fields = {0: b"SQLite format 3\0", 16: PAGE.to_bytes(2, "big"), 18: bytes((2, 2, 0, 64, 32, 32))}
        fields |= {28: (size // PAGE).to_bytes(4, "big"), 44: bytes((0, 0, 0, 4)), 52: bytes(4)}
        fields |= {56: bytes((0, 0, 0, 1)), 64: bytes(4), 92: bytes(header[24:28])}
        for place, value in fields.items():
            header[place : place + len(value)] = value
        file.seek(0)
        file.write(header)


def _mend_schema(copy: Path) -> None:
    """Keep only the tables that are read, under their names, without indexes, each at its most likely root page."""
    query = "SELECT name, rootpage, sql FROM sqlite_master WHERE rootpage > 0"
    try:
        with _lenient(copy) as connection:
            found = connection.execute(query).fetchall()
            _rewrite(connection, found)
    except (
        sqlite3.Error,
        UnicodeDecodeError,
    ):  # the page of the schema is damaged: assume the root pages of a new file
        with contextlib.closing(new_file()) as connection:
            found = connection.execute(query).fetchall()
        with copy.open("r+b") as file:
            file.seek(100)
            file.write(_EMPTY_PAGE)
        with _lenient(copy) as connection:
            _rewrite(connection, found)


@contextlib.contextmanager
def _lenient(copy: Path) -> Iterator[sqlite3.Connection]:
    """A connection that can read and write its schema, even an invalid one."""
    with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.text_factory = lambda data: data.decode(errors="replace")
        connection.execute("PRAGMA writable_schema = ON")
        yield connection


def _rewrite(connection: sqlite3.Connection, found: Sequence[tuple[object, int, object]]) -> None:
    if not found:
        return
    connection.execute("BEGIN")
    connection.execute("DELETE FROM sqlite_master")
    for table, names in _NAMES.items():
        statement = f"CREATE TABLE {table} ({', '.join(names)})".replace("number", "number INTEGER PRIMARY KEY")
        _, root = max((_likeness(table, names, name, sql), root) for name, root, sql in found)
        columns = "type, name, tbl_name, rootpage, sql"
        row = ("table", table, table, root, statement)
        connection.execute(f"INSERT INTO sqlite_master ({columns}) VALUES (?, ?, ?, ?, ?)", row)
    connection.execute("COMMIT")


def _likeness(table: str, names: Sequence[str], name: object, sql: object) -> float:
    """How well a row of the schema matches a table: first by name, then by columns."""
    named = 3 * SequenceMatcher(None, table, str(name)).ratio()
    return named + sum(column in str(sql) for column in names) / len(names) + str(sql).startswith("CREATE TABLE")
