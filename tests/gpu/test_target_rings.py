"""Rings of a target's layers with a window: every bit is that of caches with all positions, wherever rings wrap."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dflash_core import Knobs, load_target
from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.base import PrefillCancelled
from dflash_core.backends.cuda.kv import Empty, Tensors
from dflash_core.backends.cuda.layers.attention import AttentionMemory
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.cache_types import CachePair
from dflash_core.drafters.ngram import NgramDrafter
from dflash_core.errors import ContextError
from dflash_core.events import PrefillEvent
from dflash_core.runner import Runner
from dflash_core.snapshots.base import Rows, Snapshot
from dflash_core.snapshots.folder import StateFolder
from dflash_core.snapshots.store import Snapshots, SnapshotStore
from support.assistant_device import assistant_pair
from support.on_a_device import bushy, chain, divergences
from support.ring_sessions import CONTEXT, NODES, ROWS, Both, file_of, target_on

MODELS = ("gemma3-Q8_0", "gemma4-e-F16", "gptoss-MXFP4", "laguna-Q8_0")
PACKED = "q8_0/q4_0"
CASES = [
    ("gemma3-Q8_0", "f16"),
    pytest.param("laguna-Q8_0", PACKED, marks=pytest.mark.full),
    pytest.param("gptoss-MXFP4", "f16", marks=pytest.mark.full),
    ("gptoss-MXFP4", PACKED),
    pytest.param("gemma4-e-F16", "f16", marks=pytest.mark.full),  # as an assistant reads them, below
    pytest.param("gemma4-e-F16", PACKED, marks=pytest.mark.full),
    pytest.param("gemma3-Q8_0", "tq3_0", marks=pytest.mark.full),
    pytest.param("laguna-Q8_0", "bf16", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("name", "kv"), CASES)
def test_prompts_and_trees_across_the_wrap(device_name: str, name: str, kv: str, rng: np.random.Generator) -> None:
    """Some 400 positions in rings of 128: chunks whose rows and windows wrap, chains and trees at every place."""
    both = Both.of(target_on(device_name, name), CachePair.parse(kv))
    for count in (97, 64, 40):
        both.read(rng, count)
        both.step(rng, bushy)
    both.step(rng, chain)
    for _ in range(2):
        both.read(rng, 50)
        both.step(rng, bushy)
    both.read(rng, 5)
    assert both.ours.length > 2 * 128


@pytest.mark.parametrize("name", MODELS[:1] + MODELS[2:3])
def test_chunks_behind_their_window_are_those_of_the_cpu(device_name: str, name: str, rng: np.random.Generator) -> None:
    """Rings alone would hide what is wrong with and without them."""
    session = Both.of(target_on(device_name, name)).ours
    reference = load_target(file_of(name)).session()
    ids = rng.integers(0, 250, 150).tolist()
    for begin in range(0, len(ids), ROWS // 2):
        found = session.prefill(ids[begin : begin + ROWS // 2])
    assert divergences(found[None], reference.prefill(ids)[None])[0] < 1e-5


@pytest.mark.parametrize("name", [MODELS[0], pytest.param(MODELS[1], marks=pytest.mark.full)])
def test_checkpoints_and_cuts(device_name: str, name: str, rng: np.random.Generator) -> None:
    both = Both.of(target_on(device_name, name))
    both.read(rng, 10)
    points = [both.checkpoint()]
    for count in (140, 70, 60):
        both.read(rng, count)
        points.append(both.checkpoint())
        both.step(rng, bushy)
    for place in (3, 1, 2, 0):
        if place == 2:  # not a prefix of what is committed: made again
            both.read(rng, 90)
            points[place] = both.checkpoint()
            both.read(rng, 90)
        both.restore(points[place])
        both.step(rng, bushy)
        both.step(rng, chain)
    both.read(rng, 200)
    near, far = both.ours.length - 20, both.ours.length - 120
    assert not both.ours.cut(far)
    assert both.ours.length > far
    assert all(session.cut(near) for session in both)
    both.step(rng, bushy)
    assert not both.ours.cut(near - 75)


def test_a_checkpoint_without_the_rows_would_be_seen(device_name: str, rng: np.random.Generator) -> None:
    both = Both.of(target_on(device_name, "gemma3-Q8_0"))
    both.read(rng, 100)
    points = both.checkpoint()
    both.read(rng, 140)
    for tensor in points[0].tensors:
        tensor.zero_()
    both.restore(points)
    with pytest.raises(AssertionError, match="after 100 positions"):
        both.step(rng, chain)


def test_rows_are_copied_when_they_are_about_to_be_overwritten(
    device_name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a checkpoint that is dropped before, or that the rings still reach."""
    copied = list[int]()
    checkpoint = AttentionMemory.checkpoint

    def counted(memory: AttentionMemory, length: int, empty: Empty) -> Tensors:
        copied.extend([length] * bool(memory.kv.ring))
        return checkpoint(memory, length, empty)

    monkeypatch.setattr(AttentionMemory, "checkpoint", counted)
    both = Both.of(target_on(device_name, "gemma3-Q8_0"))
    both.read(rng, 40)
    dropped, points = both.checkpoint(), both.checkpoint()
    both.read(rng, 20)
    both.step(rng, bushy)
    assert not copied
    both.restore(points)
    both.step(rng, bushy)
    assert not copied, "the rings still have what it needs"
    dropped.clear()
    both.read(rng, 64)
    both.read(rng, 64)
    assert set(copied) == {40}
    kept = both.checkpoint()
    assert set(copied) == {40}
    both.restore(points)
    assert set(copied) == {40, kept[0].length}, "later positions will be overwritten"
    both.step(rng, chain)
    both.read(rng, 64)
    count = len(copied)
    assert all(tensor.isfinite().all() for tensor in both.checkpoint()[0].tensors if tensor.is_floating_point())
    assert len(copied) > count, "a copy is made of what is asked for"


