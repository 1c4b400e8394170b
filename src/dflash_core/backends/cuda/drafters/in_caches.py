"""What every drafter on a card does alike with what it keeps of a sequence: cut it, hand it out, take it back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor

from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.drafters.caches import DraftCaches, HostRows


class InCaches(ABC):
    """That part of `drafters.base.DeviceDrafter`, for one whose sequence is all in `caches`."""

    block: int
    caches: DraftCaches
    state: DeviceState

    @property
    @abstractmethod
    def most_pending(self) -> int:
        """How many committed positions may not be in the caches yet."""

    @property
    def length(self) -> int:
        """Committed positions."""
        return int(self.state.host["length"])

    def checkpoint(self) -> HostRows | None:
        """What its caches cannot be cut back to, behind the committed positions; nothing may be pending."""
        return self.caches.checkpoint(self.length)

    def reaches(self, length: int) -> bool:
        return self.caches.reaches(length, self.length)

    def restore(self, kept: object, length: int) -> None:
        """Go back to `length` committed positions, where `kept` was made; 0: to the beginning of a sequence."""
        if not length:
            self.caches.forget()
            return
        assert kept is None or isinstance(kept, HostRows), "a checkpoint of another drafter"
        self.caches.restore(kept, length, self.length)

    def positions(self, begin: int, end: int) -> tuple[Tensor, ...]:
        return self.caches.positions(begin, end)

    def put(self, begin: int, rows: Iterator[Tensor]) -> None:
        self.caches.put(begin, rows)

    def tensors_of(self, kept: object) -> tuple[Tensor, ...]:
        return kept.tensors if isinstance(kept, HostRows) else ()

    def kept_of(self, length: int, tensors: Sequence[Tensor]) -> HostRows | None:
        return self.caches.kept_of(length, tensors)

    def resume(self, kept: object, length: int) -> None:
        assert kept is None or isinstance(kept, HostRows), "a checkpoint of another drafter"
        self.caches.resume(kept, length)

    def begin_turn(self) -> None:
        """An answer begins behind what is committed."""
        self.caches.begin_turn(self.length)

    def before_step(self, queued: int) -> None:
        """A step is about to be queued behind `queued` others that the host has not seen the end of."""
        most = self.block * (queued + 1)
        self.caches.before_steps(self.length, most, self.most_pending)
