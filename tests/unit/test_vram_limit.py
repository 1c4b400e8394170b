"""With a limit a card counts as smaller: what is free, fits and is refused, and what torch's allocator may take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("cuda.bindings")
from dflash_core.backends.cuda import target
from dflash_core.backends.cuda.machine import CudaMachine
from dflash_core.backends.cuda.meta import context_bytes
from dflash_core.backends.cuda.target import CudaTarget
from dflash_core.drafters.registry import open_draft
from dflash_core.engine import load_pair
from dflash_core.errors import OutOfMemoryError
from dflash_core.fits import CardOptions, requested_setup
from dflash_core.loading import load_target
from support.golden import golden
from support.made_up_card import MadeUpCard

TARGET, DRAFT = golden("tiny-F16.gguf"), golden("tiny-dflash")
GIB = 1 << 30
DRIVER = context_bytes(MadeUpCard.card.multiprocessors)


@pytest.fixture(autouse=True)
def _nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaMachine, "other_processes", lambda self: 0)


def opened(free: int, total: int = 80 * GIB, **options: Any) -> CudaTarget:
    return CudaTarget(TARGET, CardOptions(**options), device=MadeUpCard(free, total))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("free", "limit", "room"),
    [
        (80 * GIB, 0, 80 * GIB - DRIVER),  # nothing is held yet, the driver's share will be
        (79 * GIB, 0, 79 * GIB),  # it holds that already
        (80 * GIB, 24 * GIB, 24 * GIB - DRIVER),
        (79 * GIB, 24 * GIB, 23 * GIB),
        (2 * GIB, 24 * GIB, 0),  # this process holds more than the limit
        (80 * GIB, 80 * GIB, 80 * GIB - DRIVER),
        (80 * GIB, 200 * GIB, 80 * GIB - DRIVER),
    ],
)
def test_what_is_free_under_a_limit(free: int, limit: int, room: int) -> None:
    machine = opened(free, vram_limit=limit).machine
    assert machine.available() == room
    assert machine.breakdown(()).total == (limit if 0 < limit < 80 * GIB else 80 * GIB)


def test_others_do_not_count_towards_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs take memory that is free on the card, but nothing of this program's limit."""
    monkeypatch.setattr(CudaMachine, "other_processes", lambda self: 50 * GIB)
    assert opened(29 * GIB, vram_limit=24 * GIB).machine.available() == 23 * GIB
    monkeypatch.setattr(CudaMachine, "other_processes", lambda self: 69 * GIB)
    assert opened(10 * GIB, vram_limit=24 * GIB).machine.available() == 10 * GIB


def test_a_limit_plans_as_the_same_memory_does() -> None:
    draft = open_draft(DRAFT, opened(1 << 40))
    limited = opened(80 * GIB, vram_limit=GIB).estimator(draft)
    small = opened(GIB, GIB).estimator(draft)
    assert limited.available == small.available == GIB
    assert requested_setup(limited, None, "auto") == requested_setup(small, None, "auto")


def test_a_limit_without_a_card_is_said() -> None:
    said = [load_target(TARGET, "cpu", card=CardOptions(vram_limit=limit)).notes for limit in (0, GIB)]
    assert said == [(), ("a limit of 1.0 GiB for the card: no effect on the CPU",)]


def test_every_option_of_a_card_is_said_to_have_no_effect_without_one() -> None:
    card = CardOptions(
        activations="f16",
        draft_type="q4_0",
        tune=False,
        vram_limit=GIB,
        embedding="host",
        reading="passes",
        experts="auto",
    )
    notes = load_target(TARGET, "cpu", card=card).notes
    assert len(notes) == 7
    assert all(note.endswith(": no effect on the CPU") for note in notes)


def test_the_allocator_keeps_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's share is subtracted; before the driver has taken it, it is predicted."""
    fractions: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
    opened(80 * GIB, vram_limit=24 * GIB).machine.hold_limit()
    opened(78 * GIB, vram_limit=24 * GIB).machine.hold_limit()
    assert fractions == [(24 * GIB - DRIVER) / (80 * GIB), 22 / 80]
    opened(80 * GIB).machine.hold_limit()
    opened(80 * GIB, vram_limit=90 * GIB).machine.hold_limit()
    assert len(fractions) == 2


def test_a_limit_below_the_weights_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "open_device", lambda index: MadeUpCard(80 * GIB, 80 * GIB))
    monkeypatch.setattr(target, "DeviceUpload", SimpleNamespace)
    with pytest.raises(OutOfMemoryError) as refused:
        load_pair(TARGET, DRAFT, "cuda", card=CardOptions(vram_limit=DRIVER + 1000))
    message = str(refused.value)
    assert "\n" not in message
    assert "but 1000 B is free" in message
