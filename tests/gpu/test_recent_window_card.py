"""A packed cache with its last positions as halves on a card: which form a row reads follows from its position, in
every pass, tree, chunk and state."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from dflash_core import load_target
from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.base import PrefillCancelled
from dflash_core.backends.cuda.launch import Launch, Run
from dflash_core.backends.cuda.layers.attention import AttentionLayers
from dflash_core.backends.cuda.layers.split_attention import HeadShape, SplitLaunch, SplitOrder
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.cache_types import F16, CachePair
from dflash_core.errors import UnsupportedError
from dflash_core.models.cache_rows import CODECS
from dflash_core.progress import Progress
from dflash_core.snapshots.base import Rows, Snapshot
from support.bits import Plain, check_walk
from support.device_pairs import close, pair, prompt
from support.engines import Engine
from support.heads import RING, Cache, attention, queries
from support.on_a_device import bushy, chain, divergences
from support.ring_sessions import NODES, ROWS, Both, file_of, target_on
from support.splits import HOPPER, split, tree_view
from support.steps import random_parents, tree_state

KV = "q4_0/tq3_0+384"  # few bits, so that a position in the wrong form is seen
NAME, CONTEXT = "q3-F16", 900  # rings of 640 slots
INTERLEAVED = [(e & 4) << 2 | (e & 2) << 2 | e >> 3 << 1 | e & 1 for e in range(32)]


@pytest.mark.parametrize(("kv", "length", "width"), [("q4_0+384", 505, 24), ("q8_0/q5_0+512", 1140, 8)])
def test_each_row_against_the_definition(
    engine: Engine, rng: np.random.Generator, kv: str, length: int, width: int
) -> None:
    """Packed rows and halves have nothing in common, and what no row may read in a form is NaN there."""
    heads, pair = HeadShape(128, 8, 2, 128), CachePair.parse(kv)
    n, dim, slots = width - 1, heads.head_dim, length + width
    parents = random_parents(n, rng)
    halves, packed = (Cache.random(rng, heads, slots, slots) for _ in range(2))
    cache = packed.kept(pair)
    ring = Cache(*(np.full((heads.kv_heads, RING, dim), np.nan, np.float16) for _ in range(2)))
    positions = length + tree_view(parents, length, slice(0, n))[:, length:].sum(axis=1) - 1
    borders = np.array([pair.border(int(one)) for one in positions])
    for own, x in ((ring.k, halves.k), (ring.v, halves.v)):
        held = np.arange(borders.min(), length + n)
        own[:, held % RING] = x[:, held]
    for rows in (cache.k, cache.v):
        rows[:, borders.max() :] = 0xFF  # no finite number in any type
    cache = Cache(cache.k, cache.v, ring)
    order = SplitOrder.of(heads, slots, 132, HOPPER, trees=True, kv=pair)
    assert order.recent > 1
    q = queries(rng, heads, width, n)
    launch = SplitLaunch.of(heads, order, width, HOPPER)
    found = split(engine, launch, tree_state(parents, length), q, cache).merged()

    stored = [
        CODECS[kind.name].unpack(CODECS[kind.name].pack(torch.tensor(x.astype(np.float32))), dim, torch.float64).numpy()
        for x, kind in ((packed.k, pair.k), (packed.v, pair.v))
    ]
    places = [32 * (e // 32) + INTERLEAVED[e % 32] for e in range(dim)]
    stored[0] = stored[0][..., np.argsort(places)]  # queries are in the order of packed keys' elements
    view = tree_view(parents, length, slice(0, n))
    forms = np.arange(view.shape[1]) >= borders[:, None]
    keys, values = (
        np.concatenate([x[:, : length + n], y[:, : length + n].astype(np.float64)], axis=1)
        for x, y in zip(stored, (halves.k, halves.v), strict=True)
    )
    expected, bound = attention(q[:, :n], keys, values, np.concatenate([view & ~forms, view & forms], axis=1))
    assert (np.abs(found[:, :n] - expected) <= 4 * bound).all()
    assert np.isnan(found[:, n:]).all(), "a padding row wrote"


def both_of(device_name: str, name: str = NAME, kv: str = KV) -> Both:
    return Both.of(target_on(device_name, name), CachePair.parse(kv), context=CONTEXT)


@pytest.mark.parametrize("name", [NAME, "gemma3-Q8_0", pytest.param("gptoss-MXFP4", marks=pytest.mark.full)])
def test_prompts_and_trees_are_those_of_the_cpu(device_name: str, name: str, rng: np.random.Generator) -> None:
    """Chunks, passes and trees on both sides of borders, in rings that wrap. Layers with a window have halves alone."""
    both, kv = both_of(device_name, name), CachePair.parse(KV)
    target = load_target(file_of(name))
    both.read(rng, 497)
    for _ in range(2):
        both.step(rng, chain)
        both.step(rng, bushy)
    both.read(rng, 3 * ROWS)
    both.read(rng, 20)
    both.step(rng, bushy)
    assert both.ours.length > 640, "no ring has wrapped"
    tokens, parents = rng.integers(3, 250, 16).tolist(), chain(16, rng)
    found = both.same(lambda session: session.verify(tokens, parents))

    def apart(one: CachePair) -> float:
        """On average over the rows: a single one may happen to be close."""
        reference = target.session(kv=one)
        reference.prefill(both.tokens)
        return float(divergences(found, reference.verify(tokens, parents)).mean())

    ours, wrong = apart(kv), apart(replace(kv, recent=512))
    assert ours < 3e-4
    assert ours < wrong / 2


@pytest.mark.parametrize("window", [EVERYTHING, AttentionWindow(500, 70)])
def test_a_chunk_with_several_borders(device_name: str, window: AttentionWindow, rng: np.random.Generator) -> None:
    """Borders at positions 128, 256 and 384. Under a window the first positions are read packed."""
    kv, ids = CachePair.parse(KV), rng.integers(3, 250, 860).tolist()
    session = CudaSession(target_on(device_name, NAME), context=CONTEXT, kv=kv, chunks_from=ROWS)
    target = load_target(file_of(NAME))
    references = [target.session(kv=one) for one in (kv, replace(kv, recent=512))]
    for one in (session, *references):
        one.set_attention_window(window)
    session.prefill(ids[:100])
    found = session.prefill(ids[100:])
    ours, wrong = (float(divergences(found[None], one.prefill(ids)[None])[0]) for one in references)
    assert ours < 3e-4
    assert ours < wrong / 5


def test_a_drafter_has_no_halves(device_name: str) -> None:
    one, kv = pair(device_name, "tiny-F16.gguf"), CachePair.parse(KV)
    session, other = (CudaSession(one.device_target, one.device_draft, context=500, kv=kind) for kind in (kv, kv.past))
    assert session.nbytes["drafter KV"] == other.nbytes["drafter KV"]
    assert session.nbytes["target KV"] > other.nbytes["target KV"]
    reference = one.target.session(one.draft, kv=kv)
    for some in (session, reference):
        some.prefill(prompt()[:40])
    close(session.draft(5, 0), reference.draft(5, 0), 0.2)


@pytest.mark.parametrize("length", [504, pytest.param(640, marks=pytest.mark.full)])
def test_trees_have_the_bits_of_single_steps(device_name: str, length: int, rng: np.random.Generator) -> None:
    """Positions 511 and 639 are the first behind a border. A tree has rows on both sides."""
    session = both_of(device_name).ours
    ids = rng.integers(3, 250, length + 12).tolist()
    plain = Plain.of(session, ids[:length], ids[length:])
    for shape, budgets in ((chain, (7, 15)), (bushy, (4, 23))):
        check_walk(session, plain, shape, budgets, session.target.spec.vocab_size, rng)


def test_checkpoints_and_cuts(device_name: str, rng: np.random.Generator) -> None:
    both = both_of(device_name)
    points = []
    for count in (60, 480, 100):
        both.read(rng, count)
        points.append(both.checkpoint())
        both.step(rng, bushy)
    for place in (1, 0):
        both.restore(points[place])
        both.step(rng, bushy)
        both.read(rng, 30)
    both.read(rng, 650)
    near, far = both.ours.length - 20, both.ours.length - 250
    assert not both.ours.cut(far)
    assert both.ours.length > far
    assert all(session.cut(near) for session in both)
    both.step(rng, bushy)


@pytest.mark.full
def test_a_checkpoint_without_the_halves_would_be_seen(device_name: str, rng: np.random.Generator) -> None:
    both = both_of(device_name)
    both.read(rng, 420)
    points = both.checkpoint()
    both.read(rng, 400)
    for tensors in points[0].saved:  # type: ignore[attr-defined]
        for tensor in tensors:
            tensor.zero_()
    both.restore(points)
    with pytest.raises(AssertionError, match="after 420 positions"):
        both.step(rng, chain)


def test_a_cancelled_chunk_leaves_the_halves(device_name: str, rng: np.random.Generator) -> None:
    both = both_of(device_name)
    both.read(rng, 700)
    tokens, asked = rng.integers(3, 250, ROWS).tolist(), iter((False, True))
    with pytest.raises(PrefillCancelled):
        both.ours.prefill(tokens, lambda: next(asked))
    both.step(rng, bushy)
    both.read(rng, 100)


def test_a_later_chunk_binds_no_copies(
    device_name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Binding takes the host longer than copying takes a card; a chunk has 17 borders in each layer."""
    session = both_of(device_name).ours
    for count in (500, 200):  # the second one's halves lie at both ends of the ring
        session.prefill(rng.integers(3, 250, count).tolist())
    bound = list[str]()
    bind = session.device.bind

    def recorded(launches: Sequence[Launch], progress: Progress | None = None) -> Run:
        bound.extend(launch.name for launch in launches)
        return bind(launches, progress)

    monkeypatch.setattr(session.device, "bind", recorded)
    session.prefill(rng.integers(3, 250, 150).tolist())
    assert not [name for name in bound if name.startswith(("attn_unpack", "attn_newest"))]


