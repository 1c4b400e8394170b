"""Records the pieces of memory that tensors allocate, and predicts how much torch's allocator reserves for them.

The allocator reserves memory on a card in segments and hands out parts of these, so a sequence needs more than the sum
of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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
