"""Constrained answers on a card: drawn on the host, the same in every mode, and without a trace in what follows."""

from __future__ import annotations

import functools
import re

import pytest

from dflash_core import Knobs
from dflash_core.constraints.grammar import Grammar, Grammars
from dflash_core.events import StepEvent
from dflash_core.knobs import Value
from dflash_core.runner import Runner
from support import engines
from support.device_pairs import CONTEXT, pair, prompt

pytest.importorskip("llguidance")

FILE = "tiny-F16.gguf"
IDS = prompt()[:7]
GRAMMAR = Grammar("regex", "(alpha|beta) is [0-9]{2}, which ends it")
SAMPLED: dict[str, Value] = {"temperature": 1.0, "top_k": 50, "seed": 3}

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.skipif(engines.missing("emulated") is not None, reason=engines.missing("emulated") or ""),
]


@functools.cache
def runner() -> Runner:
    one = pair("emulated", FILE)
    return Runner(one.sessions()[0], one.target.tokenizer.stop_ids, CONTEXT, one.target.config.vocab_size)


@functools.cache
def grammars() -> Grammars:
    target = pair("emulated", FILE).target
    return Grammars(target.tokenizer, target.config.vocab_size)


def answer(*, constrained: bool = True, **knobs: Value) -> tuple[list[int], list[StepEvent]]:
    constraint = grammars().constraint(GRAMMAR) if constrained else None
    events = list(runner().generate(IDS, Knobs(max_tokens=40).replace(**knobs), constraint=constraint))
    steps = [event for event in events if isinstance(event, StepEvent)]
    return [token for event in events for token in event.tokens], steps


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, SAMPLED], ids=["greedy", "sampled"])
def test_constrained_answers_are_the_same_in_every_mode(sampling: dict[str, Value]) -> None:
    before = answer(constrained=False, mode="tree", budget=8, max_tokens=6, **sampling)[0]
    plain, slow = answer(mode="plain", **sampling)
    text = pair("emulated", FILE).target.tokenizer.decode(plain)
    assert re.fullmatch(GRAMMAR.source, text)
    for mode in ("chain", "tree"):
        found, steps = answer(mode=mode, budget=8, **sampling)
        assert found == plain
        assert len(steps) < len(slow), "what is forced is drafted"
        assert all(step.reason.endswith("within a grammar, drawn on the host") for step in steps)
    assert runner().session.length == len(IDS) + len(plain) - 1
    assert answer(constrained=False, mode="tree", budget=8, max_tokens=6, **sampling)[0] == before


def test_a_tree_has_no_more_nodes_than_there_is_memory_for() -> None:
    session = pair("emulated", FILE).sessions()[0]
    decoder = session.decoder(Knobs(drafting="tree 256"), frozenset(), CONTEXT, None, grammars().constraint(GRAMMAR))
    token, stop = decoder.first(session.prefill(IDS))
    assert stop is None
    step = decoder.step()
    assert 1 < len(step.tree.tokens) <= session.max_drafted + 1
    assert decoder.answer == [token, *step.tokens]
