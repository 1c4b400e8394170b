"""Turns allocate nothing: all that they need is there after a load."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tools.bench.replay import GivenCosts
from torch import Tensor

from dflash_core import Knobs
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda.launch import Launch, Run
from dflash_core.backends.cuda.layers import chunk_attention
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.cache_types import CachePair
from dflash_core.drafters.ngram import NgramDrafter
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.costs import H200
from dflash_core.policy.queued import QueuedPolicy
from dflash_core.progress import Progress
from dflash_core.runner import Runner
from support.allocations import Allocations
from support.block_device import block_pair
from support.device_pairs import Pair, pair_on
from support.emulated_device import EmulatedDevice
from support.mtp_device import MtpPair, mtp_pair_on

CONTEXT, PROMPT, WINDOW = 400, 300, 40
HOST_BYTES = 40_000  # that the host itself takes: tokens, logits of a row
OF_LAYERS = ("attention", "conv", "dequant", "gdn", "matmul", "norm", "rows", "swiglu")  # how files of kernels begin
Made = Callable[[dict[str, Any], Path], CudaSession]


class LayersLeftOut(EmulatedDevice):
    """Runs no kernel of a layer: they compute values, which nothing here depends on, and the host allocates before it
    launches. The rest drafts, draws and accepts tokens as ever."""

    def bind(self, launches: Sequence[Launch], progress: Progress | None = None) -> Run:
        return super().bind([one for one in launches if not one.file.startswith(OF_LAYERS)], progress)

    def multiply(self, x: Tensor, weights: Tensor, out: Tensor, *, scale: float = 1.0, add: bool = False) -> None:
        if not add:
            out.zero_()


@functools.cache
def device() -> LayersLeftOut:
    return LayersLeftOut()


@functools.cache
def the_pair() -> Pair:
    return pair_on(device(), "tiny-F16.gguf")


@functools.cache
def the_mtp_pair() -> MtpPair:
    return mtp_pair_on(device())


def dflash(how: dict[str, Any], folder: Path) -> CudaSession:
    return CudaSession(the_pair().device_target, the_pair().device_draft, **how)


def alone(how: dict[str, Any], folder: Path) -> CudaSession:
    return CudaSession(the_pair().device_target, **how)


def text(how: dict[str, Any], folder: Path) -> CudaSession:
    return CudaSession(the_pair().device_target, host_drafter=NgramDrafter(), **how)


def mtp(how: dict[str, Any], folder: Path) -> CudaSession:
    return CudaSession(the_mtp_pair().device_target, the_mtp_pair().device_head, **how)


def dflash2(how: dict[str, Any], folder: Path) -> CudaSession:
    one = block_pair(device(), folder / f"{len(list(folder.iterdir()))}", "dflash2")
    return CudaSession(one.device_target, one.device_draft, **how)


NARROW = [(dflash, "f16", 128), (mtp, "q8_0/q4_0", 256), (alone, "q8_0/q4_0", 256), (alone, "q4_0+384", 256)]
FULL = [
    (make, kv, rows)
    for make in (dflash, alone, text, mtp, dflash2)
    for kv in ("f16", "bf16/q8_0", "f16/q4_0", "tq3_0", "q4_0/q5_0+512")
    for rows in (128, 256, 512)
]


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("make", "kv", "rows"),
    [*NARROW, *(pytest.param(*one, marks=pytest.mark.full) for one in FULL)],
)
def test_turns_take_no_more_than_was_there(
    make: Made, kv: str, rows: int, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees of a size, a larger and a smaller one, modes, draws, windows and lengths of prompts, read in chunks or in
    passes, and the copies of positions between them."""
    monkeypatch.setattr(cuda_session, "MIN_ROWS", 100)
    held = Allocations(zeroed=True)

    def lower_right(rows: int, end: int, device: torch.device) -> torch.Tensor:
        held.counting = False  # on a card it takes no memory
        mask = torch.full((rows, end), -torch.inf, dtype=torch.float16).triu_(1 + end - rows)
        held.counting = True
        return mask

    monkeypatch.setattr(chunk_attention, "_lower_right", lower_right)
    make({"context": 8}, tmp_path)  # loads the weights beforehand
    more = 2 * CachePair.parse(kv).recent - 200 if "+" in kv else 0
    context = CONTEXT + more
    with held:
        session = make({"context": context, "kv": CachePair.parse(kv), "rows": rows}, tmp_path)
        assert session.chunk_pass is not None
        drafter = session.capabilities
        policy = QueuedPolicy(Arm(drafter, PairState(), GivenCosts(H200))) if session.drafter else None
        runner = Runner(session, frozenset(), context, session.target.output.rows, policy=policy)
        begun = held.live
        held.most = 0
        for changes, tokens in turns(more, whole=(make, kv, rows) in FULL):
            if drafter is None and changes["mode"] != "plain":
                continue
            knobs = Knobs(max_tokens=3, ignore_eos=True).replace(**changes)
            for _ in runner.generate(rng.integers(0, 250, tokens).tolist(), knobs):
                pass
            gc.collect()
            assert held.live == begun, changes
            assert held.most - begun <= HOST_BYTES, changes
        reserved, before = sum(map(len, session.memory._reserved)), held.live
        held.most = 0
        copies = sum(tensor.nbytes for tensor in session.rows(0, session.length))
        assert held.most <= before + copies < before + copies + reserved


def turns(more: int, whole: bool) -> Iterator[tuple[dict[str, Any], int]]:
    """What is set for a turn, and the tokens of its prompt; `more` in the longest. `whole`: lengths in all modes."""
    for budget, mode in ((22, "tree"), (255 if whole else 130, "tree"), (64, "chain"), (22, "chain")):
        yield {"mode": mode, "budget": budget, "temperature": 0.9 * (budget > 22)}, 8
    lengths = ((0, PROMPT + more), (WINDOW, PROMPT + more), (3 * WINDOW, 130), (0, 30))
    draws = (("plain", 40), ("auto", 0))
    for at, (window, length) in enumerate(lengths):
        for mode, top_k in draws if whole else draws[at % 2 :][:1]:
            yield {"mode": mode, "temperature": 0.9, "top_k": top_k, "attention_window": window}, length
