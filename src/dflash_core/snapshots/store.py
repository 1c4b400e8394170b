"""Snapshots in main memory with a limit in bytes: the least recently used are dropped first, but what conversations
begin with (an agent's system message and tools, say) only after all of those.

Positions are stored in pages that snapshots share: snapshots of one conversation differ mostly in their last page and
their states. A page is found by the hash of all tokens up to its end, a snapshot by its tokens.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.memory import host_memory
from dflash_core.snapshots.base import Resumable, Rows, Snapshot, SnapshotError, State, Tokens, common

if TYPE_CHECKING:
    from torch import Tensor

    from dflash_core.snapshots.folder import StateFolder

LOG = logging.getLogger(__name__)
PAGE = 512  # positions
MIN_GAIN = 64  # a snapshot is used if it saves processing more than this share of it
MAX_BYTES, SHARE = 8 << 30, 4  # by default a quarter of what is free, 8 GiB at most
Key = tuple[str, bytes]
"""A space, and the tokens of a snapshot, or the hash of those up to the end of a page."""
CopyRows = Callable[[int, int], "tuple[Tensor, ...]"]
"""The state of the positions from the first number up to the second."""


def default_cap() -> int:
    """Bytes that snapshots may take by default."""
    return min(MAX_BYTES, host_memory().free // SHARE)


@dataclass(frozen=True, slots=True)
class _Entry:
    tokens: Tokens
    pages: tuple[Key, ...]
    state: State


class SnapshotStore:
    """Snapshots of several pairs: `space` names the pair and how its states are laid out. `folder`: also stores
    those of the last conversations on disk."""

    def __init__(self, max_bytes: int, page: int = PAGE, folder: StateFolder | None = None) -> None:
        self.max_bytes, self._page, self.folder = max_bytes, page, folder
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()  # in order of use, the least recent first
        self._pages: dict[Key, Rows] = {}
        self._uses = Counter[Key]()  # by page: how many snapshots have it
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, space: str, tokens: Sequence[int], state: State, rows: CopyRows) -> bool:
        """Store a sequence. `rows` copies the state of some of its positions. False if it does not fit."""
        ids = np.asarray(tokens, np.int32)
        if not len(ids) or self.max_bytes <= 0:
            return False
        return self._store(space, ids, state, rows, sum(tensor.nbytes for tensor in rows(0, 1)))

    def add(self, space: str, snapshot: Snapshot) -> bool:
        """Store a snapshot that was made elsewhere, in pages of this store. False if it does not fit."""
        pages = {(page.begin, page.end): page.tensors for page in snapshot.pages}
        if [(begin, end) for _, begin, end in self._spans(space, snapshot.tokens)] != list(pages):
            return False
        per_position = -(-sum(page.nbytes for page in snapshot.pages) // snapshot.length)
        return self._store(space, snapshot.tokens, snapshot.state, lambda begin, end: pages[begin, end], per_position)

    def _store(self, space: str, ids: Tokens, state: State, rows: CopyRows, per_position: int) -> bool:
        if self.has(space, ids):
            return True
        spans = list(self._spans(space, ids))
        pages = tuple(name for name, _, _ in spans)
        new = [span for span in spans if span[0] not in self._pages]
        need = state.nbytes + per_position * sum(end - begin for _, begin, end in new)
        if not self._make_free(need, space, ids, set(pages)):
            return False
        for name, begin, end in new:
            self._pages[name] = Rows(begin, end, rows(begin, end))
            self.nbytes += self._pages[name].nbytes
        for name in pages:
            self._uses[name] += 1
        self._entries[space, ids.tobytes()] = _Entry(ids, pages, state)
        self.nbytes += state.nbytes
        return True

    def has(self, space: str, tokens: Sequence[int] | Tokens) -> bool:
        """Whether exactly this sequence is stored; it then counts as used."""
        key = (space, np.asarray(tokens, np.int32).tobytes())
        if key in self._entries:
            self._entries.move_to_end(key)
        return key in self._entries

    def missing(self, space: str, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """First and last positions of the pages that storing a sequence would copy."""
        spans = self._spans(space, np.asarray(tokens, np.int32))
        return [(begin, end) for name, begin, end in spans if name not in self._pages]

    def find(self, space: str, ids: Sequence[int], *, cut: bool = False) -> tuple[Snapshot, int] | None:
        """The snapshot that shares the longest prefix with `ids`, and the length of that prefix.

        It must be all of the snapshot's tokens, unless `cut`: then a sequence can be truncated anywhere.
        """
        prompt, best, length = np.asarray(ids, np.int32), None, 0
        text = prompt.tobytes()
        for key, entry in self._entries.items():
            more = prompt.itemsize * (length + 1)
            if key[0] != space:
                continue
            if len(entry.tokens) >= length and text.startswith(key[1]):
                best, length = key, len(entry.tokens)
            elif cut and key[1][:more] == text[:more]:  # it shares more than the best so far
                best, length = key, common(entry.tokens, prompt)
        if best is None:
            return None
        self._entries.move_to_end(best)
        return self._snapshot(best), length

    def drop(self, space: str, snapshot: Snapshot) -> None:
        self._remove((space, snapshot.tokens.tobytes()))

    def clear(self) -> None:
        self._entries.clear()
        self._pages.clear()
        self._uses.clear()
        self.nbytes = 0

    def snapshots(self, space: str) -> Iterator[Snapshot]:
        """The snapshots of a space, the most recently used first."""
        return (self._snapshot(key) for key in reversed(list(self._entries)) if key[0] == space)

    def _snapshot(self, key: Key) -> Snapshot:
        entry = self._entries[key]
        return Snapshot(entry.tokens, tuple(self._pages[name] for name in entry.pages), entry.state)

    def _spans(self, space: str, ids: Tokens) -> Iterator[tuple[Key, int, int]]:
        """Pages that cover `ids`: the name of each, its first position and its end."""
        digest = hashlib.blake2b(digest_size=16)
        for begin in range(0, len(ids), self._page):
            end = min(begin + self._page, len(ids))
            digest.update(ids[begin:end].tobytes())
            yield (space, digest.digest()), begin, end

    def _make_free(self, need: int, space: str, ids: Tokens, pages: Collection[Key]) -> bool:
        """Drop snapshots until `need` bytes fit for the sequence `ids` with these pages, which stay."""
        if need > self.max_bytes:
            return False
        while self.nbytes + need > self.max_bytes:
            if not self._entries:
                self._drop_unused(pages)
                return False
            self._remove(self._expendable(space, ids), pages)
        return True

    def _expendable(self, space: str, ids: Tokens) -> Key:
        """The least recently used that is not the beginning of other conversations, `ids` in `space` included; if all
        are, the least recently used of them."""
        for key in self._entries:
            begins = any(_begins(key, longer) for longer in (*self._entries, (space, ids.tobytes())))
            if not begins or any(_begins(shorter, key) for shorter in self._entries):
                return key
        return next(iter(self._entries))

    def _remove(self, key: Key, stay: Collection[Key] = ()) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry.state.nbytes
            for name in entry.pages:
                self._uses[name] -= 1
            self._drop_unused(name for name in entry.pages if name not in stay)

    def _drop_unused(self, pages: Iterable[Key]) -> None:
        for name in pages:
            if name in self._pages and not self._uses[name]:
                self.nbytes -= self._pages.pop(name).nbytes
                del self._uses[name]


def _begins(key: Key, longer: Key) -> bool:
    """Whether one sequence is the beginning of another, and not all of it."""
    return key[0] == longer[0] and len(key[1]) < len(longer[1]) and longer[1].startswith(key[1])


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

    def save(
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
        left = max(self.store.max_bytes - self.store.nbytes, 0)
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
            prompt, beyond = np.asarray(ids, np.int32), max(own, found[1] if found else 0)
            stored = self.store.folder.find(space, prompt, beyond, cut=self.cut)
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
