"""Attention sinks of a prompt's rows, for a library that knows none.

A sink is a further key without a value. Its score is the same for all rows of a head, so rows get a few more
dimensions: in these a query has the score, over the scale, and the sink has ones where other keys have zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

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
