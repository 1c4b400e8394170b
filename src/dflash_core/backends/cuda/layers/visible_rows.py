"""The keys, or values, that a prompt's rows see: those of the cache, or copies of them as f16 where it is packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.chunk import Chunk, View
from dflash_core.backends.cuda.launch import WARP, Argument, At, Device, Launch
from dflash_core.backends.cuda.layers.split_attention import PREPARE_WARPS
from dflash_core.backends.cuda.products import Op

UNPACK_BLOCKS = 1024  # thread blocks of attn_unpack_keys; they loop over the rows


@dataclass(frozen=True, slots=True)
class VisibleRows:
    """Of the kv heads `together`: `rows` of the whole cache, `halves` of these heads, and the operation that unpacks
    them all if the cache is packed."""

    device: Device
    rows: Tensor
    together: range
    halves: Tensor
    unpack: Op | None

    @staticmethod
    def of(
        device: Device,
        chunk: Chunk,
        together: range,
        rows: Tensor,
        copy: Tensor | None,
        name: str,
        defines: Mapping[str, object],
    ) -> VisibleRows:
        """Rows (kv heads, slots, elements) of a cache. `copy`: where they are unpacked to, by kernel `name` of
        attention_rows.cu, if they are packed."""
        if copy is None:
            return VisibleRows(device, rows, together, rows[together.start : together.stop], None)
        count, slots = np.int32(len(together)), np.int32(rows.shape[1])
        to: list[Argument] = [chunk.count, rows[together.start :], count, slots, copy]
        launch = Launch("attention_rows.cu", name, defines, UNPACK_BLOCKS, WARP * PREPARE_WARPS, to)
        return VisibleRows(device, rows, together, copy, chunk.ops.add(launch))

    def seen(self, view: View, end: int) -> Tensor:
        """What rows before `end` see, (kv heads, keys, head_dim) f16: positions of the view's runs, or all."""
        if view.runs:
            return self._runs(view)
        if self.unpack is not None:
            self.unpack()
        return self.halves[:, :end]

    def _runs(self, view: View) -> Tensor:
        halves = self.halves
        if self.unpack is None:
            return torch.cat([halves[:, run] for run in view.runs], dim=1)
        slots = self.rows.shape[1]
        count, end = np.int32(len(self.together)), 0
        for place, run in enumerate(view.runs):
            begin = self.together.start * slots + run.start
            some: list[Argument] = [
                At(view.run_counts, 2 * place), At(self.rows, begin * self.rows.shape[-1]), count, np.int32(slots),
                At(halves, end * halves.shape[-1]),
            ]  # fmt: skip
            self.device.bind([replace(self.unpack.launch, args=some)])()
            end += run.stop - run.start
        return halves[:, :end]
