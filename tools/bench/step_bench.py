"""The time of every kind of step of one loaded pair on a card, interleaved in one run, and related figures.

Times depend on shapes and types, not on values, so a synthetic pair can replace a real one. Its drafts are never
accepted, so acceptance can be forced (`Trace`): the nodes of the walk are given, and everything after that runs.
Times of parts are the device's own stamps; `wall` is the host's clock from the first to the last token in the ring.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from dflash_core.backends.base import AnswerOptions
from dflash_core.backends.cuda.layers.attention import AttentionMemory
from dflash_core.backends.cuda.runtime import seconds_of
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.step import CudaDecoder
from dflash_core.backends.cuda.target import CudaTarget
from dflash_core.bench.plain_loop import plain_loop_ms
from dflash_core.bench.statistics import Summary, summary
from dflash_core.engine import Engine
from dflash_core.errors import Code, UnsupportedError
from dflash_core.events import STAGES, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.lab.schedule import interleave
from dflash_core.log_probs import LogProbs
from dflash_core.policy.base import Policy

DEPTH = 200  # committed positions that most steps run after
DEEP = 32_768
ROOM = 512  # positions past the deepest case, for its steps
CONTEXT = DEEP + ROOM
PREFILL = 2048
WARM_STEPS = 4
STEPS = 40
ROUNDS = 5
READ_BYTES = 4 << 30
ROWS = (16, 24, 40, 64)
MAX_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class StepCase:
    """One kind of step. `trace`: the nodes that every walk takes, step by step; `depth`: positions after it. `policy`:
    what picks the steps, without one the knobs do. `top`: log-probabilities are recorded, with those of so many of the
    likeliest tokens."""

    name: str
    knobs: Knobs
    depth: int = DEPTH
    trace: tuple[tuple[int, ...], ...] | None = None
    policy: Callable[[CudaSession], Policy] | None = None
    top: int | None = None


@dataclass(frozen=True, slots=True)
class Timed:
    """What a case took, in milliseconds per step; `idle` is the share of the wall time between steps."""

    name: str
    mode: str
    nodes: int
    depth: int
    forced: bool
    acceptance_length: float
    wall: Summary
    stages: dict[str, float]
    idle: float


@dataclass(slots=True)
class _Rounds:
    walls: list[float] = field(default_factory=list)
    events: list[StepEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepReport:
    """All of a run. Times in ms, rates in tokens or bytes per second."""

    cases: tuple[Timed, ...]
    plain_loop_ms: Summary
    prefill_tokens: int
    prefill_ms: Summary
    read_bandwidth: float
    step_bytes: int
    memory: tuple[tuple[str, int, int | None], ...]

    def case(self, name: str) -> Timed:
        """By name. Raises KeyError."""
        return {case.name: case for case in self.cases}[name]

    def verify_ratio(self, rows: int) -> float:
        """The time of a verify pass of `rows` rows, in plain steps."""
        return self.case(f"tree {rows - 1}").stages["verify"] / self.case("plain").wall.median

    @property
    def bandwidth_share(self) -> float:
        """The share of the measured read bandwidth that a plain step reaches with the bytes that it must move."""
        return self.step_bytes / (self.case("plain").wall.median / 1e3) / self.read_bandwidth

    def to_json(self) -> dict[str, Any]:
        """Everything, and the ratios that are read off it."""
        ratios = {str(rows): self.verify_ratio(rows) for rows in ROWS}
        return {**asdict(self), "verify_in_plain_steps": ratios, "bandwidth_share": self.bandwidth_share}


DEPTHS = (1, 2, 3, 4, 6, 8)
"""Lengths of chains that are timed where the drafter drafts one token after the other."""


def default_cases(
    block: int, acceptance: Sequence[int] = (), depths: Sequence[int] = (), contexts: Sequence[int] = (DEEP,)
) -> list[StepCase]:
    """The steps that are always timed, and where lengths are given, the same with that acceptance forced. `depths`: of
    chains of a drafter whose every token costs a pass of it; others draft their `block` at once. `contexts`: positions
    that plain steps, and where there are several of them trees too, are timed after."""
    base = Knobs(temperature=0.0, ignore_eos=True, max_tokens=MAX_TOKENS)
    # With the chain put in first: a forced walk follows it.
    seeded = base.replace(drafting="tree", chain_seed=True)
    tree = [StepCase(f"tree {rows - 1}", seeded.replace(budget=rows - 1)) for rows in ROWS]
    chains = [StepCase(f"chain {n}", base.replace(drafting=f"chain {n}", mtp_depth=n)) for n in depths]
    chains = chains or [StepCase(f"chain {block - 1}", base.replace(drafting=f"chain {block - 1}"))]
    cases = [
        StepCase("plain", base.replace(drafting="plain")),
        *chains,
        *tree,
        # No chain is put in first, and every candidate of a synthetic drafter is about as likely: as wide as trees get.
        StepCase("bushy tree 23", base.replace(drafting="tree 23", chain_seed=False)),
        StepCase("sampled tree 23", base.replace(drafting="tree 23", temperature=0.8, top_k=40)),
        *(StepCase(f"plain at {depth:,}", base.replace(drafting="plain"), depth) for depth in contexts),
        *(StepCase(f"tree 23 at {depth:,}", tree[1].knobs, depth) for depth in contexts if len(contexts) > 1),
    ]
    if acceptance:
        trace = tuple(spine(length) for length in acceptance)
        cases.append(StepCase("forced chain", chains[-1].knobs, trace=trace))
        cases.append(StepCase("forced tree 23", tree[1].knobs, trace=trace))
    return cases


def spine(length: int) -> tuple[int, ...]:
    """The walk that commits `length` tokens: the first length - 1 nodes of the seeded chain."""
    return tuple(range(1, length))


def acceptance_pattern(mean: float) -> tuple[int, ...]:
    """Lengths whose mean is `mean` to within 1 / 64: the two whole numbers around it, evenly mixed."""
    low, done = int(mean), 0.0
    lengths = []
    for step in range(1, 65):
        due = round(mean * step) - done
        lengths.append(max(1, int(min(due, low + 1))))
        done += lengths[-1]
    return tuple(lengths)


class StepBench:
    """Runs cases on one engine. Raises UnsupportedError for one that is on no card, or whose context is too short."""

    def __init__(self, engine: Engine) -> None:
        if not isinstance(engine.target, CudaTarget) or not isinstance(engine.session, CudaSession):
            raise UnsupportedError(
                "step times are taken on a GPU, this pair is on the CPU; load it on a card", code=Code.NEEDS_A_CARD
            )
        if engine.context_length < CONTEXT:
            raise UnsupportedError(
                f"step times are taken at context lengths up to {DEEP:,}, this pair has a context of "
                f"{engine.context_length:,}, expected {CONTEXT:,}; take another target, or a synthetic one"
            )
        self.engine, self.session = engine, engine.session
        self.target, self.device = engine.target, engine.target.device
        self._vocab = engine.target.config.vocab_size

    def run(
        self, cases: Sequence[StepCase], rounds: int = ROUNDS, steps: int = STEPS
    ) -> Iterator[tuple[int, int, str]]:
        """Yields (done, total, what comes next); `report` is there afterwards."""
        found: dict[int, _Rounds] = {}
        order = list(interleave(len(cases), 1, rounds))
        for done, slot in enumerate(order):
            case = cases[slot.setting]
            yield done, len(order), case.name
            rounds_of = found.setdefault(slot.setting, _Rounds())
            wall, events = self.time(case, steps)
            rounds_of.walls.append(wall)
            rounds_of.events += events
        yield len(order), len(order), "prefill and bandwidth"
        timed = tuple(_timed(case, found[index]) for index, case in enumerate(cases))
        plain = summary([self._plain_loop() for _ in range(rounds)])
        prefill = summary([self.prompt_ms() for _ in range(rounds + 1)][1:])
        # Before the bandwidth is measured: the measurement leaves memory in the allocator.
        memory = tuple((one.name, one.bytes, one.measured) for one in self.engine.memory().components)
        self.report = StepReport(timed, plain, PREFILL, prefill, self._read_bandwidth(), self._step_bytes(), memory)

    def _begin_at(self, depth: int) -> None:
        """A sequence of `depth` positions: read as a prompt; past DEPTH random rows, since only their number counts."""
        self.session.restore(None)
        read = min(depth, DEPTH)
        self.session.prefill([token % self._vocab for token in range(100, 100 + read)])
        if depth > read:
            with self.device.stream():
                for memory in self.session.memory.mixers:
                    if isinstance(memory, AttentionMemory):
                        memory.kv.fill(read, depth)
                self.session.update_drafter()
                self.session.state.host["length"] = self.session.state.host["draft_length"] = depth

    def time(self, case: StepCase, steps: int) -> tuple[float, list[StepEvent]]:
        """Milliseconds of a step by the host's clock, and the steps."""
        self._begin_at(case.depth)
        self.session.steps.force(case.trace)
        policy = case.policy(self.session) if case.policy else None
        record = None if case.top is None else LogProbs(case.top)
        session, context = self.session, self.engine.context_length
        options = AnswerOptions(case.knobs, frozenset(), context, policy, log_probs=record)
        decoder = CudaDecoder(session, session.steps, options)
        decoder.answer.append(100)
        try:
            for _ in range(WARM_STEPS):
                decoder.step()
            began = time.perf_counter()
            events = [decoder.step() for _ in range(steps)]
            wall = (time.perf_counter() - began) * 1e3 / steps
        finally:
            decoder.finish()
            self.session.steps.force(None)
        return wall, events

    def _plain_loop(self) -> float:
        self._begin_at(DEPTH)
        return plain_loop_ms(self.session, 100)

    def prompt_ms(self, tokens: int = PREFILL) -> float:
        """Milliseconds of reading a prompt of so many tokens."""
        self.session.restore(None)
        self.device.synchronize()
        began = time.perf_counter()
        self.session.prefill([token % self._vocab for token in range(tokens)])
        self.device.synchronize()
        return (time.perf_counter() - began) * 1e3

    def _read_bandwidth(self) -> float:
        """Bytes per second of reading memory once, by a sum over as much as is free of READ_BYTES."""
        free = self.device.runtime.memory()[0]
        values = torch.zeros(min(READ_BYTES, free // 2) // 4, device=self.device.torch_device)
        with self.device.stream():
            seconds = [seconds_of(self.device.runtime, values.sum) for _ in range(6)]
        return float(values.nbytes / statistics.median(seconds[1:]))

    def _step_bytes(self) -> int:
        """What a plain step has to move: every weight but the embedding and the experts that a row leaves out once,
        recurrent states there and back."""
        states, model = self.session.nbytes.get("states", 0), self.target.model
        # An embedding that is the head too is stored twice, once as rows to look up.
        rows = model.embedding.blocks
        embedded = rows.nbytes if isinstance(rows, torch.Tensor) else 0
        return int(self.target.weight_bytes - embedded - model.idle_bytes(1) + 2 * states)


def _timed(case: StepCase, rounds: _Rounds) -> Timed:
    events = rounds.events
    stages = {name: statistics.median(getattr(event.stages, name) for event in events) for name in STAGES}
    wall = summary(rounds.walls)
    return Timed(
        case.name,
        events[0].mode,
        round(statistics.mean(len(event.tree.tokens) for event in events)),
        case.depth,
        case.trace is not None,
        statistics.mean(len(event.tokens) for event in events),
        wall,
        stages,
        stages["host"] / wall.median,
    )
