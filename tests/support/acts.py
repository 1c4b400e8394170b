"""What kernels/acts.cuh stores, read back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BLOCK_Q8, BLOCK_F16 = 2208, 4384


def acts_f16(blocks: npt.NDArray[np.uint8], rows: int, width: int) -> npt.NDArray[np.float64]:
    """(groups * 8, BLOCK_F16) -> (rows, width)."""
    groups = len(blocks) // 8
    blocks = blocks.reshape(groups, 8, BLOCK_F16)
    values = np.ascontiguousarray(blocks[..., :4096]).view(np.float16).reshape(groups, 8, 8, 8, 4, 2, 4)
    scales = np.ascontiguousarray(blocks[..., 4096:4128]).view(np.float32)
    # [group, row block, sub, row, t, half of sub, i] -> [row block, row, group, sub, half of sub, t, i]
    x = values.transpose(1, 3, 0, 2, 5, 4, 6).reshape(64, groups, 256).astype(np.float64)
    x = x * scales.transpose(1, 2, 0).reshape(64, groups, 1)
    return x.reshape(64, groups * 256)[:rows, :width]


def acts_q8(blocks: npt.NDArray[np.uint8], rows: int, width: int) -> tuple[npt.NDArray[np.float64], ...]:
    """(groups * 8, BLOCK_Q8) -> values (rows, width), and the step that each was rounded to."""
    groups = len(blocks) // 8
    blocks = blocks.reshape(groups, 8, BLOCK_Q8)
    values = np.ascontiguousarray(blocks[..., :2048]).view(np.int8).reshape(groups, 8, 4, 8, 4, 2, 2, 4)
    scales = np.ascontiguousarray(blocks[..., 2048:2080]).view(np.float32)
    # [group, row block, unit, row, t, sub, half of sub, i] -> [row block, row, group, unit, sub, half of sub, t, i]
    q = values.transpose(1, 3, 0, 2, 5, 6, 4, 7).reshape(64, groups, 256).astype(np.float64)
    step = np.broadcast_to(scales.transpose(1, 2, 0).reshape(64, groups, 1), q.shape).astype(np.float64)
    return tuple(x.reshape(64, groups * 256)[:rows, :width] for x in (q * step, step))
