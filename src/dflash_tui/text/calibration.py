"""Calibration as text: the drafter's probabilities against what the target accepted."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content

from dflash_core.draft_quality import by_position, by_probability
from dflash_core.events import StepEvent
from dflash_tui.application.amounts import chance, short
from dflash_tui.text.bars import bar
from dflash_tui.text.blocks import Block, content, line, wrapped

_DIM = "$foreground 70%"
_FIGURES = 26  # cells before a bar


def drawn(steps: Iterable[StepEvent], width: int, of: str) -> Content:
    """Two tables: by draft position, and by the drafter's probability. `of` says which steps they cover."""
    all_steps = list(steps)
    positions, bins = by_position(all_steps), by_probability(all_steps)
    head: Block = [[("Calibration", "bold"), (f"  {of}", _DIM)]]
    if not positions:
        return content([*head, line(("nothing drafted: plain decoding" if all_steps else "no step", _DIM))])
    bar_width = max(width - _FIGURES, 4)
    explained = (
        "pred: the drafter's mean probability (│); hit: how often the target agreed (bar); any: with any candidate"
    )
    rows: Block = [*head, *wrapped(explained, width, _DIM), line()]
    rows.append(line((" pos     n pred  hit  any", _DIM)))
    for one in positions:
        drawn_bar = (_beside(one.hit, one.stated, bar_width), "$success")
        shares = f"{chance(one.stated):>5}{chance(one.hit):>5}{chance(one.hit_any):>5} "
        rows.append(line(f" {one.depth:>3} {short(one.count):>5}{shares}", drawn_bar))
    rows += [line(), line((" p         n pred  hit", _DIM))]
    for each in bins:
        shares = f"{chance(each.stated):>5}{chance(each.hit):>5} "
        figures = f" {each.low:.1f}-{each.high:.1f} {short(each.count):>5}{shares}"
        rows.append(line(figures.ljust(_FIGURES), (_beside(each.hit, each.stated, bar_width), "$success")))
    return content(rows)


def _beside(hit: float, probability: float, width: int) -> str:
    """A bar for one share with a mark at the other."""
    at = min(int(probability * width), width - 1)
    drawn = bar(hit, width)
    return drawn[:at] + "│" + drawn[at + 1 :]
