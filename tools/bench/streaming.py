"""What it costs to show an answer while it is written: the app's widget and Textual's own Markdown, alternating.

python -m tools.bench.streaming [--rounds 3] [--characters 480] [--documents list table]

Milliseconds of processor time of one process: of a frame in which so many characters arrive (480: what 300 tok/s write
in 0.4 s), median, median of the last ten, and longest; and of the end of the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median

from markdown_it import MarkdownIt
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Markdown

from dflash_tui.widgets.markdown import Streamed
from tools.bench.ui_feed import DOCUMENTS

FRAME_S = 0.08  # until all that follows from an append has been drawn
PART = (
    "## Part\n\nSome *words* of a `paragraph` that takes several lines of the screen, as it goes on for a while and "
    "then for a while more.\n\n"
    "- first item\n- second item with **bold**\n  - inner\n\n```python\nx = 1\nprint(x)\n```\n\n"
)
STEP = "1. Do **this**:\n\n   ```python\n   x = 1\n   ```\n\n   and then that.\n\n"
TEXTS = {
    **DOCUMENTS,
    "items": "".join(f"{number}. item {number} of them\n" for number in range(1, 1201)),
    "rows": "| n | square |\n|---|---|\n" + "".join(f"| {n} | {n * n} |\n" for n in range(300)),
    "mixed": PART * 50,
    "steps": STEP * 60,
}


class Page(App[None]):
    """An answer that grows, at its newest line."""

    CSS = "Markdown { height: auto; padding: 0; }"

    def __init__(self, body: Markdown) -> None:
        super().__init__()
        self.body = body

    def compose(self) -> ComposeResult:
        with VerticalScroll() as scroll:
            scroll.anchor()
            yield self.body


async def _costs(body: Markdown, add: Callable[[str], Awaitable[None]], text: str, characters: int) -> list[float]:
    """Milliseconds of each frame."""
    async with Page(body).run_test(size=(120, 40)):
        costs = []
        for start in range(0, len(text), characters):
            began = time.thread_time()
            await add(text[start : start + characters])
            await asyncio.sleep(FRAME_S)
            costs.append((time.thread_time() - began) * 1e3)
        if isinstance(body, Streamed):
            began = time.thread_time()
            await body.finish()
            await asyncio.sleep(FRAME_S)
            return [*costs, (time.thread_time() - began) * 1e3]
        return [*costs, 0.0]


async def measure(text: str, characters: int, own: bool) -> list[float]:
    """The frames of one answer, and its end."""
    if own:
        body = Streamed()
        return await _costs(body, body.feed, text, characters)
    plain = Markdown("", parser_factory=lambda: MarkdownIt("gfm-like", {"html": False}), open_links=False)

    async def add(part: str) -> None:
        await plain.append(part)

    return await _costs(plain, add, text, characters)


def main() -> int:
    """Print a line for each document and widget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--characters", type=int, default=480)
    parser.add_argument("--documents", nargs="*", choices=sorted(TEXTS), default=sorted(TEXTS))
    arguments = parser.parse_args()
    write = sys.stdout.write
    write(f"{'':<10}{'widget':<10}{'frame':>9}{'last ten':>10}{'longest':>9}{'end':>8}\n")
    for name in arguments.documents:
        found: dict[bool, list[list[float]]] = {True: [], False: []}
        for number in range(arguments.rounds):
            for own in (True, False) if number % 2 else (False, True):
                found[own].append(asyncio.run(measure(TEXTS[name], arguments.characters, own)))
        for own, rounds in found.items():
            frames = [(median(costs[:-1]), median(costs[-11:-1]), max(costs[:-1]), costs[-1]) for costs in rounds]
            middle, last, longest, end = (median(column) for column in zip(*frames))
            widget = "the app" if own else "Textual"
            write(f"{name:<10}{widget:<10}{middle:9.1f}{last:10.1f}{longest:9.1f}{end:8.1f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
