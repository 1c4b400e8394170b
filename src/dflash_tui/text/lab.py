"""The lab's results in words and columns, for the screens and for the command line."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_core.bench.statistics import FEWEST_PAIRS, Summary
from dflash_core.knobs import SPEC
from dflash_core.lab.grid import show
from dflash_core.lab.progress import ExperimentProgress
from dflash_core.lab.sweep import SweepResult
from dflash_core.lab.table import Row, best, rows
from dflash_core.lab.versus import Versus
from dflash_core.lab.whatif import AutoTurn, Curve, Point
from dflash_tui.text.bars import change, counted, meter, percent, seconds, speed
from dflash_tui.text.plot import Mark

SURE = {"measured": "", "interpolated": "~", "extrapolated": "≈"}
HEADINGS = ("tok/s", "quartiles", "tok/step", "ms/step", "against the best")
FIGURES = ("median", "quartiles", "acceptance", "step_ms", "difference")
"""Glossary keys of the table's columns after the first."""


def headings(result: SweepResult) -> tuple[str, ...]:
    """The columns of the table; the first is named after the swept parameters."""
    return (f"  {', '.join(SPEC[name].label for name in result.axes) or 'setting'}", *HEADINGS)


def cells(row: Row, top: Row | None, axes: Sequence[str]) -> tuple[str, ...]:
    """One row of the table: a text per column of `headings`."""
    values = ", ".join(show(SPEC[name], getattr(row.setting.knobs, name)) for name in axes)
    return (
        f"{'★' if row is top else ' '} {values or row.setting.label}",
        speed(row.tok_s.median),
        spread(row.tok_s),
        f"{row.acceptance:.2f}",
        f"{row.step_ms:.1f}",
        "best" if row is top or top is None else against(row, top),
    )


def spread(it: Summary) -> str:
    """The quartiles; empty for a single run."""
    return f"{speed(it.low)}–{speed(it.high)}" if it.n > 1 else "one run"


def against(row: Row, top: Row) -> str:
    """A row compared with the best: the share is of the two medians shown, the verdict of the paired test."""
    share = percent(change(speed(row.tok_s.median), speed(top.tok_s.median)))
    it = row.versus_best
    if it is None:
        return f"{share}, not paired"
    if it.verdict == "noise":
        return f"{share}, noise"
    if it.verdict == "too few pairs":
        return f"{share}? {counted(it.n, 'pair')}"  # short: 80 columns have no place for how many are needed
    return share


def too_few(pairs: int) -> str:
    """What a comparison says that has fewer pairs than it takes. "n of m pairs" means elsewhere that n of m agree."""
    return f"only {counted(pairs, 'pair')}, {FEWEST_PAIRS} needed"


def table(result: SweepResult) -> list[str]:
    """The table as aligned lines; if two parameters were swept, a grid of speeds follows."""
    its = rows(result)
    top = best(its)
    body = [headings(result), *(cells(row, top, result.axes) for row in its)]
    widths = [max(map(len, column)) for column in zip(*body)]
    lines = []
    for line in body:
        first, *middle, last = line
        padded = [f"{text:>{width}}" for text, width in zip(middle, widths[1:-1])]
        lines.append("  ".join([first.ljust(widths[0]), *padded, last]).rstrip())
    return lines


Cell = tuple[str, float | None]
"""A piece of a line. Of a speed, where it lies between the slowest (0) and the best (1)."""


def field(result: SweepResult, width: int = 0) -> list[list[Cell]]:
    """Median tok/s over two parameters, line by line; empty if only one was swept. The first goes downwards, unless the
    lines would be longer than `width` and shorter the other way round."""
    if len(result.axes) != 2:
        return []
    down, across = result.axes
    lines = _field(result, down, across)
    if max(map(len, plain(lines))) > width > 0:
        lines = min(lines, _field(result, across, down), key=lambda found: len(found[-1]))
    return lines


