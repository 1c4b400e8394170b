"""Weights of four bits, as the drafter of SmolLM2 is stored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from tools.train_demo import packing


def spread(seed: int, rows: int = 24, columns: int = 96) -> torch.Tensor:
    """Weights of very different sizes from row to row, some rows zero."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(rows, columns)) * 10.0 ** rng.uniform(-4, 1, (rows, 1))
    found[::7] = 0
    return torch.from_numpy(found.astype(np.float32))


def test_bytes_are_what_ggmls_reader_takes_them_for() -> None:
    weight = spread(1)
    stored = packing.packed(weight)
    assert stored.shape == (24, 3 * 18)
    expected = packing.values(*packing.rounded(weight.reshape(-1, 32))).reshape(24, 96).numpy()
    np.testing.assert_array_equal(dequantize(stored, GGMLQuantizationType.IQ4_NL), expected)
    assert not expected[::7].any()


def test_every_weight_has_its_nearest_level() -> None:
    blocks = spread(2).reshape(-1, 32)
    scales, codes = packing.rounded(blocks)
    every = scales[:, None, None] * packing.LEVELS
    best = (every - blocks[..., None]).abs().amin(-1)
    taken = (packing.values(scales, codes) - blocks).abs()
    # The scale is fitted after the levels were chosen, so a weight between two levels may have the other one.
    assert float(((taken - best) / blocks.abs().amax(1, keepdim=True).clamp(min=1e-9)).max()) < 0.02


def test_the_error_is_below_that_of_a_linear_scale() -> None:
    weight = spread(3, rows=64)
    theirs = dequantize(quantize(weight.numpy(), GGMLQuantizationType.Q4_0), GGMLQuantizationType.Q4_0)
    ours = dequantize(packing.packed(weight), GGMLQuantizationType.IQ4_NL)
    scale = np.abs(weight.numpy()).max(1).clip(1e-9)
    errors = [np.square((one - weight.numpy()) / scale[:, None]).mean() for one in (ours, theirs)]
    assert errors[0] < 0.75 * errors[1]


def test_rows_must_be_whole_blocks() -> None:
    with pytest.raises(ValueError, match="a row of 33 weights, expected a multiple of 32"):
        packing.packed(torch.zeros(2, 33))
