"""MTP heads on a card, emulated and real: the reference's logits and drafts wherever a sequence goes, and a text that
is plain decoding's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.bench.replay import GivenCosts

from dflash_core import Knobs
from dflash_core.backends.base import Checkpoint
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda import step as cuda_step
from dflash_core.backends.cuda.drafters import base
from dflash_core.backends.cuda.drafters.mtp import Mtp
from dflash_core.backends.opened import Session
from dflash_core.events import StepEvent
from dflash_core.knobs import Value
from dflash_core.policy.arm import Arm, Depths, PairState
from dflash_core.policy.costs import H200
from dflash_core.policy.queued import QueuedPolicy
from dflash_core.runner import Runner
from support.device_pairs import CONTEXT, TOLERANCE, close, device_named, prompt
from support.mtp_device import MtpPair, mtp_pair, mtp_pair_on, whole_mtp_pair
from support.mtp_files import HEAD, variant
from support.mtp_logits import teacher_forced_on_card
from support.planted_device import PlantedDevice

WAYS: list[dict[str, Value]] = [
    {"mode": "chain", "budget": 3}, {"mode": "tree", "budget": 12, "mtp_depth": 4, "chain_seed": True},
    {"mode": "auto"}, {"mode": "tree", "budget": 5, "mtp_depth": 1}, {"mode": "chain", "budget": 8, "mtp_depth": 8},
    {"mode": "tree", "budget": 22, "tree_width": 3, "mtp_depth": 6},
]  # fmt: skip
VOCABULARY = 768
SAMPLED: dict[str, Value] = {"temperature": 0.9, "top_k": 20, "seed": 4}


def answer(runner: Runner, tokens: int = 10, **knobs: Value) -> tuple[list[int], list[StepEvent]]:
    asked = Knobs().replace(**{"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True, **knobs})  # type: ignore[arg-type]
    events = list(runner.generate(prompt()[:7], asked))
    return [token for event in events for token in event.tokens], [one for one in events if isinstance(one, StepEvent)]


def runner(pair: MtpPair) -> Runner:
    return Runner(pair.sessions()[0], frozenset(), CONTEXT, VOCABULARY)


def close_chains(ours: Session, theirs: Session, root: int) -> None:
    """Both chains are the same up to a near-tie of two tokens; after it they may differ."""
    found, expected = ours.draft(root, 0), theirs.draft(root, 0)
    best = np.sort(expected, axis=-1)
    unclear = np.flatnonzero(best[:, -1] - best[:, -2] < 2 * TOLERANCE)
    rows = int(unclear[0]) + 1 if len(unclear) else len(expected)
    close(found[:rows], expected[:rows])


# ---- Logits ----------------------------------------------------------------------------------------------------------


def test_chains_are_the_references(device_name: str) -> None:
    told = np.load(HEAD.with_suffix(".npz"))
    ours = whole_mtp_pair(device_name).sessions()[0]
    ours.prefill(told["ids"].tolist())
    for _ in range(2):  # a chain's rows in the cache do not affect the next chain
        chain = ours.draft(int(told["anchor"]), 0)
        assert chain.shape == (8, 768)
        close(chain[:4], told["chain_logits"])
        assert chain[:4].argmax(-1).tolist() == told["chain_tokens"].tolist()


def test_pairs_are_the_references(device_name: str) -> None:
    told, pair = np.load(HEAD.with_suffix(".npz")), whole_mtp_pair(device_name)
    ids = told["ids"].tolist()[:12]
    found = teacher_forced_on_card(pair.sessions()[0], ids, pair.target.hidden(ids, [3]))
    close(found, told["mtp_logits"][: len(ids) - 1])


@pytest.mark.parametrize(
    ("own", "without"), [((), ("shared_head_norm.weight",)), (("embed_tokens", "shared_head_head"), ())]
)
def test_what_a_head_lacks_is_the_targets(
    device_name: str, own: tuple[str, ...], without: tuple[str, ...], tmp_path: Path
) -> None:
    pair = mtp_pair_on(device_named(device_name), head_file=variant(tmp_path / "head.gguf", own=own, without=without))
    ours, theirs = pair.sessions()
    for session in (ours, theirs):
        session.prefill(prompt()[:9])
    close_chains(ours, theirs, 5)


# ---- In step with the sequence ---------------------------------------------------------------------------------------


def test_its_cache_holds_the_targets_hiddens_wherever_the_sequence_goes(
    device_name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in chunks and passes, trees, truncation to earlier checkpoints and to nothing, a ring that wraps
    around."""
    monkeypatch.setattr(cuda_session, "MIN_ROWS", 40)
    monkeypatch.setattr(base, "SPARE", 62)
    both = mtp_pair(device_name).sessions()
    drafter = both[0].drafter
    assert isinstance(drafter, Mtp)
    assert len(drafter.hidden) == 64
    kept: list[list[Checkpoint]] = []

    def everywhere(tokens: Sequence[int], path: Sequence[int] = ()) -> None:
        for session in both:
            session.prefill(tokens)
            if path:
                session.verify([int(token) for token in tokens[:3]], [-1, 0, 0])
                session.commit(path)
        close_chains(*both, 5)

    for length in (3, 70, 9):
        everywhere(rng.integers(0, 700, length).tolist(), (0, 2))
        kept.append([session.checkpoint() for session in both])
    for place in (2, 1, 0):
        for session, checkpoint in zip(both, kept[place], strict=True):
            session.restore(checkpoint)
        close_chains(*both, 6)
        everywhere(rng.integers(0, 700, 20).tolist())
    for session in both:
        session.restore(None)
    everywhere(rng.integers(0, 700, 45).tolist())


