"""Cache types in real passes on the CPU: what they cost, and that trees, prompts and drafts work with each pair."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from tools.train_demo.caches import differences
from tools.train_demo.numerics import held_out

from dflash_core import Engine, load_target
from dflash_core.backends.opened import Target
from dflash_core.cache_types import TYPES, CachePair
from dflash_core.errors import KnobError
from dflash_core.events import StepEvent
from dflash_core.fits import Setup
from dflash_core.knobs import Knobs
from support.demo_pair import draft, target
from support.golden import other_targets
from support.grids import full

BARS = {"q8_0": 5e-6, "q5_0": 1e-4, "q4_0": 3e-4, "tq3_0": 1.5e-3}  # mean KL from halves, nats
PAIRS = [f"{k}/{v}" for k in TYPES for v in TYPES]
NARROW = ("f16/bf16", "bf16/q5_0", "q8_0/q4_0", "q5_0/tq3_0", "q4_0/f16", "tq3_0/q8_0")
TOKENS, PARENTS = [5, 17, 40, 41, 99, 7], [-1, 0, 0, 1, 1, 4]


@cache
def exact(name: str) -> Target:
    """In float64 the order of a sum does not change a code, so equal bytes give equal numbers."""
    return load_target(other_targets(name)[0], dtype=torch.float64)


@pytest.mark.parametrize("number", [6, pytest.param(12, marks=pytest.mark.full)])
def test_the_divergence_of_each_type_is_within_its_bar(number: int) -> None:
    texts = held_out(target(), number)
    for name, found in differences(target(), texts, list(BARS)).items():
        assert 0 < found.mean_kl <= BARS[name], name
        assert found.top1 > 0.98, name


@pytest.mark.parametrize(
    ("name", "kv"),
    [
        (name, kv) if kv in chosen else full(name, kv)
        for name, chosen in {"q3-F16.gguf": NARROW, "q35moe-F16.gguf": NARROW[::3]}.items()
        for kv in PAIRS
    ],
)
def test_a_tree_is_decoding_its_paths(name: str, kv: str) -> None:
    """Logits of nodes, and what follows a commit, after a prompt that was read in several chunks."""
    pair = CachePair.parse(kv)
    context = [(7 * i) % 370 + 3 for i in range(70)]

    def behind(path: list[int]) -> np.ndarray:
        session = exact(name).session(kv=pair)
        for at in range(0, len(context), 33):
            session.prefill(context[at : at + 33])
        rows = session.verify(TOKENS, PARENTS)
        session.commit(path)
        return np.concatenate([rows[path], session.verify([8], [-1])])

    for path in ([0, 1, 4, 5], [0, 2]):
        session = exact(name).session(kv=pair)
        session.prefill(context)
        one_by_one = []
        for node in path:
            one_by_one.append(session.verify([TOKENS[node]], [-1])[0])
            session.commit([0])
        one_by_one.append(session.verify([8], [-1])[0])
        assert np.abs(behind(path) - np.stack(one_by_one)).max() < 1e-5


@pytest.mark.parametrize(
    "kv", [pytest.param(one, marks=() if one in NARROW[1::4] else pytest.mark.full) for one in PAIRS]
)
def test_answers_are_those_of_plain_decoding(kv: str) -> None:
    loaded = target()
    engine = Engine(loaded, draft(), kv=kv, context_length=256)
    assert str(engine.kv.pair) == str(CachePair.parse(kv))
    ids = held_out(loaded, 1)[0][:24]
    answers = {}
    for mode in ("plain", "chain", "tree"):
        knobs = Knobs(temperature=0.0, max_tokens=10, ignore_eos=True).replace(mode=mode)
        events = list(engine.generate(ids, knobs))
        answers[mode] = [token for event in events for token in event.tokens]
        if mode == "tree":
            assert any(len(event.tokens) > 1 for event in events if isinstance(event, StepEvent))
    assert answers["chain"] == answers["plain"]
    assert answers["tree"] == answers["plain"]
    held = {one.name: one for one in engine.memory().components}
    assert str(CachePair.parse(kv)) in held["target KV"].detail


def test_an_unknown_type_is_refused_at_every_door() -> None:
    loaded = target()
    for ask in (lambda: loaded.logits([1, 2], kv="q3"), lambda: Engine(loaded, kv="q8_0/q9")):
        with pytest.raises(KnobError, match=r"cache type .*: expected auto, or one of f16, bf16, q8_0"):
            ask()


def test_a_large_context_costs_what_is_used_of_it() -> None:
    """Memory is proportional to the positions in use, not to those that there is room for."""
    engine = Engine(target(), context_length=32_768, kv="q8_0")
    engine.session.prefill([3, 4, 5])
    few = {one.name: one.bytes for one in target().estimator(None).sequence(Setup(256, "q8_0"))}
    assert engine.session.nbytes["target KV"] == few["target KV"]
