"""This machine, for the CPU backend, and a pair's use of its memory by component, predicted before it is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dflash_core import memory
from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.base import MAX_CHECKPOINTS, PREFILL_CHUNK
from dflash_core.backends.opened import Session
from dflash_core.cache_types import AUTO_RECENT, EXACT, F16, named
from dflash_core.config import target_weights
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draft import Draft
from dflash_core.fits import KV_TYPES, MemoryEstimator, Setup, sequence_bytes, total
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.weights import TensorInfo
from dflash_core.knobs import MAX_WIDTH
from dflash_core.memory import Component, MemoryBreakdown
from dflash_core.policy.costs import CPU, CostTable
from dflash_core.progress import Progress


class CpuMachine:
    """Implements `backends.opened.Machine` for the reference backend."""

    name = memory.HOST
    prefill_chunk = PREFILL_CHUNK
    tree_width = MAX_WIDTH
    notes: tuple[str, ...] = ()

    def __init__(self, program_bytes: int = 0, vocabulary_bytes: int = 0) -> None:
        """`program_bytes`: of the process before any model was loaded. `vocabulary_bytes`: of the tokenizer that the
        process makes of the model's file."""
        self.program_bytes, self.vocabulary_bytes = program_bytes, vocabulary_bytes

    @property
    def process(self) -> tuple[Component, ...]:
        """What the process takes beside the models, as far as it is known: a plan by name has neither."""
        program = Component(memory.PROGRAM, self.program_bytes, "Python, torch and the rest")
        vocabulary = Component("tokenizer", self.vocabulary_bytes, "the vocabulary and its merges")
        return tuple(part for part in (program, vocabulary) if part.bytes)

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


FLOAT_BYTES = 4
RECENT_CAPACITY = 2  # of the most halves that a pass has: their buffer grows by doubling
# Dense weights may take this share of the free memory; above it they stay packed in the file's own types.
DENSE_SHARE = 0.6


def stored_bytes(infos: Iterable[TensorInfo], packed: bool) -> int:
    """Bytes of tensors: as in the file, or as floats."""
    return sum(info.n_bytes if packed else info.n_elements * FLOAT_BYTES for info in infos)


def stays_packed(dense: int, free: int) -> bool:
    """Whether weights of `dense` bytes as floats stay quantised in `free` bytes of memory."""
    return dense > DENSE_SHARE * free


class HostMemoryEstimator(MemoryEstimator):
    """Of a target on the CPU and a drafter that was opened for it. `memory_bytes`: the total that they may use, 0 for
    all that this machine has. `packed`: how a loaded target keeps its weights; None for what a load would choose."""

    auto = tuple(str(pair) for pair in (EXACT, *AUTO_RECENT))
    kv_types = tuple(dict.fromkeys((auto[0], *KV_TYPES)))
    base = Setup(0, auto[-1], nodes=0)  # nodes of a tree need little memory

    def __init__(
        self,
        machine: CpuMachine,
        file: GGUFFile,
        spec: ModelSpec,
        draft: Draft | None,
        memory_bytes: int = 0,
        packed: bool | None = None,
    ) -> None:
        self._machine, self._file, self._spec, self._draft = machine, file, spec, draft
        self._draft_files = draft.files if draft is not None else ()
        self.longest_context = spec.context_length
        self.available = memory_bytes or memory.host_memory().free + machine.program_bytes
        self.machine = f"{memory.gib(self.available)} of main memory, on the CPU"
        dense = stored_bytes(target_weights(file, spec), packed=False)
        self._packed = stays_packed(dense, self.available - machine.program_bytes) if packed is None else packed

    def spare(self, available: int) -> int:
        """Half of the memory that the weights leave."""
        left = available - total(self, self.base) + sequence_bytes(self, self.base)
        return max(left - left // 2, 0)

    def choices(self, setup: Setup) -> Sequence[Setup]:
        options = [replace(setup, kv=kind) for kind in self.kv_types if kind != setup.kv]
        return [*options, *([replace(setup, drafted=False)] if setup.drafted and self._draft_files else [])]

    def components(self, setup: Setup) -> tuple[Component, ...]:
        how = "as in the file" if self._packed else "as floats"
        found = [Component("target", stored_bytes(target_weights(self._file, self._spec), self._packed), how)]
        if setup.drafted and self._draft_files:
            nbytes = sum(stored_bytes(file.tensors.values(), self._packed) for file in self._draft_files)
            found.append(Component("drafter", nbytes, how))
        return (*found, *self.sequence(setup), *self._machine.process)

    def sequence(self, setup: Setup) -> tuple[Component, ...]:
        kv, detail = named(setup.kv), f"{setup.kv}, {setup.context:,} positions at most"
        half = self._spec.position_bytes(F16)
        copied = min(setup.context, kv.most_recent)
        recent = min(setup.context, RECENT_CAPACITY * (kv.most_recent + PREFILL_CHUNK)) if kv.recent else 0
        found = [Component("target KV", setup.context * self._spec.position_bytes(kv) + recent * half, detail)]
        # State of layers whatever the length: recurrent and convolution states; in checkpoints recent halves too.
        states = sum(layer.mixer.state_numbers for layer in self._spec.layers) * FLOAT_BYTES
        if total_states := states + (states + copied * half) * MAX_CHECKPOINTS:
            found.append(Component("states", total_states, f"{MAX_CHECKPOINTS} checkpoints"))
        draft = self._draft.config if self._draft and setup.drafted else None
        if draft:
            found.append(Component("drafter KV", setup.context * draft.position_bytes(kv.past), detail))
        return tuple(found)
