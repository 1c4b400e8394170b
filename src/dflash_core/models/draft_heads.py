"""What newer block drafters have besides: heads that score a drafted token given the previous one (the selector of
DFlash 2, the Markov head of DSpark), and grouped dynamic convolutions over a block, before and after a sub-layer.

The coefficients of both convolutions come from the sub-layer's normed input: a fixed part per channel, and a part per
group of channels that is computed from the input. Rows before the block are zero.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core.arch import draft_heads
from dflash_core.errors import not_finite
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.pair_scores import Array, Factors


class Convolution:
    """The pair around one sub-layer. `name`: its prefix, as blk.0.attn."""

    def __init__(self, weights: Weights, name: str, spec: draft_heads.Convolution) -> None:
        self.kernel, self.group = spec.kernel, spec.group
        self.base = weights.vector(name + "_conv_base")
        self.proj: Matrix = weights.matrix(name + "_conv_proj.weight")

    def __call__(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """The output of a sub-layer `part` for its normed input (block, hidden), both convolved."""
        given = self.proj(x).view(len(x), 2, self.kernel, -1).permute(1, 2, 0, 3)
        before, after = self.base[:, :, None] + given.repeat_interleave(self.group, dim=-1)
        return _convolve(part(_convolve(x, before)), after)


def _convolve(x: Tensor, coefficients: Tensor) -> Tensor:
    """Rows (block, hidden), coefficients (taps, block, hidden): tap t reads the row t before."""
    out = coefficients[0] * x
    for tap in range(1, min(len(coefficients), len(x))):
        out[tap:] += coefficients[tap, tap:] * x[:-tap]
    return out


class Selector:
    """A product of three factors, each of `rank` numbers: previous token, the position's hidden state, candidate."""

    def __init__(self, weights: Weights, spec: draft_heads.Selector) -> None:
        self.top_k = spec.top_k
        self.hidden: Matrix = weights.matrix("selector_hidden.weight")
        self.predecessor: Matrix = weights.matrix("selector_predecessor.weight")
        self.successor: Matrix = weights.matrix("selector_successor.weight")

    def projected(self, hidden: Tensor) -> Tensor:
        """Final normed rows (depths, hidden) -> (depths, rank)."""
        return self.hidden(hidden)

    def factors(self, hidden: Tensor, ids: npt.NDArray[np.int64]) -> Factors:
        """The factors for candidates `ids` (depths, candidates) of final normed rows (depths, hidden)."""
        return self.between(_numbers(self.projected(hidden)), ids)

    def between(self, positions: Array, ids: npt.NDArray[np.int64]) -> Factors:
        """The same for rows that are `projected`, (depths, rank)."""
        rows = self.successor.rows(ids.flatten().tolist()).view(*ids.shape, -1)
        return Factors(positions, _numbers(rows), lambda token: _numbers(self.predecessor.rows([token])[0]))


class MarkovHead:
    """A bias over the draft vocabulary given the previous token, and the confidence head, if there is one."""

    def __init__(self, weights: Weights, spec: draft_heads.Markov) -> None:
        self.w1: Matrix = weights.matrix("markov_w1.weight")
        self.w2: Matrix = weights.matrix("markov_w2.weight")
        self.scale = float(weights.vector("markov_w2.scale")) if spec.scaled else 1.0
        self.confidence: Tensor | None = None
        self.confidence_bias = 0.0
        if spec.confidence:
            self.confidence = weights.vector("conf_proj.weight")[0]
            self.confidence_bias = float(weights.vector("conf_proj.bias")) if spec.confidence_bias else 0.0

    def bias(self, token: int) -> Tensor:
        """The bias that `token` adds to the scores of the next position, (draft vocab,)."""
        return self.w2(self.w1.rows([token]))[0] * self.scale

    def factors(self, hidden: Tensor, ids: npt.NDArray[np.int64]) -> Factors:
        """As `Selector.factors`; `ids` are of the draft vocabulary."""
        rows = self.w2.rows(ids.flatten().tolist()).view(*ids.shape, -1)
        return Factors(
            np.full((len(ids), rows.shape[-1]), self.scale), _numbers(rows),
            lambda token: _numbers(self.w1.rows([token])[0]),
            None if self.confidence is None else lambda depth, token: self.accepted(hidden[depth], token),
        )  # fmt: skip

    def accepted(self, hidden: Tensor, token: int) -> float | None:
        """The probability that the best token of a position is accepted after `token`, given the position's final
        normed hidden state (hidden,); None without a confidence head."""
        if self.confidence is None:
            return None
        width = len(hidden)
        logit = hidden @ self.confidence[:width] + self.confidence_bias
        if len(self.confidence) > width:
            logit = logit + self.w1.rows([token])[0] @ self.confidence[width:]
        return float(torch.sigmoid(logit.double()))  # a float would soon round to 1, and leave nothing to the others


def best(scores: Tensor, position: int) -> int:
    """The place of the largest of scores (n,), drafted after `position` tokens. Raises NumericsError where it is NaN;
    -inf excludes a single one."""
    at = int(scores.argmax())  # of what is no number, where there is any
    if not scores[at].isfinite():
        raise not_finite("drafter", position)
    return at


def _numbers(values: Tensor) -> Array:
    return values.double().numpy()
