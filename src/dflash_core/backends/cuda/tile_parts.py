"""Parts of super-tiles: values of 16 rows by 256 k in the order in which the lanes of a warp read them.

The layouts are those of kernels/formats/*.cuh. Here b blocks of 16 rows are packed at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def lane_codes(values: Tensor) -> Tensor:
    """(b, 16, groups, 256) to (b, groups, unit, g, t, sub, half, row half, byte): the values of a lane are adjacent."""
    b, _, groups, _ = values.shape
    # rows: half, g; k: unit, sub, half, t, byte
    split = values.view(b, 2, 8, groups, 4, 2, 2, 4, 4)
    return split.permute(0, 3, 4, 2, 7, 5, 6, 1, 8)


def lane_nibbles(values: Tensor) -> Tensor:
    """Four bits of each of two rows per byte, the upper row's in the low half: (b, groups, 4, 512)."""
    codes = lane_codes(values)
    return (codes[..., 0, :] | codes[..., 1, :] << 4).flatten(3)


def rotated_nibbles(values: Tensor, at: int) -> Tensor:
    """The same with the upper row's bits at bit `at` of each byte; the lower row's are there after rotating the word
    right by 4."""
    codes = lane_codes(values) << at
    upper, lower = (codes[..., i, :].contiguous().view(torch.int32) for i in (0, 1))
    words = upper | lower << 4 | (lower >> 28 & 15)
    return words.view(torch.uint8).flatten(3)


def lane_bits(values: Tensor, places: Iterable[int]) -> Tensor:
    """One bit from each of the unit's eight registers, at its place in one word per lane: (b, groups, 4, 128)."""
    codes = lane_codes(values).flatten(5, 7)  # (b, groups, unit, g, t, register, byte)
    place = torch.tensor(tuple(places), dtype=torch.uint8, device=values.device)
    return (codes << place[:, None]).sum(5, dtype=torch.uint8).flatten(3)


def lane_registers(values: Tensor) -> Tensor:
    """(b, 16, groups, 64), one value per four weights, to (b, groups, unit, g, t, register); (b, 16, groups, 32), one
    per eight, to (b, groups, unit, g, t / 2, register)."""
    b, _, groups, _ = values.shape
    # rows: half, g; k: unit, sub, half, t
    split = values.reshape(b, 2, 8, groups, 4, 2, 2, -1)
    return split.permute(0, 3, 4, 2, 7, 5, 6, 1).flatten(5)


def bits_of(values: Tensor) -> Tensor:
    """(..., n) bytes to (..., n, 8) bits, the lowest bit first."""
    place = torch.arange(8, dtype=values.dtype, device=values.device)
    return values[..., None] >> place & 1


def lane_pairs(values: Tensor) -> Tensor:
    """Two bits from each of a sub's four registers, the first register in the top bits: (b, groups, 4, 256)."""
    codes = lane_codes(values).flatten(6, 7)  # (b, groups, unit, g, t, sub, register, byte)
    place = torch.tensor([6, 4, 2, 0], dtype=torch.uint8, device=values.device)
    return (codes << place[:, None]).sum(6, dtype=torch.uint8).flatten(3)


def per_row(values: Tensor) -> Tensor:
    """(b, 16, groups, n) header bytes to (b, groups, 16 n)."""
    return values.transpose(1, 2).flatten(2)


def unit_planes(*planes: Tensor) -> Tensor:
    return torch.cat(planes, dim=-1).flatten(2)


def whole_tile(*parts: Tensor) -> Tensor:
    return torch.cat(parts, dim=-1)


def row_pairs(d: Tensor) -> Tensor:
    """(b, 16, groups, n), such as an f16 per row, to (b, groups, 16 n): rows g and g + 8 are adjacent."""
    b, _, groups, _ = d.shape
    return d.reshape(b, 2, 8, groups, -1).permute(0, 3, 2, 1, 4).flatten(2)


def blocks_of_32(blocks: Tensor, size: int) -> Tensor:
    """The blocks of 32 weights in a group, for types with such blocks: (b, 16, groups, 8, size)."""
    return blocks.reshape(*blocks.shape[:3], 8, size)


def split_nibbles(qs: Tensor) -> Tensor:
    """(..., blocks, n) bytes, low nibbles first, to (..., 2 n blocks)."""
    return torch.cat((qs & 15, qs >> 4), dim=-1).flatten(3)


def split_pairs(qs: Tensor) -> Tensor:
    """(b, 16, groups, 64) bytes to (b, 16, groups, 256) pairs of bits: 32 bytes have four times 32."""
    place = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=qs.device)
    return (qs.reshape(*qs.shape[:3], 2, 1, 32) >> place[:, None] & 3).flatten(3)
