"""Split attention alone, on this card: microseconds of a layer by cache type, context length, rows and order.

The caches are those of all layers of a model that see every position, so that each comes from memory as in a step.
attn_split and attn_combine of all layers are recorded in a graph; a figure is the median over replays, of one layer.
Plain decoding has attn_single_row in place of attn_split, which one row has only after a tree's full passes.

    python -m tools.bench.attention [--model 27b] [--kv f16,q8_0] [--depths 200,32768] [--rows 1,24] [--window 4096]
        [ORDER ...]

An order is `auto`, what sessions take, or changes of it by commas, such as `splits=33` or `column_warps=4,stages=2`:
splits, column_warps, tile and blocks as in SplitOrder; stages and halves (half_tiles) as in SplitLaunch;
row_warps and, beside it, warps (column_warps) and once as in WarpLayout.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dflash_core.arch.kinds import Attention
from dflash_core.attention_window import AttentionWindow
from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.kv import KVCache, defines, ring_slots
from dflash_core.backends.cuda.launch import Launch
from dflash_core.backends.cuda.layers.attention import COMBINE_THREADS, slots_of
from dflash_core.backends.cuda.layers.split_attention import HeadShape, SplitLaunch, SplitOrder, Splits, WarpLayout
from dflash_core.backends.cuda.products import Arena
from dflash_core.backends.cuda.repack import GROUP
from dflash_core.backends.cuda.runtime import seconds_of
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.bench.family_models import MODELS
from dflash_core.cache_types import RECENT_STEP, CachePair
from dflash_core.errors import DFlashError
from tools.bench.kernels import acts_for
from tools.bench.tool import run_tool

REPLAYS = 21
PARTS = {"stages": "stages", "halves": "half_tiles"}  # of a SplitLaunch


class Layers:
    """The caches of all attention layers of a model that have this window of their own, else of those that have none,
    with `depth` positions of no meaning, and launches over them."""

    def __init__(self, device: CudaDevice, kv: CachePair, depth: int, window: int = 0, model: str = "27b") -> None:
        every = MODELS[model].target().of(Attention)
        mixers = [mixer for mixer in every if mixer.window == window] or [one for one in every if not one.window]
        spec, self.device, self.count = mixers[0], device, len(mixers)
        self.heads = HeadShape(spec.head_dim, spec.heads, spec.kv_heads, spec.rotary)
        self.slots, on = slots_of(depth), device.torch_device
        recent = ring_slots(kv.recent + RECENT_STEP, PASS_ROWS, self.slots)
        self.kv = KVCache(self.count, spec.kv_heads, self.slots, spec.head_dim, on, kv, recent_slots=recent)
        self.kv.fill(0, depth)
        card = device.card
        self.order = SplitOrder.of(self.heads, self.slots, card.multiprocessors, card.shared_bytes, trees=True, kv=kv)
        self.state = DeviceState(on)
        self.state.host["length"] = depth
        shown = AttentionWindow.of(window)
        self.window = torch.tensor((shown.size, shown.sinks), dtype=torch.int32, device=on) if window else None
        columns = spec.heads * spec.head_dim
        self.acts = acts_for(columns, on)
        self.gates = torch.zeros(PASS_ROWS, 2 * columns + 2 * spec.kv_heads * spec.head_dim, device=on)

    def launches(self, order: SplitOrder, launch: SplitLaunch, rows: int) -> Iterator[Launch]:
        """Every layer."""
        heads, count, zero = self.heads, np.int32(rows), np.int32(0)
        room = Arena.of(Arena.need(Splits.pieces(order, heads)), self.device.torch_device)
        splits = Splits(order, heads, room)
        splits.q.normal_()
        options = {**launch.defines, "SPLIT_K": 1, **defines(order.kv)}
        windowed, shown = ({}, ()) if self.window is None else ({"WINDOWED": 1}, (self.window,))
        for layer in range(self.count):
            yield Launch(
                "attention.cu", "attn_split", {**options, **windowed}, launch.grid, launch.block,
                [self.state.pointer, zero, count, np.int32(order.splits), splits.q, *self.kv.layer(layer), splits.out,
                 splits.stats, *self.kv.recent(layer), *shown],
                launch.shared,
            )  # fmt: skip
            yield Launch(
                "attention.cu", "attn_combine", options, (heads.heads * heads.head_dim // GROUP, rows), COMBINE_THREADS,
                [self.state.pointer, zero, splits.out, splits.stats, np.int32(order.splits), self.gates, count,
                 np.int32(heads.kv_heads), self.acts.q8, self.acts.f16],
            )  # fmt: skip

    def ordered(self, changes: str, rows: int) -> tuple[SplitOrder, SplitLaunch]:
        """The order with `changes`, and its launch. Raises DFlashError."""
        found: dict[str, int] = {}
        for name, _, value in (part.partition("=") for part in changes.split(",") if part != "auto"):
            known = ("splits", "column_warps", "tile", "blocks", "row_warps", "warps", "once", *PARTS)
            if name not in known or not value.isdigit():
                raise DFlashError(f"order {changes!r}: expected auto, or such as splits=28,column_warps=8,stages=3")
            found[name] = int(value)
        parts: dict[str, Any] = {PARTS[name]: found.pop(name) for name in PARTS if name in found}
        order = self.order
        order = replace(
            order,
            splits=found.get("splits", order.splits),
            column_warps=found.get("column_warps", order.column_warps),
            tile=found.get("tile", order.tile),
            blocks=found.get("blocks", order.blocks),
        )
        limit = self.device.card.shared_bytes
        if row_warps := found.get("row_warps", 0):
            layout = WarpLayout(row_warps, found.get("warps", order.column_warps), bool(found.get("once", 0)))
            launch = SplitLaunch.laid(self.heads, order, rows, layout, limit)
        else:
            launch = SplitLaunch.of(self.heads, order, rows, limit)
        return order, replace(launch, **parts)


def compare(
    device: CudaDevice,
    pairs: Sequence[CachePair],
    depths: Sequence[int],
    widths: Sequence[int],
    orders: Sequence[str],
    window: int = 0,
    model: str = "27b",
    branches: int = 0,
) -> Iterator[str]:
    """Lines of a table: microseconds of a layer, and the bytes of keys and values in that time."""
    with device.stream():
        for kv in pairs:
            for depth in depths:
                layers = Layers(device, kv, depth, window, model)
                for rows in widths:
                    spine = max(rows - branches, 1)  # the other rows are children of its nodes, in turn
                    parents = [*range(-1, spine - 1), *(at % spine for at in range(rows - spine))]
                    layers.state.stage_tree([0] * rows, parents)
                    layers.state.push()
                    for name in orders:
                        order, launch = layers.ordered(name, rows)
                        run = device.record("attention", device.bind(list(layers.launches(order, launch, rows))))
                        run()
                        seconds = statistics.median(seconds_of(device.runtime, run) for _ in range(REPLAYS))
                        us = seconds * 1e6 / layers.count
                        rate = depth * layers.heads.kv_heads * kv.row_bytes(layers.heads.head_dim) / us / 1e6
                        layout = launch.layout
                        warps = f"{layout.row_warps} x {layout.column_warps} warps of {launch.row_tiles} tiles"
                        taken = f"{order.splits} splits, {warps}, {launch.stages} stages, {launch.half_tiles} of halves"
                        yield f"{kv!s:12} {depth:>8,} rows {rows:<3} {name:27} {us:8.2f} us {rate:6.2f} TB/s  ({taken})"
                del layers
                torch.cuda.empty_cache()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="27b", help="whose shapes")
    parser.add_argument("--kv", default="f16,bf16,q8_0,q5_0,q4_0,tq3_0", help="types, by commas")
    parser.add_argument("--depths", default="200,16384,32768", help="positions")
    parser.add_argument("--rows", default="1,24", help="rows of a pass")
    parser.add_argument(
        "--window", type=int, default=0, help="positions of an attention window, and layers with it; 0 is all"
    )
    parser.add_argument("--branches", type=int, default=0, help="rows that are not on the tree's first chain")
    parser.add_argument("orders", nargs="*", default=["auto"], metavar="ORDER")
    options = parser.parse_args()
    pairs = [CachePair.parse(name) for name in options.kv.split(",")]
    depths, widths = ([int(part) for part in text.split(",")] for text in (options.depths, options.rows))
    for line in compare(
        CudaDevice(), pairs, depths, widths, options.orders, options.window, options.model, options.branches
    ):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    run_tool(main)
