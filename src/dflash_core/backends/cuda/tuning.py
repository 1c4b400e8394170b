"""Which way of computing each product is fastest on the card at hand: what is tried, how it is chosen, how it is kept.

A plan's default comes from arithmetic and from the cards that were measured; on other cards it may be wrong. So at the
first load a few ways of each product are timed on the weights themselves. One way per product holds at all widths: a
column's bits must not depend on the width. What was found is kept next to the compiled kernels, by card, driver and
kernels, and is not measured again. Nothing here touches a card: `Measure` does (tuner.py).
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
from dflash_core.backends.cuda.shares import MOST_PARTIALS
from dflash_core.errors import UnsupportedError
from dflash_core.files import write_whole
from dflash_core.progress import Progress

FORMAT = 3
MOST_CANDIDATES = 6
ROUNDS = 7  # in each of which every candidate of a product is timed
BUDGET_S = 5.0  # of timing; products after it are timed at the next load
LEAST_GAIN = 0.02  # over the default: a smaller gain is not worth sums that differ between cards
MOST_SPREAD = 0.10  # of the middle half of the default's times: above it the times do not show the card's own speed
LEAST_BYTES = 4 << 20  # of a product: a smaller one spends most of its time on the launch
# What a candidate costs: its time at these widths, by weight.
TIMED: Mapping[int, float] = {1: 1.0, 24: 2.0}

AnyProduct = Product | ExpertProduct
# Seconds by width and round.
Rounds = Mapping[int, Sequence[float]]
# Seconds of a launch in one more round, of a product at a width, computed in a way.
Measure = Callable[[AnyProduct, Way, int], float]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a measurement holds for. `kernels`: a hash of the sources and the compiler."""

    card: str
    multiprocessors: int
    driver: str
    kernels: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The way of a product, and how it was found: microseconds of a launch, by weight over the widths.

    `spread`: of the default's times, as a share; above MOST_SPREAD the default is kept, whatever was measured.
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
    """All that is known of one card. `choices`: by the name of a product. By the name of a target: `passes`,
    milliseconds of a verify pass by its width; `steps`, of a whole step by the name of a case of a benchmark; `gains`,
    what the choices bring to whole passes, as a share: where that is little, plans stay as they are."""

    identity: Identity
    choices: Mapping[str, Choice] = field(default_factory=dict)
    passes: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    steps: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)

    @property
    def ways(self) -> tuple[tuple[str, Way], ...]:
        """For `plan.Card`: the choices that differ from the default."""
        return tuple((name, choice.way) for name, choice in sorted(self.choices.items()) if choice.way != Way())

    def ways_of(self, target: str) -> tuple[tuple[str, Way], ...]:
        """The same where whole passes of the target gained by them."""
        return self.ways if self.gains.get(target, 0.0) >= LEAST_GAIN else ()

    @property
    def unsteady(self) -> float:
        """The largest spread that made a product keep its default; 0 where none did."""
        return max((choice.spread for choice in self.choices.values() if choice.unsteady), default=0.0)

    @property
    def note(self) -> str:
        """What a user should know of it, or ""."""
        if not self.unsteady:
            return ""
        return (
            f"times of kernels scattered by {self.unsteady:.0%} (expected {MOST_SPREAD:.0%} at most: the card is "
            "throttled or shared), so plans stay as they are; dflash-tui doctor --tune times them again"
        )

    def knows(self, product: AnyProduct, card: Card) -> bool:
        """Whether nothing is left to choose. A choice that is no candidate comes from an older list, or from a
        file that was changed, and does not count."""
        choice, ways = self.choices.get(str(product)), candidates(product, card)
        return len(ways) == 1 or (choice is not None and choice.way in ways)

    def with_choices(self, found: Mapping[str, Choice]) -> Tuning:
        """This with the choices in `found` added; the gain of whole passes is then not known."""
        return replace(self, choices={**self.choices, **found}, gains={})

    def with_gain(self, target: str, plain: Rounds, tuned: Rounds) -> Tuning:
        """Seconds of whole passes by width and round, on plans as they are and on the choices."""
        return replace(self, gains={**self.gains, target: 1.0 - score(tuned) / score(plain)})

    def with_steps(self, target: str, found: Mapping[str, float]) -> Tuning:
        return replace(self, steps={**self.steps, target: dict(found)})

    def with_passes(self, target: str, found: Mapping[int, float]) -> Tuning:
        return replace(self, passes={**self.passes, target: dict(found)})


def candidates(product: AnyProduct, card: Card) -> tuple[Way, ...]:
    """Ways to try, the default first; at most MOST_CANDIDATES. Each is compiled, and none is refused by the card."""
    if isinstance(product, ExpertProduct):
        return expert_ways(product, card)
    plain = replace(card, way=Way(), ways=())
    default = _planned(product, plain)
    assert default is not None, "a product that the card has no plan for"
    ways = [Way()]
    if product.split_k is None:
        # The parts of K on either side: the plan's formula may be wrong, but not by much.
        ways += [Way(split_k=count) for count in (default.split_k - 1, default.split_k + 1) if count > 0]
    ways.append(Way(chunked=not default.chunked))
    found: list[Way] = []
    for way in ways:
        deal = _planned(product, replace(plain, way=way))
        if deal is not None and (way == Way() or _differs(deal, default)):
            found.append(way)
    return tuple(found[:MOST_CANDIDATES])


