"""The keys, or values, that a prompt's rows see: those of the cache, or copies of them as f16 where it is packed, and
behind these the halves of a recent window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.chunk import Chunk, Stage, View
from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import WARP, Argument, At, Device, Launch
from dflash_core.backends.cuda.layers.split_attention import PREPARE_WARPS
from dflash_core.backends.cuda.products import Op
from dflash_core.cache_types import F16, CacheType

UNPACK_BLOCKS = 1024  # thread blocks of attn_unpack_keys; they loop over the rows


@dataclass(frozen=True, slots=True)
class VisibleRows:
    """Of the kv heads `together`: `rows` of the whole cache, `halves` of these heads, and the operation that unpacks
    them all if the cache is packed. `recent`: the ring of a recent window."""

    device: Device
    rows: Tensor
    together: range
    halves: Tensor
    unpack: Op | None
    recent: Tensor | None = None

    @staticmethod
    def pair(
        device: Device,
        chunk: Chunk,
        together: range,
        kv: KVCache,
        place: int,
        copies: Iterable[Tensor],
        defines: Mapping[str, object],
    ) -> tuple[VisibleRows, VisibleRows]:
        """The keys and the values of a layer, of kv heads `together`. `copies`: for each of the two that is packed, to
        where a kernel of attention_rows.cu unpacks it."""
        left, newest = iter(copies), kv.newest

        def of(rows: Tensor, name: str, kind: CacheType, recent: Tensor | None) -> VisibleRows:
            if kind == F16.k:
                return VisibleRows(device, rows, together, rows[together.start : together.stop], None)
            copy, count, slots = next(left), np.int32(len(together)), np.int32(rows.shape[1])
            to: list[Argument] = [chunk.count, rows[together.start :], count, slots, copy]
            launch = Launch("attention_rows.cu", name, defines, UNPACK_BLOCKS, WARP * PREPARE_WARPS, to)
            return VisibleRows(device, rows, together, copy, chunk.ops.add(launch), recent)

        keys = of(kv.k[place], "attn_unpack_keys", kv.kv.k, newest.k[place] if newest else None)
        return keys, of(kv.v[place], "attn_unpack_values", kv.kv.v, newest.v[place] if newest else None)

    def seen(self, view: View, stage: Stage) -> Tensor:
        """What the rows of a stage read, (kv heads, keys, head_dim) f16; stages are taken in order."""
        halves = self.halves
        if self.unpack is None:
            shown = [halves[:, fill.slots] for fill in stage.fills]
            return torch.cat(shown, dim=1) if shown else halves[:, : stage.keys]
        if not stage.fills and stage is view.stages[0]:
            self.unpack()
        for fill in stage.fills:
            launch, rows, name = self.unpack.launch, self.rows, self.unpack.launch.name
            if fill.newest:
                assert self.recent is not None, "halves of a cache without any"
                rows, name = self.recent, name.replace("unpack", "newest")
            begin = self.together.start * rows.shape[1] + fill.slots.start
            some: list[Argument] = [
                fill.counts, At(rows, begin * rows.shape[-1]), np.int32(len(self.together)), np.int32(rows.shape[1]),
                At(halves, fill.to * halves.shape[-1]),
            ]  # fmt: skip
            self.device.bind([replace(launch, name=name, args=some)])()
        return halves[:, : stage.keys]
