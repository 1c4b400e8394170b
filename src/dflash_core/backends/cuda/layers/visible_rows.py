"""The keys, or values, that a prompt's rows see: those of the cache, or copies of them as f16 where it is packed, and
behind these the halves of a recent window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.chunk import Chunk, Fill, Stage, View
from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import WARP, Argument, At, Launch
from dflash_core.backends.cuda.layers.split_attention import PREPARE_WARPS
from dflash_core.backends.cuda.products import Op
from dflash_core.cache_types import F16

UNPACK_BLOCKS = 1024  # thread blocks of attn_unpack_keys; they loop over the rows


class VisibleRows:
    """Keys or values of f16, read in their place. `rows`: of the kv heads of a turn."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def seen(self, view: View, stage: Stage) -> Tensor:
        """What the rows of a stage read, (kv heads, keys, head_dim) f16; stages are taken in order."""
        if view.masked:
            return torch.cat([self._rows[:, fill.slots] for fill in view.fills], dim=1)
        return self._rows[:, : stage.keys]


class UnpackedRows(VisibleRows):
    """Packed keys or values, of which `unpack` writes the first fill of a view to `halves`. `recent`: the ring of a
    recent window; `packed`: where rows wait that the first rows of a chunk read as halves, and the last ones packed."""

    def __init__(
        self, chunk: Chunk, rows: Tensor, halves: Tensor, unpack: Launch, recent: Tensor | None, packed: Tensor | None
    ) -> None:
        super().__init__(rows)
        self._ops, self._halves, self._unpack, self._recent, self._packed = chunk.ops, halves, unpack, recent, packed
        self._bound = {(unpack.name, 0): chunk.ops.add(unpack)}  # by kernel and place of a fill's numbers

    def seen(self, view: View, stage: Stage) -> Tensor:
        halves, packed, border = self._halves, self._packed, view.border.start
        if stage is view.stages[0]:
            for fill in view.fills:
                self._copy(view, fill, self._rows, self._unpack.name)
            if packed is not None and self._recent is not None:
                packed[:, : view.border.stop - border] = halves[:, view.border]
                for fill in view.newest:
                    self._copy(view, fill, self._recent, self._unpack.name.replace("unpack", "newest"))
        elif packed is not None:
            begin, end = stage.packed.start, stage.packed.stop
            halves[:, begin:end] = packed[:, begin - border : end - border]
        return halves[:, : stage.keys]

    def _copy(self, view: View, fill: Fill, rows: Tensor, name: str) -> None:
        """Copy a fill out of `rows`. Its kernel is bound once: the host would be slower than the card."""
        if (name, fill.place) not in self._bound:
            args = unpack_args(view, fill.place, rows, self._halves)
            self._bound[name, fill.place] = Op(self._ops.device, replace(self._unpack, name=name, args=args))
        self._bound[name, fill.place]()


def unpack_args(view: View, place: int, rows: Tensor, halves: Tensor) -> list[Argument]:
    """Arguments of kernels that copy a fill of `rows` (kv heads, slots, row) to `halves`."""
    heads, slots = (np.int32(size) for size in rows.shape[:2])
    return [At(view.counts, 4 * place), rows, heads, slots, halves]


def visible_rows(
    chunk: Chunk,
    view: View,
    together: range,
    kv: KVCache,
    place: int,
    copies: Sequence[Tensor],
    defines: Mapping[str, object],
) -> Iterator[VisibleRows]:
    """The keys and the values of a layer, of kv heads `together`. `copies`: for each of the two that is packed, the
    place that a kernel of attention_rows.cu unpacks it to; with a recent window two more, for `packed`."""
    left, borders, heads = iter(copies), iter(copies[2:]), slice(together.start, together.stop)
    newest = (kv.newest.k, kv.newest.v) if kv.newest else (None, None)
    names = "attn_unpack_keys", "attn_unpack_values"
    for name, kind, cache, recent in zip(names, (kv.kv.k, kv.kv.v), (kv.k, kv.v), newest, strict=True):
        rows = cache[place, heads]
        if kind == F16.k:
            yield VisibleRows(rows)
            continue
        halves = next(left)
        args = unpack_args(view, 0, rows, halves)
        launch = Launch("attention_rows.cu", name, defines, UNPACK_BLOCKS, WARP * PREPARE_WARPS, args)
        own = (None, None) if recent is None else (recent[place, heads], next(borders))
        yield UnpackedRows(chunk, rows, halves, launch, *own)