def test_a_turn_is_drafted_again_as_it_was(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the hidden states before the turn have been overwritten since."""
    monkeypatch.setattr(base, "SPARE", 62)
    monkeypatch.setattr(Mtp, "max_pending", 20)
    monkeypatch.setattr(cuda_step, "CALM_MS", 0.0)  # such a ring has no memory for more than two steps in flight
    one, text = runner(mtp_pair(device_name)), list(prompt()[:7])
    tokens, steps = answer(one, 68, mode="chain", mtp_depth=2, budget=2)
    text.append(tokens[0])
    at = {0, 1, len(steps) // 2, len(steps) - 1}
    for index, step in enumerate(steps):
        if index in at:
            again = one.propose(text[:-1], text[-1], step.knobs)
            assert tuple(map(tuple, again.tokens.tolist())) == step.drafts.tokens
            assert len(step.drafts.tokens) == 2
        text += step.tokens


def test_a_step_drafts_what_the_reference_drafts(device_name: str) -> None:
    pair = mtp_pair(device_name)
    ours, theirs = (
        answer(Runner(session, frozenset(), CONTEXT, VOCABULARY), 9, mode="tree", budget=9, mtp_depth=5)[1]
        for session in pair.sessions()
    )
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.tokens == other.tokens
        assert len(mine.drafts.tokens) == 5
        assert [ranks[0] for ranks in mine.drafts.tokens] == [ranks[0] for ranks in other.drafts.tokens]
        np.testing.assert_allclose(np.exp(mine.drafts.log_probs), np.exp(other.drafts.log_probs), atol=2e-3)


# ---- The text is the target's ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampled", [False, True])
def test_every_way_of_drafting_gives_plain_decodings_tokens(device_name: str, sampled: bool) -> None:
    knobs = SAMPLED if sampled else {}
    one = runner(mtp_pair(device_name, half=False))
    expected, _ = answer(one, mode="plain", **knobs)
    emulated = WAYS[3:4] if sampled else WAYS[:2]  # `auto` is the next test's
    for way in emulated if device_name == "emulated" else WAYS[2:4] if sampled else WAYS:
        one.reset()
        found, steps = answer(one, **{**way, **knobs})
        assert found == expected, way
        depth = int(way.get("mtp_depth", 3))
        assert all(len(step.drafts.tokens) == depth for step in steps if way["mode"] != "auto")


@pytest.mark.emulator
def test_auto_picks_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of several depths take turns; the text is plain decoding's."""
    plain = answer(runner(mtp_pair("emulated", half=False)), 40, mode="plain")[0]
    device = PlantedDevice(plain, [0] * 8)
    pair = mtp_pair_on(device, half=False)
    device.session, _ = pair.sessions()
    policy = QueuedPolicy(Arm(device.session.capabilities, PairState(), GivenCosts(H200)))
    wished = iter([1, 4, 2, 8, 3, *[5] * 40])
    monkeypatch.setattr(Depths, "best", lambda self, rate: next(wished))
    monkeypatch.setattr("dflash_core.policy.queued.MAX_GAP", 0.0)  # the time of an emulator is no card's
    one = Runner(device.session, frozenset(), CONTEXT, VOCABULARY, policy=policy)
    found, steps = answer(one, 40)
    assert found == plain
    assert len({len(step.drafts.tokens) for step in steps}) >= 3
    assert max(step.accepted_depth for step in steps) >= 4


@pytest.mark.emulator
def test_long_walks_and_changes_in_mid_turn_leave_the_answer_as_it_is() -> None:
    """Drafts are right down to several depths: the head's cache follows walks off the spine, plain steps between them,
    and changes of the depth."""
    plain = answer(runner(mtp_pair("emulated", half=False)), 48, mode="plain")[0]
    device = PlantedDevice(plain, [0, 1, 0, 0, 2, 0, 0, 0])
    pair = mtp_pair_on(device, half=False)
    device.session, reference = pair.sessions()
    one, found, walked = Runner(device.session, frozenset(), CONTEXT, VOCABULARY), list[int](), Counter[int]()
    ways = [
        Knobs(drafting="tree 20", mtp_depth=8), Knobs(drafting="chain 2", mtp_depth=2), Knobs(drafting="plain"),
        Knobs(drafting="tree 9", mtp_depth=4), Knobs(drafting="tree 22", mtp_depth=8),
    ]  # fmt: skip
    for count, event in enumerate(one.generate(prompt()[:7], ways[0].replace(max_tokens=48, ignore_eos=True))):
        found += event.tokens
        if isinstance(event, StepEvent):
            walked[event.accepted_depth] += 1
        one.change(ways[count // 2 % len(ways)])
    assert found == plain
    assert max(walked) >= 6
    reference.prefill([*prompt()[:7], *plain[:-1]])
    rows = torch.tensor(reference.draft(plain[-1], 0) - device.session.draft(plain[-1], 0))
    assert rows.norm() < 0.2 * torch.tensor(reference.draft(plain[-1], 0)).norm()  # int8 activations


def test_drafts_among_the_first_tokens_of_the_vocabulary(device_name: str) -> None:
    one = runner(mtp_pair(device_name, half=False))
    expected, _ = answer(one, 6, mode="plain")
    for most in (250, 16, 0):
        one.reset()
        found, steps = answer(one, 6, mode="tree", budget=9, draft_vocabulary=most)
        assert found == expected
        drafted = [token for step in steps for ranks in step.drafts.tokens for token in ranks]
        assert max(drafted) < (most // 16 * 16 or VOCABULARY)
        text = [*prompt()[:7], found[0]]
        for step in steps[:2]:
            again = one.propose(text[:-1], text[-1], step.knobs)
            assert tuple(map(tuple, again.tokens.tolist())) == step.drafts.tokens
            text += step.tokens
    assert max(drafted) > 250
