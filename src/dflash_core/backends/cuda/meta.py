"""A device and an upload without memory: building a pair from shapes alone shows how much memory it will need."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from dflash_core.backends.cuda.launch import At, HasAddress
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.projection import Matrix
from dflash_core.backends.cuda.repack import blocks_of, groups_of, tile_type
from dflash_core.backends.cuda.upload import aligned, checked_blocks, stored_type
from dflash_core.formats.weights import WeightFile


def _refuse(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("a device of shapes alone runs nothing")


class MetaDevice:
    """Implements the part of `launch.Device` that building models and buffers needs; nothing can be launched on it."""

    torch_device = torch.device("meta")
    host: Any = None
    bind = record = pinned = synchronize = mark = multiply = _refuse

    def __init__(self, card: Card) -> None:
        self.card = card

    def stream(self) -> AbstractContextManager[object]:
        return nullcontext()


class MetaUpload:
    """Implements `layers.base.Upload` from a file's header alone. `pinned`: as of upload.DeviceUpload; their bytes do
    not count.

    Raises UnsupportedError for types without a kernel.
    """

    def __init__(self, file: WeightFile, requantise: str = "", pinned: Collection[str] = ()) -> None:
        self.file, self.requantise, self.pinned = file, requantise, pinned
        self.nbytes = self.host_bytes = 0

    def matrix(self, name: str) -> Matrix:
        info = self.file.tensors[name]
        rows, columns = info.n_elements // info.shape[-1], info.shape[-1]
        kind = stored_type(info.type, self.requantise)
        shape = (blocks_of(rows), groups_of(columns), tile_type(kind).bytes)
        if name in self.pinned:
            tiles = torch.empty(shape, dtype=torch.uint8, device="meta")
            return Matrix(kind, rows, columns, tiles, At(tiles, 0))
        return Matrix(kind, rows, columns, self._empty(shape, torch.uint8))

    def vector(self, name: str) -> Tensor:
        return self._empty(self.file.tensors[name].shape, torch.float32)

    def raw(self, name: str) -> tuple[str, Tensor]:
        info = checked_blocks(self.file.tensors[name])
        return info.type, self._empty((info.n_bytes,), torch.uint8)

    def on_host(self, name: str) -> tuple[str, HasAddress]:
        info = checked_blocks(self.file.tensors[name])
        self.host_bytes += info.n_bytes
        return info.type, At(torch.empty(info.n_bytes, dtype=torch.uint8, device="meta"), 0)

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        self.nbytes += aligned(tensor.nbytes)
        return tensor
