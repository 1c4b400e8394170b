"""Packers of IQ2, IQ1 and IQ3_XXS, whose weights are entries of a grid (kernels/formats/iq2.cuh, iq1.cuh).

Blocks have the shape (b, 16, groups, bytes of 256 weights); packers return (b, groups, tile bytes).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_core.backends.cuda.tile_parts import (
    adjacent_nibbles,
    bits_of,
    byte_of,
    fields,
    lane_codes,
    lane_registers,
    pairs_of,
    per_row,
    row_pairs,
    tile,
)


def _indices(low: Tensor) -> Tensor:
    """The low bytes of a unit's indices: (b, groups, 4, 128)."""
    return lane_registers(low).flatten(3)


def _sign_bits(signs: Tensor) -> Tensor:
    """(b, 16, groups, 256) signs to (b, groups, unit, g, t, register / 4, register % 4, value / 2, value % 2)."""
    codes = lane_codes(signs)  # (.., t, sub, half, row half, value)
    return codes.reshape(*codes.shape[:5], 2, 4, 2, 2)


def _sign_words(bits: Tensor) -> Tensor:
    """A word per lane, of register r bit 4 value + r % 4 + 16 (r / 4): (b, groups, 4, 128) bytes."""
    low, high = (byte_of(bits[..., i], range(4 * i, 4 * i + 4), -2) for i in (0, 1))
    return (low | high).flatten(3)


def _eight_signs(sevens: Tensor) -> Tensor:
    """Seven signs per eight weights (b, 16, groups, 32), of which the eighth is the parity: (b, 16, groups, 256)."""
    signs = bits_of(sevens)
    signs[..., 7] = signs[..., :7].sum(-1) & 1
    return signs.flatten(3)


def _seven_signs(sevens: Tensor, free: Tensor) -> Tensor:
    """Sign words of `_eight_signs`. One of eight is left out, and in its four places per lane is `free` (b, groups,
    unit, g, t, 4)."""
    bits = _sign_bits(_eight_signs(sevens))
    bits[..., ::2, 1, :, 1, 1] = free[..., ::2, :]
    bits[..., 1::2, 0, :, 1, 1] = free[..., 1::2, :]
    return _sign_words(bits)


def _fours(values: Tensor) -> Tensor:
    """One value per eight weights, of four registers each: (b, groups, unit, g, t / 2, register / 4, register % 4)."""
    return torch.unflatten(lane_registers(values), -1, (2, 4))


def _quads(values: Tensor) -> Tensor:
    """(b, 16, groups, 8 subs, n) to (b, groups, unit, g, sub of the unit, row half, n)."""
    b, _, groups, _, n = values.shape
    return values.reshape(b, 2, 8, groups, 4, 2, n).permute(0, 3, 4, 2, 5, 1, 6)


def _packed_signs(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight words of a group, of four times seven signs and a scale: seven signs per eight weights (b, 16, groups, 32),
    and the bits of a scale per lane (b, groups, unit, g, t, 4), of sub t / 2, upper or lower row."""
    words = packed.reshape(*packed.shape[:3], 8, 4).contiguous().view(torch.int32)
    place = torch.arange(0, 28, 7, dtype=torch.int32, device=packed.device)
    sevens = (words >> place & 127).byte().flatten(3)
    return sevens, bits_of(_quads((words >> 28 & 15).byte()).flatten(4))[..., :4]


def pack_iq2_xxs(blocks: Tensor) -> Tensor:
    d, words = fields(blocks, 2, 64)
    index, packed = fields(words, 4, 4)
    return tile([row_pairs(d)], _indices(index), _seven_signs(*_packed_signs(packed)))


def pack_iq3_xxs(blocks: Tensor) -> Tensor:
    d, index, packed = fields(blocks, 2, 64, 32)
    sevens, scales = _packed_signs(packed)
    codes = lane_codes(_eight_signs(sevens)).flatten(5, 7).contiguous()  # (b, groups, unit, g, t, register, value)
    codes[..., ::2, 4:, 3] = scales[..., ::2, :]
    codes[..., 1::2, :4, 3] = scales[..., 1::2, :]
    return tile([row_pairs(d)], _indices(index), byte_of(codes, range(8), -2).flatten(3))


def pack_iq2_xs(blocks: Tensor) -> Tensor:
    d, index, scales = fields(blocks, 2, 64, 8)
    low, high = index[..., ::2], index[..., 1::2]
    # Lane t of a pair of lanes has the ninth bits of registers 4..7, the other lane those of 0..3.
    ninth = _fours(high & 1).flip(-2).flatten(4, 5)
    return tile([row_pairs(d), per_row(scales)], _indices(low), _seven_signs((high >> 1).flatten(3), ninth))


def pack_iq2_s(blocks: Tensor) -> Tensor:
    d, index, signs, high, scales = fields(blocks, 2, 32, 32, 8, 8)
    words = _sign_words(_sign_bits(bits_of(signs).flatten(3)))
    upper = byte_of(_fours(pairs_of(high)), (0, 2, 4, 6)).flatten(3)
    return tile([row_pairs(d), per_row(scales)], _indices(index), words, upper)


def pack_iq1_s(blocks: Tensor) -> Tensor:
    d, index, high = fields(blocks, 2, 32, 16)
    return tile([row_pairs(d)], _indices(index), _quads(torch.unflatten(high, -1, (8, 2)).squeeze(3)).flatten(3))


def pack_iq1_m(blocks: Tensor) -> Tensor:
    index, high, scales = fields(blocks, 32, 16, 8)
    nibbles = lane_registers(adjacent_nibbles(high))
    return tile([per_row(scales)], _indices(index), (nibbles[..., ::2] | nibbles[..., 1::2] << 4).flatten(3))
