"""Experts on a card against float64: scores, choices, the work list, products of every format by the pairs' experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dflash_core.backends.cuda.activations import F16, INT8, Rounding
from dflash_core.backends.cuda.expert_plan import (
    COLUMNS,
    ENTRY_BYTES,
    ExpertPlan,
    ExpertProduct,
    Slabs,
)
from dflash_core.backends.cuda.layers.experts import ROUTE_THREADS
from dflash_core.backends.cuda.plan import Card, KernelConfig, Product, Shape
from dflash_core.backends.cuda.repack import TILE_TYPES, repack, tile_type
from dflash_core.formats.quants import to_float32
from support import acts
from support.blocks import random_blocks
from support.engines import Engine
from support.matmuls import seen_f16, seen_q8

ROWS = 64  # that a buffer of a pass holds
PLANES = Rounding(planes=2)
CARD, AS_PLANNED = Card(multiprocessors=3, shared_bytes=227 << 10), KernelConfig()
ENTRY = np.dtype([("expert", "<u2"), ("count", "<u2"), ("pair", "<u2", COLUMNS)])
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


def silu(x: Float64) -> Float64:
    return x / (1 + np.exp(-x))


def score(engine: Engine, x: Float32, weight: Float32, gate: Float32 | None, live: int, turn: int) -> Float32:
    count = len(weight) + (gate is not None)
    defines = {"WIDTH": x.shape[1], "EXPERTS": len(weight), "TURN": turn, **({} if gate is None else {"SHARED": 1})}
    scores = engine.poisoned((len(x), count), np.float32)
    gates = np.uint64(0) if gate is None else engine.array(gate)
    args = [engine.array(x), engine.array(weight), gates, scores, np.int32(len(x)),
            engine.array(np.array([live], np.int32)), np.int32(0)]  # fmt: skip
    engine.kernel("router.cu", "router", defines)((-(-count // 2), -(-len(x) // turn)), 64, args)
    return scores.numpy()


@pytest.mark.parametrize(("width", "experts"), [(32, 5), (2048, 9), (3072, 4)])
def test_scores_have_one_order_at_every_width(
    engine: Engine, rng: np.random.Generator, width: int, experts: int
) -> None:
    x = rng.normal(size=(19, width)).astype(np.float32)
    weight, gate = (rng.normal(size=shape).astype(np.float32) for shape in ((experts, width), (width,)))
    found = score(engine, x, weight, gate, 19, 8)
    expected = x.astype(np.float64) @ np.vstack([weight, gate]).T.astype(np.float64)
    assert np.abs(found - expected).max() < 2e-6 * np.abs(expected).max() * np.sqrt(width)
    assert np.array_equal(score(engine, x[:1], weight, gate, 1, 1), found[:1])
    assert np.array_equal(score(engine, x[:5], weight, gate, 5, 5), found[:5])
    assert np.array_equal(score(engine, x, weight, None, 19, 8), found[:, :-1])
    assert np.isnan(score(engine, x, weight, gate, 10, 8)[10:]).all()  # rows that are not live are not written


@dataclass
class Routed:
    """The results of `route` for a pass."""

    work: Any
    weights: Any
    entries: npt.NDArray[Any]
    shared: int
    ranks: int
    defines: dict[str, int]
    scored: tuple[Any, ...]  # the arguments of a product that routes its one row

    @property
    def pairs(self) -> dict[tuple[int, int], int]:
        """(rank, row) to expert."""
        return {
            (int(pair) // ROWS, int(pair) % ROWS): int(entry["expert"])
            for entry in self.entries
            for pair in entry["pair"][: entry["count"]]
        }


def route(
    engine: Engine, scores: Float32, used: int, *, shared: bool = False, live: int | None = None, whole: bool = False,
    scale: float = 1.0,
) -> Routed:  # fmt: skip
    rows, ranks = len(scores), used + shared
    experts = scores.shape[1] - shared
    defines = {"WIDTH": 32, "EXPERTS": experts, "USED": used, "ALL": int(whole), **({"SHARED": 1} if shared else {})}
    work = engine.poisoned((8 + ENTRY_BYTES * (ROWS * used + ROWS // COLUMNS),), np.uint8)
    weights = engine.poisoned((ranks, ROWS), np.float32)
    count = engine.array(np.array([3 + (rows if live is None else live)], np.int32))
    given, factor = engine.array(scores), np.float32(scale)
    args = [given, factor, work, weights, np.int32(rows), count, np.int32(3)]
    engine.kernel("router.cu", "route", defines)(1, ROUTE_THREADS, args)
    data = work.numpy()
    first, total = np.frombuffer(data[:8].tobytes(), np.int32)
    entries = np.frombuffer(data[8 : 8 + int(total) * ENTRY_BYTES].tobytes(), ENTRY)
    return Routed(work, weights, entries, int(first), ranks, defines, (given, factor, count, np.int32(3)))


ROUTES = ((5, 2, 1, False), (256, 8, 64, True), (16, 16, 9, True), (300, 10, 33, False), (1024, 32, 9, True))


# Each normed in one of two ways, the largest in both; with `full` all.
@pytest.mark.parametrize(
    ("experts", "used", "rows", "shared", "whole"),
    [
        pytest.param(
            *one,
            whole,
            id="-".join(map(str, one)) + ("-all" if whole else "-chosen"),
            marks=() if at % 2 == whole or one is ROUTES[-1] else pytest.mark.full,
        )
        for whole in (False, True)
        for at, one in enumerate(ROUTES)
    ],
)
def test_the_best_are_chosen_and_sorted_by_expert(
    engine: Engine, rng: np.random.Generator, experts: int, used: int, rows: int, shared: bool, whole: bool
) -> None:
    scores = rng.integers(-20, 20, (rows, experts + shared)).astype(np.float32) / 4  # with many ties
    found = route(engine, scores, used, shared=shared, whole=whole, scale=2.5)
    own = scores[:, :experts].astype(np.float64)
    order = np.argsort(-own, axis=1, kind="stable")[:, :used]
    expected = {(rank, row): int(order[row, rank]) for row in range(rows) for rank in range(used)}
    if shared:
        expected |= {(used, row): 0 for row in range(rows)}
    assert found.pairs == expected
    best = np.take_along_axis(own, order, axis=1)
    total = np.exp(own if whole else best).sum(1, keepdims=True)
    weights = found.weights.numpy()[:, :rows].T
    assert np.abs(weights[:, :used] - 2.5 * np.exp(best) / total).max() < 1e-5
    if shared:
        assert np.abs(weights[:, used] - 1 / (1 + np.exp(-scores[:, -1].astype(np.float64)))).max() < 1e-5
    assert found.shared == shared * -(-rows // COLUMNS)
    assert (np.diff(found.entries["expert"][found.shared :].astype(int)) >= 0).all()
    assert sum(entry["count"] for entry in found.entries) == rows * found.ranks  # each pair once


def test_rows_that_are_not_live_take_no_expert(engine: Engine, rng: np.random.Generator) -> None:
    scores = rng.normal(size=(16, 33)).astype(np.float32)
    for live in (0, 1, 9):
        found = route(engine, scores, 3, shared=True, live=live)
        assert {row for _, row in found.pairs} == set(range(live))
        assert len(found.pairs) == 4 * live


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_a_score_that_is_not_finite_shows_in_its_own_row(
    engine: Engine, rng: np.random.Generator, value: float
) -> None:
    scores = rng.normal(size=(3, 64)).astype(np.float32)
    scores[1, 40] = value
    weights = route(engine, scores, 4).weights.numpy()[:, :3]
    assert np.isfinite(weights).all(axis=0).tolist() == [True, False, True]


@dataclass
class Layer:
    """Matrices of a layer of experts: dense float64 by (kind, matrix), and packed in the engine."""

    product: ExpertProduct
    dense: list[list[Float64]]
    packed: list[list[Any]]

    def pack(self, plan: ExpertPlan) -> np.void:
        data = plan.pack([[array.address for array in kind] for kind in self.packed])
        return np.frombuffer(data, f"V{len(data)}")[0]


def slabs(
    engine: Engine, rng: np.random.Generator, count: int, columns: int, types: list[tuple[str, int]]
) -> tuple[Slabs, list[Float64], list[Any]]:
    dense, packed = [], []
    for name, rows in types:
        raw = random_blocks(rng, name, count * rows, columns)
        dense.append(to_float32(raw, name)[:, :columns].astype(np.float64).reshape(count, rows, columns))
        packed.append(engine.array(repack(torch.from_numpy(raw), name, columns).numpy()))
    return Slabs(tuple(Shape(name, rows) for name, rows in types), columns, count), dense, packed


def layer(
    engine: Engine, rng: np.random.Generator, routed: tuple[int, int, list[tuple[str, int]]], used: int,
    shared: tuple[int, list[tuple[str, int]]] | None, rounding: Rounding,
) -> Layer:  # fmt: skip
    """`routed`: experts, columns and matrices; `shared`: columns and matrices."""
    own = slabs(engine, rng, *routed)
    of_all = slabs(engine, rng, 1, *shared) if shared else None
    parts = (own, of_all) if of_all else (own,)
    product = ExpertProduct(own[0], used, of_all[0] if of_all else None, rounding)
    return Layer(product, [part[1] for part in parts], [part[2] for part in parts])


def launch(
    engine: Engine, name: str, plan: ExpertPlan, rows: int, routed: Routed, work: list[Any], args: list[Any],
    stride: int, table: np.void,
) -> Float32:  # fmt: skip
    """`work`: what the kernel takes of the pass's routing, unless it routes its one row itself."""
    out = engine.poisoned((routed.ranks, rows, stride), np.float32)
    defines = plan.defines(rows) | ({"CHOOSES": 1, **routed.defines} if rows == 1 else {})
    more = [*args, out, np.int32(rows), *routed.scored] if rows == 1 else [*work, *args, out, np.int32(rows)]
    kernel = engine.kernel(f"{name}.cu", name, defines)
    kernel(plan.grid, plan.warps * 32, [table, *more], shared=plan.shared_bytes)
    return out.numpy()


