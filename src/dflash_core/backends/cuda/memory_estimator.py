"""Predicts the memory of a pair on a card, by component, for any setup, before it is loaded."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import replace

from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.cuda.activations import DEFAULT, Activations
from dflash_core.backends.cuda.drafters.base import OnDevice, on_device
from dflash_core.backends.cuda.layers.embedding import TABLE, TOKENS
from dflash_core.backends.cuda.library import WORKSPACE_BYTES
from dflash_core.backends.cuda.meta import MetaDevice, Pieces, context_bytes, reserved
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.sequence import CAPACITIES, DRAFTER_KV, SequenceMemory
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import ALIGNMENT, PACKED, Upload, aligned, stored_type
from dflash_core.cache_types import AUTO_PAIRS, CachePair
from dflash_core.config import MtpConfig
from dflash_core.drafters.base import DraftModel
from dflash_core.drafters.draft import Draft
from dflash_core.drafters.mtp import KIND as MTP
from dflash_core.drafters.mtp import find_head, has_head
from dflash_core.errors import UnsupportedError
from dflash_core.expert_places import tensors_on_host
from dflash_core.fits import (
    KV_TYPES,
    MIN_PREFILL_ROWS,
    ON_CARD,
    ON_HOST,
    PREFILL_ROWS,
    SMALLEST_CONTEXT,
    TARGET,
    MemoryEstimator,
    Setup,
)
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.weights import WeightFile
from dflash_core.memory import Component, HostExperts, weights_detail

# A card's bandwidth over that of its bus: nominally 1,008 and 32 GB/s of an RTX 4090, 3,350 and 64 GB/s of an H100. An
# estimate, in use until passes were timed.
BUS_COST = 40
ORDER = ("target KV", "states", "scratch", DRAFTER_KV)  # the order in which a sequence's components are shown
# Memory that is left free if no context is given: for the allocator's rounding, library caches and other programs.
# MIN_SPARE is for the rounding only.
SPARE, MIN_SPARE = 512 << 20, 64 << 20
CHUNK_ROWS = tuple(PREFILL_ROWS >> halving for halving in range((PREFILL_ROWS // MIN_PREFILL_ROWS).bit_length()))
HOST_SHARE = 0.75  # of free main memory that experts may take where fewer layers would do: other programs cannot use it
CACHE_ROUNDING = 3 * ALIGNMENT  # bytes, per layer, by which slots for experts may be larger than the experts


class Footprint:
    """The memory of a target on a card, and of its drafter after `add_draft`. Raises UnsupportedError for tensor types
    without a kernel, and for shapes that need more shared memory than the card has."""

    def __init__(
        self,
        file: WeightFile,
        spec: ModelSpec,
        card: Card,
        activations: Activations = DEFAULT,
        *,
        embedding_on_host: bool = False,
        host_layers: int = 0,
        cached: int = 0,
    ) -> None:
        """`host_layers`: how many of the last layers with experts have them in main memory; `cached`: how many experts
        of each of these the card caches."""
        self._device, self._activations = MetaDevice(card), activations
        upload = Upload(file, pinned=tensors_on_host(spec, host_layers))
        self.target = DeviceTarget(self._device, upload, spec, activations, embedding_on_host=embedding_on_host)
        self.host_bytes, self.tokens_bytes = upload.host_bytes, _by_token(file)
        for mixer in self.target.mixers:
            mixer.check()
        self._draft: OnDevice | None = None
        for layer in self.target.experts:
            layer.slots = cached * layer.on_host
        self.host_experts = self.experts_on_host(host_layers, cached)
        self.target_bytes, self.draft_bytes = upload.nbytes + self.host_experts.cached_bytes, 0

    def experts_on_host(self, layers: int, cached: int = 0) -> HostExperts:
        """The experts of the last `layers` layers that have any, of which the card caches `cached` each."""
        moved = self.target.experts[len(self.target.experts) - layers :]
        nbytes, in_slots = sum(one.routed_bytes for one in moved), sum(one.cached_bytes(cached) for one in moved)
        return HostExperts(layers, nbytes, cached, in_slots)

    def weights(self, *, on_host: bool, host_layers: int = 0, cached: int = 0) -> int:
        """Bytes of the target's weights on the card, with the token embedding, and the experts of the last
        `host_layers` layers that have any, in host memory or on the card; `cached` as of `experts_on_host`."""
        own, other = self.host_experts, self.experts_on_host(host_layers, cached)
        moved = own.bytes - other.bytes + other.cached_bytes - own.cached_bytes
        return self.target_bytes + self.tokens_bytes * (bool(self.host_bytes) - on_host) + moved

    def add_draft(self, file: WeightFile, config: DraftModel, requantise: str = "") -> None:
        upload = Upload(file, requantise)
        self._draft = on_device(config, upload, self.target, self._activations)
        self.draft_bytes = upload.nbytes

    def with_draft(self, file: WeightFile, config: DraftModel, requantise: str = "") -> Footprint:
        """A copy for the same target with this drafter."""
        other = copy.copy(self)
        other.add_draft(file, config, requantise)
        return other

    def more_bytes(self, rows: int) -> float:
        """Weight bytes that a pass of `rows` rows reads, divided by those that a pass of one row reads. Bytes of main
        memory count BUS_COST times."""
        read = (
            self.target_bytes - self.target.idle_bytes(count) + BUS_COST * self.target.bus_bytes(count)
            for count in (rows, 1)
        )
        return next(read) / next(read)

    def sequence(self, setup: Setup, *, drafted: bool) -> tuple[Component, ...]:
        """The memory of a sequence, with or without the drafter. What the allocator reserves beyond the other
        components is scratch."""
        kv, draft = CachePair.parse(setup.kv), self._draft if drafted else None
        captured = draft.capabilities.captured_layers if draft else ()
        with Pieces() as pieces:
            memory = SequenceMemory(self.target, setup.context, captured, draft, kv, setup.rows, setup.nodes)
        sizes, details = memory.nbytes, memory.details
        scratch = reserved([*pieces.sizes, *([WORKSPACE_BYTES] if memory.chunk else [])]) - sum(sizes.values())
        kinds = {name: kv.past if name == DRAFTER_KV else kv for name in sizes}  # a drafter has no halves
        components = [
            Component(name, size, details.get(name, f"{kinds[name]}, {setup.context:,} positions"))
            for name, size in sizes.items()
        ]
        components.append(Component("scratch", scratch, f"a tree of {setup.nodes} nodes, logits, activations"))
        return tuple(sorted(components, key=lambda one: ORDER.index(one.name)))


def _by_token(file: WeightFile) -> int:
    """Bytes of the tensors of which a token needs a row."""
    return sum(aligned(file.tensors[name].n_bytes) for name in (TOKENS, TABLE) if name in file.tensors)


class CardMemoryEstimator(MemoryEstimator):
    """Of a target on a card and a drafter that was opened for it.

    `available`: bytes of the card for all components together; `cached`: as of Footprint, once it is settled;
    `host_free`: free bytes of main memory, None for enough; `mtp`: the MTP head in the target's own file, where another
    drafter was opened."""

    auto, chunk_rows, tree_nodes = tuple(map(str, AUTO_PAIRS)), CHUNK_ROWS, CAPACITIES

    def __init__(
        self,
        footprint: Footprint,
        draft: Draft | None,
        *,
        machine: str,
        available: int,
        draft_type: str = "",
        expert_layers: Sequence[int] = (0,),
        cached: int | None = None,
        host_free: int | None = None,
        mtp: tuple[WeightFile, DraftModel] | None = None,
    ) -> None:
        self.machine, self.available = machine, available
        self._spec = footprint.target.spec
        self.longest_context = self._spec.context_length
        self._footprint, self._draft, self._draft_type = footprint, on_card(draft), draft_type
        self.expert_layers, self._cached, self._host_free = expert_layers, cached, host_free
        self._embedding, self._mtp = ON_HOST if footprint.host_bytes else ON_CARD, mtp if self._draft else None
        context = context_bytes(footprint.target.device.card.multiprocessors)
        self._context = Component("CUDA context", context, "driver, kernels, libraries")
        self._footprints: dict[str, Footprint] = {}
        self._sequence = functools.cache(self._predict)

    @functools.cached_property
    def kv_types(self) -> Sequence[str]:
        return [kind for kind in KV_TYPES if self._has(kind)]

    def _has(self, kind: str) -> bool:
        try:
            self._footprint.sequence(Setup(SMALLEST_CONTEXT, kind), drafted=False)
        except UnsupportedError:
            return False
        return True

    @property
    def base(self) -> Setup:
        return Setup(
            0, self.auto[-1], draft_type=self._draft_type, embedding=self._embedding,
            experts=self.expert_layers[0], cached=self._cached or 0,
        )  # fmt: skip

    def spare(self, available: int) -> int:
        return SPARE

    def min_spare(self, available: int) -> int:
        return MIN_SPARE

    def choices(self, setup: Setup) -> Sequence[Setup]:
        drafted = setup.drafted and self._draft is not None
        tighter = [kind for kind in PACKED if drafted and not setup.mtp and self._packs(setup.draft_type, kind)]
        drafters = [replace(setup, draft_type=kind) for kind in (setup.draft_type, *tighter)]
        if drafted and self._mtp is not None and not setup.mtp:
            drafters.append(replace(setup, draft_type="", mtp=True))
        options = [
            replace(drafter, kv=kv, embedding=where)
            for kv in dict.fromkeys((setup.kv, *self.kv_types))
            for drafter in drafters
            for where in dict.fromkeys((setup.embedding, ON_HOST))
        ]
        layers = range(setup.experts + 1, len(self._footprint.target.experts) + 1)
        options += [replace(setup, experts=count, rows=self.chunk_rows[0]) for count in layers]
        return [*options[1:], *([replace(setup, drafted=False, draft_type="")] if drafted else [])]

    def host_experts(self, setup: Setup) -> HostExperts:
        """The experts that stay in main memory."""
        return self._footprint.experts_on_host(setup.experts, setup.cached)

    def layers_on_host(self, few: int) -> int:
        if not few or self._host_free is None:
            return self.expert_layers[-1] if few else 0
        limit = HOST_SHARE * self._host_free
        return max(few, *(n for n in self.expert_layers if self._footprint.experts_on_host(n).bytes <= limit), 0)

    def with_cache(self, setup: Setup, free: int) -> Setup:
        if self._cached is not None or not setup.experts:
            return setup
        counts = [layer.spec.count for layer in self._footprint.target.experts]
        each = self._footprint.experts_on_host(setup.experts, min(counts)).cached_bytes // min(counts)
        # Every matrix of a layer is rounded up to whole pieces of memory.
        return replace(setup, cached=max(min((free - setup.experts * CACHE_ROUNDING) // each, min(counts)), 0))

    def components(self, setup: Setup) -> tuple[Component, ...]:
        footprint = self._of(setup)
        on_host = setup.embedding == ON_HOST
        detail = weights_detail(
            self._spec.block_count, footprint.tokens_bytes if on_host else 0, self.host_experts(setup)
        )
        weights = footprint.weights(on_host=on_host, host_layers=setup.experts, cached=setup.cached)
        found = [Component(TARGET, weights, detail)]
        if self._drafted(setup):
            found.append(Component("drafter", footprint.draft_bytes, "MTP head" if setup.mtp else setup.draft_type))
        return (*found, *self.sequence(setup), self._context)

    def sequence(self, setup: Setup) -> tuple[Component, ...]:
        return self._sequence(replace(setup, embedding=ON_CARD, experts=0, cached=0))  # it does not depend on weights

    def _predict(self, setup: Setup) -> tuple[Component, ...]:
        return self._of(setup).sequence(setup, drafted=self._drafted(setup))

    def _drafted(self, setup: Setup) -> bool:
        return setup.drafted and self._draft is not None

    def _of(self, setup: Setup) -> Footprint:
        if not setup.drafted or self._draft is None:
            return self._footprint
        mtp = self._mtp if setup.mtp else None
        key = setup.draft_type if mtp is None else MTP
        if key not in self._footprints:
            given = (*self._draft, setup.draft_type) if mtp is None else mtp
            self._footprints[key] = self._footprint.with_draft(*given)
        return self._footprints[key]

    def _packs(self, now: str, kind: str) -> bool:
        """Whether packing as `kind` makes any matrix of the drafter smaller than it is now."""
        infos = self._draft[0].tensors.values() if self._draft is not None else ()
        types = {stored_type(info.type, now) for info in infos if len(info.shape) > 1}
        return any(stored_type(one, kind) != one for one in types)


def own_head(file: GGUFFile, spec: ModelSpec, draft: Draft | None) -> tuple[WeightFile, DraftModel] | None:
    """The MTP head in a target's file, if `draft` is another drafter."""
    if on_card(draft) is None or not has_head(file, spec) or isinstance(draft.config if draft else None, MtpConfig):
        return None
    config, head = find_head(MTP, file, spec)
    return head, config


def on_card(draft: Draft | None) -> tuple[WeightFile, DraftModel] | None:
    """The part of a drafter that is on the card; None for one that runs on the host."""
    if draft is None or not draft.files or draft.config is None:
        return None
    return draft.files[0], draft.config
