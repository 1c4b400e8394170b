"""What a decoder reports: one event per prefill and per step. Plain data, no torch.

Annotated types bound what may stand in a file: msgspec refuses a value outside when it reads a record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from dflash_core.drafting import MAX_NODES
from dflash_core.knobs import Knobs

MAX_TREE_NODES = 1 + MAX_NODES
Whole = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A token, or a count of tokens or positions."""
Chance = Annotated[float, Meta(ge=0, le=1.001)]  # float32 rounds some a little above 1
LogProb = Annotated[float, Meta(le=1e-3)]
Ms = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""Of a stage: a difference of time stamps may be slightly negative."""

Stop = Literal["stop token", "max tokens", "context full", "cancelled", "loop"]
EffectiveMode = Literal["plain", "chain", "tree", "remote"]
"""What ran; "remote": another engine, which does not say."""
DRAFTED = frozenset({"chain", "tree"})


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Milliseconds that one step spent in each of its five parts. `host`: the wall time since the step before it that
    no part accounts for: Python, detokenising, the app."""

    draft: Ms = 0.0
    tree: Ms = 0.0
    verify: Ms = 0.0
    accept: Ms = 0.0
    commit: Ms = 0.0
    host: Ms = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.tree + self.verify + self.accept + self.commit + self.host


STAGES = tuple(field.name for field in dataclasses.fields(StageTimes))


@dataclass(frozen=True, slots=True)
class StepTree:
    """The candidate tree of one step. Node 0 is the root; parents come before children; all tuples have one length.

    `probs[i]` is the drafter's own probability of node i at its depth (1 for the root), `path_probs[i]` the product
    along its path. `accepted` lists the nodes of the accepted path, the root first. `values[i]`: the learned chance
    that the walk reaches node i, where the policy uses it. `copied`: the nodes that came from the text.
    """

    tokens: tuple[Whole, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    probs: tuple[Chance, ...]
    path_probs: tuple[Chance, ...]
    accepted: tuple[int, ...]
    values: tuple[Chance, ...] = ()
    copied: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepDrafts:
    """The drafter's candidates after the root: per depth, from 1 on, best first.

    `tokens[d - 1][r]` has the log-probability `log_probs[d - 1][r]` (nats, normalised over the whole vocabulary at the
    tree temperature). Budget and `p_min` decide which of them the tree holds.
    """

    tokens: tuple[tuple[Whole, ...], ...] = ()
    log_probs: tuple[tuple[LogProb, ...], ...] = ()


SHOWN_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class Choice:
    """What `auto` knew of a step. `brings[i]`: the tokens expected from a tree of SHOWN_ROWS[i] rows, as far as it was
    built; `rows`: how many `auto` chose, in records of earlier versions also beside a tree of a fixed size."""

    brings: Annotated[tuple[Annotated[float, Meta(ge=0, le=MAX_TREE_NODES)], ...], Meta(max_length=len(SHOWN_ROWS))]
    rows: Annotated[int, Meta(ge=0, le=MAX_TREE_NODES)]


def brings(values: Sequence[float]) -> tuple[float, ...]:
    """Expected tokens of trees of SHOWN_ROWS rows, as far as there are nodes; `values` of the nodes in order."""
    return tuple(round(sum(values[:rows]), 4) for rows in SHOWN_ROWS if rows <= len(values))


NO_DRAFTS = StepDrafts()


@dataclass(frozen=True, slots=True)
class GuardEvent:
    """A guard intervened: its `trigger`, the `part` of the turn that it watched, its `action`, and what it `found`.
    "close": the model's end-of-thinking tokens were inserted. "stop": the answer ended."""

    trigger: Literal["thinking budget", "loop", "end of message", "request"]
    part: Literal["thinking", "answer"]
    action: Literal["close", "stop"]
    found: str

    @property
    def summary(self) -> str:
        """One line, as shown to users."""
        done = "thinking was closed" if self.action == "close" else "the answer was stopped"
        what = f"a loop in the {self.part}: {self.found}" if self.trigger == "loop" else self.found
        return f"{done}: {what}"


@dataclass(frozen=True, slots=True)
class PrefillEvent:
    """The prompt has been read and the first token of the answer drawn: `tokens` holds just that one.

    Where the prompt was cancelled half-way `tokens` is empty and `stop` gives the reason. `guard`: as in StepEvent.
    `read_again`: tokens that would have been known from the turn before, but for the change that `read_why` names.
    """

    tokens: Annotated[tuple[Whole, ...], Meta(max_length=1)]
    prompt_tokens: Whole
    reused_tokens: Whole
    elapsed_ms: float
    mode: EffectiveMode
    reason: str
    stop: Stop | None = None
    kv: str = ""  # types of keys and values, "" where they are not known
    guard: GuardEvent | None = None
    read_again: Whole = 0
    read_why: str = ""


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One speculative step. `tokens`: the accepted drafts and the token drawn after them, cut at a stop.

    `drafted_depth` is the deepest drafted position, `accepted_depth` the depth that the walk reached. Where the answer
    ends inside the accepted path, the walk (and `tree.accepted`) continues past what was committed. `drafts` are all
    candidates for the tree, `bonus` the token that the target drew after the last accepted one,
    `knobs` the settings of this step, `choice` what `auto` knew where it decided. `guard`: a guard intervened; with
    "close" the tokens are the guard's, not the target's, or the last one is, in place of a stop token. `drafter`: the
    kind that drafted, "" where none did.
    """

    tokens: tuple[Whole, ...]
    tree: StepTree
    drafted_depth: int
    accepted_depth: int
    length: Whole
    stages: StageTimes
    mode: EffectiveMode
    reason: str
    stop: Stop | None = None
    drafts: StepDrafts = NO_DRAFTS
    bonus: Whole | None = None
    knobs: Knobs = Knobs()
    guard: GuardEvent | None = None
    choice: Choice | None = None
    drafter: str = ""

    @property
    def bonus_rank(self) -> int | None:
        """The rank, 0 the best, at which the drafter had the bonus token; None where it is not among the recorded
        candidates, or nothing was drafted that deep."""
        depth = self.accepted_depth
        if depth >= len(self.drafts.tokens) or self.bonus not in self.drafts.tokens[depth]:
            return None
        return self.drafts.tokens[depth].index(self.bonus)


@dataclass(frozen=True, slots=True)
class TextEvent:
    """Text of another engine, which names neither its tokens nor its steps. `count`: tokens of the answer so far, 0
    where the engine does not count them as it goes."""

    count: Whole = 0
    tokens: tuple[Whole, ...] = ()
    mode: EffectiveMode = "remote"
    reason: str = ""
    stop: Stop | None = None
    guard: GuardEvent | None = None


Event = PrefillEvent | StepEvent | TextEvent


@dataclass(frozen=True, slots=True)
class Piece:
    """An event with its decoded text, empty while a character is incomplete. `at`: seconds since its turn began."""

    event: Event
    text: str = ""
    thinking: str = ""
    at: float = 0.0
