"""What a sequence takes in this machine's main memory."""

from __future__ import annotations

from dflash_core import memory
from dflash_core.arch.spec import ModelSpec
from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.base import MAX_CHECKPOINTS, PREFILL_CHUNK, Session
from dflash_core.cache_types import AUTO_PAIRS, EXACT, F16, CachePair
from dflash_core.drafters.base import DraftModel
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.fits import CEILING, PREFILL_ROWS, SMALLEST_CONTEXT
from dflash_core.knobs import MOST_WIDTH
from dflash_core.memory import Component, MemoryBreakdown
from dflash_core.policy.costs import CPU, Shape
from dflash_core.progress import Progress

FLOAT_BYTES = 4


class CpuMachine:
    """Implements `backends.base.Machine` for the reference backend."""

    name = "this machine"
    prefill_chunk = PREFILL_CHUNK
    tree_width = MOST_WIDTH
    notes: tuple[str, ...] = ()
    auto_pairs = (EXACT, *AUTO_PAIRS)

    def __init__(self, program_bytes: int = 0) -> None:
        self.program_bytes = program_bytes  # of the process before any model was loaded

    def learn(self, session: Session, progress: Progress) -> None:
        """Nothing: the reference runs one way."""

    def step_costs(self, drafter: Capabilities) -> Shape | None:
        return CPU

    def context_that_fits(self, target: ModelSpec, draft: DraftModel | None, kv: CachePair = F16) -> int:
        """The largest halving of the ceiling that fits."""
        context = min(CEILING, target.context_length)
        while context > SMALLEST_CONTEXT and not self.holds(target, draft, context, kv):
            context //= 2
        return context

    def holds(
        self,
        target: ModelSpec,
        draft: DraftModel | None,
        context: int,
        kv: CachePair,
        window: AttentionWindow = EVERYTHING,
        *,
        whole: bool = False,
    ) -> bool:
        """Keys and values take half of the free memory at most; `whole`: all of it."""
        position = target.position_bytes(kv) + (draft.position_bytes(kv) if draft else 0)
        return context * position <= memory.host_memory().free // (1 if whole else 2)

    def rows_at_once(
        self,
        target: ModelSpec,
        draft: DraftModel | None,
        context: int,
        kv: CachePair,
        window: AttentionWindow = EVERYTHING,
    ) -> int:
        return self.prefill_chunk

    def sequence(
        self,
        target: ModelSpec,
        draft: DraftModel | None,
        context: int,
        session: Session | None = None,
        kv: CachePair = F16,
        rows: int = PREFILL_ROWS,
        window: AttentionWindow = EVERYTHING,
    ) -> tuple[Component, ...]:
        detail = f"{kv}, {context:,} positions at most"
        components = [Component("target KV", context * target.position_bytes(kv), detail)]
        if states := _state_bytes(target):
            components.append(Component("states", states * (1 + MAX_CHECKPOINTS), f"{MAX_CHECKPOINTS} checkpoints"))
        if draft:
            components.append(Component("drafter KV", context * draft.position_bytes(kv), detail))
        return tuple(components)

    def breakdown(self, components: tuple[Component, ...], session: Session | None = None) -> MemoryBreakdown:
        host = memory.host_memory()
        if session is not None:
            components += (Component("program", self.program_bytes, "Python, torch and the rest"),)
        return MemoryBreakdown(self.name, components, host.total, host.free, host.process)


def _state_bytes(spec: ModelSpec) -> int:
    """What layers keep whatever the length: recurrent and convolution states."""
    return sum(layer.mixer.state_numbers for layer in spec.layers) * FLOAT_BYTES
