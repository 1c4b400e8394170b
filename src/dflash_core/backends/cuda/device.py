"""The card as passes use it: kernels are compiled and bound on demand; there are one stream and graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core.backends.cuda.host_blocks import HostBlocks
from dflash_core.backends.cuda.launch import Launch, PinnedMemory, Run, Size
from dflash_core.backends.cuda.library import WORKSPACE_BYTES, Library
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.programs import CubinCache, Programs, Variant
from dflash_core.backends.cuda.runtime import Runtime
from dflash_core.errors import Code, OutOfMemoryError
from dflash_core.memory import gib
from dflash_core.progress import Progress


class CudaDevice:
    """Implements `launch.Device` on one visible card. Raises DeviceError if there is no such card."""

    def __init__(self, index: int = 0) -> None:
        self.runtime = Runtime.open(index)
        self.programs = Programs(self.runtime, CubinCache())
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self.host = HostBlocks(self.runtime.lock, self.runtime.unlock)
        self.card = Card.of(self.runtime.card)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Inside the context, torch uses the kernels' stream.

        Raises OutOfMemoryError if torch's allocator does, and KernelError if torch reports a kernel's error.
        """
        try:
            with self.runtime.torch_stream:  # not torch.cuda.stream, which takes 15 us of each step
                yield
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            free, total = self.runtime.memory()
            raise OutOfMemoryError(
                f"{self.runtime.card.name} is full: {gib(free)} of {gib(total)} free; shorten the context, "
                "lower the budget, or close other programs that use the card",
                code=Code.DEVICE_FULL,
            ) from None
        except RuntimeError as error:
            # torch's copies wait for kernels, so torch is often the first to report a kernel's error.
            found, _, words = str(error).partition("CUDA error: ")
            if not words or found:
                raise
            driver = self.runtime.driver
            raise driver.lose(driver.launched or "the GPU", words.splitlines()[0].strip()) from None

    def bind(self, launches: Sequence[Launch], progress: Progress | None = None) -> Run:
        if self.runtime.card.overlaps:
            launches = [launch.clustered or launch for launch in launches]
        variants = [Variant.of(launch.file, launch.defines) for launch in launches]

        def report(done: int, total: int) -> None:
            if progress:
                progress("compiling kernels", done / total)

        self.programs.compile(variants, report)
        bound = [
            self.programs.kernel(variant, launch.name).bind(
                launch.grid, launch.block, launch.args, shared=launch.shared, per_sm=launch.per_sm
            )
            for variant, launch in zip(variants, launches, strict=True)
        ]

        def run() -> None:
            for launch in bound:
                launch()

        return run

    def record(self, name: str, work: Run) -> Run:
        with self.runtime.capture(name) as graph:
            work()
        return graph

    def pinned(self, shape: Size, dtype: npt.DTypeLike) -> PinnedMemory:
        return self.runtime.pinned(shape, dtype)

    def synchronize(self) -> None:
        self.runtime.synchronize()

    def mark(self) -> Run:
        event = self.runtime.event()
        event.record()
        return event.wait

    def multiply(self, x: Tensor, weights: Tensor, out: Tensor, *, scale: float = 1.0, add: bool = False) -> None:
        self._library.multiply(x, weights, out, scale=scale, add=add)

    @cached_property
    def _library(self) -> Library:
        """Made on first use: without prompt chunks it is not needed."""
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=self.torch_device)
        return Library(self.runtime.driver, self.runtime.stream, workspace)
