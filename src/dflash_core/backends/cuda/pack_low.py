"""Packers of Q2_K, and of types that are one or two bits or a ternary digit and a scale (kernels/formats).

Blocks have the shape (b, 16, groups, bytes of 256 weights); packers return (b, groups, tile bytes).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_core.backends.cuda.tile_parts import (
    bits_of,
    lane_bits,
    lane_codes,
    lane_pairs,
    per_row,
    row_pairs,
    split_pairs,
    unit_planes,
    whole_tile,
)


def pack_q2_k(blocks: Tensor) -> Tensor:
    pairs = lane_pairs(split_pairs(blocks[..., 16:80]))
    return whole_tile(per_row(blocks[..., :16]), per_row(blocks[..., 80:]), unit_planes(pairs))


def _ternary(codes: Tensor) -> Tensor:
    """Codes q in 0..3 as 1 - q in two bits."""
    return unit_planes(lane_pairs(1 - codes & 3))


def pack_tq2_0(blocks: Tensor) -> Tensor:
    return whole_tile(row_pairs(blocks[..., 64:]), _ternary(split_pairs(blocks[..., :64])))


def _short_blocks(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks of 18 bytes: the scales of a row (b, groups, bytes), and the bytes of all codes (b, 16, groups, n)."""
    each = blocks.reshape(*blocks.shape[:3], -1, 18)
    return per_row(each[..., :2].flatten(3)), each[..., 2:].flatten(3)


def pack_q2_0(blocks: Tensor) -> Tensor:
    scales, qs = _short_blocks(blocks)
    place = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)
    return whole_tile(scales, _ternary((qs[..., None] >> place & 3).flatten(3)))


def pack_q1_0(blocks: Tensor) -> Tensor:
    scales, qs = _short_blocks(blocks)
    return whole_tile(scales, unit_planes(lane_bits(bits_of(qs).flatten(3) ^ 1, range(8))))


def _digits(stored: Tensor, count: int) -> Tensor:
    """(..., n) bytes with `count` ternary digits each to (..., count, n), the highest digit first."""
    powers = torch.tensor([1, 3, 9, 27, 81][:count], dtype=torch.int32, device=stored.device)
    return ((stored[..., None, :].int() * powers[:, None] & 255) * 3 >> 8).byte()


def _five_digits(digits: Tensor) -> Tensor:
    """(..., 5) ternary digits, the highest first, to the byte that has them."""
    powers = torch.tensor([81, 27, 9, 3, 1], dtype=torch.int32, device=digits.device)
    number = (digits.int() * powers).sum(-1)
    return ((number * 256 + 242) // 243).byte()


def pack_tq1_0(blocks: Tensor) -> Tensor:
    parts = (_digits(blocks[..., :32], 5), _digits(blocks[..., 32:48], 5), _digits(blocks[..., 48:52], 4))
    # (b, groups, unit, g, t, register, byte)
    codes = lane_codes(torch.cat([part.flatten(3) for part in parts], dim=-1)).flatten(5, 7)
    first = _five_digits(codes[..., :5, :].transpose(-1, -2)).flatten(3)
    two = codes[..., 5:7, :].reshape(*codes.shape[:5], 4, 2)  # (.., step 0..3, byte of the two)
    second = _five_digits(torch.cat((two, codes[..., 7:, :2]), dim=-2).transpose(-1, -2)).flatten(3)
    rest = codes[..., 7, 2] | codes[..., 7, 3] << 2
    last = (rest[..., ::2] | rest[..., 1::2] << 4).flatten(3)
    return whole_tile(row_pairs(blocks[..., 52:]), unit_planes(first, second, last))
