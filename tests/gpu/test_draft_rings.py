"""The drafter's rings: drafts equal those with caches of all positions, wherever a sequence was truncated to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dflash_core import load_draft, load_target
from dflash_core.backends.base import AnswerOptions, Checkpoint
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda import step
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters import base
from dflash_core.backends.cuda.drafters.base import PENDING_ROWS, on_device
from dflash_core.backends.cuda.drafters.dflash import DFlash
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import MAX_DEPTH
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.errors import ContextError
from dflash_core.knobs import Knobs
from support.device_pairs import device_named
from support.shallow import shallow, shallow_draft

WINDOW, CONTEXT = 24, 640
Make = Callable[[int], CudaSession]


@pytest.fixture
def make(device_name: str, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes sessions of one pair whose drafter has a window in all layers but the last. The argument is the number of
    spare positions in its rings; 0 gives caches of all positions."""
    device, target = device_named(device_name), load_target(shallow("tiny-F16.gguf"))
    opened = load_draft(shallow_draft(), target)
    sliding = tuple(index + 1 < opened.config.block_count for index in range(opened.config.block_count))
    config = replace(opened.config, sliding_window=WINDOW, sliding=sliding)
    with device.stream():
        uploads = [DeviceUpload(device, weights) for weights in (target.file, opened.file)]
        model = DeviceTarget(device, uploads[0], target.config, CHOICES["f16"])
        draft = on_device(config, uploads[1], model, CHOICES["f16"])
        for upload in uploads:
            upload.close()

    monkeypatch.setattr(step, "CALM_MS", 0.0)  # no more than two steps in flight: such rings have no memory for more

    def session(spare: int) -> CudaSession:
        monkeypatch.setattr(base, "SPARE", spare or CONTEXT)
        made = CudaSession(model, draft, context=CONTEXT)
        assert isinstance(made.drafter, DFlash)
        assert made.drafter.caches.slots == (-(-(WINDOW + spare) // 64) * 64 if spare else 0)
        return made

    return session


def ids(rng: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in rng.integers(0, 700, count)]


@pytest.mark.parametrize("places", [(2, 0, 0), pytest.param((3, 2, 0, 0), marks=pytest.mark.full)])
def test_prompts_steps_and_cuts(
    make: Make, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, places: tuple[int, ...]
) -> None:
    """A ring of 64 positions: prompts longer than that in chunks and in passes, and checkpoints further back."""
    monkeypatch.setattr(cuda_session, "MIN_ROWS", 70)
    both = make(40), make(0)
    kept: list[list[Checkpoint]] = []

    def prefill(tokens: list[int]) -> None:
        for session in both:
            session.prefill(tokens)

    def compare(root: int, window: int = 0, at: int | None = None) -> None:
        assert np.array_equal(*(session.draft(root, window, at) for session in both))

    for length in (3, 150, 66, 40):
        tokens = ids(rng, length)
        prefill(tokens)
        kept.append([session.checkpoint() for session in both])
        for session in both:
            session.verify(tokens[:3], [-1, 0, 0])
            session.commit([0, 2])
        compare(5)
        if length > 20:
            compare(5, 7, both[0].length - 20)
    for place in places:
        for session, checkpoint in zip(both, kept[place], strict=True):
            session.restore(checkpoint)
        compare(5)
        prefill(ids(rng, 90))
        compare(6)
    for session in both:
        session.restore(None)
    prefill(tokens)
    compare(6)


def test_a_cut_without_its_rows_would_be_seen(make: Make, rng: np.random.Generator) -> None:
    """A checkpoint must hold the rings: without them, drafts after a cut differ."""
    ours, whole = make(40), make(0)
    tokens, later = ids(rng, 60), ids(rng, 120)
    for session in (ours, whole):
        session.prefill(tokens)
        kept = session.checkpoint()
        session.prefill(later)
        if session is ours:
            kept.saved[-1] = ()
        session.restore(kept)
    assert not np.array_equal(ours.draft(5, 0), whole.draft(5, 0))


def run(session: CudaSession, mode: str, tokens: int) -> list[int]:
    # With an end, as how many steps are queued behind the last one that is read depends on time.
    knobs = Knobs(temperature=0, ignore_eos=True, max_tokens=tokens).replace(mode=mode, budget=7)
    decoder = session.decoder(AnswerOptions(knobs, frozenset(), CONTEXT))
    decoder.answer.append(9)
    while len(decoder.answer) < tokens:
        decoder.step()
    decoder.finish()
    return decoder.answer


def test_an_answer_is_drafted_again_from_any_position(
    make: Make, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of more positions than a ring has, drafted and plain; also after an earlier answer."""
    monkeypatch.setattr(DFlash, "max_pending", 40)
    prompt = ids(rng, 70)
    starts: list[tuple[int, int]] = []
    found: list[list[np.ndarray]] = []
    for session in (make(104), make(0)):
        session.prefill(prompt)
        drafts, began = [], session.length
        for mode, tokens in (("chain", 108), ("plain", 4)):
            began = session.length
            session.steps.force([range(1, 8)] if mode == "chain" else None)
            run(session, mode, tokens)
            end = session.length
            for at in (began, end - 90, end - 24, end) if mode == "chain" else (began, end - 1):
                drafts.append(session.draft(5, 0, at))
            drafts.append(session.draft(5, 0))
        starts.append((began, session.length))
        found.append(drafts)
        session.steps.force(None)
    assert starts[0] == starts[1]
    for ours, theirs in zip(*found, strict=True):
        assert np.array_equal(ours, theirs)


def test_rings_are_long_enough_for_all_steps_in_flight() -> None:
    """For what those commit, a block behind it, and what is not in the caches yet."""
    assert base.SPARE >= step.MAX_IN_FLIGHT + MAX_DEPTH + 1 + PENDING_ROWS


def test_what_is_gone_is_refused(make: Make, rng: np.random.Generator) -> None:
    ours = make(40)
    ours.prefill(ids(rng, 200))
    before = ours.draft(5, 0)
    with pytest.raises(ContextError, match="no longer has its cache of the context before position 100, which"):
        ours.draft(5, 0, 100)
    assert np.array_equal(ours.draft(5, 0), before)
