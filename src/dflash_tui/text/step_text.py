"""A turn's steps as text: its tree of candidates, its text by draft depth or by step, its calibration as two tables."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

from rich._wrap import divide_line
from rich.cells import cell_len
from textual.content import Content

from dflash_core.clean import clean, token_label
from dflash_core.draft_quality import FirstRejection, by_position, by_probability, first_rejection, rejected
from dflash_core.events import StepEvent
from dflash_core.record import TurnRecord
from dflash_tui.application.amounts import chance, counted, short
from dflash_tui.text.bars import bar, clip
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


COLUMNS = 13  # mark, own and path probability, or the learned value, to the right of the token
MARKS = {"p_min": "p", "budget": "b", "value": "v", "stop": "s", "chain": "c"}
OUT = {
    "p_min": "under p_min", "budget": "over budget", "value": "does not pay", "stop": "after the end",
    "chain": "no place in a chain",
}  # fmt: skip

Part = Content | str | tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Row:
    """One line below the root. `node` is None for a candidate that is not in the tree."""

    token: int
    mark: str
    style: str
    numbers: str
    path_prob: float
    node: int | None = None


def drawn(
    step: StepEvent, token_text: Callable[[int], str], width: int, *, left_out: bool = False, taken_only: bool = False
) -> Content:
    """The whole tree as text, likelier children first.

    `left_out` adds candidates that the builder considered and did not take, and the token that the target chose
    instead. `taken_only` shows only the accepted path.
    """
    below = _rows(step, left_out=left_out, taken_only=taken_only)
    chances = "auto" if step.tree.values else "path"
    head = f"{'token':<{max(width - COLUMNS, 8)}}   {'own':>5}{chances:>5}"
    parts: list[Part] = [(head + "\n", "$foreground 70%")]
    root = _Row(step.tree.tokens[0], "", "bold", " root\n", 1.0, 0)
    # A chain stays in one column, so that depth 15 fits in 40 cells: a rail joins its nodes, from ┬ to ╰. Each entry: a
    # row, what stands before it, what stands before the rows under it, and whether it is on the rail of the row above.
    stack: list[tuple[_Row, str, str, bool]] = [(root, "", "", False)]
    while stack:
        row, lead, under, railed = stack.pop()
        rows = below.get(row.node, []) if row.node is not None else []
        nodes = [one for one in rows if one.node is not None]
        goes_on = bool(row.node) and len(nodes) == 1
        if goes_on or railed:
            lead = lead[:-1] + (("│" if goes_on else "╰") if railed else "┬")
        parts += _line(row, lead, token_text, width)
        if goes_on:
            stack.append((nodes[0], under, under, True))
            stack += [(one, under[:-1] + "├ ", under, False) for one in reversed(rows) if one.node is None]
            continue
        for one in reversed(rows):
            last = one is rows[-1]
            stack.append((one, under + ("└ " if last else "├ "), under + ("  " if last else "│ "), False))
    return Content.assemble(*parts).rstrip("\n")


def legend(step: StepEvent, *, left_out: bool, taken_only: bool) -> str:
    """What the marks next to this tree's tokens mean."""
    seen = ["✓ taken"]
    if len(step.tree.tokens) - 1 > step.accepted_depth and not taken_only:
        seen.append("✗ not taken")
    seen += ['" copied'] if step.tree.copied else []
    if left_out:
        left = first_rejection(step)
        seen += ["◆ the target's"] if left is not None else []
        why = {one.why for one in rejected(step)} if not taken_only else set()
        why |= {left.why} if left is not None else set()  # its mark stands beside ◆
        seen += [f"{mark} {OUT[name]}" for name, mark in MARKS.items() if name in why]
    return "  ".join(seen)


def rejection_line(step: StepEvent, token_text: Callable[[int], str]) -> str:
    """A sentence: the token that the target drew where the walk left the tree, and the drafter's rank for it."""
    left = first_rejection(step)
    if left is None:
        return ""
    label = f"the target drew {token_label(token_text(left.token))}"
    if left.rank is None or left.prob is None:
        if left.why == "no depth left":
            return f"{label} after the last draft" if step.drafts.tokens else label
        return f"{label}: not among the drafter's {len(step.drafts.tokens[step.accepted_depth])} candidates there"
    return f"{label}: the drafter's rank {left.rank + 1}, p {chance(left.prob)}, {OUT[left.why]}"


def _rows(step: StepEvent, *, left_out: bool, taken_only: bool) -> dict[int, list[_Row]]:
    """The rows under each node, likelier first."""
    tree, accepted, copied = step.tree, set(step.tree.accepted), set(step.tree.copied)
    chances = tree.values or tree.path_probs
    below: dict[int, list[_Row]] = {}
    for node, parent in enumerate(tree.parents[1:], 1):
        taken = node in accepted
        if taken or not taken_only:
            numbers = f"{chance(tree.probs[node]):>5}{chance(chances[node]):>5}\n"
            mark, style = ("✓", "bold $success") if taken else ("✗", "$foreground 70%")
            mark += '"' if node in copied else ""
            row = _Row(tree.tokens[node], mark, style, numbers, chances[node], node)
            below.setdefault(parent, []).append(row)
    if left_out:
        left = first_rejection(step)
        the_targets = (left.node, left.token) if left is not None else None
        for one in [] if taken_only else rejected(step):
            if (one.parent, one.token) == the_targets:
                continue
            numbers = f"{chance(one.prob):>5}{chance(one.path_prob):>5}\n"
            row = _Row(one.token, MARKS[one.why], "$foreground 75%", numbers, one.path_prob)
            below.setdefault(one.parent, []).append(row)
        if left is not None:
            below.setdefault(left.node, []).append(_rejected(step, left))
    for rows in below.values():
        rows.sort(key=lambda row: row.path_prob, reverse=True)
    return below


def _rejected(step: StepEvent, left: FirstRejection) -> _Row:
    if left.prob is None:
        return _Row(left.token, "◆", "bold $secondary", f"{'–':>5}{'–':>5}\n", 0.0)
    path = step.tree.path_probs[left.node] * left.prob
    mark = "◆" + MARKS.get(left.why, "")
    return _Row(left.token, mark, "bold $secondary", f"{chance(left.prob):>5}{chance(path):>5}\n", path)


def _line(row: _Row, lead: str, token_text: Callable[[int], str], width: int) -> list[Part]:
    available = max(width - COLUMNS, 8)
    lead = lead if cell_len(lead) <= available - 6 else "…" + lead[-(available - 7) :]
    label = clip(token_label(token_text(row.token)), available - cell_len(lead))
    padding = " " * max(available - cell_len(lead) - cell_len(label), 0)
    parts: list[Part] = [(lead, "$foreground 40%"), (label, row.style), padding]
    if row.node == 0:
        return [*parts, (row.numbers, "$foreground 70%")]
    style = "" if row.mark.startswith("✓") else "$foreground 70%"
    own, path = row.numbers[:5], row.numbers[5:]
    return [*parts, (f" {row.mark:<2}", row.style), (own, style), (path, style)]
