"""Drafters on the host beside a card, emulated: the host proposes, the card builds, verifies and commits."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from dflash_core import Engine, Knobs
from dflash_core.backends.cuda import target as cuda_target
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draft import Draft
from dflash_core.drafters.kinds import KINDS, Kind
from dflash_core.drafters.ngram import CAPABILITIES
from dflash_core.engine import load_pair
from dflash_core.errors import UnsupportedError
from dflash_core.events import StepEvent
from dflash_core.fits import CardOptions
from dflash_core.policy.auto import AutoPolicy
from support import engines
from support.emulated_device import EmulatedCard
from support.host_drafts import TOY, ToyDrafter, primed_draft, spoilt
from support.shallow import shallow

TARGET = shallow("tiny-F16.gguf")
IDS = list(range(40, 52))
TOKENS, SHORT, CONTEXT = 24, 14, 128
SAMPLED = {"temperature": 0.9, "top_k": 20, "seed": 4}

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.skipif(engines.missing("emulated") is not None, reason=engines.missing("emulated") or ""),
]


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "toy", Kind("toy", "toy", "a toy", TOY, by_name=True))


@cache
def engine(kind: str) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_target, "open_device", lambda index: EmulatedCard())
        return load_pair(TARGET, kind, "cuda", context_length=CONTEXT, card=CardOptions(activations="f16"))


def answer(found: Engine, knobs: Knobs, tokens: int = TOKENS) -> tuple[list[int], list[StepEvent]]:
    found.reset()
    events = list(found.generate(IDS, knobs.replace(ignore_eos=True, max_tokens=tokens)))
    steps = [event for event in events if isinstance(event, StepEvent)]
    return [token for event in events for token in event.tokens], steps


@cache
def plain(sampled: bool) -> tuple[int, ...]:
    return tuple(answer(engine("ngram"), Knobs(drafting="plain", **SAMPLED if sampled else {}))[0])


SETTINGS = (
    Knobs(drafting="tree 22"),
    Knobs(drafting="tree 1"),
    Knobs(drafting="chain 2"),
    Knobs(drafting="tree 9", chain_seed=True),
)


# Each kind greedy or sampled and with half of the settings; with `full` both with all.
@pytest.mark.parametrize(
    ("kind", "sampled", "settings"),
    [
        ("ngram", True, SETTINGS[::2]),
        ("toy", False, SETTINGS[1::2]),
        *(
            pytest.param(kind, sampled, SETTINGS, marks=pytest.mark.full)
            for kind in ("ngram", "toy")
            for sampled in (False, True)
        ),
    ],
)
def test_every_setting_gives_plain_decodings_tokens(kind: str, sampled: bool, settings: tuple[Knobs, ...]) -> None:
    for knobs in settings:
        knobs = knobs.replace(**SAMPLED) if sampled else knobs
        found, steps = answer(engine(kind), knobs, SHORT)
        assert tuple(found) == plain(sampled)[:SHORT], knobs
        assert all(step.mode == ("chain" if knobs.mode == "chain" else "tree") for step in steps)
        assert all(len(step.tree.tokens) <= 1 + knobs.budget for step in steps)


def test_copies_are_accepted_in_any_length() -> None:
    accepted = Counter[int]()
    for every in (3, 5, 8, 100):
        said = spoilt([*IDS[-3:], *plain(False)], every)
        base = engine("ngram").target
        found, steps = answer(
            Engine(base, primed_draft(base, said=said), context_length=CONTEXT), Knobs(drafting="tree 15")
        )
        assert tuple(found) == plain(False)
        accepted.update(step.accepted_depth for step in steps)
        for step in steps:
            assert len(step.drafts.tokens) <= CAPABILITIES.depths
            copied = tuple(row[0] for row in step.drafts.tokens)
            assert step.tree.tokens[1:] == copied[:15], "a copy is a chain"
    assert len(accepted) >= 6, accepted
    assert max(accepted) == 15


@pytest.mark.parametrize("sampled", [False, True])
def test_auto_copies_where_it_pays(sampled: bool) -> None:
    """As on the CPU: the prompt has the answer's tokens, so chains are copied from it; elsewhere steps are plain."""
    sampling = SAMPLED if sampled else {}
    found = engine("ngram")
    assert isinstance(found.policy, AutoPolicy)
    found.reset()
    ids = [*IDS, *plain(sampled), *IDS]
    expected, steps = list[int](), list[StepEvent]()
    for drafting, into in (("plain", []), ("auto", steps)):
        found.reset()
        events = list(found.generate(ids, Knobs(drafting=drafting, ignore_eos=True, max_tokens=TOKENS, **sampling)))  # type: ignore[arg-type]
        tokens = [token for event in events for token in event.tokens]
        assert not expected or tokens == expected
        expected = tokens
        into += [event for event in events if isinstance(event, StepEvent)]
    chains = [step for step in steps if step.mode == "chain"]
    assert {step.mode for step in steps} <= {"chain", "plain"}
    assert all(step.reason.endswith(" copied from the text") for step in chains)
    assert all(len(step.tree.tokens) > 1 for step in chains)
    assert chains or sampled
    assert found.policy.text[: len(ids)] == ids


def test_it_stands_where_the_sequence_stands() -> None:
    found = engine("toy")
    assert isinstance(found.session, CudaSession)
    drafter = found.session.host_drafter
    assert isinstance(drafter, ToyDrafter)
    found.reset()
    knobs = Knobs(max_tokens=8, ignore_eos=True)
    said = [token for event in found.generate(IDS, knobs, keep=(9,)) for token in event.tokens]
    for ids in ([*IDS, *said, 3], [*IDS[:10], 7, 8], IDS[:4]):
        list(found.generate(ids, knobs, keep=(9,)))
        assert drafter.ids == found._committed
        assert found.session.length == len(drafter.ids)
    events = found.generate(IDS, knobs)
    next(events), next(events)
    events.close()  # type: ignore[attr-defined]
    assert drafter.ids == found._committed


def test_knobs_change_in_mid_turn() -> None:
    found = engine("ngram")
    found.reset()
    tokens: list[int] = []
    modes = []
    for count, event in enumerate(found.generate(IDS, Knobs(drafting="plain", max_tokens=TOKENS, ignore_eos=True))):
        tokens += event.tokens
        modes.append(event.mode)
        found.change(Knobs(max_tokens=TOKENS).replace(mode=("tree", "plain", "chain")[count % 3]))
    assert tuple(tokens) == plain(False)
    assert set(modes) == {"tree", "plain", "chain"}


def test_captured_layers_on_the_host_are_refused_by_name() -> None:
    base = engine("ngram").target

    class Reader(ToyDrafter):
        capabilities = Capabilities("reader", 4, captured_layers=(1,))

    with pytest.raises(UnsupportedError, match="the reader drafter reads captured layers on the host"):
        Engine(base, Draft(base, Reader.capabilities, drafter=lambda kv: Reader()), context_length=CONTEXT)
