"""The choice among several drafters: each has its own learned values, and the one that pays most decides a step."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tools.bench.replay import GivenCosts

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draft import together
from dflash_core.drafters.ngram import CAPABILITIES as NGRAM
from dflash_core.events import StageTimes, StepEvent, StepTree
from dflash_core.knobs import Knobs
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.auto import AutoPolicy
from dflash_core.policy.choosing import START_SPARE
from dflash_core.policy.costs import CPU
from dflash_core.policy.values import start_weights
from dflash_core.tree import Candidates

BLOCKS = {"far": 16, "near": 5}
SENTENCE = r" is fastest here \(near writes \d+\.\d tokens while plain decoding writes \d+\.\d"


def policy(*kinds: str) -> AutoPolicy:
    capabilities = [NGRAM if kind == "ngram" else Capabilities(kind, BLOCKS[kind]) for kind in kinds]
    return AutoPolicy([Arm(one, PairState(), GivenCosts(CPU)) for one in capabilities])


def step(tokens: int, ms: float, first: int = 100) -> StepEvent:
    nodes = tuple(range(tokens))
    ones = (1.0,) * tokens
    tree = StepTree(nodes, tuple(range(-1, tokens - 1)), nodes, ones, ones, nodes)
    return StepEvent(
        tuple(range(first, first + tokens)), tree, tokens - 1, tokens - 1, 1, StageTimes(verify=ms), "tree", "", bonus=1
    )  # fmt: skip


def brings(kind: str, easy: bool) -> tuple[int, float]:
    """Tokens and milliseconds of a step: far blocks cost more and pay on easy text alone."""
    return (12, 40.0) if kind == "far" and easy else (1, 40.0) if kind == "far" else (4, 25.0)


def run(chooser: AutoPolicy, answers: Sequence[bool], length: int = 10) -> list[tuple[bool, int, str]]:
    """Run answers of easy and of hard text; returns (easy, step, drafter) for each step."""
    taken, knobs, fresh = [], Knobs(), itertools.count(1000, 50)  # nothing can be copied
    for easy in answers:
        chooser.begin([1, 2, 3], frozenset())
        for number in range(length):
            decision = chooser.next(knobs)
            assert chooser.next(knobs) == decision, "asked again it says the same"
            taken.append((easy, number, decision.drafter))
            chooser.observe(step(*brings(decision.drafter, easy), next(fresh)))
        chooser.end()
    return taken


def test_each_kind_of_text_gets_the_drafter_that_pays() -> None:
    draws = random.Random(5)
    answers = [draws.random() < 0.5 for _ in range(40)]
    taken = run(policy("near", "far"), answers)[100:]
    easy = Counter(kind for is_easy, number, kind in taken if is_easy)
    hard = Counter(kind for is_easy, number, kind in taken if not is_easy and number > 0)
    # A step of "near" tells nothing about the text, so it may take a few steps to switch back.
    assert easy["far"] / easy.total() > 0.6, easy
    assert hard["near"] / hard.total() > 0.85, hard


def test_it_beats_either_alone_and_the_reason_says_why() -> None:
    answers = [number % 2 == 0 for number in range(40)]
    chooser = policy("near", "far")
    taken = run(chooser, answers)
    speeds = {}
    for name in ("near", "far", "chosen"):
        done = [brings(kind if name == "chosen" else name, easy) for easy, _, kind in taken]
        speeds[name] = sum(tokens for tokens, _ in done) / sum(ms for _, ms in done)
    assert speeds["chosen"] > 1.1 * max(speeds["near"], speeds["far"]), speeds
    chooser.begin([1, 2], frozenset())
    chooser.next(Knobs())
    reasons = []
    for _ in range(4):  # one of them may be a try
        chooser.observe(step(1, 40.0))
        reasons.append(chooser.next(Knobs()).reason)
    assert any(re.search(SENTENCE, reason) for reason in reasons), reasons


def test_a_drafter_that_becomes_better_is_found_again() -> None:
    chooser = policy("near", "far")
    run(chooser, [False] * 30)
    late = [kind for _, number, kind in run(chooser, [True] * 30)[200:] if number]
    assert late.count("far") / len(late) > 0.9


def test_an_answer_that_differs_is_known_by_its_own_steps() -> None:
    """After a "far" step of one token, the next may be long in most answers, but not in these."""
    draws, chooser, taken = random.Random(3), policy("near", "far"), Counter[tuple[bool, str]]()
    fresh = itertools.count(1000, 50)
    for number in range(60):
        rich = draws.random() < 0.8
        chooser.begin([1, 2, 3], frozenset())
        for at in range(30):
            kind = chooser.next(Knobs()).drafter
            far = draws.choice((1, 20)) if rich else 1
            chooser.observe(step(*((far, 40.0) if kind == "far" else (4, 25.0)), next(fresh)))
            taken[rich, kind] += number >= 20 and at >= 4
        chooser.end()
    shares = {rich: taken[rich, "far"] / (taken[rich, "far"] + taken[rich, "near"]) for rich in (True, False)}
    assert shares[True] > 0.35, shares
    assert shares[False] < 0.15, shares


def test_every_drafter_learns_for_itself() -> None:
    chooser, knobs = policy("near", "far"), Knobs(from_text=False)
    drafts = Candidates(np.array([[7, 8]]), np.log([[0.6, 0.3]]))
    for _ in range(2):
        chooser.begin([1, 2, 3], frozenset())
        assert chooser.next(knobs).drafter == "far", "it begins"
        plan = chooser.plan(knobs, 3, drafts, 40)
        assert plan is not None
        assert plan.decision.drafter == "far"
        tree = plan.tree
        path, said = ((0, 1), (7, 9)) if len(tree) > 1 else ((0,), (7,))
        walked = StepTree(tree.tokens, tree.parents, tree.depths, (1.0,) * len(tree), (1.0,) * len(tree), path)
        chooser.observe(StepEvent(said, walked, 1, len(path) - 1, 5, StageTimes(verify=20.0), "tree", "", bonus=9))
    near, far = chooser.arms
    assert not np.array_equal(far.state.parts["answer"].learned.weights, start_weights())
    assert np.array_equal(near.state.parts["answer"].learned.weights, start_weights())
    assert near.state.parts["answer"].drafts == {}
    assert chooser.text[-2:] == list(said)


def test_what_is_forgotten_is_found_again() -> None:
    """Drafters about which nothing is known any more get their initial tries again."""
    chooser, fresh, begun = policy("near", "far"), itertools.count(1000, 50), list[int]()
    for _ in range(2):
        chooser.reset([PairState(), PairState()])
        chooser.begin([1, 2, 3], frozenset())
        begun.append(0)
        for _ in range(100):
            drafts = chooser.next(Knobs(from_text=False)).drafts
            begun[-1] += drafts
            took = brings(chooser.arm.kind, False)[1] if drafts else CPU.plain
            chooser.observe(replace(step(1, took, next(fresh)), mode="tree" if drafts else "plain"))
    assert begun[1] == pytest.approx(begun[0], abs=2)
    assert begun[0] > 6


def test_trees_of_a_fixed_size_get_the_drafter_that_pays() -> None:
    """Every step is drafted then, by the drafter with the most tokens for its time."""
    chooser, taken, fresh = policy("far", "near"), Counter[str](), itertools.count(1000, 50)
    knobs = Knobs().replace(budget=8)
    for number in range(20):
        chooser.begin([1, 2, 3], frozenset())
        for _ in range(20):
            decision = chooser.next(knobs)
            assert (decision.mode, decision.budget, decision.drafts) == ("tree", 8, True)
            taken[decision.drafter] += number >= 10
            chooser.observe(step(*brings(decision.drafter, False), next(fresh)))
        chooser.end()
    assert taken["near"] / taken.total() > 0.85, taken


def test_a_named_drafter_is_taken() -> None:
    chooser = AutoPolicy([Arm(Capabilities(kind, 9), PairState(), GivenCosts(CPU)) for kind in ("dflash2", "mtp")])
    chooser.begin([1, 2], frozenset())
    for knobs, kind in (
        (Knobs(draft="mtp"), "mtp"),
        (Knobs(drafting="chain 22"), "dflash2"),
        (Knobs(draft="ngram"), "dflash2"),
    ):
        decision = chooser.next(knobs)
        assert decision.drafter == kind
        assert "is fastest" not in decision.reason
        assert "is tried" not in decision.reason
        for number in range(30):  # its pauses and tries do not depend on other drafters
            chooser.observe(step(1, 40.0, 100 * number))
            assert chooser.next(knobs).drafter == kind


def test_text_is_taken_where_it_can_be_copied() -> None:
    """Its time is known before it is tried."""
    chooser, fresh = policy("near", "ngram"), iter(range(200, 10_000, 10))
    for _ in range(6):
        chooser.begin([1, 2], frozenset())
        for _ in range(4):
            assert chooser.next(Knobs()).drafter == "near", "nothing to copy"
            chooser.observe(step(4, 25.0, next(fresh)))
    chooser.begin([*range(50, 80), 3], frozenset())
    assert chooser.next(Knobs()).drafter == "near", "an answer begins with a drafter"
    chooser.observe(step(4, 25.0, next(fresh)))
    chooser.injected([*range(50, 62)])
    tried = 0
    while (decision := chooser.next(Knobs())).drafter == "near":
        assert decision.reason.startswith("near is tried"), decision.reason
        chooser.observe(step(1, 25.0, 62 + tried))  # as the text goes on
        tried += 1
    assert tried <= START_SPARE, "what each loses is more than a plain step"
    assert decision.drafter == "ngram", decision.reason
    assert re.match(f"plain decoding{SENTENCE}", decision.reason)
    assert decision.reason.endswith(" copied from the text")


@pytest.mark.parametrize("kinds", [("near", "far"), ("near", "far", "ngram")])
def test_drafters_that_rest_are_tried_again(kinds: tuple[str, ...]) -> None:
    """Also where steps without drafts are decided by the policy that copies text; and the reason says so."""
    chooser, fresh, asked = policy(*kinds), itertools.count(1000, 50), list[bool]()
    chooser.begin([1, 2, 3], frozenset())
    for _ in range(3000):
        reason = chooser.next(Knobs(from_text=False)).reason
        assert chooser._step is not None
        picked = chooser._step.picked
        assert picked is not None
        asked.append(picked.at is not None)
        if asked[-1]:
            said = "is tried" if picked.tries else "begins" if picked.lost > 0 else "is fastest"
            assert reason.startswith(f"{chooser.arm.kind} {said}"), reason
        else:
            assert reason.startswith("no draft is tried" if picked.tries else "plain decoding is fastest"), reason
        took = brings(chooser.arm.kind, False)[1] if asked[-1] else CPU.plain
        chooser.observe(replace(step(1, took, next(fresh)), mode="tree" if asked[-1] else "plain"))
    assert not all(asked[:200])
    assert any(asked[-1000:]), "they are tried again"
    assert sum(asked[-1000:]) < 50


@pytest.mark.parametrize("kinds", [("near", "far"), ("far", "ngram")])
def test_capabilities_of_several_name_their_parts(kinds: tuple[str, ...]) -> None:
    parts = [NGRAM if kind == "ngram" else Capabilities(kind, BLOCKS[kind]) for kind in kinds]
    assert together(parts).parts == tuple(parts)
    assert together(parts).kind == "+".join(kinds)
