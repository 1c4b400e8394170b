"""Two hundred turns of every sort on one engine: its state stays what it says, and its memory stays what it was."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing

import numpy as np
import pytest
import torch

from dflash_core import Engine, Knobs
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import MAX_NODES
from dflash_core.backends.cuda.step import StepKind
from dflash_core.knobs import Value
from support import demo_card, on_device
from support.compare import CARD_NEAR_TIE, first_difference, gap, generated

TURNS, WARM = 200, 20
CHECKED = 8  # every so many turns are compared with a sequence of its own
BUDGETS = (*range(1, 64), 64, 65, 100, 200, 256)
MIB = 1 << 20

pytestmark = pytest.mark.skipif(on_device.missing() is not None, reason=on_device.missing() or "")


def random_knobs(rng: np.random.Generator) -> Knobs:
    """Any legal setting, greedy one time in three."""
    values: dict[str, Value] = {
        "mode": str(rng.choice(["ar", "tree", "tree", "chain", "auto"])),
        "budget": int(rng.choice(BUDGETS)),
        "p_min": float(rng.choice([0.0, 0.0, 0.02, 0.3])),
        "tree_temperature": float(rng.choice([1.0, 0.5, 2.0])),
        "tree_width": int(rng.integers(1, 9)),
        "chain_seed": bool(rng.integers(2)),
        "draft_window": int(rng.choice([0, 0, 16, 64])),
        "max_tokens": int(rng.integers(1, 80)),
        "ignore_eos": bool(rng.integers(2)),
        "temperature": 0.0,
        "seed": int(rng.integers(1 << 30)),
    }
    if rng.integers(3):
        values |= {
            "temperature": float(rng.choice([0.6, 1.0, 1.5])),
            "top_k": int(rng.choice([0, 1, 20, 200])),
            "top_p": float(rng.choice([1.0, 0.9, 0.5])),
            "min_p": float(rng.choice([0.0, 0.05])),
        }
    if not rng.integers(4):
        values |= {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2}
    return Knobs().replace(**values)


class Soak:
    """Turns on one engine; `ends` counts how they ended."""

    def __init__(self, engine: Engine, rng: np.random.Generator) -> None:
        self.engine, self.rng = engine, rng
        self.ends = Counter[str]()
        self.said: tuple[int, ...] = ()

    def turn(self) -> tuple[tuple[int, ...], Knobs, list[int]] | None:
        """One turn; its prompt, knobs and tokens where nothing but the knobs has made them what they are."""
        engine, rng = self.engine, self.rng
        ids = self._prompt()
        knobs = random_knobs(rng)
        way = str(rng.choice(["whole", "whole", "whole", "change", "cancel", "thread", "close"]))
        at, other = int(rng.integers(0, 12)), random_knobs(rng)
        keep = [int(rng.integers(1, len(ids) + 1)) for _ in range(int(rng.integers(0, 3)))]
        timer = threading.Timer(float(rng.uniform(0, 0.02)), engine.cancel)
        if way == "thread":
            timer.start()
        tokens: list[int] = []
        stop = None
        with closing(engine.generate(ids, knobs, keep=keep)) as events:  # type: ignore[type-var]
            for count, event in enumerate(events):
                assert stop is None, "an event behind the last one"
                tokens, stop = [*tokens, *event.tokens], event.stop
                if count == at and way == "change":
                    engine.change(other)
                elif count == at and way == "cancel":
                    engine.cancel()
                elif count == at and way == "close":
                    break
        if way == "thread":
            timer.join()
        self.ends[f"{way}: {stop}"] += 1
        held = tuple(engine._committed)
        assert engine.backend.length == len(held)
        if tokens:
            reached = (*ids, *tokens[:-1])
            assert held[: len(reached)] == reached
            assert way == "close" or len(held) == len(reached)
        self.said = held
        return (ids, knobs, tokens) if way == "whole" else None

    def _prompt(self) -> tuple[int, ...]:
        """A new one, one that goes on, or one that parts from the last somewhere in its middle."""
        rng = self.rng
        questions = demo_card.prompts(40)
        more = questions[int(rng.integers(len(questions)))]
        kind = int(rng.integers(4))
        room = demo_card.CONTEXT - 100 - len(more)
        if kind == 0 or not self.said or len(self.said) > room:
            return more if rng.integers(6) else more * 12  # long enough for the passes of long prompts
        if kind == 1:
            return (*self.said[: int(rng.integers(1, len(self.said) + 1))], *more)
        return (*self.said, *more)


def record_every_graph(session: CudaSession) -> None:
    """All that turns may need is there before memory is looked at."""
    session.ensure_capacity(MAX_NODES)
    for budget in BUDGETS:
        for mode in ("ar", "chain", "tree"):
            for temperature in (0.0, 1.0):
                kind = StepKind.of(Knobs(budget=budget, temperature=temperature), mode, session.draft_block)
                with session.device.stream():
                    session.steps.graph(kind)


def memory() -> tuple[int, int]:
    """Bytes that torch has given out, and bytes that the driver has free."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]


def test_two_hundred_turns(rng: np.random.Generator) -> None:
    engine, alone = demo_card.fresh(half=True), demo_card.fresh(half=True)
    session = engine.session
    assert isinstance(session, CudaSession)
    record_every_graph(session)
    soak = Soak(engine, rng)
    checked = 0
    before = (0, 0)
    for count in range(WARM + TURNS):
        if count == WARM:
            generated(alone, demo_card.prompts(40)[0] * 12, Knobs(mode="ar", max_tokens=2))
            before = memory()
        done = soak.turn()
        if done is None or count % CHECKED or soak.engine.backend.length > 900:
            continue
        ids, knobs, tokens = done
        plain = generated(alone, ids, knobs.replace(mode="ar"))
        agreed = first_difference(tokens, plain)
        assert agreed is not None or len(tokens) == len(plain)
        if agreed is not None:
            assert gap(demo_card.reference(), ids, plain[:agreed], knobs) < CARD_NEAR_TIE, knobs
        checked += 1
    after = memory()
    grown = after[0] - before[0], before[1] - after[1]
    print(f"{dict(soak.ends)}; {checked} compared; torch {grown[0]:+,} bytes, driver {grown[1]:+,} bytes")  # noqa: T201
    assert max(map(abs, grown)) <= MIB
    assert checked >= 5
