"""A card's sequence to a snapshot and back: the same bits, drafter and rings included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dflash_core import load_draft, load_target
from dflash_core.backends.base import PrefillCancelled
from dflash_core.backends.cuda import host_blocks
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters import base
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.kv import Tensors
from dflash_core.backends.cuda.prefill import MIN_ROWS
from dflash_core.backends.cuda.sequence_passes import PROMPT_ROWS
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.cache_types import CachePair
from dflash_core.drafters.ngram import NgramDrafter
from dflash_core.errors import OutOfMemoryError
from dflash_core.knobs import Knobs
from dflash_core.runner import Runner
from dflash_core.snapshots.base import Rows, Snapshot, SnapshotError
from dflash_core.snapshots.store import Snapshots, SnapshotStore
from support.device_pairs import device_named, pair
from support.golden import other_targets
from support.grids import full
from support.mtp_device import mtp_pair
from support.shallow import shallow, shallow_draft

CONTEXT, PAGE = 256, 48
TREE = [3, 4, 5], [-1, 0, 0]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every piece large enough to be page-locked."""
    monkeypatch.setattr(host_blocks, "MIN_LOCKED", 1)


def taken(session: CudaSession, ids: Sequence[int]) -> Snapshot:
    """A snapshot as after a turn; where there is a card, its copies are in page-locked memory."""
    spans = [(begin, min(begin + PAGE, len(ids))) for begin in range(0, len(ids), PAGE)]
    pages = tuple(Rows(begin, end, session.rows(begin, end)) for begin, end in spans)
    found = Snapshot(np.asarray(ids, np.int32), pages, session.checkpoint())
    host = session.device.host
    session.reserve_host_memory(spans, 1 << 24)
    host.settle()
    if isinstance(host, host_blocks.HostBlocks) and session.host_drafter is None:
        assert all(tensor.is_pinned() for page in pages for tensor in page.tensors)
        assert all(tensor.is_pinned() for tensor in found.state.tensors)
    return found


def numbers(rng: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in rng.integers(0, 250, count)]


def same(a: CudaSession, b: CudaSession) -> None:
    assert a.length == b.length
    if a.drafter is not None:
        assert np.array_equal(a.draft(7, 0), b.draft(7, 0))
    assert np.array_equal(a.verify(*TREE), b.verify(*TREE))


@pytest.mark.parametrize(
    ("target_name", "draft_name", "window", "kv"),
    [
        ("tiny-F16.gguf", "tiny-dflash", 0, "f16"),
        ("tiny-F16.gguf", "tiny-dflash", 0, "q8_0/q4_0"),
        full("q3-F16.gguf", "q3-dflash", 0, "f16"),
        ("q3-F16.gguf", "q3-dflash", 24, "f16"),
        full("q35moe-F16.gguf", "q35moe-dflash", 0, "f16"),
    ],
)
def test_a_resumed_sequence_has_the_bits_of_the_one_it_was(
    device_name: str,
    target_name: str,
    draft_name: str,
    window: int,
    kv: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "SPARE", 40)  # rings of 64 slots
    device = device_named(device_name)
    tiny = target_name.startswith("tiny")
    target = load_target(shallow(target_name) if tiny else other_targets(target_name)[0])
    opened = load_draft(shallow_draft() if tiny else other_targets(draft_name)[0], target)
    config = replace(opened.config, sliding_window=window, sliding=(True, False)) if window else opened.config
    with device.stream():
        uploads = [DeviceUpload(device, weights) for weights in (target.file, opened.file)]
        model = DeviceTarget(device, uploads[0], target.config, CHOICES["f16"])
        draft = on_device(config, uploads[1], model, CHOICES["f16"])
        for upload in uploads:
            upload.close()
    one, other = (CudaSession(model, draft, context=CONTEXT, kv=CachePair.parse(kv)) for _ in range(2))
    ids = numbers(rng, 110)
    one.prefill(ids)
    whole = taken(one, ids)
    other.prefill(numbers(rng, 150))
    other.resume(whole)
    same(one, other)
    more = numbers(rng, 30)
    for session in (one, other):
        session.prefill(more)
    same(one, other)
    # Through the file's form, too: tensors, and nothing else.
    other.restore(None)
    other.resume(Snapshot(whole.tokens, whole.pages, other.state_of(110, whole.state.tensors)))
    other.prefill(more)
    same(one, other)
    with pytest.raises(SnapshotError):
        other.resume(Snapshot(whole.tokens, whole.pages[1:], whole.state))
    if whole.state.tensors:
        with pytest.raises(SnapshotError):
            one.state_of(110, whole.state.tensors[1:])
    short = CudaSession(model, draft, context=100, kv=CachePair.parse(kv))
    with pytest.raises(SnapshotError, match="110 positions, expected at most 100"):
        short.resume(whole)
    assert short.length == other.length == 0


