"""One SQLite file in WAL mode. When the disk fails, nothing is lost, the program goes on, and one message is shown."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import TypeVar
from urllib.parse import quote

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_tui.application.conversations.store.rows import UnusableError, copy
from dflash_tui.application.conversations.store.schema import check, migrate, reference, transact

T = TypeVar("T")
Change = Callable[[sqlite3.Connection], object]
Identity = tuple[tuple[int, int] | None, tuple[int, int] | None]  # device and inode of a file and of its log

PATIENCE_S = 2.0  # seconds to wait for another app that is writing
CHECKED = 16 << 20  # up to this size in bytes the whole file is checked when it is opened, which takes 0.1 s
MAX_QUOTED = 200  # characters of an error, which may quote the schema
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# The file may be intact; the cause is the disk, permissions or another program.
_IN_THE_WAY = (
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PROTOCOL),
)
# UnicodeDecodeError: SQLite's message quotes a schema that is not UTF-8.
_FAILURES = (sqlite3.Error, UnusableError, UnicodeDecodeError, OverflowError, OSError)


class Database:
    """Reads and changes, from any thread. Every error of a statement is handled by `_go_on`.

    A file that is damaged, newer or foreign is renamed, and a new one is created. A file that cannot
    be written is not touched: its texts are copied to memory, changes are made there, and each later change first
    tries to write them all to the disk. If the file is removed or replaced while it is open, the program continues
    with the one at its path.

    `problem` returns one line to show, once. `renew` writes the conversation in
    memory to a file that may lack it, and returns whether there was one.
    """

    def __init__(self, path: Path, renew: Callable[[sqlite3.Connection], bool] = lambda db: False) -> None:
        self.path = path
        self._problem = ""
        self._renew = renew
        self._lock = RLock()
        self._disk: sqlite3.Connection | None = None
        self._memory: sqlite3.Connection | None = None
        self._unsaved: list[Change] = []
        self._identity: Identity = (None, None)
        try:
            reference()
        except sqlite3.OperationalError:
            raise DFlashError("this Python's SQLite has no full-text search (FTS5); use a Python that has it") from None
        self._open()

    @property
    def on_disk(self) -> bool:
        """Whether changes are written to the disk; of a closed database, whether all of them were."""
        return self._memory is None and not self._unsaved

    def problem(self) -> str:
        """The problem with the disk, returned once."""
        problem, self._problem = self._problem, ""
        return problem

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `query`. `query` may raise UnusableError for values that the program cannot have written."""
        with self._lock:
            self.look()
            for _ in range(2):  # for example a damaged file, then a full disk for the new one
                try:
                    return query(self._active)
                except _FAILURES as error:
                    self._go_on(error)
            return query(self._active)

    def read_large(self, query: Callable[[sqlite3.Connection], list[T]]) -> list[T]:
        """Rows of a table too large to copy to memory when the disk fails: they are then in two places."""
        with self._lock:
            rows = self.read(query)
            if self._memory is not None and self._disk is not None:
                with contextlib.suppress(*_FAILURES):
                    rows = query(self._disk) + rows
            return rows

    def write(self, change: Change) -> None:
        """Make a change in one transaction: on the disk, or in memory if the disk fails.

        Raises DFlashError for a text that is larger than a database accepts; nothing is changed then.
        """
        with self._lock:
            self.look()
            self._catch_up()
            self.read(lambda db: transact(db, change))
            if self._memory is not None:
                self._unsaved.append(change)

    def look(self) -> None:
        """Check whether the file was removed or replaced; if so, continue with the one at its path."""
        with self._lock:
            if self._disk is not None and _identity(self.path) != self._identity:
                self._follow()

    def close(self) -> bool:
        """Close; False if changes existed in memory only and are lost."""
        with self._lock:
            self.look()
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
            raise DFlashError("the conversations have been closed already")
        return connection

    def _open(self) -> None:
        try:
            self._begin()
        except _FAILURES as error:
            self._go_on(error)

    def _begin(self) -> sqlite3.Connection:
        """Open the file at the path, or create one."""
        self._disk = disk = _connect_file(self.path)
        self._identity = _identity(self.path)
        return disk

    def _go_on(self, error: Exception) -> None:
        """Replace `_active` by a connection that works. Raises `error` again if it is a bug or occurred in memory."""
        code = getattr(error, "sqlite_errorcode", None)  # None: a text that is not UTF-8, or an error that is not SQL's
        code = code & 0xFF if code is not None else None
        if code == sqlite3.SQLITE_TOOBIG or isinstance(error, OverflowError):
            raise DFlashError(
                "a text of this size cannot be saved: a database takes up to 1,000,000,000 bytes"
            ) from None
        if self._memory is not None or isinstance(error, sqlite3.ProgrammingError):
            raise error
        if self._disk is not None and _identity(self.path) != self._identity:
            self._follow()
        elif isinstance(error, OSError) or code in _IN_THE_WAY:
            self._retreat(str(getattr(error, "strerror", "") or error))
        elif code is None or code in _DAMAGE or self._disk is None or not _sound(self._disk, error):
            self._set_aside(error.kind if isinstance(error, UnusableError) else "damaged", str(error)[:MAX_QUOTED])
        else:
            raise error

    def _set_aside(self, what: str, why: str) -> None:
        """Keep the file under another name, and create a new one with the rows of a damaged one that can be read."""
        name = f"{self.path.stem}.{what}"
        aside = self.path.with_name(f"{name}{self.path.suffix}")
        if aside.exists():
            aside = self.path.with_name(f"{name}.{time.time_ns()}{self.path.suffix}")
        if self._disk is not None:
            self._disk.close()
            self._disk = None
        try:
            for ending in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{ending}", f"{aside}{ending}")
            disk = self._begin()
            read = transact(disk, lambda db: _copy(aside, db, records=True)) if what == "damaged" else 0
            renewed = transact(disk, self._renew)
        except _FAILURES as error:
            self._retreat(f"the file is {what} ({why}) and no new one can be created ({error})")
            return
        rest = f"; {read:,} of its messages could be read and are in it" if read else ""
        rest += ", as is the present conversation" if renewed else ""
        self._tell(f"{self.path.name} is {what} ({why}); it was renamed to {aside}, and a new one is started{rest}")

    def _follow(self) -> None:
        """Switch to the file now at the path, and write the conversation in memory to it."""
        (file, log), (was, old_log) = _identity(self.path), self._identity
        with contextlib.suppress(sqlite3.Error):
            if self._disk is not None:
                self._disk.close()
        self._disk = None
        if file != was and log is not None and log == old_log:  # of the old file: SQLite would use it for the new one
            for ending in ("-wal", "-shm"):
                with contextlib.suppress(OSError):
                    os.unlink(f"{self.path}{ending}")
        if not self.on_disk:  # `_catch_up` opens the file
            return
        self._open()
        renewed = self.read(lambda db: transact(db, self._renew))
        if self.on_disk and file != was:  # else only its log was removed; closing has merged the log into the file
            how = "removed" if file is None else "replaced by another file"
            rest = "a new one is started" if file is None else "the program continues with that one"
            rest += ", and the present conversation is in it" if renewed else ""
            self._tell(f"{self.path} was {how} while the program had it open; {rest}")

    def _retreat(self, why: str) -> None:
        """Continue in memory, with a copy of the texts that are readable on the disk, and the present conversation."""
        self._memory = memory = _connect(":memory:")
        migrate(memory)
        _copy(self.path, memory, records=False)
        transact(memory, self._renew)
        self._unsaved.append(self._renew)
        self._tell(f"conversations cannot be saved in {self.path}: {why}")

    def _catch_up(self) -> None:
        """Write the changes that are in memory only to the disk, if that now works."""
        if self._memory is None:
            return
        try:
            transact(self._disk or self._begin(), lambda db: [change(db) for change in self._unsaved])
        except _FAILURES:
            return
        self._memory.close()
        self._memory = None
        self._unsaved.clear()
        self._tell(f"conversations are saved in {self.path} again; nothing is missing")

    def _tell(self, problem: str) -> None:
        """Several problems can have one cause; the first one names it. SQLite quotes text that it found in the file."""
        self._problem = "; ".join(filter(None, [self._problem, one_line(problem)]))


