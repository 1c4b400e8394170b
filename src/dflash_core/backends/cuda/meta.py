"""A card that is not there. Building a pair on a device without memory shows how much memory it will need.

Torch's allocator reserves memory on a card in segments and hands out parts of these, so a sequence needs more than the
sum of its tensors: `Pieces` records what tensors allocate, and `reserved` predicts what the allocator reserves for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dflash_core.backends.cuda.driver import CardFacts, Driver, describe_card, find_driver
from dflash_core.backends.cuda.plan import Card
from dflash_core.memory import gib
from dflash_core.nvml import holders, used_by_others

getattr(torch._meta_registrations, "register_meta", None)  # a front end may have put off their import


def _refuse(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("a device without memory runs nothing")


class MetaDevice:
    """Implements the part of `launch.Device` that building models and buffers needs; nothing can be launched on it."""

    torch_device = torch.device("meta")
    host: Any = None
    bind = record = pinned = synchronize = mark = multiply = _refuse

    def __init__(self, card: Card) -> None:
        self.card = card

    def stream(self) -> AbstractContextManager[object]:
        return nullcontext()


BLOCK = 512  # every piece is rounded up to a multiple of this
MAX_SMALL = 1 << 20  # pieces up to this size share segments of SMALL_SEGMENT
SMALL_SEGMENT = 2 << 20
MIN_OWN = 10 << 20  # larger pieces below this size share segments of SHARED_SEGMENT; the others get their own
SHARED_SEGMENT = 20 << 20
OWN_STEP = 2 << 20  # segments of a single piece are rounded up to a multiple of this

_NOWHERE = torch.device("meta")
_FILLED = (torch.ops.aten.zeros.default, torch.ops.aten.ones.default)


class Pieces(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the context, the bytes of every piece of memory that torch allocates are appended to `sizes`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: otherwise torch wraps the mode in calls of its compiler, which takes a second to import."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []
        self._seen: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no address is reused

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = _without_memory(func, args, kwargs or {})
        if isinstance(out, Tensor):
            storage = out.untyped_storage()
            if storage._cdata not in self._seen:
                self._seen[storage._cdata] = storage
                self.sizes.append(storage.nbytes())
        return out


def _without_memory(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """`func`'s result, without filling meta tensors: that would load torch's compiler, which takes a second."""
    if func in _FILLED and kwargs.get("device") == _NOWHERE:
        return torch.empty(args[0], dtype=kwargs.get("dtype"), device=_NOWHERE)
    return func(*args, **kwargs)


def reserved(sizes: Iterable[int]) -> int:
    """Bytes that the allocator reserves on a card for pieces of these sizes, if none of them is freed.

    Pieces that share segments count as if they filled them: up to 20 MiB too little, where whole loads took 0.19 GiB
    less than planned (docs/notes/memory.md).
    """
    needs = [_rounded(size, BLOCK) for size in sizes]
    small = sum(need for need in needs if need <= MAX_SMALL)
    shared = sum(need for need in needs if MAX_SMALL < need < MIN_OWN)
    own = sum(_rounded(need, OWN_STEP) for need in needs if need >= MIN_OWN)
    return _rounded(small, SMALL_SEGMENT) + _rounded(shared, SHARED_SEGMENT) + own


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step


# The driver's memory for a context, kernels and libraries: 716.8 MiB were measured on 132 multiprocessors, and most of
# it is proportional to their number.
CONTEXT_PER_PROCESSOR = 5_700_000
GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
SMALL_SHARED, LARGE_SHARED = 99 * KIB, 227 * KIB


class PlannedDevice(MetaDevice):
    """A substitute for `device.CudaDevice` when only headers are read and sizes are computed. All the card's memory is
    free: that of other programs is not counted as part of it."""

    def __init__(self, card: PlannedCard) -> None:
        super().__init__(card.layout)
        self.runtime = SimpleNamespace(
            card=SimpleNamespace(name=card.name, bus=""), memory=lambda: (card.free, card.free)
        )


def context_bytes(processors: int) -> int:
    """Bytes that a process uses on a card in addition to its tensors."""
    return processors * CONTEXT_PER_PROCESSOR


@dataclass(frozen=True, slots=True)
class PlannedCard:
    """`free`: bytes that this program may use, including its own CUDA context; `holders`: other processes on the card
    of this machine, in one line."""

    name: str
    free: int
    layout: Card
    """The properties that plans of products depend on."""
    holders: str = ""

    def device(self) -> PlannedDevice:
        return PlannedDevice(self)


def _known(
    name: str, size: int, processors: int, l2: int, shared: int = SMALL_SHARED, overlaps: bool = False
) -> PlannedCard:
    return PlannedCard(name, size * GIB, Card(processors, shared, overlaps=overlaps, l2_bytes=l2 * MIB))


KNOWN: Sequence[PlannedCard] = (
    _known("NVIDIA GeForce RTX 4060", 8, 24, 24),
    _known("NVIDIA GeForce RTX 3060", 12, 28, 3),
    _known("NVIDIA GeForce RTX 4080", 16, 76, 64),
    _known("NVIDIA GeForce RTX 4090", 24, 128, 72),
    _known("NVIDIA GeForce RTX 5090", 32, 170, 96, overlaps=True),
    _known("NVIDIA L40S", 48, 142, 96),
    _known("NVIDIA H100", 80, 132, 50, LARGE_SHARED, overlaps=True),
    _known("NVIDIA H200", 141, 132, 50, LARGE_SHARED, overlaps=True),
)
"""In the order of their memory: a plan for a memory size uses the first card that has as much."""


def card_of(memory: int) -> PlannedCard:
    """The smallest known card with at least `memory` bytes, or else the largest one, with its memory set to that."""
    like = next((card for card in KNOWN if card.free >= memory), KNOWN[-1])
    return PlannedCard(f"{gib(memory)} of a card like {like.name}", memory, like.layout)


def card_here() -> PlannedCard:
    """The first visible card, as its driver describes it. Raises DeviceError or UnsupportedError."""
    facts: CardFacts = describe_card(Driver(find_driver()))
    # Add back what this program itself uses. If the driver does not report memory by process, that is all used memory.
    own = max(facts.total - facts.free - used_by_others(facts.bus), 0)
    free = facts.free + min(own, context_bytes(facts.processors))
    return PlannedCard(facts.name, free, Card.of(facts), holders(facts.bus))
