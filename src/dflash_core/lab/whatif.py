"""Acceptance length by budget for one turn, as other budgets would have given it, without a pass of the target.

The text of an answer does not depend on the budget. So for a tree drafted at any of its positions, the target's walk is
known: it goes as far as the tree contains the text. Trees of growing budget are prefixes of each other, so one tree of
the largest budget gives the walks of all smaller ones.

    estimate    from the turn's own step starts and the candidates recorded there. A smaller budget would have had
                other step starts, so this is an approximation.
    exact       the drafter runs again from every step start that a budget would have had. Equals a real run, but for
                near-ties in the drafter's order.

Each of several drafters has curves of its own.
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

MIN_STEPS = 5  # with the same count of nodes, whose median counts as measured

Source = Literal["measured", "interpolated", "extrapolated"]
Kind = Literal["estimate", "exact"]


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
        """Count one step."""
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
        low, high = min(measured), max(measured)
        if low < nodes < high:
            return Cost(float(np.interp(nodes, list(measured), list(measured.values()))), "interpolated")
        near = nodes * high >= low * low and nodes * low <= high * high
        slope, start = statistics.linear_regression(list(measured), list(measured.values()))
        ms = start + slope * nodes
        return Cost(ms, "extrapolated") if near and slope > 0 and ms > 0 and math.isfinite(ms) else None


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
    if not all(step.knobs.mode == "auto" for step in steps) or all(step.choice is None for step in steps):
        return None
    seconds = sum(step.stages.total for step in steps) / 1e3  # as the times of other budgets, the host's included
    nodes = sum(len(step.tree.tokens) - 1 for step in steps) / len(steps)
    return AutoTurn(len(steps), sum(len(step.tokens) for step in steps), nodes, seconds)


def drafted_by(knobs: Knobs, drafter: str) -> Knobs:
    """These with a drafter of that kind named; "" names none."""
    return knobs.replace(draft=drafter) if drafter else knobs


def of_drafter(steps: Sequence[StepEvent], drafter: str) -> list[StepEvent]:
    """The steps that a drafter of that kind drafted; "" for any."""
    return [step for step in steps if step.drafts.tokens and drafter in ("", step.drafter)]


def own_ms(steps: Sequence[StepEvent], drafter: str = "") -> float | None:
    """Milliseconds of a step of the turn itself by its wall time, of one drafter's steps where one is named; None where
    no time was taken."""
    times = [step.stages.total for step in of_drafter(steps, drafter)]
    return sum(times) / len(times) if sum(times) > 0 else None


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


@dataclass(frozen=True, slots=True)
class _Reach:
    """For one start: the indices of the tree's nodes on the text's path, and the number of nodes of the tree."""

    path: tuple[int, ...]
    nodes: int

    @staticmethod
    def of(root: int, drafts: Candidates, knobs: Knobs, text: Sequence[int], budget: int,
           stops: Collection[int], *, chain: bool) -> _Reach:  # fmt: skip
        """`text`: the tokens that followed `root`."""
        if chain:
            drafts = drafts.cut(len(drafts.tokens), 1)
        tree = build(root, drafts, budget, p_min=knobs.p_min, chain_seed=knobs.chain_seed, stops=stops)
        path = walk(tree, lambda _, path: text[len(path)] if len(path) < len(text) else -1).path
        return _Reach(path[1:], len(tree) - 1)

    def committed(self, budget: int, left: int) -> int:
        """The tokens of a step with a tree of that budget, where `left` are left."""
        return min(sum(node <= budget for node in self.path) + 1, left)


def estimate(
    steps: Sequence[StepEvent], budgets: Sequence[int], drafter: str = "", p_min: float | None = None
) -> tuple[Acceptance, ...]:
    """Acceptance lengths over the turn's own step starts, where a drafter of that kind was asked. Raises DFlashError
    where none was.

    For the budget that the turn ran with it is what was measured. `p_min`: another than the turn's.
    """
    text = [token for step in steps for token in step.tokens]
    # Below the token that ended the answer nothing is drafted; other tokens that would have are not recorded.
    stops = {text[-1]} if steps and steps[-1].stop == "stop token" else ()
    reaches = list[tuple[_Reach, int]]()
    for step, at in zip(steps, itertools.accumulate((len(step.tokens) for step in steps), initial=0)):
        if not of_drafter([step], drafter):
            continue
        drafts = Candidates(np.array(step.drafts.tokens, np.int64), np.array(step.drafts.log_probs))
        drafts = drafts.cut(deepest_draft(step.knobs.max_tokens - at - 1))
        knobs = step.knobs if p_min is None else replace(step.knobs, p_min=p_min)
        reach = _Reach.of(
            step.tree.tokens[0], drafts, knobs, text[at:], max(budgets), stops, chain=step.mode == "chain"
        )
        reaches.append((reach, len(text) - at))
    if not reaches:
        by = f"{drafter} drafted nothing in this turn" if drafter else "this turn drafted nothing"
        raise DFlashError(f"{by}, so there is nothing to go by; answer again with drafting=tree")
    count = len(reaches)
    return tuple(
        Acceptance(
            budget, sum(reach.committed(budget, left) for reach, left in reaches) / count,
            sum(min(reach.nodes, budget) for reach, _ in reaches) / count, count,
        )
        for budget in budgets
    )  # fmt: skip


class ExactReplay:
    """Runs the drafter again over one turn: iterate it once for progress, then read `acceptance`.

    `propose` (tokens before the root, root, knobs) gives the drafter's candidates there: `Runner.propose`. `prompt` and
    `answer` are the turn's ids, `knobs` what every budget is tried with, `context_length` the positions that both may
    fill, `stops` the tokens that end answers; each position is drafted at most once, whatever the number of budgets.
    Raises what `propose` raises, and DFlashError for a turn without a step.
    """

    def __init__(
        self,
        propose: Callable[[Sequence[int], int, Knobs], Candidates],
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
        starts, nodes = dict.fromkeys(self._budgets, 0), dict.fromkeys(self._budgets, 0)
        taken: dict[int, list[int]] = {budget: [] for budget in self._budgets}
        # All budgets advance together: progress is that of the slowest, and every draft is used at once.
        while (at := min(starts.values())) < last:
            yield ExperimentProgress(at, last, None, "drafting again")
            reach = self._reach(at)
            for budget in (budget for budget, start in starts.items() if start == at):
                taken[budget].append(reach.committed(budget, last - at))
                nodes[budget] += min(reach.nodes, budget)
                starts[budget] += taken[budget][-1]
        self.steps = {budget: tuple(lengths) for budget, lengths in taken.items()}
        self.acceptance = tuple(
            Acceptance(budget, last / len(lengths), nodes[budget] / len(lengths), len(lengths))
            for budget, lengths in taken.items()
        )

    def _reach(self, at: int) -> _Reach:
        answer, knobs = self._answer, self._knobs
        drafts = self._propose(self._prompt + answer[:at], answer[at], knobs)
        drafts = drafts.cut(deepest_draft(self._longest - at - 1))
        most, chain = max(self._budgets), knobs.mode == "chain"
        return _Reach.of(answer[at], drafts, knobs, answer[at + 1 :], most, self._stops, chain=chain)
