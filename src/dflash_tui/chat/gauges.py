"""What keeps the figures of the chat screen fresh where they are seen: memory at 1 Hz, others in the turn's frames."""

from __future__ import annotations

import asyncio
import time

from dflash_core.lab import plain
from dflash_core.lab.plain import PlainSpeed
from dflash_tui.chat.desk import Desk
from dflash_tui.figures.plain_speeds import PlainSpeeds
from dflash_tui.widgets.stats import Figures, of_meter, of_turn
from dflash_tui.widgets.strip import Status, StatusStrip, TitleRow


class Gauges:
    """Draws title row, strip and panels from the session and the running turn."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._plain = PlainSpeeds(desk.past.folder)
        self._frames = 0
        self._measuring = False

    async def tick(self) -> None:
        """Once a second."""
        desk = self._desk
        if desk.session is not None:
            self.context()
            if desk.busy or desk.inspector.sees("memory"):
                await self.memory()

    def frame(self) -> None:
        """With a frame of the running turn, at most four times a second."""
        self._frames += 1
        self.strip()
        self.stats()
        if self._frames % 2 == 0:
            self.tree()

    def draw(self) -> None:
        """Everything at once: after a resize, another panel, the start or the end of a turn."""
        if not self._desk.screen.is_mounted:
            return
        self.strip()
        self.stats()
        self.tree()
        title = self._desk.screen.query_one(TitleRow)
        if self._desk.inspector.sees("memory"):
            self._desk.inspector.memory_panel.show(title.memory)

    def turn_ended(self) -> None:
        record = self._desk.flow.record
        speed = plain.of_turn(record) if record is not None else None
        if speed is not None:
            self.took_plain_speed(speed)
        self.draw()
        self.context()

    def took_plain_speed(self, speed: PlainSpeed) -> None:
        """Plain decoding has been measured: what is shown is compared with it from now on."""
        if self._desk.session is not None:
            self._plain.put(self._desk.session.title, speed)
            self.stats()

    def context(self) -> None:
        session = self._desk.session
        if session is not None:
            self._desk.screen.query_one(TitleRow).context = (session.context_used(), session.context_length)

    def strip(self) -> None:
        desk, flow = self._desk, self._desk.flow
        meter, report = flow.meter, flow.report
        mode, reason, rate, acceptance = "", "", 0.0, 0.0
        if report is not None:
            mode, reason = report.mode, report.reason
            rate, acceptance = report.stats.tokens_per_second, report.stats.acceptance_length
        elif meter is not None:
            event = meter.last or meter.prefill
            mode, reason = (event.mode, event.reason) if event else ("", "")
            rate = meter.rate(time.monotonic()) if flow.busy else meter.overall_rate
            acceptance = meter.totals.acceptance_length
        desk.screen.query_one(StatusStrip).status = Status(
            tuple(meter.rates) if meter else (),
            rate,
            acceptance,
            desk.knobs,
            desk.used,
            mode,
            reason,
            desk.session.limits.reasoning if desk.session is not None else None,
        )

    def stats(self) -> None:
        inspector = self._desk.inspector
        if inspector.sees("stats"):
            inspector.stats_panel.show(self._figures())

    def _figures(self) -> Figures | None:
        """Those of the running turn, or of the last; with the record where there is one."""
        flow, session = self._desk.flow, self._desk.session
        known = self._plain.get(session.title) if session is not None else None
        if flow.meter is None:
            return None
        learned = session.learned() if session is not None else ()
        if flow.record is not None and flow.report is not None:
            return of_turn(flow.record, flow.report, known, learned)
        return of_meter(flow.meter, flow.report, known, running=flow.busy, learned=learned)

    def tree(self) -> None:
        inspector, meter, session = self._desk.inspector, self._desk.flow.meter, self._desk.session
        if inspector.sees("tree") and session is not None:
            inspector.tree_panel.show(
                meter.last if meter else None, meter.totals.steps if meter else 0, session.token_text
            )

    async def memory(self) -> None:
        """Ask for the memory breakdown on another thread: measuring may talk to a driver."""
        session = self._desk.session
        if session is None or self._measuring:
            return
        self._measuring = True
        try:
            memory = await asyncio.to_thread(session.memory)
        except Exception as error:
            self._desk.screen.log.error(f"the memory breakdown failed: {error}")
            return
        finally:
            self._measuring = False
        if self._desk.screen.is_mounted:
            self._desk.screen.query_one(TitleRow).memory = memory
            if self._desk.inspector.sees("memory"):
                self._desk.inspector.memory_panel.show(memory)
