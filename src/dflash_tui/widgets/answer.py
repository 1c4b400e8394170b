"""One answer: its thinking, its text, how it ended, and a line with its figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from textual.app import ComposeResult
from textual.content import Content
from textual.widget import MountError

from dflash_core.clean import clean, marked
from dflash_core.events import DRAFTED
from dflash_core.knobs import Knobs
from dflash_core.turn_stats import TurnReport
from dflash_tui.application.amounts import chance, speed
from dflash_tui.application.figures.meter import Meter
from dflash_tui.application.log import LOG
from dflash_tui.text.blocks import DOT, dotted
from dflash_tui.widgets.flash import Note
from dflash_tui.widgets.fold import Foldable, FoldLine, Thinking
from dflash_tui.widgets.literal import ByWidth, Static
from dflash_tui.widgets.markdown import Streamed
from dflash_tui.widgets.mixins import Stack, StackedRows

_CLOSE = re.compile(r"(?:^|\n)[ \t]*</think>[ \t]*(?:\n|$)")
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)


def stray_close(text: str) -> tuple[str, str] | None:
    """The reasoning and the answer, split at an unmatched closing tag on its own line; None if there is none.

    An answer about tags quotes them within a line or a fence, and has an opening tag for each closing one.
    """
    found = _CLOSE.search(text)
    if found is None:
        return None
    before = text[: found.start()]
    if "<think>" in before or len(_FENCE.findall(before)) % 2 or not before.strip():
        return None
    return before, text[found.end() :].lstrip("\n")


def flowed(lines: Sequence[str], width: int) -> Content:
    """Lines of parts between dots, which are broken there."""
    broken = (part for line in lines for part in dotted(line.split(DOT), width))
    return Content.styled(marked("\n".join(broken)), "$foreground 70%")


_STOPS = {
    "stop token": "",
    "max tokens": "cut at max tokens",
    "context full": "cut: context full",
    "cancelled": "stopped",
    "loop": "stopped: a loop",
}


class Answer(Stack, Foldable):
    """Filled while its turn runs. A retry folds it into one line and does not replace it."""

    def __init__(self, knobs: Knobs, node: str = "") -> None:
        super().__init__(classes="answer")
        self.knobs = knobs
        self.node = node  # its id in the conversation, once it is stored
        self.report: TurnReport | None = None
        self.line = FoldLine()
        self.thinking = Thinking()
        self.body = Streamed()
        self.footer = Static(classes="turn-footer")
        self.inside = StackedRows(self.thinking, self.body, self.footer, classes="answer-inside")
        self._summary = ""
        self._sibling = ""
        self._moved = False  # the thinking was at first taken for the answer, and counted as such
        self.compared: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        yield self.line
        yield self.inside

    def on_mount(self) -> None:
        self.line.display = False

    @property
    def text(self) -> str:
        return self.body.text

    @property
    def over(self) -> bool:
        return bool(self._summary)

    async def add(self, text: str, thinking: str, meter: Meter) -> None:
        if thinking:
            self.thinking.add(clean(thinking))
        if self.thinking.text and not self._moved:
            running = not text and (bool(thinking) or not self.body.text)
            self.thinking.count(meter.thinking_tokens, meter.thinking_s, running=running)
        # The blank lines between thinking and answer are not shown.
        shown = clean(text) if self.body.text else clean(text).lstrip("\n")
        if shown:
            try:
                await self.body.feed(shown)
            except Exception as error:
                await self._give_up(error)
            await self._move_reasoning()

    async def _move_reasoning(self) -> None:
        if "</think>" not in self.body.text or self.thinking.text:
            return
        if (parts := stray_close(self.body.text)) is not None:
            self.thinking.add(parts[0])
            self.thinking.line.title, self._moved = "thinking", True
            await self.body.start_again(parts[1])

    async def _give_up(self, error: Exception) -> None:
        """The message cannot be rendered: show its source, so that the conversation can continue."""
        if isinstance(error, MountError) or not self.is_attached:  # it is being removed, or the app ends: not an error
            return
        LOG.error("an answer could not be rendered", exc_info=error)
        await self.body.give_up()
        message = f"this answer cannot be rendered ({type(error).__name__}); its text follows as it is"
        await self.inside.mount(Note(message, kind="info"), before=self.body)

    def waiting(self, what: str) -> None:
        self.footer.update(Content.styled(what, "$foreground 80%"), layout=False)

    async def end(self, meter: Meter, report: TurnReport | None, outcome: str) -> None:
        """The turn has ended. `outcome` says how if there is no report."""
        self.report = report
        self.thinking.effort = report.effort if report is not None else ""
        if self.thinking.text and not self._moved:
            part = report.stats.thinking if report is not None else None  # as in the panels, and after later starts
            tokens, spent = (part.tokens, part.seconds) if part else (meter.thinking_tokens, meter.thinking_s)
            self.thinking.count(tokens, spent, running=False)
        try:
            await self.body.finish()
        except Exception as error:
            await self._give_up(error)
        noted = (*(event.summary for event in report.guards), *report.notes) if report is not None else ()
        for note in noted if self.is_attached else ():
            await self.inside.mount(Note(note, kind="info"), before=self.footer)
        self._summary = summary(meter, report, self.knobs, outcome)
        self._show_footer()

    async def fail(self, message: str, advice: str) -> None:
        if self.is_attached:
            await self.inside.mount(Note(message, advice), before=self.footer)

    async def restore(self, text: str, thinking: str, report: TurnReport | None, outcome: str) -> None:
        meter = Meter()
        await self.add(text, thinking, meter)
        await self.end(meter, report, outcome or ("" if report is not None else "without figures"))
        if report is None:
            self.thinking.line.title = "thinking"

    def place(self, number: int, count: int) -> None:
        """The number among the answers to the message: shown as ‹2/3› if there are several."""
        self._sibling = f"‹{number}/{count}›" if count > 1 else ""
        self._show_footer()
        self.line.title = f"answer {number}/{count} · {self._summary or 'not finished'}"

    def fold(self, folded: bool) -> None:
        """Fold into one line, if the conversation continues from another answer to the same message."""
        self.line.display, self.line.open, self.inside.display = folded, False, not folded

    def toggled(self, is_open: bool) -> None:
        self.inside.display = is_open

    def compare(self, lines: Sequence[str]) -> None:
        self.compared = tuple(lines)
        self._show_footer()

    def _show_footer(self) -> None:
        if self._summary:
            first = DOT.join(filter(None, (self._summary, self._sibling)))
            self.footer.update(ByWidth(partial(flowed, [first, *self.compared])))


def summary(meter: Meter, report: TurnReport | None, knobs: Knobs, outcome: str) -> str:
    """The line under an answer: speed, tokens, acceptance, the knobs it ran with, what ran, why it stopped."""
    stats, mode, _ = meter.shown(report)
    if stats is None or not (stats.tokens or (report is not None and report.source)):
        return outcome or "no tokens"
    stop = _STOPS[report.stop] if report is not None else ""
    parts = [
        f"{speed(stats.tokens_per_second)} tok/s" if stats.tokens_per_second else "",
        f"{stats.tokens} tok" if stats.tokens else "",
        f"{stats.acceptance_length:.1f} tok/step" if stats.acceptance_length else "",
    ]
    if mode in DRAFTED or (mode == "plain" and stats.verified > 0):  # drafts of earlier steps
        parts.append(f"{knobs.drafting}, p_min {chance(knobs.p_min) if knobs.p_min else '0'}")
    elif mode == "plain" and knobs.drafting != "plain":
        parts.append(knobs.drafting)  # which has drafted nothing
    return DOT.join(filter(None, (*parts, mode, report.draws if report else "", outcome or stop)))