@pytest.mark.parametrize("drafting", ["plain", pytest.param("tree 12", marks=pytest.mark.full)])
def test_an_answer_that_overwrites_a_checkpoint(device_name: str, drafting: str, rng: np.random.Generator) -> None:
    """Its rows are copied before the step that may do it is queued; the next prompt goes on from there."""
    both = Both.of(target_on(device_name, "gemma3-Q8_0"))
    vocab = both.ours.target.spec.vocab_size
    ids, other = rng.integers(0, vocab, 165).tolist(), rng.integers(0, vocab, 12).tolist()
    knobs = Knobs(drafting=drafting, temperature=0.0, max_tokens=36, ignore_eos=True)
    found = []
    for session in both:
        session.host_drafter = NgramDrafter() if drafting != "plain" else None
        runner = Runner(session, frozenset(), CONTEXT, vocab, ROWS)
        answer = [token for event in runner.generate(ids, knobs, keep=[90]) for token in event.tokens]
        assert session.length > 190
        (first, *events) = runner.generate([*ids[:90], *other], replace(knobs, max_tokens=4))
        assert isinstance(first, PrefillEvent)
        assert first.reused_tokens == 90
        found.append((answer, [token for event in (first, *events) for token in event.tokens]))
    assert found[0] == found[1]


def test_a_cancelled_chunk_leaves_the_window(device_name: str, rng: np.random.Generator) -> None:
    both = Both.of(target_on(device_name, "gemma3-Q8_0"))
    both.read(rng, 150)
    tokens, asked = rng.integers(0, 100, ROWS).tolist(), iter((False, False, True))
    with pytest.raises(PrefillCancelled):
        both.ours.prefill(tokens, lambda: next(asked))
    assert not both.ours.cut(100), "the chunk has overwritten what a row there sees"
    both.step(rng, bushy)
    both.read(rng, 100)


