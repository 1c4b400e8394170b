"""Counts the bytes that torch allocates while something runs, and that are still in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, `live` is the number of bytes that were allocated and are still in use; `most` is the
    maximum of `live` since `most` was last set. Allocations while `counting` is false do not count. `zeroed`: memory
    that is allocated without values is zero."""

    def __init__(self, zeroed: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._zeroed = zeroed
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0
        self.counting = True

    @property
    def live(self) -> int:
        self._held = {at: one for at, one in self._held.items() if not one[0].expired()}  # type: ignore[no-untyped-call]
        return sum(size for _, size in self._held.values())

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.counting:
            return func(*args, **(kwargs or {}))
        given = {one.untyped_storage()._cdata for one in _tensors(args)}
        out = func(*args, **(kwargs or {}))
        if self._zeroed and func is torch.ops.aten.empty.memory_format:
            out.zero_()
        for one in _tensors(out if isinstance(out, tuple | list) else (out,)):
            storage = one.untyped_storage()
            if storage._cdata not in given:  # neither a view nor written in place
                self._held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]
        self.most = max(self.most, self.live)
        return out


def _tensors(values: Any) -> list[Tensor]:
    found = []
    for one in values:
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, tuple | list):
            found += _tensors(one)
    return found
