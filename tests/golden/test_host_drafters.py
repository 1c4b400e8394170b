"""Drafters on the host, in lock-step with the CPU's steps: the text stays the target's, the drafter stays in step."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from dflash_core import Engine, Knobs, load_draft
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.drafters.kinds import KINDS, Kind
from dflash_core.engine import load_pair
from dflash_core.errors import ContextError, KnobError
from dflash_core.events import StepEvent
from support import demo_pair
from support.compare import generated
from support.golden import golden
from support.grids import full
from support.host_drafts import TOY, ToyDrafter, primed_draft, spoilt
from support.shallow import shallow_target as target

IDS = list(range(40, 60))
TOKENS = 32
SAMPLED = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 7}
SETTINGS = [
    Knobs(drafting="auto"), Knobs(drafting="tree 1"), Knobs(drafting="tree 2"), Knobs(drafting="tree 63"),
    Knobs(drafting="tree 22", p_min=0.5), Knobs(drafting="tree 7", chain_seed=True),
    Knobs(drafting="chain 4"), Knobs(drafting="chain 100"), Knobs(drafting="plain"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the row that a new kind needs."""
    monkeypatch.setitem(KINDS, "toy", Kind("toy", "toy", "a toy", TOY, by_name=True))


@cache
def plain(sampled: bool) -> tuple[int, ...]:
    knobs = Knobs(drafting="plain", ignore_eos=True, max_tokens=TOKENS, **SAMPLED if sampled else {})
    return tuple(generated(Engine(target()), IDS, knobs))


def steps(engine: Engine, knobs: Knobs) -> list[StepEvent]:
    """The steps of one answer, which must be the plain one."""
    sampled = knobs.temperature > 0
    events = list(engine.generate(IDS, knobs.replace(ignore_eos=True, max_tokens=TOKENS)))
    assert tuple(token for event in events for token in event.tokens) == plain(sampled), knobs
    return [event for event in events if isinstance(event, StepEvent)]


# Each kind greedy or sampled; with `full` both.
@pytest.mark.parametrize(
    ("kind", "sampled"),
    [("ngram", True), ("toy", False)]
    + [pytest.param(*one, marks=pytest.mark.full) for one in (("ngram", False), ("toy", True))],
)
def test_every_setting_gives_plain_decodings_tokens(kind: str, sampled: bool) -> None:
    engine = Engine(target(), load_draft(kind, target()))
    for knobs in SETTINGS:
        engine.reset()
        steps(engine, knobs.replace(**SAMPLED) if sampled else knobs)
        assert engine.session.length == len(IDS) + TOKENS - 1


@pytest.mark.parametrize("sampled", [full(False), True])
def test_text_that_is_there_to_copy_is_accepted(sampled: bool) -> None:
    """Copies that are right for a while: short and long accepted paths, none of which changes the text."""
    accepted = Counter[int]()
    for every in (2, 3, 5, 9, 13, 100):
        said = spoilt([*IDS[-3:], *plain(sampled)], every)
        engine = Engine(target(), primed_draft(target(), said=said))
        for knobs in (Knobs(drafting="tree 22"), Knobs(drafting="chain 6"), Knobs(drafting="tree 15", p_min=0.7)):
            engine.reset()
            knobs = knobs.replace(**SAMPLED) if sampled else knobs
            accepted.update(step.accepted_depth for step in steps(engine, knobs))
    assert len(accepted) >= 9, accepted
    assert {0, 1, 15} <= set(accepted) <= set(range(32))


def test_it_stands_where_the_sequence_stands() -> None:
    """After any rewinding, cancelling and continuing the drafter has observed just the committed tokens, in order."""
    engine = Engine(target(), load_draft("toy", target()))
    drafter = engine.session.drafter  # type: ignore[attr-defined]
    assert isinstance(drafter, ToyDrafter)
    knobs = Knobs(max_tokens=12, ignore_eos=True)
    answer = generated(engine, IDS, knobs)
    for ids, keep in (([*IDS, *answer, 3, 4], (24,)), ([*IDS, *answer[:6], 9], ()), (IDS[:7], (5,)), ([1, 2], ())):
        list(engine.generate(ids, knobs, keep=keep))
        assert drafter.ids == engine._committed
        assert drafter.ids[: len(ids)] == ids
    events = engine.generate(IDS, knobs)
    next(events), next(events)
    events.close()  # type: ignore[attr-defined]
    assert drafter.ids == engine._committed
    before = list(drafter.ids)
    with engine.scratch():
        generated(engine, [5, 6, 7], knobs)
    assert drafter.ids == engine._committed == before


def test_a_turn_is_drafted_again_as_it_was() -> None:
    engine = Engine(demo_pair.target(), load_draft("ngram", demo_pair.target()))
    knobs = Knobs(drafting="tree 22", ignore_eos=True, max_tokens=16)
    text = engine.target.tokenizer.encode("one two three four five. " * 4)
    events = list(engine.generate(text, knobs))
    compared = 0
    for event in events:
        if isinstance(event, StepEvent):
            again = engine.propose(text[:-1], text[-1], knobs)
            assert tuple(map(tuple, again.tokens.tolist())) == event.drafts.tokens
            compared += len(event.drafts.tokens)
        text += event.tokens
    assert compared, "nothing was ever copied"
    with pytest.raises(ContextError, match="without logits"):
        engine.session.draft(5, 0)


def test_what_does_not_apply_is_refused_and_what_it_is_is_said() -> None:
    engine = load_pair(golden("tiny-F16.gguf"), "ngram")
    assert engine.limits.drafter is not None
    assert engine.limits.drafter.kind == "ngram"
    for name, value in (("draft_window", 64), ("tree_temperature", 2.0), ("tree_width", 3)):
        with pytest.raises(
            KnobError, match=f"{name} has no effect on the ngram drafter; parameters that have one: chain_seed, p_min"
        ):
            engine.limits.check(Knobs().replace(**{name: value}), {name})
    engine.limits.check(Knobs(drafting="auto up to 5", p_min=0.3), {"budget", "p_min"})
    assert [one.name for one in engine.memory().components] == ["target", "target KV", "states", "program", "tokenizer"]
    assert engine.draft is not None
    assert engine.draft.capabilities.kind == "ngram"


def test_the_demo_target_copies_its_own_words() -> None:
    """On a trained model, without any file of a drafter, a text that repeats itself takes fewer steps."""
    engine = Engine(demo_pair.target(), load_draft("ngram", demo_pair.target()))
    words = engine.target.tokenizer.encode("one two three four five six seven eight nine ten. " * 6)
    knobs = Knobs(drafting="tree 22", max_tokens=30, ignore_eos=True)  # auto would go by times
    ours = [event for event in engine.generate(words, knobs) if isinstance(event, StepEvent)]
    expected = generated(Engine(demo_pair.target()), words, knobs.replace(mode="plain"))
    assert [token for event in ours for token in event.tokens] == expected[1:]
    assert len(ours) < 29
    with_model = load_pair(demo_target_path(), demo_draft_path())
    assert with_model.limits.drafter is not None
    assert with_model.limits.drafter.kind == "dflash"
