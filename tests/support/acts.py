"""What kernels/acts.cuh stores, read back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Q8_BLOCK, F16_BLOCK = 2208, 4384
Q8_GROUP, F16_GROUP = 16 * Q8_BLOCK, 8 * F16_BLOCK  # bytes of 64 rows x 256 k


def acts_f16(blocks: npt.NDArray[np.uint8], rows: int, width: int) -> npt.NDArray[np.float64]:
    """(groups, F16_GROUP) -> (rows, width)."""
    groups = len(blocks)
    blocks = blocks.reshape(groups, 8, F16_BLOCK)
    values = np.ascontiguousarray(blocks[..., :4096]).view(np.float16).reshape(groups, 8, 8, 8, 4, 2, 4)
    scales = np.ascontiguousarray(blocks[..., 4096:4128]).view(np.float32)
    # [group, row block, sub, row, t, half of sub, i] -> [row block, row, group, sub, half of sub, t, i]
    x = values.transpose(1, 3, 0, 2, 5, 4, 6).reshape(64, groups, 256).astype(np.float64)
    x = x * scales.transpose(1, 2, 0).reshape(64, groups, 1)
    return x.reshape(64, groups * 256)[:rows, :width]


def acts_q8(
    blocks: npt.NDArray[np.uint8], rows: int, width: int, bits: int = 0, spans: int = 1
) -> tuple[npt.NDArray[np.float64], ...]:
    """(groups, Q8_GROUP) -> values (rows, width), and the step that each was rounded to. `bits`: of a lower plane."""
    groups = len(blocks)
    blocks = blocks.reshape(groups, 2, 8, Q8_BLOCK)
    first, second = blocks[:, 0], blocks[:, 1]

    def words(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.int16]:
        """[group, row block, unit, row, t, two, two, i]"""
        values = np.ascontiguousarray(block[..., :2048]).view(np.int8).reshape(groups, 8, 4, 8, 4, 2, 2, 4)
        return values.astype(np.int16)

    split = words(first)  # sub, half of sub
    if bits:
        both = np.stack((split, words(second)), axis=5)  # sub, half of sub, plane
        split = both[..., 0, :] * 2**bits + both[..., 1, :]
    # -> [row block, row, group, unit, sub, half of sub, t, i]
    q = split.transpose(1, 3, 0, 2, 5, 6, 4, 7).reshape(64, groups, 256).astype(np.float64)
    scales = [first[..., 2048:2080], second[..., 2048:2080]][:spans]
    of_rows = [np.ascontiguousarray(s).view(np.float32).transpose(1, 2, 0).reshape(64, groups) for s in scales]
    step = np.repeat(np.stack(of_rows, axis=-1), 256 // spans, axis=-1).astype(np.float64)
    return tuple(x.reshape(64, groups * 256)[:rows, :width] for x in (q * step, step))
