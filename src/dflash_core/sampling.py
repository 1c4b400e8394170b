"""The sampler chain: penalties, top_k, temperature, top_p, min_p, then a draw that depends on nothing but
(seed, absolute position, token id). So a draw does not depend on how a step was drafted, and sampled tree output
equals sampled plain output token for token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dflash_core.errors import not_finite
from dflash_core.knobs import Knobs
from dflash_core.tree import largest

PENALTY_WINDOW = 256

_PHILOX_MUL = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_PHILOX_KEY = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HIGH_SHIFT = np.uint64(32)


def philox(
    seed: int, position: int | npt.NDArray[np.int64], token_ids: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """A word of Philox4x32-10 (Salmon et al., 2011) per token, key the 64-bit seed. Positions (n, 1) are those of the
    rows of `token_ids`.

    Four tokens share a call: the counter is (token id / 4, low half of position, high half of position, 0), the word is
    the one of number token id % 4.
    """
    x0 = (token_ids >> 2).astype(np.uint64) & _LOW
    x1 = np.full_like(x0, position & 0xFFFFFFFF)
    x2 = np.full_like(x0, position >> 32)
    x3 = np.zeros_like(x0)
    key0, key1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        product0, product1 = x0 * _PHILOX_MUL[0], x2 * _PHILOX_MUL[1]
        x0, x2 = (
            (product1 >> _HIGH_SHIFT) ^ x1 ^ np.uint64(key0),
            (product0 >> _HIGH_SHIFT) ^ x3 ^ np.uint64(key1),
        )
        x1, x3 = product1 & _LOW, product0 & _LOW
        key0, key1 = (key0 + _PHILOX_KEY[0]) & 0xFFFFFFFF, (key1 + _PHILOX_KEY[1]) & 0xFFFFFFFF
    return np.choose(token_ids & 3, (x0, x1, x2, x3)).astype(np.uint32)


def gumbel(
    seed: int, position: int | npt.NDArray[np.int64], token_ids: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise per token id; adding it to log-weights and taking the argmax draws from softmax."""
    uniform = (philox(seed, position, token_ids).astype(np.float64) + 0.5) / 2.0**32
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def check_finite(logits: npt.NDArray[np.float32], position: int, model: str = "drafter") -> None:
    """Raises NumericsError where the best of a row of logits (n, vocab) is NaN; -inf excludes a token."""
    if not np.isfinite(logits.max(axis=-1)).all():
        raise not_finite(model, position)


def probability(logits: npt.NDArray[np.float32], token: int) -> float:
    """Of `token` by `logits` (vocab,) as they are, before any knob."""
    weights = logits - logits.max()
    np.exp(weights, out=weights)
    return float(weights[token] / weights.sum())


class Sampler:
    """Draws tokens from target logits as the knobs say, without state between draws. `greedy`: a draw is the best logit
    and nothing else."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.penalises = (knobs.repetition_penalty, knobs.frequency_penalty, knobs.presence_penalty) != (1.0, 0.0, 0.0)
        self.greedy = knobs.temperature == 0 and not self.penalises

    def draw(self, logits: npt.NDArray[np.float32], position: int, history: Sequence[int]) -> int:
        """The token at absolute `position`, from the target's `logits` (vocab,) for it.

        `history`: the generated tokens before it, the accepted path of this step included, the prompt left out.
        """
        if self.greedy:
            return int(logits.argmax())
        ids, scores = self.scores(logits, position, history)
        return int(ids[scores.argmax()])

    def scores(
        self, logits: npt.NDArray[np.float32], position: int, history: Sequence[int]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Token ids that survive the truncations and the scores whose argmax is drawn, likeliest token first."""
        knobs = self.knobs
        row = self._penalised(logits.astype(np.float64), history)
        if knobs.temperature == 0:
            ids = largest(row, 2)
            return ids, row[ids]
        ids = largest(row, knobs.top_k or len(row))
        # Relative to the best before dividing: a tiny temperature then sends the others to -inf, not all to inf.
        with np.errstate(over="ignore"):
            scaled = (row[ids] - row[ids[0]]) / knobs.temperature
        weights = np.exp(scaled)
        if knobs.top_p < 1:
            # The token that crosses the border stays, so at least one always does.
            before = np.cumsum(weights) - weights
            keep = before < knobs.top_p * weights.sum()
            keep[0] = True
            ids, scaled, weights = ids[keep], scaled[keep], weights[keep]
        if knobs.min_p > 0:
            keep = weights >= knobs.min_p  # the best weighs 1
            ids, scaled = ids[keep], scaled[keep]
        return ids, scaled + gumbel(knobs.fixed().seed, position, ids)

    def _penalised(self, row: npt.NDArray[np.float64], history: Sequence[int]) -> npt.NDArray[np.float64]:
        if not self.penalises or not history:
            return row
        counts = Counter(history[-PENALTY_WINDOW:])
        seen = np.fromiter(counts.keys(), np.int64, len(counts))
        times = np.fromiter(counts.values(), np.float64, len(counts))
        values = row[seen]
        factor = self.knobs.repetition_penalty
        values = np.where(values > 0, values / factor, values * factor)
        row[seen] = values - self.knobs.frequency_penalty * times - self.knobs.presence_penalty
        return row
