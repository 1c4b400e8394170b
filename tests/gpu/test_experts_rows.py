"""A chunk of a prompt through experts against float64: rows sorted by expert, products of every format, their sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash_core.backends.cuda.expert_plan import ExpertPlan, ExpertProduct, Slabs
from dflash_core.backends.cuda.layers.experts import (
    CHUNK_COLUMNS,
    CHUNK_ENTRY_BYTES,
    CHUNK_SHARED,
    CHUNK_THREADS,
    SORT_THREADS,
)
from dflash_core.backends.cuda.plan import Card, Shape
from dflash_core.backends.cuda.repack import TILE_TYPES, repack, tile_type
from dflash_core.formats.quants import to_float32
from support.blocks import random_blocks
from support.engines import Engine

CARD = Card(multiprocessors=3, shared_bytes=227 << 10)
ENTRY = np.dtype([("expert", "<i4"), ("first", "<i4"), ("count", "<i4")])
QUICK = ("Q4_K", "Q8_0", "F32")
FORMATS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in (*TILE_TYPES, "BF16")]


def sort(engine: Engine, chosen: np.ndarray, experts: int, shared: bool, room: int) -> tuple:
    """The work list, the row of each place, the place of each pair, for `chosen` (rows, used) in a chunk of `room`."""
    rows, used = chosen.shape
    ranks = used + shared
    defines = {"EXPERTS": experts, "USED": used, "ALL": 0, "WIDTH": 32, **({"SHARED": 1} if shared else {})}
    work = engine.poisoned((8 + CHUNK_ENTRY_BYTES * (experts + room * ranks // CHUNK_COLUMNS + 2),), np.uint8)
    order, places = (engine.poisoned((room * ranks,), np.int32) for _ in range(2))
    count = engine.array(np.array([rows, 0], np.int32))
    chosen = np.vstack([chosen, np.zeros((room - rows, used), chosen.dtype)]).astype(np.uint16)
    engine.kernel("experts_sort.cu", "sort", defines)(
        1, SORT_THREADS, [count, engine.array(chosen), work, order, places]
    )
    return work, order, places


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("rows", "experts", "used"), [(1, 4, 2), (150, 7, 3), (40, 256, 8)])
def test_rows_are_sorted_by_expert(
    engine: Engine, rng: np.random.Generator, rows: int, experts: int, used: int, shared: bool
) -> None:
    chosen = np.stack([rng.permutation(experts)[:used] for _ in range(rows)])
    work, order, places = sort(engine, chosen, experts, shared, rows + 3)
    data = work.numpy()
    first, total = np.frombuffer(data[:8].tobytes(), np.int32)
    entries = np.frombuffer(data[8 : 8 + int(total) * ENTRY.itemsize].tobytes(), ENTRY)
    ranks = used + shared
    row_at, place_of = order.numpy(), places.numpy()[: rows * ranks].reshape(rows, ranks)
    assert sorted(place_of.flatten()) == list(range(rows * ranks))
    assert (row_at[place_of] == np.arange(rows)[:, None]).all()
    experts_at = np.full(rows * ranks, -1)
    for index, entry in enumerate(entries):
        assert 0 < entry["count"] <= CHUNK_COLUMNS
        experts_at[entry["first"] : entry["first"] + entry["count"]] = experts if index < first else entry["expert"]
    assert (experts_at[place_of[:, :used]] == chosen).all()
    assert (experts_at >= 0).all()
    if shared:
        assert (experts_at[place_of[:, used]] == experts).all()


@pytest.mark.parametrize("name", FORMATS)
def test_products_of_sorted_rows(engine: Engine, rng: np.random.Generator, name: str) -> None:
    columns, rows, experts, height = 512 if tile_type(name).table == 0 else 256, 90, 3, 80
    chosen = np.stack([rng.permutation(experts)[:2] for _ in range(rows)])
    raw = [random_blocks(rng, name, experts * height, columns) for _ in range(2)]
    dense = [to_float32(one, name).astype(np.float64).reshape(experts, height, -1) for one in raw]
    packed = [engine.array(repack(torch.from_numpy(one), name, columns).numpy()) for one in raw]
    product = ExpertProduct(Slabs((Shape(name, height),) * 2, columns, experts), 2)
    data = ExpertPlan(product, CARD).pack([[array.address for array in packed]])
    x = rng.normal(size=(rows, columns)).astype(np.float16)
    work, order, _ = sort(engine, chosen, experts, False, rows)
    out = engine.poisoned((rows * 2, 2 * height), np.float16)
    args = [
        np.frombuffer(data, f"V{len(data)}")[0], work, engine.array(x), np.int32(columns), order, out,
        np.int32(2 * height), np.int32(0), np.int32(1 << 20), np.float32(0.25),
    ]  # fmt: skip
    kernel = engine.kernel("experts_rows.cu", "experts_rows", {f"WITH_{tile_type(name).name}": 1})
    kernel(CARD.multiprocessors, CHUNK_THREADS, args, shared=CHUNK_SHARED)
    found, row_at = out.numpy().astype(np.float64), order.numpy()
    counts = np.bincount(chosen.flatten(), minlength=experts)
    expert_at = np.repeat(np.arange(experts), counts)
    for half, scale in ((0, 1.0), (1, 0.25)):
        weights = dense[half][expert_at].astype(np.float16).astype(np.float64)  # rounded once, as `dequant` does
        expected = scale * np.einsum("phk,pk->ph", weights, x[row_at].astype(np.float64))
        got = found[:, half * height : (half + 1) * height]
        assert np.abs(got - expected).max() < 2e-3 * np.abs(expected).max()


def test_what_experts_made_is_added_by_weight(engine: Engine, rng: np.random.Generator) -> None:
    rows, used, width, begin, part = 5, 3, 64, 16, 32
    h, y = rng.normal(size=(rows, width)).astype(np.float32), rng.normal(size=(rows * used, part)).astype(np.float16)
    places = rng.permutation(rows * used).astype(np.int32).reshape(rows, used)
    weights = rng.random((rows, used)).astype(np.float32)
    held = engine.array(h)
    args = [
        engine.array(np.array([rows - 1], np.int32)), engine.array(y), engine.array(places), engine.array(weights),
        np.float32(16), held, np.int32(begin), np.int32(part),
    ]  # fmt: skip
    defines = {"EXPERTS": 8, "USED": used, "ALL": 0, "WIDTH": width}
    engine.kernel("experts_sort.cu", "combine", defines)((1, rows), 256, args)
    expected = h.astype(np.float64)
    expected[:-1, begin : begin + part] += 16 * np.einsum("rk,rkp->rp", weights, y[places].astype(np.float64))[:-1]
    assert np.abs(held.numpy() - expected).max() < 1e-4