def multiply_in(engine: Engine, of: Layer, x: Float32, routed: Routed, way: KernelConfig = AS_PLANNED) -> Float32:
    """(ranks, rows, stride), NaN where nothing was written."""
    plan, rows = ExpertPlan(of.product, replace(CARD, config=way)), len(x)
    forms = {"PLANE_BITS": 0, "SPANS": 1, **plan.forms}
    q8 = engine.array(acts.pack_q8(x, int(str(forms["PLANE_BITS"])), 1)) if plan.needs_q8 else np.uint64(0)
    f16 = engine.array(acts.pack_f16(x)) if plan.needs_f16 else np.uint64(0)
    return launch(engine, "experts_in", plan, rows, routed, [routed.work], [q8, f16], plan.stride, of.pack(plan))


def multiply_out(engine: Engine, of: Layer, inner: Float32, routed: Routed, way: KernelConfig = AS_PLANNED) -> Float32:
    plan, (_, rows, stride) = ExpertPlan(of.product, replace(CARD, config=way)), inner.shape
    work, args = [routed.work, routed.weights], [engine.array(inner), np.int32(stride)]
    return launch(engine, "experts_out", plan, rows, routed, work, args, plan.stride, of.pack(plan))


def seen(x: Float32, name: str, product: ExpertProduct) -> Float64:
    """Activations as a product with a matrix of this type rounds them."""
    if product.rounding.half or tile_type(name).half_activations:
        return seen_f16(x)
    return seen_q8(x, Product(product.shapes, 0, product.rounding).plane_bits, 1)


