"""The candidate tree of the last step, with the path that the target took."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from dflash_core.events import StepEvent, StepTree
from dflash_tui.clean import token_label
from dflash_tui.widgets.bars import chance, clip
from dflash_tui.widgets.panel import Panel

COLUMNS = 13  # mark, own and path probability at the right of the token


class TreePanel(Panel):
    """One node per line: token, ✓ on the accepted path, own probability, probability of the path to it."""

    def __init__(self) -> None:
        super().__init__("tree")
        self._event: StepEvent | None = None
        self._step = 0
        self._token_text: Callable[[int], str] = str

    def compose(self) -> ComposeResult:
        yield Static(Content.assemble(("Tree", "bold")), id="tree-heading", classes="heading")
        with VerticalScroll():
            yield Static(_NONE, id="tree-body")

    def show(self, event: StepEvent | None, step: int, token_text: Callable[[int], str]) -> None:
        """Draw the tree of `event`, the turn's step number `step`."""
        self._event, self._step, self._token_text = event, step, token_text
        self.draw()

    def draw(self) -> None:
        event, step = self._event, self._step
        heading, body = self.query_one("#tree-heading", Static), self.query_one("#tree-body", Static)
        if event is None:
            heading.update(Content.assemble(("Tree", "bold")))
            body.update(_NONE)
            return
        nodes = len(event.tree.tokens) - 1
        note = f"  step {step} · {nodes} nodes · {event.accepted_depth} accepted"
        heading.update(Content.assemble(("Tree", "bold"), (note, "$foreground 70%")))
        width = max(self.query_one(VerticalScroll).scrollable_content_region.width, 24)
        body.update(drawn(event.tree, self._token_text, width) if nodes else _PLAIN)


_NONE = Content.styled("no step yet: the drafts of each step appear here", "$foreground 70%")
_PLAIN = Content.styled("this step drafted nothing: plain decoding", "$foreground 70%")


def drawn(tree: StepTree, token_text: Callable[[int], str], width: int) -> Content:
    """The whole tree as text, likelier children first."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents[1:], 1):
        children.setdefault(parent, []).append(node)
    accepted = set(tree.accepted)
    head = f"{'token':<{max(width - COLUMNS, 8)}}   {'own':>5}{'path':>5}"
    parts: list[Content | str | tuple[str, str]] = [(head + "\n", "$foreground 70%")]
    stack: list[tuple[int, str, str]] = [(0, "", "")]
    while stack:
        node, lead, below = stack.pop()
        parts += _line(tree, node, lead, accepted, token_text, width)
        below_nodes = sorted(children.get(node, ()), key=lambda child: tree.path_probs[child], reverse=True)
        if node and len(below_nodes) == 1:
            # A chain stays in one column; only a branch moves to the right, so that depth 15 fits in 40 cells.
            stack.append((below_nodes[0], below, below))
            continue
        for child in reversed(below_nodes):
            last = child == below_nodes[-1]
            stack.append((child, below + ("└ " if last else "├ "), below + ("  " if last else "│ ")))
    return Content.assemble(*parts)


def _line(
    tree: StepTree, node: int, lead: str, accepted: set[int], token_text: Callable[[int], str], width: int
) -> list[Content | str | tuple[str, str]]:
    kept = node in accepted
    room = max(width - COLUMNS, 8)
    lead = lead if cell_len(lead) <= room - 6 else "…" + lead[-(room - 7) :]
    label = clip(token_label(token_text(tree.tokens[node])), room - cell_len(lead))
    padding = " " * max(room - cell_len(lead) - cell_len(label), 0)
    mark = "✓" if kept else "✗"
    if node == 0:
        return [(lead, "$foreground 40%"), (label, "bold"), padding, (" root\n", "$foreground 70%")]
    numbers = f"{chance(tree.probs[node]):>5}{chance(tree.path_probs[node]):>5}\n"
    return [
        (lead, "$foreground 40%"),
        (label, "bold $success" if kept else "$foreground 70%"),
        padding,
        (f" {mark} ", "bold $success" if kept else "$foreground 50%"),
        (numbers, "" if kept else "$foreground 70%"),
    ]
