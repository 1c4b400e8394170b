"""What is said of a drafter that does not fit, and going on without one whose numbers are not finite. No torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tools.bench.replay import GivenCosts

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import NumericsError
from dflash_core.events import StageTimes, StepDrafts, StepEvent, StepTree
from dflash_core.knobs import Knobs
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.auto import AutoPolicy
from dflash_core.policy.base import MISSES, FixedPolicy
from dflash_core.policy.costs import CPU
from dflash_core.runner import Runner
from support.counting import STOP, VOCAB, CountingBackend

TOKENS = 120
DRAFTER = Capabilities("counting", 8)


def steps(run: Runner, knobs: Knobs, tokens: int = TOKENS) -> list[StepEvent]:
    events = list(run.generate([1, 2], knobs.replace(max_tokens=tokens)))
    assert [token for event in events for token in event.tokens] == [(3 + n) % 40 for n in range(tokens)]
    return [event for event in events if isinstance(event, StepEvent)]


def runner(backend: CountingBackend, learned: bool) -> Runner:
    policy = AutoPolicy([Arm(backend.capabilities, PairState(), GivenCosts(CPU))]) if learned else None
    return Runner(backend, frozenset({STOP}), 4000, VOCAB, policy=policy)


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("mode", ["tree", "chain", "auto"])
def test_a_drafter_that_is_never_right_is_said_not_to_fit(mode: str, learned: bool) -> None:
    """Also where the user has set a mode, which is obeyed. It is taken back with the first draft that is accepted."""
    backend = CountingBackend(right=0)
    run, knobs = runner(backend, learned), Knobs(tree_width=1).replace(mode=mode, from_text=False)
    found = steps(run, knobs, 2000 if mode == "auto" and learned else 40)
    said = [step.reason.startswith("counting does not fit this target: none of its") for step in found]
    drafted = [bool(step.drafts.tokens) for step in found]
    first = said.index(True)
    assert sum(drafted[:first]) == MISSES
    assert all(said[first:])
    assert all(drafted) or mode == "auto"
    (note,) = run.drafter_notes
    assert note.startswith(f"counting does not fit this target: none of its {sum(drafted)} drafts was accepted; load ")
    plain = steps(run, knobs.replace(mode="plain"), 20)
    assert {step.reason for step in plain} == {"drafting is set"}
    backend.right = 3
    steps(run, knobs.replace(mode="tree"), 20)
    assert run.drafter_notes == ()


def test_copied_tokens_say_nothing_of_the_drafter() -> None:
    policy = FixedPolicy(DRAFTER)
    tree = StepTree((1, 2), (-1, 0), (0, 1), (1.0, 0.5), (1.0, 0.5), (0, 1), copied=(1,))
    step = StepEvent((2, 3), tree, 1, 1, 9, StageTimes(), "tree", "", drafts=StepDrafts(((7, 8),), ((-1.0, -2.0),)))
    for _ in range(MISSES):
        assert policy.watch.notes == ()
        policy.observe(step)
    assert policy.watch.notes
    policy.observe(replace(step, tree=replace(tree, copied=())))
    assert policy.watch.notes == ()


class Damaged(CountingBackend):
    """The second depth below most tokens is not finite."""

    def draft(self, root: int, window: int, at: int | None = None) -> np.ndarray:
        rows = super().draft(root, window, at)
        if root > 10:
            rows[1] = np.nan
        return rows


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("mode", ["tree", "chain", "auto"])
def test_without_a_drafter_that_is_not_finite_the_answer_goes_on(mode: str, learned: bool) -> None:
    backend = Damaged(right=1, block=3)
    run, knobs = runner(backend, learned), Knobs().replace(mode=mode, from_text=False)
    found = [*steps(run, knobs), *steps(run, knobs)]
    assert {step.mode for step in found[-TOKENS:]} == {"plain"}
    left_out = "counting is left out, its numbers are not finite; no other drafter is loaded"
    assert {step.reason for step in found[-TOKENS:]} == {left_out}
    (note,) = run.drafter_notes
    assert note.startswith("counting is left out: the drafter produced numbers that are not finite at position")


def test_a_target_that_is_not_finite_still_ends_the_answer() -> None:
    backend = CountingBackend()
    run = runner(backend, learned=False)
    backend._row = lambda token: np.full(VOCAB, np.nan, np.float32)  # type: ignore[method-assign]
    with pytest.raises(NumericsError, match="the target produced"):
        list(run.generate([1, 2], Knobs()))


@pytest.mark.parametrize("knobs", [Knobs(), Knobs(drafting="tree 22"), Knobs(draft="dflash2")])
def test_another_drafter_takes_over(knobs: Knobs) -> None:
    parts = [Capabilities(kind, 8) for kind in ("dflash2", "mtp")]
    policy = AutoPolicy([Arm(one, PairState(), GivenCosts(CPU)) for one in parts])
    policy.begin([1, 2], frozenset())
    policy.next(knobs)
    policy.failed("dflash2", NumericsError("no numbers"))
    assert policy.next(knobs).drafter == "mtp"
    policy.failed("mtp", NumericsError("no numbers"))
    assert policy.next(knobs).mode == "plain"
    assert policy.watch.notes == ("dflash2 is left out: no numbers", "mtp is left out: no numbers")
