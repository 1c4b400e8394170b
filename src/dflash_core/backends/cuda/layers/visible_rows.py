"""The keys, or values, that a prompt's rows see: those of the cache, or copies of them as f16 where it is packed, and
behind these the halves of a recent window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.chunk import Chunk, Fill, Stage, View
from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import WARP, Argument, At, Device, Launch, Run
from dflash_core.backends.cuda.layers.split_attention import PREPARE_WARPS
from dflash_core.backends.cuda.products import Op
from dflash_core.cache_types import F16, CacheType

UNPACK_BLOCKS = 1024  # thread blocks of attn_unpack_keys; they loop over the rows


class VisibleRows:
    """The keys, or the values, of the kv heads `together`. `rows`: of the whole cache; `halves`: of these heads, or
    their copy if the cache is packed, made by `unpack`. `recent`: the ring of a recent window; `packed`: where those
    wait that the first rows of a chunk read as halves, and the last ones packed."""

    def __init__(
        self,
        device: Device,
        rows: Tensor,
        together: range,
        halves: Tensor,
        unpack: Op | None,
        recent: Tensor | None = None,
        packed: Tensor | None = None,
    ) -> None:
        self._device, self._rows, self._together, self._halves = device, rows, together, halves
        self._unpack, self._recent, self._packed = unpack, recent, packed
        self._bound: dict[tuple[str, int], Run] = {}  # by kernel and place of its numbers

    @staticmethod
    def pair(
        device: Device,
        chunk: Chunk,
        together: range,
        kv: KVCache,
        place: int,
        copies: Sequence[Tensor],
        defines: Mapping[str, object],
    ) -> tuple[VisibleRows, VisibleRows]:
        """The keys and the values of a layer, of kv heads `together`. `copies`: for each of the two that is packed,
        the place that a kernel of attention_rows.cu unpacks it to; with a recent window two more, for `packed`."""
        left, borders, newest = iter(copies), iter(copies[2:]), kv.newest

        def of(rows: Tensor, name: str, kind: CacheType, recent: Tensor | None) -> VisibleRows:
            if kind == F16.k:
                return VisibleRows(device, rows, together, rows[together.start : together.stop], None)
            copy, count, slots = next(left), np.int32(len(together)), np.int32(rows.shape[1])
            to: list[Argument] = [chunk.count, rows[together.start :], count, slots, copy]
            launch = Launch("attention_rows.cu", name, defines, UNPACK_BLOCKS, WARP * PREPARE_WARPS, to)
            packed = None if recent is None else next(borders)
            return VisibleRows(device, rows, together, copy, chunk.ops.add(launch), recent, packed)

        keys = of(kv.k[place], "attn_unpack_keys", kv.kv.k, newest.k[place] if newest else None)
        return keys, of(kv.v[place], "attn_unpack_values", kv.kv.v, newest.v[place] if newest else None)

    def seen(self, view: View, stage: Stage) -> Tensor:
        """What the rows of a stage read, (kv heads, keys, head_dim) f16; stages are taken in order."""
        halves, packed = self._halves, self._packed
        if self._unpack is None:
            shown = [halves[:, fill.slots] for fill in view.fills]
            return torch.cat(shown, dim=1) if shown else halves[:, : stage.keys]
        if stage is view.stages[0]:
            if not (view.fills or view.newest):
                self._unpack()
            for fill in view.fills:
                self._copy(view, fill, self._rows, self._unpack.launch.name)
            if packed is not None and self._recent is not None:
                packed[:, : view.border.stop - view.border.start] = halves[:, view.border]
                for fill in view.newest:
                    self._copy(view, fill, self._recent, self._unpack.launch.name.replace("unpack", "newest"))
        elif packed is not None:
            begin, end = stage.packed.start, stage.packed.stop
            halves[:, begin:end] = packed[:, begin - view.border.start : end - view.border.start]
        return halves[:, : stage.keys]

    def _copy(self, view: View, fill: Fill, rows: Tensor, name: str) -> None:
        """Copy a fill out of `rows`. Its kernel is bound once: the host would be slower than the card."""
        if (name, fill.place) not in self._bound:
            assert self._unpack is not None, "rows that are not packed are read in their place"
            args: list[Argument] = [
                At(view.counts, 4 * fill.place), rows[self._together.start :], np.int32(len(self._together)),
                np.int32(rows.shape[1]), self._halves,
            ]  # fmt: skip
            launch = replace(self._unpack.launch, name=name, args=args)
            self._bound[name, fill.place] = self._device.bind([launch])
        self._bound[name, fill.place]()
