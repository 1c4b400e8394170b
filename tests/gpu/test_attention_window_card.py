"""Attention windows on the card: the kernel against float64, what it does not read, and the same bits in all modes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch.nn.attention import sdpa_kernel

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda.layers import chunk_attention
from dflash_core.backends.cuda.layers.attention import LIBRARY
from dflash_core.backends.cuda.layers.split_attention import HeadShape, SplitLaunch
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.cache_types import TYPES, CachePair
from dflash_core.knobs import Knobs
from dflash_core.runner import Runner
from dflash_core.tree import ancestors
from support.bits import Plain, check_walk
from support.device_pairs import close, pair
from support.engines import Engine
from support.heads import Bools, Cache, attention, queries
from support.splits import HOPPER, order_for, split, tree_view
from support.steps import random_parents, tree_state

HEADS = {2: HeadShape(256, 2, 1, 64), 6: HeadShape(256, 12, 2, 64)}
GOLDEN, CONTEXT = "tiny-F16.gguf", 192
FULL = pytest.mark.full
PAIRS = [f"{k}/{v}" for k in TYPES for v in TYPES]
NARROW = ("f16/f16", "q8_0/q4_0")
kinds = pytest.mark.parametrize("kv", [pytest.param(one, marks=() if one in NARROW else FULL) for one in PAIRS])


def positions_of(parents: Sequence[int], length: int) -> np.ndarray:
    return length + ancestors(parents).sum(axis=1) - 1


def windowed(view: Bools, parents: Sequence[int], length: int, rows: slice, window: AttentionWindow) -> Bools:
    """The view of slots under a window, where each slot has the position of its node."""
    positions = positions_of(parents, length)
    keys = np.concatenate([np.arange(length), positions])[: view.shape[1]]
    behind = positions[rows, None] - keys
    return view & ((behind < window.size) | (keys < window.sinks))


@pytest.mark.parametrize(
    ("length", "size", "sinks"),
    [
        (700, 64, 64), (700, 200, 70), (1500, 300, 1), (1500, 1, 129), (90, 64, 64), (0, 3, 2), (130, 7, 0),
        *(pytest.param(length, size, sinks, marks=FULL) for length in (63, 64, 65, 640, 2000, 4097)
          for size in (1, 63, 64, 65, 255, 256, 300, 1100) for sinks in (0, 1, 63, 64, 65, 500)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("group", HEADS)
def test_a_window_behind_any_context(
    engine: Engine, rng: np.random.Generator, group: int, length: int, size: int, sinks: int
) -> None:
    """Tiles that no row sees are filled with NaN, so reading them would show."""
    heads, width, window = HEADS[group], int(rng.choice([1, 8, 24])), AttentionWindow(size, sinks)
    n = int(rng.integers(1, width + 1))
    parents = random_parents(n, rng)
    cache = Cache.random(rng, heads, length + n, length + 64)
    launch = SplitLaunch.of(heads, order_for(heads, length + 64), width, HOPPER)
    tile = launch.order.tile
    for begin in range(0, length, tile):
        if begin >= sinks and begin + tile <= length - size + 1:
            for rows in (cache.k, cache.v):
                rows[:, begin : begin + tile] = np.nan
    q = queries(rng, heads, width, n)
    state = tree_state(parents, length)
    found = split(engine, launch, state, q, cache, window=window).merged()
    view = windowed(tree_view(parents, length, slice(0, n)), parents, length, slice(0, n), window)
    expected, bound = attention(q[:, :n], cache.k[:, : length + n], cache.v[:, : length + n], view)
    assert (np.abs(found[:, :n] - expected) <= bound).all()
    assert np.isnan(found[:, n:]).all(), "a padding row wrote"


@pytest.mark.emulator
@pytest.mark.parametrize(("size", "sinks", "extra"), [(32, 0, 0), (32, 0, 1), (32, 8, 0), (200, 0, 0)])
def test_a_chunk_behind_its_window(size: int, sinks: int, extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's attention of rows 100.. against float64, also where what they see does not begin at position 0.
    `extra`: keys of sinks before the first position."""
    monkeypatch.setattr(chunk_attention, "MAX_PAIRS", 500)  # several masks
    length, n, window = 100, 20, AttentionWindow(size, sinks)
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 1, count, 64).half() for count in (n, extra + length + n, extra + length + n))
    runs = window.runs(length, length + n)
    shown = [*range(extra), *(extra + at for run in runs for at in range(run.start, run.stop))]
    with sdpa_kernel(LIBRARY):
        found = chunk_attention.windowed_attention(q, k[:, 0, shown], v[:, 0, shown], window, length, None, extra)
    at, keys = torch.arange(length, length + n)[:, None], torch.arange(-extra, length + n)
    seen = (keys < 0) | (keys <= at) & ((keys > at - size) | (keys < sinks))
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=seen)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("node0", [64, pytest.param(192, marks=FULL)])
def test_later_passes_have_the_same_window(engine: Engine, rng: np.random.Generator, node0: int) -> None:
    heads, length, width, window = HEADS[6], 500, 64, AttentionWindow(80, 20)
    n = node0 + int(rng.integers(1, 20))
    parents = random_parents(n, rng)
    cache = Cache.random(rng, heads, length + n, length + 256)
    q = queries(rng, heads, width, n - node0)
    launch = SplitLaunch.of(heads, order_for(heads, length + 256), width, HOPPER)
    state = tree_state(parents, length)
    found = split(engine, launch, state, q, cache, node0, window=window).merged()
    view = windowed(tree_view(parents, length, slice(node0, n)), parents, length, slice(node0, n), window)
    expected, bound = attention(q[:, : n - node0], cache.k[:, : length + n], cache.v[:, : length + n], view)
    assert (np.abs(found[:, : n - node0] - expected) <= bound).all()


