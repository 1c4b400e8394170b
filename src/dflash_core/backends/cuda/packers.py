"""Packers: a file's blocks to super-tiles, a function for each format of kernels/formats.

Blocks have the shape (b, 16, groups, bytes of 256 weights); packers return (b, groups, tile bytes).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_core.backends.cuda.tile_parts import (
    adjacent_nibbles,
    bits_of,
    byte_of,
    fields,
    joined_nibbles,
    lane_bits,
    lane_codes,
    lane_fragments,
    lane_nibbles,
    lane_pairs,
    lane_registers,
    pairs_of,
    per_row,
    rotated_nibbles,
    row_pairs,
    split_bits,
    split_nibbles,
    split_pairs,
    table_nibbles,
    tile,
)
from dflash_core.formats.folder_blocks import BF16_SCALE

FACTOR = 256  # where a tile of NVFP4 has its matrix's factor, four bytes of f32


# ---- Blocks of 256 weights -------------------------------------------------------------------------------------------


def _k_nibbles(qs: Tensor) -> Tensor:
    """The nibbles of Q4_K and Q5_K from their 128 bytes: 32 bytes hold 64 weights, low nibbles first."""
    return split_nibbles(torch.unflatten(qs, -1, (4, 32)))


def _scale_nibbles(packed: Tensor) -> Tensor:
    """Four bytes of eight nibbles, in their order, to the nibbles 0..3 and 4..7 of four bytes."""
    return joined_nibbles(torch.unflatten(adjacent_nibbles(packed).flatten(-2), -1, (2, 4)))


def pack_q2_k(blocks: Tensor) -> Tensor:
    scales, qs, d = fields(blocks, 16, 64, 4)
    return tile([per_row(scales), per_row(d)], lane_pairs(split_pairs(qs)))


def pack_q3_k(blocks: Tensor) -> Tensor:
    lifted, qs, scales, high, d = fields(blocks, 32, 64, 8, 4, 2)
    pairs = split_pairs(qs)  # a high bit that is not set subtracts 4
    upper, lowest = (split_bits(lifted) ^ 1) << 1 | pairs >> 1, pairs & 1
    # Scales 0..7 and 8..15 are the nibbles of eight bytes; four bytes hold the high bit pairs of every fourth scale.
    low = joined_nibbles(torch.unflatten(split_nibbles(scales), -1, (2, 2, 4)))
    heads = [per_row(low), per_row(byte_of(pairs_of(high) ^ 2, (6, 4, 2, 0))), row_pairs(d)]
    return tile(heads, lane_pairs(upper), lane_bits(lowest, (5, 4, 3, 2, 1, 0, 7, 6)))


def pack_q4_k(blocks: Tensor) -> Tensor:
    scales, qs = fields(blocks, 16, 128)
    return tile([per_row(scales)], lane_nibbles(_k_nibbles(qs)))


def pack_q5_k(blocks: Tensor) -> Tensor:
    scales, fifth, qs = fields(blocks, 16, 32, 128)
    return tile([per_row(scales)], lane_nibbles(_k_nibbles(qs)), lane_bits(split_bits(fifth)))


def pack_q6_k(blocks: Tensor) -> Tensor:
    # Two halves of 128 weights: low nibbles of 64 bytes, then their high nibbles; a byte of `high` has four bit pairs.
    qs, high, scales, d = fields(blocks, 128, 64, 16, 2)
    low = split_nibbles(torch.unflatten(qs, -1, (2, 64)))
    upper = split_pairs(high) ^ 2  # q - 32 in two's complement
    return tile([per_row(scales), row_pairs(d)], rotated_nibbles(low, 2), lane_pairs(upper))


def pack_iq4_xs(blocks: Tensor) -> Tensor:
    d, high, low, qs = fields(blocks, 2, 2, 4, 128)
    pairs = torch.unflatten((pairs_of(high) ^ 2).flatten(-2), -1, (4, 2))  # pairs of subs
    head = torch.cat((d, byte_of(pairs, (6, 4, 2, 0), -2), _scale_nibbles(low)), dim=-1)
    return tile([per_row(head)], table_nibbles(split_nibbles(torch.unflatten(qs, -1, (8, 16)))))


def pack_iq3_s(blocks: Tensor) -> Tensor:
    d, index, ninth, signs, scales = fields(blocks, 2, 64, 8, 32, 4)
    high = byte_of(lane_registers(bits_of(ninth)), range(8))
    units = lane_registers(index).flatten(3), lane_bits(bits_of(signs).flatten(3)), high.flatten(3)
    return tile([per_row(_scale_nibbles(scales)), row_pairs(d)], *units)


# ---- Blocks of 32 weights --------------------------------------------------------------------------------------------


def pack_q4_0(blocks: Tensor) -> Tensor:
    d, qs = fields(blocks, 2, 16)
    return tile([per_row(d)], lane_nibbles(split_nibbles(qs) ^ 8))


def pack_q4_1(blocks: Tensor) -> Tensor:
    d, m, qs = fields(blocks, 2, 2, 16)
    return tile([per_row(d), per_row(m)], lane_nibbles(split_nibbles(qs)))


def pack_q5_0(blocks: Tensor) -> Tensor:
    d, fifth, qs = fields(blocks, 2, 4, 16)
    bits = lane_bits(bits_of(fifth).flatten(3) ^ 1, range(7, -1, -1))
    return tile([per_row(d)], rotated_nibbles(split_nibbles(qs), 3), bits)


def pack_q5_1(blocks: Tensor) -> Tensor:
    d, m, fifth, qs = fields(blocks, 2, 2, 4, 16)
    return tile([per_row(d), per_row(m)], lane_nibbles(split_nibbles(qs)), lane_bits(bits_of(fifth).flatten(3)))


def pack_q8_0(blocks: Tensor) -> Tensor:
    d, qs = fields(blocks, 2, 32)
    return tile([per_row(d)], lane_fragments(qs.flatten(3)))


def pack_iq4_nl(blocks: Tensor) -> Tensor:
    d, qs = fields(blocks, 2, 16)
    return tile([per_row(d)], table_nibbles(split_nibbles(qs)))


def pack_mxfp4(blocks: Tensor) -> Tensor:
    exponent, qs = fields(blocks, 1, 16)
    return tile([per_row(exponent)], table_nibbles(split_nibbles(qs)))


# ---- One or two bits, or ternary digits, and a scale -----------------------------------------------------------------


def _ternary(codes: Tensor) -> Tensor:
    """Codes q in 0..3 as 1 - q in two bits."""
    return lane_pairs(1 - codes & 3)


def pack_q1_0(blocks: Tensor) -> Tensor:
    scales, qs = fields(blocks, 2, 16)
    return tile([per_row(scales)], lane_bits(bits_of(qs).flatten(3) ^ 1))


def pack_q2_0(blocks: Tensor) -> Tensor:
    scales, qs = fields(blocks, 2, 16)
    return tile([per_row(scales)], _ternary(pairs_of(qs).flatten(3)))


def pack_tq2_0(blocks: Tensor) -> Tensor:
    qs, d = fields(blocks, 64, 2)
    return tile([row_pairs(d)], _ternary(split_pairs(qs)))


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
    *stored, d = fields(blocks, 32, 16, 4, 2)
    digits = [_digits(part, count).flatten(3) for part, count in zip(stored, (5, 5, 4), strict=True)]
    codes = lane_codes(torch.cat(digits, dim=-1)).flatten(5, 7)  # (b, groups, unit, g, t, register, byte)
    first = _five_digits(codes[..., :5, :].transpose(-1, -2)).flatten(3)
    two = codes[..., 5:7, :].reshape(*codes.shape[:5], 4, 2)  # (.., step 0..3, byte of the two)
    second = _five_digits(torch.cat((two, codes[..., 7:, :2]), dim=-2).transpose(-1, -2)).flatten(3)
    rest = codes[..., 7, 2] | codes[..., 7, 3] << 2
    last = (rest[..., ::2] | rest[..., 1::2] << 4).flatten(3)
    return tile([row_pairs(d)], first, second, last)


# ---- Floats ----------------------------------------------------------------------------------------------------------


def _half_tile(parts: Sequence[Tensor], scale: Tensor) -> Tensor:
    """f16 values (b, 16, groups, 256), whose parts are added to one sum, and scales (b, 16) to tiles."""
    b, _, groups, _ = parts[0].shape
    # rows: half, g; k: chunk, t, pair, two
    split = torch.stack([*parts]).view(len(parts), b, 2, 8, groups, 16, 4, 2, 2)
    fragments = split.permute(1, 4, 5, 0, 3, 6, 7, 2, 8).contiguous().view(torch.uint8).flatten(2)
    head = scale.float()[:, None, :].expand(-1, groups, -1).contiguous().view(torch.uint8)
    return tile([head], fragments)


def pack_f16(blocks: Tensor) -> Tensor:
    values = blocks.contiguous().view(torch.float16)
    return _half_tile([values], torch.ones(blocks.shape[:2], device=blocks.device))


def _row_scale(values: Tensor) -> Tensor:
    """A power of two per row (b, 16); dividing by it brings the largest magnitude into [2^14, 2^15)."""
    largest = values.abs().amax(dim=(2, 3))
    _, exponent = torch.frexp(torch.where(largest.isfinite(), largest, 1.0))
    # Clamped so that 1 / scale is a normal f32 number too.
    return torch.ldexp(torch.ones_like(largest), (exponent - 15).clamp(-126, 126))


def pack_bf16(blocks: Tensor) -> Tensor:
    """The 8 significant bits of a bf16 fit an f16; values below 2^-29 of their row's largest lose some of them."""
    values = blocks.contiguous().view(torch.bfloat16).float()
    scale = _row_scale(values)
    return _half_tile([(values / scale[:, :, None, None]).half()], scale)


