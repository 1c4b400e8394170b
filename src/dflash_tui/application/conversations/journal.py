"""Typed text and the running answer as rows of the database, so that nothing is lost if the program ends now.

Each running app has a row with its typed text and the place of its running answer, whose steps are rows too. One thread
commits them in their order. The app also locks a file, and the system releases that lock however the program ends, so
that the next start knows whose rows no running app owns.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from types import MappingProxyType
from typing import IO, Annotated

import msgspec

from dflash_core.clean import encodable
from dflash_core.errors import DFlashError, FormatError
from dflash_core.record import Line, Loaded, TurnLine, TurnRecord, assemble, decode, encode
from dflash_tui.application.conversations.branches import new_id
from dflash_tui.application.conversations.store import rows
from dflash_tui.application.conversations.store.database import Change, Database
from dflash_tui.application.json_store import parse
from dflash_tui.application.pasted import whole

Id = Annotated[str, msgspec.Meta(min_length=1)]
WAIT_S = 0.2  # the longest that a key waits for the disk


class Typed(msgspec.Struct, frozen=True):
    """Text in the prompt, and the queued messages."""

    draft: str = ""
    waiting: tuple[str, ...] = ()


class Place(msgspec.Struct, frozen=True):
    """Where an answer belongs: after `question`, the message `prompt`, which follows `parent`."""

    conversation: Id
    question: Id
    answer: Id
    prompt: str
    parent: str | None = None
    model: str = ""


NOTHING: Mapping[str, str] = MappingProxyType({})
_TYPED = msgspec.json.Decoder(Typed)
_PLACE = msgspec.json.Decoder(Place)
_OWN = "WHERE EXISTS (SELECT 1 FROM app WHERE id = ?1)"  # else a new file
_STEP = f"INSERT INTO step (app, line) SELECT ?1, ?2 {_OWN}"
_PASTED = f"INSERT OR REPLACE INTO paste SELECT ?1, ?2, ?3 {_OWN}"
_APP = "INSERT INTO app VALUES (?1, ?2, ?3, ?4) ON CONFLICT (id) DO UPDATE SET typed = ?2, place = ?3, changed = ?4"
_CLEAR = "DELETE FROM step WHERE app = ?"


@dataclass(frozen=True, slots=True)
class Left:
    """The data of an app that was killed. `place` and `record` are those of the turn running at that time."""

    typed: Typed
    place: Place | None = None
    record: TurnRecord | None = None


class Journal:
    """One app's rows. `problem` says once that they cannot be written; no method raises then.

    `put` counts the changes that were asked for, `done` those that are on the disk.
    """

    def __init__(self, database: Database, folder: Path) -> None:
        self.problem = ""
        self.put = self.done = 0
        self._database, self._folder, self._app = database, folder, new_id()
        self._typed, self._place = Typed(), b""
        self._pasted: frozenset[str] = frozenset()  # the placeholders whose texts are rows
        self._changes: deque[Change | None] = deque()  # None: the app ends
        self._changed = Condition()
        self._thread: Thread | None = None
        self._lock: IO[bytes] | None = None
        self._failed = False
        with contextlib.suppress(OSError):  # the lock in it will say why
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def typed(self, draft: str, waiting: Iterable[str] = (), pasted: Mapping[str, str] = NOTHING) -> None:
        """Save the text in the prompt and the queued messages. Keys of `pasted` are placeholders for long texts."""
        now = Typed(encodable(draft), tuple(map(encodable, waiting)))
        if now == self._typed:
            return
        here = frozenset(words for words in pasted if words in draft)
        gone = [(self._app, words) for words in self._pasted - here]
        new = [(self._app, words, encodable(pasted[words])) for words in here - self._pasted]
        self._typed, self._pasted = now, here

        def change(db: sqlite3.Connection) -> None:
            db.executemany("DELETE FROM paste WHERE app = ? AND words = ?", gone)
            db.executemany(_PASTED, new)

        self._save(change)
        self.flush(WAIT_S)

    def begin(self, place: Place) -> None:
        """A turn starts; its lines follow."""
        self._place = msgspec.json.encode(place)
        self._save(lambda db: db.execute(_CLEAR, (self._app,)))

    def line(self, line: Line) -> None:
        """Add one line of the turn. Called on the decoder's thread, which does not wait for the disk."""
        if self._place and self._database.on_disk:
            row = (self._app, encode(line))
            self._put(lambda db: db.execute(_STEP, row))

    def finish(self) -> None:
        """Delete the turn: it is in the store, or there is nothing to keep."""
        if self._place:
            self._place = b""
            self._save(lambda db: db.execute(_CLEAR, (self._app,)))
            self.flush()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every change so far is on the disk."""
        with self._changed:
            put = self.put
            self._changed.wait_for(lambda: self.done >= put, timeout)

    def close(self) -> None:
        """The app ends. Text that was not sent, and a turn that is not in the store, stay for the next start."""
        if self._thread is None:
            return
        over = not self._place and self._typed == Typed()
        if over:
            self._put(partial(_delete, self._app))
        self._put(None)
        self._thread.join()
        self._thread, self._failed = None, True
        if over:
            self._path(self._app).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    def rescue(self) -> Iterator[Left]:
        """The data of apps that were killed, oldest first. Advancing to the next one deletes the rows of the last."""
        for (app,) in self._database.read(lambda db: db.execute("SELECT id FROM app ORDER BY changed").fetchall()):
            with contextlib.suppress(OSError), self._path(app).open("ab") as lock:
                if app != self._app and _locked(lock):
                    left = self._database.read(partial(_left, app))
                    if left.typed != Typed() or left.place is not None:
                        yield left
                    self._database.write(partial(_delete, app))
                    self._path(app).unlink(missing_ok=True)

    def _path(self, app: str) -> Path:
        return self._folder / f"{app}.lock"

    def _save(self, change: Change) -> None:
        row = (self._app, msgspec.json.encode(self._typed).decode(), self._place.decode() or None, time.time())
        self._put(lambda db: (db.execute(_APP, row), change(db)))

    def _put(self, change: Change | None) -> None:
        """Have a change made by the thread. The lock and the thread begin with the first one."""
        with self._changed:
            if self._thread is None and not self._failed:
                try:
                    self._lock = self._path(self._app).open("ab")
                    self._failed = not _locked(self._lock)
                    self._thread = Thread(target=self._run, name="dflash-journal", daemon=True)
                    self._thread.start()
                except OSError as error:
                    self._fail(f"{self._folder} cannot be written: {error.strerror}")
            if self._thread is not None:
                self._changes.append(change)
                self.put += 1
                self._changed.notify_all()

    def _run(self) -> None:
        """Commit what was put, several changes at once if they have come faster than the disk takes them."""
        going = True
        while going:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._changes))
                taken, self._changes = self._changes, deque()
            going = None not in taken
            try:
                self._database.write(partial(_all, [*filter(None, taken)]))
            except (DFlashError, sqlite3.Error) as error:
                self._fail(str(error))
            with self._changed:
                self.done += len(taken)
                self._changed.notify_all()

    def _fail(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            self.problem = f"{why}; what is typed or half answered would not survive the end of the program"


def _all(changes: Iterable[Change], db: sqlite3.Connection) -> None:
    for change in changes:
        change(db)


def _delete(app: str, db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM app WHERE id = ?", (app,))  # and with it its pastes and steps


def _locked(file: IO[bytes]) -> bool:
    """Lock a file; False if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _left(app: str, db: sqlite3.Connection) -> Left:
    """What the rows of an app say; a turn up to its last complete line."""
    found = db.execute("SELECT typed, place FROM app WHERE id = ?", (app,)).fetchone()
    typed, place = Typed(), None
    if found is None:  # another app has just taken them
        return Left(typed)
    with contextlib.suppress(FormatError):
        typed = parse(found[0], _TYPED)
        texts = rows.typed(dict(db.execute("SELECT words, text FROM paste WHERE app = ?", (app,))), dict[str, str])
        typed = msgspec.structs.replace(typed, draft=whole(typed.draft, texts))
    with contextlib.suppress(FormatError):
        place = parse(found[1] or "", _PLACE)
        steps = db.execute("SELECT line FROM step WHERE app = ? ORDER BY number", (app,))
        return Left(typed, place, next(assemble(_lines(rows.packed(line) for (line,) in steps)), None))
    return Left(typed, place)


def _lines(texts: Iterable[bytes]) -> Iterator[TurnLine]:
    """The lines before the first damaged one."""
    with contextlib.suppress(FormatError):
        for text in texts:
            if not isinstance(line := decode(text), Loaded):
                yield line
