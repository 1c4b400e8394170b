"""Finds the fastest way to compute each matrix product on the present card: candidates, choice and storage.

A plan's default comes from a formula and from the cards that were measured; on other cards it may be wrong. So at the
first load, a few ways of each product are timed with the real weights. A product has one way for all widths, because a
column's bits must not depend on the width. The results are stored next to the compiled kernels, by card, driver and
kernels, and are not measured again. This module does not use a card; `Measure` does (tuner.py).
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash_core.backends.cuda.expert_plan import ExpertProduct, expert_ways
from dflash_core.backends.cuda.plan import MAX_COLUMNS, Card, Plan, Product, Way, plan
from dflash_core.errors import UnsupportedError
from dflash_core.files import write_whole
from dflash_core.progress import Progress

FORMAT = 4
MOST_CANDIDATES = 6
ROUNDS = 7  # every candidate of a product is timed once per round
BUDGET_S = 5.0  # seconds of timing per load; the other products are timed at the next load
LEAST_GAIN = 0.02  # over the default: a smaller gain does not justify sums that differ between cards
MOST_SPREAD = 0.10  # of the middle half of the default's times: with more, the times are not reliable
LEAST_BYTES = 4 << 20  # of a product's weights: a smaller product spends most of its time on the launch
# The cost of a candidate is the weighted mean of its times at these widths: the weight of each width.
TIMED: Mapping[int, float] = {1: 1.0, 24: 2.0}

AnyProduct = Product | ExpertProduct
# Seconds by width and round.
Rounds = Mapping[int, Sequence[float]]
# Times one more round: seconds of one launch of a product, in a way, at a width.
Measure = Callable[[AnyProduct, Way, int], float]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a measurement is valid for. `kernels`: a hash of the kernel sources and of the compiler."""

    card: str
    multiprocessors: int
    driver: str
    kernels: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen way of a product, and its measurements: microseconds of a launch, as a weighted mean over widths.

    `spread`: relative spread of the default's times; above MOST_SPREAD the default is kept, whatever was measured.
    """

    way: Way
    us: float
    default_us: float
    runner_up: Way | None
    runner_up_us: float
    spread: float

    @property
    def unsteady(self) -> bool:
        return self.spread > MOST_SPREAD

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "way": str(self.way), "runner_up": str(self.runner_up or "")}


@dataclass(frozen=True, slots=True)
class Tuning:
    """All measurements of one card.

    `choices`: by product name. The others are by target name. `passes`: milliseconds of a verify pass by width;
    `steps`: milliseconds of a whole step by the name of a benchmark case; `gains`: the relative gain of whole passes by
    the choices. With a small gain, the default plans are used. `chunks`: milliseconds of a prompt's chunk by rows.
    """

    identity: Identity
    choices: Mapping[str, Choice] = field(default_factory=dict)
    passes: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    steps: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)
    chunks: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def ways(self) -> tuple[tuple[str, Way], ...]:
        """For `plan.Card`: the choices that differ from the default."""
        return tuple((name, choice.way) for name, choice in sorted(self.choices.items()) if choice.way != Way())

    def ways_of(self, target: str) -> tuple[tuple[str, Way], ...]:
        """The same as `ways`, if they made whole passes of the target faster; otherwise nothing."""
        return self.ways if self.gains.get(target, 0.0) >= LEAST_GAIN else ()

    @property
    def unsteady(self) -> float:
        """The largest spread that made a product keep its default; 0 if there is none."""
        return max((choice.spread for choice in self.choices.values() if choice.unsteady), default=0.0)

    @property
    def note(self) -> str:
        """What a user should know about the timings, or ""."""
        if not self.unsteady:
            return ""
        return (
            f"kernel times varied by {self.unsteady:.0%} (expected at most {MOST_SPREAD:.0%}: the card is throttled or "
            "shared), so the default plans are used; dflash-tui doctor --tune times the kernels again"
        )

    def knows(self, product: AnyProduct, card: Card) -> bool:
        """Whether the product's way is already chosen. A choice that is not among the candidates comes from an older
        version or from an edited file; it does not count."""
        choice, ways = self.choices.get(str(product)), candidates(product, card)
        return len(ways) == 1 or (choice is not None and choice.way in ways)

    def with_choices(self, found: Mapping[str, Choice]) -> Tuning:
        """This tuning with the choices in `found` added; the gain of whole passes is then unknown."""
        return replace(self, choices={**self.choices, **found}, gains={})

    def with_gain(self, target: str, plain: Rounds, tuned: Rounds) -> Tuning:
        """This tuning with the gain from two timings of whole passes: with default plans and with the choices."""
        return replace(self, gains={**self.gains, target: 1.0 - score(tuned) / score(plain)})

    def with_steps(self, target: str, found: Mapping[str, float]) -> Tuning:
        return replace(self, steps={**self.steps, target: dict(found)})

    def with_passes(self, target: str, found: Mapping[int, float]) -> Tuning:
        return replace(self, passes={**self.passes, target: dict(found)})

    def with_chunks(self, target: str, found: Mapping[int, float]) -> Tuning:
        return replace(self, chunks={**self.chunks, target: dict(found)})


def candidates(product: AnyProduct, card: Card) -> tuple[Way, ...]:
    """Ways to try, the default first; at most MOST_CANDIDATES, since each must be compiled. The card supports all."""
    if isinstance(product, ExpertProduct):
        return expert_ways(product, card)
    plain = replace(card, way=Way(), ways=())
    default = _planned(product, plain)
    assert default is not None, "expected a product that this card has a plan for"
    ways = [Way()]
    if product.split_k is None:
        # One part of K fewer and one more: the plan's formula may be wrong, but not by much.
        ways += [Way(split_k=count) for count in (default.split_k - 1, default.split_k + 1) if count > 0]
    ways.append(Way(chunked=True))
    found: list[Way] = []
    for way in ways:
        deal = _planned(product, replace(plain, way=way))
        if deal is not None and (way == Way() or _differs(deal, default, card.most_partials)):
            found.append(way)
    return tuple(found[:MOST_CANDIDATES])


def _planned(product: Product, card: Card) -> Plan | None:
    try:
        return plan(product.shapes, product.columns, card, rounding=product.rounding, split_k=product.split_k)
    except UnsupportedError:
        return None


def _differs(deal: Plan, default: Plan, most_partials: int) -> bool:
    """Whether a launch differs from the default at some width and is worth timing.

    It is not if it reads weights more often than the default, or leaves more partials than the L2 keeps: that would
    slow down the next kernel, which is not timed here.
    """
    if len(deal.passes(MAX_COLUMNS)) > len(default.passes(MAX_COLUMNS)):
        return False
    if deal.split_k > 1 and deal.partial_bytes > max(most_partials, default.partial_bytes):
        return False
    return any(deal.defines(width) != default.defines(width) for width in TIMED) or deal.split_k != default.split_k


def choose(times: Mapping[Way, Rounds]) -> Choice:
    """The way of one product, from the times of its ways in seconds by width and round, including the default's."""
    scores = {way: score(rounds) for way, rounds in times.items()}
    spread = max(_spread(rounds) for rounds in times[Way()].values())
    order = sorted(scores, key=lambda way: (scores[way], way != Way()))
    best = order[0]
    if spread > MOST_SPREAD or scores[best] > (1 - LEAST_GAIN) * scores[Way()]:
        best = Way()
    others = [way for way in order if way != best]
    return Choice(
        best,
        1e6 * scores[best],
        1e6 * scores[Way()],
        others[0] if others else None,
        1e6 * scores[others[0]] if others else 0.0,
        spread,
    )


