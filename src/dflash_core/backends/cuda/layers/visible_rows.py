"""The keys, or values, that a prompt's rows see: those of the cache, or copies of them as f16 where it is packed, and
behind these the halves of a recent window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.chunk import Chunk, View
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

    def seen(self, view: View, end: int) -> Tensor:
        """What rows before `end` see, (kv heads, keys, head_dim) f16: positions of the view's runs, or all."""
        if view.runs or view.recent:
            return self._runs(view)
        if self.unpack is not None:
            self.unpack()
        return self.halves[:, :end]

    def _runs(self, view: View) -> Tensor:
        halves = self.halves
        if self.unpack is None:
            return torch.cat([halves[:, run] for run in view.runs], dim=1)
        launch, count, end = self.unpack.launch, np.int32(len(self.together)), 0
        parts = [(self.rows, run, launch.name) for run in view.runs]
        if self.recent is not None:
            parts += [(self.recent, run, launch.name.replace("unpack", "newest")) for run in view.recent]
        for place, (rows, run, name) in enumerate(parts):
            begin, slots = self.together.start * rows.shape[1] + run.start, np.int32(rows.shape[1])
            some: list[Argument] = [
                At(view.run_counts, 2 * place), At(rows, begin * rows.shape[-1]), count, slots,
                At(halves, end * halves.shape[-1]),
            ]  # fmt: skip
            self.device.bind([replace(launch, name=name, args=some)])()
            end += run.stop - run.start
        return halves[:, :end]
