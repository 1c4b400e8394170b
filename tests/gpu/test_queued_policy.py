"""`auto` on a card: trees by learned value on the device, their width picked by the host a few steps late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from tools.bench.chosen import cases
from tools.bench.replay import GivenCosts

from dflash_core import Knobs
from dflash_core.backends.cuda import step as step_module
from dflash_core.backends.cuda.device_state import DeviceNgrams, DeviceState
from dflash_core.backends.cuda.launch import Run
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.ngram_table import NgramTable
from dflash_core.events import Choice, StageTimes, StepDrafts, StepEvent, StepTree, brings
from dflash_core.knobs import Value
from dflash_core.policy import queued
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.base import Decision, FixedPolicy
from dflash_core.policy.costs import H200
from dflash_core.policy.queued import CHOICES, QueuedPolicy
from dflash_core.policy.values import COPIED, start_weights
from dflash_core.policy.walked import walked
from dflash_core.runner import Runner
from dflash_core.turn_stats import StepTotals
from support.device_pairs import CONTEXT, close, prompt
from support.drafted import proven
from support.emulated_device import EmulatedDevice
from support.planted_device import planted

FILE = "tiny-F16.gguf"
TOKENS, SAID, LONGEST = 40, 24, 50
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


@cache
def plain(**sampling: Value) -> list[int]:
    """Plain decoding's answer, as long as the longest of the tests."""
    session, pair = planted(FILE, [], ())
    runner = Runner(session, frozenset(), CONTEXT, pair.target.config.vocab_size)
    return answered(runner, Knobs(max_tokens=LONGEST).replace(mode="plain", **sampling))[0]


