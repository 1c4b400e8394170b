"""Acceptance length by budget for one turn, as other budgets would have given it, without a pass of the target.

The text of an answer does not depend on the budget. So for a tree drafted at any of its positions, the target's walk is
known: it goes as far as the tree contains the text. Trees of growing budget are prefixes of each other, so one tree of
the largest budget gives the walks of all smaller ones.

    estimate    from the turn's own step starts and the candidates recorded there. A smaller budget would have had
                other step starts, so this is an approximation.
    exact       the drafter runs again from every step start that a budget would have had. Equals a real run, but for
                near-ties in the drafter's order.

Each of several drafters has curves of its own: an estimate uses the steps that it drafted, an exact curve what it
would have drafted by itself.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dflash_core.errors import DFlashError
from dflash_core.events import StepEvent
from dflash_core.knobs import Knobs
from dflash_core.lab.results import ExperimentProgress
from dflash_core.tree import Candidates, build, deepest_draft, walk

MIN_STEPS = 5
"""The smallest number of steps with the same count of nodes whose median counts as measured."""

Source = Literal["measured", "interpolated", "extrapolated"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds per step, and how they were obtained."""

    ms: float
    source: Source


class StepTimes:
    """Times of a session's steps by the nodes that they verified, without the root. Plain decoding is left out."""

    def __init__(self, steps: Iterable[StepEvent] = ()) -> None:
        self._times: dict[int, list[float]] = {}
        for step in steps:
            self.add(step)

    def add(self, step: StepEvent) -> None:
        """Count one step; it drafts whatever its tree then holds, so only steps without a drafter are others."""
        if step.mode != "plain":
            self._times.setdefault(len(step.tree.tokens) - 1, []).append(step.stages.total)

    @property
    def measured(self) -> dict[int, float]:
        """Median milliseconds by nodes, where there are enough steps; ascending."""
        enough = ((nodes, times) for nodes, times in sorted(self._times.items()) if len(times) >= MIN_STEPS)
        return {nodes: statistics.median(times) for nodes, times in enough}

    def at(self, nodes: float) -> Cost | None:
        """The cost of a step of `nodes`; None where the measurements do not suffice, such as a single count."""
        measured = self.measured
        if nodes in measured:
            return Cost(measured[int(nodes)], "measured")
        if len(measured) < 2:
            return None
        below = max((n for n in measured if n < nodes), default=None)
        above = min((n for n in measured if n > nodes), default=None)
        if below is not None and above is not None:
            share = (nodes - below) / (above - below)
            return Cost(measured[below] + share * (measured[above] - measured[below]), "interpolated")
        low, high = min(measured), max(measured)
        near = nodes * high >= low * low and nodes * low <= high * high
        slope, start = statistics.linear_regression(list(measured), list(measured.values()))
        ms = start + slope * nodes
        return Cost(ms, "extrapolated") if near and slope > 0 and ms > 0 and math.isfinite(ms) else None


Kind = Literal["estimate", "exact"]
Propose = Callable[[Sequence[int], int, Knobs], Candidates]
"""(tokens before the root, root, knobs) -> the drafter's candidates there: `Runner.propose`."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A budget's result over one turn: tokens per step, and the mean number of draft tokens that a step verifies."""

    budget: int
    length: float
    nodes: float
    steps: int


