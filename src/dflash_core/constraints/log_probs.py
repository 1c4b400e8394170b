"""Records the target's own probabilities of an answer's tokens, before any knob and any constraint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash_core.constraints.base import Constraint, Mask, Row


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token of an answer, its log-probability in nats, and the likeliest tokens in its place with theirs, the best
    first. `log_prob` is None for a token that a guard inserted."""

    token: int
    log_prob: float | None
    top: tuple[tuple[int, float], ...] = ()


class LogProbs:
    """Implements `base.Constraint`: rules out what `inner` does, and nothing without one."""

    def __init__(self, top: int, inner: Constraint | None = None) -> None:
        """`top`: how many of the likeliest tokens are recorded."""
        self._top, self._inner = top, inner
        self._rows: dict[tuple[int, ...], Row] = {}
        self.drawn: list[Drawn] = []
        """The answer's tokens so far."""

    def see(self, path: Sequence[int], logits: Row) -> None:
        """The target's `logits` (vocab,) after the answer and `path`, from which a token is about to be drawn."""
        self._rows[tuple(path)] = logits

    def add(self, tokens: Sequence[int]) -> None:
        for at, token in enumerate(tokens):
            row = self._rows.get(tuple(tokens[:at]))
            self.drawn.append(Drawn(token, None) if row is None else _ranked(row, token, self._top))
        self._rows.clear()
        if self._inner is not None:
            self._inner.add(tokens)

    def drop(self) -> None:
        self.drawn.pop()
        if self._inner is not None:
            self._inner.drop()

    def allowed(self, path: Sequence[int]) -> Mask | None:
        return self._inner.allowed(path) if self._inner is not None else None

    def admits(self, path: Sequence[int], token: int) -> bool:
        return self._inner is None or self._inner.admits(path, token)

    def forced(self) -> Sequence[int]:
        return self._inner.forced() if self._inner is not None else ()


def _ranked(row: Row, token: int, top: int) -> Drawn:
    scores = row.astype(np.float64)
    highest = scores.max()
    scores -= highest + np.log(np.exp(scores - highest).sum())
    best = np.argsort(-scores, kind="stable")[:top] if top else ()
    return Drawn(token, float(scores[token]), tuple((int(one), float(scores[one])) for one in best))
