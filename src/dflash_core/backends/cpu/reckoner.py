"""What a pair takes of this machine's main memory, component by component, predicted before it is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dflash_core import memory
from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.cpu.machine import FLOAT_BYTES, CpuMachine
from dflash_core.cache_types import named
from dflash_core.config import target_weights
from dflash_core.drafters.base import Draft, OpenedDraft
from dflash_core.fits import KV_TYPES, PREFILL_ROWS, Setup
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.weights import TensorInfo, WeightFile
from dflash_core.memory import Component

# Dense weights may take this share of the free memory; past it they stay packed in the file's own types.
DENSE_SHARE = 0.6


def held_bytes(infos: Iterable[TensorInfo], packed: bool) -> int:
    """What tensors take: as they are in the file, or as floats."""
    return sum(info.n_bytes if packed else info.n_elements * FLOAT_BYTES for info in infos)


def stays_packed(dense: int, free: int) -> bool:
    """Whether weights of `dense` bytes as floats stay quantised in `free` bytes of memory."""
    return dense > DENSE_SHARE * free


class HostReckoner:
    """Implements `fits.Reckoner` for a target and a drafter that was opened for it. `memory_bytes`: what there is for
    all of it, 0 for what this machine has."""

    spare, chunk_rows = 0, (PREFILL_ROWS,)  # rows of a prompt take nothing that counts

    def __init__(
        self,
        machine: CpuMachine,
        file: GGUFFile,
        spec: ModelSpec,
        draft: OpenedDraft | Draft | None,
        memory_bytes: int = 0,
    ) -> None:
        self._machine, self._file, self._spec, self._draft = machine, file, spec, draft
        self.longest_context = spec.context_length
        self.available = memory_bytes or memory.host_memory().free + machine.program_bytes
        self.machine = f"{memory.gib(self.available)} of main memory, on the CPU"
        dense = held_bytes(target_weights(file, spec), packed=False)
        self._packed = stays_packed(dense, self.available - machine.program_bytes)

    @property
    def auto(self) -> Sequence[str]:
        return [str(one) for one in self._machine.auto_pairs]

    @property
    def kv_types(self) -> Sequence[str]:
        return list(dict.fromkeys((self.auto[0], *KV_TYPES)))

    @property
    def base(self) -> Setup:
        return Setup(0, self.auto[-1], nodes=0)

    def choices(self, setup: Setup) -> Sequence[Setup]:
        ways = [replace(setup, kv=kind) for kind in self.kv_types if kind != setup.kv]
        return [*ways, *([replace(setup, drafted=False)] if setup.drafted and self._draft_file else [])]

    def components(self, setup: Setup) -> tuple[Component, ...]:
        how = "as in the file" if self._packed else "as floats"
        found = [Component("target", held_bytes(target_weights(self._file, self._spec), self._packed), how)]
        drafted = self._draft if setup.drafted else None
        if drafted is not None and self._draft_file is not None:
            found.append(Component("drafter", held_bytes(self._draft_file.tensors.values(), self._packed), how))
        found += self._machine.sequence(
            self._spec, drafted.config if drafted else None, setup.context, kv=named(setup.kv)
        )
        return (*found, Component("program", self._machine.program_bytes, "Python, torch and the rest"))

    @property
    def _draft_file(self) -> WeightFile | None:
        return getattr(self._draft, "file", None)
