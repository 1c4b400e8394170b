"""attention.cu against float64: preparation, split attention after any context, the gated merge."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.cuda.kv import defines as kv_defines
from dflash_core.backends.cuda.layers.attention import COMBINE_THREADS
from dflash_core.backends.cuda.layers.split_attention import HeadShape, SplitLaunch, SplitOrder, WarpLayout
from dflash_core.cache_types import F16, CachePair
from dflash_core.tree import ancestors
from support.acts import F16_GROUP, acts_f16
from support.engines import At, Engine
from support.grids import full
from support.heads import (
    EPS,
    Cache,
    Floats,
    attention,
    frequencies,
    normed,
    planes,
    queries,
    rotated,
    side_by_side,
)
from support.splits import HOPPER, PLANES, Split, order_for, partials, split, tree_view
from support.steps import random_parents, tree_state

Bytes = npt.NDArray[np.uint8]
GEFORCE, TURING = 101_376, 65_536  # bytes of shared memory that one block may have
SMALL = HeadShape(256, 2, 1, 64)
GROUPS = {2: HeadShape(256, 4, 2, 64), 4: HeadShape(256, 4, 1, 64), 6: HeadShape(256, 12, 2, 64)}
LENGTHS = (0, 1, 63, 64, 65, 1000, 4097)


def combine(
    engine: Engine, part: Split, state: npt.NDArray[np.void], projected: npt.NDArray[np.float32], node0: int = 0
) -> Floats:
    """(rows, heads * head_dim) from the activation buffer; NaN in rows that were not written."""
    launch, heads = part.launch, part.launch.heads
    width = heads.heads * heads.head_dim
    groups = -(-width // 256)
    acts = engine.poisoned((groups, F16_GROUP), np.uint8)
    defines = {**launch.defines, "SPLIT_K": PLANES, **kv_defines(launch.order.kv)}
    kernel = engine.kernel("attention.cu", "attn_combine", defines)
    args = [engine.array(state), np.int32(node0), part.out, part.stats, np.int32(launch.order.splits)]
    args += [engine.array(projected), np.int32(launch.rows), np.int32(heads.kv_heads), np.uint64(0), acts]
    kernel((groups, launch.rows), COMBINE_THREADS, args)
    return acts_f16(acts.numpy(), launch.rows, width)


def apart(projected: npt.NDArray[np.float32], heads: HeadShape) -> tuple[Floats, Floats, Floats, Floats]:
    """Planes of [attn_q | attn_k | attn_v] -> query, gate, key, value, each (heads or kv heads, rows, head_dim)."""
    total, d = projected.astype(np.float64).sum(axis=0), heads.head_dim
    q, k, v = np.split(total, [2 * heads.heads * d, (2 * heads.heads + heads.kv_heads) * d], axis=1)
    query, gate = q.reshape(len(q), heads.heads, 2, d).transpose(2, 1, 0, 3)
    key, value = (x.reshape(len(x), heads.kv_heads, d).transpose(1, 0, 2) for x in (k, v))
    return query, gate, key, value


def projection(rng: np.random.Generator, heads: HeadShape, rows: int) -> npt.NDArray[np.float32]:
    return planes(rng, PLANES, rows, 2 * (heads.heads + heads.kv_heads) * heads.head_dim)


@pytest.mark.parametrize(
    ("heads", "length", "node0"), [(SMALL, 0, 0), (GROUPS[6], 300, 64), (SMALL, 262_079, 0), (SMALL, 262_000, 192)]
)
def test_prepare(engine: Engine, rng: np.random.Generator, heads: HeadShape, length: int, node0: int) -> None:
    rows, d = 8, heads.head_dim
    live = int(rng.integers(1, rows + 1))
    parents = random_parents(node0 + live, rng)
    state = tree_state(parents, length)
    projected = projection(rng, heads, rows)
    q_norm, k_norm = rng.standard_normal((2, d)).astype(np.float32)
    # At long contexts only the slots around the pass have memory; the pointer is moved back by the missing slots.
    first = length if heads.kv_heads == 1 else 0
    slots = length + node0 + rows + 1
    q = engine.poisoned((heads.kv_heads, rows, heads.group, d), np.float16)
    k, v = (engine.poisoned((heads.kv_heads, slots - first, d), np.float16) for _ in range(2))
    launch = SplitLaunch.of(heads, order_for(heads, 4096), rows, HOPPER)
    kernel = engine.kernel("attention.cu", "attn_prepare", {**launch.defines, "SPLIT_K": PLANES})
    args = [engine.array(state), np.int32(node0), engine.array(projected), np.int32(rows), np.int32(heads.kv_heads)]
    args += [engine.array(x) for x in (q_norm, k_norm, frequencies(heads.rotary))]
    args += [np.float32(EPS), np.float32(heads.query_scale), q, At(k, -first * d), At(v, -first * d), np.int32(slots)]
    kernel((-(-(heads.heads + 2 * heads.kv_heads) // 4), rows), 128, args)

    query, _, key, value = (x[:, :live] for x in apart(projected, heads))
    positions = length + ancestors(parents)[node0:].sum(axis=1) - 1
    query = rotated(normed(query, q_norm), positions, heads.rotary) * heads.query_scale
    key = rotated(normed(key, k_norm), positions, heads.rotary)
    query = query.reshape(heads.kv_heads, heads.group, live, d).transpose(0, 2, 1, 3)
    at = length + node0 - first
    for found, expected in (
        (q.numpy()[:, :live], query),
        (k.numpy()[:, at : at + live], key),
        (v.numpy()[:, at : at + live], value),
    ):
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2**-10, atol=4e-6)
    assert np.isnan(q.numpy()[:, live:]).all(), "a padding row wrote a query"
    for x in (k.numpy(), v.numpy()):
        assert np.isnan(x[:, :at]).all(), "something before the pass was overwritten"
        assert np.isnan(x[:, at + live :]).all(), "a padding row was cached"


# Each group at one width, the largest of them not behind the longest context; with `full` all.
@pytest.mark.parametrize(
    ("group", "width", "length"),
    [
        (group, width, length) if at == turn and (at < 2 or length < LENGTHS[-1]) else full(group, width, length)
        for length in LENGTHS
        for at, group in enumerate(GROUPS)
        for turn, width in enumerate((8, 16, 24))
    ],
)
def test_split_behind_any_context(
    engine: Engine, rng: np.random.Generator, group: int, width: int, length: int
) -> None:
    heads = GROUPS[group]
    n = int(rng.integers(1, width + 1))
    parents = random_parents(n, rng)
    cache = Cache.random(rng, heads, length + n, length + 64)
    q = queries(rng, heads, width, n)
    launch = SplitLaunch.of(heads, order_for(heads, length + 64), width, HOPPER)
    found = split(engine, launch, tree_state(parents, length), q, cache).merged()
    view = tree_view(parents, length, slice(0, n))
    expected, bound = attention(q[:, :n], cache.k[:, : length + n], cache.v[:, : length + n], view)
    assert (np.abs(found[:, :n] - expected) <= bound).all()
    assert np.isnan(found[:, n:]).all(), "a padding row wrote"


# Each limit with one number of warps over the rows; with `full` with both.
@pytest.mark.parametrize(
    ("row_warps", "shared_limit"),
    [
        (warps, limit) if (at + warps) % 2 else full(warps, limit)
        for warps in (1, 2)
        for at, limit in enumerate((HOPPER, GEFORCE, TURING))
    ],
)
def test_every_layout(engine: Engine, rng: np.random.Generator, shared_limit: int, row_warps: int) -> None:
    heads, length, n = GROUPS[6], 500, 24
    parents = random_parents(n, rng)
    cache = Cache.random(rng, heads, length + n, length + 64)
    q = queries(rng, heads, n, n)
    order = order_for(heads, length + 64, shared_limit)
    launch = SplitLaunch.laid(heads, order, n, WarpLayout(row_warps, order.column_warps), shared_limit)
    assert launch.shared <= shared_limit
    found = split(engine, launch, tree_state(parents, length), q, cache).merged()
    expected, bound = attention(
        q, cache.k[:, : length + n], cache.v[:, : length + n], tree_view(parents, length, slice(0, n))
    )
    assert (np.abs(found - expected) <= bound).all()


@pytest.mark.parametrize(("length", "width"), [(900, 24), (32_768, 1), (32_768, 64)])
def test_split_of_a_27b(engine: Engine, rng: np.random.Generator, length: int, width: int) -> None:
    if not engine.real:
        pytest.skip("too much for the emulator; the same code runs there on small shapes")
    heads = HeadShape(256, 24, 4, 64)
    parents = random_parents(width, rng)
    cache = Cache.random(rng, heads, length + width, length + 64)
    q = queries(rng, heads, width, width)
    launch = SplitLaunch.of(heads, order_for(heads, length + 64), width, HOPPER)
    found = split(engine, launch, tree_state(parents, length), q, cache).merged()
    view = tree_view(parents, length, slice(0, width))
    expected, bound = attention(q, cache.k[:, : length + width], cache.v[:, : length + width], view)
    assert (np.abs(found - expected) <= bound).all()


@pytest.mark.parametrize("chunk", [1, 2, 4])
@pytest.mark.parametrize("splits", [1, 3, 40])
def test_any_division_into_splits(engine: Engine, rng: np.random.Generator, splits: int, chunk: int) -> None:
    heads, length, n = SMALL, int(rng.integers(1000, 1200)), 8
    parents = random_parents(n, rng)
    cache = Cache.random(rng, heads, length + n, length + 64)
    q = queries(rng, heads, n, n)
    order = dataclasses.replace(order_for(heads, length + 64), splits=splits, chunk=chunk)
    launch = SplitLaunch.of(heads, order, n, HOPPER)
    found = split(engine, launch, tree_state(parents, length), q, cache).merged()
    view = tree_view(parents, length, slice(0, n))
    expected, bound = attention(q, cache.k[:, : length + n], cache.v[:, : length + n], view)
    assert (np.abs(found - expected) <= bound).all()


@pytest.mark.parametrize("node0", [64, 128, 192])
def test_later_passes_see_earlier_ones(engine: Engine, rng: np.random.Generator, node0: int) -> None:
    heads, length, width = GROUPS[4], int(rng.integers(0, 200)), 64
    n = node0 + int(rng.integers(1, width + 1))
    parents = random_parents(n, rng)
    cache = Cache.random(rng, heads, length + n, length + 256)
    q = queries(rng, heads, width, n - node0)
    launch = SplitLaunch.of(heads, order_for(heads, length + 256), width, HOPPER)
    found = split(engine, launch, tree_state(parents, length), q, cache, node0).merged()
    view = tree_view(parents, length, slice(node0, n))
    expected, bound = attention(q[:, : n - node0], cache.k[:, : length + n], cache.v[:, : length + n], view)
    assert (np.abs(found[:, : n - node0] - expected) <= bound).all()


def test_a_pass_without_nodes_writes_nothing(engine: Engine, rng: np.random.Generator) -> None:
    heads, length = SMALL, 100
    state = tree_state(random_parents(20, rng), length)
    cache = Cache.random(rng, heads, length + 20, length + 256)
    launch = SplitLaunch.of(heads, order_for(heads, 4096), 64, HOPPER)
    part = split(engine, launch, state, queries(rng, heads, 64, 0), cache, node0=64)
    assert np.isnan(part.out.numpy()).all()
    assert np.isnan(part.stats.numpy()).all()
    assert np.isnan(combine(engine, part, state, projection(rng, heads, 64), node0=64)).all()


@pytest.mark.parametrize("group", GROUPS)
def test_combine(engine: Engine, rng: np.random.Generator, group: int) -> None:
    heads, width, length = GROUPS[group], 8, int(rng.integers(0, 700))
    n = int(rng.integers(1, width + 1))
    parents = random_parents(n, rng)
    state = tree_state(parents, length)
    cache = Cache.random(rng, heads, length + n, length + 64)
    part = split(
        engine,
        SplitLaunch.of(heads, order_for(heads, length + 64), width, HOPPER),
        state,
        queries(rng, heads, width, n),
        cache,
    )
    projected = projection(rng, heads, width)
    found = combine(engine, part, state, projected)
    gate = apart(projected, heads)[1].transpose(1, 0, 2).reshape(width, -1)
    expected = side_by_side(part.merged())[:n] / (1 + np.exp(-gate[:n]))
    np.testing.assert_allclose(found[:n], expected, rtol=2**-10, atol=1e-6)
    assert np.isnan(found[n:]).all(), "a padding row wrote"


LAYOUTS: dict[str, list[tuple[int, WarpLayout | None]]] = {
    "f16": [(1, None), (8, None), (24, None), (24, WarpLayout(1, 4)), (8, WarpLayout(2, 4)), (64, None)],
    "q8_0": [
        (1, None),
        (8, None),
        (24, None),
        (24, WarpLayout(1, 8)),
        (8, WarpLayout(3, 4)),
        (8, WarpLayout(3, 4, once=True)),
        (64, None),
    ],
}
LAYOUTS["heads of 512"] = [(1, None), (8, None), (24, None), (24, WarpLayout(3, 4))]
LAYOUTS["q4_0/tq3_0"] = LAYOUTS["bf16"] = LAYOUTS["q4_0+384"] = [(1, None), (24, None), (8, WarpLayout(3, 4))]


@pytest.mark.parametrize(
    ("kv", "length"),
    [
        pytest.param(kv, length, marks=() if length in lengths else pytest.mark.full)
        for kv, lengths in {
            "f16": (0, 700),
            "heads of 512": (700,),
            "q8_0": (130,),
            "q4_0/tq3_0": (700,),
            "bf16": (130,),
            "q4_0+384": (635,),
        }.items()
        for length in (0, 130, 635, 700)
    ],
)
def test_a_row_has_the_same_bits_at_every_width(engine: Engine, rng: np.random.Generator, kv: str, length: int) -> None:
    """Also where the wider pass has more live rows, more live splits and another layout; and with so few blocks that a
    block takes all rows of a split together."""
    large, slots, most = kv == "heads of 512", length + 64, max(width for width, _ in LAYOUTS[kv])
    heads, kinds = (HeadShape(512, 8, 1, 64), F16) if large else (GROUPS[6], CachePair.parse(kv))
    parents = chain_with_branches(most, rng)
    cache = Cache.random(rng, heads, length + most, slots).kept(kinds)
    q, projected = queries(rng, heads, most, most), projection(rng, heads, most)
    order = SplitOrder.of(heads, slots, 132, HOPPER, trees=True, kv=kinds)
    if length == 700:
        order = dataclasses.replace(order, splits=1)  # more tiles in turn than stages
    few = dataclasses.replace(order, blocks=2)
    results = []
    passes = [(order, *one) for one in LAYOUTS[kv]] + [(few, *one) for one in LAYOUTS[kv] if one[0] == 24]
    for dealt, width, layout in passes:
        launch = (
            SplitLaunch.laid(heads, dealt, width, layout, HOPPER)
            if layout
            else SplitLaunch.of(heads, dealt, width, HOPPER)
        )
        n = width - (width > 1)
        state = tree_state(parents[:n], length)
        part = split(engine, launch, state, np.ascontiguousarray(q[:, :width]), cache)
        found = combine(engine, part, state, np.ascontiguousarray(projected[:, :width]))[:n]
        assert np.isfinite(found).all()
        results.append(found)
    widest = max(results, key=len)
    for (dealt, width, layout), found in zip(passes, results, strict=True):
        np.testing.assert_array_equal(found, widest[: len(found)], f"{width} rows, {layout}, {dealt.blocks} blocks")


@pytest.mark.parametrize(
    ("kv", "length", "window"),
    [
        ("f16", 10, 0), ("f16", 55, 0), ("f16", 55, 2), ("heads of 512", 25, 0), ("q8_0", 40, 0),
        full("f16", 62, 0), full("q4_0+384", 400, 0),
    ],
)  # fmt: skip
def test_nodes_that_share_a_piece_have_the_bits_of_nodes_alone(
    engine: Engine, rng: np.random.Generator, kv: str, length: int, window: int
) -> None:
    """Nodes beside a short chain: in one block, where they share pieces, in many, and in blocks of one row warp. Their
    paths end in the tile of the last position, in the next one, or are too long together. Under a window of two, the
    shallow nodes of a piece see a tile that is hidden from its deep ones."""
    large, n = kv == "heads of 512", 24
    heads, kinds = (HeadShape(512, 8, 1, 64), F16) if large else (GROUPS[6], CachePair.parse(kv))
    parents = [*range(-1, 3), *(at % 4 if at < 6 else at - 2 for at in range(4, n))]
    cache = Cache.random(rng, heads, length + n, length + 64).kept(kinds)
    q, projected = queries(rng, heads, n, n), projection(rng, heads, n)
    order = SplitOrder.of(heads, length + 64, 132, HOPPER, trees=True, kv=kinds)
    results = []
    for blocks, layout in ((1, None), (99, None), (99, WarpLayout(1, order.column_warps))):
        dealt = dataclasses.replace(order, blocks=blocks)
        launch = SplitLaunch.of(heads, dealt, n, HOPPER)
        if layout:
            launch = SplitLaunch.laid(heads, dealt, n, layout, HOPPER)
        else:
            assert launch.layout.row_warps > 1
        state = tree_state(parents, length)
        part = split(engine, launch, state, q, cache, window=AttentionWindow(window))
        results.append(combine(engine, part, state, projected))
    for found in results[1:]:
        np.testing.assert_array_equal(found, results[0])


ROOTS = {
    "27b": HeadShape(256, 12, 2, 64), "8b": HeadShape(128, 8, 2, 128), "group-8": HeadShape(256, 8, 1, 64),
    "group-1": HeadShape(64, 2, 2, 64), "group-12": HeadShape(128, 12, 1, 64),
}  # fmt: skip
BLOCKS = (33, 1, 2, 7)
ROOT_LENGTHS = (0, 1, 63, 64, 65, 127, 200, 255, 256, 319, 320, 700, 3000)


@pytest.mark.parametrize(
    ("shape", "gated", "kv", "window", "limit", "lengths"),
    [
        ("27b", True, "f16", EVERYTHING, HOPPER, (0, 64, 319, 700)),
        ("8b", False, "q8_0/q4_0", EVERYTHING, HOPPER, (1, 255, 700)),
        ("8b", True, "q4_0/tq3_0+384", EVERYTHING, HOPPER, (200, 638, 902)),
        full("27b", False, "q8_0/q5_0+512", AttentionWindow(300, 65), HOPPER, (319, 639, 1500)),
        ("group-12", True, "f16", AttentionWindow(100, 70), HOPPER, (63, 700)),
        *(full(shape, at % 2 > 0, kv, EVERYTHING, HOPPER, ROOT_LENGTHS)
          for shape in ROOTS for at, kv in enumerate(("f16", "bf16", "q8_0", "q5_0/f16", "f16/tq3_0", "q4_0"))),
        *(full(shape, at % 2 > 0, kv, window, HOPPER, ROOT_LENGTHS)
          for shape in ("27b", "8b")
          for at, kv in enumerate(("f16", "tq3_0/q8_0"))
          for window in (AttentionWindow(1, 0), AttentionWindow(300, 65))),
        *(full("27b", True, kv, EVERYTHING, limit, (0, 63, 700))
          for kv in ("f16", "q8_0") for limit in (GEFORCE, TURING)),
    ],
)  # fmt: skip
def test_the_root_alone_has_the_bits_of_wider_passes(
    engine: Engine,
    rng: np.random.Generator,
    shape: str,
    gated: bool,
    kv: str,
    window: AttentionWindow,
    limit: int,
    lengths: tuple[int, ...],
) -> None:
    """attn_single_row against attn_prepare and attn_split: parts, and rows of the cache; with any number of blocks."""
    heads, kinds = ROOTS[shape], CachePair.parse(kv)
    for turn, length in enumerate(lengths):
        slots = length + 2
        order = SplitOrder.of(heads, slots, 132, limit, trees=True, kv=kinds)
        launch = SplitLaunch.of(heads, order, 1, limit)
        assert launch.holds_row
        cache = Cache.random(rng, heads, length, slots).kept(kinds)
        for rows in (cache.k, cache.v):
            rows[:, length:] = 0xFF  # no finite number in any type
        root = Root(rng, heads, gated, window)
        expected = root.prepared_and_split(engine, launch, length, cache)
        if length > 300 and order.kv == CachePair.parse("f16"):
            assert np.isfinite(expected[0].view(np.float32)).any()
        for blocks in {BLOCKS[0], BLOCKS[1 + turn % 3]}:
            found = root.alone(engine, launch, length, cache, blocks)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other, f"{length} positions, {blocks} blocks")


def test_the_root_of_a_step_without_nodes_writes_nothing(engine: Engine, rng: np.random.Generator) -> None:
    heads, length = SMALL, 70
    launch = SplitLaunch.of(heads, order_for(heads, length + 2), 1, HOPPER)
    cache = Cache.random(rng, heads, length, length + 2)
    root = Root(rng, heads, True, EVERYTHING)
    *parts, k, v = root.alone(engine, launch, length, cache, 3, n=0)
    assert all(np.isnan(part.view(np.float32)).all() for part in parts)
    np.testing.assert_array_equal(k, cache.k.view(np.uint8))
    np.testing.assert_array_equal(v, cache.v.view(np.uint8))


class Root:
    """One row as a projection leaves it, and the kernels that take it, each on its own copy of a cache."""

    def __init__(self, rng: np.random.Generator, heads: HeadShape, gated: bool, window: AttentionWindow) -> None:
        self.heads, self.window = heads, window
        self.defines = {"SPLIT_K": PLANES}
        self.defines |= {name: 1 for name, wanted in (("UNGATED", not gated), ("WINDOWED", window.size)) if wanted}
        columns = ((1 + gated) * heads.heads + 2 * heads.kv_heads) * heads.head_dim
        self.projected = planes(rng, PLANES, 1, columns)
        self.norms = rng.standard_normal((2, heads.head_dim)).astype(np.float32)

    def prepared_and_split(self, engine: Engine, launch: SplitLaunch, length: int, cache: Cache) -> list[Bytes]:
        defines, state, shown, norms, (own, newest), (out, stats) = self._memory(engine, launch, length, cache, 1)
        kv_heads = self.heads.kv_heads
        q = engine.poisoned((kv_heads, self.heads.group, self.heads.head_dim), np.float16)
        args = [state, np.int32(0), engine.array(self.projected), np.int32(1), np.int32(kv_heads)]
        args += [*norms, q, *own, *newest]
        grid = -(-(self.heads.heads + 2 * kv_heads) // 4)
        engine.kernel("attention.cu", "attn_prepare", defines)(grid, 128, args)
        args = [state, np.int32(0), np.int32(1), np.int32(launch.order.splits), q, *own, out, stats, *newest, *shown]
        engine.kernel("attention.cu", "attn_split", defines)(launch.grid, launch.block, args, shared=launch.shared)
        return [one.numpy().view(np.uint8) for one in (out, stats, *own[:2], *newest[:2])]

    def alone(
        self, engine: Engine, launch: SplitLaunch, length: int, cache: Cache, blocks: int, n: int = 1
    ) -> list[Bytes]:
        defines, state, shown, norms, (own, newest), (out, stats) = self._memory(engine, launch, length, cache, n)
        args = [state, engine.array(self.projected), *norms, np.int32(launch.order.splits), *own]
        args += [out, stats, *newest, *shown]
        kernel = engine.kernel("attention_single_row.cu", "attn_single_row", defines)
        kernel((blocks, self.heads.kv_heads), launch.single_row_block, args, shared=launch.single_row_shared)
        return [one.numpy().view(np.uint8) for one in (out, stats, *own[:2], *newest[:2])]

    def _memory(self, engine: Engine, launch: SplitLaunch, length: int, cache: Cache, n: int) -> tuple[Any, ...]:
        """Defines, the state, the window, arguments for queries and keys, a copy of the cache, room for the parts."""
        heads, size = self.heads, [self.window.size, self.window.sinks]
        shown = [engine.array(np.array(size, np.int32))] if self.window.size else []
        norms = [engine.array(x) for x in (*self.norms, frequencies(heads.rotary))]
        norms += [np.float32(EPS), np.float32(heads.query_scale)]
        state = engine.array(tree_state([-1], length, n=n))
        defines = {**launch.defines, **self.defines, **kv_defines(launch.order.kv)}
        return defines, state, shown, norms, cache.loaded(engine), partials(engine, launch)


def path_to(parents: list[int], node: int) -> list[int]:
    """The node's ancestors and itself, the root first."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def attended(
    engine: Engine,
    launch: SplitLaunch,
    parents: list[int],
    length: int,
    q: npt.NDArray[np.float16],
    cache: Cache,
    projected: npt.NDArray[np.float32],
    node0: int = 0,
) -> Floats:
    """attn_split and attn_combine of a pass over nodes node0.., with that pass's inputs: (rows, width)."""
    rows, at = launch.rows, slice(node0, node0 + launch.rows)
    live = q[:, at].shape[1]
    own_q = np.full((q.shape[0], rows, *q.shape[2:]), np.nan, np.float16)
    own_projected = np.full((PLANES, rows, projected.shape[2]), np.nan, np.float32)
    own_q[:, :live], own_projected[:, :live] = q[:, at], projected[:, at]
    state = tree_state(parents, length)
    part = split(engine, launch, state, own_q, cache, node0)
    return combine(engine, part, state, own_projected, node0)[: min(live, len(parents) - node0)]


