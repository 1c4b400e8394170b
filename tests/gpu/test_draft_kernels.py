"""draft.cu against float64: context added to caches, a block's queries and keys, attention as in models/dflash.py."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from dflash_core.backends.cuda.chunk import HEADROOM
from dflash_core.backends.cuda.layers.attention import COMBINE_THREADS
from dflash_core.backends.cuda.layers.split_attention import HeadShape, SplitLaunch, SplitOrder
from support.acts import F16_GROUP, acts_f16
from support.engines import Engine
from support.grids import full
from support.heads import (
    EPS,
    Bools,
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
from support.splits import partials
from support.steps import tree_state

PLANES = 2
HEADS = HeadShape(128, 8, 2, 128)
HOPPER, GEFORCE = 232_448, 101_376
ORDER = SplitOrder.of(HEADS, 8192, 132, HOPPER, trees=False)
PREPARE_WARPS = 4


def kernel(engine: Engine, name: str, launch: SplitLaunch | None = None):
    chosen = launch or SplitLaunch.of(HEADS, ORDER, 16, HOPPER)
    return engine.kernel("draft.cu", name, {**chosen.defines, "SPLIT_K": PLANES})


def state(length: int, **fields: int) -> npt.NDArray[np.void]:
    return tree_state([-1], length, **({"draft_window": 0} | fields))


@pytest.mark.parametrize("width", [256, 1920, 2000])
def test_gather(engine: Engine, rng: np.random.Generator, width: int) -> None:
    rows, row0, waiting = 8, int(rng.integers(0, 20)), int(rng.integers(0, 40))
    features = (rng.standard_normal((64, width)) * rng.choice([1, 1e5], (64, 1))).astype(np.float32)
    groups = -(-width // 256)
    acts = engine.poisoned((groups, F16_GROUP), np.uint8)
    args = [engine.array(state(1000, draft_length=1000 - waiting)), np.int32(row0)]
    args.append(engine.array((features * HEADROOM).astype(np.float16)))
    kernel(engine, "draft_gather")((-(-groups // 4), rows), 128, [*args, np.int32(width), np.uint64(0), acts])

    found = acts_f16(acts.numpy(), rows, groups * 256)
    live = min(max(waiting - row0, 0), rows)
    np.testing.assert_allclose(found[:live, :width], features[row0 : row0 + live], rtol=2**-10, atol=1e-3)
    assert (found[:live, width:] == 0).all(), "the padding of the last group"
    assert np.isnan(found[live:]).all(), "a padding row wrote"


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("cached", [0, 700, 262_100])
def test_update(engine: Engine, rng: np.random.Generator, layers: int, cached: int) -> None:
    """Into rings of different sizes, one of them smaller than the pending rows: a slot keeps the last row written."""
    rows, row0, d, kv_heads = 8, 8 * int(rng.integers(0, 2)), HEADS.head_dim, 2
    waiting = int(rng.integers(1, 20))
    live = min(max(waiting - row0, 0), rows)
    projected = planes(rng, PLANES, rows, layers * 2 * kv_heads * d)
    k_norm = rng.standard_normal((layers, d)).astype(np.float32)
    slots = [64, 6, 128][:layers]
    caches = [[engine.poisoned((kv_heads, count, d), np.float16) for _ in range(2)] for count in slots]
    table = np.array([(k.address, v.address, count) for (k, v), count in zip(caches, slots)], np.uint64)
    args = [engine.array(state(cached + waiting, draft_length=cached)), np.int32(row0), engine.array(projected)]
    args += [np.int32(rows), np.int32(layers), np.int32(kv_heads), engine.array(k_norm)]
    args += [engine.array(frequencies(d)), np.float32(EPS), engine.array(table)]
    kernel(engine, "draft_update")((-(-layers * 2 * kv_heads // PREPARE_WARPS), rows), 32 * PREPARE_WARPS, args)

    total = projected.astype(np.float64).sum(axis=0)[:live].reshape(live, layers, 2, kv_heads, d)
    positions = cached + row0 + np.arange(live)
    for layer, count in enumerate(slots):
        key, value = total[:, layer].transpose(1, 2, 0, 3)
        key = rotated(normed(key, k_norm[layer]), positions, d)
        newest = positions + count >= cached + waiting
        others = np.setdiff1d(np.arange(count), positions[newest] % count)
        for cache, expected in zip((cache.numpy() for cache in caches[layer]), (key, value)):
            found = cache[:, positions[newest] % count].astype(np.float64)
            np.testing.assert_allclose(found, expected[:, newest], rtol=2**-10, atol=4e-6)
            assert np.isnan(cache[:, others]).all()


@pytest.mark.parametrize("block", [16, 10])
@pytest.mark.parametrize("ring", [0, 128])
def test_prepare(engine: Engine, rng: np.random.Generator, block: int, ring: int) -> None:
    rows, d, length = 16, HEADS.head_dim, int(rng.integers(0, 3000))
    projected = planes(rng, PLANES, rows, (HEADS.heads + 2 * HEADS.kv_heads) * d)
    q_norm, k_norm = rng.standard_normal((2, d)).astype(np.float32)
    slots = ring or length + 64
    q = engine.poisoned((HEADS.kv_heads, rows, HEADS.group, d), np.float16)
    k, v = (engine.poisoned((HEADS.kv_heads, slots, d), np.float16) for _ in range(2))
    args = [engine.array(state(length)), np.int32(block), engine.array(projected), np.int32(rows)]
    args += [np.int32(HEADS.kv_heads), *(engine.array(x) for x in (q_norm, k_norm, frequencies(d)))]
    args += [np.float32(EPS), np.float32(HEADS.query_scale), q, k, v, np.int32(slots)]
    tasks = HEADS.heads + 2 * HEADS.kv_heads
    kernel(engine, "draft_prepare")((-(-tasks // PREPARE_WARPS), rows), 32 * PREPARE_WARPS, args)

    total = projected.astype(np.float64).sum(axis=0)[:block].reshape(block, tasks, d).transpose(1, 0, 2)
    query, key, value = np.split(total, [HEADS.heads, HEADS.heads + HEADS.kv_heads])
    positions = length + np.arange(block)
    query = rotated(normed(query, q_norm), positions, d) * HEADS.query_scale
    query = query.reshape(HEADS.kv_heads, HEADS.group, block, d).transpose(0, 2, 1, 3)
    key = rotated(normed(key, k_norm), positions, d)
    np.testing.assert_allclose(q.numpy()[:, :block].astype(np.float64), query, rtol=2**-10, atol=4e-6)
    assert np.isnan(q.numpy()[:, block:]).all()
    taken = positions % slots
    for cache, expected in ((k.numpy(), key), (v.numpy(), value)):
        np.testing.assert_allclose(cache[:, taken].astype(np.float64), expected, rtol=2**-10, atol=4e-6)
        assert np.isnan(np.delete(cache, taken, axis=1)).all()


def block_view(length: int, block: int, *, window: int, causal: bool, draft_window: int) -> Bools:
    """Which slots the rows of a block see: models/dflash.py, DraftBlock."""
    slots = np.arange(length + block)
    behind = length + np.arange(block)[:, None] - slots
    first = max(0, length - draft_window if draft_window else 0, length - window + 1 if window else 0)
    view = np.broadcast_to(slots >= first, behind.shape)
    if causal:
        view = view & (behind >= 0)
    if window:
        view = view & (behind < window)
    return view


def run_block(
    engine: Engine,
    launch: SplitLaunch,
    view: dict[str, int],
    st: npt.NDArray[np.void],
    q: npt.NDArray[np.float16],
    cache: Cache,
    block: int,
) -> Floats:
    """draft_split and draft_combine: (rows, heads * head_dim)."""
    heads, rows = launch.heads, launch.rows
    out, stats = partials(engine, launch)
    args = [engine.array(st), np.int32(block), np.int32(rows), np.int32(view["window"]), np.int32(view["causal"])]
    args += [*(engine.array(x) for x in (q, cache.k, cache.v)), np.int32(cache.k.shape[1]), out, stats]
    kernel(engine, "draft_split", launch)(launch.grid, launch.block, args, shared=launch.shared)
    width = heads.heads * heads.head_dim
    acts = engine.poisoned((width // 256, F16_GROUP), np.uint8)
    args = [np.int32(block), out, stats, np.int32(launch.order.parts), np.int32(rows), np.int32(heads.kv_heads)]
    kernel(engine, "draft_combine", launch)((width // 256, rows), COMBINE_THREADS, [*args, np.uint64(0), acts])
    return acts_f16(acts.numpy(), rows, width)


def ringed(cache: Cache, end: int, slots: int) -> Cache:
    """The newest of the first `end` positions, each in slot position % slots; NaN where there are none."""
    positions = np.arange(max(0, end - slots), end)
    rings = [np.full((len(x), slots, x.shape[2]), np.nan, np.float16) for x in (cache.k, cache.v)]
    for ring, x in zip(rings, (cache.k, cache.v)):
        ring[:, positions % slots] = x[:, positions]
    return Cache(*rings)


VIEWS = [
    (0, False, 0),
    (0, True, 0),
    (24, True, 0),
    (24, False, 0),
    (200, True, 100),
    (100, True, 300),
    (0, False, 130),
]


# Every second length with each view, the others with the next; with `full` all.
@pytest.mark.parametrize(
    ("window", "causal", "draft_window", "length"),
    [
        (*view, length) if (at + turn) % 2 == 0 else full(*view, length)
        for turn, length in enumerate((0, 1, 62, 63, 64, 65, 94, 500, 2100))
        for at, view in enumerate(VIEWS)
    ],
)
def test_block_attention(
    engine: Engine, rng: np.random.Generator, length: int, window: int, causal: bool, draft_window: int
) -> None:
    rows = 16
    block = int(rng.choice([16, 11]))
    view = block_view(length, block, window=window, causal=causal, draft_window=draft_window)
    order = dataclasses.replace(ORDER, splits=int(rng.choice([1, 4, 17])))
    # Tiles that no row sees are not read: NaN below them, and after the block.
    first = int(view.any(axis=0).argmax()) // order.tile * order.tile
    cache = Cache.random(rng, HEADS, length + block, length + 64, first)
    q = queries(rng, HEADS, rows, block)
    launch = SplitLaunch.of(HEADS, order, rows, int(rng.choice([HOPPER, GEFORCE])))
    st = state(length, draft_window=draft_window)
    asked = {"window": window, "causal": causal}
    found = run_block(engine, launch, asked, st, q, cache, block)
    if window:  # in a ring of whole tiles the same positions give the same bits
        ring = ringed(cache, length + block, -(-(window + block + order.tile) // 64) * 64)
        np.testing.assert_array_equal(run_block(engine, launch, asked, st, q, ring, block), found)
    expected, bound = attention(q[:, :block], cache.k[:, : length + block], cache.v[:, : length + block], view)
    slack = side_by_side(bound) + 2**-10 * np.abs(side_by_side(expected))
    assert (np.abs(found[:block] - side_by_side(expected)) <= slack).all()
    assert np.isnan(found[block:]).all(), "a padding row wrote"
