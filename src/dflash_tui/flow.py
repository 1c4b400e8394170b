"""The one path of a turn: a message or a retry begins it, a timer drains it, decoder, user or error end it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from textual.widget import Widget

from dflash_core.errors import ContextError, DFlashError
from dflash_core.events import TurnReport
from dflash_core.knobs import Knobs
from dflash_tui.meter import Meter
from dflash_tui.running import Running
from dflash_tui.session import OnPrefill, TurnLike
from dflash_tui.widgets.answer import Answer
from dflash_tui.widgets.bars import seconds, short
from dflash_tui.widgets.transcript import TurnBlock

SHORTEST, LONGEST = 0.05, 0.4


class FlowHost(Protocol):
    """The screen, as the flow sees it."""

    def turn_ended(self, block: TurnBlock, *, refused: bool) -> None: ...


class Flow:
    """Runs one turn at a time. The decoder's thread is never waited for; this side drains what has arrived."""

    def __init__(self, widget: Widget, host: FlowHost, folder: Path) -> None:
        self._widget = widget
        self._host = host
        self._folder = folder
        self.running: Running | None = None
        self.meter: Meter | None = None
        self.report: TurnReport | None = None
        self.answer: Answer | None = None
        self._block: TurnBlock | None = None
        self._taken = (0, 0)

    @property
    def busy(self) -> bool:
        return self.running is not None

    async def begin(self, block: TurnBlock, open_turn: Callable[[OnPrefill], TurnLike], knobs: Knobs) -> None:
        """Start a turn under `block`."""
        # Busy before the first await: keys are handled beside the screen's messages, and a retry may come meanwhile.
        self.running = running = Running(open_turn)
        self.meter, self.report, self.answer = Meter(), None, None
        self._block = block
        self._taken = (0, 0)  # characters of text and thinking that were drained
        block.queued("")
        self.answer = await block.add_answer(knobs)
        self.answer.waiting("reading the prompt…")
        running.start()
        self._arm(SHORTEST)

    def stop(self) -> None:
        """Ask the turn to end; the text stays."""
        if self.running is not None and not self.running.stopping:
            self.running.stop()
            if self.answer is not None:
                self.answer.waiting("stopping after this step…")

    def _arm(self, interval: float) -> None:
        self._widget.set_timer(interval, self._flush)

    async def _flush(self) -> None:
        running, meter, answer = self.running, self.meter, self.answer
        if running is None or meter is None or answer is None:
            return
        began = time.perf_counter()
        over = running.over  # before the drain: nothing can arrive after it
        arrivals = running.drain()
        for arrival in arrivals:
            meter.add(arrival)
        if arrivals:
            text = "".join(arrival.piece.text for arrival in arrivals)
            thinking = "".join(arrival.piece.thinking for arrival in arrivals)
            self._taken = (self._taken[0] + len(text), self._taken[1] + len(thinking))
            await answer.add(text, thinking, meter)
        if over:
            await self._end()
            return
        # Spend about a fifth of the time on rendering: a slow append is followed by a longer wait.
        cost = time.perf_counter() - began
        self._arm(min(max(4 * cost, SHORTEST), LONGEST))

    def tick(self) -> None:
        """Four times a second while a turn runs: sample the speed, say what is being waited for."""
        if self.running is None or self.meter is None or self.answer is None:
            return
        now = time.monotonic()
        self.meter.sample(now)
        if self.running.stopping:
            return
        if self.meter.first_at is None:
            done, total = self.running.prefill
            far = f"{short(done)} of {short(total)} tok · " if total else ""
            self.answer.waiting(f"reading the prompt… {far}{seconds(now - self.meter.started)}")
        else:
            self.answer.waiting(f"writing… {self.meter.tokens} tok")

    async def _end(self) -> None:
        running, meter, answer, block = self.running, self.meter, self.answer, self._block
        if running is None or meter is None or answer is None or block is None:
            return
        # A turn that was cut short lets go of what it held back for a whole character or tag.
        await answer.add(running.text[self._taken[0] :], running.thinking[self._taken[1] :], meter)
        block.entered = block.entered or running.opened
        self.report = running.report
        refused = running.error is not None and not meter.tokens
        outcome = "refused" if refused else "failed" if running.error else "stopped" if running.stopping else ""
        if self.report is not None and running.error is None and self.report.stop != "cancelled":
            outcome = ""
        await answer.end(meter, self.report, outcome)
        if running.error is not None:
            await answer.fail(*explain(running.error, running.trace, self._folder))
        answer.place(len(block.answers), len(block.answers))
        self.running = None
        self._host.turn_ended(block, refused=refused)


def explain(error: Exception, trace: str, folder: Path) -> tuple[str, str]:
    """An error as one line, and what to do next. Faults of the program leave their trace in a file."""
    if isinstance(error, ContextError):
        return str(error), "Nothing is lost. /clear begins an empty conversation; a shorter message may fit."
    if isinstance(error, DFlashError):
        return str(error), "The conversation is kept. Ctrl+R tries again; F2 changes parameters."
    return fault(error), f"The conversation is kept; {keep_trace(trace, folder)}. Ctrl+R tries again."


def fault(error: Exception) -> str:
    """An error that is no refusal, as one line."""
    return f"fault in the program: {' '.join(f'{type(error).__name__}: {error}'.split())}"


def keep_trace(trace: str, folder: Path) -> str:
    """Write a trace to a file; says where it is."""
    path = folder / "last-error.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(trace, encoding="utf-8", errors="replace")
    except OSError:
        return f"the trace could not be written to {path}"
    return f"the trace is in {path}"
