"""The figures of a turn: sums over its steps, running or complete, and the report of a finished turn. No torch."""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from operator import attrgetter
from typing import Annotated, Any, Literal

from msgspec import Meta

from dflash_core.events import (
    MAX_TREE_NODES,
    STAGES,
    Chance,
    EffectiveMode,
    GuardEvent,
    Piece,
    PrefillEvent,
    StageTimes,
    StepEvent,
    Stop,
    Whole,
)
from dflash_core.knobs import RANDOM_SEED, Knobs
from dflash_core.text.reasoning import Effort

_times = attrgetter(*STAGES)
MAX_DEPTH = 256  # positions of the longest block that a drafter file may have
Counts = Annotated[tuple[Whole, ...], Meta(max_length=MAX_TREE_NODES + 1)]
ByDepth = Annotated[tuple[Whole, ...], Meta(max_length=MAX_DEPTH)]
Rates = Annotated[tuple[Annotated[float, Meta(ge=0, le=1)], ...], Meta(max_length=MAX_DEPTH)]
Length = Annotated[float, Meta(ge=0, le=MAX_TREE_NODES)]
Speed = Annotated[float, Meta(ge=0, le=1e20)]


@dataclass(frozen=True, slots=True)
class PartStats:
    """Figures of a turn's reasoning, or of its answer, as in `TurnStats`. `seconds`: the time of the steps; a first
    token counts none."""

    steps: Whole = 0
    tokens: Whole = 0
    acceptance_length: Length = 0.0
    seconds: float = 0.0
    tokens_per_second: Speed = 0.0
    verified: Whole = 0
    accepted: Whole = 0
    copied: Whole = 0
    copied_accepted: Whole = 0
    accept_rate_by_depth: Rates = ()
    drafted_by_depth: ByDepth = ()


