"""What all drafters on a card do alike with a sequence's caches: update, truncate, save and restore them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.drafters.base import Launcher
from dflash_core.backends.cuda.drafters.caches import DraftCaches
from dflash_core.backends.cuda.launch import Launch
from dflash_core.backends.cuda.rings import Empty, HostRows
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS, StopCode, width_for

PENDING_ROWS = MAX_NODES  # the most committed positions that may be pending: at least the longest path
UPDATE_WIDTHS = (16, 64)  # rows of the passes with which host-driven calls update the caches


class InCaches(ABC):
    """The part of `drafters.base.DeviceDrafter` about caches, for drafters with all per-sequence state in `caches`."""

    block: int
    caches: DraftCaches
    state: DeviceState
    max_pending = PENDING_ROWS

    @abstractmethod
    def update_launches(self, rows: int, row0: int = 0) -> list[Launch]:
        """Add the pending rows row0..row0 + rows to the caches."""

    @property
    def length(self) -> int:
        """Committed positions."""
        return int(self.state.host["length"])

    def checkpoint(self, empty: Empty) -> HostRows | None:
        """State that truncating the caches to the committed positions cannot restore; nothing may be pending."""
        return self.caches.checkpoint(self.length, empty)

    def checkpoint_sizes(self) -> list[int]:
        return [tensor.nbytes for tensor in self.caches.like(self.length)]

    def reaches(self, length: int) -> bool:
        return self.caches.reaches(length, self.length)

    def restore(self, saved: object, length: int) -> None:
        """Go back to `length` committed positions; `saved` is the checkpoint made there. 0: to an empty sequence."""
        if not length:
            self.caches.forget()
            return
        assert saved is None or isinstance(saved, HostRows), "a checkpoint of another drafter"
        self.caches.restore(saved, length, self.length)

    def positions(self, begin: int, end: int) -> tuple[Tensor, ...]:
        return self.caches.positions(begin, end)

    def tensors_of(self, saved: object) -> tuple[Tensor, ...]:
        return saved.tensors if isinstance(saved, HostRows) else ()

    def saved_of(self, length: int, tensors: Sequence[Tensor]) -> HostRows | None:
        return self.caches.saved_of(length, tensors)

    def resume(self, saved: object, length: int) -> None:
        assert saved is None or isinstance(saved, HostRows), "a checkpoint of another drafter"
        self.caches.resume(saved, length)

    def begin_turn(self) -> None:
        """Called when an answer begins after the committed positions."""
        self.caches.begin_turn(self.length)

    def before_step(self, queued: int) -> None:
        """Called before a step is queued behind `queued` others whose results the host has not read yet."""
        most = self.block * (queued + 1)
        self.caches.before_steps(self.length, most, self.max_pending)

    def drain_launches(self) -> list[Launch]:
        """Add everything that may be pending to the caches, after the steps that are queued."""
        rows0 = range(0, PENDING_ROWS, PASS_ROWS)
        updates = [launch for row0 in rows0 for launch in self.update_launches(PASS_ROWS, row0)]
        return [*updates, Launch("features.cu", "features_taken", {}, 1, 1, [self.state.pointer])]

    @property
    def pending(self) -> int:
        """How many committed positions are not in the caches."""
        return int(self.state.host["length"] - self.state.host["draft_length"])

    def update_cache(self, launch: Launcher) -> None:
        """Add all committed positions to the caches."""
        self.state.push()
        pending = self.pending
        for row0 in range(0, pending, PASS_ROWS):
            rows = width_for(min(PASS_ROWS, pending - row0), UPDATE_WIDTHS)
            launch(("update", rows, row0), partial(self.update_launches, rows, row0))
        self.state.host["draft_length"] = self.state.host["length"]

    @contextmanager
    def standing(self, at: int | None, launch: Launcher, **fields: float) -> Iterator[None]:
        """Inside the context, the state is that of a draft after the first `at` positions (None: all) with `fields`."""
        self.update_cache(launch)
        state, length = self.state.host, self.length
        begin = length if at is None else at
        with self.caches.cut_to(begin, length):
            for name, value in fields.items():
                state[name] = value
            state["stop"] = StopCode.RUNNING
            state["length"] = state["draft_length"] = begin
            try:
                self.state.push()
                yield
            finally:
                state["length"] = state["draft_length"] = length
