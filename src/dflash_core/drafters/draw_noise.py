"""Drafts that see the noise of the target's draws.

A draw takes the token with the largest log p / T + noise(seed, position, token), and the noise is known before the
target has run. A drafter's log q / T plus a share of the same noise therefore predicts the draw better than
only log q. Where drafts are ranked by it, more of them are accepted; the text does not change. Measured in
docs/notes/draw-noise.md.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dflash_core.knobs import Knobs
from dflash_core.pair_scores import PairScores, log_sum
from dflash_core.sampling import check_finite, gumbel
from dflash_core.tree import Candidates, candidates, largest

SHARE = 0.7
"""Of the noise. With a drafter that equals its target it would be 1, with one that knows nothing 0."""
RERANKED = 8  # of the best candidates of a depth, where a depth has one ranking: as many as a card's step keeps

Array = npt.NDArray[np.float64]


def noise_share(knobs: Knobs) -> float:
    """What is added to log-probabilities at the tree temperature, in units of the noise; 0 for greedy draws. The fewer
    tokens the sampler's truncation leaves, the less the noise decides."""
    if knobs.temperature == 0 or knobs.top_k == 1:
        return 0.0
    return SHARE * knobs.top_p * (1 - knobs.min_p) * knobs.temperature / knobs.tree_temperature


def draw_noise(knobs: Knobs, position: int, ids: npt.NDArray[np.int64]) -> Array | None:
    """The noise (depths, n) of candidates `ids` after a root at `position`, scaled for their log-probabilities; None
    where draws are greedy."""
    share = noise_share(knobs)
    if share == 0 or not ids.size:
        return None
    positions = position + 1 + np.arange(len(ids), dtype=np.int64)[:, None]
    return share * gumbel(knobs.fixed().seed, positions, ids)


def reranked(drafts: Candidates, noise: Array | None) -> Candidates:
    """`drafts` by their log-probabilities plus `noise`; the candidates of a node share the same total as before."""
    if noise is None:
        return drafts
    if isinstance(drafts.given, PairScores):
        return replace(drafts, given=replace(drafts.given, noise=noise, _known={}))
    scores = drafts.log_probs + noise
    scores = scores - log_sum(scores) + log_sum(drafts.log_probs)
    order = np.argsort(-scores, axis=-1, kind="stable")
    return Candidates(np.take_along_axis(drafts.tokens, order, -1), np.take_along_axis(scores, order, -1))


def ranked(logits: npt.NDArray[np.float32], knobs: Knobs, position: int) -> Candidates:
    """The best tokens of each row of dense draft logits (depths, vocab), drafted after `position` tokens, by what is
    known of their draws.

    Raises NumericsError where a row's best is NaN; -inf excludes a single token.
    """
    check_finite(logits, position)
    width = knobs.tree_width
    if not noise_share(knobs):
        return candidates(logits, width, knobs.tree_temperature)
    best = candidates(logits, max(width, RERANKED), knobs.tree_temperature)
    return reranked(best, draw_noise(knobs, position, best.tokens)).cut(len(logits), width)


def likeliest(logits: npt.NDArray[np.float32], knobs: Knobs | None, position: int) -> int:
    """The token that `ranked` puts first for logits (vocab,); without knobs the best."""
    if knobs is None or not noise_share(knobs):
        return int(logits.argmax())
    ids = largest(logits, RERANKED).astype(np.int64)
    noise = draw_noise(knobs, position, ids[None])
    assert noise is not None, "a share of the noise"
    return int(ids[(logits[ids] / knobs.tree_temperature + noise[0]).argmax()])