def check(found: Float32, of: Layer, routed: Routed, inputs: Float32, weights: Float32 | None) -> None:
    """`inputs`: (ranks, rows, columns)."""
    used = of.product.used
    for (rank, row), expert in routed.pairs.items():
        kind, at = int(rank >= used), 0
        for shape, dense in zip(of.product.kinds[kind].shapes, of.dense[kind]):
            columns = of.product.kinds[kind].columns
            x = inputs[rank, row, :columns][None]
            expected = dense[expert] @ seen(x, shape.type, of.product)[0]
            if weights is not None:
                expected = expected * weights[rank, row]
            got = found[rank, row, at : at + shape.rows]
            # Tensor cores cut sums of floats off where the emulator rounds them, and K is in one piece here.
            bound = 1e-5 if tile_type(shape.type).half_activations else 2e-6
            assert np.abs(got - expected).max() <= bound * np.abs(expected).max(), (rank, row, shape)
            at += shape.rows


QUICK = ("Q4_K", "BF16")
FORMATS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in (*TILE_TYPES, "BF16")]
ROUNDINGS = [pytest.param(rounding, id=name) for name, rounding in {"q8": INT8, "planes": PLANES, "f16": F16}.items()]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format(engine: Engine, rng: np.random.Generator, name: str, rounding: Rounding) -> None:
    of = layer(engine, rng, (4, 768, [(name, 32), (name, 32)]), 2, None, rounding)
    x = rng.normal(size=(5, 768)).astype(np.float32)
    routed = route(engine, rng.normal(size=(5, 4)).astype(np.float32), 2)
    found = multiply_in(engine, of, x, routed)
    check(found, of, routed, np.broadcast_to(x, (2, *x.shape)), None)


MIXED = {
    "k-quants": ([("Q4_K", 48), ("Q5_K", 48)], [("Q8_0", 16), ("Q8_0", 16)]),
    "fused-and-halves": ([("IQ3_S", 96)], [("F16", 80)]),
    "floats": ([("Q6_K", 16), ("F32", 16)], None),
}


