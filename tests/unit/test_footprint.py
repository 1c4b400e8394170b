"""What a sequence is predicted to take of a card is what it asks for, piece by piece, and what the allocator adds."""

from __future__ import annotations

import pytest
import torch

from dflash_core.backends.cuda.activations import DEFAULT
from dflash_core.backends.cuda.allocator import Pieces, reserved
from dflash_core.backends.cuda.drafters.kinds import on_device
from dflash_core.backends.cuda.footprint import Footprint
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from support import toy_architecture
from support.kernel_variants import (
    CARDS,
    Pair,
    demo,
    header,
    large,
    large_dflash2,
    large_dspark,
    large_mtp,
    small_dspark,
    tiny,
)
from support.launch_lists import Case
from support.recording_device import NamedUpload, RecordingDevice

KIB, MIB = 1 << 10, 1 << 20


def toy() -> Pair:
    """A target of plain attention, without a drafter."""
    sizes = {**toy_architecture.SIZES, "attention.sliding_window": 0}
    keys = {"general.name": "toy", **{f"toy.{name}": value for name, value in sizes.items()}}
    settings = toy_architecture.ARCHITECTURE.settings("toy", keys)
    spec = toy_architecture.read(settings, toy_architecture.Head(toy_architecture.VOCABULARY, False))
    return Pair(header("toy", spec.tensors(), dict.fromkeys(spec.tensors(), "F16")), spec, None, None)


CASES = [
    Case("tiny", tiny, "sm_90a"),
    Case("tiny sm_86", tiny, "sm_86"),
    Case("demo", demo, "sm_90a"),
    Case("27b", large, "sm_90a"),
    Case("27b alone", large, "sm_90a", drafted=False),
    Case("27b mtp", large_mtp, "sm_90a"),
    Case("27b dflash2", large_dflash2, "sm_90a"),
    Case("27b dspark", large_dspark, "sm_90a"),
    Case("dspark of few tokens", small_dspark, "sm_86"),
    Case("toy", toy, "sm_90a", drafted=False),
]


@pytest.mark.parametrize("context", [320, 4000])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_predicted_is_what_is_allocated(case: Case, context: int) -> None:
    pair, device = case.pair(), RecordingDevice(CARDS[case.arch])
    target = DeviceTarget(device, NamedUpload(pair.target, device), pair.target_config)
    footprint = Footprint(pair.target, pair.target_config, CARDS[case.arch])
    draft = None
    if case.drafted:
        draft = on_device(pair.draft_config, NamedUpload(pair.draft, device), target, DEFAULT)
        footprint.add_draft(pair.draft, pair.draft_config)
    with Pieces() as found:
        session = CudaSession(target, draft, context=context)
    predicted = footprint.sequence(context, drafted=case.drafted)
    assert dict(predicted.held) == session.nbytes
    assert predicted.scratch + sum(predicted.held.values()) == reserved([*found.sizes, *session.memory.library])
    assert sum(found.sizes) > sum(session.nbytes.values()) > 0


def test_pieces_are_noted_once_each() -> None:
    with Pieces() as found:
        kept = torch.zeros(3, 5)
        view = kept[1:].view(-1)
        view += 1
        torch.zeros(7, dtype=torch.uint8, device="meta").view(7)
        made = kept + 1
    assert (found.sizes, made.shape) == ([60, 7, 60], (3, 5))


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ([], 0),
        ([0], 0),
        ([1], 2 * MIB),
        ([KIB] * 2048, 2 * MIB),
        ([KIB] * 2048 + [1], 4 * MIB),
        ([MIB, MIB], 2 * MIB),
        ([MIB + 1], 20 * MIB),
        ([5 * MIB] * 4, 20 * MIB),
        ([5 * MIB] * 5, 40 * MIB),
        ([9 * MIB, 9 * MIB, 2 * MIB], 20 * MIB),  # what is left of a segment is taken where it is large enough
        ([9 * MIB, 9 * MIB, 2 * MIB + 1], 40 * MIB),
        ([10 * MIB], 10 * MIB),
        ([33 * MIB], 34 * MIB),
        ([100 * MIB + 1, KIB], 104 * MIB),
    ],
)
def test_segments_of_the_allocator(sizes: list[int], taken: int) -> None:
    assert reserved(sizes) == taken


def test_a_longer_context_adds_what_its_positions_take() -> None:
    """Of the 27B pair's drafter one layer of five keeps all positions: 4 KiB each."""
    pair = large()
    footprint = Footprint(pair.target, pair.target_config, CARDS["sm_90a"])
    footprint.add_draft(pair.draft, pair.draft_config)
    assert pair.draft_config.sliding == (True,) * 4 + (False,)
    for context in (8192, 131_072):
        taken = footprint.sequence(context, drafted=True).held["drafter KV"]
        assert taken <= context * 4.2 * KIB + 40 * MIB
        more = footprint.sequence(context + 1024, drafted=True).held["drafter KV"]
        assert more - taken == 1024 * 4 * KIB
