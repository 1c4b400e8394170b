"""A target in torch float32 on the CPU: the reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dflash_core import memory
from dflash_core.arch.spec import LayerSpec
from dflash_core.backends.cpu.machine import DENSE_SHARE, CpuMachine, HostMemoryEstimator, stays_packed, stored_bytes
from dflash_core.backends.cpu.session import CpuSession
from dflash_core.backends.opened import Target
from dflash_core.cache_types import AUTO, CachePair
from dflash_core.config import target_weights
from dflash_core.drafters import registry
from dflash_core.drafters.draft import Draft, Loaded
from dflash_core.drafters.kinds import CPU
from dflash_core.errors import NumericsError
from dflash_core.fits import PREFILL_ROWS
from dflash_core.formats.weights import WeightFile
from dflash_core.memory import Component, MemoryBreakdown, gib
from dflash_core.models.matrix import Weights
from dflash_core.models.rows import Rows
from dflash_core.models.target import TargetModel
from dflash_core.progress import Progress
from dflash_core.text.vocabulary import vocabulary_bytes


@torch.inference_mode()
def time_step(model: TargetModel, rows: int) -> float:
    """Predicted seconds of one target pass of `rows` rows: one timed layer per kind, times their number, plus the
    head in proportion to its weights. Rows are of different tokens, so that they choose different experts."""
    spec = model.spec
    tokens = [row % spec.vocab_size for row in range(rows)]
    batch = Rows.of(tokens, range(-1, rows - 1), 0)
    x = model.embed(tokens)
    given = model.given(tokens, x)
    seconds: dict[LayerSpec, float] = {}
    for index, block in enumerate(model.blk):
        if block.spec not in seconds:
            for _ in range(2):  # the first pass pays for page faults and thread pools that no later one sees
                states = model.new_states()
                if (source := model.state_of(index)) != index:
                    model.layer(source, x, batch, states, given)  # whose keys it reads
                started = time.perf_counter()
                model.layer(index, x, batch, states, given)
                seconds[block.spec] = time.perf_counter() - started
    total = sum(seconds[block.spec] for block in model.blk)
    hidden = spec.embedding_length
    weights = {layer: layer.active_numbers(hidden) for layer in seconds}
    return total + min(seconds[layer] / weights[layer] for layer in seconds) * spec.vocab_size * hidden


Loader = Callable[[Any, Weights, TargetModel], Loaded]
"""Makes a drafter of its config, its weights and the target's model; see `loaders` in drafters/kinds.py."""


class CpuTarget(Target):
    """Implements `backends.opened.Target`. `model` is there after `load`."""

    model: TargetModel
    machine: CpuMachine

    def __init__(self, path: str | Path, memory_bytes: int = 0) -> None:
        """`memory_bytes`: what a plan may use, 0 for what this machine has free."""
        super().__init__(path)
        self.machine = CpuMachine(self.program_bytes, vocabulary_bytes(self.file.metadata))
        self._memory_bytes = memory_bytes
        self._packed: bool | None = None  # until it is loaded

    @property
    def packed(self) -> bool:
        assert self._packed is not None, "a target that is not loaded"
        return self._packed

    @property
    def weight_bytes(self) -> int:
        return stored_bytes(target_weights(self.file, self.config), self.packed)

    def estimator(self, draft: Draft | None) -> HostMemoryEstimator:
        return HostMemoryEstimator(self.machine, self.file, self.config, draft, self._memory_bytes, self._packed)

    def check_memory(self, draft: Draft | None, context: int | None, kv: str = AUTO) -> None:
        """Nothing: weights stay packed where floats would not fit."""

    def load(self, *, packed: bool | None = None, dtype: torch.dtype = torch.float32, progress: Progress) -> None:
        self.file = self.file.settled()
        dense = stored_bytes(target_weights(self.file, self.config), packed=False)
        self._packed = stays_packed(dense, memory.host_memory().free) if packed is None else packed
        if not self.packed:
            _check_fits("target", self.file, dense)
        weights = Weights(self.file, dtype=dtype, packed=self.packed)
        self.model = TargetModel(weights, self.config, lambda done, total: progress("loading the target", done / total))

    def load_draft(self, opened: Draft, dtype: torch.dtype | None = None) -> Draft:
        load: Loader = registry.loader(opened.config.kind, CPU)
        nbytes = stored_bytes(opened.file.tensors.values(), self.packed)
        if not self.packed:
            _check_fits("drafter", opened.file, nbytes)
        weights = Weights(opened.file, dtype=dtype or torch.float32, packed=self.packed)
        model, drafter = load(opened.config, weights, self.model)
        return replace(opened, model=model, drafter=drafter, weight_bytes=nbytes)

    def session(
        self,
        draft: Draft | None = None,
        captured: Sequence[int] = (),
        context: int = 0,
        kv: CachePair | None = None,
        rows: int = PREFILL_ROWS,
        nodes: int = 0,
    ) -> CpuSession:
        drafter = draft.drafter if draft is not None else None
        assert draft is None or drafter is not None, "a drafter of another backend"
        return CpuSession(self.model, drafter(kv and kv.past) if drafter else None, captured, kv)

    def step_seconds(self, rows: int) -> float:
        try:
            return time_step(self.model, rows)
        except NumericsError:  # reported by the turn that needs it
            return 0.0


def _check_fits(component: str, file: WeightFile, dense: int) -> None:
    """Refuse weights that do not fit as floats, before any of them is read."""
    host = memory.host_memory()
    packed = stored_bytes(file.tensors.values(), packed=True)
    remedies = (
        f"keep the weights packed (packed=True, {gib(packed)} read from the file as needed), "
        f"take a model of at most {gib(int(DENSE_SHARE * host.free))} as floats, "
        f"or close programs that hold {gib(max(0, dense - host.free))}"
    )
    needed = MemoryBreakdown(memory.HOST, (Component(component, dense, "float32 weights"),), host.total, host.free)
    memory.check(needed, remedies)
