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

    def __init__(self, program_bytes: int = 0, vocabulary_bytes: int = 0) -> None:
        """`program_bytes`: of the process before any model was loaded. `vocabulary_bytes`: of the tokenizer that the
        process makes of the model's file."""
        self.program_bytes, self.vocabulary_bytes = program_bytes, vocabulary_bytes

    @property
    def process(self) -> tuple[Component, ...]:
        """What the process takes beside the models."""
        program = Component("program", self.program_bytes, "Python, torch and the rest")
        vocabulary = Component("tokenizer", self.vocabulary_bytes, "the vocabulary and its merges")
        return (program, vocabulary) if self.vocabulary_bytes else (program,)

    def learn(self, session: Session, progress: Progress) -> None:
        """Nothing: the reference has no alternatives."""

    def step_costs(self, drafter: Capabilities) -> CostTable | None:
        return CPU

    def available(self) -> int:
        return memory.host_memory().free

    def breakdown(self, components: tuple[Component, ...], session: Session | None = None) -> MemoryBreakdown:
        host = memory.host_memory()
        if session is not None:
            components += self.process
        return MemoryBreakdown(self.name, components, host.total, host.free, host.process)
