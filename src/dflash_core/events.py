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


def turn_stats(prefill: PrefillEvent, steps: Sequence[StepEvent], decode_s: float) -> TurnStats:
    """Sum up a turn; `stage_ms` is the mean per step. `tokens` counts all of the answer, the first included."""
    drafted: list[int] = []
    reached: list[int] = []
    for step in steps:
        while len(drafted) < step.drafted_depth:
            drafted.append(0)
            reached.append(0)
        for depth in range(step.drafted_depth):
            drafted[depth] += 1
            reached[depth] += depth < step.accepted_depth
    committed = sum(len(step.tokens) for step in steps)
    count = max(len(steps), 1)
    names = [f.name for f in dataclasses.fields(StageTimes)]
    means = {name: sum(getattr(step.stages, name) for step in steps) / count for name in names}
    return TurnStats(
        steps=len(steps),
        tokens=committed + len(prefill.tokens),
        acceptance_length=committed / count,
        accept_rate_by_depth=tuple(r / d for r, d in zip(reached, drafted, strict=True)),
        drafted_by_depth=tuple(drafted),
        tokens_per_second=committed / decode_s if decode_s > 0 else 0.0,
        ttft_ms=prefill.elapsed_ms,
        decode_s=decode_s,
        prompt_tokens=prefill.prompt_tokens,
        reused_tokens=prefill.reused_tokens,
        stage_ms=StageTimes(**means),
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