# A walk off the spine greedy, one of rare tokens sampled; with `full` each kind of walk both ways.
@pytest.mark.emulator
@pytest.mark.parametrize(
    ("ranks", "sampled", "ahead"),
    [
        pytest.param(ranks, sampled, 6 if sampled else 2, marks=() if at == 1 + sampled else pytest.mark.full)
        for at, ranks in enumerate([(0,) * 12, (0, 0, 1, 0, 0), (7, 7), (0, 1, 2, 0, 3, 0)])
        for sampled in (False, True)
    ],
)
def test_auto_is_lossless_whatever_is_learned_or_changed(
    ranks: tuple[int, ...], sampled: bool, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ahead`: steps that are queued."""
    monkeypatch.setattr(step_module, "AHEAD", ahead)
    monkeypatch.setattr(queued, "LEARNED_AT_ONCE", 4)  # so that weights change in the middle of the answer
    sampling = SAMPLED if sampled else {}
    knobs = Knobs(max_tokens=TOKENS).replace(**sampling)
    expected = plain(**sampling)[:TOKENS]

    session, pair = planted(FILE, expected, ranks)
    vocab = pair.target.config.vocab_size
    policy = QueuedPolicy(Arm(session.capabilities, PairState(), GivenCosts(H200)))
    proven(policy)
    runner = Runner(session, frozenset(), CONTEXT, vocab, policy=policy)
    fixed, tree, drafts = knobs.replace(budget=9), knobs.replace(mode="tree", budget=20), knobs.replace(from_text=False)
    found, steps = answered(runner, knobs, {3: fixed, 5: knobs, 7: tree, 9: drafts, 10: knobs})
    assert found == expected
    kinds = Counter(step.choice is not None for step in steps)
    assert kinds[True] >= 3
    for step in steps:
        if step.choice is None:
            assert step.tree.values == ()
            continue
        assert step.knobs.drafting == "auto"
        assert len(step.tree.values) == len(step.tree.tokens) <= max(CHOICES)
        assert ":" not in step.reason, "screens write the mode and a colon before it"
        if step.mode == "plain":
            continue
        assert step.choice.brings[0] == pytest.approx(1)
        tree_of, stated = walked(step)
        assert stated.width == 8
        assert tree_of.off[0] == 0
    assert not np.array_equal(policy.arm.state.parts["answer"].learned.weights, start_weights())
    assert session.length == 7 + TOKENS - 1


class Knowing(QueuedPolicy):
    """As `QueuedPolicy`, with a text that holds the answer."""

    def __init__(self, session: CudaSession, text: NgramTable) -> None:
        assert session.capabilities is not None
        super().__init__(Arm(session.capabilities, PairState(), GivenCosts(H200)))
        self.known = text

    def copies_from(self, knobs: Knobs) -> NgramTable | None:
        return self.known if super().copies_from(knobs) is not None else None


@pytest.mark.emulator
@pytest.mark.parametrize("sampled", [False, pytest.param(True, marks=pytest.mark.full)])
def test_text_that_was_said_before_is_taken_from_there(sampled: bool) -> None:
    """Drafts are wrong and copied tokens are right: a step gives many tokens, each marked as from the text, and the
    answer is plain decoding's. Without the knob no token is copied."""
    # Sampled an answer that comes back to a token of its own: what is copied from there is learned from.
    sampling = {**SAMPLED, "seed": 9} if sampled else {}
    knobs, expected = Knobs(max_tokens=SAID).replace(**sampling), plain(**sampling)[:SAID]
    copied, lengths = [], []
    for from_text in (True, False):
        session, pair = planted(FILE, [], ())
        vocab = pair.target.config.vocab_size
        policy = Knowing(session, NgramTable([*prompt()[:7], *expected]))
        proven(policy)
        runner = Runner(session, frozenset(), CONTEXT, vocab, policy=policy)
        found, steps = answered(runner, knobs.replace(from_text=from_text))
        assert found == expected
        copied.append(sum(len(set(step.tree.copied) & set(step.tree.accepted)) for step in steps))
        lengths.append(len(steps))
        assert all(node in range(1, len(step.tree.tokens)) for step in steps for node in step.tree.copied)
        totals = StepTotals()
        for step in steps:
            totals.add(step)
        assert (totals.copied > 0) == from_text
        assert totals.copied_accepted == copied[-1]
        policy._teach("answer")  # a few steps wait for the next answer
        assert (policy.arm.state.parts["answer"].learned.trials[COPIED:].sum() > 0) == from_text
    assert copied[0] > SAID / 2 > copied[1] == 0
    assert lengths[0] < lengths[1] / 2


class Talking(FixedPolicy):
    """The knobs decide, and the reason is worded differently at every step."""

    said_so_far = 0

    def next(self, knobs: Knobs) -> Decision:
        self.said_so_far += 1
        return replace(super().next(knobs), reason=f"why, number {self.said_so_far}")


@pytest.mark.emulator
def test_a_card_is_told_what_changed_and_not_why(monkeypatch: pytest.MonkeyPatch) -> None:
    told, push = list[int](), DeviceState.push_knobs

    def counted(state: DeviceState) -> None:
        told.append(1)
        push(state)

    monkeypatch.setattr(DeviceState, "push_knobs", counted)
    session, pair = planted(FILE, [], ())
    policy = Talking(session.capabilities)
    runner = Runner(session, frozenset(), CONTEXT, pair.target.config.vocab_size, policy=policy)
    knobs = Knobs(drafting="tree 4", max_tokens=6)
    _, steps = answered(runner, knobs, {2: knobs.replace(budget=3)})
    assert len({step.reason for step in steps}) == len(steps) > 3
    assert len(told) == 1, "the other budget"


class Scripted(FixedPolicy):
    """The steps numbered in `drafted` draft, the others are plain. `busy`: those before which more are queued; `known`:
    by step, how many results were known when it was queued."""

    def __init__(self, drafter: Capabilities, drafted: Collection[int], busy: Collection[int] = ()) -> None:
        super().__init__(drafter)
        self.drafted, self.busy, self.known, self.results = drafted, busy, list[int](), 0

    @property
    def busy_soon(self) -> bool:
        return len(self.known) in self.busy

    def next(self, knobs: Knobs) -> Decision:
        return Decision("tree", 4, "") if len(self.known) in self.drafted else Decision("plain", 0, "")

    def queued(self) -> None:
        self.known.append(self.results)

    def observe(self, step: StepEvent, certain: Sequence[float] = ()) -> None:
        self.results += 1


@pytest.mark.emulator
def test_a_draft_after_plain_steps_catches_up_by_itself_where_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs, expected = Knobs(max_tokens=LONGEST), plain()
    session, pair = planted(FILE, expected, (0, 0))
    vocab, block = pair.target.config.vocab_size, session.device_block
    drafted = (2, 4, 5, 8 + block, 12 + block)
    policy, drains, draining = Scripted(session.capabilities, drafted), list[int](), session.steps.draining

    def counted() -> Run:
        drains.append(len(policy.known))
        return draining()

    monkeypatch.setattr(session.steps, "draining", counted)
    found, steps = answered(Runner(session, frozenset(), CONTEXT, vocab, policy=policy), knobs)
    assert found == expected
    assert all(len(step.tokens) == 3 for at, step in enumerate(steps) if at in drafted)
    assert drains == [8 + block], "only there were more positions pending than a block has"
    # The drafter's caches hold what they hold after a prompt of the same tokens.
    fresh = pair.sessions()[0]
    fresh.prefill([*prompt()[:7], *found[:-1]])
    close(session.draft(found[-1], 0), fresh.draft(found[-1], 0))


@pytest.mark.emulator
def test_more_steps_are_queued_before_a_decision_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as keep the card busy for some time; none is queued behind an answer's last token."""
    knobs, expected = Knobs(max_tokens=24), plain()[:24]
    for calm_ms, busy_ms, calm, busy in ((0.0, 0.0, 2, 2), (0.0, 1e9, 2, 6), (1e9, 0.0, 6, 2)):
        monkeypatch.setattr(step_module, "CALM_MS", calm_ms)
        monkeypatch.setattr(step_module, "BUSY_MS", busy_ms)
        session, pair = planted(FILE, expected, (0, 0))
        policy = Scripted(session.capabilities, (12,), range(6, 14))
        runner = Runner(session, frozenset(), CONTEXT, pair.target.config.vocab_size, policy=policy)
        found, _ = answered(runner, knobs)
        assert found == expected
        waiting = [at - known for at, known in enumerate(policy.known)]
        assert waiting[:2] == [0, 1]
        assert waiting[6] == calm - 1
        assert waiting[13] == busy - 1
        assert len(policy.known) == 24 - 1 - 2, "the draft brings two tokens more"


@pytest.mark.emulator
def test_a_text_that_grows_and_is_cut_is_on_the_device_as_it_is_here() -> None:
    """Only what was added is copied, if that is little and nothing was removed; else the whole text."""
    device = EmulatedDevice()
    there, here = DeviceNgrams(1000, device), NgramTable()
    rng = np.random.default_rng(3)
    for turn in range(30):
        if turn % 9 == 8:
            here.become(here.tokens[: len(here) // 2].tolist())
        here.extend(rng.integers(0, 9, 300 if turn == 5 else int(rng.integers(0, 12))).tolist())
        there.follow(here)
        found, ints = there.inputs
        assert isinstance(found, torch.Tensor)
        assert ints == len(found)
        assert np.array_equal(found[: here.last.size].numpy(), here.last.reshape(-1))
        assert np.array_equal(found[here.last.size :][: len(here)].numpy(), here.tokens)
    there.follow(other := NgramTable([5, 6, 5]))
    assert np.array_equal(found[: other.last.size].numpy(), other.last.reshape(-1))


def _step(rows: int, taken: int, mode: str = "tree") -> StepEvent:
    """A chain step that brought `taken` tokens, by a drafter that states p = 0.7 for each."""
    count = rows if mode == "tree" else 1
    tokens = tuple(range(count))
    values = tuple(0.7**node for node in range(count))
    tree = StepTree(tokens, tuple(range(-1, count - 1)), tokens, (0.7,) * count, values[:count], tuple(range(taken)),
                    values[:count] if mode == "tree" else ())  # fmt: skip
    choice = Choice(brings(values), rows) if mode == "tree" else None
    return StepEvent(
        tuple(range(1, taken + 1)), tree, count - 1, taken - 1, 9, StageTimes(), mode, "", choice=choice,  # type: ignore[arg-type]
        knobs=Knobs(learn=False),
    )  # fmt: skip


def driven(taken: int, steps: int) -> tuple[QueuedPolicy, list[str], list[int]]:
    session, _ = planted(FILE, [], ())
    policy = QueuedPolicy(Arm(session.capabilities, PairState(), GivenCosts(H200)))
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
    assert modes == ["plain"] * queued.WAITING + ["tree"] * (60 - queued.WAITING)
    assert set(rows[-20:]) == {8}, "with chances of 0.7 a step, nodes past the eighth bring too little"
    assert "rows pay; the next 8 cost" in policy.next(Knobs()).reason


def test_a_drafter_that_brings_nothing_rests_and_is_tried_again() -> None:
    _, modes, _ = driven(taken=1, steps=120)
    assert Counter(modes)["plain"] > 60
    assert "tree" in modes[40:], "it is tried again"


def test_one_try_is_under_way_at_a_time() -> None:
    session, _ = planted(FILE, [], ())
    policy = QueuedPolicy(Arm(session.capabilities, PairState(), GivenCosts(H200)))
    policy.begin([1, 2], frozenset())

    def queue(count: int) -> list[str]:
        modes = []
        for _ in range(count):
            modes.append(policy.next(Knobs()).mode)
            assert policy.next(Knobs()).mode == modes[-1], "the same until the step is queued"
            policy.queued()
        return modes

    assert queue(3) == ["plain"] * 3
    for _ in range(queued.WAITING):
        assert policy.busy_soon
        assert queue(1) == ["plain"]
        policy.observe(_step(1, 1, "plain"))
    assert queue(4) == ["tree", "plain", "plain", "plain"]
    policy.observe(_step(1, 1, "plain"))
    assert queue(1) == ["plain"], "the try's result is not known"
    policy.injected([7])
    assert queue(2) == ["tree", "plain"], "steps in flight are gone where tokens are injected"
    policy.observe(_step(8, 3))
    assert not policy.busy_soon
    assert queue(4) == ["tree"] * 4


def test_more_steps_are_queued_before_the_host_learns() -> None:
    """Learning from sixteen drafts takes it as long as a step of a small model."""
    session, _ = planted(FILE, [], ())
    policy = QueuedPolicy(Arm(session.capabilities, PairState(), GivenCosts(H200)))
    proven(policy)
    policy.begin([1, 2], frozenset())
    before = policy.weights(Knobs())
    drafts = StepDrafts(((1,), (2,), (3,)), ((-1.0,),) * 3)
    for _ in range(queued.LEARNED_AT_ONCE - 1):
        policy.next(Knobs())
        policy.queued()
        policy.observe(replace(_step(8, 3), knobs=Knobs(), drafts=drafts))
        policy.spare()
    assert policy.weights(Knobs()) is before
    assert not policy.busy_soon
    policy.observe(replace(_step(8, 3), knobs=Knobs(), drafts=drafts))
    assert policy.busy_soon
    policy.spare()
    assert not policy.busy_soon
    assert policy.weights(Knobs()) is not before


def test_fixed_budgets_are_the_knobs_own() -> None:
    policy, _, _ = driven(taken=3, steps=10)
    assert policy.next(Knobs().replace(budget=9)).reason == "drafting is set"
    assert policy.weights(Knobs().replace(budget=9)) is None
    assert policy.weights(Knobs(drafting="tree 22")) is None
    assert policy.weights(Knobs()) is policy.arm.state.parts["answer"].learned.weights
    assert policy.next(Knobs(drafting="auto up to 9")).budget == 7, "a budget under auto is the most"


def test_widths_are_timed_beside_the_fixed_trees_of_as_many_rows() -> None:
    session, _ = planted(FILE, [], ())
    found = cases()
    assert len(found) == 2 * len(CHOICES)
    for rows, fixed, auto in zip(CHOICES, found[::2], found[1::2]):
        policy = auto.policy(session) if auto.policy else None
        assert fixed.policy is None
        assert policy is not None
        assert policy.weights(auto.knobs) is not None
        assert policy.copies_from(auto.knobs) is not None
        assert policy.next(auto.knobs).budget == fixed.knobs.budget == rows - 1
