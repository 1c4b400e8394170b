"""One setting against another on the same prompt: the paired differences, and the two answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dflash_core.bench.statistics import Comparison, Summary, compare, summary
from dflash_core.errors import KnobError
from dflash_core.events import TurnReport
from dflash_core.knobs import SPEC, Knobs, parse_settings
from dflash_core.lab.grid import Setting, check, show
from dflash_core.lab.sweep import SweepResult, Trial
from dflash_core.limits import Limits

TREE_OR_CHAIN = "mode=chain | mode=tree"
"""The preset: the tree against the chain."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure of both settings, and how B's differs from A's over the runs that were paired."""

    name: str
    unit: str
    a: Summary
    b: Summary
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Versus:
    """The result so far; the answers are those of the newest pair."""

    pairs: int
    figures: tuple[Figure, ...]
    a: TurnReport
    b: TurnReport

    @property
    def same_tokens(self) -> bool:
        return self.a.tokens == self.b.tokens


def parse_pair(text: str, base: Knobs, limits: Limits) -> tuple[Setting, Setting]:
    """Two settings from `name=value ... | name=value ...`; without a bar, `base` against the given one.

    For an empty text, the preset. Raises KnobError: unknown or impossible settings, or two that are the same.
    """
    left, bar, right = (text.strip() or TREE_OR_CHAIN).partition("|")
    if not bar:
        left, right = "", left
    a, b = (_setting(side.split(), base, limits) for side in (left, right))
    if not bar:
        names = [word.partition("=")[0] for word in right.split()]
        a = Setting(" ".join(f"{name}={show(SPEC[name], getattr(base, name))}" for name in names) + " (now)", base)
    if a.knobs == b.knobs:
        raise KnobError(f"both settings are the same ({a.label}); give two that differ, for example {TREE_OR_CHAIN}")
    return a, b


def versus(result: SweepResult) -> Versus | None:
    """Compare setting 1 with setting 0 of `result` by the pairs that both have; None before the first pair."""
    sides: tuple[dict[tuple[int, int], Trial], ...] = ({}, {})
    for trial in result.trials:
        sides[trial.setting][trial.pair] = trial
    pairs = [pair for pair in sides[0] if pair in sides[1]]
    if not pairs:
        return None
    a, b = ([side[pair] for pair in pairs] for side in sides)
    figures = tuple(_figure(name, unit, value, a, b) for name, unit, value in _FIGURES)
    return Versus(len(pairs), figures, a[-1].report, b[-1].report)


def _setting(words: list[str], base: Knobs, limits: Limits) -> Setting:
    changes: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise KnobError(f"{word}: expected NAME=VALUE, for example {TREE_OR_CHAIN}")
        changes[name] = value
    setting = Setting(" ".join(words) or "now", base.replace(**parse_settings(changes)))
    check(setting, frozenset(changes), limits)
    return setting


def _figure(name: str, unit: str, value: Callable[[Trial], float], a: list[Trial], b: list[Trial]) -> Figure:
    left, right = [value(trial) for trial in a], [value(trial) for trial in b]
    return Figure(name, unit, summary(left), summary(right), compare(left, right))


_FIGURES: tuple[tuple[str, str, Callable[[Trial], float]], ...] = (
    ("speed", "tok/s", lambda trial: trial.report.stats.tokens_per_second),
    ("acceptance", "tok/step", lambda trial: trial.report.stats.acceptance_length),
    ("step", "ms", lambda trial: trial.report.stats.decode_s / trial.report.stats.steps * 1e3),
)