def chain_with_branches(n: int, rng: np.random.Generator) -> list[int]:
    """A first chain, then nodes with random parents: half of them continue from the previous node."""
    spine = int(rng.integers(1, n + 1))
    hang = [node - 1 if rng.random() < 0.5 else int(rng.integers(node)) for node in range(spine, n)]
    return [*range(-1, spine - 1), *hang]


def check_bits_of_single_steps(
    engine: Engine, rng: np.random.Generator, heads: HeadShape, parents: list[int], length: int, shared_limit: int
) -> None:
    """Every node of the tree, in passes of any width, against a step of one row after the node's committed path."""
    n = len(parents)
    slots = length + n + 64
    order = order_for(heads, slots, shared_limit)
    cache = Cache.random(rng, heads, length + n, slots)
    q, projected = queries(rng, heads, n, n), projection(rng, heads, n)
    width = 64 if n > 64 else int(rng.choice([w for w in (1, 8, 16, 24, 64) if w >= n]))
    wide = SplitLaunch.of(heads, order, width, shared_limit)
    found = np.concatenate(
        [attended(engine, wide, parents, length, q, cache, projected, node0) for node0 in range(0, n, width)]
    )
    one = SplitLaunch.of(heads, order, 1, shared_limit)
    for node in range(n):
        path = path_to(parents, node)
        slots_of = [*range(length), *(length + at for at in path)]
        alone = Cache(*(np.full_like(x, np.nan) for x in (cache.k, cache.v)))
        for own, tree in ((alone.k, cache.k), (alone.v, cache.v)):
            own[:, : len(slots_of)] = tree[:, slots_of]
        at = slice(node, node + 1)
        expected = attended(engine, one, [-1], len(slots_of) - 1, q[:, at], alone, projected[:, at])
        np.testing.assert_array_equal(found[node], expected[0], f"node {node}, path {path}, after {length}")


