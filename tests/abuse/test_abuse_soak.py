"""A slice of the engine's soak, and that a wrong token is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from abuse import soak
from abuse.report import Report
from dflash_core.knobs import Knobs
from support.soaking import Done

TURNS = 8


def test_a_slice(tmp_path: Path) -> None:
    report = soak.run(1, tmp_path, turns=TURNS)
    assert report.faults == []
    assert report.counts["turns"] == TURNS


@pytest.mark.parametrize("changed", [None, (3, Knobs(temperature=1.5, seed=3))])
def test_a_wrong_token_is_seen(changed: tuple[int, Knobs] | None) -> None:
    engine, alone = soak.engines()
    ids, knobs = soak.questions()[0], Knobs(drafting="plain", max_tokens=8, ignore_eos=True)
    done = Done(ids, knobs, (0,) * 8, "whole", "max tokens", changed)
    tokens = tuple(soak.plain_answer(alone, done))
    report = Report("soak", 0)
    soak.compare(alone, Done(ids, knobs, tokens, "whole", "max tokens", changed), report, "")
    assert not report.findings
    wrong = (*tokens[:5], (tokens[5] + 1) % 100, *tokens[6:])
    soak.compare(alone, Done(ids, knobs, wrong, "whole", "max tokens", changed), report, "")
    [found] = report.differences
    assert "token 5" in found.detail
    assert engine.target is alone.target
