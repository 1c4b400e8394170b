"""Updates the visible figures of the chat screen: memory at 1 Hz, the others in the turn's frames."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from dflash_tui.application.background import aside
from dflash_tui.application.figures.meter import verdict
from dflash_tui.chat.controller import Controller
from dflash_tui.widgets.panels import drawn
from dflash_tui.widgets.strip import Status, StatusStrip, TitleRow

if TYPE_CHECKING:
    from dflash_core.lab.results import PlainSpeed
    from dflash_core.turn_stats import TurnReport
    from dflash_tui.application.figures.measurements import PlainSpeeds
    from dflash_tui.application.figures.meter import Verdict
    from dflash_tui.widgets.stats import Figures


class Gauges(Controller):
    """Draws title row, strip and panels from the session and the running turn."""

    _frames = 0
    _measuring = False
    _draft = 0  # tokens of the text being typed
    _standing = 0  # positions of a conversation whose last turn has only a report

    @cached_property
    def _plain(self) -> PlainSpeeds:
        from dflash_tui.application.figures.measurements import PlainSpeeds  # with the first model

        return PlainSpeeds(self.state.past.folder)

    @property
    def any(self) -> bool:
        """A turn of this conversation has figures."""
        return self.state.shown.meter is not None

    async def tick(self) -> None:
        self.start()
        if self.state.session is not None:
            self.context()
            if self.state.shown_runs or self.inspector.sees("memory"):
                await self.memory()

    def frame(self) -> None:
        """Draw with a frame of the running turn, at most twice a second; expensive panels one per frame."""
        self._frames += 1
        self.strip()
        if self._frames % 2:
            self.stats()
        else:
            self.tree()

    def draw(self) -> None:
        """Draw everything at once: after a resize, a change of panel, the start or the end of a turn."""
        screen = self.screen
        if not screen.is_mounted:
            return
        if self.inspector.has_class("-quiet") == self.any:
            self.inspector.set_class(not self.any, "-quiet")
            screen.call_after_refresh(self.draw)
        self.strip()
        self.stats()
        self.tree()
        self._show_memory()

    def turn_ended(self) -> None:
        """Also where another conversation or branch is shown: what the figures are of has changed."""
        record, meter = self.state.turn.record, self.state.turn.meter
        if record is not None and meter is not None and not meter.cold:
            from dflash_core.lab.results import plain_of_turn

            if (speed := plain_of_turn(record)) is not None:
                self.took_plain_speed(speed)
        self.draw()
        self.context()

    def took_plain_speed(self, speed: PlainSpeed) -> None:
        """Plain decoding has been measured: the baseline for what is shown from now on, unless the known one has
        more steps."""
        session = self.state.session
        if session is not None and self._plain.put(session.title, speed):
            self.stats()
            self.strip()

    @property
    def plain(self) -> PlainSpeed | None:
        """The speed of plain decoding of the loaded pair on this machine, where it has been measured."""
        session = self.state.session
        return self._plain.get(session.title) if session is not None else None

    def start(self) -> None:
        self.transcript.start.show(self.state.model, loading=self.state.loading, tunes=not self.state.attached)

    def context(self) -> None:
        """How much of the context the conversation on the screen takes, and the typed text would take."""
        session = self.state.session
        self.start()
        row = self.screen.query_one(TitleRow)
        row.context = (self.used, self._draft, session.context_length) if session is not None else (0, 0, 0)

    @property
    def used(self) -> int:
        """Positions of the conversation on the screen, from the running turn or from the last one that was read."""
        meter = self.state.turn.meter
        return meter.positions if meter is not None and meter.positions else self._standing

    def stand(self, report: TurnReport | None, share: float = 1.0) -> None:
        """Another conversation or branch is shown: its last answer's report has its length. If old turns were left out
        since then, the next turn continues from the share `remaining_share` of it."""
        self.state.followed = None
        self._standing = round((report.stats.prompt_tokens + report.stats.tokens) * share) if report is not None else 0
        if (meter := self.state.turn.meter) is not None:
            meter.remaining_share = share
        self.turn_ended()

    def typed(self, tokens: int) -> None:
        if tokens != self._draft:
            self._draft = tokens
            self.context()

    def strip(self) -> None:
        state, meter, report = self.state, self.state.shown.meter, self.state.shown.report
        stats, mode, reason = meter.shown(report) if meter is not None else (None, "", "")
        rate, acceptance = (stats.tokens_per_second, stats.acceptance_length) if stats is not None else (0.0, 0.0)
        against = self._verdict(rate) if mode != "plain" else None
        self.screen.query_one(StatusStrip).status = Status(
            bool(meter and meter.rates), rate, acceptance, state.knobs, state.used, mode, reason,
            state.limits.reasoning, against, state.limits.taken, state.shown.client,
        )  # fmt: skip

    def _verdict(self, rate: float) -> Verdict | None:
        """The turn on the screen, of so many tokens per second, against plain decoding."""
        meter, plain = self.state.shown.meter, self.plain
        if meter is None or plain is None:
            return None
        steps, tokens = meter.totals.steps, meter.tokens
        return verdict(rate, plain.tokens_per_second, steps, tokens, running=self.state.shown_runs, cold=meter.cold)

    def stats(self) -> None:
        inspector = self.inspector
        if inspector.sees("stats"):
            figures = self._figures()
            inspector.stats_panel.draw_by(figures.drawn if figures is not None else None)

    def _figures(self) -> Figures | None:
        turn, session = self.state.shown, self.state.session
        if turn.meter is None:
            return None
        from dflash_tui.widgets.stats import figures

        found = figures(turn.meter, turn.report, turn.record, running=self.state.shown_runs)
        rate = found.stats.tokens_per_second if found.stats is not None else 0.0
        learned = session.learned() if session is not None else ()
        return replace(found, plain=self.plain, learned=learned, verdict=self._verdict(rate))

    def tree(self) -> None:
        inspector, meter, session = self.inspector, self.state.shown.meter, self.state.session
        if inspector.sees("tree") and session is not None:
            last, step = (meter.last, meter.totals.steps) if meter else (None, 0)
            inspector.tree_panel.show(last, step, session.token_text, self.state.missing("tree"))

    async def memory(self) -> None:
        """Request the memory breakdown on another thread: measuring may call a driver."""
        session = self.state.session
        if session is None or self._measuring:
            return
        self._measuring = True
        try:
            memory = await aside(session.memory)
        except Exception as error:
            self.screen.log.error(f"the memory breakdown failed: {error}")
            return
        finally:
            self._measuring = False
        if self.screen.is_mounted:
            self.screen.query_one(TitleRow).memory = memory
            self._show_memory()

    def _show_memory(self) -> None:
        memory = self.screen.query_one(TitleRow).memory
        if self.inspector.sees("memory"):
            shown = partial(drawn, memory, missing=self.state.missing("memory")) if memory is not None else None
            self.inspector.memory_panel.draw_by(shown)