@dataclass(frozen=True, slots=True)
class Point:
    """A budget with its speed: `tok_s` = length / ms * 1000. Both None where the cost of a step is not known."""

    acceptance: Acceptance
    ms: float | None = None
    source: Source | None = None

    @property
    def budget(self) -> int:
        return self.acceptance.budget

    @property
    def tok_s(self) -> float | None:
        return self.acceptance.length / self.ms * 1e3 if self.ms else None


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of ascending budget, of a turn that ran with the budget `current`."""

    kind: Kind
    points: tuple[Point, ...]
    current: int
    measured: tuple[int, ...] = ()

    @property
    def best(self) -> Point | None:
        """The fastest, the smaller budget of equals; None where fewer than two speeds are known."""
        known = [point for point in self.points if point.tok_s is not None]
        return max(known, key=lambda point: (point.tok_s or 0.0, -point.budget)) if len(known) > 1 else None

    def at(self, budget: int) -> Point | None:
        return next((point for point in self.points if point.budget == budget), None)


@dataclass(frozen=True, slots=True)
class AutoTurn:
    """The result of `auto` in a turn: tokens per step, nodes per step, seconds of its steps."""

    steps: int
    tokens: int
    nodes: float
    seconds: float

    @property
    def length(self) -> float:
        return self.tokens / self.steps

    @property
    def ms(self) -> float:
        return self.seconds / self.steps * 1e3

    @property
    def tok_s(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 else None

    def saved(self, point: Point) -> float | None:
        """The additional seconds of a fixed budget, negative if it is faster; None where its speed is not known."""
        return self.tokens / point.tok_s - self.seconds if point.tok_s else None


def auto_turn(steps: Sequence[StepEvent]) -> AutoTurn | None:
    """The turn's own row, where `auto` chose its trees from the first step to the last; None for any other."""
    if not steps or not all(step.knobs.mode == "auto" for step in steps):
        return None
    if not any(step.choice is not None for step in steps):
        return None
    seconds = sum(step.stages.total - step.stages.host for step in steps) / 1e3
    nodes = sum(len(step.tree.tokens) - 1 for step in steps) / len(steps)
    return AutoTurn(len(steps), sum(len(step.tokens) for step in steps), nodes, seconds)


@dataclass(frozen=True, slots=True)
class _Reach:
    """For one start: the indices of the tree's nodes on the text's path, and the number of nodes of the tree."""

    path: tuple[int, ...]
    nodes: int

    def accepted(self, budget: int) -> int:
        """The number of draft tokens on the text's path in the tree of that budget."""
        return sum(node <= budget for node in self.path)


def drafted_by(knobs: Knobs, drafter: str) -> Knobs:
    """These with a drafter of that kind named; "" names none."""
    return knobs.replace(draft=drafter) if drafter else knobs


def of_drafter(steps: Sequence[StepEvent], drafter: str) -> list[StepEvent]:
    """The steps that a drafter of that kind drafted; "" for any."""
    return [step for step in steps if step.drafts.tokens and drafter in ("", step.drafter)]


def estimate(
    steps: Sequence[StepEvent], budgets: Sequence[int], drafter: str = "", p_min: float | None = None
) -> tuple[Acceptance, ...]:
    """Acceptance lengths over the turn's own step starts, where a drafter of that kind was asked. Raises DFlashError
    where none was.

    For the budget that the turn ran with it is what was measured. `p_min`: another than the turn's.
    """
    text = [token for step in steps for token in step.tokens]
    starts = [0, *itertools.accumulate(len(step.tokens) for step in steps)]
    drafted = [(step, start) for step, start in zip(steps, starts) if of_drafter([step], drafter)]
    if not drafted:
        by = f"{drafter} drafted nothing in this turn" if drafter else "this turn drafted nothing"
        raise DFlashError(f"{by}, so there is nothing to go by; answer again with drafting=tree")
    largest = max(budgets)
    # Below the token that ended the answer nothing is drafted; other tokens that would have are not recorded.
    stops = {text[-1]} if steps[-1].stop == "stop token" else ()
    reaches = [(_reach(step, start, text[start:], largest, stops, p_min), len(text) - start) for step, start in drafted]
    out = []
    for budget in budgets:
        committed = sum(min(reach.accepted(budget) + 1, rest) for reach, rest in reaches)
        nodes = sum(min(reach.nodes, budget) for reach, _ in reaches)
        out.append(Acceptance(budget, committed / len(reaches), nodes / len(reaches), len(reaches)))
    return tuple(out)