def plain(lines: Sequence[Sequence[Cell]]) -> list[str]:
    """The lines of a field without its colors."""
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def _field(result: SweepResult, down: str, across: str) -> list[list[Cell]]:
    its = rows(result)
    top = best(its)
    speeds = {(getattr(r.setting.knobs, down), getattr(r.setting.knobs, across)): r for r in its}
    ys = dict.fromkeys(getattr(one.knobs, down) for one in result.settings)
    xs = dict.fromkeys(getattr(one.knobs, across) for one in result.settings)
    left = [show(SPEC[down], y) for y in ys]
    above = [show(SPEC[across], x) for x in xs]
    shown = {at: ("★" if row is top else "") + speed(row.tok_s.median) for at, row in speeds.items()}
    gutter, cell = max(map(len, left)), max(map(len, (*above, *shown.values()))) + 1
    slowest = min((row.tok_s.median for row in its), default=0.0)
    span = (top.tok_s.median - slowest if top is not None else 0.0) or 1.0
    title = f"tok/s: {SPEC[down].label} ↓, {SPEC[across].label} →"  # short: it is next to a wide table
    lines: list[list[Cell]] = [[(title, None)]]
    lines.append([(" " * gutter, None), *((f"{name:>{cell}} ", None) for name in above)])
    for name, y in zip(left, ys):
        line: list[Cell] = [(name.rjust(gutter), None)]
        for x in xs:
            row = speeds.get((y, x))
            share = None if row is None else min((row.tok_s.median - slowest) / span, 1.0)
            line.append((f"{shown.get((y, x), ''):>{cell}} ", share))
        lines.append(line)
    return lines


def curve(result: SweepResult) -> tuple[list[Mark], str]:
    """Median tok/s over the only swept parameter, and a title; no marks if its values have no order."""
    if len(result.axes) != 1 or SPEC[result.axes[0]].kind not in ("int", "float"):
        return [], ""
    its = rows(result)
    top = best(its)
    marks = [
        Mark(float(getattr(row.setting.knobs, result.axes[0])), row.tok_s.median, "★" if row is top else "●")
        for row in sorted(its, key=lambda row: row is top)  # the best last, so that it is on top
    ]
    return marks, f"tok/s by {SPEC[result.axes[0]].label}   ★ best"


def notes(result: SweepResult, *, running: bool = False) -> list[str]:
    """What the table does not tell: how much was measured, what was left out, whether texts agree."""
    left_out, its = result.excluded, rows(result)
    prompts = len(result.prompts) - len(left_out)
    lines = [
        f"{counted(len(result.trials), 'run')}: {counted(prompts, 'prompt')}, "
        f"{counted(result.repeats, 'repeat')}, settings taking turns; warm-up not counted"
    ]
    if result.settings:
        lines.append(f"fixed: {fixed(result)}")
    if not result.complete:
        so_far = "so far" if running else "cut short"
        lines.append(f"{so_far}: only runs that every setting has are compared")
    if left_out:
        first = "; ".join(f"{one.name}: {one.reason}" for one in left_out[:2])
        more = f" and {len(left_out) - 2} more" if len(left_out) > 2 else ""
        lines.append(f"{counted(len(left_out), 'prompt')} left out ({first}{more})")
    scored = sum(row.right[1] for row in its)
    if scored:
        lines.append(f"answers right: {sum(row.right[0] for row in its)} of {scored} that could be scored")
    other = sum(row.other_text for row in its)
    if other:
        lines.append(
            f"{counted(other, 'run')} gave a different text than the first run with the same sampling (a near-tie)"
        )
    few = [row.versus_best.n for row in its if row.versus_best and row.versus_best.verdict == "too few pairs"]
    if few:
        lines.append(f"{too_few(min(few))} for a difference to be more than noise: more prompts, or more repeats")
    return lines


def fixed(result: SweepResult) -> str:
    """What all settings of a sweep share: the drafter, and what differs from the defaults."""
    knobs = [setting.knobs for setting in result.settings]
    same = [name for name in SPEC if len({getattr(one, name) for one in knobs}) == 1 and name not in result.axes]
    always = ("mode", "policy", "budget", "p_min", "temperature", "max_tokens")
    named = [name for name in same if name in always or getattr(knobs[0], name) != SPEC[name].default]
    return ", ".join(f"{name} {show(SPEC[name], getattr(knobs[0], name))}" for name in named)


def progress(it: ExperimentProgress) -> str:
    """How far a sweep is, in one line."""
    share = it.done / it.total if it.total else 0.0
    left = f" · {seconds(it.left_s)} left" if it.left_s is not None else ""
    return f"{meter(share, 12)} {it.done} of {it.total}{left} · {it.doing}"


