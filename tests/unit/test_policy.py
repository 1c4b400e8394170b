"""What a step runs: the knobs decide, a decoder asks the policy before each step and reports the result. No torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from tools.bench.replay import GivenCosts

from dflash_core.backends.base import AnswerOptions
from dflash_core.backends.decoder import Decoder
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafting import DEFAULT_NODES
from dflash_core.events import StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.auto import MAX_TREE_NODES, AutoPolicy, max_nodes
from dflash_core.policy.base import LATELY, Decision, FixedPolicy, Policy
from dflash_core.policy.costs import CPU, H200, StepCosts
from dflash_core.policy.queued import QueuedPolicy
from dflash_core.tree import Candidates
from support.counting import CountingBackend
from support.drafted import proven

DRAFTER = Capabilities("dflash", 8)


@pytest.mark.parametrize(
    ("knobs", "drafter", "decision"),
    [
        (Knobs(), DRAFTER, Decision("tree", 22, "a drafter is loaded")),
        (Knobs(drafting="tree 22"), DRAFTER, Decision("tree", 22, "drafting is set")),
        (Knobs().replace(budget=5), DRAFTER, Decision("tree", 5, "drafting is set")),
        (Knobs(drafting="tree 200"), DRAFTER, Decision("tree", 200, "drafting is set")),
        (Knobs(drafting="chain 5"), DRAFTER, Decision("chain", 5, "drafting is set")),
        (Knobs(drafting="chain 200"), DRAFTER, Decision("chain", 7, "drafting is set")),
        (Knobs(drafting="plain"), DRAFTER, Decision("plain", 0, "drafting is set")),
        (Knobs(drafting="plain"), None, Decision("plain", 0, "drafting is set")),
        (Knobs(), None, Decision("plain", 0, "no drafter is loaded")),
        (Knobs(drafting="tree 22"), None, Decision("plain", 0, "no drafter is loaded")),
    ],
)
def test_the_rule_of_the_knobs(knobs: Knobs, drafter: Capabilities | None, decision: Decision) -> None:
    assert FixedPolicy(drafter).next(knobs) == decision


class Turns(Policy):
    """Alternates between plain steps and trees of growing budget, and records the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[StepEvent] = []
        self.certain: list[tuple[float, ...]] = []

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None: ...

    def next(self, knobs: Knobs) -> Decision:
        count = len(self.steps)
        return Decision("tree", count, f"step {count}") if count % 2 else Decision("plain", 0, f"step {count}")

    def plan(self, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> None:
        """The knobs' own tree."""

    def asks_certain(self, knobs: Knobs) -> bool:
        return knobs.mode == "auto"

    def observe(self, step: StepEvent, certain: Sequence[float] = ()) -> None:
        self.steps.append(step)
        self.certain.append(tuple(certain))

    def injected(self, tokens: Sequence[int]) -> None: ...

    def end(self) -> None: ...


def test_a_policy_is_asked_before_each_step_and_told_after() -> None:
    policy, backend = Turns(), CountingBackend(right=7)
    decoder = Decoder(backend, AnswerOptions(Knobs(), frozenset(), 1000, policy))
    decoder.first(backend.prefill([1]))
    steps = [decoder.step() for _ in range(8)]
    assert policy.steps == steps
    assert [step.mode for step in steps] == ["plain", "tree"] * 4
    assert [step.reason for step in steps] == [f"step {count}" for count in range(8)]
    assert [len(step.tree.tokens) - 1 for step in steps] == [0, 1, 0, 3, 0, 5, 0, 7]
    assert decoder.answer == [int(token) for token in np.arange(2, 2 + len(decoder.answer)) % 40]


@pytest.mark.parametrize("right", [7, 30])
def test_a_policy_is_told_how_certain_the_target_was(right: int) -> None:
    """It gets the target's probabilities of the last tokens of a step, whoever drafted them, if it asks for them."""
    policy, backend = Turns(), CountingBackend(right=right)
    decoder = Decoder(backend, AnswerOptions(Knobs(), frozenset(), 1000, policy))
    decoder.first(backend.prefill([1]))
    steps = [decoder.step() for _ in range(2 * LATELY + 4)]
    logits = backend.verify([1], [-1])[0].astype(np.float64)
    one = float(np.exp(logits.max()) / np.exp(logits).sum())  # as likely wherever it counts on
    assert [len(certain) for certain in policy.certain] == [min(len(step.tokens), LATELY) for step in steps]
    assert np.allclose([p for certain in policy.certain for p in certain], one)
    decoder.take(Knobs(drafting="chain 22"))
    decoder.step()
    assert policy.certain[-1] == ()


@pytest.mark.parametrize("several", [False, True])
def test_nobody_asks_how_certain_the_target_was_where_every_step_drafts(several: bool) -> None:
    """It is computed on the CPU, a softmax per step."""

    def auto(*kinds: str) -> AutoPolicy:
        return AutoPolicy([Arm(Capabilities(kind, 8), PairState(), StepCosts(CPU)) for kind in kinds])

    policy = auto("dflash", "ngram") if several else auto("dflash")
    assert policy.asks_certain(Knobs())
    for knobs in (Knobs(drafting="tree 22"), Knobs(drafting="tree 22"), Knobs(drafting="plain")):
        assert not policy.asks_certain(knobs)
    assert not auto("ngram").asks_certain(Knobs()), "it has nothing to rest from"
    assert not FixedPolicy(Capabilities("dflash", 8)).asks_certain(Knobs())


def test_neither_the_policy_nor_what_a_drafter_can_do_brings_torch() -> None:
    code = (
        "import sys, dflash_core.policy.base, dflash_core.drafters.capabilities, dflash_core.drafters.registry\n"
        "print(*[m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_cap_of_any_budget_can_be_asked_for() -> None:
    """Also a cap equal to the default size."""
    default = DEFAULT_NODES
    assert max_nodes(Knobs()) == MAX_TREE_NODES
    assert max_nodes(Knobs().replace(budget=9, policy="auto")) == 9
    assert max_nodes(Knobs().replace(budget=default, policy="auto")) == default
    assert max_nodes(Knobs(drafting="auto up to 22")) == default
    assert Knobs().replace(budget=default).drafting == f"tree {default}"
    assert Knobs().replace(budget=default).replace(policy="auto").cap is None
    assert Knobs().replace(budget=default).replace(policy="capped").cap == default
    policy = QueuedPolicy(Arm(Capabilities("dflash", 16, on_device=True), PairState(), GivenCosts(H200)))
    proven(policy)
    policy.begin([1, 2], frozenset())
    decision = policy.next(Knobs(drafting="auto up to 7"))
    assert (decision.mode, decision.budget) == ("tree", 7)
    assert policy.weights(Knobs(drafting="auto up to 7")) is not None
