"""What a sequence takes on a card, before anything is allocated, and what is held once it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from dflash_core.backends.cuda.buffers import PREFILL_ROWS
from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.footprint import Footprint
from dflash_core.config import TargetConfig
from dflash_core.memory import Ledger, Owner

if TYPE_CHECKING:
    from dflash_core.backends.base import Session
    from dflash_core.loading import Draft, Target

CEILING = 32_768
SMALLEST_CONTEXT = 512
# Left free: the allocator's rounding, the caches of libraries, whatever else draws on the card.
SPARE = 512 << 20


class CudaMachine:
    """Implements `backends.base.Machine` for a card and the target that was loaded on it."""

    prefill_chunk = PREFILL_ROWS

    def __init__(self, device: CudaDevice, footprint: Footprint) -> None:
        self.device, self.footprint = device, footprint
        self.name = device.runtime.card.name
        self.held: dict[str, int] = {}  # what the allocator gave to weights, by owner

    def context_that_fits(self, target: Target, draft: Draft | None) -> int:
        free = self.device.runtime.memory()[0] - SPARE
        context = min(CEILING, target.config.context_length)
        while context > SMALLEST_CONTEXT and sum(o.bytes for o in self.sequence(target, draft, context)) > free:
            context //= 2
        return context

    def sequence(self, target: Target, draft: Draft | None, context: int) -> tuple[Owner, ...]:
        return self.owners(target.config, draft is not None, context)

    def owners(self, config: TargetConfig, drafted: bool, context: int) -> tuple[Owner, ...]:
        """What a sequence of `context` positions takes, with a drafter's or without."""
        need = self.footprint.sequence(context)
        positions = f"{context:,} positions"
        owners = [
            Owner("target KV", need.kv, positions),
            Owner("states", need.states, f"{config.n_linear} gated delta net layers"),
            Owner("scratch", need.scratch, "a tree of 64 nodes, logits, activations"),
        ]
        if drafted:
            owners.append(Owner("drafter KV", need.draft_kv, positions))
        return tuple(owners)

    def longest(self, config: TargetConfig, drafted: bool, room: int) -> int:
        """The most positions, in steps of SMALLEST_CONTEXT, that `room` bytes hold; 0 where they hold none."""
        fits, steps = 0, config.context_length // SMALLEST_CONTEXT
        while fits < steps:
            middle = (fits + steps + 1) // 2
            need = sum(owner.bytes for owner in self.owners(config, drafted, middle * SMALLEST_CONTEXT))
            fits, steps = (middle, steps) if need <= room else (fits, middle - 1)
        return fits * SMALLEST_CONTEXT

    def ledger(self, owners: tuple[Owner, ...], session: Session | None = None) -> Ledger:
        free, total = self.device.runtime.memory()
        others = other_processes()
        used = total - free
        if session is not None:
            # What the allocator has taken beyond the owners that can be told apart is scratch, its own slack included.
            held = {**self.held, **session.nbytes}
            held["scratch"] = torch.cuda.memory_reserved() - sum(held.values())
            owners = tuple(Owner(o.name, o.bytes, o.detail, held.get(o.name)) for o in owners)
            context = max(used - others - torch.cuda.memory_reserved(), 0)
            owners += (Owner("CUDA context", context, "driver, kernels, libraries"), Owner("other processes", others))
        return Ledger(self.name, owners, total, free, used - others)


def other_processes() -> int:
    """Bytes that other processes hold on the first card, as far as the driver tells."""
    try:
        import pynvml

        pynvml.nvmlInit()
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
        return sum(int(process.usedGpuMemory or 0) for process in running if process.pid != os.getpid())
    except Exception:  # no library, no permission, or a container that hides processes
        return 0
