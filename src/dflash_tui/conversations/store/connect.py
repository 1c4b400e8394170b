"""Connections to a SQLite file: how they are made, which file they have open, and whether it is in order."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dflash_tui.conversations.store.rows import DamagedError
from dflash_tui.conversations.store.schema import compare

T = TypeVar("T")
Identity = tuple[tuple[int, int] | None, tuple[int, int] | None]  # device and inode of a file and of its log

PATIENCE_S = 2.0  # for another running app that is writing
CHECKED = 16 << 20  # bytes up to which all of a file is checked when it is opened, which takes 0.1 s
_MAGIC = b"SQLite format 3\0"


def connect_file(path: Path) -> sqlite3.Connection:
    """A new file is its user's alone. Raises OSError, sqlite3.Error or DamagedError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        header, size = os.pread(file, 100, 0), os.fstat(file).st_size
    finally:
        os.close(file)
    if size:
        _check_header(header)
    connection = connect(path)
    try:
        if size <= CHECKED:
            [(found,)] = connection.execute("PRAGMA integrity_check(1)").fetchall()
            if found != "ok":
                raise DamagedError("database disk image is malformed")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_header(header: bytes) -> None:
    """Where these are wrong SQLite only says that the file cannot be written, or a statement that it is wrong."""
    if not header.startswith(_MAGIC):
        raise DamagedError("file is not a database")
    versions, schema_format = header[18:20], int.from_bytes(header[44:48], "big")
    if len(header) < 100 or not set(versions) <= {1, 2} or schema_format not in range(5):
        raise DamagedError("its header is not one of a database")


def connect(path: Path | str) -> sqlite3.Connection:
    """Raises sqlite3.Error."""
    connection = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        _write_ahead(connection)
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        connection.execute("PRAGMA synchronous = NORMAL")  # survives a kill; a power cut costs the last moments
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Turn to WAL. Two programs that do so with one new file are not made to wait by SQLite, whatever its timeout."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(0.005)


def transact(connection: sqlite3.Connection, change: Callable[[sqlite3.Connection], T]) -> T:
    """Make a change wholly or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = change(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled back already
            connection.execute("ROLLBACK")
        raise
    return result


def identity(path: Path) -> Identity:
    """Which files are at a path now. An empty file counts as none: somebody has emptied what held a schema."""
    return _file(f"{path}", least=1), _file(f"{path}-wal")


def _file(path: str, least: int = 0) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found.st_size >= least else None


def examine(connection: sqlite3.Connection) -> str:
    """What is wrong with an open file; empty where it is sound. Reads all of it."""
    try:
        compare(connection)
        [(found,)] = connection.execute("PRAGMA integrity_check(1)").fetchall()
        if found != "ok":
            return str(found)
        if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
            return "rows that belong to nothing"
        for search, column in (("message_content", "content"), ("conversation_title", "title")):
            connection.execute(f"INSERT INTO {search} ({search}) VALUES ('integrity-check')")
            _try_search(connection, search, column)
    except DamagedError as error:
        return str(error)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        held = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        return "" if held else str(error)  # held: by another program, for as long as it writes
    return ""


def _try_search(connection: sqlite3.Connection, search: str, column: str) -> None:
    """Put a row in and take it out again, which the file never sees. The tables that a search keeps for itself are
    compared with nothing, and a wrong name in one of them shows when it is written. Raises sqlite3.Error."""
    connection.execute("SAVEPOINT tried")
    try:
        connection.execute(f"INSERT INTO {search} (rowid, {column}) VALUES (-1, 'word')")
        connection.execute("SAVEPOINT written")  # the search writes down here what it has gathered
        connection.execute(f"INSERT INTO {search} ({search}, rowid, {column}) VALUES ('delete', -1, 'word')")
        connection.execute("SAVEPOINT written")
    finally:
        connection.execute("ROLLBACK TO tried")
        connection.execute("RELEASE tried")