# Each with one rounding; with `full` with both.
@pytest.mark.parametrize(
    ("own", "of_all", "rounding"),
    [
        pytest.param(*types, rounding, id=f"{name}-{way}", marks=() if turn == at % 2 else pytest.mark.full)
        for turn, (way, rounding) in enumerate({"q8": INT8, "f16": F16}.items())
        for at, (name, types) in enumerate(MIXED.items())
    ],
)
def test_gate_and_up_of_mixed_types_at_every_width(
    engine: Engine, rng: np.random.Generator, own: list[tuple[str, int]], of_all: list[tuple[str, int]] | None,
    rounding: Rounding,
) -> None:  # fmt: skip
    of = layer(engine, rng, (6, 1280, own), 3, (1280, of_all) if of_all else None, rounding)
    x = rng.normal(size=(40, 1280)).astype(np.float32)
    scores = rng.normal(size=(40, 6 + bool(of_all))).astype(np.float32)
    routed = route(engine, scores, 3, shared=bool(of_all))
    widest = multiply_in(engine, of, x, routed)
    check(widest, of, routed, np.broadcast_to(x, (of.product.ranks, *x.shape)), None)
    for rows in (1, 2, 17):
        narrow = multiply_in(engine, of, x[:rows], route(engine, scores[:rows], 3, shared=bool(of_all)))
        assert np.array_equal(narrow.view(np.uint32), np.ascontiguousarray(widest[:, :rows]).view(np.uint32))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(
    ("width", "own", "shared", "of_all"),
    [
        (512, "Q5_K", 256, "Q8_0"),
        (32, "F16", 64, "F16"),
        pytest.param(768, "Q6_K", 0, "", marks=pytest.mark.full),
        pytest.param(256, "IQ4_XS", 512, "Q4_K", marks=pytest.mark.full),
    ],
)
def test_down_of_silu_gate_times_up(
    engine: Engine, rng: np.random.Generator, width: int, own: str, shared: int, of_all: str, rounding: Rounding
) -> None:
    of = layer(engine, rng, (5, width, [(own, 80)]), 2, (shared, [(of_all, 80)]) if shared else None, rounding)
    stride, ranks = 2 * max(width, shared), of.product.ranks
    inner = rng.normal(size=(ranks, 21, stride)).astype(np.float32)
    scores = rng.normal(size=(21, 5 + bool(shared))).astype(np.float32)
    routed = route(engine, scores, 2, shared=bool(shared))
    widest = multiply_out(engine, of, inner, routed)
    wide = inner.astype(np.float64)
    x = np.zeros((ranks, 21, max(width, shared)))
    x[:2, :, :width] = silu(wide[:2, :, :width]) * wide[:2, :, width : 2 * width]
    if shared:
        x[2, :, :shared] = silu(wide[2, :, :shared]) * wide[2, :, shared : 2 * shared]
    weights = routed.weights.numpy()
    for (rank, row), expert in routed.pairs.items():
        kind = int(rank >= 2)
        inputs = x[rank, row, : (width, shared)[kind]][None].astype(np.float32)
        expected = of.dense[kind][0][expert] @ seen(inputs, (own, of_all)[kind], of.product)[0] * weights[rank, row]
        # The rounding of silu may change the integer that an input becomes.
        assert np.abs(widest[rank, row, :80] - expected).max() < 1e-2 * np.abs(expected).max()
    for rows in (1, 6):
        narrow = multiply_out(
            engine, of, np.ascontiguousarray(inner[:, :rows]), route(engine, scores[:rows], 2, shared=bool(shared))
        )
        assert np.array_equal(narrow.view(np.uint32), np.ascontiguousarray(widest[:, :rows]).view(np.uint32))


def test_nothing_is_written_for_rows_that_are_not_live(engine: Engine, rng: np.random.Generator) -> None:
    up, down = (layer(engine, rng, (4, 256, [("Q4_K", 32)] * count), 2, None, INT8) for count in (2, 1))
    for rows, live in ((8, 3), (1, 0)):
        x, inner = (rng.normal(size=shape).astype(np.float32) for shape in ((rows, 256), (2, rows, 512)))
        routed = route(engine, rng.normal(size=(rows, 4)).astype(np.float32), 2, live=live)
        for found in (multiply_in(engine, up, x, routed), multiply_out(engine, down, inner, routed)):
            assert np.isfinite(found[:, :live]).all()
            assert np.isnan(found[:, live:]).all()
