"""A target and its drafter on the card, behind the same names as on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dflash_core import memory
from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.footprint import Footprint
from dflash_core.backends.cuda.machine import SMALLEST_CONTEXT, CudaMachine
from dflash_core.backends.cuda.model import DeviceDraft, DeviceTarget
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.config import DraftConfig
from dflash_core.formats.weights import WeightFile
from dflash_core.loading import Progress, Target
from dflash_core.memory import Owner, gib

if TYPE_CHECKING:
    from dflash_core.loading import Draft, OpenedDraft


@functools.cache
def first_device() -> CudaDevice:
    """The first visible card, opened once. Raises DeviceError or UnsupportedError."""
    return CudaDevice()


class CudaTarget(Target):
    """A target on one card. `half`: f16 activations for every type, the exact path beside the int8 one.

    `draft_type`: "q8_0" packs a drafter's float matrices tighter as they are loaded.
    """

    def __init__(self, path: str | Path, device: CudaDevice, *, half: bool = False, draft_type: str = "") -> None:
        super().__init__(path)
        self.device, self.half, self.draft_type = device, half, draft_type
        self.footprint = Footprint(self.file, self.config, device.card, half)
        self._machine = CudaMachine(device, self.footprint)
        self.packed = False

    @property
    def machine(self) -> CudaMachine:
        return self._machine

    @property
    def weight_bytes(self) -> int:
        return self.footprint.target_bytes

    def check_room(self, draft: OpenedDraft | None, context: int | None) -> None:
        weights = [Owner("target", self.footprint.target_bytes)]
        if draft is not None:
            self.footprint.add_draft(draft.file, draft.config, self.draft_type)
            weights.append(Owner("drafter", self.footprint.draft_bytes))
        wanted = min(context or SMALLEST_CONTEXT, self.config.context_length)
        sequence = self.machine.owners(self.config, draft is not None, wanted)
        ledger = self.machine.ledger((*weights, *sequence))
        room = ledger.free - sum(owner.bytes for owner in weights)
        fits = self.machine.longest(self.config, draft is not None, room)
        if fits:
            remedy = f"a context of {fits:,} positions fits (--context)"
        elif draft is not None and not self.draft_type:
            remedy = "try --draft-type q8_0, or no drafter, or a smaller model"
        else:
            remedy = f"take a model of at most {gib(max(ledger.free - sum(o.bytes for o in sequence), 0))}"
        memory.check(ledger, f"{remedy}; {self._others()}use --device cpu")

    def load(self, *, packed: bool | None = None, dtype: torch.dtype = torch.float32, progress: Progress) -> None:
        """Bring the weights to the card. Raises OutOfMemoryError before anything is allocated."""
        self._check("target", self.footprint.target_bytes)
        with self._upload("target", self.file) as upload:
            self.model = DeviceTarget(
                self.device, upload, self.config, self.half, lambda n, of: progress("loading the target", n / of)
            )

    def load_drafter(self, file: WeightFile, config: DraftConfig, dtype: torch.dtype) -> tuple[DeviceDraft, int]:
        """The drafter's weights on the card, and their bytes. Raises OutOfMemoryError."""
        self.footprint.add_draft(file, config, self.draft_type)
        self._check("drafter", self.footprint.draft_bytes)
        with self._upload("drafter", file, self.draft_type) as upload:
            draft = DeviceDraft(self.device, upload, config, self.half)
        return draft, self.footprint.draft_bytes

    def session(self, draft: Draft | None = None, taps: Sequence[int] = (), context: int = 0) -> CudaSession:
        model, mask = (draft.model, draft.mask_token) if draft else (None, 0)
        return CudaSession(self.model, model, mask, taps, context=context)

    @contextmanager
    def _upload(self, owner: str, file: WeightFile, requantise: str = "") -> Iterator[DeviceUpload]:
        before = torch.cuda.memory_allocated()
        room = self.footprint.target_bytes if owner == "target" else self.footprint.draft_bytes
        upload = DeviceUpload(self.device, file, requantise, room)
        try:
            with self.device.stream():
                yield upload
                self.device.synchronize()
            torch.cuda.empty_cache()  # what repacking worked in
            self.machine.held[owner] = torch.cuda.memory_allocated() - before
        finally:
            upload.close()

    def _check(self, owner: str, need: int) -> None:
        ledger = self.machine.ledger((Owner(owner, need),))
        model = f"take a model of at most {gib(int(0.85 * ledger.free))}"
        memory.check(ledger, f"{model}; {self._others()}use --device cpu")

    def _others(self) -> str:
        """What other programs on the card could give back, as the beginning of a remedy."""
        held = self.machine.other_processes()
        return f"other programs on the card hold {gib(held)}: close them, or " if held else "or "
