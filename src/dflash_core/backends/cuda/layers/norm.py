"""RMS norm on a card: the residual stream brought up to date, and activations of what reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.launch import NULL, WARP, Argument, At, Launch, ceil_div
from dflash_core.backends.cuda.projection import Acts, AnyProjection
from dflash_core.backends.cuda.repack import groups_of

if TYPE_CHECKING:
    from dflash_core.backends.cuda.products import Op, Ops

ROW_BLOCKS = 5  # that share a row of a norm, where blocks can form clusters
ROW_THREADS = 256  # of the kernels that work on a chunk's rows

# The projection whose split-K partials are added to the residual stream, and their memory.
Added = tuple[AnyProjection, Tensor]


def norm_launch(
    h: Tensor,
    weight: Tensor,
    eps: float,
    rows: int,
    acts: Acts,
    wanted: AnyProjection,
    count: At,
    node0: int,
    *,
    added: Added | None = None,
    fresh: bool = False,
    both: bool = False,
    captured: At | None = None,
    captured_width: int = 0,
    normed: Tensor | None = None,
) -> Launch:
    """h += the partials of the projection before, then RMSNorm as the activations that `wanted` reads.

    `fresh`: h is the partials alone. `both`: other projections read the activations too. `captured`: where the sum
    goes as well, in rows of `captured_width`. `normed`: where the normed rows go as well, f32.
    """
    width = h.shape[1]
    defines: dict[str, object] = {"WIDTH": width, "SPLIT_K": added[0].split_k if added else 0, **wanted.forms}
    if fresh:
        defines["FRESH"] = 1
    assert not both or not wanted.forms, "one form for all who read the activations"
    forms = (At(acts.q8, 0), At(acts.f16, 0)) if both else wanted.wanted(acts)
    args = [
        h, added[1] if added else NULL, np.int32(rows), weight, np.float32(eps), *forms,
        captured if captured is not None else NULL, np.int32(captured_width), count, np.int32(node0),
    ]  # fmt: skip
    if normed is not None:
        defines["ROWS"] = 1
        args.append(normed)

    def launch(blocks: int, clustered: Launch | None = None) -> Launch:
        threads = WARP * min(ceil_div(groups_of(width), blocks), 32)
        shape = {**defines, "CLUSTER": blocks}
        return Launch("norm.cu", "rms_norm", shape, rows * blocks, threads, args, per_sm=2, clustered=clustered)

    return launch(1, launch(ROW_BLOCKS))


def chunk_norm(
    ops: Ops, count: At, h: Tensor, weight: Tensor, eps: float, out: Tensor, floats: Tensor | None = None
) -> Op:
    """RMSNorm of a chunk's rows `h` (rows, width), f32 or f16, as f16 rows `out`; as f32 rows `floats` as well where
    `h` is f32 and they are wanted."""
    args: list[Argument] = [count, h, weight, np.float32(eps), out]
    defines: dict[str, object] = {"WIDTH": h.shape[1]}
    if floats is not None:
        defines["ROWS"] = 1
        args.append(floats)
    name = "rows_norm" if h.dtype == torch.float32 else "rows_norm_f16"
    return ops.add(Launch("rows.cu", name, defines, len(h), ROW_THREADS, args))


def chunk_rows(ops: Ops, count: At, rows: int, name: str, width: int, args: Sequence[Argument]) -> Op:
    """A kernel of rows.cu that works on `width` elements of every row."""
    grid = (ceil_div(width, 8 * ROW_THREADS), rows)
    return ops.add(Launch("rows.cu", name, {"WIDTH": width}, grid, ROW_THREADS, [count, *args]))
