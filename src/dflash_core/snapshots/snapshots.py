"""A runner's use of snapshots: it saves what its session is about to lose, and resumes what fits a prompt."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.snapshots.base import Resumable, Snapshot, SnapshotError, State
from dflash_core.snapshots.store import SnapshotStore

LOG = logging.getLogger(__name__)
MIN_GAIN = 64  # a snapshot is used if it saves processing more than this share of it


class Snapshots:
    """Those of one pair. `space` names it and how its states are laid out; `cut` says whether its sequences can be cut
    back anywhere, as those that only have attention can. A state that was computed under another `window` is
    a different one."""

    def __init__(self, store: SnapshotStore, space: str, *, cut: bool) -> None:
        self.store, self.space, self.cut = store, space, cut
        self._spaces: dict[str, None] = {}  # that something was stored in, the last one at the end

    def _space(self, window: AttentionWindow) -> str:
        return f"{self.space} {window}" if window.size else self.space

    def write(self) -> None:
        """Have the folder write its states; those of the last used window have priority."""
        if (folder := self.store.folder) is not None:
            for space in self._spaces:
                folder.save(space, self.store.snapshots(space))

    def keep(
        self, session: Resumable, tokens: Sequence[int], state: State, window: AttentionWindow = EVERYTHING
    ) -> None:
        """Store the first positions of the session, with `state` after them."""
        space = self._space(window)
        self._spaces.pop(space, None)
        self._spaces[space] = None
        self.store.put(space, tokens, state, session.rows)

    def has(self, tokens: Sequence[int], window: AttentionWindow = EVERYTHING) -> bool:
        """Whether a sequence is stored already."""
        return self.store.has(self._space(window), tokens)

    def prepare(self, session: Resumable, tokens: Sequence[int], window: AttentionWindow = EVERYTHING) -> None:
        """Called when a turn has ended: reserve memory for storing it."""
        left = max(self.store.most_bytes - self.store.nbytes, 0)
        session.reserve_host_memory(self.store.missing(self._space(window), tokens), left)

    def resume(
        self, session: Resumable, ids: Sequence[int], own: int, window: AttentionWindow = EVERYTHING
    ) -> Snapshot | None:
        """Load into `session` the snapshot that shares more with `ids` than the first `own` tokens to which the
        session can return without it. None, without any change, if no snapshot is worth the copying.

        A snapshot that cannot be used is dropped, and the session is empty.
        """
        space = self._space(window)
        found = self.store.find(space, ids, cut=self.cut)
        if self.store.folder is not None:
            wanted, beyond = np.asarray(ids, np.int32), max(own, found[1] if found else 0)
            stored = self.store.folder.find(space, wanted, beyond, cut=self.cut)
            if stored is not None and self.store.add(space, stored):
                found = self.store.find(space, ids, cut=self.cut)
        if found is None or found[1] - own <= found[1] // MIN_GAIN:
            return None
        snapshot, length = found
        try:
            session.resume(snapshot)
            if length < snapshot.length and not session.cut(length):
                raise SnapshotError(f"a sequence that cannot be cut back to {length:,} positions")
        except SnapshotError as error:
            LOG.warning("a stored state is dropped, its conversation is read again: %s", error)
            self.store.drop(space, snapshot)
            session.restore(None)
        return snapshot
