"""Sweep results made by hand, with known figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.knobs import Knobs
from dflash_core.lab.grid import parse_axes, settings
from dflash_core.lab.results import Excluded, Result, Trial
from dflash_core.limits import Limits
from dflash_core.turn_stats import TurnReport

from .turns import step_of, turn_of

PAIR = Limits(Capabilities("dflash", 16), context_length=32_768)
SPEEDS = (151.2, 192.4, 222.0, 194.6)
LENGTHS = (3.75, 5.62, 7.5, 7.51)
DRIFT = (1.0, 1.02, 0.99, 1.03, 0.98, 1.01)


def report_of(tok_s: float, length: float, knobs: Knobs, text: str = "A fox lived by the sea.") -> TurnReport:
    """A report with this speed and acceptance length."""
    report = turn_of([step_of()] * 10, knobs=knobs).report
    assert report is not None
    stats = replace(report.stats, tokens_per_second=tok_s, acceptance_length=length, decode_s=10 * length / tok_s)
    return replace(report, stats=stats, text=text, tokens=tuple(text.encode()))


def sweep_of(
    *axes: str,
    speeds: Sequence[float] = SPEEDS,
    lengths: Sequence[float] = LENGTHS,
    prompts: int = 1,
    repeats: int = 6,
    excluded: Sequence[Excluded] = (),
    complete: bool = True,
    base: int | None = None,
) -> Result:
    """A sweep whose settings have these speeds and lengths in turn. Runs deviate a little, by the same factor in all
    settings."""
    its = parse_axes(axes or ("budget=4,12,20,28",))
    grid = settings(its, Knobs(), PAIR)
    trials = []
    for repeat in range(repeats):
        for prompt in range(prompts):
            drift = DRIFT[(repeat * prompts + prompt) % len(DRIFT)]
            for number, setting in enumerate(grid):
                speed = speeds[number % len(speeds)] * drift
                report = report_of(speed, lengths[number % len(lengths)], setting.knobs)
                trials.append(Trial(number, prompt, repeat, report))
    names = tuple(f"prompt {n + 1}" for n in range(prompts)) + tuple(one.name for one in excluded)
    return Result(
        arms=grid,
        base=base,
        axes=tuple(axis.name for axis in its),
        prompts=names,
        repeats=repeats,
        trials=tuple(trials),
        excluded=tuple(excluded),
        complete=complete,
        about=(("program", "dflash-tui"), ("models", "demo pair")),
    )