@dataclass(frozen=True, slots=True)
class DrafterStats:
    """A drafter's part of a turn: the steps it drafted for and their tokens, nodes verified and accepted of them, and
    milliseconds of these steps."""

    kind: str
    steps: int = 0
    tokens: int = 0
    verified: int = 0
    accepted: int = 0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnStats:
    """Figures of one turn. `accept_rate_by_depth[d-1]`: of the steps that drafted depth d, the share that reached it.

    `decode_s` is the wall time from the first token to the last step, so `tokens_per_second` excludes prefill and its
    token; `stage_ms` is the mean of the same time by stage.
    `drafted` counts the positions that the drafter proposed tokens for, `verified` the tree nodes that the target ran
    below the root, `accepted` those of them that it agreed with; `lengths[n]` the steps that committed n tokens.
    `copied` and `copied_accepted`: the nodes of each that came from the text; the others are the drafter's.
    `nodes[n]`: the steps that verified n nodes. `kv`: the types of keys and values. `read_again`, `read_why`: those of
    the PrefillEvent.
    """

    steps: Whole
    tokens: Whole
    acceptance_length: Length
    accept_rate_by_depth: Rates
    drafted_by_depth: ByDepth
    tokens_per_second: Speed
    ttft_ms: float
    decode_s: float
    prompt_tokens: Whole
    reused_tokens: Whole
    stage_ms: StageTimes
    drafted: Whole = 0
    verified: Whole = 0
    accepted: Whole = 0
    lengths: Counts = ()
    thinking: PartStats = PartStats()
    answer: PartStats = PartStats()
    copied: Whole = 0
    copied_accepted: Whole = 0
    nodes: Counts = ()
    kv: str = ""
    drafters: tuple[DrafterStats, ...] = ()
    read_again: Whole = 0
    read_why: str = ""

    @property
    def accepted_per_verified(self) -> float:
        """Accepted nodes over verified ones: the useful share of the target's work on drafts."""
        return self.accepted / self.verified if self.verified else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens that were not reused, divided by the time to the first token."""
        return (self.prompt_tokens - self.reused_tokens) / self.ttft_ms * 1e3 if self.ttft_ms > 0 else 0.0

    def timings(self) -> dict[str, float]:
        """The figures under the names that local model servers use: `draft_n` counts the draft tokens that were
        verified, alternatives included, `draft_n_accepted` those of them that the target agreed with. `predicted_n` has
        the first token, `predicted_per_second` and `predicted_ms` only have the steps after it."""
        return {
            "prompt_n": self.prompt_tokens - self.reused_tokens, "prompt_ms": self.ttft_ms,
            "prompt_per_second": self.prefill_tokens_per_second, "predicted_n": self.tokens,
            "predicted_ms": self.decode_s * 1e3, "predicted_per_second": self.tokens_per_second,
            "draft_n": self.verified, "draft_n_accepted": self.accepted,
        }  # fmt: skip


class StepTotals:
    """Sums over the steps of a turn, running or complete: what a live meter and a finished turn both show.

    `lengths`, `nodes`: steps by tokens committed, and by nodes verified.
    """

    def __init__(self) -> None:
        self.steps = self.tokens = self.positions = self.verified = self.accepted = 0
        self.copied = self.copied_accepted = 0
        self.lengths, self.nodes = list[int](), list[int]()
        self._drafted, self._reached = list[int](), list[int]()  # steps by the depth drafted, and by the depth reached
        self._stages = [0.0] * len(STAGES)
        self._drafters: dict[str, list[Any]] = {}  # figures of DrafterStats

    def add(self, step: StepEvent) -> None:
        # At thousands of steps a second this is much of what a step costs: nothing here is done depth by depth.
        tokens, nodes, copied = len(step.tokens), len(step.tree.tokens) - 1, step.tree.copied
        drafted, accepted = step.drafted_depth, step.accepted_depth
        if step.drafter:
            ms = step.stages.total - step.stages.host
            before = self._drafters.get(step.drafter, (0, 0, 0, 0, 0.0))
            self._drafters[step.drafter] = [*map(operator.add, before, (1, tokens, nodes, accepted, ms))]
        self.steps += 1
        self.tokens += tokens
        self.positions += max(len(step.drafts.tokens), drafted)
        self.verified += nodes
        self.accepted += accepted
        self.copied += len(copied)
        self.copied_accepted += len(set(copied) & set(step.tree.accepted)) if copied else 0
        _count(self.nodes, nodes)
        _count(self.lengths, tokens)
        _count(self._drafted, drafted)
        _count(self._reached, min(accepted, drafted))
        self._stages = [*map(operator.add, self._stages, _times(step.stages))]

    def include(self, other: StepTotals) -> None:
        """Add the steps of another sum."""
        for name in ("steps", "tokens", "positions", "verified", "accepted", "copied", "copied_accepted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("lengths", "nodes", "_drafted", "_reached", "_stages"):
            setattr(self, name, [*map(sum, zip_longest(getattr(self, name), getattr(other, name), fillvalue=0))])
        for kind, row in other._drafters.items():
            self._drafters[kind] = [*map(operator.add, self._drafters.get(kind, [0] * len(row)), row)]

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per step; 0 before the first."""
        return self.tokens / max(self.steps, 1)

    def common(self, tokens: int, seconds: float) -> dict[str, Any]:
        """The figures that a turn and its parts both have; `tokens`: with first tokens."""
        # By depth, the steps that drafted it, and those of them whose walk reached it.
        depths = range(1, len(self._drafted))
        drafted, reached = ([sum(steps[depth:]) for depth in depths] for steps in (self._drafted, self._reached))
        return {
            "steps": self.steps, "tokens": tokens, "acceptance_length": self.acceptance_length,
            "tokens_per_second": self.tokens / seconds if seconds > 0 else 0.0, "verified": self.verified,
            "accepted": self.accepted, "copied": self.copied, "copied_accepted": self.copied_accepted,
            "accept_rate_by_depth": tuple(part / whole for part, whole in zip(reached, drafted)),
            "drafted_by_depth": tuple(drafted),
        }  # fmt: skip

    def stats(
        self, prefill: PrefillEvent, decode_s: float, thinking: PartStats = PartStats(), answer: PartStats = PartStats()
    ) -> TurnStats:
        """The figures of the turn so far, and those of its parts."""
        mean = (total / max(self.steps, 1) for total in self._stages)
        return TurnStats(
            **self.common(self.tokens + len(prefill.tokens), decode_s), ttft_ms=prefill.elapsed_ms, decode_s=decode_s,
            prompt_tokens=prefill.prompt_tokens, reused_tokens=prefill.reused_tokens, stage_ms=StageTimes(*mean),
            drafted=self.positions, lengths=tuple(self.lengths), nodes=tuple(self.nodes), kv=prefill.kv,
            thinking=thinking, answer=answer,
            drafters=tuple(DrafterStats(kind, *row) for kind, row in self._drafters.items()),
            read_again=prefill.read_again, read_why=prefill.read_why,
        )  # fmt: skip


def _count(counts: list[int], place: int) -> None:
    counts += [0] * (place + 1 - len(counts))
    counts[place] += 1