# ---- Whole models ----------------------------------------------------------------------------------------------------


def session_of(device_name: str, kv: str = "f16") -> CudaSession:
    one = pair(device_name, GOLDEN)
    draft = one.device_draft
    return CudaSession(one.device_target, draft, context=CONTEXT, kv=CachePair.parse(kv))


def seeded(n: int, rng: np.random.Generator) -> list[int]:
    """A first chain, and branches off it."""
    spine = int(rng.integers(1, min(n, 16) + 1))
    return [*range(-1, spine - 1), *(int(rng.integers(max(0, node - spine), node)) for node in range(spine, n))]


# Of halves the runner's turns below are.
@pytest.mark.parametrize("kv", [pytest.param(one, marks=() if one == NARROW[1] else FULL) for one in PAIRS])
@pytest.mark.parametrize(("size", "sinks"), [(20, 10), pytest.param(3, 64, marks=FULL)])
def test_trees_leave_the_bits_of_single_steps(
    device_name: str, rng: np.random.Generator, kv: str, size: int, sinks: int
) -> None:
    session, vocab = session_of(device_name, kv), pair(device_name, GOLDEN).target.config.vocab_size
    session.set_attention_window(AttentionWindow(size, sinks))
    begin = max(60, sinks + 2 * size)  # some positions are hidden
    ids = rng.integers(0, vocab, begin + 6).tolist()
    plain = Plain.of(session, ids[:begin], ids[begin:], every=3)
    check_walk(session, plain, seeded, (3, 11), vocab, rng)
    session.set_attention_window(EVERYTHING)
    whole = Plain.of(session, ids[:begin], ids[begin : begin + 1])
    assert whole.logits != plain.logits[:1], "a window that hides nothing would pass as well"


@kinds
def test_prompts_and_steps_are_the_references(
    device_name: str, kv: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In passes, in chunks, and in several pieces whose chunks are read in parts."""
    session, window = session_of(device_name, kv), AttentionWindow(8, 3)
    one, ids = pair(device_name, GOLDEN), rng.integers(0, 700, 90).tolist()
    reference = one.target.session(one.draft, kv=CachePair.parse(kv))
    whole = reference.prefill(ids)
    reference.restore(None)
    reference.set_attention_window(window)
    expected = reference.prefill(ids)
    hidden = np.abs(whole - expected).mean()
    for least, pairs, cuts in ((10_000, 1 << 20, [90]), (1, 1 << 20, [90]), (1, 700, [25, 70, 71, 90])):
        monkeypatch.setattr(cuda_session, "MIN_ROWS", least)
        monkeypatch.setattr(chunk_attention, "MAX_PAIRS", pairs)
        session.restore(None)
        session.set_attention_window(window)
        at = 0
        for end in cuts:
            found, at = session.prefill(ids[at:end]), end
        assert np.abs(found - expected).mean() < hidden / 3
        close(found, expected, 0.25)
    session.set_attention_window(EVERYTHING)
    session.restore(None)
    assert np.abs(session.prefill(ids) - whole).mean() < hidden / 3


def test_turns_through_a_runner(device_name: str, rng: np.random.Generator) -> None:
    """Graphs with and without a window take turns: under one all modes give the same text, and the reason mentions
    it."""
    session = session_of(device_name)
    vocab = pair(device_name, GOLDEN).target.config.vocab_size
    ids, answers = rng.integers(0, 700, 90).tolist(), dict[int, set[tuple[int, ...]]]()
    runner = Runner(session, frozenset(), CONTEXT, vocab)
    for window, mode in ((8, "plain"), (8, "tree"), (0, "plain"), (0, "tree"), (8, "tree")):
        knobs = Knobs(drafting="auto up to 7", max_tokens=5, ignore_eos=True).replace(
            mode=mode, attention_window=window
        )
        events = list(runner.generate(ids, knobs))
        answers.setdefault(window, set()).add(tuple(token for event in events for token in event.tokens))
        assert all(("not the model's exact output" in event.reason) == (window > 0) for event in events)
    assert {window: len(found) for window, found in answers.items()} == {0: 1, 8: 1}
    assert {kind.windowed for kind in session.steps._graphs} == {False, True}
