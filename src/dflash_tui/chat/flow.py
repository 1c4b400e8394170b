"""The one path of a turn: a message or a retry starts it, a timer drains it; decoder, user or error end it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dflash_core.clean import one_line
from dflash_core.errors import ContextError
from dflash_core.knobs import Knobs
from dflash_core.record import TurnRecord
from dflash_tui.application.advice import explain, needs_restart
from dflash_tui.application.amounts import seconds, short
from dflash_tui.application.background import Running
from dflash_tui.application.figures.meter import Meter
from dflash_tui.chat.controller import Controller
from dflash_tui.widgets.answer import Answer
from dflash_tui.widgets.transcript import TurnBlock

FIRST_S = 0.25  # seconds before the first text is drawn: a shorter answer is drawn once, at its end
SLOWEST_S = 0.5  # the maximum of seconds before later text is drawn
SHARE = 0.06  # the share of the time that the app may use
FIGURES_S = 0.5  # seconds between drawings of the figures when no text arrives
LOOK_S = 0.05  # how often the flow reads from the decoder's thread
SOON_S = 1 / 60  # the minimum wait before checking again for a frame that is almost due


def next_look(wait: float) -> float:
    """Seconds until the next check, if the next frame is due in `wait` seconds."""
    return min(max(wait, SOON_S), LOOK_S)


class Frames:
    """Belongs to one turn. `now` and `cpu` are seconds: clock time, and processor time used by the app.

    After a frame it waits until the app's processor time since the previous frame is within `SHARE` of the clock.
    """

    def __init__(self, now: float, cpu: float) -> None:
        self._at, self._cpu = now, cpu  # clock and processor time at the start of the last frame
        self._first = False  # whether the first text is waiting
        self._shown = False

    def arrived(self, now: float, cpu: float) -> None:
        if not (self._shown or self._first):
            self._first, self._at, self._cpu = True, now, cpu

    def wait(self, now: float, cpu: float) -> float:
        """Seconds until a frame may be drawn, if the app stays idle until then; 0 or less: now."""
        waited = now - self._at
        if self._first and not self._shown:
            return FIRST_S - waited
        return min((cpu - self._cpu) / SHARE, SLOWEST_S) - waited

    def drawn(self, now: float, cpu: float) -> None:
        self._shown, self._at, self._cpu = self._first, now, cpu


@dataclass(eq=False)
class Flow(Controller):
    """Runs one turn at a time. The flow never waits for the decoder's thread, and drains what has arrived.

    All changes on the screen are drawn in one frame, because a frame costs ten times as much as its new content.
    `figures` draws those of the turn with one of its frames. `ended` is called when the flow is idle again, with
    whether the message was refused.
    """

    _figures: Callable[[], None]
    _ended: Callable[[TurnBlock, bool], None] = lambda block, refused: None
    _before: TurnRecord | None = None  # of the previous turn, whose figures are shown again after a refusal
    _frames: Frames = field(default_factory=lambda: Frames(0.0, 0.0))
    _figures_at: float = 0.0

    async def begin(self, block: TurnBlock, running: Running, knobs: Knobs) -> None:
        """Start a turn under `block`."""
        # Busy before the first await: keys are handled concurrently, so a retry may arrive meanwhile.
        turn = self.state.turn
        turn.running, turn.block, self._before = running, block, turn.record
        turn.meter = Meter(earlier=turn.meter.positions if turn.meter is not None else 0, cold=turn.cold)
        turn.report, turn.record, turn.answer, turn.calls, turn.taken = None, None, None, (), (0, 0)
        block.queued("")
        turn.answer = await block.add_answer(knobs)
        turn.answer.waiting("reading the prompt…")
        self._figures_at = time.monotonic()
        self._frames = Frames(self._figures_at, time.thread_time())
        running.start()
        self._look_again()

    def stop(self) -> None:
        turn = self.state.turn
        if turn.running is not None and not turn.running.stopping:
            turn.running.stop()
            if turn.answer is not None:
                turn.answer.waiting("stopping after this step…")

    def answer_now(self) -> None:
        """Close the reasoning of the running turn and go on to its answer."""
        turn = self.state.turn
        if turn.running is None:
            self.say("no answer is being written")
        elif turn.taken[0]:
            self.say("the answer is being written already")
        elif why := self.state.missing("change"):
            self.say(why)
        else:
            turn.running.answer_now()
            self.say("thinking is closed after this step; the answer follows")

    def _look_again(self, wait: float = LOOK_S) -> None:
        # Not a timer of the screen: its task and its message cost more than this check.
        asyncio.get_running_loop().call_later(next_look(wait), self._look)

    def _look(self) -> None:
        """Called twenty times a second while a turn runs, and when the next frame is due."""
        running = self.state.turn.running
        if running is None:
            return
        if not running.waits:
            self.state.followed = None  # the figures are this turn's, no longer those of a request before it
        now, cpu = time.monotonic(), time.thread_time()
        if running.arrived:
            self._frames.arrived(now, cpu)
        wait = self._frames.wait(now, cpu)
        if running.over or (wait <= 0 and (running.arrived or self._figures_due(now))):
            self.screen.call_next(self._frame)
        else:
            self._look_again(wait if running.arrived else LOOK_S)

    def _figures_due(self, now: float) -> bool:
        return now - self._figures_at >= FIGURES_S

    async def _frame(self) -> None:
        turn = self.state.turn
        running, meter, answer = turn.running, turn.meter, turn.answer
        if running is None or meter is None or answer is None:
            return
        if running.over:  # before the drain: nothing can arrive after it
            await self._take(running, meter, answer)
            await self._end(running, meter, answer)
            return
        now = time.monotonic()
        self._frames.drawn(now, time.thread_time())
        with self.screen.app.batch_update():
            await self._take(running, meter, answer)
            self._say(running, meter, answer)
            if self._figures_due(now):
                self._figures_at = now
                meter.sample(now)
                self._figures()
            await asyncio.sleep(0)  # update what has changed now: in this frame, not in an extra one
        self._look_again()

    async def _take(self, running: Running, meter: Meter, answer: Answer) -> None:
        pieces = running.drain()
        meter.started = running.began
        for piece in pieces:
            meter.add(piece)
        text, thinking = ("".join(getattr(piece, part) for piece in pieces) for part in ("text", "thinking"))
        taken = self.state.turn.taken
        self.state.turn.taken = (taken[0] + len(text), taken[1] + len(thinking))
        await answer.add(text, thinking, meter)

    def _say(self, running: Running, meter: Meter, answer: Answer) -> None:
        if running.stopping:
            return
        if running.waits and (user := self.state.decoder.used_by):
            answer.waiting(f"waits for {user}…")
        elif meter.first_at is None:
            done, total = running.prefill
            far = f"{short(done)} of {short(total)} tok · " if total else ""
            answer.waiting(f"reading the prompt… {far}{seconds(time.monotonic() - meter.started)}")
        else:
            calling = running.turn.calling if running.turn is not None else ""
            doing = f"writes a call of {one_line(calling, 60)}…" if calling else "writing…"
            answer.waiting(f"{doing} {meter.tokens} tok")

    async def _end(self, running: Running, meter: Meter, answer: Answer) -> None:
        shown, turn, block = self.state.turn, running.turn, self.state.turn.block
        assert block is not None
        if turn is not None:
            # A turn that was cut short releases text that waited for a complete character or tag.
            await answer.add(turn.text[shown.taken[0] :], turn.thinking[shown.taken[1] :], meter)
            block.entered = True
            shown.report, shown.record = turn.report, turn.record
            shown.calls = tuple(turn.calls) if running.error is None and not running.stopping else ()
        refused = running.error is not None and turn is None
        outcome = "refused" if refused else "failed" if running.error else "stopped" if running.stopping else ""
        if shown.report is not None and running.error is None and shown.report.stop != "cancelled":
            outcome = ""
        await answer.end(meter, shown.report, outcome)
        shown.error = running.error
        if running.error is not None and not (refused and isinstance(running.error, ContextError)):
            shown.lost = shown.lost or needs_restart(running.error)
            await answer.fail(*explain(running.error, running.trace, self.state.past.folder))
        answer.place(len(block.answers), len(block.answers))
        shown.running = None
        shown.cold = shown.cold and not meter.totals.steps
        if refused:
            shown.recall(self._before)
        self._ended(block, refused)
