"""Attention of trees on this card, by variants of its kernels, in turn in one process: microseconds of a layer.

    python -m tools.bench.tree_attention [--seconds 85] [--only gemma-4-31b]

For each kind of layer of a model, context length, rows and nodes that are not straight: attn_prepare, attn_split and
attn_combine of all layers as a graph. "alone": nothing else runs. "in place": before each layer memory is read as by a
product, whose time is subtracted. The last columns are the three kernels alone. After the tables: clocks of blocks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from dflash_core.arch.kinds import Attention
from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import WARP, Argument, Launch, ceil_div
from dflash_core.backends.cuda.layers.attention import COMBINE_THREADS, AttentionLayers
from dflash_core.backends.cuda.layers.cache_memory import slots_of
from dflash_core.backends.cuda.layers.split_attention import PREPARE_WARPS, SplitLaunch, Splits
from dflash_core.backends.cuda.products import Arena
from dflash_core.backends.cuda.programs import Variant
from dflash_core.backends.cuda.repack import GROUP
from dflash_core.backends.cuda.rings import ring_slots
from dflash_core.backends.cuda.runtime import seconds_of
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.bench.family_models import MODELS
from dflash_core.cache_types import F16
from tools.bench.kernels import acts_for
from tools.bench.tool import run_tool

CONTEXT, ROUNDS, SPLIT_K, STREAM, STAMPS = 33_280, 11, 4, 40 << 20, 32
SPINE = 16
WAYS = ("alone", "in place", "prepare", "split", "combine")


@dataclass(frozen=True)
class Way:
    """A variant: defines of all three kernels; whether attn_prepare, and attn_combine, have as few blocks per
    multiprocessor as make one round, or attn_prepare as many as fit (`free`); stages (0: as sessions have)."""

    name: str
    defines: Mapping[str, object] = field(default_factory=dict)
    prepare: bool = False
    free: bool = False
    combine: bool = False
    stages: int = 0


OLD: Mapping[str, object] = {"OLD_DEAL": 1, "OLD_PREPARE": 1, "OLD_COMBINE": 1}
VARIANTS = (
    Way("before", {"NODES_AT_ONCE": 1, **OLD}),
    Way("nodes at once", OLD),
    Way("+ state loaded at once"),
    Way("+ prepare in one round", prepare=True),
    Way("+ combine in one round", prepare=True, combine=True),
    Way("+ newest prefetched", {"PREFETCH": 1}, prepare=True, combine=True),
    Way("the last with 1 stage", {"PREFETCH": 1}, prepare=True, combine=True, stages=1),
    Way("1 stage beside prepare", {"PREFETCH": 1, "FEWER_REGISTERS": 1}, free=True, combine=True, stages=1),
)


CLOCKED = VARIANTS[0], VARIANTS[4], VARIANTS[5]


def stamped(way: Way) -> Way:
    return replace(way, defines={**way.defines, "STAMPS": 1})


class Layers:
    """All layers of one kind of a model."""

    def __init__(self, device: CudaDevice, spec: Attention, count: int, depth: int) -> None:
        on = device.torch_device
        self.device, self.spec, self.count, self.depth = device, spec, count, depth
        self.layers = AttentionLayers(device, spec, None)  # type: ignore[arg-type]
        self.heads, self.order = self.layers.heads, self.layers.split_order(CONTEXT, F16)
        slots = slots_of(depth)
        ringed = ring_slots(spec.window, 2048 + PASS_ROWS, slots_of(CONTEXT))
        self.kv = KVCache(
            count, spec.kv_heads, ringed if spec.window else slots, spec.head_dim, on, F16, ring=spec.window > 0
        )
        self.kv.k.normal_()
        self.kv.v.normal_()
        self.state = DeviceState(on)
        self.state.host["length"] = depth
        heads = self.heads
        self.width = (
            (2 if spec.gate == "sigmoid" else 1) * heads.heads + (1 if spec.key_is_value else 2) * heads.kv_heads
        ) * heads.head_dim
        self.partials = torch.randn(SPLIT_K * PASS_ROWS * self.width, device=on)
        self.norms = torch.ones(heads.head_dim, device=on), torch.ones(heads.head_dim, device=on)
        self.acts = acts_for(heads.heads * heads.head_dim, on)
        room = Arena.of(Arena.need(Splits.pieces(self.order, heads)), on)
        self.splits = Splits(self.order, heads, room)
        self.splits.q.normal_()
        self.memory = torch.zeros(8 * STREAM, dtype=torch.uint8, device=on)
        self.read = torch.zeros(132 * 8 * 256, dtype=torch.int32, device=on)

    def tree(self, rows: int, own: int) -> None:
        spine = rows - own
        parents = [*range(-1, spine - 1), *(at % spine for at in range(own))]
        self.state.stage_tree([0] * rows, parents)
        self.state.push()
        self.device.synchronize()

    def launches(self, rows: int, way: Way, part: str) -> Iterator[Launch]:
        heads, order, spec, zero, count = self.heads, self.order, self.spec, np.int32(0), np.int32(rows)
        card, kv_heads, splits = self.device.card, np.int32(self.heads.kv_heads), self.splits
        launch = SplitLaunch.of(heads, order, rows, card.shared_bytes)
        if way.stages and launch.layout.row_warps > 1:
            launch = replace(launch, stages=way.stages)
        defines: dict[str, object] = {
            **launch.defines, "SPLIT_K": SPLIT_K, **self.layers.defines, **self.kv.defines, **way.defines
        }  # fmt: skip
        window = self.layers.window
        windowed = {} if window is None else {"WINDOWED": 1}
        blocks = ceil_div(heads.heads + self.layers.made, PREPARE_WARPS), rows
        per_sm = ceil_div(blocks[0] * blocks[1], card.multiprocessors) if way.prepare else 0 if way.free else 2
        merging = heads.heads * heads.head_dim // GROUP, rows
        merged = ceil_div(merging[0] * merging[1], card.multiprocessors) if way.combine else 0
        norms: list[Argument] = [*self.norms, self.layers.frequencies, np.float32(spec.eps), self.layers.query_scale]
        for layer in range(self.count):
            cache = self.kv.layer(layer)
            if part in ("in place", "product"):
                at = self.memory[STREAM * (layer % 8) : STREAM * (layer % 8 + 1)]
                yield Launch("stream.cu", "stream", {}, 132 * 4, 256, [at, np.uint64(STREAM // 16), self.read])
            if part in ("alone", "in place", "prepare"):
                yield Launch(
                    "attention.cu", "attn_prepare", defines, blocks, WARP * PREPARE_WARPS,
                    [self.state.pointer, zero, self.partials, count, kv_heads, *norms, splits.q, *cache],
                    per_sm=per_sm,
                )  # fmt: skip
            if part in ("alone", "in place", "split"):
                yield Launch(
                    "attention.cu", "attn_split", {**defines, **windowed}, launch.grid, launch.block,
                    [self.state.pointer, zero, count, np.int32(order.splits), splits.q, *cache, splits.out,
                     splits.stats, *(() if window is None else (window,))],
                    launch.shared,
                )  # fmt: skip
            if part in ("alone", "in place", "combine"):
                yield Launch(
                    "attention.cu", "attn_combine", defines, merging, COMBINE_THREADS,
                    [self.state.pointer, zero, splits.out, splits.stats, np.int32(order.splits), self.partials, count,
                     kv_heads, self.acts.q8, self.acts.f16],
                    per_sm=merged if merged <= 6 else 0,
                )  # fmt: skip

    def clocks(self, rows: int, way: Way) -> Iterator[str]:
        """What thread 0 of some blocks recorded: the clock of each mark after the first."""
        for at in ("in place",):
            self.device.record("clocks", self.device.bind(list(self.launches(rows, stamped(way), at))))()
            self.device.synchronize()
            blocks = self.order.blocks
            used = (self.order.parts) * self.heads.kv_heads * self.heads.packed_rows(rows) * 2
            marks = self.splits.stats[used : used + 2 * STAMPS * blocks * self.heads.kv_heads].view(torch.int64)
            table = marks.reshape(self.heads.kv_heads, blocks, STAMPS).cpu().numpy()
            for block in sorted({0, blocks // 2, blocks - 1}):
                row = table[1, block]
                row = row[: min(int((row != 0).sum()), 16)]
                yield f" {VARIANTS.index(way)} block {block:2}: {' '.join(str(int(one)) for one in row - row[0])}"


def kinds(only: str | None) -> Iterator[tuple[str, Attention, int]]:
    for model in ("gemma-4-31b", "llama-3.1-8b", "27b"):
        if only in (None, model):
            found = MODELS[model].target().of(Attention)
            for windowed in (True, False):
                some = [one for one in found if bool(one.window) == windowed]
                if some:
                    yield f"{model} {some[0].head_dim}", some[0], len(some)


def measured(layers: Layers, rows: int, runs: Mapping[tuple[str, str], Callable[[], None]]) -> dict[Any, float]:
    taken: dict[Any, list[float]] = {key: [] for key in runs}
    for round_ in range(ROUNDS + 1):
        for key, run in runs.items():
            seconds = seconds_of(layers.device.runtime, run)
            if round_:
                taken[key].append(seconds * 1e6 / layers.count)
    return {key: statistics.median(times) for key, times in taken.items()}


def lines(device: CudaDevice, only: str | None, until: float) -> Iterator[str]:
    begin = time.monotonic()
    cases = [(24, 8), (24, 0), (16, 0), (40, 24)]
    with device.stream():
        programs = []
        for _, spec, _ in kinds(only):
            small = Layers(device, spec, 1, 200)
            for rows, _ in cases:
                for way in (*VARIANTS, *(stamped(one) for one in CLOCKED)):
                    programs += [Variant.of(one.file, one.defines) for one in small.launches(rows, way, "in place")]
        device.programs.compile(programs)
        compiled = time.monotonic() - begin
        yield f"{len(set(programs))} programs compiled after {compiled:.0f} s; us of a layer by variant:"
        for at, way in enumerate(VARIANTS):
            yield f"  {at} {way.name}"
        yield "layers, positions, rows/own, what: " + "".join(f"{at:8}" for at in range(len(VARIANTS)))
        later = []
        for depth in (200, 2048, 8192):
            for name, spec, count in kinds(only):
                layers = Layers(device, spec, count, depth)
                for rows, own in cases:
                    if depth > 200 and rows == 16:
                        continue
                    if time.monotonic() > until:
                        yield f"out of time: no {name} at {depth:,} with {rows} rows"
                        continue
                    layers.tree(rows, own)
                    parts = WAYS if depth == 200 and rows == 24 and own else WAYS[:2]
                    runs = {
                        (way.name, part): device.record(
                            "attention", device.bind(list(layers.launches(rows, way, part)))
                        )
                        for way in VARIANTS
                        for part in parts
                    }
                    product = list(layers.launches(rows, VARIANTS[0], "product"))
                    runs["", "product"] = device.record("product", device.bind(product))
                    found = measured(layers, rows, runs)
                    short = name.removeprefix("llama-3.1-").replace("gemma-4-31b", "gemma")
                    for part in parts:
                        less = found["", "product"] if part == "in place" else 0.0
                        figures = "".join(f"{found[way.name, part] - less:8.2f}" for way in VARIANTS)
                        yield f"{short} {depth} {rows}/{own} {part:9}{figures}"
                    if rows == 24 and own and depth == 200:
                        later.append(f"{name}, {depth:,} positions, 24 rows, 8 own; clocks after a block began:")
                        for way in CLOCKED:
                            later += layers.clocks(rows, way)
                del layers
                torch.cuda.empty_cache()
        yield from later
        yield f"{time.monotonic() - begin:.0f} s in all"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=85)
    parser.add_argument("--only", default=None)
    options = parser.parse_args()
    for line in lines(CudaDevice(), options.only, time.monotonic() + options.seconds):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    run_tool(main)
