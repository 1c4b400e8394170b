"""Connections to an SQLite file: opening, identity of the open file, integrity checks."""

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

PATIENCE_S = 2.0  # seconds to wait for another app that is writing
CHECKED = 16 << 20  # up to this size in bytes the whole file is checked when it is opened, which takes 0.1 s
_MAGIC = b"SQLite format 3\0"


def connect_file(path: Path) -> sqlite3.Connection:
    """Open a file; a new one is readable by its user only. Raises OSError, sqlite3.Error or DamagedError."""
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
    """Check the header: if it is wrong, SQLite only reports a file that cannot be written or a wrong statement."""
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
        connection.execute("PRAGMA synchronous = NORMAL")  # survives a kill; a power cut loses the last moments
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to WAL. If two programs do so with a new file, SQLite fails at once, whatever the timeout."""
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


def identity(path: Path) -> Identity:
    """The files now at a path. An empty file counts as none: it contained a schema, so someone has emptied it."""
    return _file(f"{path}", least=1), _file(f"{path}-wal")


def _file(path: str, least: int = 0) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found.st_size >= least else None


def examine(connection: sqlite3.Connection) -> str:
    """What is wrong with an open file; empty if it is intact. Reads all of it."""
    try:
        compare(connection)
        [(found,)] = connection.execute("PRAGMA integrity_check(1)").fetchall()
        if found != "ok":
            return str(found)
        if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
            return "rows without a parent row"
        for search, column in (("message_content", "content"), ("conversation_title", "title")):
            connection.execute(f"INSERT INTO {search} ({search}) VALUES ('integrity-check')")
            _try_search(connection, search, column)
    except DamagedError as error:
        return str(error)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        held = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        return "" if held else str(error)  # locked by another program while it writes
    return ""


def _try_search(connection: sqlite3.Connection, search: str, column: str) -> None:
    """Insert a row and delete it again, without writing to the file. No check covers the internal tables of the
    search index, and a wrong name in one of them causes an error only on a write. Raises sqlite3.Error."""
    connection.execute("SAVEPOINT tried")
    try:
        connection.execute(f"INSERT INTO {search} (rowid, {column}) VALUES (-1, 'word')")
        connection.execute("SAVEPOINT written")  # here the index writes its pending rows
        connection.execute(f"INSERT INTO {search} ({search}, rowid, {column}) VALUES ('delete', -1, 'word')")
        connection.execute("SAVEPOINT written")
    finally:
        connection.execute("ROLLBACK TO tried")
        connection.execute("RELEASE tried")
