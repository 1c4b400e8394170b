"""`auto` on a card: trees by learned value on the device, their width picked by the host a few steps late."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dflash_core import Knobs
from dflash_core.bench.replay import GivenCosts
from dflash_core.events import Choice, StageTimes, StepEvent, StepTree
from dflash_core.knobs import Value
from dflash_core.policy.costs import H200
from dflash_core.policy.late import BUILT, CHOICES, FIRST_STEPS, LatePolicy, described
from dflash_core.policy.pair import PairState
from dflash_core.policy.values import start_weights
from dflash_core.runner import Runner
from support.device_pairs import CONTEXT, prompt
from support.planted_device import planted

FILE = "tiny-F16.gguf"
TOKENS = 40
SAMPLED: dict[str, Value] = {"temperature": 0.9, "top_k": 20, "seed": 4}


def answered(
    runner: Runner, knobs: Knobs, changes: dict[int, Knobs] | None = None
) -> tuple[list[int], list[StepEvent]]:
    tokens, steps = list[int](), list[StepEvent]()
    for event in runner.generate(prompt()[:7], knobs):
        tokens += event.tokens
        if isinstance(event, StepEvent):
            steps.append(event)
            if changes and len(steps) in changes:
                runner.change(changes[len(steps)])
    return tokens, steps


# Each kind of walk greedy or sampled; with `full` both.
@pytest.mark.parametrize(
    ("ranks", "sampled"),
    [
        pytest.param(ranks, sampled, marks=() if (at + sampled) % 2 else pytest.mark.full)
        for at, ranks in enumerate([(0,) * 12, (0, 0, 1, 0, 0), (7, 7), (0, 1, 2, 0, 3, 0)])
        for sampled in (False, True)
    ],
)
def test_auto_is_lossless_whatever_is_learned_or_changed(ranks: tuple[int, ...], sampled: bool) -> None:
    sampling = SAMPLED if sampled else {}
    plain_session, pair = planted(FILE, [], ())
    vocab = pair.target.config.vocab_size
    plain = Runner(plain_session, frozenset(), CONTEXT, vocab)
    knobs = Knobs(max_tokens=TOKENS).replace(**sampling)
    expected, _ = answered(plain, knobs.replace(mode="ar"))

    session, _ = planted(FILE, expected, ranks)
    policy = LatePolicy(session.capabilities, PairState(), GivenCosts(H200))
    runner = Runner(session, frozenset(), CONTEXT, vocab, policy=policy)
    fixed, tree = knobs.replace(budget=9), knobs.replace(mode="tree", budget=20)
    found, steps = answered(runner, knobs, {3: fixed, 5: knobs, 7: tree, 9: knobs})
    assert found == expected
    kinds = Counter(step.choice is not None for step in steps)
    assert kinds[True] >= 3
    for step in steps:
        if step.choice is None:
            assert step.tree.values == ()
            continue
        assert step.knobs.policy == "auto"
        assert len(step.tree.values) == len(step.tree.tokens) <= max(CHOICES)
        assert step.reason.startswith("auto: ")
        assert step.choice.brings[0] == pytest.approx(1)
        tree_of, stated = described(step)
        assert stated.width == 8
        assert tree_of.off[0] == 0
    assert not np.array_equal(policy.state.parts["answer"].learned.weights, start_weights())
    assert session.length == 7 + TOKENS - 1


def _step(rows: int, taken: int, mode: str = "tree") -> StepEvent:
    """A step of a chain that brought `taken` tokens, of a drafter that says each is right with p = 0.7."""
    count = rows if mode == "tree" else 1
    tokens = tuple(range(count))
    values = tuple(0.7**node for node in range(BUILT + 1))
    brings = tuple(sum(values[:shown]) for shown in (1, 2, 4, 8, 16, 24))
    tree = StepTree(tokens, tuple(range(-1, count - 1)), tokens, (0.7,) * count, values[:count], tuple(range(taken)),
                    values[:count] if mode == "tree" else ())  # fmt: skip
    choice = Choice(brings, rows) if mode == "tree" else None
    return StepEvent(
        tuple(range(1, taken + 1)), tree, count - 1, taken - 1, 9, StageTimes(), mode, "", choice=choice,  # type: ignore[arg-type]
        knobs=Knobs(learn=False),
    )  # fmt: skip


def driven(taken: int, steps: int) -> tuple[LatePolicy, list[str], list[int]]:
    session, _ = planted(FILE, [], ())
    policy = LatePolicy(session.capabilities, PairState(), GivenCosts(H200))
    policy.begin([1, 2], frozenset())
    modes, rows = list[str](), list[int]()
    for _ in range(steps):
        decision = policy.next(Knobs())
        modes.append(decision.mode)
        rows.append(decision.budget + 1)
        policy.observe(_step(decision.budget + 1, taken if decision.mode == "tree" else 1, decision.mode))
    return policy, modes, rows


def test_the_width_follows_what_it_brings() -> None:
    policy, modes, rows = driven(taken=3, steps=60)
    assert rows[:FIRST_STEPS] == [16] * FIRST_STEPS
    assert set(modes) == {"tree"}
    assert set(rows[-20:]) == {8}, "with chances of 0.7 a step, nodes past the eighth bring too little"
    assert "rows pay; the next 8 cost" in policy.next(Knobs()).reason


def test_a_drafter_that_brings_nothing_rests_and_is_tried_again() -> None:
    _, modes, _ = driven(taken=1, steps=120)
    assert Counter(modes)["ar"] > 60
    assert "tree" in modes[40:], "it is tried again"


def test_fixed_budgets_are_the_knobs_own() -> None:
    policy, _, _ = driven(taken=3, steps=10)
    assert policy.next(Knobs().replace(budget=9)).reason == "fixed budget 9"
    assert policy.weights(Knobs().replace(budget=9)) is None
    assert policy.weights(Knobs(mode="tree")) is None
    assert policy.weights(Knobs()) is policy.state.parts["answer"].learned.weights
    assert policy.next(Knobs(budget=9)).budget == 7, "a budget under auto is the most"
