"""Draft blocks for training: where they begin, and what they have to predict."""

from __future__ import annotations

import torch
from torch import Tensor

from .data import ANSWER
from .loop import split_tokens


def pick_blocks(
    tokens: Tensor, seg: Tensor, count: int, size: int, draws: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`count` draft blocks of each row, anchored inside answers; tokens and seg are (B, S) with the ANSWER bit.

    Returns anchor and anchor_seg (B, count), the true tokens of the blocks (B, count, size), and which of these lie in
    the anchor's document.
    """
    ids, _, _, answer_next = split_tokens(tokens, seg)
    length = tokens.shape[1]
    allowed = (answer_next & (tokens >= ANSWER)).float() + 1e-9  # all zeros would be an error
    anchor = torch.multinomial(allowed, count, True, generator=draws)
    index = anchor[..., None] + torch.arange(size, device=tokens.device)
    index_in = index.clamp(max=length - 1).flatten(1)
    block = ids.gather(1, index_in).view(index.shape)
    anchor_seg = seg.gather(1, anchor)
    inside = (index < length) & (seg.gather(1, index_in).view(index.shape) == anchor_seg[..., None])
    return anchor, anchor_seg, block, inside & (anchor_seg >= 0)[..., None]
