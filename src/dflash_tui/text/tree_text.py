"""A step's candidate tree as text: what was verified and accepted, and optionally what was left out and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content

from dflash_core.clean import token_label
from dflash_core.draft_quality import FirstRejection, first_rejection, rejected
from dflash_core.events import StepEvent
from dflash_tui.application.amounts import chance
from dflash_tui.text.bars import clip

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
