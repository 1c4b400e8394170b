"""The keys, or values, that a prompt's rows see: those of the cache, or copies of them as f16 where it is packed, and
behind these the halves of a recent window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention
from torch.nn.functional import pad, scaled_dot_product_attention

from dflash_core.attention_window import AttentionWindow
from dflash_core.backends.cuda.chunk import Chunk, Fill, Stage, View
from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import WARP, Argument, At, Launch, ceil_div
from dflash_core.backends.cuda.layers.split_attention import PREPARE_WARPS
from dflash_core.backends.cuda.meta import BLOCK
from dflash_core.backends.cuda.products import Op
from dflash_core.cache_types import F16

UNPACK_BLOCKS = 1024  # thread blocks of attn_unpack_keys; they loop over the rows


class VisibleRows:
    """Keys or values of f16, read in their place. `rows`: of the kv heads of a turn."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def seen(self, view: View, stage: Stage) -> Tensor:
        """What the rows of a stage read, (kv heads, keys, head_dim) f16; stages are taken in order."""
        if view.masked:
            return torch.cat([self._rows[:, fill.slots] for fill in view.fills], dim=1)
        return self._rows[:, : stage.keys]


class UnpackedRows(VisibleRows):
    """Packed keys or values, of which `unpack` writes the first fill of a view to `halves`. `recent`: the ring of a
    recent window; `packed`: where rows wait that the first rows of a chunk read as halves, and the last ones packed."""

    def __init__(
        self, chunk: Chunk, rows: Tensor, halves: Tensor, unpack: Launch, recent: Tensor | None, packed: Tensor | None
    ) -> None:
        super().__init__(rows)
        self._ops, self._halves, self._unpack, self._recent, self._packed = chunk.ops, halves, unpack, recent, packed
        self._bound = {(unpack.name, 0): chunk.ops.add(unpack)}  # by kernel and place of a fill's numbers

    def seen(self, view: View, stage: Stage) -> Tensor:
        halves, packed, border = self._halves, self._packed, view.border.start
        if stage is view.stages[0]:
            for fill in view.fills:
                self._copy(view, fill, self._rows, self._unpack.name)
            if packed is not None and self._recent is not None:
                packed[:, : view.border.stop - border] = halves[:, view.border]
                for fill in view.newest:
                    self._copy(view, fill, self._recent, self._unpack.name.replace("unpack", "newest"))
        elif packed is not None:
            begin, end = stage.packed.start, stage.packed.stop
            halves[:, begin:end] = packed[:, begin - border : end - border]
        return halves[:, : stage.keys]

    def _copy(self, view: View, fill: Fill, rows: Tensor, name: str) -> None:
        """Copy a fill out of `rows`. Its kernel is bound once: the host would be slower than the card."""
        if (name, fill.place) not in self._bound:
            args = unpack_args(view, fill.place, rows, self._halves)
            self._bound[name, fill.place] = Op(self._ops.device, replace(self._unpack, name=name, args=args))
        self._bound[name, fill.place]()


def unpack_args(view: View, place: int, rows: Tensor, halves: Tensor) -> list[Argument]:
    """Arguments of kernels that copy a fill of `rows` (kv heads, slots, row) to `halves`."""
    heads, slots = (np.int32(size) for size in rows.shape[:2])
    return [At(view.counts, 4 * place), rows, heads, slots, halves]


def visible_rows(
    chunk: Chunk,
    view: View,
    together: range,
    kv: KVCache,
    place: int,
    copies: Sequence[Tensor],
    defines: Mapping[str, object],
) -> Iterator[VisibleRows]:
    """The keys and the values of a layer, of kv heads `together`. `copies`: for each of the two that is packed, the
    place that a kernel of attention_rows.cu unpacks it to; with a recent window two more, for `packed`."""
    left, borders, heads = iter(copies), iter(copies[2:]), slice(together.start, together.stop)
    newest = (kv.newest.k, kv.newest.v) if kv.newest else (None, None)
    names = "attn_unpack_keys", "attn_unpack_values"
    for name, kind, cache, recent in zip(names, (kv.kv.k, kv.kv.v), (kv.k, kv.v), newest, strict=True):
        rows = cache[place, heads]
        if kind == F16.k:
            yield VisibleRows(rows)
            continue
        halves = next(left)
        args = unpack_args(view, 0, rows, halves)
        launch = Launch("attention_rows.cu", name, defines, UNPACK_BLOCKS, WARP * PREPARE_WARPS, args)
        own = (None, None) if recent is None else (recent[place, heads], next(borders))
        yield UnpackedRows(chunk, rows, halves, launch, *own)


LOWER_RIGHT = 2  # CustomMaskType of the library's memory-efficient kernels


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    """Queries, keys and values (kv heads, group, n or keys, head_dim) -> like the queries; the last query sees all
    keys, the one before all but the last. The caller chooses the library's kernels.

    As with `torch.nn.attention.bias.causal_lower_right`, whose module loads torch's compiler: 3 to 4 seconds of a load.
    """
    n, seen = q.shape[2], k.shape[2]
    if n == seen:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    request = SDPAParams(q, k, v, None, 0.0, False, False)
    mixed: Tensor
    if can_use_flash_attention(request):
        mixed, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, is_causal=True, scale=scale)
        return mixed
    if can_use_efficient_attention(request):
        rows = (one.transpose(1, 2) for one in (q, k, v))
        mixed, *_ = torch.ops.aten._efficient_attention_forward(
            *rows, None, None, None, None, None, 0.0, LOWER_RIGHT, scale=scale
        )
        return mixed.transpose(1, 2)
    return scaled_dot_product_attention(q, k, v, attn_mask=_lower_right(n, seen, q.device), scale=scale)


def _lower_right(rows: int, keys: int, device: torch.device) -> Tensor:
    """The mask of `causal_attention` where the library has no kernel that needs none."""
    return torch.ones(rows, keys, dtype=torch.bool, device=device).tril(keys - rows)


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
