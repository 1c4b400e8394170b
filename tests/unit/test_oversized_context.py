"""What is launched follows what a context holds, not what is allocated for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("cuda.bindings")
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.launch import Launch
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.step_graphs import StepKind
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import Upload
from dflash_core.cache_types import CachePair
from support.kernel_variants import CARDS, PlanningDevice, experts, large

GIB, MIB = 1 << 30, 1 << 20


def launched(context: int, model: Any, kv: str) -> Iterator[Launch]:
    """The launches of plain and drafted steps, and of a prompt in passes and in chunks, with memory for `context`."""
    device = PlanningDevice(CARDS["sm_90a"])
    chosen = CHOICES["int8"]
    target = DeviceTarget(device, Upload(model.target), model.target_config, chosen)
    draft = on_device(model.draft_config, Upload(model.draft), target, chosen)
    session = CudaSession(target, draft, context=context, kv=CachePair.parse(kv))
    for width, windowed in ((1, False), (24, False), (24, True)):
        yield from session.steps.launches(StepKind((width,), drafts=width > 1, sampled=False, windowed=windowed))
    yield from session.pass_launches(64, 0)
    assert session.chunk_pass is not None
    yield from session.chunk_pass.launches()


@pytest.mark.parametrize("kv", ["f16", "q8_0/q4_0"])
@pytest.mark.parametrize("model", [large, experts])
def test_an_oversized_context_costs_nothing_by_itself(model: Any, kv: str) -> None:
    """The same kernels in the same grids, blocks and shared memory at 8,192 allocated positions and at 262,144: they
    read the length that they process from the state."""
    ways = [
        [(one.file, one.name, dict(one.defines), one.grid, one.block, one.shared, one.per_sm) for one in found]
        for found in (launched(context, model(), kv) for context in (8192, 262_144))
    ]
    assert len(ways[0]) > 100
    assert ways[0] == ways[1]
