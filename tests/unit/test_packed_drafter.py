"""A drafter's matrices packed tighter when loaded: the blocks of the published format, and how far off they are."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

pytest.importorskip("cuda.bindings")
from dflash_core.backends.cuda.upload import PACKED, QUANTISE, _floats, stored_type
from dflash_core.errors import UnsupportedError


@pytest.mark.parametrize(("kind", "levels"), [("Q8_0", 254), ("Q4_0", 16)])
def test_blocks_are_those_of_the_format(kind: str, levels: int) -> None:
    """gguf's own reader gives the numbers back, each within half a step; and ours the same, where we read it."""
    values = torch.from_numpy(np.random.default_rng(3).normal(0, 1, (5, 96)).astype(np.float32))
    values[1, :32] = 0
    blocks = QUANTISE[kind](values)
    read = gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind])
    step = values.view(5, -1, 32).abs().amax(-1, keepdim=True) * 2 / levels
    off = (torch.from_numpy(read) - values).view(5, -1, 32).abs()
    # The side of zero that the largest number is not on ends one step earlier.
    assert torch.all(off <= step * (0.6 if kind == "Q8_0" else 1.01) + 1e-6)
    assert off.square().mean().sqrt() < 0.35 * step.mean()
    if kind == "Q8_0":
        assert torch.equal(_floats(blocks, kind), torch.from_numpy(read))


def test_what_is_packed() -> None:
    assert [stored_type(kind, "q8_0") for kind in ("F32", "BF16", "Q8_0", "Q4_K")] == ["Q8_0", "Q8_0", "Q8_0", "Q4_K"]
    assert [stored_type(kind, "q4_0") for kind in ("F16", "Q8_0", "Q6_K")] == ["Q4_0", "Q4_0", "Q6_K"]
    assert all(stored_type(kind) == kind for kind in ("F16", "Q8_0"))
    with pytest.raises(UnsupportedError, match=f"expected {' or '.join(PACKED)}"):
        stored_type("F16", "q3")
    for quantise in QUANTISE.values():
        with pytest.raises(UnsupportedError, match="expected a multiple of 32"):
            quantise(torch.zeros(2, 33))
