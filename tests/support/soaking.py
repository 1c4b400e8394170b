"""Random turns on one engine: any knobs, cancelled or changed at any time, and prompts that reuse any part of the
sequence."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from dflash_core import Engine, Knobs
from dflash_core.knobs import Value

BUDGETS = (*range(1, 64), 64, 65, 100, 200, 256)
WAYS = ("whole", "whole", "whole", "change", "cancel", "thread", "close")


def random_knobs(rng: np.random.Generator, longest: int = 80) -> Knobs:
    """Any legal setting, greedy one time in three; answers of fewer than `longest` tokens."""
    values: dict[str, Value] = {
        "mode": str(rng.choice(["plain", "tree", "tree", "chain", "auto"])),
        "budget": int(rng.choice(BUDGETS)),
        "p_min": float(rng.choice([0.0, 0.0, 0.02, 0.3])),
        "tree_temperature": float(rng.choice([1.0, 0.5, 2.0])),
        "tree_width": int(rng.integers(1, 9)),
        "chain_seed": bool(rng.integers(2)),
        "draft_window": int(rng.choice([0, 0, 16, 64])),
        "max_tokens": int(rng.integers(1, longest)),
        "ignore_eos": bool(rng.integers(2)),
        "temperature": 0.0,
        "seed": int(rng.integers(1 << 30)),
    }
    if rng.integers(3):
        values |= {
            "temperature": float(rng.choice([0.6, 1.0, 1.5])),
            "top_k": int(rng.choice([0, 1, 20, 200])),
            "top_p": float(rng.choice([1.0, 0.9, 0.5])),
            "min_p": float(rng.choice([0.0, 0.05])),
        }
    if not rng.integers(4):
        values |= {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2}
    return Knobs().replace(**values)


@dataclass(frozen=True, slots=True)
class Done:
    """A finished turn. `changed`: the knobs it continued with, and how many tokens it had then."""

    ids: tuple[int, ...]
    knobs: Knobs
    tokens: tuple[int, ...]
    way: str
    stop: str | None
    changed: tuple[int, Knobs] | None = None

    def knobs_at(self, token: int) -> Knobs:
        """The knobs under which that token of the answer was decoded."""
        return self.knobs.in_mid_turn(self.changed[1]) if self.changed and token >= self.changed[0] else self.knobs


class Soak:
    """Turns on one engine; `ends` counts how they ended. Asserts that the session holds what was read and answered."""

    def __init__(
        self,
        engine: Engine,
        rng: np.random.Generator,
        questions: Sequence[tuple[int, ...]],
        context: int,
        longest: int = 80,
    ) -> None:
        self.engine, self.rng = engine, rng
        self.ends = Counter[str]()
        self.said: tuple[int, ...] = ()
        self._asked: tuple[int, ...] = ()
        self._questions, self._context, self._longest = questions, context, longest

    def turn(self) -> Done:
        """One turn, ended in a random way."""
        engine, rng = self.engine, self.rng
        ids = self._asked = self._prompt()
        knobs = random_knobs(rng, self._longest)
        way = str(rng.choice(WAYS))
        at, other = int(rng.integers(0, 12)), random_knobs(rng, self._longest)
        keep = [int(rng.integers(1, len(ids) + 1)) for _ in range(int(rng.integers(0, 3)))]
        timer = threading.Timer(float(rng.uniform(0, 0.02)), engine.cancel)
        if way == "thread":
            timer.start()
        tokens: list[int] = []
        stop, changed = None, None
        with closing(engine.generate(ids, knobs, keep=keep)) as events:  # type: ignore[type-var]
            for count, event in enumerate(events):
                assert stop is None, "an event after the last one"
                tokens, stop = [*tokens, *event.tokens], event.stop
                if count == at and way == "change":
                    engine.change(other)
                    changed = len(tokens), other
                elif count == at and way == "cancel":
                    engine.cancel()
                elif count == at and way == "close":
                    break
        if way == "thread":
            timer.join()
        self.ends[f"{way}: {stop}"] += 1
        held = tuple(engine._committed)
        assert engine.session.length == len(held), "the session's length is not that of its ids"
        if tokens:
            reached = (*ids, *tokens[:-1])
            assert held[: len(reached)] == reached, "the session holds other ids than the turn"
            assert way == "close" or len(held) == len(reached), "the session holds more ids than the turn"
        self.said = held
        return Done(ids, knobs, tuple(tokens), way, stop, changed)

    def _prompt(self) -> tuple[int, ...]:
        """A new prompt, one that continues, one that branches off the last in its middle, or the last one again."""
        rng, questions = self.rng, self._questions
        more = questions[int(rng.integers(len(questions)))]
        kind = int(rng.integers(5))
        room = self._context - self._longest - 20 - len(more)
        if kind == 0 or not self.said or len(self.said) > room:
            return (
                more if rng.integers(6) else more * min(12, room // len(more))
            )  # long enough for the passes of long prompts
        if kind == 1:
            return (*self.said[: int(rng.integers(1, len(self.said) + 1))], *more)
        return self._asked if kind == 4 else (*self.said, *more)
