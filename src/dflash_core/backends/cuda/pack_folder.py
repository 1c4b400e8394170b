"""The packers of types that only folders of safetensors have (kernels/formats/int4.cuh, kernels/formats/f8.cuh).

Blocks have the shape (b, 16, groups, bytes of 256 weights); they return (b, groups, tile bytes).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_core.backends.cuda.tile_parts import lane_codes, lane_nibbles, per_row, unit_planes, whole_tile
from dflash_core.formats.folder_blocks import BF16_SCALE


def pack_int4(blocks: Tensor, group: int) -> Tensor:
    """Groups of `group` weights with a scale and a zero."""
    scales, zeros, codes = _parts(blocks, group)
    return whole_tile(per_row(scales.flatten(3)), per_row(zeros), unit_planes(lane_nibbles(codes)))


def pack_symmetric(blocks: Tensor) -> Tensor:
    """Groups of 128 weights with a scale, whose zeros are all 8; padding has zeros and scales of 0."""
    scales, zeros, codes = _parts(blocks, 128)
    bits = scales.contiguous().view(torch.int16)[..., 0]
    wide = (bits.int() << 16).view(torch.float32)
    values = torch.where(zeros >= BF16_SCALE, wide, bits.view(torch.float16).float())
    head = values.contiguous().view(torch.uint8)
    return whole_tile(per_row(head), unit_planes(lane_nibbles(codes ^ 8)))


def _parts(blocks: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scales (.., groups, 2 bytes), zeros (.., groups) and codes (.., 256)."""
    each = blocks.reshape(*blocks.shape[:3], 256 // group, 3 + group // 2)
    codes = torch.stack((each[..., 3:] & 15, each[..., 3:] >> 4), dim=-1).flatten(3)
    return each[..., :2], each[..., 2], codes


def pack_f8(blocks: Tensor) -> Tensor:
    """Codes of 8 bits with a scale per 128 weights."""
    b, rows, groups, _ = blocks.shape
    each = blocks.reshape(b, rows, groups, 2, 132)
    scales = each[..., :4].contiguous().view(torch.float32)[..., 0]
    first, second = scales[..., 0], scales[..., 1]
    # Codes of a scale of 0 mean 0, and no ratio makes another scale of it: the scale is replaced and the codes are 0.
    live = scales != 0
    codes = torch.where(live[..., None], each[..., 4:], 0).flatten(3)
    second = torch.where(live[..., 1], second, torch.where(live[..., 0], first, 1.0))
    head = torch.stack((first / second, second), dim=-1).contiguous().view(torch.uint8)
    fragments = lane_codes(codes).permute(0, 1, 2, 5, 3, 4, 6, 7, 8)
    return whole_tile(per_row(head), fragments.flatten(2))
