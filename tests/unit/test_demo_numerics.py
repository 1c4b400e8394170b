"""What rounding activations costs: the simulated formats against those that kernels read, and figures by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tools.train_demo import numerics

from dflash_core.demo import demo_target_path
from support import acts

X = (np.random.default_rng(5).normal(size=(7, 384)) * np.geomspace(1e-3, 1e3, 7)[:, None]).astype(np.float32)
X[3] = 0


def test_ours_are_what_the_kernels_read() -> None:
    x, mixed = torch.from_numpy(X), numerics.FORMATS["mixed (ours)"]
    for name, kind, bits, spans in (
        ("blk.0.attn_q.weight", "Q4_K", 0, 1),
        ("blk.0.ffn_down.weight", "Q4_K", 4, 1),
        ("blk.0.ssm_out.weight", "Q6_K", 2, 1),
        ("output.weight", "Q6_K", 0, 2),
    ):
        q, scale = acts.quantize_q8(X, bits, spans)
        steps = np.repeat(scale, 256 // spans, axis=-1).astype(np.float64)
        stored, steps = ((values).reshape(7, -1)[:, :384] for values in (q * steps, steps))
        ours = mixed.of(name)(x, kind).numpy()
        # A value on the edge between two codes may fall to either side.
        assert (np.abs(ours - stored) > 1e-6 * np.abs(X).max(axis=1, keepdims=True)).sum() < 5
        assert (np.abs(ours - X) <= steps * 0.501).all()
    h, power = acts.quantize_f16(X)
    half = (h.astype(np.float64) * power[..., None]).reshape(7, -1)[:, :384]
    np.testing.assert_array_equal(numerics.halves(x, "Q4_K").numpy(), half.astype(np.float32))


@pytest.mark.parametrize(
    ("kind", "same_as"), [("Q8_0", "q8_1, per 32 (llama.cpp CUDA)"), ("Q4_K", "int8 (ours), per 256")]
)
def test_the_cpu_format_goes_by_the_weights(kind: str, same_as: str) -> None:
    x = torch.from_numpy(X)
    found = numerics.FORMATS["Q8_K or Q8_0 by type (llama.cpp CPU)"].rounding(x, kind)
    assert torch.equal(found, numerics.FORMATS[same_as].rounding(x, kind))


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
    assert found["int8 (ours), per 256"].mean_kl > found["int8 per 32"].mean_kl > 100 * found["f16 (ours)"].mean_kl > 0
    assert found["int8 (ours), per 256"].mean_kl > 2 * found["mixed (ours)"].mean_kl > 0
    assert found["mixed (ours)"].mean_kl > found["two planes everywhere"].mean_kl
    assert all(0 < row.top1 <= 1 and row.high_kl >= row.mean_kl for row in found.values())
