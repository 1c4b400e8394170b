"""Typed text and the running answer, always on disk, so that nothing is lost if the program ends now.

Each running app has four files in one folder. A lock, which the system releases however the program ends, so that
the next start knows which files no running app owns. The typed text, replaced at every change.
The long texts that were pasted into it. The running turn: where it belongs, then a line per step as it arrives
(`dflash_core.record`), deleted once the answer is in the store.

Why not rows of the SQLite file, which has its own log: each step would have to be committed to survive the end of
the process. Over 226 steps of 4.7 kB, alternating in one run, on the decoder's thread, per step: a line here
takes 15 us of CPU time (mean 17), a committed row 34 us (mean 62), and 12 ms in one of a hundred, when the log is
merged. Rows in one open transaction take 17 us, but are lost with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

import msgspec

from dflash_core.clean import encodable
from dflash_core.errors import FormatError
from dflash_core.record import Line, Loaded, TurnLine, TurnRecord, assemble, decode, encode
from dflash_tui.conversations.branches import new_id
from dflash_tui.conversations.parse import parse
from dflash_tui.text.pasted import whole


class Typed(msgspec.Struct, frozen=True):
    """Text in the prompt, and the queued messages."""

    draft: str = ""
    waiting: tuple[str, ...] = ()


class Place(msgspec.Struct, frozen=True):
    """Where an answer belongs: after `question`, the message `prompt`, which follows `parent`."""

    conversation: str
    question: str
    answer: str
    prompt: str
    parent: str | None = None
    model: str = ""


class Paste(msgspec.Struct, frozen=True):
    """A long text, and its placeholder in the draft."""

    words: str
    text: str


_TYPED = msgspec.json.Decoder(Typed)
_PASTE = msgspec.json.Decoder(Paste)
_NOTHING: Mapping[str, str] = MappingProxyType({})
_PLACE = msgspec.json.Decoder(Place)


@dataclass(frozen=True, slots=True)
class Left:
    """The data of an app that was killed. `place` and `record` are those of the turn running at that time."""

    typed: Typed
    place: Place | None = None
    record: TurnRecord | None = None


class Journal:
    """One app's files in `folder`. `problem` says once that they cannot be written; no method raises then."""

    def __init__(self, folder: Path) -> None:
        self.problem = ""
        self._folder = folder
        self._name = ""
        self._lock: IO[bytes] | None = None
        self._text: IO[bytes] | None = None
        self._pastes: IO[bytes] | None = None
        self._turn: IO[bytes] | None = None
        self._typed = Typed()
        self._pasted: set[str] = set()  # the placeholders whose texts are in the file
        self._failed = False
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._hold()
        except OSError as error:
            self._fail(error)

    def typed(self, draft: str, waiting: Iterable[str] = (), pasted: Mapping[str, str] = _NOTHING) -> None:
        """Save the text in the prompt and the queued messages. Keys of `pasted` are placeholders for long texts."""
        now = Typed(encodable(draft), tuple(map(encodable, waiting)))
        if now != self._typed and self._works:
            line = msgspec.json.encode(now) + b"\n"
            try:
                here = [words for words in pasted if words in draft]
                self._keep([Paste(words, encodable(pasted[words])) for words in here if words not in self._pasted])
                if self._text is None:
                    self._text = _private(self._path("typed"))
                # Overwrite the old text in one write call, which nothing interrupts. Only the first line counts.
                os.pwrite(self._text.fileno(), line, 0)
                self._text.truncate(len(line))
                if self._pastes is not None and not here:
                    self._pastes.truncate(0)
                    self._pasted.clear()
            except OSError as error:
                self._fail(error)
        self._typed = now

    def _keep(self, pastes: Sequence[Paste]) -> None:
        """Write long texts before a draft with their placeholders, so that a key press does not write them again."""
        if pastes and self._pastes is None:
            self._pastes = _private(self._path("pasted"))
        for paste in pastes:
            assert self._pastes is not None
            self._pastes.seek(0, os.SEEK_END)
            self._pastes.write(msgspec.json.encode(paste) + b"\n")
            self._pasted.add(paste.words)

    def begin(self, place: Place) -> None:
        """A turn starts; its lines follow."""
        self.finish()
        if self._works:
            try:
                self._turn = _private(self._path("turn"))
                self._turn.write(msgspec.json.encode(place) + b"\n")
            except OSError as error:
                self._fail(error)

    def line(self, line: Line) -> None:
        """Write one line of the turn to the file before the next step. Called on the decoder's thread."""
        turn = self._turn
        if turn is not None and not self._failed:
            try:
                turn.write(encode(line) + b"\n")
            except OSError as error:
                self._fail(error)

    def finish(self) -> None:
        """Delete the turn: it is in the store, or there is nothing to keep."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.close()
        with contextlib.suppress(OSError):
            self._path("turn").unlink(missing_ok=True)

    def close(self) -> None:
        """The app ends. Text that was not sent, and a turn that is not in the store, stay for the next start."""
        if self._turn is None and self._typed == Typed():
            for kind in ("typed", "pasted", "lock"):
                with contextlib.suppress(OSError):
                    self._path(kind).unlink(missing_ok=True)
        for file in (self._text, self._pastes, self._lock):
            if file is not None:
                file.close()
        self._text = self._pastes = self._lock = None

    def rescue(self) -> Iterator[Left]:
        """The data of apps that were killed, oldest first. Advancing to the next one deletes the files of the last."""
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.glob("*.lock"), key=_changed):
                if path != self._path("lock"):
                    yield from _take(path)

    @property
    def _works(self) -> bool:
        return self._lock is not None and not self._failed

    def _hold(self) -> None:
        """Choose a name and lock it; retry if another app that is starting took the new file for an abandoned one."""
        while self._lock is None:
            self._name = new_id()
            lock = _private(self._path("lock"))
            if _locked(lock) and os.fstat(lock.fileno()).st_nlink:
                self._lock = lock
            else:
                lock.close()

    def _path(self, kind: str) -> Path:
        return self._folder / f"{self._name}.{kind}"

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            self.problem = (
                f"{self._folder} cannot be written: {error.strerror}; "
                "what is typed or half answered would not survive the end of the program"
            )


def _private(path: Path) -> IO[bytes]:
    """A new file that only the user can read, unbuffered."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0)


