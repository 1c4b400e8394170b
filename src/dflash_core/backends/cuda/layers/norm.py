"""RMS norm on a card: updates the residual stream and writes the activations of the projection that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.launch import NULL, WARP, Argument, At, Defines, Launch, ceil_div, optional, pointer
from dflash_core.backends.cuda.layers.base import Pass
from dflash_core.backends.cuda.projection import AnyProjection
from dflash_core.backends.cuda.repack import groups_of
from dflash_core.errors import UnsupportedError

if TYPE_CHECKING:
    from dflash_core.backends.cuda.products import Op, Ops

ROW_BLOCKS = 5  # blocks that share a row of a norm, on cards with thread block clusters
ROW_THREADS = 256  # threads per block of the kernels that process a chunk's rows


@dataclass(frozen=True, slots=True)
class Added:
    """What is added to the residual stream: `split_k` partials, the bias of their sum, under a norm of its own.

    `other`: a second branch, which is added to the first one, that one under `first_norm`, before that norm. `factor`
    (1,): of the stream after that. `fresh`: it takes the stream's place.
    """

    split_k: int
    partials: Tensor
    bias: Tensor | None = None
    norm: Tensor | None = None
    other: Added | None = None
    first_norm: Tensor | None = None
    factor: Tensor | None = None
    fresh: bool = False


def norm_launch(
    scope: Pass,
    weight: Tensor | None,
    reader: AnyProjection,
    *,
    h: Tensor | None = None,
    added: Added | None = None,
    both: bool = False,
    captured: At | None = None,
    captured_width: int = 0,
    normed: Tensor | None = None,
    normed_by: Tensor | None = None,
) -> Launch:
    """h += what the previous branch gave, then RMSNorm of h as the activations that `reader` reads.

    `h`: rows in place of the residual stream. `both`: write both forms of activations, for other projections too, int8
    as `reader` reads it. `captured`: a second destination of the sum, in rows of `captured_width`. `normed`: a second
    destination of normed rows, f32; `normed_by`: their weight if it is another one. Without a `weight` activations are
    those of h.
    """
    rows, acts, h = scope.rows, scope.buffers.acts, scope.buffers.h if h is None else h
    width = h.shape[1]
    defines: dict[str, object] = {"WIDTH": width, "SPLIT_K": added.split_k if added else 0, **reader.forms}
    if added is not None and added.fresh:
        defines["FRESH"] = 1
    forms = (At(acts.q8, 0), At(acts.f16, 0)) if both else reader.act_args(acts)
    args = [
        h, added.partials if added else NULL, rows, pointer(weight), np.float32(scope.eps), *forms,
        captured if captured is not None else NULL, captured_width, scope.count, scope.node0,
    ]  # fmt: skip
    if weight is None:
        defines["UNNORMED"] = 1
    chosen, more = optional(ROWS=normed, ROWS_BY=normed_by, **(_options(added) if added else {}))
    if added is not None and added.other is not None:
        chosen = {**chosen, "JOINED": added.other.split_k}

    def launch(blocks: int, clustered: Launch | None = None) -> Launch:
        threads = WARP * min(ceil_div(groups_of(width), blocks), 32)
        shape = {**defines, **chosen, "CLUSTER": blocks}
        return Launch(
            "norm.cu", "rms_norm", shape, rows * blocks, threads, [*args, *more], per_sm=2, clustered=clustered
        )

    return launch(1, launch(ROW_BLOCKS))


def _options(added: Added) -> dict[str, Tensor | None]:
    """What a norm takes for what it adds, by the define that each sets, in the kernel's order."""
    other = added.other
    if other is not None and other.bias is not None:
        raise UnsupportedError("a layer's second branch has a bias, which rms_norm does not add; run it on the CPU")
    joined = (other.partials, added.first_norm, other.norm) if other is not None else (None, None, None)
    names = ("BIASED", "JOINED", "FIRST_NORMED", "SECOND_NORMED", "NORMED", "SCALED")
    return dict(zip(names, (added.bias, *joined, added.norm, added.factor)))


def chunk_norm(
    ops: Ops,
    count: At,
    h: Tensor,
    weight: Tensor | None,
    eps: float,
    out: Tensor,
    floats: Tensor | None = None,
    floats_by: Tensor | None = None,
) -> Op:
    """RMSNorm of a chunk's rows `h` (rows, width), f32 or f16, into f16 rows `out`; without a weight `h` times
    HEADROOM. For f32 rows `h`, `floats` is an optional second output in f32, with `floats_by` under that weight."""
    options, more = optional(ROWS=floats, ROWS_BY=floats_by)
    defines = {"WIDTH": h.shape[1], **({"UNNORMED": 1} if weight is None else {}), **options}
    args: list[Argument] = [count, h, pointer(weight), np.float32(eps), out, *more]
    name = "rows_norm" if h.dtype == torch.float32 else "rows_norm_f16"
    return ops.add(Launch("rows.cu", name, defines, len(h), ROW_THREADS, args))


def chunk_add(
    ops: Ops, count: At, h: Tensor, branch: Tensor, weight: Tensor | None, eps: float, factor: Tensor | None
) -> Op:
    """h += a chunk's rows of `branch`, under an RMSNorm where there is a weight, and then times `factor` where there is
    one; the rows of `branch` become zeros again."""
    options, more = optional(NORMED=weight, SCALED=factor)
    args: list[Argument] = [count, h, branch, np.float32(eps), *more]
    return ops.add(Launch("rows.cu", "rows_add", {"WIDTH": h.shape[1], **options}, len(h), ROW_THREADS, args))


def chunk_rows(
    ops: Ops,
    count: At,
    rows: int,
    name: str,
    width: int,
    args: Sequence[Argument],
    more: Defines = MappingProxyType({}),
) -> Op:
    """A kernel of rows.cu that processes `width` elements of every row. `more`: defines besides the width."""
    grid = (ceil_div(width, 8 * ROW_THREADS), rows)
    return ops.add(Launch("rows.cu", name, {"WIDTH": width, **more}, grid, ROW_THREADS, [count, *args]))
