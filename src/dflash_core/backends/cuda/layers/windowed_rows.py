"""Attention of a prompt's rows with a window, or with a recent window of halves: it reads only keys and values that at
least one row sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from dflash_core.attention_window import AttentionWindow
from dflash_core.backends.cuda.allocator import BLOCK
from dflash_core.backends.cuda.launch import ceil_div
from dflash_core.cache_types import F16, RECENT_STEP, CachePair

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
    q: Tensor, k: Tensor, v: Tensor, window: AttentionWindow, length: int, library: Sequence[SDPBackend],
    scale: float | None = None, sinks: int = 0, kv: CachePair = F16,
) -> Tensor:  # fmt: skip
    """Queries (kv heads, group, n, head_dim) of positions from `length` on, keys and values (kv heads, keys, head_dim)
    of `sinks` keys that every row sees and of `window.runs(length, length + n)` -> (kv heads, group, n, head_dim).

    Where `kv` has a recent window, keys are those of `kv.runs`: each row sees a position in one of its forms.
    """
    (group, n), seen = q.shape[1:3], k.shape[1]
    runs, recent = window.runs(length, length + n), list[slice]()
    if kv.recent:
        runs, recent = kv.runs(runs, length, length + n)
    packed = sinks + sum(run.stop - run.start for run in runs) if recent else seen
    keys, at, end = torch.arange(-sinks, seen - sinks, dtype=torch.int32, device=q.device), sinks, 0
    for run in (*runs, *recent):
        keys[at:] += run.start - end
        at, end = at + run.stop - run.start, run.stop
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k, v = (rows[:, None].expand(-1, group, -1, -1) for rows in (k, v))
    step = _step(seen)
    for begin in range(0, n, step):
        some = q[:, :, begin : begin + step]
        rows = torch.arange(length + begin, length + begin + some.shape[2], dtype=torch.int32, device=q.device)[:, None]
        mask = _mask(_hidden(keys, rows, window, kv, packed), q.dtype)
        with sdpa_kernel(list(library)):
            out[:, :, begin : begin + step] = scaled_dot_product_attention(some, k, v, attn_mask=mask, scale=scale)
    return out


def _hidden(keys: Tensor, at: Tensor, window: AttentionWindow, kv: CachePair, packed: int) -> Tensor:
    """Whether rows of positions `at` (rows, 1) do not see keys of positions `keys`, the first `packed` of them packed,
    the others as halves."""
    hidden = keys > at
    if window.size:
        hidden = keys <= at - window.size
        hidden &= keys >= window.sinks
        hidden |= keys > at
    if kv.recent:
        border = (at + 1 - kv.recent).clamp_(min=0) // RECENT_STEP * RECENT_STEP
        hidden[:, :packed] |= keys[:packed] >= border
        hidden[:, packed:] |= keys[packed:] < border
    return hidden


def _mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores (rows, keys): 0, or minus infinity for a hidden key.

    The mask has the form that the library uses: from a mask of bools the library would make two more masks.
    """
    rows, keys = hidden.shape
    mask = torch.zeros(rows, ceil_div(keys, ALIGNED) * ALIGNED, dtype=dtype, device=hidden.device)
    return mask[:, :keys].masked_fill_(hidden, -torch.inf)