def _locked(file: IO[bytes]) -> bool:
    """Lock a file; False if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _changed(lock: Path) -> float:
    """The time of the last write to the files of a lock."""
    return max(path.stat().st_mtime for path in lock.parent.glob(f"{lock.stem}.*"))


def _take(lock: Path) -> Iterator[Left]:
    """The files of a lock that no process holds; of two apps that start at once only one gets them."""
    try:
        file = lock.open("rb")
    except FileNotFoundError:
        return
    with file:
        if not _locked(file):  # its app is running
            return
        typed, pasted, turn = map(lock.with_suffix, (".typed", ".pasted", ".turn"))
        left = Left(_read_typed(typed, pasted), *_read_turn(turn))
        if left.typed != Typed() or left.place is not None:
            yield left
        for path in (typed, pasted, turn, lock):
            path.unlink(missing_ok=True)


def _read_typed(path: Path, pasted: Path) -> Typed:
    try:
        typed = parse(path.read_bytes().split(b"\n")[0], _TYPED)
    except (OSError, FormatError):
        return Typed()
    texts: dict[str, str] = {}
    with contextlib.suppress(OSError, FormatError):  # a text that was cut off has no placeholder in the draft yet
        for line in pasted.read_bytes().splitlines():
            paste = parse(line, _PASTE)
            texts[paste.words] = paste.text
    return msgspec.structs.replace(typed, draft=whole(typed.draft, texts))


def _read_turn(path: Path) -> tuple[Place | None, TurnRecord | None]:
    """A turn up to its last complete line."""
    try:
        head, *rest = path.read_bytes().split(b"\n")
        place = parse(head, _PLACE)
    except (OSError, FormatError):
        return None, None
    if not (place.conversation and place.question and place.answer):
        return None, None
    with contextlib.suppress(FormatError):
        return place, next(assemble(_whole(rest)), None)
    return place, None


def _whole(lines: Iterable[bytes]) -> Iterator[TurnLine]:
    """The lines before the first incomplete one."""
    with contextlib.suppress(FormatError):
        for text in lines:
            if not isinstance(line := decode(text), Loaded):
                yield line