def best_line(it: Curve) -> str:
    """The result of a what-if curve in one line."""
    top, now = it.best, it.at(it.current)
    if top is None:
        timed = "only steps of one budget" if it.measured else "too few steps"
        return f"best: not known, {timed} have been timed; m times others"
    text = f"best: budget {top.budget}, {_speed(top)}"
    if now is not None and now.tok_s and top.tok_s and now is not top:
        gain = percent(change(speed(top.tok_s), speed(now.tok_s)))
        text += f"; budget {it.current}, {_speed(now)}: {gain} with the best"
    return text


def auto_line(auto: AutoTurn, it: Curve) -> str:
    """The turn's figures under auto, and those that the fixed budget would have had."""
    text = f"auto: {auto.length:.2f} tok/step with {auto.nodes:.1f} draft tokens"
    fixed = it.at(it.current)
    saved = auto.saved(fixed) if fixed is not None else None
    if saved is None:
        return f"{text}; how long budget {it.current} would take is not known"
    verb = f"saved {seconds(saved)} of" if saved >= 0 else f"lost {seconds(-saved)} against"
    return f"{text}; auto {verb} the {seconds(auto.seconds + saved)} that budget {it.current} takes"


def auto_cells(auto: AutoTurn) -> tuple[str, str, str]:
    """tok/step, ms/step and tok/s of a turn under auto."""
    return f"{auto.length:.2f}", f"{auto.ms:.1f}", speed(auto.tok_s) if auto.tok_s else "–"


def sources(it: Curve) -> str:
    """The source of a curve's step times."""
    if not it.measured:
        return "ms per step: not timed yet"
    shown = it.measured if len(it.measured) <= 8 else (*it.measured[:7], "…")
    nodes = ",".join(map(str, shown))
    unknown = "; ? not known, m times them" if any(point.ms is None for point in it.points) else ""
    return f"ms timed at {nodes} draft tokens; ~ interpolated, ≈ beyond them{unknown}"


def point_ms(point: Point) -> str:
    """Milliseconds with their source: 12.3 measured, ~12.3 interpolated, ≈12.3 extrapolated."""
    if point.ms is None:
        return "?"
    return f"{SURE[point.source or 'measured']}{point.ms:.1f}"


def finding(it: Versus, labels: Sequence[str]) -> str:
    """Which of two settings is faster, and how sure that is, in one line."""
    one = it.figures[0].comparison
    counts = f"{max(one.wins, one.losses)} of {counted(one.n, 'pair')}, sign test p = {one.p:.2g}"
    if not one.matters:
        why = too_few(one.n) if one.verdict == "too few pairs" else counts
        return f"no difference beyond noise so far: B {percent(one.difference)} by the paired median ({why})"
    faster = labels[1] if one.difference > 0 else labels[0]
    return f"{faster} is faster: B {percent(one.difference)} against A by the paired median ({counts})"


def versus_table(it: Versus) -> list[str]:
    """Median and quartiles of both sides, and the relative difference of the medians, a line per figure."""
    lines = [f"{'':<20}{'A':>21}{'B':>21}   B against A"]
    for one in it.figures:
        digits = 2 if one.unit == "tok/step" else 1
        medians = [f"{side.median:.{digits}f}" for side in (one.a, one.b)]
        a, b = (
            f"{median} ({side.low:.{digits}f}–{side.high:.{digits}f})" for median, side in zip(medians, (one.a, one.b))
        )
        c = one.comparison
        noise = "" if c.matters else f"  {c.verdict}"
        share = percent(change(medians[1], medians[0])) if one.a.median else ""
        lines.append(f"{f'{one.name}, {one.unit}':<20}{a:>21}{b:>21}   {share}{noise}")
    return lines


def same_text(it: Versus) -> str:
    """Whether the newest answers of both sides are the same."""
    if it.same_tokens:
        return f"both answers are the same, {len(it.a.tokens)} tokens"
    return f"the answers differ ({len(it.a.tokens)} and {len(it.b.tokens)} tokens): underlined below"


def _speed(point: Point) -> str:
    return f"{SURE[point.source or 'measured']}{speed(point.tok_s or 0)} tok/s"


def whatif_table(points: Sequence[Point], current: int, top: Point | None) -> list[tuple[str, ...]]:
    """Lines of (mark and budget, tok/step, ms/step, tok/s)."""
    out: list[tuple[str, ...]] = []
    for point in points:
        mark = "★" if point is top else "◆" if point.budget == current else " "
        rate = speed(point.tok_s) if point.tok_s else "?"
        out.append((f"{mark} {point.budget}", f"{point.acceptance.length:.2f}", point_ms(point), rate))
    return out
