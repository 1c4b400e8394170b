"""The time of a step on this machine by the number of rows that it verifies, learned from the steps that ran.

Where too few steps were measured, a recorded curve is used, scaled to the measured times. Times are in milliseconds; a
row is a node, the root included.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from dflash_core.events import StepEvent

MIN_STEPS = 5  # of one kind and size, whose median is used
MIN_PLAIN = 2  # the same for steps without drafts: a loss is judged by them from the first draft on
NEWEST = 33  # newest times per kind and size: the context grows, and the time of a step with it
SAME = 1e-3  # relative change of a median; below it the curve is not computed again
MAX_ROWS = 64


@dataclass(frozen=True, slots=True)
class CostTable:
    """Recorded times of a machine. `steps`: a whole step by rows, drafting included; `plain`: a step without drafts;
    `draft`: only drafting."""

    steps: Mapping[int, float]
    plain: float
    draft: float
    widths: tuple[int, ...] = ()
    """Passes are padded to the next of these numbers of rows; () if they are not padded."""

    def filled(self, rows: int) -> int:
        """The number of rows of a pass after padding."""
        return next((width for width in self.widths if width >= rows), rows)

    def reading(self, more: Callable[[int], float]) -> CostTable:
        """The same machine with a target whose pass of `rows` rows reads `more(rows)` times as much as a pass of one
        row. A step then takes at least the time of that reading."""
        own = {rows: max(ms, self.draft + self.plain * more(rows)) for rows, ms in self.steps.items()}
        return replace(self, steps=own)

    def curve(self) -> list[float]:
        """Milliseconds by rows, 0..MAX_ROWS + 1."""
        known = sorted(self.steps)
        rows = np.arange(MAX_ROWS + 2)
        if self.widths:
            filled = np.searchsorted(np.array(self.widths), rows)
            rows = np.array(self.widths)[np.minimum(filled, len(self.widths) - 1)]
        curve: list[float] = np.interp(rows, known, [self.steps[row] for row in known]).tolist()
        return curve


CPU = CostTable({1: 18.3, 4: 22.3, 8: 25.5, 16: 28.5, 23: 32.5, 40: 40.0, 64: 51.5}, plain=9.6, draft=7.8)
"""The demo pair on one core."""
WIDTHS = (1, 8, 16, 24, 32, 40, 48, 64)  # of the recorded curves; a measured table has its own
H200 = CostTable(
    {1: 6.41, 8: 6.79, 16: 7.28, 24: 7.94, 32: 8.95, 40: 10.53, 48: 11.85, 64: 15.15}, plain=5.49, draft=0.92,
    widths=WIDTHS,
)  # fmt: skip
"""A 27B pair on a data-centre card."""


class StepCosts:
    """The cost curve: medians where enough steps were measured; between and beyond them the shape, scaled to them."""

    def __init__(self, shape: CostTable) -> None:
        self._shape, self._shape_curve = shape, shape.curve()
        self._drafted: dict[int, deque[float]] = {}  # by rows
        self._verified: dict[int, deque[float]] = {}  # without drafting; 1 row is plain decoding
        self._drafts, self._whole = _times(), _times()  # of only drafting; of plain steps with the time before them
        self._any, self._any_drafted = _times(), _times()  # times divided by the shape's; of steps that drafted
        self._made_of: dict[int, float] = {}  # the medians that the curve was computed from
        self._curve: list[float] | None = None
        self._plain: float | None = None
        self._draft: float | None = None

    def add(self, step: StepEvent, drafted: bool) -> float:
        """Count a step and return its milliseconds, without what the program did between two steps."""
        ms, rows = step.stages.total - step.stages.host, self._shape.filled(len(step.tree.tokens))
        if ms <= 0:
            return 0.0
        self._plain = self._draft = None
        times = (self._drafted if drafted else self._verified).setdefault(rows, _times())
        times.append(ms)
        shape = self._shape_curve[min(rows, MAX_ROWS)]
        if drafted:
            self._drafts.append(step.stages.draft)
            self._any_drafted.append(ms / shape)
        elif rows == 1:
            self._whole.append(step.stages.total)
            shape = self._shape.plain
        else:
            shape -= self._shape.draft
        self._any.append(ms / shape)
        # A step without drafts does not change a measured curve; one of many similar steps hardly moves their median.
        if not self._made_of or (drafted and self._moved(rows, times)):
            self._curve = None
        return ms

    def _moved(self, rows: int, times: deque[float]) -> bool:
        """Whether the curve is out of date: fewer than NEWEST times are known, or their median has changed."""
        before = self._made_of.get(rows)
        if before is None or len(times) < NEWEST:
            return True
        return abs(statistics.median(times) - before) > SAME * before

    @property
    def measured(self) -> dict[int, float]:
        """Median milliseconds of drafted steps by rows, where there are enough; ascending."""
        enough = ((rows, times) for rows, times in sorted(self._drafted.items()) if len(times) >= MIN_STEPS)
        return {rows: statistics.median(times) for rows, times in enough}

    @property
    def scale(self) -> float:
        """This machine's times divided by the shape's."""
        return statistics.median(self._any) if self._any else 1.0

    def curve(self) -> list[float]:
        """Milliseconds of a step that drafts, by rows 0..MAX_ROWS + 1; non-decreasing."""
        if self._curve is None:
            self._made_of = self.measured
            self._curve = self._scaled()
        return self._curve

    def _scaled(self) -> list[float]:
        ratios = {rows: ms / self._shape_curve[min(rows, MAX_ROWS)] for rows, ms in self._made_of.items()}
        if not ratios:
            # A drafter may be slower or faster here, beside its target, than on the machine of the shape.
            scale = statistics.median(self._any_drafted) if self._any_drafted else self.scale
            return [ms * scale for ms in self._shape_curve]
        at = np.interp(np.arange(len(self._shape_curve)), list(ratios), list(ratios.values()))
        weights = [float(len(self._drafted.get(rows, ()))) + 1.0 for rows in range(len(self._shape_curve))]
        return rising((at * np.array(self._shape_curve)).tolist(), weights)

    @property
    def draft(self) -> float:
        """Milliseconds of only drafting."""
        if self._draft is None:
            known = len(self._drafts) >= MIN_STEPS
            self._draft = statistics.median(self._drafts) if known else self._shape.draft * self.scale
        return self._draft

    def typical(self, rows: int) -> float:
        """Milliseconds of a step that drafts and verifies `rows` rows: of those that ran, few as they may be."""
        times = self._drafted.get(self._shape.filled(rows))
        return statistics.median(times) if times and len(times) < MIN_STEPS else self.curve()[rows]

    def knows(self, rows: int) -> bool:
        """Whether steps that draft and verify `rows` rows were measured."""
        return len(self._drafted.get(self._shape.filled(rows), ())) >= MIN_STEPS

    @property
    def knows_plain(self) -> bool:
        """Whether steps without drafts were measured."""
        return len(self._verified.get(1, ())) >= MIN_STEPS

    @property
    def plain(self) -> float:
        """Milliseconds of a step without drafts."""
        if self._plain is None:
            times = self._verified.get(1, ())
            self._plain = statistics.median(times) if len(times) >= MIN_PLAIN else self._shape.plain * self.scale
        return self._plain

    @property
    def unit(self) -> float:
        """Milliseconds from one plain step to the next, what the program does between them included."""
        return max(statistics.median(self._whole), self.plain) if len(self._whole) >= MIN_STEPS else self.plain

    def copying(self, rows: int) -> list[float]:
        """Milliseconds by rows, 0 to `rows`, of a step that drafts nothing; one row is plain decoding."""
        plain = self.plain
        if rows < 2:  # the usual case needs no curve
            return [plain] * (rows + 1)
        draft = self.draft
        return [plain, plain, *(max(ms - draft, plain) for ms in self.curve()[2 : rows + 1])]


def _times() -> deque[float]:
    return deque(maxlen=NEWEST)


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing curve nearest to `values` in weighted least squares, by pooling adjacent violators."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, count
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while pools and pools[-1][0] > mean:
            before, more, others = pools.pop()
            mean = (mean * total + before * more) / (total + more)
            total, count = total + more, count + others
        pools.append((mean, total, count))
    return [mean for mean, _, count in pools for _ in range(count)]


def min_slopes(curve: Sequence[float]) -> list[float]:
    """By number of nodes below the root: the least cost of a further node, on average over any number of added ones."""
    costs, rows = np.array(curve), np.arange(len(curve))
    more = rows[None, :] - rows[:, None]
    slopes = np.where(more > 0, (costs[None, :] - costs[:, None]) / np.maximum(more, 1), np.inf)
    least: list[float] = slopes[1:-1].min(axis=1).tolist()
    return least


def paying(values: Sequence[float], curve: Sequence[float], rate: float) -> int:
    """How many of the nodes pay at `rate` tokens per ms, and with them those that cost nothing more. `values`: in the
    tree's order, first the root's 1, for the token that the target draws anyway."""
    best, use = float("-inf"), 0
    for nodes, tokens in enumerate(accumulate(values)):
        gain = tokens - rate * curve[nodes + 1]
        if gain > best + 1e-12:
            best, use = gain, nodes
    while use < len(values) - 1 and curve[use + 2] <= curve[use + 1] + 1e-9:
        use += 1
    return use
