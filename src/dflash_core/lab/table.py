"""The result of an experiment: a row per arm, the best one, and how sure the differences are.

Every difference is the median of paired ratios (`bench/statistics.py`): against the arm that the experiment names, or
against the best.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from dflash_core.bench.statistics import MIN_PAIRS, Comparison, Summary, compare, summary
from dflash_core.knobs import SPECS
from dflash_core.lab.grid import Arm
from dflash_core.lab.results import Result, Trial

Pairs = Mapping[tuple[int, int], Trial]


@dataclass(frozen=True, slots=True)
class ArmRow:
    """One arm. `tok_s`: medians and quartiles over runs; `acceptance`: tokens per step over all of its steps;
    `accepted`: as `TurnStats.accept_rate_by_depth`, over all of its steps.

    `versus` compares its tok/s with that of the experiment's base, or of the best row, pair by pair; None for these
    and where nothing can be paired. `right` is (right answers, answers that could be scored), `other_text` the runs
    whose tokens are not those of the first arm with the same sampling. `left`: it was not dropped.
    """

    index: int
    arm: Arm
    runs: int
    mode: str
    tok_s: Summary
    acceptance: float
    step_ms: float
    accepted: tuple[float, ...]
    right: tuple[int, int]
    other_text: int
    left: bool = True
    best: bool = False
    versus: Comparison | None = None

    @property
    def gain(self) -> float:
        """The difference from the arm that it is compared with; 0 for that one."""
        return self.versus.difference if self.versus is not None else 0.0


def rows(result: Result) -> tuple[ArmRow, ...]:
    """A row per arm that was measured, in the order of the arms.

    Only runs that every arm has which is left are counted, so that a cancelled experiment compares equal sets; of a
    dropped arm those that the base has too. If no prompt has been run with every arm, all runs are counted and nothing
    is compared.
    """
    by_arm: dict[int, dict[tuple[int, int], Trial]] = {}
    for trial in result.trials:
        by_arm.setdefault(trial.setting, {})[trial.pair] = trial
    level = _level(result, by_arm)
    shared = [pair for pair in by_arm.get(level[0], {}) if all(pair in by_arm.get(at, {}) for at in level)]
    out, texts = [], dict[tuple[object, ...], tuple[int, ...]]()
    for trial in result.trials:  # the tokens of the first run of every prompt with given parameters of drawing
        texts.setdefault(_drawn(result.arms[trial.setting], trial), trial.report.tokens)
    for at, its in sorted(by_arm.items()):
        base = by_arm.get(result.base if result.base is not None else at, its)
        paired = [pair for pair in its if pair in shared] if at in level else [pair for pair in its if pair in base]
        trials = [its[pair] for pair in (paired if shared and paired else its)]
        left = result.left is None or at in result.left
        out.append(_row(result.arms[at], at, trials, texts, left=left))
    if not shared:
        top = max(out, key=lambda row: row.tok_s.median, default=None)
        return tuple(replace(row, best=row is top) for row in out)

    def versus(at: int, other: int) -> Comparison | None:
        mine, its = by_arm[at], by_arm[other]
        pairs = shared if at in level and other in level else [pair for pair in mine if pair in its]
        return against(its, mine, pairs) if pairs and at != other else None

    top_at = _leader(level, result.base, versus)
    base_at = top_at if result.base is None else result.base
    return tuple(replace(row, best=row.index == top_at, versus=versus(row.index, base_at)) for row in out)


def best(table: Sequence[ArmRow]) -> ArmRow | None:
    return next((row for row in table if row.best), None)


def ranked(result: Result, arms: Sequence[int]) -> list[int]:
    """`arms` that have run, the fastest first; of equals the base."""
    found = {row.index: row for row in rows(result)}
    its = [found[at] for at in arms if at in found]
    return [row.index for row in sorted(its, key=lambda row: (-row.gain, row.index != result.base))]


def against(a: Pairs, b: Pairs, pairs: Sequence[tuple[int, int]]) -> Comparison | None:
    """How the speed of `b` differs from that of `a` over the `pairs` that both have; None where a clock gave none.

    Repeats are not prompts: what they show is how sure the clock is, not what other prompts would give. So a prompt is
    one pair, by the medians of its repeats. Only where there are too few prompts to say anything of others is every run
    a pair.
    """
    ordered = sorted(pairs)
    prompts = list(dict.fromkeys(prompt for prompt, _ in ordered))
    groups = [[pair] for pair in ordered]
    if len(prompts) >= MIN_PAIRS:
        groups = [[pair for pair in ordered if pair[0] == prompt] for prompt in prompts]
    left, right = (
        [statistics.median(side[pair].report.stats.tokens_per_second for pair in group) for group in groups]
        for side in (a, b)
    )
    return compare(left, right) if min(left) > 0 else None


def _level(result: Result, by_arm: Mapping[int, Pairs]) -> list[int]:
    """The arms that are compared on the same pairs: all of them, of halving those left that have caught up."""
    if result.left is None:
        return list(range(len(result.arms)))
    dropped = max((len(its) for at, its in by_arm.items() if at not in result.left), default=1)
    return [at for at, its in sorted(by_arm.items()) if at in result.left and len(its) >= dropped] or [0]


def _leader(level: Sequence[int], base: int | None, versus: Callable[[int, int], Comparison | None]) -> int:
    """The arm that is most ahead of the base; without a base the one that no other is ahead of."""

    def leader(of: int) -> int:
        return max(level, key=lambda at: (it.difference if (it := versus(at, of)) else 0.0, at == of))

    if base is not None:
        return leader(base)
    found, seen = level[0], set[int]()
    while found not in seen:  # medians need not be transitive
        seen.add(found)
        found = leader(found)
    return found


def _drawn(arm: Arm, trial: Trial) -> tuple[object, ...]:
    """What an answer depends on. Speculation is not part of it."""
    names = [spec.name for spec in SPECS if spec.group == "sampling"]
    return trial.prompt, *(
        getattr(arm.knobs, name) for name in (*names, "seed", "thinking", "max_tokens", "ignore_eos")
    )


def _row(
    arm: Arm, index: int, trials: Sequence[Trial], texts: dict[tuple[object, ...], tuple[int, ...]], *, left: bool
) -> ArmRow:
    stats = [trial.report.stats for trial in trials]
    steps = sum(one.steps for one in stats)
    scored = [trial.right for trial in trials if trial.right is not None]
    drafted, reached = [], []
    for rates in zip_longest(*(zip(one.drafted_by_depth, one.accept_rate_by_depth) for one in stats), fillvalue=(0, 0)):
        drafted.append(sum(count for count, _ in rates))
        reached.append(sum(count * rate for count, rate in rates))
    return ArmRow(
        index, arm, len(trials), trials[0].report.mode, summary([one.tokens_per_second for one in stats]),
        acceptance=sum(one.acceptance_length * one.steps for one in stats) / steps,
        step_ms=sum(one.decode_s for one in stats) / steps * 1e3,
        accepted=tuple(hits / count if count else 0.0 for hits, count in zip(reached, drafted)),
        right=(sum(scored), len(scored)),
        other_text=sum(trial.report.tokens != texts[_drawn(arm, trial)] for trial in trials), left=left,
    )  # fmt: skip
