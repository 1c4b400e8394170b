"""Constrained answers on a card: the text of the reference decoder, which draws on the host, in every mode; and no
trace of it in what follows."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tools.bench.replay import GivenCosts

from dflash_core import Knobs
from dflash_core.backends.cuda.constrained_step import ConstrainedCudaDecoder, Started
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.step_graphs import Steps
from dflash_core.constraints.grammar import Grammar, Grammars
from dflash_core.drafters.ngram import NgramDrafter
from dflash_core.errors import GrammarError
from dflash_core.events import StepEvent
from dflash_core.knobs import Value
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.costs import H200
from dflash_core.policy.queued import QueuedPolicy
from dflash_core.runner import Runner
from dflash_core.tree import Tree
from support.device_pairs import CONTEXT, pair, prompt
from support.grids import full
from support.host_runner import HostRunner
from support.mtp_device import mtp_pair

pytest.importorskip("llguidance")

FILE = "tiny-F16.gguf"
IDS = prompt()[:7]
# What it forces is longer than any draft.
GRAMMAR = Grammar("regex", "(alpha|beta) is [0-9]{2,4}: qzx jvk wpf yxq zzv kqj!")
OPEN = Grammar("regex", "[a-z ]{12,30}(!|\\?) [0-9a-f]+")
# An answer of a few tokens reaches what it forces, and the digits after that.
NARROW = Grammar("regex", "[a-z ]{4,8}(!|\\?) qzx [0-9a-f]+")
ANY = Grammar("regex", "(.|\n){70,}")
SAMPLED: dict[str, Value] = {"temperature": 1.0, "top_k": 50, "seed": 3}
SETTINGS: dict[str, dict[str, Value]] = {
    "greedy": {},
    "listed": SAMPLED,
    "front": {"temperature": 1.3, "top_k": 0, "top_p": 0.9, "min_p": 0.02, "seed": 5},
    "whole vocabulary": {"temperature": 0.8, "top_k": 0, "seed": 7},
    "many of it": {"temperature": 1.0, "top_k": 700, "top_p": 0.95, "seed": 8},
    "penalties": {"temperature": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "greedy with penalties": {"repetition_penalty": 1.3},
}
TREES: list[dict[str, Value]] = [
    {"mode": "chain", "budget": 5},
    {"mode": "tree", "budget": 8},
    {"mode": "tree", "budget": 30, "tree_width": 4, "chain_seed": False},
    {"mode": "tree", "budget": 100, "tree_width": 8},
    {"mode": "auto"},
]
# Each drafter meets two of them; with `full` all.
DEALT = {"greedy-dflash": (1, 3, 4), "greedy-mtp": (0, 3), "greedy-ngram": (2, 4), "front-dflash": (0, 2)}


@functools.cache
def grammars() -> Grammars:
    target = pair("emulated", FILE).target
    return Grammars(target.tokenizer, target.config.vocab_size)


def session_of(device_name: str, drafter: str) -> CudaSession:
    if drafter == "mtp":
        return mtp_pair(device_name).sessions()[0]
    if drafter == "dflash":
        return pair(device_name, FILE).sessions()[0]
    host = NgramDrafter() if drafter == "ngram" else None
    return CudaSession(pair(device_name, FILE).device_target, host_drafter=host, context=CONTEXT)


def runner_of(session: CudaSession, *, learned: bool = False) -> Runner:
    target = pair("emulated", FILE).target
    policy = QueuedPolicy(Arm(session.capabilities, PairState(), GivenCosts(H200))) if learned else None
    return Runner(session, target.tokenizer.stop_ids, CONTEXT, target.config.vocab_size, policy=policy)


@functools.cache
def runner(device_name: str, drafter: str, learned: bool = False) -> Runner:
    return runner_of(session_of(device_name, drafter), learned=learned)


def answer(one: Runner, grammar: Grammar | None = GRAMMAR, **knobs: Value) -> tuple[list[int], list[StepEvent]]:
    constraint = None if grammar is None else grammars().constraint(grammar)
    asked = Knobs(max_tokens=60).replace(**{"temperature": 0.0, **knobs})  # type: ignore[arg-type]
    events = list(one.generate(IDS, asked, constraint=constraint))
    steps = [event for event in events if isinstance(event, StepEvent)]
    return [token for event in events for token in event.tokens], steps


@functools.cache
def plainly(device_name: str, settings: str, grammar: Grammar = GRAMMAR, tokens: int = 60) -> tuple[list[int], int]:
    """Plain decoding's tokens, which no drafter changes, and its steps; by a session without one."""
    found, steps = answer(runner(device_name, "none"), grammar, mode="plain", **SETTINGS[settings], max_tokens=tokens)
    return found, len(steps)