def test_a_snapshot_has_the_halves(device_name: str, rng: np.random.Generator) -> None:
    """In another session, of another context."""
    both = both_of(device_name)
    both.read(rng, 700)
    both.step(rng, bushy)
    ours = both.ours
    page = Rows(0, ours.length, ours.rows(0, ours.length))
    snapshot = Snapshot(np.array(both.tokens, np.int32), (page,), ours.checkpoint())
    other = CudaSession(ours.target, context=CONTEXT - 50, kv=CachePair.parse(KV), rows=ROWS, nodes=NODES)
    other.chunks_from = ROWS // 2
    other.prefill(both.tokens[:180])
    other.resume(snapshot)
    again = Both(other, both.whole, both.tokens)
    again.step(rng, bushy)
    again.read(rng, 70)


@pytest.mark.full
def test_an_attention_window_over_both_forms(device_name: str, rng: np.random.Generator) -> None:
    """In trees, behind chunks in rings that wrap."""
    both = both_of(device_name)
    for session in both:
        session.set_attention_window(AttentionWindow(450, 70))
    both.read(rng, 700)
    both.step(rng, bushy)


def test_what_has_no_kernel_is_refused(device_name: str) -> None:
    model = target_on(device_name, NAME)
    with pytest.raises(UnsupportedError, match=r"q4_0\+256, expected \+384 or more on a card"):
        CudaSession(model, context=CONTEXT, kv=CachePair.parse("q4_0+256"))
    (layers,) = (one for one in model.mixers if isinstance(one, AttentionLayers))
    wide = copy.copy(layers)
    wide.spec = replace(layers.spec, window=600)
    with pytest.raises(UnsupportedError, match="layers with a window of 600, expected q4_0; run it on the CPU"):
        wide.stored(CachePair.parse("q4_0+384"))
    assert wide.stored(CachePair.parse("q4_0+640")) == F16
