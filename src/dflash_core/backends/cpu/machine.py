"""This machine, for the CPU backend."""

from __future__ import annotations

from dflash_core import memory
from dflash_core.backends.base import PREFILL_CHUNK, Session
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.knobs import MAX_WIDTH
from dflash_core.memory import Component, MemoryBreakdown
from dflash_core.policy.costs import CPU, CostTable
from dflash_core.progress import Progress


class CpuMachine:
    """Implements `backends.base.Machine` for the reference backend."""

    name = "this machine"
    prefill_chunk = PREFILL_CHUNK
    tree_width = MAX_WIDTH
    notes: tuple[str, ...] = ()

    def __init__(self, program_bytes: int = 0) -> None:
        self.program_bytes = program_bytes  # of the process before any model was loaded

    def learn(self, session: Session, progress: Progress) -> None:
        """Nothing: the reference has no alternatives."""

    def step_costs(self, drafter: Capabilities) -> CostTable | None:
        return CPU

    def available(self) -> int:
        return memory.host_memory().free

    def breakdown(self, components: tuple[Component, ...], session: Session | None = None) -> MemoryBreakdown:
        host = memory.host_memory()
        if session is not None:
            components += (Component("program", self.program_bytes, "Python, torch and the rest"),)
        return MemoryBreakdown(self.name, components, host.total, host.free, host.process)
