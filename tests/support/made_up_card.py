"""A simulated card for tests of plans and refusals: nothing can be loaded onto it."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import torch

from dflash_core.backends.cuda.plan import Card


class MadeUpCard:
    """The part of a CudaDevice that headers and plans use, with `free` of `total` bytes."""

    card = Card(132, 227 << 10)
    torch_device = torch.device("meta")
    stream = staticmethod(contextlib.nullcontext)

    def __init__(self, free: int, total: int = 80 << 30) -> None:
        named = SimpleNamespace(name="A card", bus="")
        self.runtime = SimpleNamespace(card=named, memory=lambda: (free, total))
