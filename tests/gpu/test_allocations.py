"""A turn allocates what is predicted: lasting memory before it begins, and for prompt chunks what they predict."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.bench.replay import GivenCosts

from dflash_core import Knobs
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda.sequence import chunk_results
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.cache_types import CachePair
from dflash_core.drafters.text import TextDrafter
from dflash_core.policy.costs import H200
from dflash_core.policy.late import LatePolicy
from dflash_core.policy.pair import PairState
from dflash_core.runner import Runner
from support.allocations import Allocations
from support.block_device import block_pair
from support.device_pairs import pair
from support.emulated_device import EmulatedDevice
from support.mtp_device import mtp_pair

CONTEXT, PROMPT, WINDOW = 400, 300, 40
HOST_BYTES = 8  # per row of a chunk: its token, which is copied to the device
Made = Callable[[dict[str, Any], Path], CudaSession]


def dflash(how: dict[str, Any], folder: Path) -> CudaSession:
    one = pair("emulated", "tiny-F16.gguf")
    return CudaSession(one.device_target, one.sessions(8)[0].draft_weights, **how)


def alone(how: dict[str, Any], folder: Path) -> CudaSession:
    return CudaSession(pair("emulated", "tiny-F16.gguf").device_target, **how)


def text(how: dict[str, Any], folder: Path) -> CudaSession:
    return CudaSession(pair("emulated", "tiny-F16.gguf").device_target, host_drafter=TextDrafter(), **how)


def mtp(how: dict[str, Any], folder: Path) -> CudaSession:
    one = mtp_pair("emulated")
    return CudaSession(one.device_target, one.device_head, **how)


def dflash2(how: dict[str, Any], folder: Path) -> CudaSession:
    one = block_pair(EmulatedDevice(), folder / f"{len(list(folder.iterdir()))}", "dflash2")
    return CudaSession(one.device_target, one.device_draft, **how)


NARROW = [(dflash, "f16", 128), (mtp, "q8_0/q4_0", 256), (alone, "q8_0/q4_0", 256)]
FULL = [
    (make, kv, rows)
    for make in (dflash, alone, text, mtp, dflash2)
    for kv in ("f16", "bf16/q8_0", "f16/q4_0", "tq3_0")
    for rows in (128, 256, 512)
]


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("make", "kv", "rows"),
    [*NARROW, *(pytest.param(*one, marks=pytest.mark.full) for one in FULL)],
)
def test_a_turn_takes_no_more_than_was_there(
    make: Made, kv: str, rows: int, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt is read in chunks under an attention window; trees copy from the text where the pair allows it."""
    monkeypatch.setattr(cuda_session, "LEAST_ROWS", 1)
    found, held = list[tuple[int, int]](), Allocations()
    multiply = EmulatedDevice.multiply

    def by_the_library(*args: Any, **options: Any) -> None:
        held.counting = False  # the emulation of the library converts its operands
        multiply(*args, **options)
        held.counting = True

    monkeypatch.setattr(EmulatedDevice, "multiply", by_the_library)
    make({"context": 8}, tmp_path)  # loads the weights beforehand
    with held:
        session = make({"context": CONTEXT, "kv": CachePair.parse(kv), "rows": rows}, tmp_path)
        assert session.chunk_pass is not None
        begun, run = held.live, session.chunk_pass.run

        def measured(tokens: Sequence[int], *rest: Any) -> Any:
            before, end = held.live, session.length + len(tokens)
            held.most = before
            last = run(tokens, *rest)
            predicted = sum(chunk_results(session.target, len(tokens), end, session.kv, session.window))
            found.append((held.most - before - HOST_BYTES * len(tokens), predicted))
            return last

        monkeypatch.setattr(session.chunk_pass, "run", measured)
        drafter = session.capabilities
        policy = LatePolicy(drafter, PairState(), GivenCosts(H200)) if session.drafter else None
        runner = Runner(session, frozenset(), CONTEXT, session.target.output.rows, policy=policy)
        knobs = Knobs(max_tokens=12, ignore_eos=True).replace(attention_window=WINDOW, temperature=0.9)
        for _ in runner.generate(rng.integers(0, 250, PROMPT).tolist(), knobs):
            pass
        gc.collect()
        assert held.live == begun
    assert all(0 <= taken <= predicted for taken, predicted in found)
    assert found[0][0] == found[0][1] > 0
