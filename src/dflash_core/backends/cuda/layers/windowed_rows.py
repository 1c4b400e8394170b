"""Attention of a prompt's rows as the library does not have it: with a window, which reads only keys and values that
at least one row sees, and with sinks.

A sink is a further key without a value. Its score is the same for all rows of a head, so rows get a few more
dimensions: in these a query has the score, over the scale, and the sink has ones where other keys have zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from dflash_core.attention_window import AttentionWindow
from dflash_core.backends.cuda.allocator import BLOCK
from dflash_core.backends.cuda.launch import ceil_div

MAX_PAIRS = 4 << 20  # pairs of rows and keys per mask: 8 MiB, and twice 4 MiB while it is built
ALIGNED = 8  # a mask's rows have a multiple of this many numbers: otherwise the library copies the mask
HALF, COUNT = torch.float16.itemsize, torch.int32.itemsize


def windowed_results(q: tuple[int, int, int, int], context: int, copies: int, *, more_queries: bool = False) -> int:
    """The most bytes that `windowed_attention` allocates at a time for queries of shape `q`, with `copies` copies of
    the keys or values of up to `context` visible positions, and with `more_queries` one of the queries. Without a
    window, the result takes less."""
    heads, group, rows, dim = q
    result, pairs = rows * heads * group * dim * HALF, min(max(MAX_PAIRS, context), rows * context)
    mask = (pairs + rows * ALIGNED) * HALF
    # `hidden` of `_mask` is freed before the result is allocated.
    parts = [*[heads * context * dim * HALF] * copies, context * COUNT, result, mask, max(pairs, result)]
    parts += [result] if more_queries else []
    return sum(ceil_div(part, BLOCK) * BLOCK for part in parts)


def _step(seen: int) -> int:
    """Rows that share a mask."""
    return max(MAX_PAIRS // seen, 1)


def windowed_attention(
    q: Tensor, k: Tensor, v: Tensor, window: AttentionWindow, length: int, scale: float | None = None,
    sinks: int = 0, runs: Sequence[slice] = (),
) -> Tensor:  # fmt: skip
    """Queries (kv heads, group, n, head_dim) of positions from `length` on, keys and values (kv heads, keys, head_dim)
    of `sinks` keys that every row sees and of the positions in `runs`, if not given `window.runs(length, length + n)`
    -> (kv heads, group, n, head_dim). The caller chooses the library's kernels."""
    (group, n), seen = q.shape[1:3], k.shape[1]
    keys, at, end = torch.arange(-sinks, seen - sinks, dtype=torch.int32, device=q.device), sinks, 0
    for run in runs or window.runs(length, length + n):
        keys[at:] += run.start - end
        at, end = at + run.stop - run.start, run.stop
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k, v = (rows[:, None].expand(-1, group, -1, -1) for rows in (k, v))
    step = _step(seen)
    for begin in range(0, n, step):
        some = q[:, :, begin : begin + step]
        mask = _mask(keys, length + begin, some.shape[2], window, q.dtype)
        out[:, :, begin : begin + step] = scaled_dot_product_attention(some, k, v, attn_mask=mask, scale=scale)
    return out


def _mask(keys: Tensor, first: int, rows: int, window: AttentionWindow, dtype: torch.dtype) -> Tensor:
    """What is added to scores (rows, keys) of positions from `first` on: 0, or minus infinity for a hidden key.

    The mask has the form that the library uses: from a mask of bools the library would make two more masks.
    """
    at = torch.arange(first, first + rows, dtype=torch.int32, device=keys.device)[:, None]
    hidden = keys <= at - window.size
    hidden &= keys >= window.sinks
    hidden |= keys > at
    mask = torch.zeros(rows, ceil_div(len(keys), ALIGNED) * ALIGNED, dtype=dtype, device=keys.device)
    return mask[:, : len(keys)].masked_fill_(hidden, -torch.inf)


SINK_DIMS = 8  # the library takes rows of whole 16 bytes


def with_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (kv heads, group, n, d), keys and values (kv heads, keys, d), f16, of heads with `sinks` (heads,), f32
    -> the same with SINK_DIMS more dimensions, and the sink as the first key. The result's first d dimensions count."""
    score = (sinks / scale).view(*q.shape[:2], 1, 1)
    high = score.half()
    # Two halves hold 22 bits of the score.
    more = torch.cat((high, (score - high.float()).half()), dim=-1)
    more = pad(more, (0, SINK_DIMS - 2)).expand(-1, -1, q.shape[2], -1)
    keys, values = (pad(rows, (0, SINK_DIMS, 1, 0)) for rows in (k, v))
    keys[:, 0, k.shape[-1] : k.shape[-1] + 2] = 1
    return torch.cat((q, more), dim=-1), keys, values
