"""Gemma 4's MTP assistant in plain torch: a few layers that read the target's keys and values, and no others.

All tokens of a draft stand at one position, that of the first, and see the target's keys before it; nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_core.arch.assistant import AssistantConfig
from dflash_core.attention_window import AttentionWindow
from dflash_core.models.block import Block
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.models.norm import rms_norm
from dflash_core.models.rows import LayerState, Rows
from dflash_core.models.target import TargetModel


@dataclass(frozen=True, slots=True)
class Reader(Rows):
    """A row that sees the committed positions, and is not one of them."""

    @staticmethod
    def after(length: int) -> Reader:
        """A row at position `length`, after that many committed ones."""
        none = torch.zeros(1, 0, dtype=torch.bool)
        return Reader((), (), length, torch.tensor([length]), none, none, none.double())

    def seen(self, window: AttentionWindow) -> list[slice]:
        return window.runs(self.length, self.length)

    def visible(self, window: AttentionWindow | None = None) -> Tensor:
        runs = self.seen(window or self.window)
        return torch.ones(1, sum(run.stop - run.start for run in runs), dtype=torch.bool)


class Centroids:
    """Chooses the tokens that get logits: those of the `used` cells whose centroids suit the hidden state best."""

    def __init__(self, weights: Weights, used: int) -> None:
        self.masked_embd_centroids: Matrix = weights.matrix("masked_embd_centroids.weight")
        cells = self.masked_embd_centroids.shape[0]
        self.tokens = weights.vector("masked_embd_ordering").long().view(cells, -1)
        self.used = min(used, cells)

    def __call__(self, hidden: Tensor) -> Tensor:
        """A normed hidden state (hidden,) -> ids (tokens,)."""
        scores = self.masked_embd_centroids(hidden[None])[0]
        return self.tokens[scores.sort(descending=True, stable=True)[1][: self.used]].flatten()


class Assistant:
    """The whole assistant. `target` embeds its tokens."""

    def __init__(self, weights: Weights, config: AssistantConfig, target: TargetModel) -> None:
        self.config, self.target = config, target
        self.token_embd: Matrix = weights.matrix("token_embd.weight")
        self.pre_projection: Matrix = weights.matrix("nextn.pre_projection.weight")
        self.post_projection: Matrix = weights.matrix("nextn.post_projection.weight")
        self.blk = [Block(weights, index, layer, config.rms_eps) for index, layer in enumerate(config.layers)]
        self.output_norm = weights.vector("output_norm.weight")
        self.centroids = Centroids(weights, config.cells_used) if config.cells else None

    def hidden(self, outputs: Tensor) -> Tensor:
        """Outputs of the target's last layer (n, width) as they go into its head."""
        return rms_norm(outputs, self.target.output_norm, self.target.spec.rms_eps)

    def forward(self, token: int, state: Tensor, length: int, states: Sequence[LayerState]) -> tuple[Tensor, Tensor]:
        """One token after `length` committed ones, with the `state` (1, width) of the token before: logits (vocab,),
        and the state for the next token. Tokens that the centroids leave out have -inf. `states`: the target's."""
        h = self.pre_projection(torch.cat((self.target.embed([token]), state), dim=-1))
        rows = Reader.after(length)
        for block, source in zip(self.blk, self.config.sources, strict=True):
            h = block(h, rows, states[source])
        h = rms_norm(h, self.output_norm, self.config.rms_eps)
        return self._logits(h), self.post_projection(h)

    def _logits(self, h: Tensor) -> Tensor:
        if self.centroids is None:
            return self.token_embd(h)[0]
        ids = self.centroids(h[0])
        logits = h.new_full((self.token_embd.shape[0],), -torch.inf)
        logits[ids] = (self.token_embd.rows(ids.tolist()) @ h[0]).to(logits.dtype)
        return logits
