"""What is shown about `auto`: where drafts came from, what was learned, what a fixed budget would have taken."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from tools.bench.replay import GivenCosts

from dflash_core.errors import FormatError
from dflash_core.events import Choice, Piece, PrefillEvent, StageTimes, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.lab.whatif import StepTimes, auto_turn, curve, estimate, own_ms
from dflash_core.policy.arm import KINDS, Arm, PairState
from dflash_core.policy.auto import AutoPolicy
from dflash_core.policy.costs import CPU
from dflash_core.record import Step, assemble, decode, encode
from dflash_core.turn_check import check_step
from dflash_core.turn_stats import TurnReport, TurnTotals, turn_stats
from dflash_tui.application.figures.meter import Meter
from dflash_tui.text import lab as lab_text
from dflash_tui.text.step_text import drawn as tree_drawn
from dflash_tui.widgets.answer import summary
from dflash_tui.widgets.stats import Figures, drawn
from dflash_tui.widgets.strip import Status, StatusStrip
from support.counting import CountingBackend
from support.deciding import decoded
from support.turns import turn_of

READ = PrefillEvent((2,), 1, 0, 10.0, "tree", "auto")


def answered(right: int = 3, knobs: Knobs | None = None, tokens: int = 200) -> tuple[list[StepEvent], AutoPolicy]:
    backend = CountingBackend(right=right)
    policy = AutoPolicy([Arm(backend.capabilities, PairState(), GivenCosts(CPU))])
    steps = decoded(backend, knobs or Knobs(), policy, tokens)
    return [replace(step, stages=StageTimes(verify=10.0 + len(step.tree.tokens))) for step in steps], policy


def test_drafts_are_counted_by_where_they_came_from() -> None:
    steps, _ = answered(right=0)
    stats = turn_stats(READ, steps, 1.0)
    copied = sum(len(step.tree.copied) for step in steps)
    taken = sum(len(set(step.tree.copied) & set(step.tree.accepted)) for step in steps)
    assert (stats.copied, stats.copied_accepted) == (copied, taken)
    assert copied >= taken > 50
    assert stats.accepted == taken, "a drafter that is never right has none taken"
    assert sum(stats.nodes) == stats.steps
    assert sum(size * count for size, count in enumerate(stats.nodes)) == stats.verified
    assert stats.accepted_per_verified == pytest.approx(stats.accepted / stats.verified)
    text = drawn(Figures("Last turn", stats, "tree", "auto", [], []), 60).plain
    assert f"nodes, {taken / copied:.0%} taken" in text
    assert "steps by nodes verified" in text


def test_parts_have_all_the_figures() -> None:
    steps, _ = answered()
    totals = TurnTotals()
    totals.add(Piece(READ, "", "hm", 0.1))
    for number, step in enumerate(steps):
        thinking = number < len(steps) // 2
        totals.add(Piece(step, "" if thinking else "a", "b" if thinking else "", 0.1 + number))
    whole = totals.stats(READ, 1.0)
    for name in ("steps", "verified", "accepted", "copied", "copied_accepted"):
        assert getattr(whole.thinking, name) + getattr(whole.answer, name) == getattr(whole, name)
    assert whole.thinking.accept_rate_by_depth
    assert len(whole.answer.drafted_by_depth) == len(whole.answer.accept_rate_by_depth)


def test_timings_have_the_names_that_servers_use() -> None:
    steps, _ = answered()
    stats = turn_stats(READ, steps, 2.0)
    said = tuple(token for step in steps for token in step.tokens)
    report = TurnReport("", "", (2, *said), "tree", "auto", "max tokens", Knobs(), stats)
    told = json.loads(json.dumps(report.to_json()))
    assert told["timings"]["draft_n"] == stats.verified
    assert told["timings"]["draft_n_accepted"] == stats.accepted
    assert told["timings"]["predicted_n"] == 1 + len(said)
    assert told["timings"]["predicted_ms"] == 2000
    assert told["stats"]["accepted_per_verified"] == pytest.approx(stats.accepted / stats.verified)


def test_what_was_learned_is_a_table() -> None:
    _, policy = answered(right=0, knobs=Knobs(from_text=False))
    rows = policy.found()
    assert {row.kind for row in rows} <= {name for name, _, _ in KINDS}
    first = rows[0]
    assert first.kind == "first choice"
    assert first.trials == policy.arm.state.parts["answer"].learned.trials[0]
    assert abs(first.learned - first.found) < abs(first.stated - first.found), "learning comes nearer than the word"
    stats = turn_stats(READ, [], 0.0)
    text = drawn(Figures("Last turn", stats, "tree", "", [], [], learned=rows), 60).plain
    assert "stated learned found" in text
    assert f"{first.stated:.2f}" in text


def test_nodes_from_the_text_are_marked_and_values_are_the_learned_ones() -> None:
    steps, _ = answered(right=0)
    step = next(step for step in steps if step.tree.copied and step.accepted_depth)
    text = tree_drawn(step, str, 60).plain
    assert text.splitlines()[0].split() == ["token", "own", "auto"]
    assert '✓"' in text
    fixed, _ = answered(knobs=Knobs(drafting="tree 22"))
    text = tree_drawn(fixed[3], str, 60).plain
    assert text.splitlines()[0].split() == ["token", "own", "path"]
    assert '"' not in text


def test_what_a_fixed_budget_would_have_taken() -> None:
    steps, _ = answered(knobs=Knobs(from_text=False))
    auto = auto_turn(steps)
    assert auto is not None
    assert auto.length == pytest.approx(sum(len(step.tokens) for step in steps) / len(steps))
    timed = [replace(step, stages=StageTimes(verify=8.0, host=2.0)) for step in steps]
    own = auto_turn(timed)
    assert own is not None
    assert own.ms == pytest.approx(own_ms(timed)) == 10.0, "as the speed of the turn, and of other budgets"
    costs = StepTimes()
    for nodes in (3, 22):
        for _ in range(5):
            ones = (1.0,) * (nodes + 1)
            tree = replace(steps[0].tree, tokens=(1,) * (nodes + 1), probs=ones, path_probs=ones)
            costs.add(replace(steps[0], tree=tree, stages=StageTimes(verify=20.0 + nodes)))
    found = curve("estimate", estimate(steps, (7, 22)), costs, 22)
    point = found.at(22)
    assert point is not None
    assert point.tok_s is not None
    assert auto.saved(point) == pytest.approx(auto.tokens / point.tok_s - auto.seconds)
    assert " s that budget 22 takes" in lab_text.auto_line(auto, found)
    short = lab_text.auto_line(replace(auto, tokens=9, seconds=0.12), found)
    assert re.search(r"; auto lost \d+ ms against the \d+ ms that budget 22 takes$", short)
    untimed = curve("estimate", estimate(steps, (7, 22)), StepTimes(), 22)
    assert lab_text.auto_line(auto, untimed).endswith("; how long budget 22 would take is not known")
    assert " now " not in lab_text.best_line(found), "the turn ran under auto, not with the budget"
    fixed, _ = answered(knobs=Knobs().replace(budget=6))
    assert auto_turn(fixed) is None
    assert auto_turn([]) is None


def test_the_strip_and_an_answer_say_who_picks_the_budget() -> None:
    meter = Meter(prefill=READ)
    for knobs, shown in (
        (Knobs(), "auto"),
        (Knobs(drafting="auto up to 9"), "auto up to 9"),
        (Knobs().replace(budget=9), "tree 9"),
        (Knobs(drafting="tree 22"), "tree 22"),
    ):
        strip = StatusStrip()
        strip.set_reactive(StatusStrip.status, Status(knobs=knobs, used=knobs))
        assert shown in _strip(strip)
        assert f"{shown}, p_min 0" in summary(meter, None, knobs, "")
    (first, *_), _ = answered()
    meter = Meter(prefill=READ, last=replace(first, mode="plain"))
    meter.turn.add(Piece(first, "a", "", 0.0))
    assert meter.totals.verified
    assert summary(meter, None, Knobs(), "").endswith("auto, p_min 0 · plain"), "only the last step was plain"
    none = Meter(prefill=READ, last=meter.last)
    assert summary(none, None, Knobs(), "") == "1 tok · auto · plain", "none has drafted"
    assert summary(none, None, Knobs(drafting="plain"), "") == "1 tok · plain"


def test_the_strip_names_the_mode_that_changes() -> None:
    """Regression: for a chain that F8 had found, the strip said only "1 more"."""
    knobs = Knobs(drafting="auto")
    strip = StatusStrip()
    strip.set_reactive(StatusStrip.status, Status(knobs=knobs.replace(mode="chain", min_p=0.1), used=knobs))
    assert "•chain 22 · p_min 0 · T 0 · think off · •1 more" in _strip(strip)


def _strip(strip: StatusStrip) -> str:
    from unittest.mock import PropertyMock, patch

    from textual.geometry import Size

    with patch.object(StatusStrip, "size", PropertyMock(return_value=Size(120, 1))):
        return strip.render().plain


@pytest.mark.parametrize(
    "damage",
    [
        lambda step: replace(step, tree=replace(step.tree, values=step.tree.values[:-1])),
        lambda step: replace(step, tree=replace(step.tree, values=(2.0,) * len(step.tree.tokens))),
        lambda step: replace(step, tree=replace(step.tree, copied=(len(step.tree.tokens),))),
        lambda step: replace(step, tree=replace(step.tree, copied=(0,))),
        lambda step: replace(step, choice=Choice((1.0,) * 99, 3)),
        lambda step: replace(step, choice=Choice((1e9,), 3)),
        lambda step: replace(step, choice=Choice((1.0,), -1)),
    ],
)
def test_a_record_that_does_not_fit_is_refused(damage: object) -> None:
    steps, _ = answered()
    step = next(step for step in steps if len(step.tree.tokens) > 2)
    check_step(step)
    turn = [turn_of([]).start, Step(damage(step), 1.0)]  # type: ignore[operator]
    with pytest.raises(FormatError):
        list(assemble(map(decode, map(encode, turn))))