def score(times: Rounds) -> float:
    """The weighted mean of the median times by width, with the weights TIMED."""
    return sum(TIMED[width] * statistics.median(rounds) for width, rounds in times.items()) / sum(
        TIMED[width] for width in times
    )


def _spread(rounds: Sequence[float]) -> float:
    """Interquartile range divided by the median: a single interrupted round does not count."""
    if len(rounds) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return (high - low) / middle if middle > 0 else 0.0


def tune(
    products: Sequence[AnyProduct],
    card: Card,
    measure: Measure,
    progress: Progress,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Choice]:
    """Choices for `products`, in order, until BUDGET_S is used up. Measuring a product is never interrupted."""
    found: dict[str, Choice] = {}
    used = 0.0
    for done, product in enumerate(products):
        if used >= BUDGET_S:
            break
        progress("timing kernels", done / len(products))
        began = clock()
        found[str(product)] = choose(_times(product, candidates(product, card), measure))
        used += clock() - began
    return found


def _times(product: AnyProduct, ways: Sequence[Way], measure: Measure) -> dict[Way, dict[int, list[float]]]:
    times: dict[Way, dict[int, list[float]]] = {way: {width: [] for width in TIMED} for way in ways}
    for width, turn in itertools.product(TIMED, range(ROUNDS)):
        # Alternate forwards and backwards: a card that warms up or slows down then affects all ways equally.
        for way in ways if turn % 2 == 0 else reversed(ways):
            times[way][width].append(measure(product, way, width))
    return times


