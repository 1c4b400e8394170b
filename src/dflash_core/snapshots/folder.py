"""States of the last conversations on disk: lists the files, finds one for a prompt, deletes old ones."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dflash_core.errors import InputError
from dflash_core.snapshots.base import Snapshot, SnapshotError, Tokens, common
from dflash_core.snapshots.files import Stored, files, look, read, same_conversation, write

LOG = logging.getLogger(__name__)


class StateFolder:
    """Keeps the newest `keep` conversations; with 0 nothing is written, but existing files are still read."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._stored: dict[str, list[Stored]] = {}

    def find(self, space: str, ids: Tokens, beyond: int, *, cut: bool) -> Snapshot | None:
        """The state with the longest common prefix with `ids`, if longer than `beyond` tokens. Unreadable files are
        dropped and logged."""
        best: tuple[int, Stored] | None = None
        for one in self._index(space):
            shared = common(one.tokens, ids)
            if (cut or shared == len(one.tokens)) and shared > max(beyond, best[0] if best else 0):
                best = shared, one
        if best is None:
            return None
        try:
            return read(best[1])
        except (SnapshotError, InputError, OSError) as error:
            self._drop(space, best[1], str(error))
            return None

    def save(self, space: str, snapshots: Iterable[Snapshot]) -> None:
        """Write the newest states of the last conversations; `snapshots` come the newest first. Never raises."""
        if not self.keep:
            return
        newest = list[Snapshot]()
        for snapshot in snapshots:
            if not any(same_conversation(snapshot.tokens, one.tokens) for one in newest):
                newest.append(snapshot)
            if len(newest) == self.keep:
                break
        there = {one.tokens.tobytes() for one in self._index(space)}
        try:
            for snapshot in reversed(newest):  # files are ordered by their age
                if snapshot.tokens.tobytes() not in there:
                    write(self.folder, space, snapshot)
        except OSError as error:
            LOG.warning("the state of a conversation is not stored: %s: %s", self.folder, error.strerror or error)
            self._stored.pop(space, None)  # some may have been written
            return
        stored = [snapshot.tokens for snapshot in newest]
        self._stored.pop(space, None)
        older = [one for one in self._index(space) if not any(np.array_equal(one.tokens, new) for new in stored)]
        gone = [one.path for one in older if any(same_conversation(one.tokens, new) for new in stored)]
        gone += [path for path in files(self.folder) if path not in gone][self.keep :]
        for path in gone:
            with contextlib.suppress(OSError):
                path.unlink()
        self._stored.pop(space, None)

    def size(self) -> tuple[int, int]:
        """The number of files, and their bytes."""
        sizes = [path.stat().st_size for path in files(self.folder)]
        return len(sizes), sum(sizes)

    def clear(self) -> tuple[int, int]:
        """Delete them all, partial files of an interrupted write, and those of earlier versions.
        Returns what there was. Raises OSError."""
        found = self.size()
        for path in (*files(self.folder), *self.folder.glob("*.part"), *self.folder.glob("*.state")):
            path.unlink(missing_ok=True)
        self._stored.clear()
        return found

    def _index(self, space: str) -> list[Stored]:
        if space not in self._stored:
            found = []
            for path in files(self.folder):
                try:
                    found.append(look(path, space))
                except (SnapshotError, InputError) as error:
                    LOG.info("a stored state is left as it is: %s", error)
                except OSError as error:
                    LOG.info("a stored state cannot be read: %s: %s", path, error.strerror)
            self._stored[space] = found
        return self._stored[space]

    def _drop(self, space: str, stored: Stored, why: str) -> None:
        LOG.warning("a stored state is dropped, its conversation is read again: %s", why)
        self._stored[space].remove(stored)
        with contextlib.suppress(OSError):
            stored.path.unlink()