@pytest.mark.parametrize("new", [30, MIN_ROWS])
def test_a_prompt_is_read_after_a_resume(
    device_name: str, new: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In passes and in a chunk, cancelled or not, after another conversation that nothing was read in."""
    monkeypatch.setattr(base, "SPARE", 40)
    one, other = (pair(device_name, "tiny-F16.gguf").sessions(CONTEXT)[0] for _ in range(2))
    ids, third, more = numbers(rng, 70), numbers(rng, 55), numbers(rng, new)
    one.prefill(third)
    left = taken(one, third)
    one.restore(None)
    one.prefill(ids)
    whole = taken(one, ids)
    expected = one.prefill(more)
    other.prefill(numbers(rng, 20))
    other.resume(left)
    other.resume(whole)
    asked = iter((False, True) if new >= MIN_ROWS else (True,))
    with pytest.raises(PrefillCancelled) as cancelled:
        other.prefill(more, lambda: next(asked))
    read = cancelled.value.committed
    assert other.length == len(ids) + read
    assert read == (0 if new >= MIN_ROWS else PROMPT_ROWS)
    assert np.array_equal(other.prefill(more[read:]), expected)
    same(one, other)
    other.resume(whole)
    assert np.array_equal(other.prefill(more), expected)
    other.resume(whole)
    other.resume(left)
    other.restore(None)
    other.prefill(ids)
    assert np.array_equal(other.prefill(more), expected)
    same(one, other)


def test_a_copy_that_fails_leaves_an_empty_sequence(
    device_name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pair(device_name, "tiny-F16.gguf")
    one, other = (made.sessions(CONTEXT)[0] for _ in range(2))
    ids = numbers(rng, 60)
    expected = one.prefill(ids)
    whole = taken(one, ids)
    other.prefill(numbers(rng, 20))

    assert other.drafter is not None
    restore = other.drafter.caches.restore

    def full(saved: Tensors | None, *positions: int) -> None:
        if saved is not None:
            raise OutOfMemoryError("no memory left")
        restore(saved, *positions)

    with monkeypatch.context() as patch:
        patch.setattr(other.drafter.caches, "restore", full)  # the target's states are copied before
        with pytest.raises(OutOfMemoryError):
            other.resume(whole)
    assert other.length == 0
    assert np.array_equal(other.prefill(ids), expected)
    same(one, other)


def test_two_conversations_and_back(device_name: str, rng: np.random.Generator) -> None:
    """Through a runner: answers are those of a session that never held anything else."""
    made = pair(device_name, "tiny-F16.gguf")
    knobs = Knobs(drafting="tree 6", temperature=0.0, max_tokens=3)

    def runner(store: SnapshotStore) -> Runner:
        session = made.sessions(CONTEXT)[0]
        kept = Snapshots(store, "here", cut=False)
        return Runner(session, frozenset(), CONTEXT, made.target.config.vocab_size, 64, snapshots=kept)

    def read(on: Runner, ids: Sequence[int], keep: Sequence[int] = ()) -> tuple[int, list[int]]:
        events = list(on.generate(ids, knobs, keep=keep))
        return events[0].reused_tokens, [token for event in events for token in event.tokens]  # type: ignore[union-attr]

    ours, alone = runner(SnapshotStore(1 << 30, PAGE)), runner(SnapshotStore(0))
    a, b = numbers(rng, 60), numbers(rng, 20)
    _, said = read(ours, a, [50])
    read(ours, b)
    again = [*a, *said, 9, 8, 7]
    reused, answer = read(ours, again)
    assert reused == len(a) + len(said) - 1
    assert read(alone, a, [50])[1] == said
    assert answer == read(alone, again)[1]
    assert read(ours, [*a[:55], 1, 2])[0] == 50


def test_a_drafter_on_the_host_comes_along(device_name: str, rng: np.random.Generator) -> None:
    made = pair(device_name, "tiny-F16.gguf")
    one, other = (CudaSession(made.device_target, host_drafter=NgramDrafter(), context=CONTEXT) for _ in range(2))
    ids = numbers(rng, 60) * 2
    one.prefill(ids)
    other.prefill(numbers(rng, 20))
    other.resume(taken(one, ids))
    knobs = Knobs()
    assert one.propose(ids[0], knobs).tokens.tolist() == other.propose(ids[0], knobs).tokens.tolist() != []
    same(one, other)


def test_an_mtp_head_comes_along(device_name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "SPARE", 40)
    made = mtp_pair(device_name)
    one, other = made.sessions()[0], made.sessions()[0]
    ids = numbers(rng, 100)
    one.prefill(ids)
    other.prefill(numbers(rng, 20))
    whole = taken(one, ids)
    other.resume(Snapshot(whole.tokens, whole.pages, other.state_of(100, whole.state.tensors)))
    same(one, other)
    more = numbers(rng, 9)
    for session in (one, other):
        session.prefill(more)
    same(one, other)
