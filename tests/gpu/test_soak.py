"""Two hundred turns of every kind on one engine: its state stays consistent, and its memory does not grow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash_core import Knobs
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.step_graphs import StepKind
from support import demo_card, on_device
from support.compare import CARD_NEAR_TIE, first_difference, gap, generated
from support.soaking import BUDGETS, Soak

TURNS, WARM = 200, 20
CHECKED = 8  # every so many turns are compared with a sequence of its own
MIB = 1 << 20

pytestmark = pytest.mark.skipif(on_device.missing() is not None, reason=on_device.missing() or "")


def record_every_graph(session: CudaSession) -> None:
    """The driver keeps memory for graphs."""
    for budget in BUDGETS:
        for mode in ("plain", "chain", "tree"):
            for knobs in (Knobs(temperature=0.0), Knobs(temperature=1.0), Knobs(temperature=1.0, top_k=1)):
                most = {"plain": 0, "chain": session.device_block - 1, "tree": session.max_drafted}[mode]
                drafts = mode != "plain" and session.device_block > 0
                kind = StepKind.holding(min(budget, most), knobs, session.head.vocab, drafts=drafts)
                with session.device.stream():
                    session.steps.graph(kind)


def memory() -> tuple[int, int]:
    """Bytes that torch has given out, and bytes that the driver has free."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]


@pytest.mark.alone
def test_two_hundred_turns(rng: np.random.Generator) -> None:
    engine, alone = demo_card.fresh(half=True), demo_card.fresh(half=True)
    session = engine.session
    assert isinstance(session, CudaSession)
    record_every_graph(session)
    soak = Soak(engine, rng, demo_card.prompts(40), demo_card.CONTEXT)
    checked = 0
    before = (0, 0)
    for count in range(WARM + TURNS):
        if count == WARM:
            generated(alone, demo_card.prompts(40)[0] * 12, Knobs(drafting="plain", max_tokens=2))
            before = memory()
        done = soak.turn()
        if done.way != "whole" or count % CHECKED or soak.engine.session.length > 900:
            continue
        ids, knobs, tokens = done.ids, done.knobs, done.tokens
        plain = generated(alone, ids, knobs.replace(mode="plain"))
        agreed = first_difference(tokens, plain)
        assert agreed is not None or len(tokens) == len(plain)
        if agreed is not None:  # one sequence read as a prompt what the other had answered
            assert gap(demo_card.reference(), ids, plain[:agreed], knobs) < CARD_NEAR_TIE, knobs
        checked += 1
    after = memory()
    grown = after[0] - before[0], before[1] - after[1]
    print(f"{dict(soak.ends)}; {checked} compared; torch {grown[0]:+,} bytes, driver {grown[1]:+,} bytes")  # noqa: T201
    assert max(map(abs, grown)) <= MIB
    assert checked >= 5
