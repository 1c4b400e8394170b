"""Whether a model fits this machine: computed from headers if its files are here, else from file sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dflash_core.errors import DeviceError, DFlashError
from dflash_core.fits import MemoryEstimator, longest_context, settled, total
from dflash_core.memory import gib, host_memory
from dflash_core.nvml import CardMemory, Management
from dflash_tui.application.session import LoadRequest

OVERHEAD = 1_717_986_918  # 1.6 GiB: driver, kernels, passes and a short cache, as docs/models.md counts them


@dataclass(frozen=True, slots=True)
class FitCheck:
    """`context`: positions that fit, 0 if none; `wished`: the positions used if they fit.

    `short`: bytes missing for `wished`, or 0. `why`: a line if nothing could be computed. `weights`: their bytes in
    memory. `files`: the bytes of the target's and the drafter's file, of a pair that is planned by its shapes.
    """

    context: int = 0
    wished: int = 0
    taken: int = 0
    short: int = 0
    machine: str = ""
    why: str = ""
    weights: int = 0
    files: tuple[int, int] = (0, 0)

    @property
    def words(self) -> str:
        if self.why:
            return "not computed"
        if not self.short:
            return f"fits, {self.context:,} positions"
        return f"fits with {self.context:,} positions" if self.context else f"does not fit, {gib(self.short)} short"


def estimator_of(request: LoadRequest) -> MemoryEstimator:
    """Plans the memory of a request on this machine, see `estimator_for`. Raises DFlashError."""
    from dflash_tui.application.memory_estimate import estimator_for  # imports torch

    return estimator_for(request)


def fit_check(
    request: LoadRequest, freed: int = 0, make: Callable[[LoadRequest], MemoryEstimator] = estimator_of
) -> FitCheck:
    """Whether `request` fits. `freed`: bytes that the present pair releases. Imports torch."""
    try:
        estimator = make(request)
        available = estimator.available + freed
        setup = request.setup(estimator, available)
        taken = total(estimator, setup)
        short = max(taken - available, 0)
        context = longest_context(estimator, setup, available) if short else setup.context
        if context:
            taken = total(estimator, settled(estimator, replace(setup, context=context), available))
        weights = sum(one.bytes for one in estimator.components(setup) if one.name in ("target", "drafter"))
        files = (0, 0)
        if request.shapes[0]:
            from dflash_tui.application.memory_estimate import bytes_of_files  # imports torch

            files = bytes_of_files(request)
        return FitCheck(context, setup.context, taken, short, estimator.machine, weights=weights, files=files)
    except DFlashError as error:
        return FitCheck(why=str(error))


def cards() -> Sequence[CardMemory]:
    """The NVIDIA cards of this machine; none without a driver."""
    with suppress(DeviceError), Management() as management:
        return management.cards()
    return ()


def by_size(size: int) -> str:
    """Whether files of `size` bytes fit at all, in words: in a card's memory if there is one, else the machine's."""
    here = [(one.total, one.name) for one in cards()[:1]]
    [(memory, name)] = here or [(host_memory().total, "this machine, on the CPU")]
    needed = size + OVERHEAD
    if needed <= memory:
        return f"fits: about {gib(needed)} of {gib(memory)}, {name}"
    return f"does not fit: about {gib(needed)}, and {name} has {gib(memory)}"


def machine() -> str:
    """The memory available for a model: of this machine, and of its NVIDIA cards."""
    memory = host_memory()
    parts = [f"This machine has {gib(memory.free)} of {gib(memory.total)} free."]
    parts += [f"{card.name}: {gib(card.free)} of {gib(card.total)} free." for card in cards()]
    return " ".join([*parts, "dflash-tui doctor checks more."])
