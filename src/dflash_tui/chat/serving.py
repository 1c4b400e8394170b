"""Other programs use the model that the app has loaded: `/serve` begins and ends that, the panels follow a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dflash_core.errors import DFlashError
from dflash_core.events import Piece
from dflash_core.record import End, Read, Start, Step
from dflash_tui.application.figures.meter import Meter
from dflash_tui.application.requests import NumberedLine, ServedRequest, client_name
from dflash_tui.application.settings.config import remember_client
from dflash_tui.application.settings.presets import changed
from dflash_tui.chat.controller import Controller
from dflash_tui.chat.flow import FIGURES_S
from dflash_tui.chat.gauges import Gauges
from dflash_tui.chat.state import ShownTurn
from dflash_tui.server.settings import ServerSettings, needs

if TYPE_CHECKING:
    from dflash_tui.server.sampling import Defaults
    from dflash_tui.server.serving import ServerBeside

LOOK_S = 0.1
CLOSE_S = 10.0  # for connections and the running step
QUIT_S = 2.0  # at the end of the app


@dataclass(eq=False)
class Serving(Controller):
    _gauges: Gauges
    _server: ServerBeside | None = None
    _busy: bool = False  # it begins or ends
    _problems: list[str] = field(default_factory=list)  # presets of clients that do not exist
    _defaults: tuple[Defaults, Mapping[str, Defaults]] | None = None  # what the server has now
    _seen: int = 0  # number of the last line that was taken
    _drawn: float = 0.0
    current: ServedRequest | None = None  # the one that the panels follow
    stuck: bool = False  # its threads did not end in time

    def watch(self) -> None:
        """A model has been loaded: where it is that of a server of ours, follow what others ask there."""
        state, followed = self.state, self.state.watched
        if state.session is None:
            return
        state.watched = state.session.watch(state.requests)
        if followed:  # the request on the screen was one to the server before
            state.followed = None
        if state.watched and not followed:
            self._seen = state.requests.last_line
            self.screen.set_timer(LOOK_S, self._look)

    async def begin(self, settings: ServerSettings) -> None:
        """Accept requests from now on. Raises DFlashError."""
        session = self.state.session
        if self._server is not None or self._busy:
            raise DFlashError(f"other programs can use the model already, at {self.state.serving}; /serve off ends it")
        if session is None:
            raise DFlashError(self.state.no_pair)
        needs()
        engine, defaults = session.decoder(), self._present()
        for line in self._problems:
            self.say(line)

        def opened() -> ServerBeside:
            from dflash_tui.server import service, serving

            served = service.served(self.state.present or self.state.request, *defaults)
            return serving.ServerBeside(engine, served, settings, self.state.requests, self.state.decoder)

        self._busy = True
        try:
            self._server = await asyncio.to_thread(opened)
        finally:
            self._busy = False
        self._defaults, self._seen = defaults, self.state.requests.last_line
        self.state.serving = self._server.address
        self.screen.set_timer(LOOK_S, self._look)

    async def end(self) -> None:
        """Accept no more requests, and end the running one. Raises DFlashError."""
        server = self._server
        if server is None or self._busy:
            raise DFlashError("nothing is served; /serve begins")
        self._busy = True
        try:
            self.stuck = not await asyncio.to_thread(server.close, CLOSE_S)
        finally:
            self._server, self._busy = None, False
            self.state.serving = ""
        self._look()

    def stop(self) -> None:
        """As `end`, when the app ends: wait here, though not for long."""
        server, self._server = self._server, None
        if server is not None:
            self.state.serving = ""
            self.stuck = not server.close(QUIT_S)

    def _present(self) -> tuple[Defaults, Mapping[str, Defaults]]:
        """The parameters of the app are those of requests that name none, unless their client has a preset."""
        from dflash_tui.server.sampling import Defaults, of_clients

        knobs, recommended = self.state.knobs, self.state.recommended
        clients, self._problems = of_clients(self.state.clients, self.state.presets, recommended, greedy=True)
        # Greedy: where nothing is recommended, requests get what the app shows too.
        return Defaults(knobs, frozenset(changed(knobs, recommended)), recommended, greedy=True), clients

    def next_preset(self, client: str) -> str:
        """Give a client the preset after its present one, and remember that; the name, "" for none: then it gets what
        the app has. Raises ConfigError where it cannot be remembered."""
        names = ("", *self.state.presets.names_for(self.state.model))
        now = self.state.clients.get(client, "")
        name = names[(names.index(now) + 1) % len(names)] if now in names else ""
        self.state.clients |= {client: name}
        if not name:
            del self.state.clients[client]
        remember_client(client, name)
        return name

    def _look(self) -> None:
        """Ten times a second while there is a server."""
        lines, _ = self.state.requests.after(self._seen)
        for one in lines:
            self._seen = one.number
            self._take(one)
        shown, now = self.state.followed, time.monotonic()
        if shown is not None and shown.served and shown.meter is not None:
            if self.current is not None and self.current.state == "over":
                shown.served, shown.record = False, self.current.record
                self._gauges.draw()
            elif now - self._drawn >= FIGURES_S:
                self._drawn = now
                shown.meter.sample(now)
                self._gauges.frame()
        if self._server is None and not self.state.watched:
            return
        if self._server is not None and (present := self._present()) != self._defaults:
            self._defaults = present
            self._server.retune(*present)
        self.screen.set_timer(LOOK_S, self._look)

    def _take(self, one: NumberedLine) -> None:
        line, state = one.line, self.state
        if isinstance(line, Start):
            client = client_name(one.request.client) or "another program"
            state.followed = ShownTurn(meter=Meter(), cold=False, served=True, client=client)
            self.current = one.request
            self._gauges.draw()
            return
        shown = state.followed
        if shown is None or shown.meter is None or one.request is not self.current:
            return  # the chat's own turn has begun since, or the beginning is lost
        if isinstance(line, (Read, Step)):
            shown.meter.add(Piece(line.event, line.text, line.thinking, line.at))
        elif isinstance(line, End):
            shown.report = line.report
