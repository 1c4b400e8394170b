"""The same bits: plain decoding, chains and trees of any shape and size leave the same logits, keys, values and states.

Whole models, both types of activations. On a card over 1,000 positions of each model, with `full` 10,000; on the
emulator over as many as there is time for, across the borders of tiles and passes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dflash_core import Knobs, load_target
from dflash_core.arch import registry
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.knobs import Value
from dflash_core.runner import Runner
from support import demo_card, device_pairs, toy_architecture
from support.bits import Plain, Shape, check_walk, digest, held
from support.device_pairs import device_named, prompt, whole_pair
from support.engines import missing
from support.golden import golden
from support.grids import full
from support.planted_device import PlantedDevice, planted

Ways = Mapping[str, Value]  # knobs of one way of drafting

EMULATED = pytest.mark.skipif(missing("emulated") is not None, reason=missing("emulated") or "")
ON_A_CARD = pytest.mark.skipif(missing("cuda") is not None, reason=missing("cuda") or "")
CONTEXT = 640
GOLDEN = ("tiny-Q4_K_M.gguf", "tiny-F16.gguf")
BUDGETS = (1, 2, 4, 7, 11, 15, 16, 23, 30, 63, 64, 100, 255)


def chain(n: int, rng: np.random.Generator) -> list[int]:
    return list(range(-1, n - 1))


def seeded(n: int, rng: np.random.Generator) -> list[int]:
    """A first chain, and branches off it."""
    spine = int(rng.integers(1, min(n, 16) + 1))
    return [*chain(spine, rng), *(int(rng.integers(max(0, node - spine), node)) for node in range(spine, n))]


def bushy(n: int, rng: np.random.Generator) -> list[int]:
    reach = int(rng.integers(1, n + 1))
    return [-1, *(int(rng.integers(max(0, node - reach), node)) for node in range(1, n))]


SHAPES: tuple[Shape, ...] = (chain, seeded, bushy)


def check_trees(
    session: CudaSession,
    vocab: int,
    budgets: Sequence[int],
    rng: np.random.Generator,
    *,
    begin: int,
    positions: int,
    shapes: Sequence[Shape] = SHAPES,
    every: int = 1,
) -> None:
    """Random tokens after a prompt of `begin`, walked by trees of each shape."""
    ids = rng.integers(0, vocab, begin + positions).tolist()
    plain = Plain.of(session, ids[:begin], ids[begin:], every)
    for shape in shapes:
        check_walk(session, plain, shape, budgets, vocab, rng)


# On the emulator each type of activations over a quarter of the smaller budgets, f16 with a file of halves: products of
# other types with them are in test_matmul. With `full` over all of them.
@pytest.mark.parametrize("every", [4, full(1)], ids=["dealt", "all"])
@pytest.mark.parametrize(("half", "begin"), [(True, 3), (False, 55)], ids=["f16", "int8"])
def test_trees_leave_the_bits_of_single_steps(
    device_name: str, rng: np.random.Generator, half: bool, begin: int, every: int
) -> None:
    """Each tree of the second walk takes several passes; the first walk crosses the border of a tile."""
    one = whole_pair(device_name, GOLDEN[half and device_name == "emulated"], half)
    session, vocab = one.sessions(CONTEXT)[0], one.target.config.vocab_size
    small = BUDGETS[:8] if device_name == "cuda" else BUDGETS[half * (every - 1) : 8 : every]
    check_trees(session, vocab, small, rng, begin=begin, positions=14 if device_name == "cuda" else 10)
    shapes = SHAPES[1:] if device_name == "cuda" else SHAPES[1 + half : 2 + half]
    check_trees(session, vocab, BUDGETS[8:], rng, begin=begin, positions=2, shapes=shapes)


@pytest.mark.emulator
@EMULATED
@pytest.mark.parametrize("half", [full(True), False], ids=["f16", "int8"])
def test_a_model_of_attention_alone(
    rng: np.random.Generator, half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setitem(registry.ARCHITECTURES, "toy", toy_architecture.ARCHITECTURE)
    target = load_target(toy_architecture.write(tmp_path / "toy.gguf", toy_architecture.oracle()))
    device = device_named("emulated")
    upload = DeviceUpload(device, target.file)
    session = CudaSession(DeviceTarget(device, upload, target.config, CHOICES["f16" if half else "mixed"]), context=256)
    upload.close()
    check_trees(session, toy_architecture.VOCABULARY, (1, 4, 16, 64), rng, begin=57, positions=9)


@dataclass(frozen=True)
class Answer:
    """A turn's tokens, the digest of the session after it, and the logits after its last token."""

    tokens: list[int]
    held: str
    logits: str


