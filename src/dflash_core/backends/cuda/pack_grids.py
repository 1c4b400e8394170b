"""Packers of IQ2 and IQ1 types, whose eight weights are an entry of a grid (kernels/formats/iq2.cuh, iq1.cuh).

Blocks have the shape (b, 16, groups, bytes of 256 weights); packers return (b, groups, tile bytes).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_core.backends.cuda.tile_parts import (
    bits_of,
    lane_codes,
    lane_registers,
    per_row,
    row_pairs,
    unit_planes,
    whole_tile,
)


def _sign_bits(signs: Tensor) -> Tensor:
    """(b, 16, groups, 256) signs to (b, groups, unit, g, t, register / 4, register % 4, value / 2, value % 2)."""
    codes = lane_codes(signs)  # (.., t, sub, half, row half, value)
    return codes.reshape(*codes.shape[:5], 2, 4, 2, 2)


def _sign_words(bits: Tensor) -> Tensor:
    """A word per lane, of register r bit 4 value + r % 4 + 16 (r / 4): (b, groups, 4, 128) bytes."""
    place = torch.arange(4, dtype=torch.uint8, device=bits.device)
    low, high = ((bits[..., i] << (place[:, None] + 4 * i)).sum(6, dtype=torch.uint8) for i in (0, 1))
    return (low | high).flatten(3)


def _seven_signs(sevens: Tensor, free: Tensor) -> Tensor:
    """Sign words from seven bits per eight weights (b, 16, groups, 32). Their parity is the eighth; one of eight is
    left out, and in its four places per lane is `free` (b, groups, unit, g, t, 4)."""
    signs = bits_of(sevens)
    signs[..., 7] = signs[..., :7].sum(-1) & 1
    bits = _sign_bits(signs.flatten(3))
    bits[..., ::2, 1, :, 1, 1] = free[..., ::2, :]
    bits[..., 1::2, 0, :, 1, 1] = free[..., 1::2, :]
    return _sign_words(bits)


def _indices(low: Tensor) -> Tensor:
    """The low bytes of a unit's indices: (b, groups, 4, 128)."""
    return lane_registers(low).flatten(3)


def _fours(values: Tensor) -> Tensor:
    """One value per eight weights, of four registers each: (b, groups, unit, g, t / 2, register / 4, register % 4)."""
    registers = lane_registers(values)
    return registers.reshape(*registers.shape[:-1], 2, 4)


def _quads(values: Tensor) -> Tensor:
    """(b, 16, groups, 8 subs, n) to (b, groups, unit, g, sub of the unit, row half, n)."""
    b, _, groups, _, n = values.shape
    return values.reshape(b, 2, 8, groups, 4, 2, n).permute(0, 3, 4, 2, 5, 1, 6)


def _packed_signs(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Words (b, 16, groups, 8, 1) of four times seven signs and a scale: seven signs per eight weights (b, 16, groups,
    32), and the bits of a scale per lane (b, groups, unit, g, t, 4), of sub t / 2, upper or lower row."""
    place = torch.arange(0, 28, 7, dtype=torch.int32, device=packed.device)
    sevens = (packed >> place & 127).byte().flatten(3)
    return sevens, bits_of(_quads((packed >> 28 & 15).byte()).flatten(4))[..., :4]


def pack_iq2_xxs(blocks: Tensor) -> Tensor:
    words = blocks[..., 2:].reshape(*blocks.shape[:3], 8, 8)
    sevens, scales = _packed_signs(words[..., 4:].contiguous().view(torch.int32))
    return whole_tile(
        row_pairs(blocks[..., :2]), unit_planes(_indices(words[..., :4].flatten(3)), _seven_signs(sevens, scales))
    )


def pack_iq3_xxs(blocks: Tensor) -> Tensor:
    packed = blocks[..., 66:].contiguous().view(torch.int32)[..., None]  # (.., 8, 1)
    sevens, scales = _packed_signs(packed)
    signs = bits_of(sevens)
    signs[..., 7] = signs[..., :7].sum(-1) & 1
    codes = lane_codes(signs.flatten(3)).flatten(5, 7).contiguous()  # (b, groups, unit, g, t, register, value)
    codes[..., ::2, 4:, 3] = scales[..., ::2, :]
    codes[..., 1::2, :4, 3] = scales[..., 1::2, :]
    place = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    words = (codes << place[:, None]).sum(5, dtype=torch.uint8).flatten(3)
    return whole_tile(row_pairs(blocks[..., :2]), unit_planes(_indices(blocks[..., 2:66]), words))


def pack_iq2_xs(blocks: Tensor) -> Tensor:
    low, high = blocks[..., 2:66:2], blocks[..., 3:66:2]
    # Lane t of a pair of lanes has the ninth bits of registers 4..7, the other lane those of 0..3.
    ninth = _fours(high & 1).flip(-2).flatten(4, 5)
    units = unit_planes(_indices(low), _seven_signs(high >> 1, ninth))
    return whole_tile(row_pairs(blocks[..., :2]), per_row(blocks[..., 66:]), units)


def pack_iq2_s(blocks: Tensor) -> Tensor:
    place = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)
    signs = _sign_words(_sign_bits(bits_of(blocks[..., 34:66]).flatten(3)))
    pairs = _fours((blocks[..., 66:74, None] >> place & 3).flatten(3))
    high = (pairs << place).sum(-1, dtype=torch.uint8).flatten(3)
    units = unit_planes(_indices(blocks[..., 2:34]), signs, high)
    return whole_tile(row_pairs(blocks[..., :2]), per_row(blocks[..., 74:]), units)


def pack_iq1_s(blocks: Tensor) -> Tensor:
    high = _quads(blocks[..., 34:].reshape(*blocks.shape[:3], 8, 2)).flatten(3)
    return whole_tile(row_pairs(blocks[..., :2]), unit_planes(_indices(blocks[..., 2:34]), high))


def pack_iq1_m(blocks: Tensor) -> Tensor:
    packed = blocks[..., 32:48]
    nibbles = lane_registers(torch.stack((packed & 15, packed >> 4), dim=-1).flatten(3))
    high = (nibbles[..., ::2] | nibbles[..., 1::2] << 4).flatten(3)
    return whole_tile(per_row(blocks[..., 48:]), unit_planes(_indices(blocks[..., :32]), high))
