"""A tuning in words and rows. Every percentage is computed from the two figures next to it, as displayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from dflash_core.bench.statistics import FEWEST_PAIRS
from dflash_core.lab.halving import Arm, Standing, Verdict
from dflash_tui.text.bars import bar, percent
from dflash_tui.text.bars import change as change_shown

HEADINGS = ("", "setting", "", "tok/s", "now", "difference", "tok/step", "ms/step", "runs")
FIGURES = ("", "", "", "median", "median", "difference", "acceptance", "step_ms", "runs")
NARROW = (0, 1, 2, 3, 4, 5, 8)  # the columns on a narrow screen
WIDE_FROM = 100
BAR = 16
WIDE_BAR = 48
BAR_CELL = HEADINGS.index("", 1)


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table; `arm` is its place among the settings."""

    arm: int
    cells: tuple[str, ...]


def lines(standings: Sequence[Standing], verdict: Verdict | None, *, width: int) -> list[Line]:
    """The best first, with a star; eliminated ones with a dot. Bar lengths show the speed relative to `now`."""
    gains = {one.arm: 1 + one.gain for one in standings if one.gain is not None}
    top = max(gains.values(), default=1.0)
    best = verdict.best if verdict is not None else -1
    found, shares = [], []
    for one in sorted(standings, key=lambda one: one.arm != best):
        mark = "★" if one.arm == best else " " if one.left else "·"
        role = f"  {one.role}" if one.role and one.role != one.setting.label else ""
        cells = (
            mark,
            f"{one.setting.label}{role}",
            "",
            rate(one.tok_s),
            rate(one.now_tok_s) if one.now_tok_s is not None and one.role != "now" else "",
            against(one),
            f"{one.acceptance:.2f}",
            f"{one.step_ms:.1f}",
            str(one.pairs),
        )
        found.append(Line(one.arm, _columns(cells, width)))
        shares.append(gains.get(one.arm, 0.0) / top)
    room = _bar_room([line.cells for line in found], width)
    return [
        Line(line.arm, (*line.cells[:BAR_CELL], bar(share, room) if share else "", *line.cells[BAR_CELL + 1 :]))
        for line, share in zip(found, shares)
    ]


def _bar_room(rows: Sequence[tuple[str, ...]], width: int) -> int:
    """Cells for a bar: the width that the other columns leave, up to a limit for looks."""
    wished = WIDE_BAR if width >= 140 else BAR if width >= WIDE_FROM else BAR // 2
    others = sum(max(map(cell_len, column)) for column in zip(headings(width=width), *rows))
    return max(min(wished, width - others - 2 * len(headings(width=width)) - 2), 0)


def headings(*, width: int) -> tuple[str, ...]:
    """The headings of `lines`, at the same width."""
    return _columns(HEADINGS, width)


def figures(*, width: int) -> tuple[str, ...]:
    """Glossary keys of the columns."""
    return _columns(FIGURES, width)


def _columns(cells: tuple[str, ...], width: int) -> tuple[str, ...]:
    return cells if width >= WIDE_FROM else tuple(cells[place] for place in NARROW)


def rate(tok_s: float) -> str:
    """A speed in the format that is used throughout a tuning."""
    return f"{tok_s:.1f}"


def change(tok_s: float, now_tok_s: float) -> float:
    """The relative difference of a speed from the current setting's, both as displayed."""
    return change_shown(rate(tok_s), rate(now_tok_s))


def beside(tok_s: float, now_tok_s: float | None) -> tuple[str, str]:
    """The current setting's speed and the difference from it, for a stored row."""
    if now_tok_s is None:
        return "", ""
    return rate(now_tok_s), percent(change(tok_s, now_tok_s))


def against(one: Standing) -> str:
    """A setting against the current one: the difference of the two figures in its row, and how many pairs agree."""
    it = one.versus_now
    if one.role == "now":
        return "now"
    if one.now_tok_s is None or it is None:
        return ""
    share = change(one.tok_s, one.now_tok_s)
    if it.n >= FEWEST_PAIRS and not one.real:
        return f"noise ({percent(share)})"
    agree = f" ({it.wins if share > 0 else it.losses} of {it.n})" if share and it.n > 1 else ""
    return f"{percent(share)}{agree}"


def words(arms: Sequence[Arm], verdict: Verdict | None, *, running: bool, complete: bool) -> str:
    """The result in a sentence."""
    if verdict is None:
        return "measuring the first settings…" if running else "nothing was measured"
    best = arms[verdict.best]
    so_far = "so far: " if running else "" if complete else "cut short; so far: "
    if best.role == "now":
        return f"{so_far}the present setting is the best: {best.setting.label}, {rate(verdict.now_tok_s)} tok/s"
    figures = f"{best.setting.label}: {rate(verdict.tok_s)} tok/s, now {rate(verdict.now_tok_s)}"
    gain = percent(change(verdict.tok_s, verdict.now_tok_s))
    if verdict.real:
        return f"{so_far}{figures}: {gain}; real: {verdict.wins} of {verdict.pairs} pairs"
    few = "too few pairs to tell yet" if verdict.pairs < FEWEST_PAIRS else "no more than noise"
    return f"{so_far}{figures}: {gain}, {few}: {verdict.wins} of {verdict.pairs} pairs"