# ---- On disk -------------------------------------------------------------------------------------------------------


def path_of(folder: Path, card: str) -> Path:
    """The file with a card's tuning, next to its compiled kernels."""
    return folder / f"tuning-{re.sub('[^A-Za-z0-9]+', '-', card).strip('-') or 'card'}.json"


def load(folder: Path, identity: Identity) -> tuple[Tuning, str]:
    """The stored tuning for `identity`, or an empty one; and why a stored file is not used, or "".

    A file that is damaged, or that was measured with another driver or other kernels, is not used at all.
    """
    path = path_of(folder, identity.card)
    nothing = Tuning(identity)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return nothing, ""
    except (ValueError, RecursionError):
        return nothing, f"{path.name} is damaged; kernels are timed again"
    try:
        if data["format"] != FORMAT:
            return nothing, ""
        found = Identity(**data["identity"])
        steps = {target: {name: float(ms) for name, ms in of.items()} for target, of in data["steps"].items()}
        gains = {target: float(gain) for target, gain in data["gains"].items()}
        passes, chunks = _by_rows(data["passes"]), _by_rows(data["chunks"])
        tuning = Tuning(identity, _choices(data["choices"]), passes, steps, gains, chunks)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return nothing, f"{path.name} is damaged; kernels are timed again"
    if found == identity:
        return tuning, ""
    if found.driver != identity.driver:
        what = f"under driver {found.driver}, this is {identity.driver}"
    elif found.kernels != identity.kernels:
        what = "before their sources or the compiler changed"
    else:
        what = f"on {found.card} with {found.multiprocessors} multiprocessors"
    return nothing, f"kernels were timed {what}; they are timed again"


def store(folder: Path, tuning: Tuning) -> str:
    """Save the tuning atomically. Returns why it could not be saved, or ""."""
    path = path_of(folder, tuning.identity.card)
    data = {
        "format": FORMAT,
        "identity": asdict(tuning.identity),
        "choices": {name: choice.to_json() for name, choice in tuning.choices.items()},
        "gains": dict(tuning.gains),
        "steps": {target: dict(steps) for target, steps in tuning.steps.items()},
        "passes": _named(tuning.passes),
        "chunks": _named(tuning.chunks),
    }
    try:
        write_whole(path, json.dumps(data, indent=1).encode())
    except OSError as error:
        return f"kernel timings cannot be saved in {folder} ({error.strerror or error}); every start repeats them"
    return ""


def _choices(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Choice]:
    found = {}
    for name, one in data.items():
        runner_up = Way.of(one["runner_up"]) if one["runner_up"] else None
        us, default_us = float(one["us"]), float(one["default_us"])
        choice = Choice(Way.of(one["way"]), us, default_us, runner_up, float(one["runner_up_us"]), float(one["spread"]))
        found[str(name)] = choice
    return found


def _by_rows(data: Mapping[str, Mapping[str, float]]) -> dict[str, dict[int, float]]:
    return {target: {int(rows): float(ms) for rows, ms in times.items()} for target, times in data.items()}


def _named(times: Mapping[str, Mapping[int, float]]) -> dict[str, dict[str, float]]:
    return {target: {str(rows): ms for rows, ms in of.items()} for target, of in times.items()}
