"""The text of a turn by draft depth or by step, and its calibration as two tables."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

from rich._wrap import divide_line
from textual.content import Content

from dflash_core.clean import clean
from dflash_core.draft_quality import by_position, by_probability
from dflash_core.events import StepEvent
from dflash_core.record import TurnRecord
from dflash_tui.application.amounts import chance, counted, short
from dflash_tui.text.bars import bar
from dflash_tui.text.blocks import Block, content, line, wrapped

By = Literal["depth", "step"]
OWN = "$foreground"
DEPTHS = ((3, "$primary underline"), (7, "$success underline italic"), (999, "$secondary underline bold"))
STEPS = ("$foreground", "$primary underline")
LEGENDS = {
    "depth": (("own token", OWN), *zip(("depth 1-3", "4-7", "8 on"), (style for _, style in DEPTHS))),
    "step": tuple(zip(("one step", "the next"), STEPS)),
}


@dataclass(frozen=True, slots=True)
class Span:
    """A token's text. `step` counts from 1, 0 is the prompt's own first token; `depth` 0 is a token of the target."""

    text: str
    step: int
    depth: int


def spans(record: TurnRecord) -> list[Span]:
    """The turn's text token by token: reasoning first, then, after an empty line, the answer."""
    found: list[Span] = []
    begins = bool(record.thinking)  # the answer is still to come
    for step, piece in enumerate(record.pieces):
        event = piece.event
        depth = event.accepted_depth if isinstance(event, StepEvent) else 0
        shown = [record.token_text(token) for token in event.tokens]
        depths = [place if place <= depth else 0 for place in range(1, len(shown) + 1)]
        left = len(piece.thinking)
        for text, at in zip(_aligned(piece.thinking + piece.text, shown), depths):
            if begins and piece.text and left <= 0 and found:
                found[-1], begins = replace(found[-1], text=f"{found[-1].text}\n\n"), False
            found.append(Span(text, step, at))
            left -= len(text)
    if record.rest != ("", ""):
        found.append(Span("".join(reversed(record.rest)), len(record.pieces) - 1, 0))
    return [Span(clean(one.text), one.step, one.depth) for one in found]


def _aligned(text: str, labels: list[str]) -> list[str]:
    """A piece's text cut at its tokens. Text that no single token has (tags, half characters) goes to a neighbour."""
    parts, at = [], 0
    for label in labels:
        plain = label.replace("␣", " ")
        escaped = plain.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r")
        fits = next((one for one in (escaped, plain) if one and text.startswith(one, at)), "")
        parts.append(fits)
        at += len(fits)
    if parts:
        parts[-1] += text[at:]
    return parts


class StepText:
    """A turn's text, wrapped to one width, in which the line of a step can be found."""

    def __init__(self, record: TurnRecord, width: int) -> None:
        self.width, self._spans = width, spans(record)
        self._starts = [0, *accumulate(len(span.text) for span in self._spans)]  # of each span, and the end
        self._text = "".join(span.text for span in self._spans)
        self._breaks = breaks(self._text, max(width, 8))
        full = [at for at in self._breaks if self._text[at - 1] != "\n"]  # where a line is full
        inside = (full[bisect_left(full, a) : bisect_left(full, b)] for a, b in pairwise(self._starts))
        cuts = ([a, *at, b] for (a, b), at in zip(pairwise(self._starts), inside))
        self._shown = ["\n".join(self._text[a:b] for a, b in pairwise(cut)) for cut in cuts]

    def line_of(self, step: int) -> int:
        """The line on which a step's text begins, ignoring leading spaces."""
        start = next((at for span, at in zip(self._spans, self._starts) if span.step >= step), len(self._text))
        rest = self._text[start:]
        return bisect_right(self._breaks, start + len(rest) - len(rest.lstrip(" ")))

    def drawn(self, step: int, by: By) -> Content:
        parts: list[tuple[str, str]] = []
        for span, shown in zip(self._spans, self._shown):
            style = STEPS[span.step % 2]
            if by == "depth":
                style = next(style for deepest, style in DEPTHS if span.depth <= deepest) if span.depth else OWN
            parts.append((shown, style + " reverse" * (span.step == step)))
        return Content.assemble(*parts)


def breaks(text: str, width: int) -> list[int]:
    """Where the lines after the first begin: after each line end, and between words if a line is full."""
    found, start = list[int](), 0
    for row in text.split("\n"):
        found += [start + at for at in divide_line(row, width)]
        start += len(row) + 1
        found.append(start)
    return found[:-1]


_DIM = "$foreground 70%"
_FIGURES = 26  # cells before a bar


def drawn_calibration(steps: Iterable[StepEvent], width: int, of: str) -> Content:
    """Two tables: by draft position, and by the drafter's probability. `of` says which steps they cover."""
    all_steps = list(steps)
    positions, bins = by_position(all_steps), by_probability(all_steps)
    head: Block = [[("Calibration", "bold"), (f"  {of}", _DIM)]]
    if not positions:
        copied = sum(len(step.tree.copied) for step in all_steps)
        instead = f"{counted(copied, 'node')} copied from the text" if copied else "plain decoding"
        return content([*head, line((f"nothing drafted: {instead}" if all_steps else "no step", _DIM))])
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
