"""The probability that a candidate is accepted, given that its parent was: 16 logistic models, updated by every walk.

A drafter's own probability is a marginal of its depth and does not depend on the parent. So for children of a sibling
it is two to four times too high, and for siblings it may be too low. The drafter's probability is one of five
features; the model is fitted to what was accepted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from dflash_core.drafters.ngram_table import MATCH_CLASSES

if TYPE_CHECKING:
    from dflash_core.tree import Candidates

CLASSES, FEATURES = 16, 5
SPINE, CHILD, DEEPER, COPIED = 0, 3, 6, 11
"""First class of a kind: below a node of the spine, below one that has just left it, deeper; + 0, 1, 2 for rank 0, 1
and above. From COPIED on successors from the text, by the length of their match."""
BLOCK = 15.0  # the divisor of depths
SMALLEST = 1e-4  # probabilities are clipped this far from 0 and 1
MIN_COPIED = 1e-3  # the assumed probability of a token that is not among the drafter's candidates
BEYOND = (0.05, 0.5)  # below the last drafted depth: the successor's and the best candidate's stated probability
VARIANCE = (0.1, 0.05, 0.02, 0.1, 0.1)
_BIAS_OF_MATCH = (-0.6, 0.1, 0.6, 1.2, 1.8)

Array = npt.NDArray[np.float64]
Features = tuple[float, float, float, float, float]


def start_weights() -> Array:
    """(16, 5): the drafter's probability unchanged, and for copied text the values measured elsewhere."""
    weights = np.zeros((CLASSES, FEATURES))
    weights[:COPIED, 1] = 1.0
    weights[COPIED:] = [[bias, 0.4, -0.3, 0.0, 0.3] for bias in _BIAS_OF_MATCH]
    return weights


def class_of(off: int, rank: int) -> int:
    """The class of a drafter's candidate of that rank below a node. `off`: as in `best_first.ValueTree`."""
    return (SPINE if off == 0 else CHILD if off == 1 else DEEPER) + (rank if rank < 2 else 2)


def logit(p: float) -> float:
    """The log of the odds of `p`, clipped to be finite."""
    p = min(max(p, SMALLEST), 1 - SMALLEST)
    return math.log(p / (1 - p))


class Below(NamedTuple):
    """The candidates below one node, best first; `logits`: the log of their odds."""

    tokens: list[int]
    log_probs: list[float]
    p: list[float]
    logits: list[float]


class Stated:
    """A drafter's candidates by depth and rank, as features; lists, because trees are built one node at a time.

    `before[d]`: minus the log-probability of the spine above depth d, at most 8.
    `drafts`: of a drafter that scores by parent token; then every node has its own candidates, and the spine follows
    the best candidate from `root`.
    """

    def __init__(
        self, tokens: npt.NDArray[np.int64], log_probs: Array, drafts: Candidates | None = None, root: int = 0
    ) -> None:
        self.depths, self.width = log_probs.shape
        self._drafts = drafts
        p = np.exp(log_probs)
        clipped = np.minimum(np.maximum(p, SMALLEST), 1 - SMALLEST)  # np.clip would take as long as all the rest
        odds = np.log(clipped / (1 - clipped))
        self._arrays = odds, p[:, :1]
        self._rows = [Below(*row) for row in zip(tokens.tolist(), log_probs.tolist(), p.tolist(), odds.tolist())]
        self._given: dict[tuple[int, int], Below] = {}
        self.before, token, path = [0.0] * self.depths, root, 0.0
        for depth in range(self.depths):
            self.before[depth] = min(max(-path, 0.0), 8.0)
            row = self.below(depth, token)
            if not row.tokens:
                break
            token, path = row.tokens[0], path + row.log_probs[0]

    @property
    def conditional(self) -> bool:
        """Whether candidates depend on their parent token."""
        return self._drafts is not None

    def below(self, depth: int, parent: int) -> Below:
        """The candidates of `depth` below a node with the token `parent`."""
        if self._drafts is None:
            return self._rows[depth]
        if (depth, parent) not in self._given:
            tokens, log_probs = self._drafts.below(depth, parent)
            p = [math.exp(one) for one in log_probs]
            self._given[depth, parent] = Below(tokens, log_probs, p, [logit(one) for one in p])
        return self._given[depth, parent]

    def spine_values(self, weights: Array) -> list[list[float]]:
        """(depths, ranks): the probability of every candidate below the spine's node at its depth."""
        (odds, best), before = self._arrays, np.array(self.before)
        classes = np.minimum(np.arange(self.width), 2)
        w = weights[SPINE + classes]
        at = before[:, None] * w[:, 2] + (np.arange(self.depths) / BLOCK)[:, None] * w[:, 3] + best * w[:, 4]
        values: list[list[float]] = (1 / (1 + np.exp(-(w[:, 0] + odds * w[:, 1] + at)))).tolist()
        return values

    def on_spine(self, depth: int, rank: int, row: Below | None = None) -> Features:
        """`row`: the node's own candidates, if it has any."""
        row = row or self._rows[depth]
        return 1.0, row.logits[rank], self.before[depth], depth / BLOCK, row.p[0]

    def off_spine(self, depth: int, rank: int, parent_log_prob: float, row: Below | None = None) -> Features:
        """`parent_log_prob`: the parent's stated log-probability; `row` as in `on_spine`. The last feature is the part
        of a candidate's probability that the parent's alternatives cannot account for. For a drafter that scores by
        parent token it is the probability of the row's best candidate."""
        if self._drafts is not None and row is not None:
            above = min(max(parent_log_prob, -8.0), 0.0)
            return 1.0, row.logits[rank], self.before[depth], above, row.p[0]
        m, row = math.exp(parent_log_prob), self._rows[depth]
        shared = min(max((row.p[rank] - (1 - m)) / (m + 1e-9), 0.0), 1.0)
        return 1.0, row.logits[rank], self.before[depth], min(max(parent_log_prob, -8.0), 0.0), shared


