"""A product of one row that packs its activations itself has the same bits as a row of a wider pass, whose activations
a separate kernel packs."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_core.backends.cuda.activations import F16, INT8, Rounding
from dflash_core.backends.cuda.plan import plan
from support.acts import F16_GROUP, Q8_GROUP
from support.engines import Engine
from support.matmuls import SMALL, random_weights

ROWS, SPLITS = 3, 5
KINDS = {
    "q8": ("Q4_K", INT8), "planes": ("Q4_K", Rounding(planes=2)), "other-planes": ("Q6_K", Rounding(planes=2)),
    "spans": ("Q6_K", Rounding(spans=2)), "f16": ("Q5_K", F16), "halves": ("F16", INT8), "table": ("IQ3_S", INT8),
}  # fmt: skip


@pytest.mark.parametrize("split_k", [None, 1])
@pytest.mark.parametrize("turns_of_16", [False, True])
@pytest.mark.parametrize(("name", "rounding"), [pytest.param(*kind, id=at) for at, kind in KINDS.items()])
def test_swiglu(
    engine: Engine,
    rng: np.random.Generator,
    name: str,
    rounding: Rounding,
    turns_of_16: bool,
    split_k: int | None,
) -> None:
    width = 1408 if name == "F16" else 1536  # the first ends within a group
    weights = random_weights(engine, rng, width, (name, 90))
    stride = 2 * width + 32
    partials = (rng.normal(size=(SPLITS, ROWS, stride)) * 2).astype(np.float32)
    defines = {"WIDTH": width, "SPLIT_K": SPLITS, "UP_AT": 0 if turns_of_16 else width}
    deal = plan(weights.shapes, weights.columns, SMALL, rounding=rounding, split_k=split_k)
    live = weights.shapes[0].rows

    acts = [engine.array(np.zeros((deal.tiles_k, size), np.uint8)) for size in (Q8_GROUP, F16_GROUP)]
    wanted = [one if needed else np.uint64(0) for one, needed in zip(acts, (deal.needs_q8, deal.needs_f16))]
    run = engine.kernel("swiglu.cu", "swiglu", {**defines, **deal.forms})
    count = engine.array(np.array([ROWS], np.int32))
    run((6, ROWS), 32, [engine.array(partials), np.int32(ROWS), np.int32(stride), *wanted, count, np.int32(0)])
    stored = engine.poisoned((deal.split_k, ROWS, deal.stride), np.float32)
    run = engine.kernel("matmul.cu", "matmul", deal.defines(ROWS))
    args = [weights.launch(deal), *wanted, stored, np.int32(ROWS), np.int32(0)]
    run(deal.grid, 32 * deal.warps_at(ROWS), args, shared=deal.shared_bytes(ROWS))
    expected = stored.numpy()[:, :, :live]
    assert np.isfinite(expected).all()

    run = engine.kernel("swiglu_matmul.cu", "swiglu_matmul", {**deal.defines(1), **defines})
    for row in range(ROWS):
        alone = engine.array(np.ascontiguousarray(partials[:, row]))
        out = engine.poisoned((deal.split_k, deal.stride), np.float32)
        args = [weights.launch(deal), alone, np.int32(stride), out]
        run(deal.grid, 32 * deal.warps_at(1), args, shared=deal.shared_bytes(1))
        assert np.array_equal(out.numpy()[:, :live].view(np.uint32), expected[:, row].view(np.uint32)), row
