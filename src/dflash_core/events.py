"""What a decoder tells the world: one event per prefill and per step, one report per turn. Plain data, no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dflash_core.knobs import Knobs

Stop = Literal["stop token", "max tokens", "context full", "cancelled"]
EffectiveMode = Literal["ar", "chain", "tree"]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Milliseconds that one step spent in each of its five parts."""

    draft: float = 0.0
    tree: float = 0.0
    verify: float = 0.0
    accept: float = 0.0
    commit: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.tree + self.verify + self.accept + self.commit


@dataclass(frozen=True, slots=True)
class StepTree:
    """The candidate tree of one step. Node 0 is the root; parents come before children; all tuples have one length.

    `probs[i]` is the drafter's own probability of node i at its depth (1 for the root), `path_probs[i]` the product
    along its path. `accepted` lists the nodes of the accepted path, the root first.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    probs: tuple[float, ...]
    path_probs: tuple[float, ...]
    accepted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefillEvent:
    """The prompt has been read and the first token of the answer drawn: `tokens` holds just that one.

    Where the prompt was cancelled half-way `tokens` is empty and `stop` says so.
    """

    tokens: tuple[int, ...]
    prompt_tokens: int
    reused_tokens: int
    elapsed_ms: float
    mode: EffectiveMode
    reason: str
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One speculative step. `tokens`: the accepted drafts and the token drawn after them, cut at a stop.

    `drafted_depth` is the deepest drafted position, `accepted_depth` how deep the walk went. Where the answer ends
    inside the accepted path, the walk (and `tree.accepted`) goes on past what was committed.
    """

    tokens: tuple[int, ...]
    tree: StepTree
    drafted_depth: int
    accepted_depth: int
    length: int
    stages: StageTimes
    mode: EffectiveMode
    reason: str
    stop: Stop | None = None


Event = PrefillEvent | StepEvent


@dataclass(frozen=True, slots=True)
class Piece:
    """An event with the text that it made readable; either string may be empty while bytes are held back."""

    event: Event
    text: str = ""
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class TurnStats:
    """Figures of one turn. `accept_rate_by_depth[d-1]`: of the steps that drafted depth d, the part that reached it.

    `decode_s` is the wall time of the steps alone, so `tokens_per_second` leaves prefill and its token out.
    """

    steps: int
    tokens: int
    acceptance_length: float
    accept_rate_by_depth: tuple[float, ...]
    drafted_by_depth: tuple[int, ...]
    tokens_per_second: float
    ttft_ms: float
    decode_s: float
    prompt_tokens: int
    reused_tokens: int
    stage_ms: StageTimes


class StepTotals:
    """Sums over the steps of a turn, so far or in all: what a live meter and a finished turn both show."""

    def __init__(self) -> None:
        self.steps = 0
        self.tokens = 0
        self.drafted: list[int] = []  # by depth: steps that drafted it
        self.reached: list[int] = []  # by depth: steps whose walk reached it
        self._stages = dict.fromkeys((field.name for field in dataclasses.fields(StageTimes)), 0.0)

    def add(self, step: StepEvent) -> None:
        """Count one step."""
        self.steps += 1
        self.tokens += len(step.tokens)
        missing = step.drafted_depth - len(self.drafted)
        self.drafted += [0] * missing
        self.reached += [0] * missing
        for depth in range(step.drafted_depth):
            self.drafted[depth] += 1
            self.reached[depth] += depth < step.accepted_depth
        for name in self._stages:
            self._stages[name] += getattr(step.stages, name)

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per step; 0 before the first."""
        return self.tokens / max(self.steps, 1)

    @property
    def accept_rates(self) -> tuple[float, ...]:
        """By depth, of the steps that drafted it, the part whose walk reached it."""
        return tuple(reached / drafted for reached, drafted in zip(self.reached, self.drafted, strict=True))

    @property
    def stage_ms(self) -> StageTimes:
        """Mean milliseconds per step."""
        return StageTimes(**{name: total / max(self.steps, 1) for name, total in self._stages.items()})


def turn_stats(prefill: PrefillEvent, steps: Sequence[StepEvent], decode_s: float) -> TurnStats:
    """Sum up a turn; `stage_ms` is the mean per step. `tokens` counts all of the answer, the first included."""
    totals = StepTotals()
    for step in steps:
        totals.add(step)
    return TurnStats(
        steps=totals.steps,
        tokens=totals.tokens + len(prefill.tokens),
        acceptance_length=totals.acceptance_length,
        accept_rate_by_depth=totals.accept_rates,
        drafted_by_depth=tuple(totals.drafted),
        tokens_per_second=totals.tokens / decode_s if decode_s > 0 else 0.0,
        ttft_ms=prefill.elapsed_ms,
        decode_s=decode_s,
        prompt_tokens=prefill.prompt_tokens,
        reused_tokens=prefill.reused_tokens,
        stage_ms=totals.stage_ms,
    )


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What a turn was: its text, its ids, what really ran and why, the knobs asked for, the figures."""

    text: str
    thinking: str
    tokens: tuple[int, ...]
    mode: EffectiveMode
    reason: str
    stop: Stop
    knobs: Knobs
    stats: TurnStats

    def to_json(self) -> dict[str, Any]:
        """The object that `ask --json` prints."""
        stats = dataclasses.asdict(self.stats)
        return {
            "text": self.text,
            "thinking": self.thinking,
            "tokens": list(self.tokens),
            "mode": self.mode,
            "reason": self.reason,
            "stop": self.stop,
            "knobs": self.knobs.to_dict(),
            "stats": stats,
        }