def answer(runner: Runner, ids: tuple[int, ...], changes: Sequence[Ways], tokens: int, **drawn: Value) -> Answer:
    """A turn of `tokens` tokens; after every second step it goes on with the next of `changes`."""
    runner.reset()
    asked = [Knobs(max_tokens=tokens, ignore_eos=True).replace(**{**drawn, **way}) for way in changes]
    found: list[int] = []
    for count, event in enumerate(runner.generate(ids, asked[0])):
        found += event.tokens
        if count % 2:
            runner.change(asked[count // 2 % len(asked)])
    session = runner.session
    assert isinstance(session, CudaSession)
    assert len(found) == tokens
    assert session.length == len(ids) + tokens - 1
    return Answer(found, held(session), digest(session.verify([found[-1]], [-1])))


WAYS: tuple[Ways, ...] = (
    {"mode": "chain", "budget": 15}, {"mode": "chain", "budget": 1}, {"mode": "tree", "budget": 1},
    {"mode": "tree", "budget": 22}, {"mode": "tree", "budget": 14, "chain_seed": True, "tree_width": 3},
    {"mode": "tree", "budget": 30, "p_min": 0.05}, {"mode": "tree", "budget": 63, "chain_seed": True},
    {"mode": "tree", "budget": 100}, {"mode": "tree", "budget": 255, "chain_seed": False}, {"mode": "auto"},
)  # fmt: skip
DRAWN: tuple[Ways, ...] = ({"temperature": 0.0}, {"temperature": 0.9, "top_k": 20, "seed": 4})


@pytest.mark.emulator
@EMULATED
# The tree of several passes takes a minute: with `full`.
@pytest.mark.parametrize(
    ("half", "drawn", "way"),
    [(True, DRAWN[0], 3), (False, DRAWN[1], 3), full(True, DRAWN[0], 7)],
    ids=["f16 greedy", "int8 sampled", "f16 greedy of several passes"],
)
def test_every_way_of_drafting_leaves_the_same_bits(
    rng: np.random.Generator, half: bool, drawn: Ways, way: int
) -> None:
    """Steps that the device runs by itself, through all of a golden model; every walk leaves the first chain."""
    session, one = planted(GOLDEN[half], [], [], CONTEXT, half)
    device, vocab = session.device, one.target.config.vocab_size
    assert isinstance(device, PlantedDevice)
    runner, ids = Runner(session, frozenset(), CONTEXT, vocab), prompt()[:52]
    plain = answer(runner, ids, [{"mode": "plain"}], 11, **drawn)
    device.answer = plain.tokens
    for changes in ([WAYS[4]], [WAYS[way]], [WAYS[0], WAYS[6], WAYS[9], {"mode": "plain"}]):
        device.ranks = rng.integers(0, 3, 8).tolist()
        assert answer(runner, ids, changes, 11, **drawn) == plain, changes


# ---- On a card alone -------------------------------------------------------------------------------------------------

POSITIONS, SEQUENCES = 500, (2, pytest.param(20, marks=pytest.mark.full))
MODELS = {
    "demo": lambda: (demo_target_path(), demo_draft_path()),
    **{name: lambda name=name: (golden(name), golden("tiny-dflash")) for name in GOLDEN},
}


@pytest.fixture(scope="module", params=[True, False], ids=["f16", "int8"])
def on_card(request: pytest.FixtureRequest) -> Callable[[str], device_pairs.Pair]:
    return functools.cache(lambda name: device_pairs.pair_of(device_named("cuda"), *MODELS[name](), request.param))


@ON_A_CARD
@pytest.mark.parametrize("sequences", SEQUENCES)
@pytest.mark.parametrize("name", MODELS)
def test_thousands_of_positions(
    on_card: Callable[[str], device_pairs.Pair], rng: np.random.Generator, name: str, sequences: int
) -> None:
    one = on_card(name)
    session, vocab = one.sessions(3 * POSITIONS)[0], one.target.config.vocab_size
    for sequence in range(sequences):
        begin = int(rng.integers(1, 2 * POSITIONS - 256))
        shapes = chain, SHAPES[1 + sequence % 2]
        check_trees(session, vocab, BUDGETS, rng, begin=begin, positions=POSITIONS, shapes=shapes, every=50)


@ON_A_CARD
@pytest.mark.parametrize("count", [120, pytest.param(400, marks=pytest.mark.full)])
@pytest.mark.parametrize("drawn", DRAWN, ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", MODELS)
def test_every_way_of_drafting_on_a_card(
    on_card: Callable[[str], device_pairs.Pair], name: str, drawn: Ways, count: int
) -> None:
    one = on_card(name)
    runner = Runner(one.sessions(CONTEXT)[0], frozenset(), CONTEXT, one.target.config.vocab_size)
    ids = demo_card.prompts(1)[0] if name == "demo" else prompt()[:57]
    plain = answer(runner, ids, [{"mode": "plain"}], count, **drawn)
    for changes in [*([way] for way in WAYS), [*WAYS, {"mode": "plain"}]]:
        assert answer(runner, ids, changes, count, **drawn) == plain, changes
