"""One SQLite file. When the disk fails, nothing is lost, the program continues, and the user is told once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from time import time_ns
from typing import TypeVar
from urllib.parse import quote

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_tui.conversations.store.connect import Identity, connect, connect_file, examine, identity, transact
from dflash_tui.conversations.store.rows import DamagedError
from dflash_tui.conversations.store.salvage import TEXTS, copy_rows, messages, salvage
from dflash_tui.conversations.store.schema import WrongFileError, migrate, reference

T = TypeVar("T")
MOST_QUOTED = 200  # characters of an error, which may quote the schema
Change = Callable[[sqlite3.Connection], None]

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# The file may be intact; the cause is the disk, permissions or another program.
_IN_THE_WAY = (
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PROTOCOL),
)
# Constraints that a wrong change can violate in an intact file. Any other means that an index has duplicate keys.
_CHECKS = (sqlite3.SQLITE_CONSTRAINT_CHECK, sqlite3.SQLITE_CONSTRAINT_NOTNULL, sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY)
# UnicodeDecodeError: SQLite's message quotes a schema that is not UTF-8.
_FAILURES = (sqlite3.Error, DamagedError, UnicodeDecodeError, OverflowError)


class StoreError(DFlashError):
    """The store cannot do it: no such conversation, or invalid data."""


class Database:
    """Reads and changes, from any thread. Every error of a statement is handled by `_heed`.

    A file that is damaged, newer or foreign is kept under another name, and a new one is created with what could be
    read. A file that cannot be written (read-only folder, full disk) is not touched: its content is copied to memory,
    changes are made there, and each later change first tries to write them all to the disk. If the file is
    removed or replaced while it is open, the program continues with the one at its path.

    `problem` is one line to show once; the code that shows it sets it to "". `renew`, if set, writes the
    conversation in memory to a file that may lack it, and returns whether there was one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        self.renew: Callable[[sqlite3.Connection], bool] = lambda db: False
        self._lock = RLock()
        self._disk: sqlite3.Connection | None = None
        self._memory: sqlite3.Connection | None = None
        self._unsaved: list[Change] = []
        self._identity: Identity = (None, None)
        self._open()

    @property
    def on_disk(self) -> bool:
        """Whether changes are written to the disk."""
        return self._memory is None

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `query`. It may raise DamagedError for values that the program cannot have written."""
        with self._lock:
            self.look()
            return self._attempt(query)

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

        Raises StoreError for a text that is larger than a database accepts; nothing is changed then.
        """
        with self._lock:
            self.look()
            self._catch_up()
            self._attempt(lambda db: transact(db, change))
            if self._memory is not None:
                self._unsaved.append(change)

    def look(self) -> None:
        """Check whether the file was removed or replaced; if so, continue with the one at its path."""
        with self._lock:
            if self._disk is not None and identity(self.path) != self._identity:
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
            raise StoreError("the conversations have been closed already")
        return connection

    def _open(self) -> None:
        try:
            reference()
        except sqlite3.OperationalError:
            raise StoreError("this Python's SQLite has no full-text search (FTS5); use a Python that has it") from None
        try:
            self._begin()
        except WrongFileError as error:
            self._replace(error.kind, str(error))
        except OSError as error:
            self._retreat(error.strerror or str(error))
        except _FAILURES as error:
            self._heed(error, opening=True)

    def _begin(self) -> sqlite3.Connection:
        """Open the file at the path, or create one. Raises what `connect_file` and `migrate` raise."""
        self._disk = disk = connect_file(self.path)
        migrate(disk)
        self._identity = identity(self.path)
        return disk

    def _attempt(self, do: Callable[[sqlite3.Connection], T]) -> T:
        """All access to the file: a failed action is retried once there is a file, or memory, in which it can work."""
        for _ in range(2):  # for example a damaged file, then a full disk for the new one
            try:
                return do(self._active)
            except _FAILURES as error:
                self._heed(error)
        return do(self._active)

    def _heed(self, error: Exception, *, opening: bool = False) -> None:
        """Replace `_active` by a working connection. Raises `error` again if it is a bug or occurred in memory."""
        code = getattr(error, "sqlite_errorcode", None)
        code = code & 0xFF if isinstance(code, int) else None
        if isinstance(error, sqlite3.ProgrammingError):
            raise error
        if self._memory is None and self._disk is not None and not opening and identity(self.path) != self._identity:
            self._follow()
        elif self._memory is None and code in _IN_THE_WAY:
            self._retreat(str(error))
        elif self._memory is None and (opening or code in _DAMAGED or self._is_damage(error)):
            self._replace("damaged", str(error)[:MOST_QUOTED])
        elif code == sqlite3.SQLITE_TOOBIG or isinstance(error, OverflowError):
            raise StoreError("a text of this size cannot be kept: a database takes up to 1,000,000,000 bytes") from None
        else:
            raise error

    def _is_damage(self, error: Exception) -> bool:
        """Whether a statement that works on an intact file has failed because this file is damaged."""
        code = getattr(error, "sqlite_errorcode", None)
        if isinstance(error, DamagedError | UnicodeDecodeError):
            return True
        if isinstance(error, sqlite3.OperationalError) and code is None:  # a text that is not UTF-8
            return True
        broken_index = isinstance(error, sqlite3.IntegrityError) and code not in _CHECKS
        return broken_index or bool(examine(self._active))

    def _replace(self, what: str, why: str) -> None:
        """Keep the file under another name, and create a new one with what can be read of it."""
        kept = _free_name(self.path.with_name(f"{self.path.stem}.{what}{self.path.suffix}"))
        old, self._disk = self._disk, None
        try:
            for ending in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{ending}", f"{kept}{ending}")
            disk = self._begin()
            if what == "damaged":
                transact(disk, lambda db: salvage(kept, db))
            read = messages(disk)
            renewed = transact(disk, self.renew)
        except (OSError, WrongFileError, *_FAILURES) as error:
            self._disk, begun = old, self._disk  # to read what is still readable
            self._retreat(f"the file is {what} ({why}) and no new one can be created ({error})", renew=True)
            self._disk, old = None, begun or old  # `_catch_up` tries again with the file at the path at that time
            return
        finally:
            if old is not None:
                old.close()
        rest = f"; {read:,} messages of it could be read and are here" if read else ""
        rest += ", as is the present conversation" if renewed else ""
        self._tell(f"{self.path.name} is {what} ({why}); it is kept as {kept}, and a new one is begun{rest}")

    def _follow(self) -> None:
        """Switch to the file now at the path, and write the conversation in memory to it."""
        (file, log), (was, its_log) = identity(self.path), self._identity
        with contextlib.suppress(sqlite3.Error):
            if self._disk is not None:
                self._disk.close()
        self._disk = None
        if file != was and log is not None and log == its_log:  # of the old file: SQLite would use it for the new one
            for ending in ("-wal", "-shm"):
                with contextlib.suppress(OSError):
                    os.unlink(f"{self.path}{ending}")
        if self._memory is not None:
            self._unsaved.insert(0, self._renew)  # `_catch_up` opens the file
            return
        on_disk, renewed = self._reopen()
        if file == was or not on_disk:  # only its log was removed; closing has merged the log into the file
            return
        how = "removed" if file is None else "replaced by another file"
        rest = "a new one is begun" if file is None else "the program continues with that one"
        rest += ", and the present conversation is in it" if renewed else ""
        self._tell(f"{self.path} was {how} while the program had it open; {rest}")

    def _reopen(self) -> tuple[bool, bool]:
        """Whether the file at the path accepts changes, and whether there was something to write."""
        self._open()
        renewed = self._attempt(lambda db: transact(db, self.renew))
        if not self.on_disk:
            self._unsaved.append(self._renew)
        return self.on_disk, renewed

    def _renew(self, connection: sqlite3.Connection) -> None:
        self.renew(connection)

    def _retreat(self, why: str, *, renew: bool = False) -> None:
        """Continue in memory, with a copy of what is readable on the disk; `renew`: add the conversation in memory."""
        memory = connect(":memory:")
        migrate(memory)
        if self._disk is not None:
            copy_rows(self._disk, memory, TEXTS)
        if not messages(memory):
            # A read-only folder: SQLite reads a file there only if told that no process writes to it.
            with contextlib.suppress(sqlite3.Error):
                frozen = sqlite3.connect(f"file:{quote(str(self.path))}?immutable=1", uri=True)
                with contextlib.closing(frozen):
                    copy_rows(frozen, memory, TEXTS)
        self._memory = memory
        if renew:
            transact(memory, self.renew)
            self._unsaved.append(self._renew)
        self._tell(f"conversations cannot be kept in {self.path}: {why}")

    def _catch_up(self) -> None:
        """Write the changes that are in memory only to the disk, if that now works."""
        if self._memory is None:
            return

        def everything(connection: sqlite3.Connection) -> None:
            for change in self._unsaved:
                change(connection)

        try:
            transact(self._disk or self._begin(), everything)
        except (OSError, WrongFileError, *_FAILURES):
            return
        self._memory.close()
        self._memory = None
        self._unsaved.clear()
        self._tell(f"conversations are kept in {self.path} again; nothing is missing")

    def _tell(self, problem: str) -> None:
        """Several problems can have one cause; the first one names it. SQLite quotes text that it found in the file."""
        problem = one_line(problem)
        self.problem = f"{self.problem}; {problem}" if self.problem else problem


def _free_name(path: Path) -> Path:
    """`path`, with the time added to its name if the file exists already."""
    return path if not path.exists() else path.with_name(f"{path.stem}.{time_ns()}{path.suffix}")
