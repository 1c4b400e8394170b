"""A tuning in words and rows. Every percentage is of the two figures beside it, or says that it is paired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_core.lab.halving import Arm, Standing, Verdict
from dflash_tui.text.bars import bar, percent, speed

HEADINGS = ("", "setting", "tok/s", "", "paired, against now", "tok/step", "ms/step", "runs")
FIGURES = ("", "", "median", "", "difference", "acceptance", "step_ms", "runs")
BAR = 16
BAR_CELL = HEADINGS.index("", 1)


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table; `arm` is its place among the settings."""

    arm: int
    cells: tuple[str, ...]


def lines(standings: Sequence[Standing], verdict: Verdict | None, *, width: int) -> list[Line]:
    """The fastest first; the best with a star, those that went with a dot."""
    top = max((one.tok_s for one in standings), default=0.0)
    best = verdict.best if verdict is not None else -1
    wide = width >= 100
    found = []
    for one in standings:
        mark = "★" if one.arm == best else " " if one.left else "·"
        role = f"  {one.role}" if one.role and one.role != one.setting.label else ""
        cells = (
            mark,
            f"{one.setting.label}{role}",
            speed(one.tok_s),
            bar(one.tok_s / top, BAR if wide else BAR // 2) if top else "",
            against(one),
            f"{one.acceptance:.2f}",
            f"{one.step_ms:.1f}",
            str(one.pairs),
        )
        found.append(Line(one.arm, cells if wide else (*cells[:5], cells[7])))
    return found


def headings(*, width: int) -> tuple[str, ...]:
    """Those of `lines`, at the same width."""
    return HEADINGS if width >= 100 else (*HEADINGS[:4], "paired", HEADINGS[7])


def figures(*, width: int) -> tuple[str, ...]:
    """What the columns are, by the glossary."""
    return FIGURES if width >= 100 else (*FIGURES[:5], FIGURES[7])


def against(one: Standing) -> str:
    """A setting against the present one: the paired median, and how many pairs say so."""
    if one.role == "now":
        return "now"
    it = one.versus_now
    if it is None:
        return ""
    if it.n < 2:
        return percent(it.difference)
    agree = f"{max(it.wins, it.losses)} of {it.n}"
    return f"{percent(it.difference)} ({agree})" if it.verdict != "noise" else f"noise ({percent(it.difference)})"


def words(arms: Sequence[Arm], verdict: Verdict | None, *, running: bool, complete: bool) -> str:
    """The finding in a sentence."""
    if verdict is None:
        return "measuring the first settings…" if running else "nothing was measured"
    best = arms[verdict.best]
    so_far = "so far: " if running else "" if complete else "cut short; so far: "
    if best.role == "now":
        return f"{so_far}the present setting is the best: {best.setting.label}, {speed(verdict.now_tok_s)} tok/s"
    figures = f"{best.setting.label}: {speed(verdict.tok_s)} tok/s, now {speed(verdict.now_tok_s)}"
    gain = percent(verdict.tok_s / verdict.now_tok_s - 1)
    if verdict.real:
        return f"{so_far}{figures}: {gain}; real: {verdict.wins} of {verdict.pairs} pairs"
    few = "too few pairs to tell yet" if verdict.pairs < 6 else "no more than noise"
    return f"{so_far}{figures}: {gain}, {few}: {verdict.wins} of {verdict.pairs} pairs"