class TurnTotals:
    """Sums over a turn's pieces: of all its steps, and of reasoning and answer apart. The step that ends the reasoning
    counts to the answer."""

    def __init__(self) -> None:
        self._totals = {"thinking": StepTotals(), "answer": StepTotals()}
        self._tokens = Counter[str]()  # first tokens of a turn too
        self._seconds = defaultdict[str, float](float)  # of steps
        self._part = ""
        self._waiting: list[Piece] = []  # tags and partial characters, until it is known which part they begin
        self._at: float | None = None
        self._steps: StepTotals | None = None  # both parts added up, until the next piece: a frame asks several times

    def add(self, piece: Piece) -> None:
        self._steps = None
        self._waiting.append(piece)
        self._part = "answer" if piece.text else "thinking" if piece.thinking else self._part
        if not self._part:
            return
        for one in self._waiting:
            self._tokens[self._part] += len(one.event.tokens)
            if isinstance(one.event, StepEvent):
                self._totals[self._part].add(one.event)
                self._seconds[self._part] += one.at - self._at if self._at is not None else 0.0
            self._at = one.at
        self._waiting.clear()

    @property
    def steps(self) -> StepTotals:
        """The sums over all steps so far; not to be changed."""
        if self._steps is None:
            self._steps = StepTotals()
            for part in self._totals.values():
                self._steps.include(part)
            for piece in self._waiting:
                if isinstance(piece.event, StepEvent):
                    self._steps.add(piece.event)
        return self._steps

    def part(self, part: Literal["thinking", "answer"]) -> PartStats:
        """The counts of one part so far."""
        seconds = self._seconds[part]
        return PartStats(**self._totals[part].common(self._tokens[part], seconds), seconds=seconds)

    def stats(self, prefill: PrefillEvent, decode_s: float) -> TurnStats:
        """The figures of the turn so far."""
        return self.steps.stats(prefill, decode_s, self.part("thinking"), self.part("answer"))


def turn_stats(prefill: PrefillEvent, steps: Iterable[StepEvent], decode_s: float) -> TurnStats:
    """Sum up a turn without its text."""
    totals = StepTotals()
    for step in steps:
        totals.add(step)
    return totals.stats(prefill, decode_s)


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A kind of candidate: how often it was tried, and three mean chances: the one that the drafter stated, the one
    learned before each trial, and the one measured."""

    kind: str
    trials: Annotated[int, Meta(ge=1, le=2**53)]
    stated: Chance
    learned: Chance
    found: Chance


@dataclass(frozen=True, slots=True)
class TurnReport:
    """A finished turn: its text, its ids, what really ran and why, the requested knobs, the figures, its guards.

    `learned`: what the policy had learned of the pair when the turn ended, this turn and all before it. `effort`: the
    reasoning level passed to the template. `notes`: what is wrong with a drafter, a line each. `seed_source`: whether
    the seed of the knobs was drawn for this turn or is the user's choice, "" where that is not known. `source`: where
    the figures of another engine come from, "" for those of this program; `tokens` is then empty, and a figure that
    the engine does not tell is 0.
    """

    text: str
    thinking: str
    tokens: tuple[Whole, ...]
    mode: EffectiveMode
    reason: str
    stop: Stop
    knobs: Knobs
    stats: TurnStats
    guards: tuple[GuardEvent, ...] = ()
    learned: Annotated[tuple[FoundRow, ...], Meta(max_length=16)] = ()
    effort: Effort = ""
    notes: tuple[str, ...] = ()
    seed_source: Literal["", "random", "fixed"] = ""
    source: str = ""

    @property
    def asked(self) -> Knobs:
        """The knobs to ask again with: those of the turn, and a random seed unless its seed was chosen."""
        return self.knobs if self.seed_source == "fixed" else dataclasses.replace(self.knobs, seed=RANDOM_SEED)

    @property
    def draws(self) -> str:
        """The seed in words, as shown to users; "" where nothing was drawn by it."""
        if not self.seed_source or not self.knobs.temperature:
            return ""
        return f"seed {self.knobs.seed}" + ("" if self.seed_source == "random" else ", fixed")

    def to_json(self) -> dict[str, Any]:
        """The object that `ask --json` prints."""
        stats = dataclasses.asdict(self.stats)
        return {
            "text": self.text, "thinking": self.thinking, "tokens": list(self.tokens), "mode": self.mode,
            "reason": self.reason, "stop": self.stop, "seed": self.knobs.seed, "seed_source": self.seed_source,
            "knobs": self.knobs.to_dict(), "effort": self.effort,
            "stats": stats | {"accepted_per_verified": self.stats.accepted_per_verified},
            "timings": self.stats.timings(), "notes": list(self.notes),
            "guards": [dataclasses.asdict(one) for one in self.guards],
        }  # fmt: skip
