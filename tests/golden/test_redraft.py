"""Drafting again from an earlier position: the same drafts as then, and the session is unchanged."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dflash_core import Engine, Knobs
from dflash_core.backends.opened import Target
from dflash_core.drafters.draft import Draft
from dflash_core.errors import ContextError
from support import demo_pair
from support.compare import generated
from support.grids import full

PROMPT = list(range(30, 70))
KNOBS = Knobs(drafting="tree 12", max_tokens=10, ignore_eos=True)


def pair(sliding: bool = False) -> tuple[Target, Draft]:
    """The demo pair: its drafts are accepted, so the state has seen trees and rejected rows."""
    return demo_pair.target(), demo_pair.draft(sliding)


@pytest.fixture(params=[False, True], ids=["full", "sliding"])
def models(request: pytest.FixtureRequest) -> tuple[Target, Draft]:
    return pair(request.param)


@pytest.mark.parametrize("models", [pytest.param(False, id="full"), full(True, id="sliding")], indirect=True)
@pytest.mark.parametrize("window", [full(0), 16])
def test_it_equals_a_session_cut_there(models: tuple[Target, Draft], window: int) -> None:
    engine = Engine(*models)
    answer = generated(engine, PROMPT, KNOBS)
    text = [*PROMPT, *answer]
    for at in (1, 7, len(PROMPT), len(PROMPT) + 1, len(text) - 9, len(text) - 1):
        fresh = Engine(*models)
        fresh.session.prefill(text[:at])
        ours = engine.session.draft(text[at], window, at)
        np.testing.assert_allclose(ours, fresh.session.draft(text[at], window), atol=2e-4)


@pytest.mark.parametrize("models", [full(False, id="full"), pytest.param(True, id="sliding")], indirect=True)
def test_nothing_is_disturbed(models: tuple[Target, Draft]) -> None:
    """Two engines side by side, one of them drafting again between any two steps: the same events, bit for bit."""
    plain, disturbed = Engine(*models), Engine(*models)
    text = list(PROMPT)
    for ours, theirs in itertools.zip_longest(disturbed.generate(PROMPT, KNOBS), plain.generate(PROMPT, KNOBS)):
        assert ours.tokens == theirs.tokens
        if hasattr(ours, "tree"):
            assert ours.tree == theirs.tree
        text += ours.tokens
        for at in (3, len(PROMPT) - 1, len(text) - 1):
            disturbed.propose(text[:at], text[at], KNOBS)


def test_a_turn_that_is_gone_is_refused() -> None:
    engine = Engine(*pair())
    answer = generated(engine, PROMPT, KNOBS)
    generated(engine, [9, 8, 7], KNOBS.replace(max_tokens=2))
    with pytest.raises(ContextError, match="no longer in the session"):
        engine.propose([*PROMPT, *answer[:3]], answer[3], KNOBS)
    with pytest.raises(ContextError, match="no drafter"):
        Engine(pair()[0]).propose(PROMPT, 5, KNOBS)


def test_scratch_runs() -> None:
    """After other prompts the session is back at its position: the next turn reads no more than it would have."""
    engine, plain = Engine(*pair()), Engine(*pair())
    for one in (engine, plain):
        list(one.generate(PROMPT, KNOBS, keep=(30,)))
    held = engine.session.length
    with engine.scratch():
        generated(engine, [3, 1, 4, 1, 5], KNOBS.replace(max_tokens=4))
        generated(engine, PROMPT[:20], KNOBS.replace(max_tokens=4))
    assert engine.session.length == held
    later = [*PROMPT[:32], 5, 6, 7]
    ours, theirs = list(engine.generate(later, KNOBS)), list(plain.generate(later, KNOBS))
    assert [event.tokens for event in ours] == [event.tokens for event in theirs]
    assert ours[0].reused_tokens == theirs[0].reused_tokens == 30


def test_a_scratch_run_with_nothing_before_it_ends_empty() -> None:
    engine = Engine(*pair())
    with engine.scratch():
        generated(engine, PROMPT, KNOBS.replace(max_tokens=4))
    assert engine.session.length == 0
