"""The figures of a turn, on steps made by hand."""

from __future__ import annotations

import json

import pytest

from dflash_core.events import PrefillEvent, StageTimes, StepEvent, StepTree
from dflash_core.knobs import Knobs
from dflash_core.turn_stats import TurnReport, turn_stats


def step(tokens: int, drafted: int, accepted: int, ms: float = 1.0) -> StepEvent:
    tree = StepTree((1,), (-1,), (0,), (1.0,), (1.0,), (0,))
    return StepEvent(tuple(range(tokens)), tree, drafted, accepted, 0, StageTimes(draft=ms), "tree", "asked for")


def test_turn_stats() -> None:
    prefill = PrefillEvent((5,), 30, 10, 84.0, "tree", "asked for")
    steps = [step(3, 4, 2, ms=1), step(1, 4, 0, ms=2), step(5, 4, 4, ms=3), step(2, 2, 1, ms=6)]
    beyond = turn_stats(prefill, [*steps[:3], step(4, 2, 3)], decode_s=0.5)
    assert beyond.accept_rate_by_depth == (3 / 4, 3 / 4, 1 / 3, 1 / 3), "a depth that was not drafted has no share"
    stats = turn_stats(prefill, steps, decode_s=0.5)
    assert stats.steps == 4
    assert stats.tokens == 12
    assert stats.acceptance_length == 11 / 4
    assert stats.drafted_by_depth == (4, 4, 3, 3)
    assert stats.accept_rate_by_depth == (3 / 4, 2 / 4, 1 / 3, 1 / 3)
    assert stats.tokens_per_second == 22
    assert stats.ttft_ms == 84
    assert stats.stage_ms == StageTimes(draft=3.0)
    assert stats.stage_ms.total == 3


def test_a_turn_without_steps() -> None:
    stats = turn_stats(PrefillEvent((5,), 3, 0, 1.0, "plain", "", "stop token"), [], decode_s=0.0)
    assert (stats.steps, stats.tokens, stats.acceptance_length, stats.tokens_per_second) == (0, 1, 0, 0)
    assert stats.accept_rate_by_depth == ()


def test_plain_steps_have_a_length_of_one() -> None:
    prefill = PrefillEvent((5,), 3, 0, 1.0, "plain", "")
    assert turn_stats(prefill, [step(1, 0, 0)] * 7, 1.0).acceptance_length == 1.0


def test_the_report_is_plain_json() -> None:
    prefill = PrefillEvent((5,), 3, 0, 1.0, "tree", "")
    stats = turn_stats(prefill, [step(3, 4, 2)], 1.0)
    report = TurnReport("text", "", (5, 0, 1, 2), "tree", "asked for", "max tokens", Knobs(), stats)
    shown = json.loads(json.dumps(report.to_json()))
    assert shown["tokens"] == [5, 0, 1, 2]
    assert shown["knobs"]["drafting"] == "auto"
    assert shown["stats"]["accept_rate_by_depth"] == [1.0, 1.0, 0.0, 0.0]
    assert shown["stats"]["stage_ms"]["draft"] == pytest.approx(1.0)
    needed = {
        "steps",
        "tokens",
        "acceptance_length",
        "accept_rate_by_depth",
        "tokens_per_second",
        "ttft_ms",
        "stage_ms",
    }
    assert needed <= set(shown["stats"])
    assert {"text", "thinking", "tokens", "mode", "reason", "knobs", "stats"} <= set(shown)