class ExactReplay:
    """Runs the drafter again over one turn: iterate it once for progress, then read `acceptance`.

    `prompt` and `answer` are the turn's ids, `knobs` what every budget is tried with, `context_length` the positions
    that both may fill, `stops` the tokens that end answers; each position is drafted at most once, whatever the number
    of budgets. Raises what `propose` raises, and DFlashError for a turn without a step.
    """

    def __init__(
        self,
        propose: Propose,
        prompt: Sequence[int],
        answer: Sequence[int],
        knobs: Knobs,
        budgets: Sequence[int],
        context_length: int,
        stops: Collection[int] = (),
    ) -> None:
        if len(answer) < 2:
            raise DFlashError("this turn has no step to replay; expected an answer of two tokens or more")
        self._propose, self._knobs, self._budgets = propose, knobs, tuple(budgets)
        self._stops = () if knobs.ignore_eos else stops
        self._prompt, self._answer = list(prompt), list(answer)
        self._longest = min(knobs.max_tokens, context_length - len(prompt))
        self.acceptance: tuple[Acceptance, ...] = ()
        self.steps: dict[int, tuple[int, ...]] = {}

    def __iter__(self) -> Iterator[ExperimentProgress]:
        """Yields before every draft; stop iterating to cancel."""
        last = len(self._answer) - 1
        starts = dict.fromkeys(self._budgets, 0)
        taken: dict[int, list[int]] = {budget: [] for budget in self._budgets}
        nodes = dict.fromkeys(self._budgets, 0)
        # All budgets advance together: progress is that of the slowest, and every draft is used at once.
        while (at := min(starts.values())) < last:
            yield ExperimentProgress(at, last, None, "drafting again")
            reach = self._reach(at)
            for budget in (budget for budget, start in starts.items() if start == at):
                committed = min(reach.accepted(budget) + 1, last - at)
                taken[budget].append(committed)
                nodes[budget] += min(reach.nodes, budget)
                starts[budget] += committed
        self.steps = {budget: tuple(lengths) for budget, lengths in taken.items()}
        self.acceptance = tuple(
            Acceptance(budget, last / len(lengths), nodes[budget] / len(lengths), len(lengths))
            for budget, lengths in taken.items()
        )

    def _reach(self, at: int) -> _Reach:
        root = self._answer[at]
        drafts = self._propose(self._prompt + self._answer[:at], root, self._knobs)
        drafts = drafts.cut(deepest_draft(self._longest - at - 1))
        return _walked(root, drafts, self._knobs, self._answer[at + 1 :], max(self._budgets), stops=self._stops)


def own_ms(steps: Sequence[StepEvent], drafter: str = "") -> float | None:
    """Milliseconds of a step of the turn itself, of a drafter's alone where one is named, by its wall time; None where
    no time was taken."""
    drafted = of_drafter(steps, drafter)
    total = sum(step.stages.total for step in drafted)
    return total / len(drafted) if drafted and total > 0 else None


def curve(
    kind: Kind, acceptance: Sequence[Acceptance], costs: StepTimes, current: int, own: float | None = None
) -> Curve:
    """Add a cost to every acceptance length. `own`: ms per step of the turn itself, which had the budget `current`:
    that one was measured, however few of its steps were of one size."""
    points = []
    for one in acceptance:
        cost = Cost(own, "measured") if own is not None and one.budget == current else costs.at(one.nodes)
        points.append(Point(one, cost.ms, cost.source) if cost else Point(one))
    return Curve(kind, tuple(points), current, tuple(costs.measured))


def _reach(
    step: StepEvent, at: int, text: Sequence[int], budget: int, stops: Collection[int], p_min: float | None
) -> _Reach:
    """The reach of one recorded step, whose root is token `at` of the answer; `text` are the tokens that followed."""
    log_probs = np.array(step.drafts.log_probs)
    drafts = Candidates(np.array(step.drafts.tokens, np.int64), log_probs)
    drafts = drafts.cut(deepest_draft(step.knobs.max_tokens - at - 1))
    knobs = step.knobs if p_min is None else replace(step.knobs, p_min=p_min)
    return _walked(step.tree.tokens[0], drafts, knobs, text, budget, chain=step.mode == "chain", stops=stops)


def _walked(
    root: int,
    drafts: Candidates,
    knobs: Knobs,
    text: Sequence[int],
    budget: int,
    *,
    chain: bool | None = None,
    stops: Collection[int] = (),
) -> _Reach:
    if knobs.mode == "chain" if chain is None else chain:
        drafts = drafts.cut(len(drafts.tokens), 1)
    tree = build(root, drafts, budget, p_min=knobs.p_min, chain_seed=knobs.chain_seed, stops=stops)
    path = walk(tree, lambda _, path: text[len(path)] if len(path) < len(text) else -1).path
    return _Reach(path[1:], len(tree) - 1)
