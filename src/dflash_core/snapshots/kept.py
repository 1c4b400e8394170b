"""How a runner uses snapshots: it saves what its session is about to lose, and resumes what fits a prompt."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.snapshots.base import Resumable, Snapshot, SnapshotError, State
from dflash_core.snapshots.store import SnapshotStore

LOG = logging.getLogger(__name__)
LEAST_GAIN = 64  # a snapshot is taken where it saves reading more than this share of it


class Snapshots:
    """Those of one pair. `space` names it and how its states are laid out; `cut` says whether its sequences can be cut
    back anywhere, as those of attention alone can. A state that was read under another `window` is another state."""

    def __init__(self, store: SnapshotStore, space: str, *, cut: bool) -> None:
        self.store, self.space, self.cut = store, space, cut
        self._spaces: dict[str, None] = {}  # that something was kept in, the last one at the end

    def _space(self, window: AttentionWindow) -> str:
        return f"{self.space} {window}" if window.size else self.space

    def write(self) -> None:
        """Have the folder keep what it is to keep: of the windows that were used, the last one's count the most."""
        if (folder := self.store.folder) is not None:
            for space in self._spaces:
                folder.save(space, self.store.snapshots(space))

    def keep(
        self, session: Resumable, tokens: Sequence[int], state: State, window: AttentionWindow = EVERYTHING
    ) -> None:
        """Keep the first positions of what the session holds, `state` after them."""
        space = self._space(window)
        self._spaces.pop(space, None)
        self._spaces[space] = None
        self.store.put(space, tokens, state, session.rows)

    def held(self, tokens: Sequence[int], window: AttentionWindow = EVERYTHING) -> bool:
        """Whether a sequence is kept already."""
        return self.store.held(self._space(window), tokens)

    def prepare(self, session: Resumable, tokens: Sequence[int], window: AttentionWindow = EVERYTHING) -> None:
        """A turn has ended: have room ready for what would be kept of it."""
        left = max(self.store.most_bytes - self.store.nbytes, 0)
        session.make_room(self.store.missing(self._space(window), tokens), left)

    def resume(
        self, session: Resumable, ids: Sequence[int], own: int, window: AttentionWindow = EVERYTHING
    ) -> Snapshot | None:
        """Have `session` become the sequence that shares more with `ids` than the `own` first tokens which it can go
        back to by itself. None, and nothing done, where there is none worth the copying.

        A snapshot that cannot be used is dropped, and the session is empty.
        """
        space = self._space(window)
        found = self.store.find(space, ids, cut=self.cut)
        if self.store.folder is not None:
            wanted, beyond = np.asarray(ids, np.int32), max(own, found[1] if found else 0)
            stored = self.store.folder.find(space, wanted, beyond, cut=self.cut)
            if stored is not None and self.store.add(space, stored):
                found = self.store.find(space, ids, cut=self.cut)
        if found is None or found[1] - own <= found[1] // LEAST_GAIN:
            return None
        snapshot, length = found
        try:
            session.resume(snapshot)
            if length < snapshot.length and not session.cut(length):
                raise SnapshotError(f"a sequence that cannot be cut back to {length:,} positions")
        except SnapshotError as error:
            LOG.warning("a kept state is dropped, its conversation is read again: %s", error)
            self.store.drop(space, snapshot)
            session.restore(None)
        return snapshot
