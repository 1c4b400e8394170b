"""What an answer owes to a kept prefix: with prompts in passes nothing, else the rounding of activations."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tools.train_demo.numerics import difference, held_out

from dflash_core import Knobs, load_target
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda import target as cuda_target
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.timings import NEVER
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.demo import demo_target_path
from dflash_core.engine import Engine, load_pair
from dflash_core.errors import UnsupportedError
from dflash_core.events import PrefillEvent
from dflash_core.fits import CardOptions
from dflash_core.snapshots.store import SnapshotStore
from support import engines
from support.device_pairs import device_named
from support.emulated_device import EmulatedCard
from support.golden import goldens, other_targets, target_path
from support.grids import full

KEPT, ALL, TOKENS = 40, 80, 12
TINY, ATTENTION, EXPERTS, DEMO = "tiny-Q4_K_M.gguf", "q3-Q8_0.gguf", "q35moe-mtp-Q8_0.gguf", "demo"
emulated = pytest.mark.skipif(engines.missing("emulated") is not None, reason=engines.missing("emulated") or "")


def path_of(name: str) -> Path:
    return demo_target_path() if name == DEMO else target_path(name)


@functools.cache
def device_target(device_name: str, name: str, activations: str) -> DeviceTarget:
    device, target = device_named(device_name), load_target(path_of(name))
    with device.stream():
        upload = DeviceUpload(device, target.file)
        found = DeviceTarget(device, upload, target.config, CHOICES[activations])
        upload.close()
    return found


@functools.cache
def text(name: str) -> list[int]:
    if name == DEMO:
        return held_out(load_target(demo_target_path()), 2)[1]
    long = next(path for path in goldens("tiny-long.npz"))
    return [int(token) % device_target("emulated", name, "f16").spec.vocab_size for token in np.load(long)["ids"][:150]]


def follows(session: CudaSession, ids: list[int]) -> npt.NDArray[np.float32]:
    """Logits after the committed tokens, `ids`, one after the other."""
    return session.verify(ids, range(-1, len(ids) - 1))


@pytest.mark.parametrize(
    ("name", "activations"),
    [(TINY, "int8"), (TINY, "f16"), (EXPERTS, "int8"), full(TINY, "mixed"), full(EXPERTS, "f16")],
)
def test_in_passes_a_kept_prefix_changes_nothing(device_name: str, name: str, activations: str) -> None:
    """Bit for bit, whether it was read, answered token by token or as a tree, or comes with the rest."""
    ids = text(name)
    kept, fresh = (
        CudaSession(device_target(device_name, name, activations), context=192, chunks_from=NEVER) for _ in range(2)
    )
    kept.prefill(ids[:KEPT])
    kept.verify([*ids[KEPT : KEPT + 3], 7], [-1, 0, 1, 1])
    kept.commit([0, 1, 2])
    for token in ids[KEPT + 3 : KEPT + 6]:
        follows(kept, [token])
        kept.commit([0])
    assert np.array_equal(kept.prefill(ids[KEPT + 6 : ALL]), fresh.prefill(ids[:ALL]))
    assert np.array_equal(follows(kept, ids[ALL : ALL + TOKENS]), follows(fresh, ids[ALL : ALL + TOKENS]))


@pytest.mark.parametrize(
    ("name", "activations", "most"),
    [
        (TINY, "f16", 1e-6),
        (ATTENTION, "f16", 1e-6),
        full(DEMO, "f16", 1e-6),
        *(full(path.name, "f16", 1e-6) for path in [*goldens("tiny-[FIQ]*.gguf"), *other_targets("q3-*.gguf")]),
        (TINY, "int8", 2e-3),  # as much as rounding to int8 costs: float noise decides what is rounded up
    ],
)
def test_chunks_and_passes_differ_by_the_rounding_of_activations(
    device_name: str, monkeypatch: pytest.MonkeyPatch, name: str, activations: str, most: float
) -> None:
    monkeypatch.setattr(cuda_session, "MIN_ROWS", 1)
    ids, session = text(name), CudaSession(device_target(device_name, name, activations), context=192)
    end, found = min(ALL, len(ids) - TOKENS), []
    for session.chunks_from in (None, NEVER):
        session.restore(None)
        first = session.prefill(ids[:end])
        found.append(np.concatenate([first[None], follows(session, ids[end : end + TOKENS])]))
    kl = difference(found[1], found[0]).mean_kl
    print(f"{name} {activations}: mean KL {kl:.2e}")  # noqa: T201
    assert 0 < kl < most


# ---- The whole program, on the emulator ------------------------------------------------------------------------------


def engine(monkeypatch: pytest.MonkeyPatch, store: SnapshotStore, name: str = TINY, **options: str) -> Engine:
    monkeypatch.setattr(cuda_target, "open_device", lambda index: EmulatedCard())
    return load_pair(target_path(name), None, "cuda", context_length=300, card=CardOptions(**options), states=store)  # type: ignore[arg-type]


def read(engine: Engine, ids: list[int]) -> PrefillEvent:
    first = next(iter(engine.generate(ids, Knobs(drafting="plain", temperature=0, max_tokens=1))))
    assert isinstance(first, PrefillEvent)
    return first


@emulated
@pytest.mark.emulator
def test_a_kept_state_serves_its_own_arithmetic_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    store, ids = SnapshotStore(1 << 30), text(TINY)
    first = engine(monkeypatch, store)
    read(first, ids[:KEPT])
    first.leave()
    reused = {
        name: read(engine(monkeypatch, store, **options), ids[:ALL]).reused_tokens
        for name, options in (
            ("same", {}),
            ("other rounding", {"activations": "f16"}),
            ("other kernels", {"reading": "passes"}),
        )
    }
    assert reused == {"same": KEPT, "other rounding": 0, "other kernels": 0}


@emulated
@pytest.mark.emulator
def test_the_same_prompt_again_gives_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh prompt is read in chunks, but for its last token: that alone is read when the prompt comes again."""
    monkeypatch.setattr(cuda_session, "MIN_ROWS", KEPT)
    made = engine(monkeypatch, SnapshotStore(0), ATTENTION)
    session, ids = made.session, text(ATTENTION)[:ALL]
    assert isinstance(session, CudaSession)
    chunks, found, prefill_chunk, logits_of = list[int](), list[object](), session.prefill_chunk, session._logits_of
    monkeypatch.setattr(
        session, "prefill_chunk", lambda part, *rest: chunks.append(len(part)) or prefill_chunk(part, *rest)
    )
    monkeypatch.setattr(session, "_logits_of", lambda h: found.append(row := logits_of(h)) or row)
    assert [read(made, ids).reused_tokens for _ in range(2)] == [0, ALL - 1]
    assert chunks == [ALL - 1]
    assert np.array_equal(found[-2], found[-1])


@emulated
@pytest.mark.emulator
def test_prompts_in_passes_are_an_option_of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """They never run in chunks, in wide passes where there is memory for them."""
    monkeypatch.setattr(cuda_session, "MIN_ROWS", 1)
    made = engine(monkeypatch, SnapshotStore(0), reading="passes")
    session = made.session
    assert isinstance(session, CudaSession)
    assert session.pass_rows == 64
    monkeypatch.setattr(session, "prefill_chunk", None)
    assert read(made, text(TINY)[:100]).reused_tokens == 0
    with pytest.raises(UnsupportedError, match=r"^reading 'chunks', expected one of auto passes$"):
        engine(monkeypatch, SnapshotStore(0), reading="chunks")
