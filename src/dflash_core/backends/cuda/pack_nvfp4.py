"""The packer of NVFP4 (kernels/formats/nvfp4.cuh).

Blocks have the shape (b, 16, groups, bytes of 256 weights); it returns (b, groups, tile bytes).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_core.backends.cuda.tile_parts import (
    lane_codes,
    per_row,
    split_nibbles,
    unit_planes,
    whole_tile,
)

FACTOR = 256  # where a tile of NVFP4 has its matrix's factor, four bytes of f32


def _words(values: Tensor) -> Tensor:
    """(b, 16, groups, 256) numbers of three bits and a sign to the units' words: (b, groups, 4, 512) bytes."""
    codes = lane_codes(values)  # (.., row half, value)
    magnitude, sign = codes & 7, codes >> 3
    bytes_ = (magnitude[..., 0::2] | magnitude[..., 1::2] << 4).flatten(-2)
    return (bytes_ | sign[..., 1, :] << 3 | sign[..., 0, :] << 7).flatten(3)


def pack_nvfp4(blocks: Tensor) -> Tensor:
    b, _, groups, _ = blocks.shape
    each = blocks.reshape(b, 16, groups, 4, 36)
    scales = each[..., :4].flatten(3)
    scales = torch.where(scales == 0x7F, 0, scales & 0x7F)  # ggml reads this code as zero, and no sign
    values = split_nibbles(each[..., 4:].reshape(b, 16, groups, 4, 4, 8))
    factor = torch.tensor([1.0, 0, 0, 0], device=blocks.device).view(torch.uint8).expand(b, groups, 16)
    return whole_tile(per_row(scales.byte()), factor, unit_planes(_words(values)))


def set_factors(tiles: Tensor, factors: Sequence[float]) -> None:
    """What NVFP4 matrices are multiplied by: tiles (blocks of 16 rows, groups, bytes) of `factors` equal matrices."""
    stored = torch.tensor(factors, dtype=torch.float32).view(torch.uint8).view(-1, 4).to(tiles.device)
    tiles[..., FACTOR : FACTOR + 4] = stored.repeat_interleave(len(tiles) // len(factors), dim=0)[:, None]
