"""The record of an answer's log-probabilities changes nothing else of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dflash_core import Knobs
from dflash_core.backends.base import AnswerOptions
from dflash_core.events import Event, GuardEvent, StageTimes, StepEvent
from dflash_core.log_probs import Drawn, LogProbs
from dflash_core.policy.base import FixedPolicy
from dflash_core.runner import Runner
from support.counting import STOP, VOCAB, CountingBackend

LIKELY = 5 - math.log(math.exp(5) + VOCAB - 1)  # of `row_of`
OTHER = LIKELY - 5


class Watched(FixedPolicy):
    """A policy that counts the steps that it learns from."""

    observed = 0

    def observe(self, step: StepEvent, certain: Sequence[float] = ()) -> None:
        self.observed += 1
        super().observe(step, certain)


def untimed(event: Event) -> Event:
    return replace(event, stages=StageTimes()) if isinstance(event, StepEvent) else replace(event, elapsed_ms=0.0)


@pytest.mark.parametrize("mode", ["plain", "chain", "tree", "auto"])
def test_events_are_those_of_an_answer_without(mode: str) -> None:
    """A stop token that is ignored still is, reasons name no grammar, and a policy learns as it did."""
    knobs = Knobs(temperature=1.0, seed=4, max_tokens=60, ignore_eos=True).replace(mode=mode)

    def answer(record: LogProbs | None) -> list[Event]:
        backend = CountingBackend()
        policy = Watched(backend.capabilities)
        one = Runner(backend, frozenset({STOP, 7}), 1000, VOCAB, policy=policy)  # type: ignore[arg-type]
        events = [untimed(event) for event in one.generate([1, 2, 3], knobs, log_probs=record)]
        assert policy.observed == len(events) - 1
        return events

    record = LogProbs(2)
    events = answer(record)
    assert events == answer(None)
    tokens = [token for event in events for token in event.tokens]
    assert [one.token for one in record.drawn] == tokens
    assert len(tokens) == 60
    before = 3
    for one in record.drawn:
        likely = (before + 1) % 40
        assert one.log_prob == pytest.approx(LIKELY if one.token == likely else OTHER, rel=1e-6)
        assert one.top[0] == (likely, pytest.approx(LIKELY, rel=1e-6))
        assert one.top[1][0] == (0 if likely else 1), "of equal ones the lower id"
        before = one.token


def test_what_was_not_drawn_has_none() -> None:
    backend, record = CountingBackend(), LogProbs(0)
    decoder = backend.decoder(AnswerOptions(Knobs(max_tokens=20), frozenset(), 1000, log_probs=record))
    decoder.first(backend.prefill([1, 2]))
    decoder.inject((30, 31), GuardEvent("thinking budget", "thinking", "close", "told to"))
    decoder.put(32)
    decoder.step()
    assert [one.token for one in record.drawn] == decoder.answer
    assert record.drawn[1:3] == [Drawn(30, None), Drawn(32, None)]
    assert all(one.log_prob is not None for one in record.drawn[3:])


def test_log_probabilities_are_of_the_whole_vocabulary() -> None:
    record, row = LogProbs(3), np.array([1e4, -np.inf, 1e4, 0.0], np.float32)
    record.see((), row)
    record.add((2,))
    half = pytest.approx(-math.log(2))
    far = pytest.approx(-1e4 - math.log(2))
    assert record.drawn == [Drawn(2, half, ((0, half), (2, half), (3, far)))]
