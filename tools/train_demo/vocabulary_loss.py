"""Cross-entropies over a large vocabulary, whose logits are never stored as a whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .pieces import Piece, linear

ROWS = 4096
"""Rows whose logits are in memory at a time."""


@Piece
def _gradients(unary: Tensor, scored: Tensor, labels: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weighted losses of both logits (n, vocab), and the gradients of their sum for `unary` and for what was added."""
    dtype, column = unary.dtype, labels[:, None]
    plain, selected = unary.float().log_softmax(-1), scored.float().log_softmax(-1)
    hit = (torch.arange(unary.shape[-1], device=unary.device) == column).float()
    added = weight[:, None] * (selected.exp() - hit)
    both = weight[:, None] * (plain.exp() - hit) + added
    losses = [-(weight * one.gather(1, column)[:, 0]).sum() for one in (plain, selected)]
    return losses[0], losses[1], both.to(dtype), added.to(dtype)


class _Losses(torch.autograd.Function):
    """Gradients are computed with the losses, chunk by chunk: recomputing the logits would cost a third more."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, gate: Tensor, successor: Tensor, head: Tensor, labels: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        d_hidden, d_gate = torch.empty_like(hidden), torch.empty_like(gate)
        d_successor = torch.zeros_like(successor, dtype=torch.float32)
        parts = torch.zeros(2, device=hidden.device)
        for at in range(0, len(hidden), ROWS):
            here = slice(at, at + ROWS)
            unary = hidden[here] @ head.T
            scored = torch.addmm(unary, gate[here], successor.T)
            plain, selected, both, added = _gradients(unary, scored, labels[here], weight[here])
            parts += torch.stack([plain, selected])
            d_hidden[here] = both @ head
            d_gate[here] = added @ successor
            d_successor += (added.T @ gate[here]).float()
        ctx.save_for_backward(d_hidden, d_gate, d_successor.to(successor.dtype))
        ctx.mark_non_differentiable(parts)
        return parts.sum(), parts

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        return *(given[0] * one for one in ctx.saved_tensors), None, None, None


def selected_losses(
    hidden: Tensor, head: Tensor, before: Tensor, labels: Tensor, weight: Tensor, proj: Tensor, predecessor: Tensor,
    successor: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The sum of two weighted cross-entropies, to be differentiated, and the two by themselves (2,).

    They are those of the plain scores, and of the scores with the selector's terms for the tokens `before`. hidden
    (n, hidden), before, labels and weight (n,) are those of the drafted positions. Both are over the whole vocabulary;
    the decoder uses the selector on the best few tokens only. `head` gets no gradient.
    """
    hidden = hidden.to(head.dtype)
    gate = F.embedding(before, predecessor) * linear(hidden, proj)
    moved = gate.to(head.dtype)
    total, parts = _Losses.apply(hidden, moved, successor, head, labels, weight)  # type: ignore[no-untyped-call]
    return total, parts
