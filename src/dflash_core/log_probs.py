"""The target's own log-probabilities of an answer's tokens, before any knob and any constraint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]
MAX_TOP = 20  # of the likeliest tokens, as many at most are recorded


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token of an answer, its log-probability in nats, and the likeliest tokens in its place with theirs, the best
    first. `log_prob` is None for a token that a guard inserted."""

    token: int
    log_prob: float | None
    top: tuple[tuple[int, float], ...] = ()


class LogProbs:
    """The record of one answer. A decoder calls `see` for what it draws, and `add` for what it commits of that."""

    def __init__(self, top: int) -> None:
        """`top`: how many of the likeliest tokens are recorded, up to MAX_TOP."""
        assert 0 <= top <= MAX_TOP, f"the {top} likeliest tokens, expected up to {MAX_TOP}"
        self.top = top
        self._seen: dict[tuple[int, ...], Row | Drawn] = {}
        self.drawn: list[Drawn] = []
        """The answer's tokens so far."""

    def see(self, path: Sequence[int], found: Row | Drawn) -> None:
        """What a token after the answer and `path` is drawn from: the target's logits (vocab,), or the token that was
        drawn with what is recorded of it."""
        self._seen[tuple(path)] = found

    def see_all(self, tokens: Sequence[int], found: Iterable[Drawn]) -> None:
        """What was drawn one after the other, where `tokens` were drawn."""
        for place, one in enumerate(found):
            self.see(tokens[:place], one)

    def add(self, tokens: Sequence[int]) -> None:
        """The answer continues with `tokens`. One whose place was not seen was not drawn."""
        for at, token in enumerate(tokens):
            found = self._seen.get(tuple(tokens[:at]), Drawn(token, None))
            self.drawn.append(found if isinstance(found, Drawn) else _ranked(found, token, self.top))
        self._seen.clear()

    def drop(self) -> None:
        """The answer's last token is taken back."""
        self.drawn.pop()


def _ranked(row: Row, token: int, top: int) -> Drawn:
    scores = row.astype(np.float64)
    highest = scores.max()
    scores -= highest + np.log(np.exp(scores - highest).sum())
    best = np.argsort(-scores, kind="stable")[:top] if top else ()
    return Drawn(token, float(scores[token]), tuple((int(one), float(scores[one])) for one in best))
