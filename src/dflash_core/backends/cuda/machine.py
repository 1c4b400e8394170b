"""A card: the cost of steps on it, its free memory, and the memory that is in use."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.memory_estimator import Footprint
from dflash_core.backends.cuda.meta import context_bytes
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import MAX_WIDTH
from dflash_core.backends.cuda.timings import NEVER, chunks_from
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import DeviceError
from dflash_core.fits import PREFILL_ROWS
from dflash_core.memory import OTHERS, Component, MemoryBreakdown, gib
from dflash_core.nvml import Management, holders
from dflash_core.policy.costs import H200, CostTable

if TYPE_CHECKING:
    from dflash_core.backends.cuda.timings import Timer
    from dflash_core.backends.opened import Session
    from dflash_core.progress import Progress

NOTED = 512 << 20  # bytes that other programs use
MIN_LEARNED = 1 << 30  # bytes of a target; for smaller ones, compiling passes of every width is not worthwhile


class CudaMachine:
    """Implements `backends.opened.Machine` for a card and the target that was loaded on it."""

    prefill_chunk = PREFILL_ROWS
    tree_width = MAX_WIDTH

    def __init__(
        self, device: CudaDevice, footprint: Footprint, timer: Timer | None = None, vram_limit: int = 0
    ) -> None:
        """`vram_limit`: memory size of a smaller card that this one imitates, in bytes; 0: no limit."""
        self.device, self.footprint, self.timer, self.vram_limit = device, footprint, timer, vram_limit
        self.name = device.runtime.card.name
        self.weight_bytes: dict[str, int] = {}  # allocated bytes of weights, by component
        self._management: Management | None = None
        self.passes: Mapping[int, float] = {}  # milliseconds of a verify pass by width; empty if it was not measured

    @property
    def notes(self) -> tuple[str, ...]:
        notes = (self.device.programs.cache.note, self.timer.note if self.timer else None, self._others())
        return tuple(note for note in notes if note)

    def _others(self) -> str:
        """Who else uses much of the card."""
        used = self.other_processes()
        return f"other programs hold {gib(used)} of the card{self.holders()}" if used >= NOTED else ""

    def holders(self) -> str:
        """Other processes on the card in parentheses, the largest first; empty where they are not known."""
        found = holders(self.device.runtime.card.bus)
        return f" ({found})" if found else ""

    def recall(self, target: str) -> None:
        """Use the pass times that an earlier load has measured for the target of this name."""
        if self.timer is not None:
            self.passes = self.timer.timings.passes.get(target, {})

    def learn(self, session: Session, progress: Progress) -> None:
        self.hold_limit()  # by now the driver has allocated all of its memory
        if not isinstance(session, CudaSession):
            return
        only_passes = session.chunks_from == NEVER
        if only_passes:
            session.read_in_passes(NEVER, progress)  # wide ones are faster
        if self.timer is None or self.footprint.target_bytes < MIN_LEARNED:
            return
        self.passes = self.timer.passes(session, progress)
        below = None if only_passes else chunks_from(self.passes, self.timer.chunks(session, progress))
        if below is not None:
            session.read_in_passes(below, progress)

    def step_costs(self, drafter: Capabilities) -> CostTable | None:
        """The costs measured on this card by an earlier load; otherwise those of a known card. None for trees of a
        drafter on the host: a policy decides only the length of its chains."""
        if not drafter.on_device and "tree_width" in drafter.knobs:
            return None
        if not self.passes:
            return H200.reading(self.footprint.more_bytes)
        plain = self.passes[1]
        draft = H200.draft * plain / H200.plain
        rows = sorted(self.passes)
        slowest = accumulate((self.passes[row] for row in rows), max)  # more rows are never faster, except by chance
        return CostTable({row: ms + draft for row, ms in zip(rows, slowest, strict=True)}, plain, draft, tuple(rows))

    @property
    def processors(self) -> int:
        return self.device.card.multiprocessors

    def available(self) -> int:
        return self._memory()[0]

    def available_with_context(self) -> int:
        """`available` plus the driver's memory for this process, but at most the card's memory."""
        free, total = self._memory()
        return min(free + context_bytes(self.processors), total)

    def _memory(self) -> tuple[int, int]:
        """Free and total bytes, after torch has freed its cache, such as that of a closed engine. Memory that the
        driver will still need for kernels does not count as free."""
        with self.device.stream():
            torch.cuda.empty_cache()
        free, total = self._as_limited(*self.device.runtime.memory())
        return max(free - max(context_bytes(self.processors) - self._driver_bytes(), 0), 0), total

    def _as_limited(self, free: int, total: int) -> tuple[int, int]:
        """The driver's free and total bytes as a card of `vram_limit` would have them."""
        if not 0 < self.vram_limit < total:
            return free, total
        own = self._used() - self.other_processes()
        return max(min(free, self.vram_limit - own), 0), self.vram_limit

    def _used(self) -> int:
        """Bytes of the card that any process uses."""
        free, total = self.device.runtime.memory()
        return total - free

    def _driver_bytes(self) -> int:
        """Bytes that this process uses on the card in addition to torch's memory."""
        return max(self._used() - self.other_processes() - torch.cuda.memory_reserved(), 0)

    def hold_limit(self) -> None:
        """Apply the limit to torch's allocator too; the driver's own memory is subtracted."""
        if not self.vram_limit:
            return
        total = self.device.runtime.memory()[1]
        if self.vram_limit < total:
            driver = max(self._driver_bytes(), context_bytes(self.processors))
            torch.cuda.set_per_process_memory_fraction(max(self.vram_limit - driver, 0) / total)

    def other_processes(self) -> int:
        """Bytes that other processes use on the card; 0 if the driver does not report them."""
        try:
            if self._management is None:
                self._management = Management()
                weakref.finalize(self, self._management.close)
            return self._management.used_by_others(self.device.runtime.card.bus)
        except DeviceError:  # no library, no permission, or a container that hides processes
            return 0

    def breakdown(self, components: tuple[Component, ...], session: Session | None = None) -> MemoryBreakdown:
        free, total = self._memory() if session is None else self._as_limited(*self.device.runtime.memory())
        others = self.other_processes()
        used = self._used()
        if session is not None:
            # Everything that the allocator reserves beyond the other components is scratch, including unused parts.
            measured = {**self.weight_bytes, **session.nbytes}
            measured["scratch"] = torch.cuda.memory_reserved() - sum(measured.values())
            components = tuple(Component(o.name, o.bytes, o.detail, measured.get(o.name)) for o in components)
            context = max(used - others - torch.cuda.memory_reserved(), 0)
            components += (
                Component("CUDA context", context, "driver, kernels, libraries"),
                Component(OTHERS, others),
            )
        return MemoryBreakdown(self.name, components, total, free, used - others)