def _planned(product: Product, card: Card) -> Plan | None:
    try:
        return plan(product.shapes, product.columns, card, rounding=product.rounding, split_k=product.split_k)
    except UnsupportedError:
        return None


def _differs(deal: Plan, default: Plan) -> bool:
    """Whether a launch differs at some width. None may read weights more often than the default does, or leave
    more partials than a small L2 can take: what that costs is paid by the next kernel, where it is not timed."""
    if len(deal.passes(MAX_COLUMNS)) > len(default.passes(MAX_COLUMNS)):
        return False
    if deal.split_k > 1 and deal.partial_bytes > max(MOST_PARTIALS, default.partial_bytes):
        return False
    return any(deal.defines(width) != default.defines(width) for width in TIMED) or deal.split_k != default.split_k


def choose(times: Mapping[Way, Rounds]) -> Choice:
    """The way of one product, from its times in seconds by width and round; the default's among them."""
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
    """One figure of times by width, weighed by TIMED."""
    return sum(TIMED[width] * statistics.median(rounds) for width, rounds in times.items()) / sum(
        TIMED[width] for width in times
    )


def _spread(rounds: Sequence[float]) -> float:
    """Range of the middle half over the median: one interrupted round must not count."""
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
    """Choices for `products`, in order, until BUDGET_S is used up. The measuring of a product is not cut short."""
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
        # Forwards, then backwards: a card that warms up or slows down affects all of them alike.
        for way in ways if turn % 2 == 0 else reversed(ways):
            times[way][width].append(measure(product, way, width))
    return times


# ---- On disk -------------------------------------------------------------------------------------------------------


def path_of(folder: Path, card: str) -> Path:
    """The file of a card's tuning, next to its compiled kernels."""
    return folder / f"tuning-{re.sub('[^A-Za-z0-9]+', '-', card).strip('-') or 'card'}.json"


def load(folder: Path, identity: Identity) -> tuple[Tuning, str]:
    """What is kept for `identity`, empty where nothing is, and why a stored file is not used, or "".

    Measured under another driver, or with other kernels, or a file that is damaged: all of it is measured again.
    """
    path = path_of(folder, identity.card)
    nothing = Tuning(identity)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return nothing, ""
    except ValueError:
        return nothing, f"{path.name} is damaged; kernels are timed again"
    try:
        if data["format"] != FORMAT:
            return nothing, ""
        found = Identity(**data["identity"])
        steps = {target: {name: float(ms) for name, ms in of.items()} for target, of in data["steps"].items()}
        gains = {target: float(gain) for target, gain in data["gains"].items()}
        tuning = Tuning(identity, _choices(data["choices"]), _passes(data["passes"]), steps, gains)
    except (AttributeError, KeyError, TypeError, ValueError):
        return nothing, f"{path.name} is damaged; kernels are timed again"
    if found == identity:
        return tuning, ""
    if found.driver != identity.driver:
        what = f"under driver {found.driver}, this is {identity.driver}"
    elif found.kernels != identity.kernels:
        what = "with other kernels"
    else:
        what = f"on {found.card} with {found.multiprocessors} multiprocessors"
    return nothing, f"kernels were timed {what}; they are timed again"


def store(folder: Path, tuning: Tuning) -> str:
    """Save it atomically. Returns why it could not be kept, or ""."""
    path = path_of(folder, tuning.identity.card)
    data = {
        "format": FORMAT,
        "identity": asdict(tuning.identity),
        "choices": {name: choice.to_json() for name, choice in tuning.choices.items()},
        "gains": dict(tuning.gains),
        "steps": {target: dict(steps) for target, steps in tuning.steps.items()},
        "passes": {
            target: {str(width): ms for width, ms in passes.items()} for target, passes in tuning.passes.items()
        },
    }
    try:
        write_whole(path, json.dumps(data, indent=1).encode())
    except OSError as error:
        return f"timings of kernels cannot be kept in {folder} ({error.strerror or error}); every start takes them"
    return ""


def _choices(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Choice]:
    found = {}
    for name, one in data.items():
        runner_up = Way.of(one["runner_up"]) if one["runner_up"] else None
        us, default_us = float(one["us"]), float(one["default_us"])
        choice = Choice(Way.of(one["way"]), us, default_us, runner_up, float(one["runner_up_us"]), float(one["spread"]))
        found[str(name)] = choice
    return found


def _passes(data: Mapping[str, Mapping[str, float]]) -> dict[str, dict[int, float]]:
    return {target: {int(width): float(ms) for width, ms in passes.items()} for target, passes in data.items()}
