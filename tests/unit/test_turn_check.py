"""Turns from files whose parts are inconsistent: refused in a line, or shown by every view."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dflash_core.errors import FormatError, KnobError
from dflash_core.events import StepEvent
from dflash_core.record import Step, TurnRecord, assemble, decode, encode, lines
from dflash_core.trace import TraceError, read_trace
from dflash_core.turn_check import check_new_report, check_report, check_step
from dflash_core.turn_stats import FoundRow, TurnReport
from dflash_tui.application.figures.meter import Meter
from dflash_tui.cli.ask import figures
from dflash_tui.widgets import stats
from support.grids import full
from support.mutation import mutate_lines, mutate_value
from support.stored import a_report
from support.traces import BRANCHED, STEPS, a_trace, look_at, write
from support.turns import DRAFTS, STAGES, WANTED, step_of, turn_of

# As of property tests, two fifths of a long run's.
mutants = pytest.mark.parametrize("mutants", [80, full(200)])


def test_the_sound_trace_is_shown(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "a.trace", a_trace()))
    assert trace.problem == ""
    assert len(trace.turns) == 3
    look_at(trace)


@pytest.mark.parametrize("sinks", [-1, 2**31, 10**30])
def test_what_a_window_always_shows_is_a_place_in_a_context(sinks: int) -> None:
    line = msgspec.structs.replace(turn_of([step_of()]).start, sinks=sinks)
    with pytest.raises(FormatError, match=r"sinks: (expected a whole number|integer value out of range)"):
        decode(encode(line))


@mutants
def test_mutants_are_refused_or_shown(mutants: int, tmp_path: Path) -> None:
    """Seeds from 0; the one that fails is named, and makes the same trace again."""
    seen = {"refused": 0, "cut": 0, "whole": 0}
    sound = json.dumps(a_trace())
    for seed in range(mutants):
        rng = random.Random(seed)
        told = json.loads(sound)
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            mutate_lines(rng, told)
        path = write(tmp_path / "a.trace", told)
        try:
            trace = read_trace(path)
        except TraceError:
            seen["refused"] += 1
            continue
        seen["cut" if trace.problem else "whole"] += 1
        try:
            look_at(trace)
        except Exception as error:
            pytest.fail(f"seed {seed}: {error!r}")
    assert min(seen.values()) > mutants // 20, seen


@mutants
def test_mutated_reports_are_refused_or_shown(mutants: int) -> None:
    """Reports as they are stored with messages, without the record of the turn. Twice as many: types refuse most."""
    seen = {"not one": 0, "refused": 0, "shown": 0}
    report = turn_of(STEPS, thinking_steps=2).report
    assert report is not None
    report = dataclasses.replace(report, learned=(FoundRow("first choice", 9, 0.5, 0.4, 0.3),))
    for seed in range(2 * mutants):
        rng = random.Random(seed)
        told = json.loads(msgspec.json.encode(report))
        for _ in range(rng.choice([1, 1, 2])):
            mutate_value(rng, told)
        try:
            found = msgspec.json.decode(json.dumps(told), type=TurnReport)
        except (msgspec.MsgspecError, KnobError):
            seen["not one"] += 1
            continue
        try:
            check_report(found)
        except FormatError:
            seen["refused"] += 1
            continue
        seen["shown"] += 1
        try:
            figures(found)
            json.dumps(found.to_json(), allow_nan=False)
            for width in (24, 90):
                shown = stats.figures(Meter(), found, None, running=False)
                stats.drawn(replace(shown, learned=found.learned), width)
        except Exception as error:
            pytest.fail(f"seed {seed}: {error!r}")
    assert min(seen.values()) > mutants // 20, seen


STEP = step_of(BRANCHED, bonus=9)


def changed(**fields: Any) -> StepEvent:
    return dataclasses.replace(STEP, **fields)


def tree(**fields: Any) -> StepEvent:
    return changed(tree=dataclasses.replace(STEP.tree, **fields))


def drafts(**fields: Any) -> StepEvent:
    return changed(drafts=dataclasses.replace(DRAFTS, **fields))


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (changed(drafted_depth=2**53), "a drafted depth of 9,007,199,254,740,992; expected the tree's 2"),
        (changed(accepted_depth=2), "an accepted depth of 2; expected 1"),
        (changed(tokens=()), "a step of 0 tokens that are not those of its walk"),
        (changed(tokens=(5, WANTED)), "not those of its walk"),
        (changed(tokens=(2, 8)), "not those of its walk"),
        (changed(tokens=(2, 9, 9)), "not those of its walk"),
        (tree(tokens=(), parents=(), depths=(), probs=(), path_probs=()), "columns of 0, 0, 0, 0, 0 nodes"),
        (tree(probs=STEP.tree.probs[:-1]), "columns of 5, 5, 5, 4, 5 nodes"),
        (tree(parents=(-1, 0, 1, 4, 3)), "node 3 has parent 4"),
        (tree(parents=(0, 0, 1, 0, 3)), "node 0 is no root"),
        (tree(depths=(0, 1, 2, 1, 1)), "node 4 has parent 3 and depth 1"),
        (tree(path_probs=(1.0, 0.6, 0.9, 0.3, 0.1)), "node 2 is likelier than the path to its parent"),
        (tree(accepted=()), "a walk of 0 nodes"),
        (tree(accepted=(0, 9)), "a walk of 2 nodes"),
        (tree(accepted=(0, 2)), "does not go from each node to a child of it"),
        (drafts(log_probs=DRAFTS.log_probs[:2]), "candidates of 3 depths with 2 of log-probabilities"),
        (drafts(tokens=((), (), ()), log_probs=((), (), ())), "candidates of 3 depths"),
        (drafts(tokens=((1, 2), (4, 5, 6), (7, 8, 9))), "2 widths"),
    ],
)  # fmt: skip
def test_a_step_whose_parts_do_not_fit(step: StepEvent, says: str) -> None:
    check_step(STEP)
    with pytest.raises(FormatError) as refusal:
        check_step(step)
    assert says in str(refusal.value)


@pytest.mark.parametrize(("step", "says"), [
        (changed(bonus=2**40), "event.bonus: expected a whole number <= 2147483647"),
        (changed(length=-1), "event.length: expected a whole number >= 0"),
        (changed(stages=dataclasses.replace(STAGES, verify=1e308)), "event.stages.verify: expected a number <= "),
        (tree(probs=(1.0, 0.6, 0.5, 0.3, 7.0)), "event.tree.probs[4]: expected a number <= 1.001"),
        (drafts(log_probs=((800.0, 1.0, 1.0), *DRAFTS.log_probs[1:])), "drafts.log_probs[0][0]: expected a number <= "),
    ],
)  # fmt: skip
def test_a_value_of_a_step_that_there_cannot_be(step: StepEvent, says: str) -> None:
    decode(encode(Step(STEP, 0.0)))
    with pytest.raises(FormatError) as refusal:
        decode(encode(Step(step, 0.0)))
    assert says in str(refusal.value)


def refused(record: TurnRecord) -> str:
    with pytest.raises(FormatError) as refusal:
        list(assemble(lines(record)))
    return str(refusal.value)


def test_a_turn_whose_lines_do_not_fit() -> None:
    record = turn_of(STEPS)
    first, second, *rest = record.pieces
    assert record.report is not None

    def pieces(*changed: Any) -> TurnRecord:
        return dataclasses.replace(record, pieces=changed)

    assert "a step in a turn; expected its prompt first" in refused(pieces(second, first, *rest))
    assert "a second prompt" in refused(pieces(first, first, *rest))
    late = dataclasses.replace(second, at=1e308)
    assert "the time of a piece since the one before it is 1e+308 s" in refused(pieces(first, late, *rest))
    back = dataclasses.replace(second, at=0.0)
    assert "since the one before it is -0.1 s" in refused(pieces(first, back, *rest))
    over = dataclasses.replace(second, event=dataclasses.replace(step_of(), stop="max tokens"))
    assert "after the end of its answer (max tokens)" in refused(pieces(first, over, *rest))
    assert "tokens in 12 steps; expected the turn's" in refused(pieces(first, second))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tokens": 2**53}, "stats.tokens: expected a whole number <= 2147483647"),
        ({"accept_rate_by_depth": ()}, "1 draft positions with 0 rates"),
        ({"drafted_by_depth": (2**53,)}, "stats.drafted_by_depth[0]: expected a whole number <= "),
        ({"reused_tokens": 13}, "12 tokens, 13 of them reused"),
        ({"lengths": (0,) * 258}, "whose lengths are those of 0"),
        ({"lengths": (0,) * 2**20}, "stats.lengths: expected an array of length <= 258"),
        ({"decode_s": 1e308}, "the time of the steps is 1e+308 s"),
        ({"ttft_ms": 5e-324}, "the time to the first token is"),
        ({"tokens_per_second": -math.inf}, "stats.tokens_per_second: expected a number >= 0"),
    ],
)
def test_a_report_whose_figures_do_not_fit(fields: dict[str, Any], says: str) -> None:
    report = a_report()
    check_new_report(report)
    with pytest.raises(FormatError) as refusal:
        check_new_report(dataclasses.replace(report, stats=dataclasses.replace(report.stats, **fields)))
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([FoundRow("first choice", 0, 0.5, 0.5, 0.5)], "learned[0].trials: expected a whole number >= 1"),
        ([FoundRow("first choice", 2**60, 0.5, 0.5, 0.5)], "learned[0].trials: expected a whole number <= "),
        ([FoundRow("first choice", 9, 0.5, 1e308, 0.5)], "learned[0].learned: expected a number <= 1.001"),
        ([FoundRow("first choice", 9, 0.5, 0.5, -1.0)], "learned[0].found: expected a number >= 0"),
        ([FoundRow("first choice", 9, 0.5, 0.5, 0.5)] * 17, "learned: expected an array of length <= 16"),
    ],
)
def test_what_was_learned_and_does_not_fit(rows: list[FoundRow], says: str) -> None:
    check_new_report(dataclasses.replace(a_report(), learned=(FoundRow("first choice", 9, 0.5, 0.4, 0.3),)))
    with pytest.raises(FormatError) as refusal:
        check_new_report(dataclasses.replace(a_report(), learned=tuple(rows)))
    assert says in str(refusal.value)