GRAMMARS = {"forced": GRAMMAR, "narrow": NARROW, "any text": ANY}
# Each way of drawing meets the narrow grammar; the other grammars meet one that draws nothing and one that draws.
TEXTS = [
    pytest.param(settings, grammar, id=f"{settings}-{name}", marks=[pytest.mark.full] * late)
    for settings in SETTINGS for name, grammar in GRAMMARS.items()
    for late in [name != "narrow" and settings != {"any text": "front"}.get(name, "greedy")]
]  # fmt: skip


@pytest.mark.emulator
@pytest.mark.parametrize(("settings", "grammar"), TEXTS)
def test_the_text_is_the_reference_decoders(device_name: str, settings: str, grammar: Grammar) -> None:
    length = 60 if grammar is GRAMMAR else 12
    one, knobs = runner(device_name, "dflash"), SETTINGS[settings] | {"max_tokens": length}
    expected, _ = answer(HostRunner.of(one), grammar, mode="plain", **knobs)
    text = pair("emulated", FILE).target.tokenizer.decode(expected)
    assert re.fullmatch(grammar.source, text) or len(expected) == length
    for mode in ("plain", "tree"):
        found, steps = answer(one, grammar, mode=mode, budget=8, **knobs)
        assert found == expected, mode
        assert all(step.reason.endswith("within a grammar") for step in steps)
        # What is forced is accepted: the token after it is drawn by the mask of a node below the root.
        assert grammar is ANY or mode == "plain" or any(len(step.tokens) > 2 for step in steps)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("settings", "drafter", "trees"),
    [
        *(("greedy", drafter, DEALT.get(f"greedy-{drafter}", ())) for drafter in ("dflash", "mtp", "ngram", "none")),
        ("front", "dflash", DEALT["front-dflash"]),
        *(
            full(settings, drafter, range(5 * (drafter != "none")))
            for settings in ("greedy", "front")
            for drafter in ("dflash", "mtp", "ngram", "none")
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "all" if isinstance(value, range) else "dealt",
)
def test_every_mode_of_every_drafter(device_name: str, settings: str, drafter: str, trees: Sequence[int]) -> None:
    one, knobs = runner(device_name, drafter), SETTINGS[settings]
    freely = {**knobs, "max_tokens": 8}
    free = answer(one, None, mode="plain", **freely)[0]
    expected, slow = plainly(device_name, settings)
    for tree in (TREES[at] for at in trees):
        found, steps = answer(one, **tree, **knobs)
        assert found == expected, tree
        assert len(steps) < slow, "what is forced is drafted"
        assert all(len(step.tree.tokens) <= one.session.max_drafted + 1 for step in steps)
        assert one.session.length == len(IDS) + len(expected) - 1
        # What the constrained steps left in the state and in the drafter's cache is what others leave.
        assert answer(one, None, mode=tree["mode"], budget=5, **freely)[0] == free, tree
    assert answer(one, None, mode="plain", **freely)[0] == free


class Anything:
    """A constraint that rules nothing out, as before the end of a reasoning."""

    def add(self, tokens: Sequence[int]) -> None: ...
    def drop(self) -> None: ...
    def allowed(self, path: Sequence[int]) -> None: ...
    def admits(self, path: Sequence[int], token: int) -> bool:
        return True

    def forced(self) -> Sequence[int]:
        return ()


@pytest.mark.emulator
@pytest.mark.parametrize("settings", ["greedy", "front"])
def test_where_anything_may_come_nothing_is_edited_or_masked(
    device_name: str, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    """Every tree runs as it was built, and the host waits only for a copy of it."""
    session = session_of(device_name, "dflash")
    one, knobs = runner_of(session), SETTINGS[settings] | {"temperature": SETTINGS[settings].get("temperature", 0.0)}
    asked = Knobs(max_tokens=12).replace(**{**knobs, "mode": "tree", "budget": 8})  # type: ignore[arg-type]
    free = list(one.generate(IDS, asked))
    pulls: list[bool] = []
    pull = session.state.pull
    monkeypatch.setattr(session.state, "pull", lambda: (pulls.append(True), pull()))
    monkeypatch.setattr(session.state, "send_tree", lambda tree: pytest.fail("a tree was edited"))
    monkeypatch.setattr(Steps, "masks", property(lambda self: pytest.fail("masks were written")))
    found = list(one.generate(IDS, asked, constraint=Anything()))
    assert [event.tokens for event in found] == [event.tokens for event in free]
    assert len(pulls) == 1, "at the end"


@pytest.mark.emulator
def test_plain_steps_of_auto_begin_before_the_step_before_is_read(
    device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the grammar is open, as in plain decoding: the card waits for nothing."""
    session = session_of(device_name, "dflash")
    one, asked = runner_of(session, learned=True), Knobs(max_tokens=20, temperature=0.0)
    free = [event.tokens for event in one.generate(IDS, asked.replace(mode="plain"))]
    begun: list[bool] = []
    complete = ConstrainedCudaDecoder._complete

    def watched(self: ConstrainedCudaDecoder, started: Started) -> None:
        assert started.decision.mode == "plain", "nothing is known of the drafter"
        begun.append(started.passed)
        complete(self, started)

    monkeypatch.setattr(ConstrainedCudaDecoder, "_complete", watched)
    monkeypatch.setattr(session.state, "fetch", lambda: pytest.fail("a tree was fetched"))
    assert [event.tokens for event in one.generate(IDS, asked, constraint=Anything())] == free
    assert all(begun)
    monkeypatch.undo()
    expected, _ = answer(one, OPEN, mode="plain")
    monkeypatch.setattr(ConstrainedCudaDecoder, "_complete", watched)
    begun.clear()
    assert answer(one, OPEN)[0] == expected
    assert set(begun) == {True, False}, "what a grammar forces is not drafted by a pass that has begun"


@pytest.mark.emulator
def test_auto_that_learns_keeps_the_text(device_name: str) -> None:
    one = runner(device_name, "dflash", learned=True)
    for settings in ("greedy", "listed"):
        expected, _ = plainly(device_name, settings)
        found, steps = answer(one, **SETTINGS[settings])
        assert found == expected
        assert all(not step.tree.values and step.choice is None for step in steps)
        assert max(step.accepted_depth for step in steps) > 4, "what is forced is accepted"


@pytest.mark.emulator
def test_drafts_after_a_forced_chain_are_those_of_a_fresh_reading(device_name: str) -> None:
    """A path longer than a draft enters the drafter's cache whole."""
    one = runner(device_name, "dflash")
    tokens, steps = answer(one, mode="tree", budget=40)
    assert max(step.accepted_depth for step in steps) > one.session.device_block
    read = IDS + tuple(tokens[:-1])
    left = one.session.propose(tokens[-1], Knobs())
    fresh = session_of(device_name, "dflash")
    fresh.prefill(read)
    again = fresh.propose(tokens[-1], Knobs())
    assert np.array_equal(left.tokens[:, 0], again.tokens[:, 0])
    assert np.allclose(left.log_probs, again.log_probs, atol=2e-2)


@pytest.mark.emulator
def test_masked_logits(device_name: str, rng: np.random.Generator) -> None:
    """A block of 16 ids with a logit that is not finite stays one, although the constraint rules that logit out."""
    session = session_of(device_name, "none")
    head, masks = session.head, session.steps.masks
    nodes, width, blocks = 5, head.stride, head.maxima.shape[1]
    logits = rng.standard_normal((nodes, width)).astype(np.float32)
    allowed = rng.random((nodes, width)) < rng.choice([0.02, 0.5, 1.0], (nodes, blocks)).repeat(16, axis=1)
    logits[3, 40], allowed[3, 40] = np.nan, False
    logits[:, head.vocab :] = -np.inf  # only for the maxima: nothing reads them
    before = logits.reshape(nodes, blocks, 16).max(axis=2)
    before[np.isnan(before)] = np.inf
    expected = np.where(allowed, logits, -np.inf)
    maxima = expected.reshape(nodes, blocks, 16).max(axis=2)
    maxima[3, 40 // 16] = np.inf
    words = np.packbits(allowed, axis=1, bitorder="little").view(np.uint32)
    masks.array[: nodes + 1] = 0
    masks.array[1 : nodes + 1] = words[:, : masks.array.shape[1]]
    with session.device.stream():
        session.stage_tree(range(nodes), range(-1, nodes - 1))
        head.rows[:nodes], head.maxima[:nodes] = torch.from_numpy(logits), torch.from_numpy(before)
        session.device.bind([head.mask_launch(masks, nodes, 1)])()
        found, most = head.rows[:nodes].cpu().numpy(), head.maxima[:nodes].cpu().numpy()
    live = nodes - 1  # of the tree, after its first node
    assert np.array_equal(found[:live, : head.vocab], expected[:live, : head.vocab], equal_nan=True)
    assert np.array_equal(most[:live], maxima[:live])
    assert np.array_equal(most[live], before[live]), "past the tree nothing changes"


@pytest.mark.emulator
def test_a_grammar_that_ends_in_mid_answer_leaves_the_session_sound(
    device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runner(device_name, "dflash")
    before = answer(one, mode="tree", budget=8)[0]
    written = ConstrainedCudaDecoder._write_masks
    calls = 0

    def fails(self: ConstrainedCudaDecoder, tree: Tree) -> bool:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise GrammarError("the grammar cannot be followed on: planted")
        return written(self, tree)

    with monkeypatch.context() as patch:
        patch.setattr(ConstrainedCudaDecoder, "_write_masks", fails)
        with pytest.raises(GrammarError, match="planted"):
            answer(one, mode="tree", budget=8)
    assert answer(one, mode="tree", budget=8)[0] == before


@pytest.mark.emulator
@pytest.mark.parametrize("knobs", [{"mode": "plain"}, {"mode": "tree", "budget": 8}], ids=["plain", "tree"])
@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_an_answer_that_is_left_is_that_of_its_steps(device_name: str, knobs: dict[str, Value], how: str) -> None:
    """A step whose pass had begun is either whole or not there."""
    one, knobs = runner(device_name, "dflash"), {"max_tokens": 12, **knobs}
    expected, _ = plainly(device_name, "greedy", OPEN, 12)
    asked = Knobs().replace(**{"temperature": 0.0, **knobs})  # type: ignore[arg-type]
    events = one.generate(IDS, asked, constraint=grammars().constraint(OPEN))
    found: list[int] = []
    for count, event in enumerate(events, 1):
        found += event.tokens
        if count == 4:
            if how == "closed":
                events.close()  # type: ignore[attr-defined]
                break
            one.cancel()
    if how == "cancelled":
        assert found == expected[: len(found)]
        assert one.session.length == len(IDS) + len(found) - 1
    # What follows reads on from what was committed.
    assert answer(one, OPEN, **knobs)[0] == expected
    assert answer(one, None, **{**knobs, "max_tokens": 5})[0] == answer(one, None, mode="plain", max_tokens=5)[0]


@pytest.mark.emulator
def test_settings_change_in_mid_answer(device_name: str) -> None:
    """A step ends with the settings that it began with; the text follows the later ones from the next step on."""
    one = runner(device_name, "dflash")
    expected, _ = plainly(device_name, "greedy", OPEN, 20)
    changes = {2: {"mode": "tree", "budget": 12}, 4: {"mode": "plain"}, 6: {"mode": "chain", "budget": 3}}
    asked = Knobs(max_tokens=20).replace(temperature=0.0, mode="tree", budget=5)
    found: list[int] = []
    modes = []
    for count, event in enumerate(one.generate(IDS, asked, constraint=grammars().constraint(OPEN)), 1):
        found += event.tokens
        if isinstance(event, StepEvent):
            modes.append(event.mode)
            assert event.knobs is not None
            assert event.knobs.mode == event.mode
        if count in changes:
            one.change(asked.replace(**changes[count]))  # type: ignore[arg-type]
    assert found == expected
    assert set(modes) == {"tree", "plain", "chain"}
