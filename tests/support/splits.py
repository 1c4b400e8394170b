"""One attn_split launch of kernels/attention.cu in an engine: its layout, what rows see, its partial results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.cuda.kv import defines as kv_defines
from dflash_core.backends.cuda.layers.split_attention import HeadShape, SplitLaunch, SplitOrder
from dflash_core.tree import ancestors
from support.engines import Array, Engine
from support.heads import Bools, Cache, Floats

PLANES = 3  # split-K partials of the projections
HOPPER = 232_448  # bytes of shared memory that one block may have


def order_for(heads: HeadShape, slots: int, shared_limit: int = HOPPER) -> SplitOrder:
    return SplitOrder.of(heads, slots, 132, shared_limit, trees=True)


def tree_view(parents: list[int], length: int, rows: slice) -> Bools:
    """Which of the slots 0.. up to the last node's the nodes `rows` see."""
    mask = ancestors(parents)[rows, : rows.stop]
    return np.concatenate([np.ones((len(mask), length), bool), mask], axis=1)


@dataclass
class Split:
    """The partial results of one attn_split, and where they lie."""

    launch: SplitLaunch
    out: Array
    stats: Array

    def merged(self) -> Floats:
        """(kv heads, rows, group, head_dim), merged here; splits that no row of the pass reaches were not written."""
        heads = self.launch.heads
        out, stats = self.out.numpy().astype(np.float64), self.stats.numpy().astype(np.float64)
        seen = stats[..., 0] > -np.inf
        top = np.where(seen, stats[..., 0], -np.inf).max(axis=0)
        weight = np.where(seen, np.exp2(stats[..., 0] - top), 0)
        total = np.where(seen, weight * stats[..., 1], 0).sum(axis=0)
        with np.errstate(invalid="ignore"):  # padding rows
            value = np.where(seen[..., None], out * weight[..., None], 0).sum(axis=0) / total[..., None]
        return value.reshape(heads.kv_heads, self.launch.rows, heads.group, heads.head_dim)


def partials(engine: Engine, launch: SplitLaunch) -> tuple[Array, Array]:
    """Room for the sums (parts, kv heads, packed rows, head_dim) and the statistics (.., 2) of an attention."""
    heads = launch.heads
    shape = launch.order.parts, heads.kv_heads, heads.packed_rows(launch.rows)
    return engine.poisoned((*shape, heads.head_dim), np.float32), engine.poisoned((*shape, 2), np.float32)


def split(
    engine: Engine,
    launch: SplitLaunch,
    state: npt.NDArray[np.void],
    q: npt.NDArray[np.float16],
    cache: Cache,
    node0: int = 0,
    window: AttentionWindow = EVERYTHING,
) -> Split:
    windowed = {"WINDOWED": 1} if window.size else {}
    defines = {**launch.defines, "SPLIT_K": PLANES, **kv_defines(launch.order.kv), **windowed}
    out, stats = partials(engine, launch)
    kernel = engine.kernel("attention.cu", "attn_split", defines)
    own, newest = cache.loaded(engine)
    args = [engine.array(state), np.int32(node0), np.int32(launch.rows), np.int32(launch.order.splits)]
    args += [engine.array(q), *own]
    shown = [engine.array(np.array([window.size, window.sinks], np.int32))] if window.size else []
    kernel(launch.grid, launch.block, [*args, out, stats, *newest, *shown], shared=launch.shared)
    return Split(launch, out, stats)
