"""Parts of super-tiles: values of 16 rows by 256 k in the order in which the lanes of a warp read them.

The layouts are those of kernels/formats/*.cuh. Here b blocks of 16 rows are packed at once. A block's fields have the
shape (b, 16, groups, blocks of a group, n), values of weights the shape (b, 16, groups, 256).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def fields(blocks: Tensor, *sizes: int) -> Sequence[Tensor]:
    """The fields of blocks, of `sizes` bytes each; a group of 256 weights has as many blocks as its bytes hold."""
    return torch.split(blocks.reshape(*blocks.shape[:3], -1, sum(sizes)), [*sizes], dim=-1)


def tile(heads: Sequence[Tensor], *planes: Tensor) -> Tensor:
    """(b, groups, bytes): headers, and behind them the planes of each unit (b, groups, 4, n), one after the other."""
    return torch.cat((*heads, torch.cat(planes, dim=-1).flatten(2)), dim=-1)


def per_row(values: Tensor) -> Tensor:
    """(b, 16, groups, ...) header bytes to (b, groups, 16 n)."""
    return values.flatten(3).transpose(1, 2).flatten(2)


def row_pairs(d: Tensor) -> Tensor:
    """(b, 16, groups, ...), such as an f16 per row, to (b, groups, 16 n): rows g and g + 8 are adjacent."""
    b, _, groups = d.shape[:3]
    return d.reshape(b, 2, 8, groups, -1).permute(0, 3, 2, 1, 4).flatten(2)


# ---- Bits of bytes ---------------------------------------------------------------------------------------------------


def split_nibbles(qs: Tensor) -> Tensor:
    """(..., blocks, n) bytes, low nibbles first, to (..., 2 n blocks)."""
    return torch.cat((qs & 15, qs >> 4), dim=-1).flatten(3)


def adjacent_nibbles(qs: Tensor) -> Tensor:
    """(..., n) bytes to (..., n, 2) nibbles, the low one first."""
    return torch.stack((qs & 15, qs >> 4), dim=-1)


def joined_nibbles(values: Tensor) -> Tensor:
    """(..., 2, n) nibbles to (..., n) bytes, the first of the two in the low half."""
    return values[..., 0, :] | values[..., 1, :] << 4


def pairs_of(values: Tensor) -> Tensor:
    """(..., n) bytes to (..., n, 4) pairs of bits, the lowest pair first."""
    return values[..., None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=values.device) & 3


def split_pairs(qs: Tensor) -> Tensor:
    """64 bytes of a group to (b, 16, groups, 256) pairs of bits: 32 bytes have four times 32."""
    return pairs_of(qs.reshape(*qs.shape[:3], 2, 32)).transpose(-1, -2).flatten(3)


def bits_of(values: Tensor) -> Tensor:
    """(..., n) bytes to (..., n, 8) bits, the lowest bit first."""
    place = torch.arange(8, dtype=values.dtype, device=values.device)
    return values[..., None] >> place & 1


def split_bits(values: Tensor) -> Tensor:
    """32 bytes of a group to (b, 16, groups, 256) bits: the lowest of all bytes first."""
    return bits_of(values).transpose(-1, -2).flatten(3)


def byte_of(values: Tensor, places: Iterable[int], dim: int = -1) -> Tensor:
    """Numbers along `dim` at these places of one byte."""
    place = torch.tensor(tuple(places), dtype=torch.uint8, device=values.device)
    return (values << place.view(-1, *(1,) * (-1 - dim))).sum(dim, dtype=torch.uint8)


# ---- The order of a warp's lanes -------------------------------------------------------------------------------------


def lane_codes(values: Tensor) -> Tensor:
    """(b, 16, groups, 256) to (b, groups, unit, g, t, sub, half, row half, byte): the values of a lane are adjacent."""
    b, _, groups, _ = values.shape
    # rows: half, g; k: unit, sub, half, t, byte
    split = values.view(b, 2, 8, groups, 4, 2, 2, 4, 4)
    return split.permute(0, 3, 4, 2, 7, 5, 6, 1, 8)


def lane_fragments(values: Tensor) -> Tensor:
    """A byte per weight, whole fragments of a sub one after the other: (b, groups, bytes)."""
    return lane_codes(values).permute(0, 1, 2, 5, 3, 4, 6, 7, 8).flatten(2)


def lane_nibbles(values: Tensor) -> Tensor:
    """Four bits of each of two rows per byte, the upper row's in the low half: (b, groups, 4, 512)."""
    return joined_nibbles(lane_codes(values)).flatten(3)


def table_nibbles(values: Tensor) -> Tensor:
    """Four bits per weight, a register's four weights adjacent, the upper row's first: (b, groups, 4, 512)."""
    codes = lane_codes(values)
    return (codes[..., ::2] | codes[..., 1::2] << 4).flatten(3)


def rotated_nibbles(values: Tensor, at: int) -> Tensor:
    """As `lane_nibbles` with the upper row's bits at bit `at` of each byte; the lower row's are there after rotating
    the word right by 4."""
    codes = lane_codes(values) << at
    upper, lower = (codes[..., i, :].contiguous().view(torch.int32) for i in (0, 1))
    words = upper | lower << 4 | (lower >> 28 & 15)
    return words.view(torch.uint8).flatten(3)


def lane_bits(values: Tensor, places: Iterable[int] = range(8)) -> Tensor:
    """One bit from each of the unit's eight registers, at its place in one word per lane: (b, groups, 4, 128)."""
    codes = lane_codes(values).flatten(5, 7)  # (b, groups, unit, g, t, register, byte)
    return byte_of(codes, places, -2).flatten(3)


def lane_pairs(values: Tensor) -> Tensor:
    """Two bits from each of a sub's four registers, the first register in the top bits: (b, groups, 4, 256)."""
    codes = lane_codes(values).flatten(6, 7)  # (b, groups, unit, g, t, sub, register, byte)
    return byte_of(codes, (6, 4, 2, 0), -2).flatten(3)


def lane_registers(values: Tensor) -> Tensor:
    """One value per four weights, 64 of a group, to (b, groups, unit, g, t, register); one per eight, 32 of a group, to
    (b, groups, unit, g, t / 2, register)."""
    b, _, groups = values.shape[:3]
    # rows: half, g; k: unit, sub, half, t
    split = values.reshape(b, 2, 8, groups, 4, 2, 2, -1)
    return split.permute(0, 3, 4, 2, 7, 5, 6, 1).flatten(5)
