"""Four bits per weight as IQ4_NL stores them: 32 weights share a scale, each is one of 16 levels.

The scale of a block is searched: of many, and with the levels that each leads to, the one with the least squared error.
The levels are ggml's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LEVELS = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.float32)
BLOCK = 32
SCALES = 14
"""Scales that are tried for a block."""
ROWS = 1 << 15
"""Blocks at a time."""


def rounded(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 32) float32 -> scales (n,) float32 that float16 holds, and codes (n, 32) uint8."""
    parts = [_rounded(blocks[at : at + ROWS]) for at in range(0, len(blocks), ROWS)]
    return torch.cat([d for d, _ in parts]), torch.cat([codes for _, codes in parts])


def values(scales: Tensor, codes: Tensor) -> Tensor:
    """The weights (n, 32) that scales and codes stand for."""
    return scales[:, None] * LEVELS[codes.long()]


def packed(weight: Tensor) -> npt.NDArray[np.uint8]:
    """A matrix (rows, columns) as bytes (rows, columns / 32 * 18): of each block the scale, then the codes of weights i
    and i + 16 as the low and high half of byte i. Raises ValueError where the columns are no whole blocks."""
    rows, columns = weight.shape
    if columns % BLOCK:
        raise ValueError(f"a row of {columns} weights, expected a multiple of {BLOCK}")
    scales, codes = rounded(weight.float().reshape(-1, BLOCK))
    bytes_of = np.ascontiguousarray(scales.numpy().astype("<f2")).view(np.uint8).reshape(-1, 2)
    low, high = codes.numpy()[:, :16], codes.numpy()[:, 16:]
    return np.hstack([bytes_of, low | high << 4]).reshape(rows, -1)


def _rounded(blocks: Tensor) -> tuple[Tensor, Tensor]:
    middles = (LEVELS[1:] + LEVELS[:-1]) / 2
    extreme = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    least = torch.full((len(blocks), 1), torch.inf)
    scales, codes = torch.zeros_like(least), torch.full(blocks.shape, 8, dtype=torch.uint8)
    for end in (LEVELS[0], LEVELS[-1]):  # the largest weight may be at either end
        for share in torch.linspace(0.85, 1.2, SCALES // 2):
            inverse = torch.where(extreme == 0, 0, share * end / extreme)
            tried = torch.bucketize(blocks * inverse, middles)
            level = LEVELS[tried]
            # The best scale for these levels, by least squares.
            d = ((level * blocks).sum(1, keepdim=True) / level.square().sum(1, keepdim=True)).half().float()
            error = (d * level - blocks).square().sum(1, keepdim=True)
            better = error < least
            least, scales = torch.where(better, error, least), torch.where(better, d, scales)
            codes = torch.where(better, tried.to(torch.uint8), codes)
    return scales[:, 0], codes
