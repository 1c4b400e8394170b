"""Turns from files whose parts do not fit: refused in a line, or shown by every view there is."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dflash_core.errors import DFlashError, FormatError, KnobError
from dflash_core.events import StepEvent, StepTree, TurnReport
from dflash_core.knobs import Knobs
from dflash_core.lab import plain, whatif
from dflash_core.lab.cost import StepCosts
from dflash_core.memory import Ledger, Owner
from dflash_core.record import Loaded, TurnRecord, assemble, encode, lines
from dflash_core.rejected import departure, rejected
from dflash_core.trace import HEADER, Trace, TraceError, read_trace
from dflash_core.turn_check import check_report, check_step
from dflash_core.turns import Turns
from dflash_tui import deltas, plain_speeds, speeds
from dflash_tui.commands.ask import figures
from dflash_tui.commands.replay import summary
from dflash_tui.meter import Meter
from dflash_tui.replay import ReplaySession, reported
from dflash_tui.widgets import calibration, memory, scrubber, stats, step_text, tree_text
from support.stored import a_report, a_turn
from support.turns import DRAFTS, ROOT, STAGES, WANTED, step_of, tree_of, turn_of

MUTANTS = 400
LOADED = Loaded("a pair", 4096, Ledger("this machine", (Owner("target", 5, "1 layer", 4),), 10, 5, 6))
BRANCHED = tree_of((0, 0), (1, 0), (0, 1), (3, 0), accepted=(0, 3))
STEPS = (step_of(), step_of(BRANCHED, wanted=9), step_of(knobs=Knobs(budget=3, p_min=0.25))) * 4
PLAIN = dataclasses.replace(step_of(StepTree((ROOT,), (-1,), (0,), (1.0,), (1.0,), (0,))), mode="ar")
FORGED: tuple[Any, ...] = (
    0, -1, 1, 2, 7, 300, 2**31, 2**53, 2**64, 10**400, 0.5, 1.5, -0.5, 5e-324, 1e-9, 1e9, 1e308, -1e308,
    "", "x", "tree", "ar", "9999-12-31T23:59:59+00:00", None, True, [], [0], [[]], {},
)  # fmt: skip


def a_trace() -> list[dict[str, Any]]:
    """Its lines behind the header, as JSON."""
    records = (turn_of(STEPS, thinking_steps=2), turn_of([PLAIN] * 20), a_turn())
    written = [LOADED, *(line for record in records for line in lines(record))]
    return [json.loads(encode(line)) for line in written]


def write(path: Path, told: list[dict[str, Any]]) -> Path:
    head = msgspec.json.encode(HEADER).decode()
    path.write_bytes(gzip.compress("\n".join([head, *map(json.dumps, told), ""]).encode(), 1, mtime=0))
    return path


def mutate(rng: random.Random, told: list[dict[str, Any]]) -> None:
    """Change one thing: a line, or a part of one."""
    at = rng.randrange(len(told))
    if rng.random() > 0.1:
        change(rng, told[at])
    elif (how := rng.randrange(3)) == 0:
        del told[at]
    else:
        told.insert(rng.randrange(len(told)), told[at] if how == 1 else told.pop(at))


def change(rng: random.Random, place: Any) -> None:
    """Change one value in an object of JSON, the length of a list, or a key."""
    while keys := list(place) if isinstance(place, dict) else list(range(len(place))):
        key = rng.choice(keys)
        value = place[key]
        if isinstance(value, (dict, list)) and rng.random() < 0.85:
            place = value
            continue
        how = rng.random()
        if how < 0.15:
            del place[key]
        elif how < 0.3 and isinstance(place, list):
            place.insert(rng.choice(keys), value)
        elif isinstance(value, (int, float)) and abs(value) < 1e300 and how < 0.5:
            place[key] *= rng.choice([-1, 2, 0.5, 1e-300, 1e300, 1.0])
        else:
            place[key] = rng.choice(FORGED)
        return


def look_at(trace: Trace) -> None:
    """Open every view that shows turns, their steps or what they ran on."""
    session = ReplaySession(trace, Path("a.trace"))
    memory.drawn(session.ledger(), 40)
    session.context_used()
    json.dumps(summary(trace), allow_nan=False)
    for record in map(reported, trace.turns):
        speed = plain.of_turn(record)
        if speed is not None:
            plain_speeds.when(speed.taken, datetime.now(UTC))
        meter = Meter.of(record)
        shown = [stats.of_meter(meter, None, speed, running=True)]
        if record.report is not None:
            shown.append(stats.of_turn(record, record.report, speed))
        for one in shown:
            for width in (24, 90):
                stats.drawn(one, width)
        speeds.course(record)
        scrubber.spark([float(len(step.tokens)) for step in record.steps], 40)
        deltas.measured(record)
        deltas.on_the_way(record)
        text = step_text.StepText(record, 40)
        calibration.drawn(record.steps, 60, "this turn")
        for number, step in enumerate(record.steps, 1):
            text.drawn(number, "depth")
            text.line_of(number)
            for left_out in (True, False):
                tree_text.drawn(step, record.token_text, 40, left_out=left_out)
                tree_text.drawn(step, record.token_text, 90, left_out=left_out, taken_only=True)
            tree_text.wanted_line(step, record.token_text)
            rejected(step), departure(step)
        costs = StepCosts(record.steps)
        try:
            reach = whatif.estimate(record.steps, (1, 8, 64))
        except DFlashError:  # a turn that drafted nothing
            continue
        whatif.curve("estimate", reach, costs, record.knobs.budget)
    assert list(Turns(trace.turns)) == list(trace.turns)


def test_the_sound_trace_is_shown(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "a.trace", a_trace()))
    assert trace.problem == ""
    assert len(trace.turns) == 3
    look_at(trace)


def test_mutants_are_refused_or_shown(tmp_path: Path) -> None:
    """`MUTANTS` seeds from 0; the one that fails is named, and makes the same trace again."""
    seen = {"refused": 0, "cut": 0, "whole": 0}
    sound = json.dumps(a_trace())
    for seed in range(MUTANTS):
        rng = random.Random(seed)
        told = json.loads(sound)
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            mutate(rng, told)
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
    assert min(seen.values()) > MUTANTS // 20, seen


def test_mutated_reports_are_refused_or_shown() -> None:
    """As they come in beside messages, without the record of the turn."""
    seen = {"not one": 0, "refused": 0, "shown": 0}
    report = turn_of(STEPS, thinking_steps=2).report
    for seed in range(MUTANTS):
        rng = random.Random(seed)
        told = json.loads(msgspec.json.encode(report))
        for _ in range(rng.choice([1, 1, 2])):
            change(rng, told)
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
                stats.drawn(stats.of_meter(Meter(), found, None, running=False), width)
        except Exception as error:
            pytest.fail(f"seed {seed}: {error!r}")
    assert min(seen.values()) > MUTANTS // 20, seen


STEP = step_of(BRANCHED, wanted=9)


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
        (changed(wanted=2**40), "a token id is 1,099,511,627,776; expected 0 to "),
        (changed(length=-1), "the length after a step is -1"),
        (changed(stages=dataclasses.replace(STAGES, verify=1e308)), "the time of a stage is 1"),
        (tree(tokens=(), parents=(), depths=(), probs=(), path_probs=()), "columns of 0, 0, 0, 0, 0 nodes"),
        (tree(probs=STEP.tree.probs[:-1]), "columns of 5, 5, 5, 4, 5 nodes"),
        (tree(parents=(-1, 0, 1, 4, 3)), "node 3 has parent 4"),
        (tree(parents=(0, 0, 1, 0, 3)), "node 0 is no root"),
        (tree(depths=(0, 1, 2, 1, 1)), "node 4 has parent 3 and depth 1"),
        (tree(probs=(1.0, 0.6, 0.5, 0.3, 7.0)), "a probability is 7.0"),
        (tree(path_probs=(1.0, 0.6, 0.9, 0.3, 0.1)), "node 2 is likelier than the path to its parent"),
        (tree(accepted=()), "a walk of 0 nodes"),
        (tree(accepted=(0, 9)), "a walk of 2 nodes"),
        (tree(accepted=(0, 2)), "does not go from each node to a child of it"),
        (drafts(log_probs=DRAFTS.log_probs[:2]), "candidates of 3 depths with 2 of log-probabilities"),
        (drafts(tokens=((), (), ()), log_probs=((), (), ())), "candidates of 3 depths"),
        (drafts(tokens=((1, 2), (4, 5, 6), (7, 8, 9))), "2 widths"),
        (drafts(log_probs=((800.0, 1.0, 1.0), *DRAFTS.log_probs[1:])), "a log-probability is 800.0"),
    ],
)  # fmt: skip
def test_a_step_whose_parts_do_not_fit(step: StepEvent, says: str) -> None:
    check_step(STEP)
    with pytest.raises(FormatError) as refusal:
        check_step(step)
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
    assert "behind the end of its answer (max tokens)" in refused(pieces(first, over, *rest))
    assert "tokens in 12 steps; expected the turn's" in refused(pieces(first, second))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tokens": 2**53}, "a report of 9,007,199,254,740,992 tokens that lists 3"),
        ({"accept_rate_by_depth": ()}, "1 draft positions with 0 rates"),
        ({"drafted_by_depth": (2**53,)}, "steps by draft position is 9,007,"),
        ({"reused_tokens": 13}, "12 tokens, 13 of them reused"),
        ({"lengths": (0,) * 2**20}, "whose lengths are those of 0"),
        ({"decode_s": 1e308}, "the time of the steps is 1e+308 s"),
        ({"ttft_ms": 5e-324}, "the time to the first token is"),
        ({"tokens_per_second": -math.inf}, "a speed is -inf"),
    ],
)
def test_a_report_whose_figures_do_not_fit(fields: dict[str, Any], says: str) -> None:
    report = a_report()
    check_report(report)
    with pytest.raises(FormatError) as refusal:
        check_report(dataclasses.replace(report, stats=dataclasses.replace(report.stats, **fields)))
    assert says in str(refusal.value)