LENGTHS_OF_TREES = (0, 1, 15, 31, 47, 62, 63, 64, 120, 127, 250, 255, 319, 500)
BESIDE_BORDERS = (15, 47, 120, 250, 319)


# Lengths at borders under one limit of shared memory, those at a tile's border under each; with `full` all.
@pytest.mark.parametrize(
    ("length", "shared_limit"),
    [
        (length, limit) if length == 63 or (at % 3 == turn and length not in BESIDE_BORDERS) else full(length, limit)
        for at, length in enumerate(LENGTHS_OF_TREES)
        for turn, limit in enumerate((HOPPER, GEFORCE, TURING))
    ],
)
def test_a_tree_has_the_bits_of_single_steps(
    engine: Engine, rng: np.random.Generator, length: int, shared_limit: int
) -> None:
    heads = HeadShape(64, 6, 2, 64) if length % 2 else GROUPS[6]
    n = int(rng.integers(2, 25))
    parents = random_parents(n, rng) if rng.random() < 0.5 else chain_with_branches(n, rng)
    check_bits_of_single_steps(engine, rng, heads, parents, length, shared_limit)


@pytest.mark.parametrize(
    ("shared_limit", "length"),
    [full(HOPPER, 63), full(HOPPER, 300), (GEFORCE, 5), (TURING, 130)],
)
def test_the_largest_trees_have_the_bits_of_single_steps(
    engine: Engine, rng: np.random.Generator, length: int, shared_limit: int
) -> None:
    """Trees of several passes, as deep as possible: a node has the largest number of tiles of its own."""
    parents = chain_with_branches(256, rng)
    check_bits_of_single_steps(engine, rng, HeadShape(64, 2, 1, 64), parents, length, shared_limit)


def test_a_chain_has_the_bits_of_single_steps(engine: Engine, rng: np.random.Generator) -> None:
    check_bits_of_single_steps(engine, rng, GROUPS[6], list(range(-1, 15)), 120, HOPPER)