@pytest.mark.parametrize("name", [MODELS[3], pytest.param(MODELS[1], marks=pytest.mark.full)])
def test_a_snapshot_has_the_rings(device_name: str, name: str, rng: np.random.Generator) -> None:
    """In another session, of another context. Of the second model the files below are."""
    both = Both.of(target_on(device_name, name))
    both.read(rng, 210)
    both.step(rng, bushy)
    state, ours = both.ours.checkpoint(), both.ours
    page = Rows(0, ours.length, ours.rows(0, ours.length))
    snapshot = Snapshot(np.array(both.tokens, np.int32), (page,), state)
    other = CudaSession(ours.target, context=CONTEXT - 100, rows=ROWS, nodes=NODES, chunks_from=ROWS // 2)
    other.prefill(both.tokens[:180])
    other.resume(snapshot)
    again = Both(other, both.whole, both.tokens)
    again.step(rng, bushy)
    again.read(rng, 70)


def test_an_assistant_reads_the_rings(device_name: str, rng: np.random.Generator) -> None:
    """Its layers see the same keys as with all positions, beyond the window and after a cut too."""
    pair = assistant_pair(device_name, "gemma4-e-assistant-F16")
    both = Both.of(pair.device_target, draft=pair.device_draft)

    def drafts(*at: int) -> None:
        ours, whole = (session.draft(7, 0, *at) for session in both)
        assert np.array_equal(ours, whole, equal_nan=True)
        assert np.isfinite(ours).any()

    both.read(rng, 97)
    drafts()
    points = both.checkpoint()
    for count in (64, 60):
        both.read(rng, count)
        both.step(rng, bushy)
        drafts()
    assert both.ours.length > 128 + 64
    drafts(both.ours.length - 3)
    with pytest.raises(ContextError, match="no longer has its cache of the context before position 60"):
        both.ours.draft(7, 0, 60)
    assert all(session.cut(both.whole.length - 20) for session in both)
    drafts()
    both.restore(points)
    drafts()
    both.step(rng, chain)
    drafts()


def test_an_attention_window_beside_rings(device_name: str, rng: np.random.Generator) -> None:
    """It is that of layers that see all positions; the others keep their own."""
    both = Both.of(target_on(device_name, "laguna-Q8_0"))
    both.read(rng, 90)
    for window in (AttentionWindow(40, 4), AttentionWindow(150, 1)):
        for session in both:
            session.set_attention_window(window)
        both.read(rng, 64)
        both.step(rng, bushy)
        both.read(rng, 10)
        both.step(rng, chain)
    assert both.ours.length > 128
    before = both.ours.verify([3], [-1])
    both.ours.set_attention_window(EVERYTHING)
    assert not np.array_equal(both.ours.verify([3], [-1]), before), "the window hides nothing"


def test_states_on_disk(device_name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """Written when a session is left, with its rings; read by a session of another process, whose answer is that of
    one that was never left. Prompts are read in passes: all bits are equal wherever a reading begins."""
    model, knobs = target_on(device_name, "gemma4-e-F16"), Knobs(drafting="plain", temperature=0.0, max_tokens=3)
    vocab = model.spec.vocab_size
    ids = rng.integers(0, vocab, 200).tolist()

    def runner(where: Path) -> Runner:
        session = CudaSession(model, context=CONTEXT, rows=ROWS, nodes=NODES, chunks_from=CONTEXT)
        states = Snapshots(SnapshotStore(1 << 30, 64, StateFolder(where, 2)), "here", cut=session.cuts_anywhere)
        return Runner(session, frozenset(), CONTEXT, vocab, ROWS, snapshots=states)

    def answer(on: Runner, prompt: list[int]) -> tuple[int, list[int]]:
        events = list(on.generate(prompt, replace(knobs, ignore_eos=True), keep=[160]))
        return events[0].reused_tokens, [token for event in events for token in event.tokens]  # type: ignore[union-attr]

    first, stays = runner(tmp_path / "a"), runner(tmp_path / "b")
    said = answer(first, ids)[1]
    assert answer(stays, ids)[1] == said
    first.leave()
    assert list((tmp_path / "a").iterdir())
    for further in ([*ids, *said, 5, 6], [*ids[:161], 9, 8, 7]):
        reused, tokens = answer(runner(tmp_path / "a"), further)
        assert reused == 160
        assert tokens == answer(stays, further)[1]