def pack_f32(blocks: Tensor) -> Tensor:
    """Two f16 numbers hold 22 significant bits, for values down to 2^-39 of the row's largest."""
    values = blocks.contiguous().view(torch.float32)
    scale = _row_scale(values)
    scaled = values / scale[:, :, None, None]
    upper = scaled.half()
    return _half_tile([upper, (scaled - upper.float()).half()], scale)


def pack_nvfp4(blocks: Tensor) -> Tensor:
    scales, qs = fields(blocks, 4, 32)
    scales = torch.where(scales == 0x7F, 0, scales & 0x7F)  # ggml reads this code as zero, and no sign
    codes = lane_codes(split_nibbles(torch.unflatten(qs, -1, (4, 8))))  # (.., row half, value): three bits and a sign
    magnitude, sign = codes & 7, codes >> 3
    bytes_ = (magnitude[..., 0::2] | magnitude[..., 1::2] << 4).flatten(-2)
    words = (bytes_ | sign[..., 1, :] << 3 | sign[..., 0, :] << 7).flatten(3)
    factor = torch.tensor([1.0, 0, 0, 0], device=blocks.device).view(torch.uint8)
    return tile([per_row(scales.byte()), factor.expand(len(blocks), blocks.shape[2], 16)], words)


def set_factors(tiles: Tensor, factors: Sequence[float]) -> None:
    """What NVFP4 matrices are multiplied by: tiles (blocks of 16 rows, groups, bytes) of `factors` equal matrices."""
    stored = torch.tensor(factors, dtype=torch.float32).view(torch.uint8).view(-1, 4).to(tiles.device)
    tiles[..., FACTOR : FACTOR + 4] = stored.repeat_interleave(len(tiles) // len(factors), dim=0)[:, None]


# ---- Types that only folders of safetensors have ---------------------------------------------------------------------


def pack_int4(blocks: Tensor, group: int) -> Tensor:
    """Groups of `group` weights with a scale and a zero."""
    scales, zeros, qs = fields(blocks, 2, 1, group // 2)
    return tile([per_row(scales), per_row(zeros)], lane_nibbles(adjacent_nibbles(qs).flatten(3)))


def pack_symmetric(blocks: Tensor) -> Tensor:
    """Groups of 128 weights with a scale, whose zeros are all 8; padding has zeros and scales of 0."""
    scales, zeros, qs = fields(blocks, 2, 1, 64)
    bits = scales.contiguous().view(torch.int16)
    wide = (bits.int() << 16).view(torch.float32)
    values = torch.where(zeros >= BF16_SCALE, wide, bits.view(torch.float16).float())
    return tile([per_row(values.view(torch.uint8))], lane_nibbles(adjacent_nibbles(qs).flatten(3) ^ 8))


def pack_f8(blocks: Tensor) -> Tensor:
    """Codes of 8 bits with a scale per 128 weights."""
    stored, qs = fields(blocks, 4, 128)
    scales = stored.contiguous().view(torch.float32)[..., 0]
    first, second = scales[..., 0], scales[..., 1]
    # Codes of a scale of 0 mean 0, and no ratio makes another scale of it: the scale is replaced and the codes are 0.
    live = scales != 0
    codes = torch.where(live[..., None], qs, 0).flatten(3)
    second = torch.where(live[..., 1], second, torch.where(live[..., 0], first, 1.0))
    head = torch.stack((first / second, second), dim=-1).contiguous().view(torch.uint8)
    return tile([per_row(head)], lane_fragments(codes))


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
