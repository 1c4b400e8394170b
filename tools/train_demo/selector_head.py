"""A DFlash 2 drafter under training beside a frozen target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .blocks import pick_blocks
from .draft_net import draft_forward
from .loop import split_tokens
from .pieces import linear
from .shapes import DraftConfig, Weights
from .vocabulary_loss import selected_losses


@dataclass(frozen=True)
class SelectorHead:
    """What training needs of the target.

    features: tokens and seg (B, S) -> outputs of the captured layers (B, S, captured layers * hidden). `embedding` and
    `output` (vocab, hidden) are the target's. Position i of a block has weight exp(-i / gamma): a draft is of use only
    if all before it were accepted.
    """

    config: DraftConfig
    features: Callable[[Tensor, Tensor], Tensor]
    embedding: Tensor
    output: Tensor
    gamma: float = 7.0

    def hidden(self, head: Weights, tokens: Tensor, seg: Tensor, anchor: Tensor, anchor_seg: Tensor) -> Tensor:
        """Output rows (B, A, block - 1, hidden) of the blocks that begin at anchor (B, A) of documents anchor_seg."""
        with torch.no_grad():
            ids = split_tokens(tokens, seg)[0]
            features = self.features(ids, seg)
            asks = torch.full((*anchor.shape, self.config.block), self.config.mask_id, device=ids.device)
            asks[..., 0] = ids.gather(1, anchor)
            noise = F.embedding(asks, self.embedding)
        return draft_forward(self.config, head, features, seg, anchor, anchor_seg, noise)[:, :, 1:]

    def losses(
        self, head: Weights, tokens: Tensor, seg: Tensor, count: int, draws: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Weighted mean cross-entropies over `count` blocks of each row: their sum, to be differentiated, and (2,) of
        the plain scores and of the selector's scores after the true token."""
        anchor, anchor_seg, block, inside = pick_blocks(tokens, seg, count, self.config.block, draws)
        hidden = self.hidden(head, tokens, seg, anchor, anchor_seg)
        weight = inside[..., 1:] * torch.exp(-torch.arange(self.config.block - 1, device=hidden.device) / self.gamma)
        return selected_losses(
            hidden.flatten(0, 2), self.output, block[..., :-1].flatten(), block[..., 1:].flatten(),
            (weight / weight.sum()).flatten(), head["selector_hidden.weight"], head["selector_predecessor.weight"],
            head["selector_successor.weight"],
        )  # fmt: skip

    @torch.no_grad()
    def paths(self, head: Weights, hidden: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (B, A, block - 1) that blocks with output rows `hidden` propose after their roots (B, A): the best by
        plain scores, and the selector's greedy path."""
        assert self.config.selector is not None, "a drafter without a selector"
        logits = linear(hidden, self.output).float()
        best = logits.topk(self.config.selector.top_k, dim=-1)
        gates = linear(hidden, head["selector_hidden.weight"])
        path, before = [], root
        for depth in range(self.config.block - 1):
            gate = F.embedding(before, head["selector_predecessor.weight"]) * gates[:, :, depth]
            pairs = F.embedding(best.indices[:, :, depth], head["selector_successor.weight"]) @ gate[..., None]
            scores = best.values[:, :, depth] + pairs[..., 0].float()
            before = best.indices[:, :, depth].gather(-1, scores.argmax(-1, keepdim=True))[..., 0]
            path.append(before)
        return best.indices[..., 0], torch.stack(path, -1)

    @torch.no_grad()
    def accepted(self, head: Weights, tokens: Tensor, seg: Tensor, count: int, draws: torch.Generator) -> list[float]:
        """Mean number of leading tokens that are right, of both paths, over blocks that end inside their document."""
        anchor, anchor_seg, block, inside = pick_blocks(tokens, seg, count, self.config.block, draws)
        hidden = self.hidden(head, tokens, seg, anchor, anchor_seg)
        whole = inside.all(-1)
        right = [(one == block[..., 1:]).cumprod(-1).sum(-1) for one in self.paths(head, hidden, block[..., 0])]
        return [float((one * whole).sum() / whole.sum().clamp(min=1)) for one in right]