def _connect_file(path: Path) -> sqlite3.Connection:
    """Open a file, which is checked and brought up to date; a new one is readable by its user only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        header, size = os.pread(file, 100, 0), os.fstat(file).st_size
    finally:
        os.close(file)
    # If its header is wrong, SQLite only reports a file that cannot be written or a wrong statement.
    written = header.startswith(b"SQLite format 3\0") and {*header[18:20]} <= {1, 2} and header[44:47] == bytes(3)
    if size and not written:
        raise UnusableError("file is not a database")
    connection = _connect(path)
    try:
        migrate(connection)
        check(connection, pages=size <= CHECKED)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path | str) -> sqlite3.Connection:
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


def _sound(connection: sqlite3.Connection, error: Exception) -> bool:
    """Whether a file is intact, so that a statement has failed by a fault of the program. No check covers the tables
    of the search index: it names no cause when they are damaged."""
    try:
        check(connection)
    except (sqlite3.Error, UnusableError, UnicodeDecodeError):
        return False
    return not str(error).startswith(("SQL logic error", "vtable constructor failed"))


def _copy(path: Path, target: sqlite3.Connection, *, records: bool) -> int:
    """Copy what can be read of a file, which is not changed; returns the number of messages."""
    read = 0
    # immutable: for a file in a folder where no log can be made.
    for options in ("mode=ro", "immutable=1"):
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?{options}", uri=True)) as source,
        ):
            read = read or copy(source, target, records=records)
    return read


def _identity(path: Path) -> Identity:
    """The files now at a path. An empty file counts as none: it contained a schema, so someone has emptied it."""

    def of(path: str, min_size: int) -> tuple[int, int] | None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        return (found.st_dev, found.st_ino) if found.st_size >= min_size else None

    return of(str(path), 1), of(f"{path}-wal", 0)
