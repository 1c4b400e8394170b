"""One SQLite file, and what happens when the disk fails: nothing is lost, the program goes on, and it is said once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from dflash_core.errors import DFlashError
from dflash_tui.store.schema import WrongFileError, migrate

T = TypeVar("T")
Change = Callable[[sqlite3.Connection], None]

PATIENCE_S = 2.0  # for another running app that is writing
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TEXTS = ("conversation", "message")
_EVERYTHING = (*_TEXTS, "turn")


class StoreError(DFlashError):
    """What is asked of the store cannot be done: no such conversation, or one that is not of this program."""


class Database:
    """Reads and changes, from any thread.

    A file that is damaged, newer or foreign is kept under another name and a new one begun with what could be read. A
    file that cannot be written - a read-only folder, a full disk - is left alone: what is in it is copied to memory,
    the changes go on there, and each later change first tries to bring them all to the disk.

    `problem` is one line to show, once; whoever shows it sets it to "".
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        self._lock = threading.RLock()
        self._disk: sqlite3.Connection | None = None
        self._memory: sqlite3.Connection | None = None
        self._unsaved: list[Change] = []
        self._open()

    @property
    def on_disk(self) -> bool:
        """Whether changes go to the disk."""
        return self._memory is None

    @property
    def unsaved(self) -> int:
        """Changes that are in memory only."""
        return len(self._unsaved)

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """What `query` returns."""
        with self._lock:
            try:
                return query(self._active)
            except sqlite3.DatabaseError as error:
                self._heed(error)
                return query(self._active)

    def read_large(self, query: Callable[[sqlite3.Connection], list[T]]) -> list[T]:
        """Rows of what is too large to be copied to memory when the disk fails: they are then in two places."""
        with self._lock:
            rows = self.read(query)
            if self._memory is not None and self._disk is not None:
                with contextlib.suppress(sqlite3.DatabaseError):
                    rows = query(self._disk) + rows
            return rows

    def write(self, change: Change) -> None:
        """Make a change, in one transaction: on the disk where that works, in memory where it does not."""
        with self._lock:
            self._catch_up()
            try:
                _transact(self._active, change)
            except sqlite3.DatabaseError as error:
                self._heed(error)
                _transact(self._active, change)
            if self._memory is not None:
                self._unsaved.append(change)

    def close(self) -> bool:
        """Close; False where changes stayed in memory and are lost with it."""
        with self._lock:
            self._catch_up()
            for connection in (self._disk, self._memory):
                if connection is not None:
                    connection.close()
            self._disk = self._memory = None
            return not self._unsaved

    @property
    def _active(self) -> sqlite3.Connection:
        connection = self._memory or self._disk
        if connection is None:
            raise StoreError("the conversations have been closed already")
        return connection

    def _open(self) -> None:
        try:
            self._disk = _connect_file(self.path)
            migrate(self._disk)
        except WrongFileError as error:
            self._replace(error.kind, str(error))
        except sqlite3.DatabaseError as error:
            if "no such module" in str(error):
                raise StoreError(
                    "this Python's SQLite has no full-text search (FTS5); use a Python whose has"
                ) from None
            self._heed(error)
        except OSError as error:
            self._retreat(error.strerror or str(error))

    def _heed(self, error: sqlite3.DatabaseError) -> None:
        """Make `_active` one that works. Raises `error` again where it is a fault of the program, or in memory."""
        programming = (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.NotSupportedError)
        if isinstance(error, programming) or self._memory is not None:
            raise error
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF in _DAMAGED:
            self._replace("damaged", str(error))
        elif code & 0xFF == sqlite3.SQLITE_ERROR:  # a statement that is wrong
            raise error
        else:
            self._retreat(str(error))

    def _replace(self, what: str, why: str) -> None:
        """Keep the file under another name, and begin a new one with what can be read of it."""
        kept = _free_name(self.path.with_name(f"{self.path.stem}.{what}{self.path.suffix}"))
        try:
            for ending in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{ending}", f"{kept}{ending}")
            old, self._disk = self._disk, _connect_file(self.path)
            migrate(self._disk)
        except (OSError, sqlite3.DatabaseError) as error:
            self._retreat(f"the file is {what} ({why}) and no new one can be begun ({error})")
            return
        copied = _copy(old, self._disk, _EVERYTHING) if what == "damaged" else 0
        if old is not None:
            old.close()
        rest = f"; {copied:,} messages of it could be read and are here" if copied else ""
        self.problem = f"{self.path.name} is {what} ({why}); it is kept as {kept}, and a new one is begun{rest}"

    def _retreat(self, why: str) -> None:
        """Go on in memory, with a copy of what the disk can still say."""
        memory = _connect(":memory:")
        migrate(memory)
        if not _copy(self._disk, memory, _TEXTS):
            # A folder in which nothing can be created: SQLite reads a file there only if told that nobody writes it.
            with contextlib.suppress(sqlite3.DatabaseError):
                frozen = sqlite3.connect(f"file:{quote(str(self.path))}?immutable=1", uri=True)
                with contextlib.closing(frozen):
                    _copy(frozen, memory, _TEXTS)
        self._memory = memory
        self.problem = f"conversations cannot be kept in {self.path}: {why}"

    def _catch_up(self) -> None:
        """Bring to the disk what is in memory only, if the disk will have it now."""
        if self._memory is None:
            return

        def everything(connection: sqlite3.Connection) -> None:
            for change in self._unsaved:
                change(connection)

        try:
            self._disk = self._disk or _connect_file(self.path)
            migrate(self._disk)
            _transact(self._disk, everything)
        except (OSError, sqlite3.DatabaseError, WrongFileError):
            return
        self._memory.close()
        self._memory = None
        self._unsaved.clear()
        self.problem = f"conversations are kept in {self.path} again; nothing is missing"


def _connect_file(path: Path) -> sqlite3.Connection:
    """A new file is its user's alone. Raises OSError or sqlite3.Error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    return _connect(path)


def _connect(path: Path | str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    _write_ahead(connection)
    connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
    connection.execute("PRAGMA synchronous = NORMAL")  # survives a killed program; a power cut costs the last moments
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


def _transact(connection: sqlite3.Connection, change: Change) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        change(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled back already
            connection.execute("ROLLBACK")
        raise


def _copy(source: sqlite3.Connection | None, target: sqlite3.Connection, tables: Sequence[str]) -> int:
    """Copy every row that can be read, from both ends of each table. Returns the number of messages."""
    if source is None:
        return 0
    for table in tables:
        for order in ("ASC", "DESC"):
            with contextlib.suppress(sqlite3.DatabaseError):
                rows = source.execute(f"SELECT * FROM {table} ORDER BY rowid {order}")
                columns = ", ".join(column[0] for column in rows.description)
                marks = ", ".join("?" * len(rows.description))
                for row in rows:
                    with contextlib.suppress(sqlite3.IntegrityError):  # of a conversation that cannot be read
                        target.execute(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})", row)
    return int(target.execute("SELECT count(*) FROM message").fetchone()[0])


def _free_name(path: Path) -> Path:
    """`path`, or with the time in its name where there is such a file already."""
    return path if not path.exists() else path.with_name(f"{path.stem}.{time.time_ns()}{path.suffix}")
