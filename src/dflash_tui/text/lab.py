"""The lab's results in words and columns, for the screens and for the command line."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_core.bench.statistics import MIN_PAIRS, Comparison
from dflash_core.drafting import kind_of
from dflash_core.knobs import SPEC, spec_of
from dflash_core.lab.grid import show
from dflash_core.lab.results import ExperimentProgress, Result
from dflash_core.lab.table import ArmRow, best, rows
from dflash_core.lab.whatif import AutoTurn, Curve, Point
from dflash_tui.application.amounts import change, counted, percent, seconds, speed
from dflash_tui.text.bars import Mark, bar, meter

SURE = {"measured": "", "interpolated": "~", "extrapolated": "≈"}
HEADINGS = ("", "tok/s", "quartiles", "tok/step", "ms/step", "difference", "runs")
"""Columns after the first."""
NARROW = ("tok/s", "tok/step", "difference", "runs")
WIDE_FROM = 100
BAR = 24
DEPTHS = 12


def columns(result: Result, width: int) -> list[str]:
    """The columns of the table at a width; the first is named after the swept parameters."""
    first = f"  {', '.join(spec_of(name).label for name in result.axes) or 'setting'}"
    return [first, *(name for name in HEADINGS if (name or not result.axes) and (width >= WIDE_FROM or name in NARROW))]


def cells(result: Result, found_rows: Sequence[ArmRow], width: int) -> list[list[str]]:
    """The rows of the table, a text per column. Bars are speeds by the paired difference, all on one scale."""
    names = columns(result, width)[1:]
    top = max((1 + row.gain for row in found_rows), default=1.0)
    found = []
    for row in found_rows:
        it = row.tok_s
        values = {
            "": bar((1 + row.gain) / top, BAR), "tok/s": speed(it.median), "tok/step": f"{row.acceptance:.2f}",
            "quartiles": f"{speed(it.low)}–{speed(it.high)}" if it.n > 1 else "one run",
            "ms/step": f"{row.step_ms:.1f}", "difference": against(row, result), "runs": str(row.runs),
        }  # fmt: skip
        found.append([named(row, result.axes), *(values[name] for name in names)])
    return found


def named(row: ArmRow, axes: Sequence[str]) -> str:
    """The mark of a row and its setting: a star for the best, a dot for one that was dropped."""
    values = ", ".join(show(spec_of(name), getattr(row.arm.knobs, name)) for name in axes)
    role = f"  {row.arm.role}" if row.arm.role and row.arm.role != row.arm.label else ""
    return f"{'★' if row.best else ' ' if row.left else '·'} {values or row.arm.label}{role}"


def sorted_rows(result: Result) -> list[ArmRow]:
    """Rows as they are shown: a sweep in the order of its values, others with the fastest first, dropped ones last."""
    found_rows = list(rows(result))
    if result.left is None:
        return found_rows
    return sorted(found_rows, key=lambda row: (not row.best, not row.left, -row.gain))


def against(row: ArmRow, result: Result) -> str:
    """The paired difference of a row with what the experiment compares with, and its interval; empty where there is
    nothing to compare with yet."""
    it = row.versus
    if it is None:
        if len(result.arms) == 1:
            return ""
        return "best" if row.best else "reference" if row.index == result.base else ""
    if it.verdict == "too few runs":
        return f"{percent(it.difference)}? {counted(it.n, 'paired run')}"
    noise = ", noise" if it.verdict == "noise" else ""
    return f"{percent(it.difference)} ({_interval(it)}){noise}"


def _interval(it: Comparison) -> str:
    low, high = (f"{share * 100:+.0f}".replace("-", "−") for share in (it.low or 0.0, it.high or 0.0))
    return f"{low} to {high} %"


def too_few(pairs: int) -> str:
    return f"only {counted(pairs, 'paired run')}, {MIN_PAIRS} needed"


def _too_few(found_rows: Sequence[ArmRow]) -> list[int]:
    """The pairs of each row that has too few of them."""
    return [row.versus.n for row in found_rows if row.versus and row.versus.verdict == "too few runs"]


def finding(result: Result, *, running: bool = False) -> str:
    found_rows = rows(result)
    top = best(found_rows)
    if top is None:
        return "measuring the first settings" if running else "nothing was measured"
    so_far = "so far: " if running else "" if result.complete else "cut short; so far: "
    text = f"{so_far}{top.arm.label}: {speed(top.tok_s.median)} tok/s"
    if len(result.arms) == 1:
        return text
    base = result.arms[result.base].label if result.base is not None else ""
    pairs = _too_few(found_rows)
    if top.versus is None and pairs:
        return f"{text} is the fastest, too few paired runs to tell: {too_few(pairs[0])}"
    if top.versus is None:
        others = [row.arm.label for row in found_rows if row.versus is not None and not row.versus.matters]
        alike = f"; no difference beyond noise from {', '.join(others[:3])}" if others else ""
        more = f" and {counted(len(others) - 3, 'other')}" if len(others) > 3 else ""
        return f"{text} is the best{alike}{more}"
    it = top.versus
    share = f"{text}, {percent(it.difference)} against {base}"
    if it.verdict == "too few runs":
        return f"{share}, too few paired runs to tell: {too_few(it.n)}"
    agree = f"{it.wins} of {it.n} paired runs"
    return f"{share} ({_interval(it)}, {agree})" if it.matters else f"{share}, no more than noise: {agree}"


def table(result: Result, width: int = WIDE_FROM) -> list[str]:
    """The table as aligned lines, without bars; if two parameters were swept, a grid of speeds follows."""
    names = columns(result, width)
    every = zip(names, *cells(result, sorted_rows(result), width))
    lines = list(zip(*(column for column in every if column[0])))
    widths = [max(map(len, column)) for column in zip(*lines)]
    padded = ([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])] for first, *rest in lines)
    return ["  ".join(line).rstrip() for line in padded]


def depths(result: Result) -> list[str]:
    """How often a draft was accepted, by depth, a line per arm; empty where nothing was drafted."""
    found_rows = [row for row in sorted_rows(result) if row.accepted]
    if not found_rows:
        return []
    count = min(max(len(row.accepted) for row in found_rows), DEPTHS)
    names = ["accepted by depth, %", *(named(row, result.axes) for row in found_rows)]
    gutter = max(map(len, names))
    shares = [[f"{depth}" for depth in range(1, count + 1)]]
    shares += [[f"{share * 100:.0f}" for share in row.accepted[:count]] for row in found_rows]
    return [name.ljust(gutter) + "".join(f"{text:>5}" for text in line) for name, line in zip(names, shares)]


Cell = tuple[str, float | None]
"""A piece of a line. Of a speed, where it lies between the slowest (0) and the best (1)."""


def field(result: Result, width: int = 0) -> list[list[Cell]]:
    """Median tok/s over two parameters, line by line; empty if only one was swept. The first goes downwards, unless the
    lines would be longer than `width` and shorter after swapping the axes."""
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


def _field(result: Result, down: str, across: str) -> list[list[Cell]]:
    found_rows = rows(result)
    top = best(found_rows)
    speeds = {(getattr(r.arm.knobs, down), getattr(r.arm.knobs, across)): r for r in found_rows}
    ys = dict.fromkeys(getattr(one.knobs, down) for one in result.arms)
    xs = dict.fromkeys(getattr(one.knobs, across) for one in result.arms)
    left = [show(spec_of(down), y) for y in ys]
    above = [show(spec_of(across), x) for x in xs]
    shown = {at: ("★" if row is top else "") + speed(row.tok_s.median) for at, row in speeds.items()}
    gutter, cell = max(map(len, left)), max(map(len, (*above, *shown.values()))) + 1
    slowest = min((row.tok_s.median for row in found_rows), default=0.0)
    span = (top.tok_s.median - slowest if top is not None else 0.0) or 1.0
    title = f"tok/s: {spec_of(down).label} ↓, {spec_of(across).label} →"  # short: it is next to a wide table
    shares = {at: min((row.tok_s.median - slowest) / span, 1.0) for at, row in speeds.items()}
    lines: list[list[Cell]] = [[(title, None)]]
    lines.append([(" " * gutter, None), *((f"{name:>{cell}} ", None) for name in above)])
    for name, y in zip(left, ys):
        values = ((f"{shown.get((y, x), ''):>{cell}} ", shares.get((y, x))) for x in xs)
        lines.append([(name.rjust(gutter), None), *values])
    return lines


def curve(result: Result) -> tuple[list[Mark], str]:
    """Median tok/s over the only swept parameter, and a title; no marks if its values have no order."""
    if len(result.axes) != 1 or spec_of(result.axes[0]).kind not in ("int", "float"):
        return [], ""
    found_rows = rows(result)
    top = best(found_rows)
    marks = [
        Mark(float(getattr(row.arm.knobs, result.axes[0])), row.tok_s.median, "★" if row is top else "●")
        for row in sorted(found_rows, key=lambda row: row is top)  # the best last, so that it is on top
    ]
    return marks, f"tok/s by {spec_of(result.axes[0]).label}   ★ best"


def notes(result: Result, *, running: bool = False) -> list[str]:
    """Notes below the table: how much was measured, what was left out, whether texts agree."""
    left_out, found_rows = result.excluded, rows(result)
    prompts = len(result.prompts) - len(left_out)
    # The rounds of a tournament repeat those that are left more often than was asked.
    repeats = counted(result.repeats, "repeat") if result.left is None else "more rounds for the fastest"
    lines = [
        f"{counted(len(result.trials), 'run')}: {counted(prompts, 'prompt')}, "
        f"{repeats}, settings taking turns; warm-up not counted"
    ]
    if result.arms:
        lines.append(f"fixed: {fixed(result)}")
    if not result.complete:
        lines.append(f"{'so far' if running else 'cut short'}: only runs that every setting has are compared")
    if left_out:
        first = "; ".join(f"{one.name}: {one.reason}" for one in left_out[:2])
        more = f" and {len(left_out) - 2} more" if len(left_out) > 2 else ""
        lines.append(f"{counted(len(left_out), 'prompt')} left out ({first}{more})")
    if scored := sum(row.right[1] for row in found_rows):
        lines.append(f"answers right: {sum(row.right[0] for row in found_rows)} of {scored} that could be scored")
    if other := sum(row.other_text for row in found_rows):
        what = "gave a different text than the first run with the same sampling (a near-tie)"
        lines.append(f"{counted(other, 'run')} {what}")
    if few := _too_few(found_rows):
        lines.append(f"{too_few(min(few))} for a difference to be more than noise: more prompts, or more repeats")
    return lines


def fixed(result: Result) -> str:
    """What all settings of an experiment share: the drafter, and what differs from the defaults."""
    knobs = [arm.knobs for arm in result.arms]
    same = [name for name in SPEC if len({getattr(one, name) for one in knobs}) == 1 and name not in result.axes]
    always = ("drafting", "p_min", "temperature", "max_tokens")
    named = [name for name in same if name in always or getattr(knobs[0], name) != SPEC[name].default]
    parts = [f"{name} {show(SPEC[name], getattr(knobs[0], name))}" for name in named]
    kinds, sizes = {kind_of(one.drafting) for one in knobs}, {one.cap for one in knobs}
    if len(kinds) == 1 and "drafting" not in same:
        parts.insert(0, f"drafting {kinds.pop()}")
    elif len(kinds) > 1 and len(sizes) == 1 and (size := sizes.pop()):
        parts.insert(0, f"budget {size}")
    return ", ".join(parts)


def progress(it: ExperimentProgress) -> str:
    """How far an experiment is, in one line."""
    share = it.done / it.total if it.total else 0.0
    left = f" · {seconds(it.left_s)} left" if it.left_s is not None else ""
    return f"{meter(share, 12)} {it.done} of {it.total}{left} · {it.doing}"


def best_line(it: Curve) -> str:
    top, now = it.best, it.at(it.current)
    if top is None:
        timed = "only steps of one budget" if it.measured else "too few steps"
        return f"fastest: not known, {timed} have been timed; m measures budgets"
    text = f"fastest by these step times: budget {top.budget}, {_speed(top)}"
    if now is not None and now.tok_s and top.tok_s and now is not top:
        gain = percent(change(speed(top.tok_s), speed(now.tok_s)))
        text += f"; budget {it.current}, {_speed(now)}: {gain} with it. Not a comparison: m measures both"
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
    unknown = "; ? not known" if any(point.ms is None for point in it.points) else ""
    return f"ms timed at {nodes} draft tokens; ~ interpolated, ≈ beyond them{unknown}"


def _speed(point: Point) -> str:
    return f"{SURE[point.source or 'measured']}{speed(point.tok_s or 0)} tok/s"


def whatif_table(points: Sequence[Point], current: int, top: Point | None) -> list[tuple[str, ...]]:
    """Lines of (mark and budget, tok/step, ms/step, tok/s)."""
    out: list[tuple[str, ...]] = []
    for point in points:
        mark = "★" if point is top else "◆" if point.budget == current else " "
        rate = speed(point.tok_s) if point.tok_s else "?"
        # 12.3 is measured, ~12.3 interpolated, ≈12.3 extrapolated.
        ms = f"{SURE[point.source or 'measured']}{point.ms:.1f}" if point.ms is not None else "?"
        out.append((f"{mark} {point.budget}", f"{point.acceptance.length:.2f}", ms, rate))
    return out
