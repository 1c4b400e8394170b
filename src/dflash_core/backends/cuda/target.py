"""A target with its weights on one card."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from dflash_core import memory
from dflash_core.arch.kinds import Attention, Experts
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.backends.cuda.activations import activations as by_name
from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.machine import CudaMachine
from dflash_core.backends.cuda.memory_estimator import CardMemoryEstimator, Footprint, on_card, own_head
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import MAX_NODES
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.timings import NEVER, PASSES, READINGS, Timer, target_name
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.backends.opened import Target
from dflash_core.cache_types import AUTO, F16, CachePair
from dflash_core.drafters.draft import Draft, not_on_a_card
from dflash_core.errors import OutOfMemoryError, Shortage, UnsupportedError, cpu_only
from dflash_core.expert_places import possible_layers, tensors_on_host
from dflash_core.fits import (
    DEFAULT_CARD,
    ON_HOST,
    PREFILL_ROWS,
    SMALLEST_CONTEXT,
    CardOptions,
    Setup,
    longest_context,
    min_bytes,
    requested_setup,
)
from dflash_core.formats.weights import WeightFile
from dflash_core.memory import gib
from dflash_core.progress import Progress


@functools.cache
def open_device(index: int) -> CudaDevice:
    """A visible card; it is opened once per process. Raises DeviceError or UnsupportedError."""
    return CudaDevice(index)


class CudaTarget(Target):
    """Implements `backends.opened.Target` on one card. `device`: the first card if it is already open, or a substitute.

    Experts whose place is "auto" are in host memory in as few layers as the context of `check_memory` needs.
    """

    model: DeviceTarget
    machine: CudaMachine
    packed = False

    def __init__(self, path: str | Path, card: CardOptions = DEFAULT_CARD, *, device: CudaDevice | None = None) -> None:
        super().__init__(path)
        check_supported(self.config)
        if card.reading not in READINGS:
            raise UnsupportedError(f"reading {card.reading!r}, expected one of {' '.join(READINGS)}")
        self.device, self.options, self.activations = device or open_device(0), card, by_name(card.activations)
        timer: Timer | None = None
        if card.tune and isinstance(self.device, CudaDevice):  # a substitute for a card is not timed
            timer = Timer(self.device, self.device.programs.cache.folder)
        self.arithmetic = f"{card.activations} {card.reading}"
        self._expert_layers: Sequence[int] = possible_layers(card.experts, self.config)
        self._cached: int | None = None  # experts of each of these layers that the card caches, once it is settled
        self.footprint = self._footprint()
        self.host_bytes = self.footprint.host_bytes
        self.machine = CudaMachine(self.device, self.footprint, timer, card.vram_limit)

    def _footprint(self) -> Footprint:
        found = Footprint(
            self.file, self.config, self.device.card, self.activations,
            embedding_on_host=self.options.embedding == ON_HOST,
            host_layers=self._expert_layers[0], cached=self._cached or 0,
        )  # fmt: skip
        self.host_experts = found.host_experts
        return found

    @property
    def weight_bytes(self) -> int:
        return self.footprint.target_bytes

    def estimator(self, draft: Draft | None) -> CardMemoryEstimator:
        if draft is not None and draft.parts:
            raise not_on_a_card(draft.capabilities)
        return CardMemoryEstimator(
            self.footprint, draft, machine=self.machine.name, available=self.machine.available_with_context(),
            draft_type=self.options.draft_type, expert_layers=self._expert_layers, cached=self._cached,
            host_free=memory.host_memory().free, mtp=own_head(self.file, self.config, draft),
        )  # fmt: skip

    def check_memory(self, draft: Draft | None, context: int | None, kv: str = AUTO) -> None:
        kv = kv if kv == AUTO else str(CachePair.parse(kv))
        self._place_experts(draft, context, kv)
        estimator = self.estimator(draft)
        requested = min(context or SMALLEST_CONTEXT, self.config.context_length)
        setup = requested_setup(estimator, requested, kv)
        needed = self.machine.breakdown(estimator.components(setup)[:-1])
        fits = longest_context(estimator, setup)
        pack = not fits and on_card(draft) is not None and not self.options.draft_type
        if fits:
            remedy = f"a context of {fits:,} positions fits"
        elif pack:
            remedy = "pack the drafter as q8_0, or take no drafter, or a smaller model"
        elif self._moving_experts_helps(estimator, setup):
            remedy = "--experts auto reads experts from main memory, slower"
        else:
            rest = needed.predicted - self.footprint.target_bytes
            remedy = f"take a model of at most {gib(max(needed.free - rest, 0))}"
        used = self.machine.other_processes()
        named = self.machine.holders() if used else ""
        closing = f"other programs on the card hold {gib(used)}{named}: close them, or " if used else "or "
        memory.check(
            needed,
            f"{remedy}; {closing}run it on the CPU",
            Shortage(needed.predicted, needed.free, fits, pack, on_card=True),
        )

    def _place_experts(self, draft: Draft | None, context: int | None, kv: str) -> None:
        """Choose how many layers have their experts in main memory, if there is a choice, and how many experts the card
        caches."""
        free = memory.host_memory().free
        if self._expert_layers[-1]:
            setup = requested_setup(self.estimator(draft), context, kv)
            self._expert_layers, self._cached = (setup.experts,), setup.cached
            self.footprint = self.machine.footprint = self._footprint()
        found = self.host_experts
        if found.bytes > free:
            raise OutOfMemoryError(
                f"{found}, but {gib(free)} of main memory are free; close other programs, or take a smaller model"
            )

    def _moving_experts_helps(self, estimator: CardMemoryEstimator, setup: Setup) -> bool:
        layers = len(self.footprint.target.experts)
        return setup.experts < layers and min_bytes(estimator, replace(setup, experts=layers)) <= estimator.available

    def load(self, *, packed: bool | None = None, dtype: torch.dtype = torch.float32, progress: Progress) -> None:
        self.file = self.file.settled()
        self.machine.hold_limit()
        with self._upload("target", self.file) as upload:
            self.model = DeviceTarget(
                self.device,
                upload,
                self.config,
                self.activations,
                lambda n, of: progress("loading the target", n / of),
                embedding_on_host=self.options.embedding == ON_HOST,
            )

            if self.host_experts.cached:
                self.model.cache_experts(self.host_experts.cached)
        if self.host_experts.layers:
            self.notes = (*self.notes, f"{self.host_experts}: the card reads them over the bus")
        self.machine.recall(target_name(self.model))

    def load_draft(self, opened: Draft, dtype: torch.dtype | None = None) -> Draft:
        self.footprint.add_draft(opened.file, opened.config, self.options.draft_type)
        with self._upload("drafter", opened.file, self.options.draft_type) as upload:
            model = on_device(opened.config, upload, self.model, self.activations)
        return replace(opened, model=model, capabilities=model.capabilities, weight_bytes=self.footprint.draft_bytes)

    def session(
        self,
        draft: Draft | None = None,
        captured: Sequence[int] = (),
        context: int = 0,
        kv: CachePair | None = None,
        rows: int = PREFILL_ROWS,
        nodes: int = 0,
    ) -> CudaSession:
        make = functools.partial(
            CudaSession, context=context, kv=kv or F16, rows=rows, nodes=nodes or MAX_NODES,
            chunks_from=NEVER if self.options.reading == PASSES else None,
        )  # fmt: skip
        drafter = draft.drafter if draft is not None else None
        if draft is not None and drafter is None:
            return make(self.model, draft.model)
        return make(self.model, None, captured, host_drafter=drafter(kv) if drafter else None)

    def step_seconds(self, rows: int) -> None:
        """None: steps on a card are too fast to need an announcement."""

    @contextmanager
    def _upload(self, component: str, file: WeightFile, requantise: str = "") -> Iterator[DeviceUpload]:
        before = torch.cuda.memory_allocated()
        nbytes, pinned = self.footprint.draft_bytes, frozenset[str]()
        if component == "target":
            nbytes = self.footprint.target_bytes - self.host_experts.cached_bytes  # the cache is made from the others
            pinned = tensors_on_host(self.config, self.host_experts.layers)
        upload = DeviceUpload(self.device, file, requantise, nbytes, pinned)
        try:
            with self.device.stream():
                yield upload
                self.device.synchronize()
            torch.cuda.empty_cache()  # free the scratch memory of repacking
            self.machine.weight_bytes[component] = torch.cuda.memory_allocated() - before
        finally:
            upload.close()


def check_supported(spec: ModelSpec) -> None:
    """Raises UnsupportedError for a target that a card cannot run. Its layers' options are data of `arch/`."""
    missing = dict.fromkeys(name for layer in spec.layers for name in _missing(layer))  # each once, in order
    if missing:
        raise cpu_only(f"{spec.name} needs what no kernel does yet on a card: {', '.join(missing)}")


def _missing(layer: LayerSpec) -> Iterator[str]:
    mixer, ffn = layer.mixer, layer.ffn
    if isinstance(mixer, Attention) and mixer.gate == "sigmoid" and "attn_q" in mixer.biases:
        yield "biases of gated queries"
    if not isinstance(ffn, Experts):
        return
    if ffn.router_scale and ffn.shared and ffn.shared_gate:
        yield "a gated shared expert beside a router that reads other rows than the experts"
    if ffn.biases and ffn.shared:
        yield "biases of experts beside a shared one"
    if ffn.choice_bias and ffn.router == "softmax":
        yield "a bias for the choice of experts by softmax"
