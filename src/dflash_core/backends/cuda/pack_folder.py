"""The packers of types that only folders of safetensors have (kernels/formats/int4.cuh, kernels/formats/f8.cuh).

Blocks have the shape (b, 16, groups, bytes of 256 weights); they return (b, groups, tile bytes).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_core.backends.cuda.tile_parts import lane_codes, lane_nibbles, per_row, unit_planes, whole_tile


def pack_int4(blocks: Tensor, group: int) -> Tensor:
    """Groups of `group` weights with a scale and a zero."""
    each = blocks.reshape(*blocks.shape[:3], 256 // group, 3 + group // 2)
    codes = torch.stack((each[..., 3:] & 15, each[..., 3:] >> 4), dim=-1).flatten(3)
    scales, zeros = each[..., :2].flatten(3), each[..., 2]
    return whole_tile(per_row(scales), per_row(zeros), unit_planes(lane_nibbles(codes)))


def pack_f8(blocks: Tensor) -> Tensor:
    """Codes of 8 bits with a scale per 128 weights."""
    b, rows, groups, _ = blocks.shape
    each = blocks.reshape(b, rows, groups, 2, 132)
    scales = each[..., :4].contiguous().view(torch.float32)[..., 0]
    first, second = scales[..., 0], scales[..., 1]
    # Codes of a scale of 0 mean 0, and no ratio makes another scale of it: the scale is 1 and the codes are 0.
    live = scales != 0
    codes = torch.where(live[..., None], each[..., 4:], 0).flatten(3)
    second = torch.where(live[..., 1], second, torch.where(live[..., 0], first, 1.0))
    head = torch.stack((first / second, second), dim=-1).contiguous().view(torch.uint8)
    fragments = lane_codes(codes).permute(0, 1, 2, 5, 3, 4, 6, 7, 8)
    return whole_tile(per_row(head), fragments.flatten(2))
