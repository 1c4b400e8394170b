"""The result of a sweep: a row per setting, the best one, and the ones that cannot be distinguished from it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash_core.bench.statistics import FEWEST_PAIRS, Comparison, Summary, compare, summary
from dflash_core.lab.grid import Setting
from dflash_core.lab.sweep import SweepResult, Trial


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. `tok_s`: medians and quartiles over runs; `acceptance`: tokens per step over all of its steps.

    `versus_best` compares its tok/s with the best row's, pair by pair; None for the best itself and where nothing can
    be paired. `right` is (right answers, answers that could be scored), `other_text` the runs whose tokens are not
    those of the first setting with the same sampling.
    """

    index: int
    setting: Setting
    runs: int
    mode: str
    tok_s: Summary
    acceptance: float
    step_ms: float
    right: tuple[int, int]
    other_text: int
    versus_best: Comparison | None = None


def rows(result: SweepResult) -> tuple[Row, ...]:
    """A row per setting that was measured, in the order of the grid.

    Only runs that every setting has are counted, so that a cancelled sweep compares equal sets; if no prompt has been
    run with every setting, all runs are counted and nothing is compared.
    """
    trials, paired = _comparable(result)
    by_setting: dict[int, list[Trial]] = {}
    for trial in trials:
        by_setting.setdefault(trial.setting, []).append(trial)
    texts = _texts(result, trials)
    plain = [_row(result.settings[at], at, its, texts) for at, its in sorted(by_setting.items())]
    top = best(plain)
    if top is None or not paired or top.tok_s.least <= 0:
        return tuple(plain)
    reference = _paired_speeds(by_setting[top.index])
    out = []
    for row in plain:
        values = _paired_speeds(by_setting[row.index])
        out.append(row if row is top else replace(row, versus_best=compare(reference, values)))
    return tuple(out)


def best(table: Sequence[Row]) -> Row | None:
    """The row with the highest median tok/s, the first of equals."""
    return max(table, key=lambda row: row.tok_s.median, default=None)


def _paired_speeds(trials: list[Trial]) -> list[float]:
    """What is paired with another setting's speeds: a median per prompt, or where prompts are few every run.

    Repeats are not prompts: what they show is how sure the clock is, not what other prompts would give. So they count
    alone only where there are too few prompts to say anything of others.
    """
    ordered = sorted(trials, key=lambda trial: trial.pair)
    prompts = dict.fromkeys(trial.prompt for trial in ordered)
    if len(prompts) < FEWEST_PAIRS:
        return [_speed(trial) for trial in ordered]
    return [statistics.median(_speed(trial) for trial in ordered if trial.prompt == prompt) for prompt in prompts]


def _comparable(result: SweepResult) -> tuple[list[Trial], bool]:
    count: dict[tuple[int, int], int] = {}
    for trial in result.trials:
        count[trial.pair] = count.get(trial.pair, 0) + 1
    whole = [trial for trial in result.trials if count[trial.pair] == len(result.settings)]
    return (whole, True) if whole else (list(result.trials), False)


def _speed(trial: Trial) -> float:
    return trial.report.stats.tokens_per_second


def _texts(result: SweepResult, trials: list[Trial]) -> dict[tuple[object, ...], tuple[int, ...]]:
    """The tokens of the first run of every prompt with a given way of drawing them."""
    texts: dict[tuple[object, ...], tuple[int, ...]] = {}
    for trial in trials:
        texts.setdefault(_drawn(result.settings[trial.setting], trial), trial.report.tokens)
    return texts


def _drawn(setting: Setting, trial: Trial) -> tuple[object, ...]:
    """What an answer depends on. Speculation is not part of it."""
    k = setting.knobs
    penalties = (k.repetition_penalty, k.frequency_penalty, k.presence_penalty)
    chain = (k.temperature, k.top_k, k.top_p, k.min_p, k.seed, *penalties)
    return (trial.prompt, k.thinking, k.max_tokens, k.ignore_eos, *chain)


def _row(setting: Setting, index: int, trials: list[Trial], texts: dict[tuple[object, ...], tuple[int, ...]]) -> Row:
    stats = [trial.report.stats for trial in trials]
    steps = sum(one.steps for one in stats)
    scored = [trial.right for trial in trials if trial.right is not None]
    return Row(
        index=index,
        setting=setting,
        runs=len(trials),
        mode=trials[0].report.mode,
        tok_s=summary([one.tokens_per_second for one in stats]),
        acceptance=sum(one.acceptance_length * one.steps for one in stats) / steps,
        step_ms=sum(one.decode_s for one in stats) / steps * 1e3,
        right=(sum(scored), len(scored)),
        other_text=sum(trial.report.tokens != texts[_drawn(setting, trial)] for trial in trials),
    )