def copied_features(p: float, best: float, kind: int) -> Features:
    """Features of a successor. `p`, `best`: the drafter's probabilities of it and of its own first choice there; `kind`
    0 below the spine, 1 off it, 2 below another successor."""
    return 1.0, logit(max(p, MIN_COPIED)), logit(best), 0.0, float(kind)


class Learned:
    """Weights and their covariance. `rows` are the weights as lists, for one candidate at a time."""

    def __init__(self, weights: Array | None = None, covariance: Array | None = None) -> None:
        self.weights = start_weights() if weights is None else weights.copy()
        self.covariance = np.stack([np.diag(VARIANCE)] * CLASSES) if covariance is None else covariance.copy()
        self.trials = np.zeros(CLASSES, np.int64)
        self.stated, self.expected, self.found = np.zeros((3, CLASSES))
        self.rows: list[list[float]] = self.weights.tolist()

    def value(self, cls: int, x: Features) -> float:
        """The chance of a candidate of that class."""
        w = self.rows[cls]
        z = w[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3] + w[4] * x[4]
        return 1 / (1 + math.exp(-z)) if z > -500 else 0.0

    def learn(self, classes: Sequence[int], features: Sequence[Features], outcomes: Sequence[bool]) -> None:
        """Learn from all trials of a step: one Newton step of the posterior per class, without forgetting."""
        if not classes:
            return
        cls, y = np.array(classes), np.array(outcomes, np.float64)
        x = np.fromiter(chain.from_iterable(features), np.float64).reshape(-1, FEATURES)  # a third of np.array's time
        z = (x * self.weights[cls]).sum(1)
        p = 1 / (1 + np.exp(-np.minimum(np.maximum(z, -500), 500)))
        h = np.maximum(p * (1 - p), 0.005)
        seen = np.array(sorted(set(classes)))
        one = (cls == seen[:, None]).astype(np.float64)  # (seen, trials)
        information = (one * h)[:, None, :] * x.T @ x
        slope = (one * (y - p)) @ x
        before = self.covariance[seen]
        after = np.linalg.solve(np.eye(FEATURES) + before @ information, before)
        after = (after + after.transpose(0, 2, 1)) / 2
        self.covariance[seen] = after
        # A new array: holders of the old one can detect the change.
        self.weights = self.weights.copy()
        self.weights[seen] += (after @ slope[:, :, None])[:, :, 0]
        for index in seen.tolist():
            self.rows[index] = self.weights[index].tolist()
        self.trials += np.bincount(cls, minlength=CLASSES)
        self.stated += np.bincount(cls, 1 / (1 + np.exp(-x[:, 1])), CLASSES)
        self.expected += np.bincount(cls, p, CLASSES)
        self.found += np.bincount(cls, y, CLASSES)


assert COPIED + MATCH_CLASSES == CLASSES
