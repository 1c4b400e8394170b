"""What rounding activations costs: the simulated formats against those that kernels read, and figures by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dflash_core.backends.cuda import acts
from dflash_core.demo import demo_target_path
from dflash_core.demo.recipe import numerics

X = (np.random.default_rng(5).normal(size=(7, 384)) * np.geomspace(1e-3, 1e3, 7)[:, None]).astype(np.float32)
X[3] = 0


def test_ours_are_what_the_kernels_read() -> None:
    q, scale = acts.quantize_q8(X)
    stored = (q * scale[..., None].astype(np.float64)).reshape(7, -1)[:, :384]
    ours = numerics.FORMATS["int8 per 256 (ours)"].rounding(torch.from_numpy(X), 256).numpy()
    # A value on the edge between two codes may fall to either side.
    steps = np.repeat(scale, 256, axis=1)[:, :384]
    assert (np.abs(ours - stored) > 1e-6 * np.abs(X).max(axis=1, keepdims=True)).sum() < 5
    assert (np.abs(ours - X) <= steps * 0.501).all()
    h, power = acts.quantize_f16(X)
    half = (h.astype(np.float64) * power[..., None]).reshape(7, -1)[:, :384]
    np.testing.assert_array_equal(numerics.halves(torch.from_numpy(X), 256).numpy(), half.astype(np.float32))


@pytest.mark.parametrize(("block", "same_as"), [(32, "q8_1, per 32 (llama.cpp CUDA)"), (256, "int8 per 256 (ours)")])
def test_the_cpu_format_goes_by_the_weights(block: int, same_as: str) -> None:
    x = torch.from_numpy(X)
    found = numerics.FORMATS["Q8_K or Q8_0 by type (llama.cpp CPU)"].rounding(x, block)
    assert torch.equal(found, numerics.FORMATS[same_as].rounding(x, block))


def test_difference_by_hand() -> None:
    p, q = np.log([[0.5, 0.5], [0.9, 0.1]]), np.log([[0.75, 0.25], [0.2, 0.8]])
    found = numerics.difference(p.astype(np.float32), q.astype(np.float32))
    first = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    second = 0.9 * math.log(0.9 / 0.2) + 0.1 * math.log(0.1 / 0.8)
    assert found.positions == 2
    assert found.mean_kl == pytest.approx((first + second) / 2, rel=1e-5)
    assert found.top1 == 0.5


def test_coarser_scales_cost_more_and_halves_least() -> None:
    ids = [[int(i) for i in np.random.default_rng(2).integers(0, 2000, 60)]]
    found = numerics.measure(demo_target_path(), ids)
    assert found["int8 per 256 (ours)"].mean_kl > found["int8 per 32"].mean_kl > 100 * found["f16 (ours)"].mean_kl > 0
    assert found["int8 per 256 (ours)"].mean_kl > found["int8 per 256, f16 into ssm_out, ffn_down"].mean_kl
    assert all(0 < row.top1 <= 1 and row.high_kl >= row.mean_kl for row in found.values())
