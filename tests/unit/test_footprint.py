"""The predicted memory of a sequence on a card is what it allocates, piece by piece, and what the allocator adds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from _pytest.mark.structures import ParameterSet

from dflash_core.arch.kinds import Attention
from dflash_core.backends.cuda.activations import DEFAULT
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.library import WORKSPACE_BYTES
from dflash_core.backends.cuda.memory_estimator import CHUNK_ROWS, Footprint
from dflash_core.backends.cuda.meta import SMALL_SEGMENT, Pieces, reserved
from dflash_core.backends.cuda.sequence import CAPACITIES
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.cache_types import CachePair
from dflash_core.fits import PREFILL_ROWS, Setup
from support import toy_architecture
from support.kernel_variants import (
    CARDS,
    Pair,
    alone,
    cells,
    demo,
    experts,
    header,
    large,
    large_dflash2,
    large_dspark,
    large_mtp,
    side_by_side,
    small_dspark,
    tiny,
    tiny_experts,
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
    Case("experts", tiny_experts, "sm_90a"),
    Case("35b-a3b", experts, "sm_90a"),
    Case("26b-a4b and its assistant", side_by_side, "sm_90a"),
    Case("assistant of cells", cells, "sm_86"),
    Case("laguna", partial(alone, "laguna-Q8_0.gguf"), "sm_90a", drafted=False),
    Case("gpt-oss", partial(alone, "gptoss-MXFP4.gguf"), "sm_90a", drafted=False),
]


@dataclass(frozen=True)
class Way:
    """The settings of a sequence on which its bytes depend, in addition to the pair."""

    context: int = 320
    kv: str = "f16"
    rows: int = PREFILL_ROWS
    nodes: int = CAPACITIES[-1]
    on_host: bool = False


KINDS, ROWS = ("f16", "bf16", "q8_0", "q8_0/q4_0", "q5_0/f16", "tq3_0", "q4_0+1024"), CHUNK_ROWS
EVERY = [  # all of these three with each other, the rest in turn
    Way((4000, 320)[n % 4 == 0], kv, rows, nodes, bool(n % 2))
    for n, (kv, rows, nodes) in enumerate(itertools.product(KINDS, ROWS, CAPACITIES))
]
NARROW = [
    Way(), Way(4000), Way(4000, "q8_0/q4_0", ROWS[-1], 64, True), Way(4000, "f16", ROWS[1]),
    Way(4000, "q5_0/f16", ROWS[2], 256), Way(320, "tq3_0", ROWS[-1], 128), Way(4000, "q4_0+1024", nodes=64),
    Way(1000, "q5_0/q4_0+384", ROWS[2]),
]  # fmt: skip


def ways() -> list[ParameterSet]:
    """Each case in half of a few ways, each way in half of the cases; with `full` in all."""
    found = [
        pytest.param(case, way, id=f"{case.name} {n}", marks=() if (at + n) % 2 == 0 else pytest.mark.full)
        for at, case in enumerate(CASES)
        for n, way in enumerate(NARROW)
    ]
    return found + [
        pytest.param(case, way, id=f"{case.name} full{n}", marks=pytest.mark.full)
        for case in CASES
        for n, way in enumerate(EVERY)
    ]


@pytest.mark.parametrize(("case", "way"), ways())
def test_what_is_predicted_is_what_is_allocated(case: Case, way: Way) -> None:
    pair, device = case.pair(), RecordingDevice(CARDS[case.arch])
    target = DeviceTarget(device, NamedUpload(pair.target, device), pair.target_config, embedding_on_host=way.on_host)
    footprint = Footprint(pair.target, pair.target_config, CARDS[case.arch], embedding_on_host=way.on_host)
    draft = None
    if case.drafted:
        draft = on_device(pair.draft_config, NamedUpload(pair.draft, device), target, DEFAULT)
        footprint.add_draft(pair.draft, pair.draft_config)
    kv = CachePair.parse(way.kv)
    with Pieces() as found:
        session = CudaSession(target, draft, context=way.context, kv=kv, rows=way.rows, nodes=way.nodes)
    setup = Setup(way.context, way.kv, way.nodes, rows=way.rows)
    predicted = {one.name: one.bytes for one in footprint.sequence(setup, drafted=case.drafted)}
    assert {name: size for name, size in predicted.items() if name != "scratch"} == session.nbytes
    library = [WORKSPACE_BYTES] if session.chunk_pass else []
    # A chunk has copies of biases in its own order, some KiB a layer, which no plan counts.
    more = SMALL_SEGMENT if any(one.biases for one in pair.target_config.of(Attention)) else 0
    off = reserved([*found.sizes, *library]) - sum(predicted.values())
    assert off in (0, more)
    assert sum(found.sizes) > sum(session.nbytes.values()) > 0
    assert bool(library) == target.chunked
    check_text(session)


def part(name: str, footprint: Footprint, setup: Setup) -> int:
    """Bytes of a component of a sequence."""
    return next(one.bytes for one in footprint.sequence(setup, drafted=setup.drafted) if one.name == name)


def check_text(session: CudaSession) -> None:
    """The text has memory where trees copy from it: with a drafter on the card that scores none by the token above."""
    kinds = session.capabilities
    assert (session.memory.text is not None) == (kinds is not None and "by_parent" not in kinds.knobs)


def test_fewer_rows_of_a_prompt_take_less() -> None:
    """A load may reduce them."""
    pair = large()
    footprint = Footprint(pair.target, pair.target_config, CARDS["sm_90a"])
    taken = [part("scratch", footprint, Setup(32_768, rows=rows, drafted=False)) for rows in ROWS]
    assert taken == sorted(taken, reverse=True)
    assert taken[0] - taken[-1] > 120 * MIB


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
        taken = part("drafter KV", footprint, Setup(context))
        assert taken <= context * 4.2 * KIB + 40 * MIB
        more = part("drafter KV", footprint, Setup(context + 1024))
        assert more - taken == 1024 * 4 * KIB
